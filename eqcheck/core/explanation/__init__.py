"""Explain why a decoder is wrong: the facts as records, and the English that is made from them."""
