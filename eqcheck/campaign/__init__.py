"""The audit of a decoder: draw cases, decode, judge, gather, confirm, minimise, explain, store."""
