"""The lane of sampling: every row is to be drawn from its target's law, independently of the others."""
