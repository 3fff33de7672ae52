"""The reference engines, broken mechanically: which mutants eqcheck catches, and what it says of them.

    PYTHONPATH=tests/tools python -m mutation --jobs 2

mutator -> real, trial -> truth -> write
"""
