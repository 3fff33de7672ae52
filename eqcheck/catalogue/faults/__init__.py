"""The faults that can be planted in an engine, by what is broken: each record stands above the patch that breaks it."""

from eqcheck.catalogue.engines.builds import BUILDS
from eqcheck.catalogue.faults import (  # noqa: F401
    bookkeeping,
    endings,
    feeding,
    heads,
    holdout,
    losses,
    masks,
    positions,
    rollback,
    rows,
    tensors,
    trees,
)
from eqcheck.catalogue.faults.fault import RECORDS, Fault, FaultPair

PLANTED = [fault for fault in RECORDS if fault.build in BUILDS]
HEAD_FAULTS = [fault for fault in RECORDS if fault.build not in BUILDS]
# Mechanisms that attribution was developed on, in one build at least.
DEVELOPED = {fault.mechanism for fault in RECORDS if not fault.held_back}
# Switches in every build that the self-check leaves out as yet, and says so: they are not met (K has to be 7).
# A name leaves this list when its fault is caught and named; the list is to become empty.
LEFT_OUT = {"T25-answers-cut-at-seven"}
FAULTS = [fault for fault in PLANTED if LEFT_OUT.isdisjoint({fault.id, fault.switch})]


def _pair(build: str, first: str, second: str) -> FaultPair:
    by_id = {fault.id: fault for fault in PLANTED}
    return FaultPair(by_id[f"{first}.{build}"], by_id[f"{second}.{build}"])


# Pairs of faults in one build at once, and which of the two must be named.
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

__all__ = ["DEVELOPED", "FAULTS", "HEAD_FAULTS", "PAIRS", "PLANTED", "Fault", "FaultPair"]
