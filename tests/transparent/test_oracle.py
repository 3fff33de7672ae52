"""The oracle: right outputs pass, each way of being wrong is named, malformed input is refused."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
from collections import Counter
from functools import lru_cache
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

import eqcheck
from eqcheck.audit.loop import audit
from eqcheck.contract.decoders import Decoder, Request
from eqcheck.contract.errors import OutputError, UsageError, Violation
from eqcheck.core.case.record import Case
from eqcheck.core.result.findings import Options
from eqcheck.core.result.outcome import RowVerdict, Verdict
from eqcheck.strategies import cases
from eqcheck.transparent.attribution.bookkeeping import prompt_returned
from eqcheck.transparent.decoding import models, run, truth_of
from eqcheck.transparent.hashlm.model import HashConfig, HashLM
from eqcheck.transparent.oracle import Oracle, assert_equivalent, judge

torch.set_num_threads(1)
LIMIT, PAD = 9, 66
PROMPTS = [[3, 1, 4, 1, 5], [15], [9, 2, 6]]
Rows = list[list[int]]
any_target = pytest.mark.parametrize("kind", ["rotary", "learned", "llama", "gpt2"])


@lru_cache
def oracle_of(kind: str) -> Oracle:
    """Of a transparent target, or of a tiny float64 one whose greedy output is varied."""
    if kind in ("rotary", "learned"):
        return Oracle(HashLM(HashConfig(vocab_size=67, seed=3, family=kind)).eval())
    torch.manual_seed(2)
    sizes: dict[str, Any] = {"vocab_size": 67, "tie_word_embeddings": False, "initializer_range": 0.3}
    sizes |= {"bos_token_id": None, "eos_token_id": None}
    if kind == "llama":
        model: Any = LlamaForCausalLM(
            LlamaConfig(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, **sizes)
        )
    else:
        model = GPT2LMHeadModel(GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=64, **sizes))
    return Oracle(model.double().eval())


@lru_cache
def truth(kind: str, eos: tuple[int, ...] = ()) -> tuple[tuple[int, ...], ...]:
    oracle = oracle_of(kind)
    return tuple(tuple(oracle.truth(p, max_new_tokens=LIMIT, eos_token_ids=eos)) for p in PROMPTS)


def right(kind: str, eos: tuple[int, ...] = ()) -> Rows:
    return [list(row) for row in truth(kind, eos)]


def check(kind: str, outputs: Any, eos: tuple[int, ...] = (), pad: int | None = PAD) -> Verdict:
    return oracle_of(kind).check(PROMPTS, outputs, max_new_tokens=LIMIT, eos_token_ids=eos, pad_token_id=pad)


def late_eos(kind: str) -> tuple[int, ...]:
    """A token that row 1 first emits in the middle."""
    row = truth(kind)[1]
    return (next(token for i, token in enumerate(row[:-2]) if i > 1 and token not in row[:i]),)


@any_target
def test_the_truth_is_greedy_generate_alone(kind: str) -> None:
    emitted: set[int] = set()
    for eos in ((), late_eos(kind)):
        for prompt, row in zip(PROMPTS, truth(kind, eos), strict=True):
            ids = torch.tensor([prompt])
            generated = oracle_of(kind).target.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=LIMIT,
                do_sample=False,
                pad_token_id=PAD,
                eos_token_id=list(eos) or None,
            )
            assert tuple(generated[0, len(prompt) :].tolist()) == row
            emitted.update(row)
    assert len(truth(kind, late_eos(kind))[1]) < LIMIT
    assert len(emitted) > 9  # a target that repeats itself would show little


@any_target
def test_right_outputs_pass(kind: str) -> None:
    for eos in ((), late_eos(kind)):
        rows = right(kind, eos)
        for outputs in (rows, tuple(map(tuple, rows)), [[np.int64(token) for token in row] for row in rows]):
            verdict = check(kind, outputs, eos)
            assert verdict
            assert verdict.status == "equivalent"
            assert verdict.explanation is None
            assert verdict.exact_match == verdict.prefix_match == 1
            assert verdict.explain().startswith("equivalent: 3 rows")


def damaged(kind: str, what: str) -> tuple[Rows, tuple[int, ...], int, int]:
    """Outputs with one thing wrong, the EOS ids, and the row and index at which it shows first."""
    eos = late_eos(kind) if what in ("past-eos", "pads after the EOS", "strips-eos") else ()
    rows = right(kind, eos)
    end = len(rows[1])
    if what == "wrong token":
        rows[1][4] = (rows[1][4] + 1) % 67
        return rows, eos, 1, 4
    if what == "too short":
        del rows[2][5:]
        return rows, eos, 2, 5
    if what == "nothing":
        return [rows[0], [], rows[2]], eos, 1, 0
    if what == "strips-eos":
        return [rows[0], rows[1][:-1], rows[2]], eos, 1, end - 1
    if what == "swapped":
        return [rows[2], rows[1], rows[0]], eos, 0, next(i for i in range(LIMIT) if rows[0][i] != rows[2][i])
    more = {"past-eos": right(kind)[1][end : end + 1], "over-length": [1], "endless": [1] * 80}.get(what, [PAD] * 3)
    return [rows[0], rows[1] + more, rows[2]], eos, 1, end


@pytest.mark.parametrize(
    ("what", "fingerprint"),
    [
        ("wrong token", "unattributed/unattributed"),
        ("too short", "bookkeeping/premature-stop"),
        ("nothing", "bookkeeping/premature-stop"),
        ("strips-eos", "bookkeeping/premature-stop"),
        ("past-eos", "bookkeeping/past-eos"),
        ("over-length", "bookkeeping/over-length"),
        ("endless", "bookkeeping/over-length"),
        ("swapped", "bookkeeping/row-swap"),
        ("pads after the EOS", "bookkeeping/pad-in-output"),
        ("pads after the limit", "bookkeeping/pad-in-output"),
    ],
)
@any_target
def test_each_way_of_being_wrong_is_named(kind: str, what: str, fingerprint: str) -> None:
    outputs, eos, row, index = damaged(kind, what)
    wanted = truth(kind, eos)
    verdict = check(kind, outputs, eos)
    assert not verdict
    assert verdict.status == "violation"
    wrong = tuple(i for i in range(3) if tuple(outputs[i]) != wanted[i])
    assert tuple(r.row for r in verdict.rows if r.first is not None) == wrong
    assert verdict.rows[row].first == index
    assert [r.expected for r in verdict.rows] == list(wanted)
    assert [r.observed for r in verdict.rows] == [tuple(r) for r in outputs]
    found = verdict.explanation
    assert found is not None
    assert (found.fingerprint, found.row, found.token_index) == (fingerprint, row, index)
    assert found.wrong_rows == wrong
    assert found.expected == (wanted[row][index] if index < len(wanted[row]) else None)
    assert found.observed == (outputs[row][index] if index < len(outputs[row]) else None)
    assert fingerprint.split("/")[1] in " ".join(verdict.explain().split())


def test_a_tail_is_pads_only_where_the_pad_id_is_known() -> None:
    outputs, eos, _, _ = damaged("rotary", "pads after the EOS")
    explanation = check("rotary", outputs, eos, pad=None).explanation
    assert explanation is not None
    assert explanation.fingerprint == "bookkeeping/past-eos"


def test_a_wrong_token_outranks_a_row_that_merely_ends_wrongly() -> None:
    outputs = right("learned")
    del outputs[0][3:]
    outputs[2][1] = (outputs[2][1] + 1) % 67
    explanation = check("learned", outputs).explanation
    assert explanation is not None
    assert (explanation.component, explanation.row, explanation.wrong_rows) == ("unattributed", 2, (0, 2))


def test_matches_are_shares_of_the_expected_tokens() -> None:
    outputs = right("rotary")
    del outputs[0][3:]  # 3 of 9 right
    outputs[1] += [1]  # all right, and one too many
    verdict = check("rotary", outputs)
    assert verdict.exact_match == pytest.approx(1 / 3)
    assert verdict.prefix_match == pytest.approx((3 / 9 + 1 + 1) / 3)
    outputs[2][0] = (outputs[2][0] + 1) % 67
    verdict = check("rotary", outputs)
    assert verdict.exact_match == 0
    assert verdict.prefix_match == pytest.approx((3 / 9 + 1 + 0) / 3)


@given(case=cases(max_new_tokens=6), data=st.data())
@settings(max_examples=80, deadline=None, derandomize=True)
def test_the_verdict_is_equality_with_the_truth(case: Case, data: st.DataObject) -> None:
    known = truth_of(case)
    oracle = Oracle(models(case, known)[0])
    asked: dict[str, Any] = {"max_new_tokens": case.max_new_tokens, "eos_token_ids": case.eos_token_ids}
    assert [tuple(oracle.truth(list(prompt), **asked)) for prompt in case.prompts] == list(known.rows)
    outputs = [list(data.draw(near(row, uncut))) for row, uncut in zip(known.rows, known.uncut, strict=True)]
    verdict = oracle.check(case.prompts, outputs, **asked)
    assert [row.expected for row in verdict.rows] == list(known.rows)
    assert bool(verdict) == ([tuple(row) for row in outputs] == list(known.rows))


def near(row: tuple[int, ...], uncut: tuple[int, ...]) -> st.SearchStrategy[tuple[int, ...]]:
    """The true row, cut short, run on, or with anything after some of it."""
    anything = st.lists(st.sampled_from((*uncut, 0, 127)), max_size=3).map(tuple)
    lengths = st.integers(0, len(uncut))
    mixed = st.tuples(lengths, anything, lengths).map(lambda t: uncut[: t[0]] + t[1] + uncut[t[2] :])
    return st.just(row) | lengths.map(lambda n: uncut[:n]) | mixed


def whole(how: str, kind: str = "rotary") -> tuple[Rows, tuple[int, ...]]:
    """The right rows as ``generate()`` returns them, and the EOS ids."""
    eos = late_eos(kind) if how == "pads behind" else ()
    widest, rows = max(map(len, PROMPTS)), right(kind, eos)
    made = []
    for prompt, row in zip(PROMPTS, rows, strict=True):
        pads = [PAD] * (widest - len(prompt))
        made.append(
            {
                "plain": prompt + row,
                "left": pads + prompt + row,
                "right": prompt + pads + row,
                "pads behind": pads + prompt + row + [PAD] * (LIMIT - len(row)),
                "cut": (prompt + row)[:LIMIT],
                "cut, padded": (pads + prompt + row)[:LIMIT],
                "a token less": prompt + row[:-1],
            }[how]
        )
    return made, eos


@pytest.mark.parametrize("pad", [PAD, None])
@pytest.mark.parametrize(
    ("how", "what"),
    [
        ("plain", "return row[len(prompt):]."),
        ("left", "return row[5:]."),
        ("right", "return row[5:]."),
        ("pads behind", "return row[5:] without the pads at its end."),
        ("cut", "return row[len(prompt):]."),
        ("cut, padded", "return row[5:]."),
        ("a token less", "return row[len(prompt):]."),
    ],
)
@any_target
@pytest.mark.tiers(quick=32, rest=24)
def test_rows_returned_whole_are_named(kind: str, how: str, what: str, pad: int | None) -> None:
    outputs, eos = whole(how, kind)
    verdict = check(kind, outputs, eos, pad)
    assert verdict.explanation is not None
    assert verdict.explanation.fingerprint == "bookkeeping/prompt-in-output"
    assert (verdict.explanation.row, verdict.explanation.wrong_rows) == (0, (0, 1, 2))
    assert f"its prompt of 5 tokens, then what the target returns; {what}" in " ".join(verdict.explain().split())
    outputs[2][-1] = (outputs[2][-1] + 1) % PAD  # a wrong token in one row: the prompt is not the whole story
    assert "prompt-in-output" not in check(kind, outputs, eos, pad).explain()


@pytest.mark.parametrize(
    ("prompt", "expected", "observed", "words"),
    [
        (
            (3, 1),
            (7, 8),
            (3, 1, 7, 8),
            "its prompt of 2 tokens, then what the target returns; return row[len(prompt):]",
        ),
        (
            (3, 1),
            (7, 8),
            (0, 0, 3, 1, 7, 8),
            "2 pads, its prompt of 2 tokens, then what the target returns; return row[4:]",
        ),
        (
            (3, 1),
            (7, 8),
            (3, 1, 0, 7, 8),
            "its prompt of 2 tokens, 1 pad, then what the target returns; return row[3:]",
        ),
        ((3, 1), (7, 8), (3, 1, 7, 8, 0), "return row[len(prompt):] without the pads at its end"),
        ((0, 1), (0, 8), (0, 0, 1, 0, 8), "return row[3:]"),  # the pad id is a token of the prompt and of the row
        ((3,), (7, 8), (3, 7, 8), "its prompt of 1 token, then"),
        ((3, 3), (7, 8), (3, 3, 7, 8), "return row[len(prompt):]"),
        ((3, 1), (3, 8), (3, 1, 3, 8), "return row[len(prompt):]"),
        ((3, 1), (7, 8), (3, 1), None),  # nothing of the truth is there
        ((3, 1), (7, 8), (3, 1, 7, 9), None),
        ((3, 1), (7, 8), (3, 1, 7, 8, 9), None),
        ((3, 1), (7, 8), (1, 7, 8), "the output starts 1 token too early"),
        ((3,), (7, 8), (3, 7), None),  # the last token of the prompt may have been emitted again
        ((3, 1), (3, 1, 7), (3, 1, 3, 1, 7), None),  # the row repeats its prompt by itself
        ((3, 1), (3, 1, 7), (3, 1, 3), None),
        ((3, 3), (3, 3), (3, 3, 3, 3), None),
    ],
)
def test_the_prompt_is_blamed_only_where_it_is_certain(
    prompt: tuple[int, ...], expected: tuple[int, ...], observed: tuple[int, ...], words: str | None
) -> None:
    found = prompt_returned([prompt], [RowVerdict(0, expected, observed)], [len(expected)], 0)
    assert (words is None) == (found is None)
    assert words is None or (found is not None and words in found[1].detail)


def test_a_row_that_repeats_its_prompt_is_not_accused() -> None:
    prompts = itertools.product(range(4), repeat=2)
    asked: dict[str, Any] = {"max_new_tokens": 6}
    oracles = [Oracle(HashLM(HashConfig(vocab_size=4, seed=seed)).eval()) for seed in range(8)]
    repeating = [
        (oracle, list(p)) for p in prompts for oracle in oracles if oracle.truth(p, max_new_tokens=2) == list(p)
    ]
    assert len(repeating) > 3
    for oracle, prompt in repeating:
        row = oracle.truth(prompt, **asked)
        assert oracle.check([prompt], [row], **asked)
        for wrong in (row + row[:2], prompt + row, row[:4], [*row[:4], 3 - row[4], row[5]]):
            assert "prompt-in-output" not in oracle.check([prompt], [wrong], **asked).explain()


@pytest.mark.rest
def test_an_audit_and_assert_equivalent_name_it_too() -> None:
    def returns_all(target: Any, draft: Any, request: Request) -> Rows:
        rows: Rows = eqcheck.load("eqspec")(target, draft, request)
        return [prompt + row for prompt, row in zip(request.prompts, rows, strict=True)]

    mine = Decoder("returns all", returns_all)
    with pytest.raises(Violation, match=r"prompt-in-output[\s\S]*return row\[len\(prompt\):\]"):
        assert_equivalent(mine, CASE)
    (violation,) = audit(mine, Options(cases=40)).violations
    assert (violation.fingerprint, violation.count) == ("bookkeeping/prompt-in-output", 40)
    assert violation.explanation.repair is not None
    assert not violation.explanation.repair.restores


ONE, TWO = [[1, 2]], [[1, 2], [3]]
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"prompts": []}, "prompts: expected at least one row, got none"),
    ({"prompts": None}, "prompts: expected list[list[int]], got NoneType None"),
    (
        {"prompts": torch.tensor(ONE)},
        "prompts: expected list[list[int]], got a Tensor of shape [1, 2] on cpu; call .tolist() on it and leave out "
        "the pads",
    ),
    (
        {"prompts": [torch.tensor([1, 2])]},
        "prompts[0]: expected a list of token ids, got a Tensor of shape [2] on cpu; call .tolist() on it",
    ),
    ({"prompts": [1, 2]}, "prompts[0]: expected a list of token ids, got int 1"),
    ({"prompts": "ab"}, "prompts: expected list[list[int]], got str 'ab'"),
    ({"prompts": [[1], []]}, "prompts[1]: expected at least one token, got an empty list"),
    ({"prompts": [[1], [2, 67]]}, "prompts[1][1]: expected a token in 0..66, got 67"),
    ({"prompts": [[1], [2, -1]]}, "prompts[1][1]: expected a token in 0..66, got -1"),
    ({"prompts": [[1], [2.0]]}, "prompts[1][0]: expected a token id (int), got float 2.0"),
    ({"outputs": None}, "outputs: expected list[list[int]] with 2 rows, got NoneType None"),
    ({"outputs": ONE}, "outputs: expected list[list[int]] with 2 rows, got 1 row"),
    ({"outputs": [*TWO, [4]]}, "outputs: expected list[list[int]] with 2 rows, got 3 rows"),
    (
        {"outputs": torch.ones(2, 3).long()},
        "with 2 rows, got a Tensor of shape [2, 3] on cpu; call .tolist() on it and leave out the pads",
    ),
    (
        {"outputs": np.ones((2, 3), int)},
        "with 2 rows, got a ndarray of shape [2, 3]; call .tolist() on it and leave out the pads",
    ),
    (
        {"outputs": [[1], torch.tensor([2])]},
        "outputs[1]: expected a list of token ids, got a Tensor of shape [1] on cpu; call .tolist() on it",
    ),
    (
        {"outputs": [[1], [torch.tensor(2)]]},
        "outputs[1][0]: expected a token id (int), got a Tensor of shape [] on cpu; call .tolist() on it",
    ),
    (
        {"outputs": [[1], [np.array([2, 3])]]},
        "outputs[1][0]: expected a token id (int), got a ndarray of shape [2]; call .tolist() on it",
    ),
    (
        {"outputs": [[1], [np.array([2])]]},
        "outputs[1][0]: expected a token id (int), got a ndarray of shape [1]; call .tolist() on it",
    ),
    ({"outputs": [1, 2]}, "outputs[0]: expected a list of token ids, got int 1"),
    ({"outputs": [[1], [[2]]]}, "outputs[1][0]: expected a token id (int), got list [2]"),
    ({"outputs": [[1], [2.0]]}, "outputs[1][0]: expected a token id (int), got float 2.0"),
    ({"outputs": [[1], [2, True]]}, "outputs[1][1]: expected a token id (int), got bool True"),
    ({"outputs": [[1], [None]]}, "outputs[1][0]: expected a token id (int), got NoneType None"),
    ({"outputs": [[1], [67]]}, "outputs[1][0]: expected a token in 0..66, got 67"),
    ({"eos_token_ids": 5}, "eos_token_ids: expected a sequence of token ids, got 5; use (5,)"),
    ({"eos_token_ids": None}, "eos_token_ids: expected a sequence of token ids, got NoneType None"),
    ({"eos_token_ids": (1, 2.5)}, "eos_token_ids[1]: expected a token id (int), got float 2.5"),
    ({"eos_token_ids": ("a",)}, "eos_token_ids[0]: expected a token id (int), got str 'a'"),
    ({"eos_token_id": "x"}, "eos_token_id: expected a token id, or a sequence of them, got str 'x'"),
    ({"eos_token_id": 2.5}, "eos_token_id[0]: expected a token id (int), got float 2.5"),
    ({"eos_token_id": 67}, "eos_token_id[0]: expected a token in 0..66, got 67"),
    ({"max_new_tokens": 0}, "max_new_tokens: expected an integer of at least 1, got 0"),
    ({"max_new_tokens": 2.0}, "max_new_tokens: expected an integer of at least 1, got 2.0"),
]


@pytest.mark.parametrize(("given", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_malformed_input_is_refused(given: dict[str, Any], message: str) -> None:
    asked: dict[str, Any] = {"prompts": TWO, "outputs": TWO, "max_new_tokens": 2, **given}
    with pytest.raises(OutputError, match=re.escape(message)):
        oracle_of("rotary").check(**asked)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"prompt": []}, "expected at least one token"),
        (
            {"prompt": torch.tensor([1])},
            "expected a list of token ids, got a Tensor of shape [1] on cpu; call .tolist() on it",
        ),
        ({"prompt": [67]}, "expected a token in 0..66, got 67"),
        ({"eos_token_ids": 5}, "eos_token_ids: expected a sequence of token ids, got 5; use (5,)"),
        ({"eos_token_id": "x"}, "eos_token_id: expected a token id, or a sequence of them, got str 'x'"),
        ({"eos_token_id": 2.5}, "eos_token_id[0]: expected a token id (int), got float 2.5"),
        ({"eos_token_id": 67}, "eos_token_id[0]: expected a token in 0..66, got 67"),
        ({"max_new_tokens": 0}, "max_new_tokens: expected an integer of at least 1, got 0"),
    ],
    ids=str,
)
def test_truth_refuses_it_too(given: dict[str, Any], message: str) -> None:
    with pytest.raises(OutputError, match=re.escape(message)):
        oracle_of("rotary").truth(**{"prompt": [1, 2], "max_new_tokens": 2, **given})


def test_a_target_that_is_no_model_is_refused() -> None:
    with pytest.raises(UsageError, match="target: expected a Hugging Face causal LM, got str 'gpt2'"):
        Oracle("gpt2")


CASE = Case(prompts=((5, 7), (9,)), max_new_tokens=6, num_draft_tokens=2, accepts=((2,), (0, 1)))


def test_assert_equivalent_passes_a_right_decoder() -> None:
    assert_equivalent(eqcheck.load("eqspec"), CASE)


def test_assert_equivalent_raises_with_the_explanation() -> None:
    def drops_the_last(target: Any, draft: Any, request: Request) -> Rows:
        rows: Rows = eqcheck.load("eqspec")(target, draft, request)
        return [rows[0], rows[1][:-1]]

    verdict = judge(run(drops_the_last, CASE))
    with pytest.raises(Violation) as caught:
        assert_equivalent(Decoder("drops the last", drops_the_last), CASE)
    assert isinstance(caught.value, AssertionError)
    assert str(caught.value).startswith(verdict.explain())
    assert "premature-stop" in str(caught.value)
    assert "6 of 6 copies of the case with other tokens fail in the same way." in str(caught.value)  # a second opinion


class _Clouded(torch.nn.Module):
    """A target whose logits are ``value`` after some positions."""

    def __init__(self, target: Any, value: float, places: slice, tokens: slice = slice(None)) -> None:
        super().__init__()
        self.target, self.config = target, target.config
        self.value, self.places, self.tokens = value, places, tokens
        self.eval()

    def forward(self, **given: Any) -> Any:
        answer = self.target(**given)
        answer.logits[:, self.places, self.tokens] = self.value
        return answer


@pytest.mark.parametrize("tokens", [slice(None), slice(5, 6)], ids=["all", "one"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@any_target
def test_logits_that_are_no_numbers_are_an_error_of_the_target(kind: str, value: float, tokens: slice) -> None:
    outputs = right(kind)
    for first in (0, 4, len(PROMPTS[0]) + 3):
        clouded = Oracle(_Clouded(oracle_of(kind).target, value, slice(first, None), tokens))
        position = max(first, len(PROMPTS[0]) - 1)
        with pytest.raises(UsageError, match=f"target: expected finite logits, got NaN .* at position {position},"):
            clouded.check(PROMPTS[:1], outputs[:1], max_new_tokens=LIMIT)
        with pytest.raises(UsageError, match=f"at position {position},"):
            clouded.truth(PROMPTS[0], max_new_tokens=LIMIT)
    zeros = [[0] * LIMIT for _ in PROMPTS]
    with pytest.raises(UsageError, match="target: expected finite logits"):
        Oracle(_Clouded(oracle_of(kind).target, float("nan"), slice(None))).check(PROMPTS, zeros, max_new_tokens=LIMIT)


@any_target
def test_logits_that_do_not_count_may_be_anything(kind: str) -> None:
    """Those before the last token of the prompt, and those of tokens that a model never emits."""
    target = oracle_of(kind).target
    never = next(token for token in range(67) if not any(token in row for row in right(kind)))
    for clouded in (
        _Clouded(target, float("nan"), slice(0, min(map(len, PROMPTS)) - 1)),
        _Clouded(target, float("-inf"), slice(None), slice(never, never + 1)),
    ):
        assert Oracle(clouded).check(PROMPTS, right(kind), max_new_tokens=LIMIT)


def test_the_public_names_are_listed_and_no_model_is_imported() -> None:
    code = "import eqcheck, sys; assert set(eqcheck.__all__) <= set(dir(eqcheck)); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_verdict_is_its_explanation() -> None:
    right = [list(row) for row in truth("rotary")]
    verdict = oracle_of("rotary").check(PROMPTS, [right[0], right[1], right[2][:4]], max_new_tokens=LIMIT)
    assert str(verdict) == verdict.explain()
    assert f"max_new_tokens {LIMIT}" in str(verdict)
    assert repr(verdict) == "<violation: bookkeeping/premature-stop: row 2, new token 4: expected " + (
        f"{right[2][4]}, got the row's end>"
    )
    assert repr(oracle_of("rotary").check(PROMPTS, right, max_new_tokens=LIMIT)) == "<equivalent>"


@pytest.mark.parametrize("given", [7, (7,), [7]])
def test_the_eos_is_taken_by_the_name_that_transformers_gives_it(given: Any) -> None:
    oracle, eos = oracle_of("rotary"), truth("rotary")[0][3]
    given = eos if given == 7 else type(given)([eos])
    rows = [list(row) for row in truth("rotary", (eos,))]
    assert oracle.truth(PROMPTS[0], max_new_tokens=LIMIT, eos_token_id=given) == rows[0]
    assert oracle.check(PROMPTS, rows, max_new_tokens=LIMIT, eos_token_id=given)
    with pytest.raises(UsageError, match="eos_token_ids, eos_token_id: expected one of the two, got both"):
        oracle.check(PROMPTS, rows, max_new_tokens=LIMIT, eos_token_id=given, eos_token_ids=(eos,))


def coarse(dtype: torch.dtype) -> tuple[Any, Oracle]:
    """A tiny Llama in a dtype below float32, and its oracle, which warns."""
    torch.manual_seed(2)
    sizes: dict[str, Any] = {"vocab_size": 128, "tie_word_embeddings": False, "initializer_range": 0.1}
    config = LlamaConfig(hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4, **sizes)
    model: Any = LlamaForCausalLM(config).to(dtype).eval()
    with pytest.warns(
        UserWarning,
        match=r"computes in b?float16, so near-ties are possible, and wrong tokens need the evidence of many rows",
    ):
        return model, Oracle(model)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.rest
def test_below_float32_rows_are_judged_by_evidence(dtype: torch.dtype) -> None:
    """Left-padded batches of the model itself are right, and rounding decides some tokens; with a mask that shows pads,
    rows exchanged and tokens that score far below the best the evidence of several checks decides."""
    model, oracle = coarse(dtype)
    wrong = {name: Oracle(model) for name in ("pads", "exchanged", "low")}
    seen: Counter[str] = Counter()
    random, limit = Random(1), 12
    for _ in range(20):
        prompts = [[random.randrange(1, 128) for _ in range(random.randint(1, 12))] for _ in range(4)]
        longest = max(map(len, prompts))
        ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts])

        def decoded(mask: torch.Tensor, ids: torch.Tensor = ids, longest: int = longest) -> Rows:
            settings = {"max_new_tokens": limit, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
            rows: Rows = model.generate(ids, attention_mask=mask, **settings)[:, longest:].tolist()
            return rows

        right = decoded((ids > 0).long())
        verdict = oracle.check(prompts, right, max_new_tokens=limit)
        assert verdict, str(verdict)
        seen[verdict.status] += 1
        if any(oracle.truth(prompt, max_new_tokens=limit) != row for prompt, row in zip(prompts, right, strict=True)):
            assert verdict.status == "tie"
        worst = model(input_ids=torch.tensor([prompts[0]])).logits[0, -1].argmin()
        exchanged, low = [right[1], right[0], *right[2:]], [[int(worst), *right[0][1:]], *right[1:]]
        for name, rows in (("pads", decoded(torch.ones_like(ids))), ("exchanged", exchanged), ("low", low)):
            if rows != right:
                seen[f"{name} {wrong[name].check(prompts, rows, max_new_tokens=limit).status}"] += 1
    assert seen["exchanged violation"] >= 16, seen  # each row is the other's own
    assert seen["low equivalent"] == seen["low tie"] == 0, seen
    assert seen["low inconclusive"] > 2, seen  # a row in four of one check is no proof
    assert seen["low violation"], seen
    assert seen["pads violation"] + seen["pads inconclusive"] >= 16, seen
    if dtype is torch.bfloat16:
        assert seen["tie"], seen


def test_a_wrong_row_that_is_checked_again_counts_once() -> None:
    model, oracle = coarse(torch.bfloat16)
    prompt = [5, 9, 2]
    row = oracle.truth(prompt, max_new_tokens=6)
    row[2] = int(model(input_ids=torch.tensor([[*prompt, *row[:2]]])).logits[0, -1].argmin())
    for _ in range(20):
        verdict = oracle.check([prompt], [row], max_new_tokens=6)
    assert (verdict.status, bool(verdict)) == ("inconclusive", False)
    said = " ".join(str(verdict).split())
    assert "1 of 1 rows so far have such a token;" in said
    assert "and 10^6 decides" in said
    assert repr(verdict).startswith("<inconclusive: unattributed/unattributed: row 0, new token 2")


def test_below_float32_ends_of_rows_need_no_evidence() -> None:
    _, oracle = coarse(torch.float16)
    row = oracle.truth([5, 9, 2], max_new_tokens=6)
    verdict = oracle.check([[5, 9, 2]], [row[:4]], max_new_tokens=6)
    assert verdict.status == "violation"
    assert verdict.explanation is not None
    assert verdict.explanation.fingerprint == "bookkeeping/premature-stop"
