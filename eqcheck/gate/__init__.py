"""A gate: does a server that speculates still emit the tokens of its model? A plain server is the referee."""
