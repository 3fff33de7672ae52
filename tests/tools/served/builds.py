"""The two builds as adapters: ``eqcheck audit served.builds:ring``, with this folder's parent on the path."""

from __future__ import annotations

from typing import Any

import eqcheck
from served.paged import PagedEngine
from served.ring import RingEngine

DTYPE = "bfloat16"
KINDS = ("window", "mistral", "hybrid", "delta", "mamba")
_CLAIMS: dict[str, Any] = {
    "checkpoints": True,
    "dtype": DTYPE,
    "kinds": KINDS,
    "padding_sides": ("right",),
    "origin": "tests/tools/served",
}
ENGINES = {"ring": RingEngine, "paged": PagedEngine}
CAPABILITIES = ("row-limits", "row-eos", "ngram", "dictated-drafts")
ring = eqcheck.decoder(name="ring", capabilities=CAPABILITIES, **_CLAIMS)(RingEngine)
paged = eqcheck.decoder(name="paged", capabilities=(*CAPABILITIES, "prefix-caching"), **_CLAIMS)(PagedEngine)
