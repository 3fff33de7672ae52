"""One decode of a case, and everything that was recorded of it."""
