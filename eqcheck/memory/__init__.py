"""How much memory a decoder's keys and values take, what they hold, and what is kept for nothing.

ledger    every storage that holds keys or values while a decoder runs, alive or gone
contents  what the slots of those storages held, round by round: needed, rejected, pads, rows that ended, ...
leaks     what grows with the rounds, or outlives its row: warnings
probe     the cases that this is measured on, and what an audit says of it
"""
