"""Why a token is wrong: read from the trace, and tried by repair."""
