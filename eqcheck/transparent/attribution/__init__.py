"""The cause of a wrong token: read from the trace, and tried by repair."""
