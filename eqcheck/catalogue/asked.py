"""What a build gets to see of its request under a fault (S) that ignores a declared cache state, or misses it by one.

The output stays right: only the calls show it.
"""

from __future__ import annotations

import copy
from collections.abc import Collection
from dataclasses import replace
from typing import Any

from eqcheck.contract import Request


def as_seen(request: Request, faults: Collection[str]) -> Request:
    """The request as a build with these faults sees it."""
    if "S1-chunks-ignored" in faults:
        return replace(request, prefill_chunk=None)
    if "S1-chunk-one-too-long" in faults and request.prefill_chunk:
        return replace(request, prefill_chunk=request.prefill_chunk + 1)
    if "S2-arrivals-ignored" in faults:
        return replace(request, arrivals=())
    if "S2-calls-counted-twice" in faults:
        return replace(request, arrivals=tuple(arrival // 2 for arrival in request.arrivals))
    if "S3-prefix-fed-again" in faults or "S4-preallocated-ignored" in faults:
        return replace(request, prefix_length=0, target_cache=None, draft_cache=None)
    if "S3-last-prefix-token-fed-again" in faults and request.prefix_length > 1:
        target_cache, draft_cache = (_shorter(cache) for cache in (request.target_cache, request.draft_cache))
        length = request.prefix_length - 1
        return replace(request, prefix_length=length, target_cache=target_cache, draft_cache=draft_cache)
    return request


def _shorter(cache: Any) -> Any:
    """A copy without the newest token."""
    shorter = copy.deepcopy(cache)
    shorter.crop(-1)
    return shorter
