"""Where a decoder runs: in this process, in a forked one, or under another Python."""
