"""The conformance suite: one Hypothesis property per law, run against every decoder that ``--adapter`` names."""
