"""`eqcheck.compat.pages`: pages of K and V, by tables as vLLM and flashinfer have them, padded and packed."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from eqcheck.compat import Paged, page_tables
from eqcheck.contract.decoders import decoder
from eqcheck.contract.errors import UsageError
from eqcheck.transparent.coverage import try_case
from eqcheck.transparent.hashlm.model import HashConfig, HashLM
from eqcheck.transparent.real.models import model_of
from eqcheck.transparent.search import Source

SIZE, PAGES = 2, 24
ROWS = [[3, 1, 4, 1, 5], [9, 2], [6, 5, 3]]
LAYOUTS: dict[str, Any] = {  # how K and V of a layer lie in one tensor
    "vllm": ((2, PAGES, SIZE), lambda kv: (kv[0], kv[1])),
    "flashinfer": ((PAGES, 2, SIZE), lambda kv: (kv[:, 0], kv[:, 1])),
}


def slots_of(table: torch.Tensor, begin: int, end: int) -> list[int]:
    return [int(table[place // SIZE]) * SIZE + place % SIZE for place in range(begin, end)]


def answers(model: Any, rows: list[list[int]]) -> list[int]:
    with torch.no_grad():
        return [int(model(input_ids=torch.tensor([row])).logits[0, -1].argmax()) for row in rows]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("model", [HashLM(HashConfig()), model_of("llama", "float64", 0)], ids=["hash", "llama"])
def test_packed_and_padded_calls_read_their_rows(model: Any, layout: str) -> None:
    """A prefill of all rows in one, of unlike lengths, by flashinfer's tables; then a call with a row for each."""
    shape, views = LAYOUTS[layout]
    c = model.config
    kv = [torch.zeros(*shape, c.num_key_value_heads, c.head_dim, dtype=model.dtype) for _ in range(c.num_hidden_layers)]
    pools = [views(one) for one in kv]
    tables = page_tables(torch.tensor([0, 3, 5, 7]), torch.tensor([7, 0, 5, 2, 9, 1, 8]))
    lengths, starts = torch.tensor([4, 1, 2]), torch.tensor([0, 4, 5, 7])
    places = [range(int(n)) for n in lengths]
    slots = [slot for table, n in zip(tables, lengths, strict=True) for slot in slots_of(table, 0, int(n))]
    prefill = Paged(pools, tables, torch.tensor(slots), lengths, starts)
    fed = torch.tensor([[token for row in ROWS for token in row[:-1]]])
    positions = torch.tensor([[place for row in places for place in row]])
    with torch.no_grad():
        model(input_ids=fed, attention_mask=prefill.mask, position_ids=positions, past_key_values=prefill)
        last = torch.tensor([slots_of(table, int(n), int(n) + 1) for table, n in zip(tables, lengths, strict=True)])
        step = Paged(pools, tables, last, lengths + 1)
        newest = torch.tensor([row[-1:] for row in ROWS])
        done = model(
            input_ids=newest, attention_mask=step.mask, position_ids=lengths[:, None], past_key_values=step
        ).logits
    assert done[:, -1].argmax(-1).tolist() == answers(model, ROWS)
    assert (prefill.get_seq_length(), step.get_seq_length()) == (0, 4)


def test_what_has_no_slot_is_not_written() -> None:
    pool = torch.zeros(2, SIZE, 1, 1)
    new = torch.tensor([5.0, 6.0]).view(1, 1, 2, 1)
    Paged([(pool, pool.clone())], torch.tensor([[0]]), torch.tensor([[1, -1]]), torch.tensor([2])).update(new, new, 0)
    assert pool.flatten().tolist() == [0, 5, 0, 0]


def test_each_token_needs_a_slot() -> None:
    pool, new = torch.zeros(2, SIZE, 1, 1), torch.zeros(1, 1, 3, 1)
    cache = Paged([(pool, pool)], torch.tensor([[0, 1]]), torch.tensor([[0, 1]]), torch.tensor([2]))
    with pytest.raises(UsageError, match="slots: expected one for each of 3 tokens, got 2"):
        cache.update(new, new, 0)
    with pytest.raises(UsageError, match="slots: expected one for each of 5 tokens, got 2"):
        Paged([(pool, pool)], torch.tensor([[0]]), torch.tensor([0, 1]), torch.tensor([2]), torch.tensor([0, 5]))


@pytest.mark.parametrize(("fault", "seen"), [("", set()), ("table", {"cache"}), ("length", {"mask"})])
@pytest.mark.tiers(quick=2, rest=1)
def test_faults_of_tables_are_read_through_it(fault: str, seen: set[str]) -> None:
    """Greedy decoding without a draft: the wrong page is read, or one token too few."""

    def generate(target: Any, _: Any, request: Any) -> list[list[int]]:
        c, rows, new = target.config, len(request.prompts), request.max_new_tokens
        pages = -(-(max(map(len, request.prompts)) + new) // SIZE)
        shape = (2, rows * pages, SIZE, c.num_key_value_heads, c.head_dim)
        pools = [tuple(torch.zeros(*shape, dtype=target.dtype)) for _ in range(c.num_hidden_layers)]
        tables = torch.arange(rows * pages).view(rows, pages)
        texts = [list(prompt) for prompt in request.prompts]
        for row, text in enumerate(texts):
            filled = 0
            while len(text) < len(request.prompts[row]) + new:
                table, block = tables[row], text[filled:]
                read = tables[row - 1] if fault == "table" and filled and rows > 1 else table
                cache = Paged(
                    pools,
                    read[None],
                    torch.tensor([slots_of(table, filled, len(text))]),
                    torch.tensor([len(text)]),
                )
                mask = cache.mask
                if fault == "length" and filled:
                    mask[..., filled - 1] = False
                places = torch.arange(filled, len(text))[None]
                logits = target(
                    input_ids=torch.tensor([block]), attention_mask=mask, position_ids=places, past_key_values=cache
                ).logits
                filled = len(text)
                text.append(int(logits[0, -1].argmax()))
                if text[-1] in request.eos_token_ids:
                    break
        return [text[len(prompt) :] for text, prompt in zip(texts, request.prompts, strict=True)]

    mine = decoder(name="paged")(generate)
    with mine.running() as running:
        found = [try_case(running, case, None) for case in Source(2, ("rotary",), ("left",)).chunk(0, 12)]
    assert {str(one.fingerprint).partition("/")[0] for one in found if one.failed} == seen
