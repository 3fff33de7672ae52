"""What is handed to a model with its tokens, and what its layers are handed of K and V: here all is as it should be."""

from __future__ import annotations

import torch

KeysValues = tuple[torch.Tensor, torch.Tensor]


class Handling:
    """A part of an engine that feeds a model, or keeps K and V for it."""

    def positions(self, at: torch.Tensor, real: torch.Tensor) -> torch.Tensor | None:
        """Position ids ``[batch, block]``: pads, which ``real`` leaves out, have one that every model knows."""
        return at.masked_fill(~real, 0)

    def turned(self, block: torch.Tensor) -> torch.Tensor:
        """K or V ``[rows, heads, tokens, width]`` of a block as memory keeps it, ``[rows, tokens, heads, width]``."""
        return block.transpose(1, 2)

    def handed(self, keys: torch.Tensor, values: torch.Tensor) -> KeysValues:
        """K and V ``[rows, heads, slots, width]`` as a layer gets them, or as they stay in the cache."""
        return keys, values
