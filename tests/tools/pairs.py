"""Pairs of faults in one build at once, and which of the two must be named."""

from __future__ import annotations

from dataclasses import dataclass, replace

from eqcheck.catalogue import BUILDS, PLANTED, Fault
from eqcheck.catalogue.faults.fault import patched
from eqcheck.contract.decoders import Decoder


@dataclass(frozen=True)
class FaultPair:
    """Two faults in one build at once; where both show, ``first`` must be named: it comes first in causal order."""

    first: Fault
    second: Fault

    @property
    def id(self) -> str:
        return f"{self.first.switch}+{self.second.switch}.{self.first.build}"

    @property
    def families(self) -> tuple[str, ...]:
        """Those on which both show."""
        return tuple(family for family in self.first.families if family in self.second.families)

    @property
    def cache_states(self) -> tuple[str, ...]:
        """Those that both need."""
        return tuple(state for state in self.first.cache_states if state in self.second.cache_states)

    def decoder(self) -> Decoder:
        """The build with both faults."""
        engine = patched(self.first.engine(), self.second.patches)
        return replace(BUILDS[self.first.build], engine=engine).decoder(self.id)


def _pair(build: str, first: str, second: str) -> FaultPair:
    by_id = {fault.id: fault for fault in PLANTED}
    return FaultPair(by_id[f"{first}.{build}"], by_id[f"{second}.{build}"])


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
