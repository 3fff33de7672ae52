"""Kinds of evidence about a decoder; each draws, judges, minimises and explains cases of its own."""
