"""Pairs of faults in one build at once, and which of the two must be named."""

from __future__ import annotations

from eqcheck.catalogue.faults.fault import PLANTED, FaultPair

_BY_ID = {fault.id: fault for fault in PLANTED}


def _pair(build: str, first: str, second: str) -> FaultPair:
    return FaultPair(_BY_ID[f"{first}.{build}"], _BY_ID[f"{second}.{build}"])


PAIRS = [
    # One call, one query: cache before mask before position.
    _pair("realigned", "K1-crop-to-max", "P4-scalar-advance"),
    _pair("realigned", "K3-never-cropped", "P5-advance-by-k"),
    _pair("continuous", "K3-never-cropped", "P5-advance-by-k"),
    _pair("rolled_back", "K2-one-too-many-dropped", "P6-bonus-off-by-one"),
    _pair("continuous", "K2-one-too-many-dropped", "P6-bonus-off-by-one"),
    _pair("holes", "M4-accepted-hidden", "P6-bonus-off-by-one"),
    _pair("uncached", "M1-no-mask", "P2-no-positions"),
    # The earlier call.
    _pair("realigned", "K6-values-not-moved", "M5-new-pads-visible"),
    _pair("realigned", "K14-last-prompt-token-lost", "M8-short-draft-pads-visible"),
    _pair("holes", "M7-sees-next-draft", "K4-last-token-twice"),
    # Bookkeeping counts from the call that answered for the token.
    _pair("per_row", "T10-correction-twice", "K3-never-cropped"),
    _pair("realigned", "P8-clamped-at-one", "X4-finished-row-padded"),
]
