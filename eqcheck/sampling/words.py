"""What the alternatives of the portfolio bet on, in words."""

from __future__ import annotations

LAWS = {
    "draft": "drawn from the draft",
    "residual": "drawn from the residual",
    "residual-unused": "drawn in rounds that correct from the target's law, not from the residual",
    "drawn-again": "that are drawn again where they are not equal to the draft token",
    "residual-of-before": "drawn from what the draft's law of the prefix before leaves of the target's",
    "threshold": "accepted where the target's probability is a fixed share of the draft's, or more",
    "coin-kept": "picked by the random number that accepted the token before",
    "draft-argmax": "that are the draft's most likely ones",
    "argmax": "that are the target's most likely ones",
    "uniform": "that are any of the vocabulary",
    "prefix-before": "drawn from the law of the prefix before",
    "other-rows": "drawn from the laws of other rows",
    "row-before": "drawn from the law of the row before",
    "tighter": "drawn as if the row's cut took one token more",
    "first-row-options": "drawn with the options of the first row",
    "first-argmax": "at the start of a row that are the target's most likely ones",
    "first-raw": "at the start of a row that are drawn without its options",
    "power": "drawn at another temperature",
    "raw": "drawn without the row's cuts",
    "twin-equal": "that a twin row has, too",
    "shared-uniform": "drawn with the random numbers of other rows",
    "shared-coin": "accepted or refused by the random numbers of other rows",
    "shared-race": "drawn with the random numbers of other rows",
    "own-uniform": "drawn with earlier random numbers of the row",
    "own-race": "drawn with earlier random numbers of the row",
    "pit-id": "whose ids lean to one side, or to the middle, or away from it",
    "pit-p": "that are too often likely, too often unlikely, or too often in between",
    "pit-p/q": "that the draft overrates too often, or too seldom",
}
"""The laws by name, without the number that some have: what follows *tokens*."""
SAYS_NOTHING = ("uniform",)
"""Laws that are no hint where they earn most: they earn from whatever is wrong."""


def in_words(alternative: str) -> str:
    """What an alternative of the portfolio bets on.

    >>> in_words("draft:0.1"), in_words("power-0.68:0.99")
    ('tokens drawn from the draft', 'tokens drawn at another temperature')
    """
    law = alternative.partition(":")[0]
    while law not in LAWS:
        law = law.rpartition("-")[0]
    return f"tokens {LAWS[law]}"
