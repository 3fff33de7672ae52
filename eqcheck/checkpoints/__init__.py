"""Checkpoints for engines: tiny models in a folder, their true continuations, and the judge of an engine's rows."""
