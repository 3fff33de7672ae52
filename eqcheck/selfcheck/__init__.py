"""The self-check: every planted fault is caught and named, and no right decoder is accused."""
