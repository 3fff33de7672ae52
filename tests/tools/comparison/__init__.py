"""The faults of the catalogue, seen by the equivalence tests that are in use today: ``make comparison``.

models -> methods -> compare -> write
"""
