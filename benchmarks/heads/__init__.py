"""Heads for the target of the shipped pair, `eqcheck.reference_impls.drafters.trained`.

train      how they are trained
measure    how much of what they propose is accepted, beside the pair's draft model
"""
