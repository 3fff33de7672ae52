"""Compare a server that speculates with a plain server of the same model, which is the referee."""
