"""An engine as a decoder of eqcheck."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import eqcheck
from eqcheck.contract.decoders import RowOptions

from .engine import Engine
from .requests import Prompt


def decode(
    kind: type[Engine], target: Any, draft: Any, request: eqcheck.Request, *, batch_size: int, **settings: Any
) -> list[list[int]]:
    """Decode a request; a row that arrives late joins after as many target calls as the request says.

    A row of options of its own has its limit, its EOS ids and its sampling from there.
    """
    k, chunk = request.num_draft_tokens, request.prefill_chunk
    engine = kind(target, draft, num_draft_tokens=k, batch_size=batch_size, prefill_chunk=chunk, **settings)
    outputs: list[list[int]] = [[] for _ in request.prompts]
    for update in engine.stream(_arriving(engine, request)):
        if update.error:
            raise update.error
        outputs[update.id] += update.token_ids
    return outputs


def _arriving(engine: Engine, request: eqcheck.Request) -> Iterator[Prompt | None]:
    arrivals = request.arrivals or (0,) * len(request.prompts)
    for i in sorted(range(len(arrivals)), key=lambda row: arrivals[row]):
        # With no rows left no target call will ever come: there is nobody to wait for.
        while engine.busy and engine.stats.target_calls < arrivals[i]:
            yield None
        row = request.rows[i] if request.rows else RowOptions(request.max_new_tokens, request.eos_token_ids)
        yield Prompt(request.prompts[i], row.max_new_tokens, row.eos_token_ids, i, row)
