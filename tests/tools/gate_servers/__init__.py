"""Servers of the trained pair that speak vLLM's completions: plain, speculating, or with a planted fault."""
