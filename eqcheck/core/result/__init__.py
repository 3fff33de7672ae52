"""The results of decodes: verdicts, outcomes, counts, findings and audits, as data."""
