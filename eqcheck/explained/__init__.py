"""Every kind of fault explained: an example, what usually causes it, and how it is mended. Plain data, without a model.

    >>> explained = EXPLAINED["mask/window"]
    >>> print(explained.causes[0].urls[0])
    https://github.com/huggingface/transformers/issues/48280

What a kind means is said in `eqcheck.kinds`. Its explanation is keyed by the same fingerprint.
"""

from __future__ import annotations

from eqcheck.explained import context, heads, memory, output, sampling
from eqcheck.explained.record import Cause, Explained

__all__ = ["EXPLAINED", "Cause", "Explained"]

EXPLAINED: dict[str, Explained] = {
    **context.RECORDS,
    **heads.RECORDS,
    **output.RECORDS,
    **sampling.RECORDS,
    **memory.RECORDS,
}
