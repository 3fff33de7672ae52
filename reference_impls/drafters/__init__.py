"""Heads that draft from the target's hidden states, and how the states of a batch's rows get to them.

reading    Column, Accepted, Pairs: what a head of each shape is given, by row, after a round
"""

from .reading import SHAPES, Accepted, Column, Drafter, Pairs

__all__ = ["SHAPES", "Accepted", "Column", "Drafter", "Pairs"]
