"""Run a decoder in this process, in a forked one, or under another Python."""
