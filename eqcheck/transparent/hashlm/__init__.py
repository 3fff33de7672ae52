"""The transparent target: a causal LM whose attention is a hash, so that every context can be read back."""
