"""The contract: what a decoder is, what a request asks of it, and the words for both. Free of torch.

An adapter imports this room and no other. `decoders` has the decorator and the request.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from eqcheck.contract.decoders import Decoder as Decoder
    from eqcheck.contract.decoders import Request as Request
    from eqcheck.contract.decoders import RowOptions as RowOptions
    from eqcheck.contract.decoders import decoder as decoder

__all__ = ["Decoder", "Request", "RowOptions", "decoder"]


def __getattr__(name: str) -> Any:
    """The names are imported when they are asked for: with msgspec they take longer than most commands to start."""
    if name in __all__:
        return getattr(import_module("eqcheck.contract.decoders"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
