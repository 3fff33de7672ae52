"""How cases are drawn: by a seed, or by Hypothesis, which then shrinks them."""
