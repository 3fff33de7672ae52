"""Draw cases: by a seed, or by Hypothesis, which then shrinks them."""
