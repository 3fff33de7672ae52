"""Faults of beginnings that are cached are told from others by the tokens alone, whatever was in the cache."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from transformers import AutoModelForCausalLM, DynamicCache

from eqcheck.contract.decoders import RowOptions
from eqcheck.core.case.engine import VOCAB_SIZE, EngineCase, EngineRow
from eqcheck.engines.abduction import Evidence, abduce
from eqcheck.engines.checkpoints.continuations import FunctionTruth
from eqcheck.engines.checkpoints.dictation import agreeing
from eqcheck.engines.checkpoints.folders import checkpoint
from eqcheck.engines.construction.function import Function

NEW = 12


def functions(kind: str) -> list[Function]:
    """The target's and the draft's."""
    return [model.function for model in checkpoint(kind).built or ()]


def drawn(seed: int) -> EngineCase:
    """Four requests: the second and the fourth go on with what the first and the third emit, or with their prompts."""
    rng, truth = random.Random(seed), FunctionTruth(functions("full")[0])
    rows = list[EngineRow]()
    for number in range(4):
        begin = [rng.randrange(1, VOCAB_SIZE) for _ in range(rng.randint(5, 30))]
        if number % 2:
            before = [*rows[-1].prompt, *truth.row(rows[-1])]
            begin = [*before[: rng.randint(3, len(before))], *begin[: rng.randint(1, 6)]]
        rows.append(EngineRow(tuple(begin), RowOptions(NEW)))
    return EngineCase(tuple(rows), num_draft_tokens=3, prefix_caching=True)


def answers(kind: str, case: EngineCase, short: int = 0, of_another: int = 0, position: bool = True) -> list[list[int]]:
    """The tokens of an engine that takes the cache of an earlier row; some entries before its end may be missing.

    A model that does not see some tokens, at positions without these, answers as to a text without them.
    """
    truth = FunctionTruth(functions(kind)[0])
    texts, outputs = list[list[int]](), list[list[int]]()
    for row in case.rows:
        prompt = list(row.prompt)
        hit = min(max((agreeing(prompt, text) for text in texts), default=0), len(prompt) - 1)
        seen = [*prompt[: max(0, hit - short)], *prompt[hit:]] if hit and position else prompt
        if of_another and texts and len(prompt) > of_another:
            seen = [*texts[-1][:of_another], *prompt[of_another:]]
        output = list(truth.row(replace(row, prompt=tuple(seen))))
        outputs.append(output)
        texts.append([*prompt, *output])
    return outputs


def evidence(kind: str, case: EngineCase, outputs: list[list[int]]) -> Evidence:
    target, draft = functions(kind)
    return Evidence(target, draft, case, outputs)


@pytest.mark.parametrize("kind", ["full", "window"])
@pytest.mark.parametrize("short", [1, 2])
@pytest.mark.tiers(quick=1, rest=3)
def test_a_cached_beginning_without_its_end_is_named(kind: str, short: int) -> None:
    for seed in range(3):
        case = drawn(seed)
        cause = abduce(evidence(kind, case, answers(kind, case, short)))
        assert cause is not None
        assert (cause.component, cause.kind) == ("cache", "missing-entry")
        assert cause.search.edit.partition(":")[0] == "hit-short"
        assert not cause.open


def test_one_request_of_several_with_a_short_hit_is_enough() -> None:
    """The end is missing where the last token of an earlier answer was no draft: of others nothing is missing."""
    case = drawn(5)
    right, wrong = answers("full", case), answers("full", case, 1)
    cause = abduce(evidence("full", case, [*right[:3], wrong[3]]))
    assert cause is not None
    assert cause.search.edit.partition(":")[0] == "hit-short"
    assert (cause.row, cause.open) == (3, False)


@pytest.mark.rest
def test_tokens_of_another_request_that_are_taken_for_a_hit_are_named() -> None:
    for seed in (0, 2):
        case = drawn(seed)
        cause = abduce(evidence("full", case, answers("full", case, of_another=8)))
        assert cause is not None
        assert (cause.component, cause.kind) == ("cache", "wrong-row")
        assert cause.search.edit.partition(":")[0] == "hit-of-another"


@torch.no_grad()
def decoded_behind(text: list[int], rest: list[int], written: bool) -> list[int]:
    """New tokens of a model in float64 that goes on from the cache of a text; its last entry may be empty."""
    model = AutoModelForCausalLM.from_pretrained(checkpoint("full").target, dtype=torch.float64)
    cache, ids, new = DynamicCache(), torch.tensor([text]), list[int]()
    model(input_ids=ids, past_key_values=cache)
    for layer in cache.layers if not written else ():
        layer.keys[:, :, -1] = layer.values[:, :, -1] = 0
    ids = torch.tensor([rest])
    for _ in range(NEW):
        new.append(int(model(input_ids=ids, past_key_values=cache).logits[0, -1].argmax()))
        ids = torch.tensor([new[-1:]])
    return new


@torch.no_grad()
def test_a_block_that_is_known_by_its_own_tokens_alone_is_named() -> None:
    """The second row's second block has the tokens of the first row's, behind other ones."""
    rng, model = random.Random(2), AutoModelForCausalLM.from_pretrained(checkpoint("full").target, dtype=torch.float64)
    first = [rng.randrange(1, VOCAB_SIZE) for _ in range(40)]
    second = [*(rng.randrange(1, VOCAB_SIZE) for _ in range(16)), *first[16:32], 7, 8, 9]
    case = EngineCase(
        tuple(EngineRow(tuple(prompt), RowOptions(NEW)) for prompt in (first, second)),
        num_draft_tokens=3,
        prefix_caching=True,
    )
    own, others = DynamicCache(), DynamicCache()
    model(input_ids=torch.tensor([second[:32]]), past_key_values=own)
    model(input_ids=torch.tensor([first[:32]]), past_key_values=others)
    for mine, theirs in zip(own.layers, others.layers, strict=True):
        mine.keys[:, :, 16:], mine.values[:, :, 16:] = theirs.keys[:, :, 16:], theirs.values[:, :, 16:]
    ids, new = torch.tensor([second[32:]]), list[int]()
    for _ in range(NEW):
        new.append(int(model(input_ids=ids, past_key_values=own).logits[0, -1].argmax()))
        ids = torch.tensor([new[-1:]])
    right = answers("full", case)
    assert new != right[1]
    cause = abduce(evidence("full", case, [right[0], new]))
    assert cause is not None
    assert (cause.component, cause.search.edit, cause.open) == ("cache", "hit-of-another:16:31:0", False)


@pytest.mark.parametrize("written", [True, False])
def test_a_last_token_that_was_never_fed_is_named(written: bool) -> None:
    """The first row ends where a block of 16 tokens does; the second is the next turn of its conversation."""
    rng, truth = random.Random(1), FunctionTruth(functions("full")[0])
    first = EngineRow(tuple(rng.randrange(1, VOCAB_SIZE) for _ in range(16 * 2 - NEW)), RowOptions(NEW))
    text = [*first.prompt, *truth.row(first)]
    rest = [rng.randrange(1, VOCAB_SIZE) for _ in range(4)]
    case = EngineCase((first, EngineRow((*text, *rest), RowOptions(NEW))), num_draft_tokens=3, prefix_caching=True)
    outputs = [text[len(first.prompt) :], decoded_behind(text, rest, written)]
    cause = abduce(evidence("full", case, outputs))
    if written:
        assert cause is None
    else:
        assert cause is not None
        assert (cause.component, cause.search.edit, cause.open) == ("cache", "hit-unwritten", False)


@pytest.mark.parametrize("kind", ["full", "window"])
def test_right_hits_are_not_accused(kind: str) -> None:
    for seed in range(3):
        case = drawn(seed)
        assert abduce(evidence(kind, case, answers(kind, case))) is None


def test_without_cached_prefixes_nothing_is_said_of_hits() -> None:
    case = drawn(0)
    wrong = answers("full", case, 1)
    cause = abduce(evidence("full", replace(case, prefix_caching=False), wrong))
    assert cause is None or not cause.search.edit.startswith("hit-")
