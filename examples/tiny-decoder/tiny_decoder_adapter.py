"""What eqcheck calls: the decoder behind eqcheck's contract, and what it claims."""

from __future__ import annotations

from typing import Any

import tiny_decoder

import eqcheck


@eqcheck.decoder(name="tiny_decoder", padding_sides=("left",), families=("rotary", "learned"))
def decode(target: Any, draft: Any, request: eqcheck.Request) -> list[list[int]]:
    """The new ids of each row of the request."""
    return tiny_decoder.generate(
        target,
        draft,
        request.prompts,
        max_new_tokens=request.max_new_tokens,
        num_draft_tokens=request.num_draft_tokens,
        eos_token_ids=request.eos_token_ids,
        pad_token_id=request.pad_token_id,
    )
