"""Measure how much memory a decoder's keys and values take, what they hold, and what is kept for nothing.

ledger    every storage that holds keys or values while a decoder runs, and what its slots held, round by round
probe     the case that this is measured on, and what an audit says of it: figures, and warnings of leaks
"""
