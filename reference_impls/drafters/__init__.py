"""Heads that draft from the target's hidden states, and how the states of a batch's rows get to them.

reading    Column, Accepted, Pairs: what a head of each shape is given, by row, after a round
trained    Medusa, Clover: heads for a small Llama, such as the target of `benchmarks.pair`
trees      TreeHeads: several choices of a head at each place
"""

from .reading import SHAPES, Accepted, Column, Drafter, Pairs

__all__ = ["SHAPES", "Accepted", "Column", "Drafter", "Pairs"]
