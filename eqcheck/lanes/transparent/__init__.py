"""The lane of the transparent target: exact verdicts, and causes that are read from what every query saw."""
