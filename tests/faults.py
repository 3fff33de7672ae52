"""Planted faults: build, fault, families on which it shows, and what it must be attributed to."""

from __future__ import annotations

from typing import NamedTuple

BOTH = ("rotary", "learned")


class Fault(NamedTuple):
    build: str
    name: str
    attributed: str
    families: tuple[str, ...] = BOTH


FAULTS = [
    Fault("uncached", "no-mask", "mask/pad-visible"),
    Fault("uncached", "no-positions", "position/query-position", ("learned",)),
    Fault("uncached", "row-0-positions", "position/query-position", ("learned",)),
    Fault("uncached", "mask-by-token", "mask/token-hidden"),
    *(Fault(build, "no-mask", "mask/pad-visible|cache/stale-entry") for build in ("realigned", "holes")),
    *(Fault(build, "positions-by-slot", "position/query-position") for build in ("holes",)),
    Fault("realigned", "positions-by-slot", "position/query-position", ("learned",)),
    *(Fault(build, "row-0-positions", "position/query-position") for build in ("realigned", "holes")),
    *(
        Fault(build, "positions-off-by-one", "position/query-position")
        for build in ("realigned", "holes", "rolled_back")
    ),
    *(Fault(build, "positions-by-k", "position/query-position") for build in ("realigned", "holes")),
    *(Fault(build, "sees-next-draft", "mask/future-visible") for build in ("realigned", "holes", "rolled_back")),
    *(Fault(build, "misses-itself", "mask/token-hidden") for build in ("realigned", "holes", "rolled_back")),
    *(Fault(build, "keeps-one-rejected", "cache/stale-entry") for build in ("realigned", "holes")),
    *(Fault(build, "crop-to-max", "cache/stale-entry") for build in ("realigned", "holes")),
    Fault("realigned", "drops-one-too-many", "cache/missing-entry"),
    Fault("holes", "drops-one-too-many", "mask/token-hidden"),
    *(Fault(build, "last-token-again", "cache/duplicate-entry") for build in ("realigned", "holes")),
    Fault("realigned", "keys-only-moved", "cache/torn-entry"),
    Fault("realigned", "one-layer-moved", "cache/torn-entry"),
    Fault("realigned", "rows-swapped-in-cache", "cache/wrong-row"),
    Fault("realigned", "moved-keys-re-rotated", "position/key-position"),
    Fault("realigned", "mask-not-moved", "mask/|cache/stale-entry"),
    Fault("realigned", "cache-not-moved", "cache/"),
    Fault("holes", "stale-mask", "cache/stale-entry|mask/pad-visible"),
    Fault("rolled_back", "crop-to-min-keep-tokens", "cache/missing-entry"),
    Fault("per_row", "never-cropped", "cache/stale-entry"),
    Fault("per_row", "caches-exchanged", "cache/wrong-row"),
    *(
        Fault(build, name, f"bookkeeping/{kind}")
        for name, kind in (
            ("overshoot", "over-length"),
            ("eos-in-prompt", "premature-stop"),
            ("stops-with-fastest", "premature-stop"),
            ("counts-matches", "over-accept"),
            ("emits-rejected", "over-accept"),
            ("correction-from-last-column", "wrong-correction"),
            ("correction-from-next-row", "wrong-correction|bookkeeping/row-swap"),
            ("drops-last-accepted", "lost-token"),
            ("emits-correction-twice", "repeated-token"),
            ("first-eos-only", "past-eos"),
            ("eos-last-only", "past-eos"),
            ("eos-in-draft-ends", "premature-stop"),
            ("sorted-order", "row-swap"),
            ("pads-in-output", "pad-in-output"),
            ("strips-eos", "premature-stop"),
        )
        for build in ("realigned", "per_row")
        if (build, name) not in (("realigned", "eos-in-prompt"), ("realigned", "drops-last-accepted"))
    ),
]
