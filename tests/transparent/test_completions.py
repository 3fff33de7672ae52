"""Stop sequences and what is returned beside tokens: a right decoder passes, and each fault is named."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from eqcheck import Completion
from eqcheck.audit.loop import audit
from eqcheck.contract.architectures import family_of
from eqcheck.contract.completion import split
from eqcheck.contract.decoders import Request, RowOptions, decoder
from eqcheck.contract.errors import CaseError, OutputError
from eqcheck.contract.family import FAMILY
from eqcheck.core.case.record import Case
from eqcheck.core.result.findings import Audit, Options
from eqcheck.transparent.attribution.witnesses import Places, permuted, with_ids
from eqcheck.transparent.decoding import run, truth_of
from eqcheck.transparent.oracle import judge

Row = Callable[[list[int], RowOptions, list[int], int], Completion]
CASE = Case(((1, 2, 3), (4, 5)), max_new_tokens=8, num_draft_tokens=3)


def generating(row: Row) -> Callable[[Any, Any, Request], list[Completion]]:
    """A decoder that returns of each row, given the target's own tokens up to its EOS, what ``row`` makes of them."""

    def generate(target: Any, draft: Any, request: Request) -> list[Completion]:
        answers = []
        for prompt, options in zip(request.prompts, request.rows, strict=True):
            new: list[int] = []
            while len(new) < options.max_new_tokens and not set(new[-1:]) & {*options.eos_token_ids}:
                ids = torch.tensor([[*prompt, *new]])
                new.append(int(target(input_ids=ids, use_cache=False).logits[0, -1].argmax()))
            answers.append(row(prompt, options, new, request.num_draft_tokens))
        return answers

    return generate


def ended(options: RowOptions, tokens: Sequence[int]) -> Completion:
    stops = options.stops_of(tokens)
    by_eos = bool(set(tokens[-1:]) & {*options.eos_token_ids})
    return Completion(tokens, "stop" if stops or by_eos else "length", stops[0] if stops else None)


def right(prompt: list[int], options: RowOptions, new: list[int], k: int) -> Completion:
    row = list(options.cut(new))
    return replace(ended(options, row), usage={"prompt_tokens": len(prompt), "completion_tokens": len(row)})


def deaf(prompt: list[int], options: RowOptions, new: list[int], k: int) -> Completion:
    return Completion(new)


def at_block_ends(prompt: list[int], options: RowOptions, new: list[int], k: int) -> Completion:
    """Only the end of a block is compared with stop sequences."""
    ends = (end for end in range(1, len(new), k + 1) if options.stops_of(new[:end]))
    return Completion(new[: next(ends, len(new))])


def with_prompt(prompt: list[int], options: RowOptions, new: list[int], k: int) -> Completion:
    """Stop sequences are found in the prompt, too."""
    text = [*prompt, *new]
    ends = (n for n in range(1, len(new) + 1) if options.stops_of(text[: len(prompt) + n]))
    return Completion(options.cut(new[: next(ends, len(new))]))


def stripped(prompt: list[int], options: RowOptions, new: list[int], k: int) -> Completion:
    row = list(options.cut(new))
    return Completion(row[: len(row) - max(map(len, options.stops_of(row)), default=0)])


def always_length(prompt: list[int], options: RowOptions, new: list[int], k: int) -> Completion:
    return replace(ended(options, list(options.cut(new))), finish_reason="length")


def first_stop(prompt: list[int], options: RowOptions, new: list[int], k: int) -> Completion:
    """The first stop sequence of the request is told, whichever matched."""
    whole = ended(options, list(options.cut(new)))
    return replace(whole, stop=options.stop_sequences[0] if whole.stop else None)


def whole_blocks(prompt: list[int], options: RowOptions, new: list[int], k: int) -> Completion:
    """Tokens are counted before the block is cut."""
    row = list(options.cut(new))
    return Completion(row, usage={"completion_tokens": min(len(new), -(-len(row) // (k + 1)) * (k + 1))})


def audited(row: Row, cases: int = 60) -> Audit:
    made = decoder(name="row", capabilities=("stop-sequences", "finish-reason"))(generating(row))
    return audit(made, Options(cases=cases, seed=1))


@pytest.mark.rest
def test_a_right_decoder_is_equivalent_and_stops_are_seen_to_end_rows() -> None:
    result = audited(right, 120)
    assert result.tally.statuses == {"equivalent": 120}
    assert result.tally.coverage["stopped"] > 30
    assert result.tally.coverage["stop_in_prompt"] > 10


@pytest.mark.parametrize(
    ("row", "named"),
    [
        (deaf, "options/ignored-option:stop-sequences"),
        (at_block_ends, "options/ignored-option:stop-sequences"),
        (with_prompt, "bookkeeping/premature-stop"),
        (stripped, "bookkeeping/premature-stop"),
        (always_length, "bookkeeping/finish-reason"),
        (first_stop, "bookkeeping/finish-reason"),
        (whole_blocks, "bookkeeping/usage"),
    ],
)
@pytest.mark.tiers(quick=0, rest=1)
def test_a_fault_of_ends_is_named(row: Row, named: str) -> None:
    assert {finding.fingerprint for finding in audited(row).findings} == {named}


def with_stops(*stops: tuple[tuple[int, ...], ...]) -> Case:
    return replace(CASE, stop_sequences=stops)


def test_a_match_ends_the_row_and_is_kept_and_the_prompt_has_no_part_in_it() -> None:
    new = truth_of(CASE).rows[0]
    for stop, size in (
        ((new[2],), 3),
        (new[1:4], 4),
        (new, 8),
        ((3, new[0]), 8),  # it begins in the prompt
        ((1, 2), 8),
    ):
        assert truth_of(with_stops((stop,), ())).rows == (new[:size], truth_of(CASE).rows[1])


def test_an_eos_that_completes_a_stop_sequence_may_be_told_as_either() -> None:
    new = truth_of(CASE).rows[0]
    case = replace(with_stops((new[1:3],), ()), eos_token_ids=(new[2],))
    for stop, status in ((None, "equivalent"), (new[1:3], "equivalent"), (new[:1], "violation")):

        def telling(prompt: list[int], options: RowOptions, new: list[int], k: int, stop: Any = stop) -> Completion:
            return replace(right(prompt, options, new, k), stop=stop if len(prompt) == 3 else None)

        told = generating(telling)
        assert judge(run(told, case)).status == status


def test_what_is_said_of_a_wrong_end() -> None:
    new = truth_of(CASE).rows[0]
    case = with_stops((new[1:3],), ())
    for row, said in (
        (deaf, f"the row continues with 5 tokens after its stop sequence {new[1]} {new[2]}"),
        (
            always_length,
            f"the row ends at its stop sequence {new[1]} {new[2]}, but the finish reason given is 'length'",
        ),
        (whole_blocks, "completion_tokens is given as 4, but the row has 3"),
    ):
        explanation = judge(run(generating(row), case)).explanation
        assert explanation is not None
        assert explanation.detail == said
        assert explanation.row == 0


def test_stops_keep_their_places_where_ids_are_renamed() -> None:
    new = truth_of(CASE).rows
    case = with_stops((new[0][1:3], (3, new[0][0])), ((4, 5),))
    assert with_ids(case, Places.of(case)) == case
    other = permuted(case, seed=1)
    assert other.prompts != case.prompts
    assert [len(row) for row in truth_of(other).rows] == [3, 8]
    assert other.stop_sequences[1] == (other.prompts[1],)
    assert Case.from_dict(case.to_dict()) == case
    assert "stop_sequences" not in CASE.to_dict()


@pytest.mark.parametrize(
    ("stops", "said"),
    [
        ((((1,),),), "stop_sequences: expected those of 2 rows, got 1"),
        ((((),), ()), "stop_sequences[0][0]: expected a tuple of at least one token, got ()"),
        ((((999,),), ()), "stop_sequences[0]: expected 0..127, got 999"),
    ],
)
def test_stops_that_cannot_be_meant(stops: Any, said: str) -> None:
    with pytest.raises(CaseError, match=re.escape(said)):
        with_stops(*stops)


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ({"finish_reason": "eos"}, r"outputs[0].finish_reason: expected one of ('stop', 'length', 'error'), got 'eos'"),
        ({"stop": 7}, "outputs[0].stop: expected token ids, got int"),
        ({"usage": 7}, "outputs[0].usage: expected a mapping, got int"),
    ],
)
def test_completions_that_cannot_be_meant(told: dict[str, Any], said: str) -> None:
    with pytest.raises(OutputError, match=re.escape(said)):
        split([Completion([1], **told)])
    failed = judge(run(generating(lambda p, o, n, k: Completion(n, **told)), CASE)).explanation
    assert failed is not None
    assert (failed.component, failed.kind) == ("crash", "invalid-output")


def with_logprobs(wrong: Callable[[list[float], int], list[float]]) -> Callable[[Any, Any, Request], list[Completion]]:
    """A decoder that tells of the right tokens what ``wrong`` makes of the right log-probabilities and K."""

    def generate(target: Any, draft: Any, request: Request) -> list[Completion]:
        answers = []
        for prompt, options in zip(request.prompts, request.rows, strict=True):
            new: list[int] = []
            told: list[float] = []
            while len(new) < options.max_new_tokens and not set(new[-1:]) & {*options.eos_token_ids}:
                logits = target(input_ids=torch.tensor([[*prompt, *new]]), use_cache=False).logits[0, -1]
                new.append(int(logits.argmax()))
                told.append(float(logits.log_softmax(-1)[new[-1]]))
            answers.append(
                Completion(new, logprobs=wrong(told, request.num_draft_tokens) if options.logprobs else None)
            )
        return answers

    return generate


def _late(told: list[float], k: int) -> list[float]:
    return [told[0], *told[:-1]]


def _of_round(told: list[float], k: int) -> list[float]:
    """The correction or bonus of each round has that of the token before it."""
    return [told[i - 1] if i % (k + 1) == k and i else one for i, one in enumerate(told)]


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        (lambda told, k: told, set()),
        (_late, {"bookkeeping/logprobs"}),
        (lambda told, k: [*told[1:], told[-1]], {"bookkeeping/logprobs"}),
        (_of_round, {"bookkeeping/logprobs"}),
        (lambda told, k: [one + 2e-6 for one in told], {"bookkeeping/logprobs"}),
        (lambda told, k: told[:-1], {"crash/invalid-output:list"}),
    ],
)
@pytest.mark.tiers(quick=1, rest=1)
def test_log_probabilities_are_the_targets_own_at_every_place(wrong: Any, named: set[str]) -> None:
    made = decoder(name="row", capabilities=("logprobs",))(with_logprobs(wrong))
    result = audit(made, Options(cases=40, seed=1))
    assert {finding.fingerprint for finding in result.findings} == named
    assert result.tally.coverage["logprobs"] > 10 or named


@pytest.mark.parametrize("family", ["rotary", family_of("llama"), family_of("llama", "float32")])
def test_log_probabilities_one_place_off_are_told_so(family: str) -> None:
    prompts = ((1, 2, 3), (4, 5))
    case = Case(prompts, 8, 3, family=family, vocab_size=FAMILY[family].vocab_size, logprobs=True)
    assert judge(run(with_logprobs(lambda told, k: told), case)).status == "equivalent"
    said = judge(run(with_logprobs(_late), case)).explanation
    assert said is not None
    assert said.fingerprint == "bookkeeping/logprobs"
    assert said.detail.endswith("each log-probability returned belongs to the token before it")


def cancelling(wrong: str = "") -> Callable[[Any, Any, Request], list[list[int]]]:
    """A decoder that ends a cancelled row with the round in which it has enough tokens, or does so wrongly."""

    def generate(target: Any, draft: Any, request: Request) -> list[list[int]]:
        answers = generating(lambda prompt, options, new, k: Completion(new))(target, draft, request)
        rows = [list(row.tokens) for row in answers]
        block = request.num_draft_tokens + 1
        for number, options in enumerate(request.rows):
            if not options.cancel_after:
                continue
            end = 1 + -(-(options.cancel_after - 1) // block) * block
            if wrong == "too early":
                end = options.cancel_after - 1
            elif wrong == "neighbour" and number + 1 < len(rows):
                rows[number + 1] = rows[number + 1][:end]
            elif wrong == "draft kept" and end < len(rows[number]):
                rows[number][end - 1] ^= 1
            rows[number] = rows[number][:end]
        return rows

    return generate


@pytest.mark.parametrize("wrong", ["", "too early", "neighbour", "draft kept"])
@pytest.mark.tiers(quick=1, rest=1)
def test_a_cancelled_row_is_the_beginning_of_the_right_one(wrong: str) -> None:
    result = audit(decoder(name="row", capabilities=("cancel",))(cancelling(wrong)), Options(cases=40, seed=1))
    named = {finding.fingerprint for finding in result.findings}
    if wrong in ("too early", "neighbour"):
        assert named == {"bookkeeping/premature-stop"}
    else:
        assert bool(named) == bool(wrong)
    assert result.tally.coverage["cancelled"] > 5


def test_a_row_that_is_not_cancelled_may_not_end_early() -> None:
    right = truth_of(CASE).rows
    case = replace(CASE, cancel_after=(3, 0))
    for rows, status in (
        ((right[0][:3], right[1]), "equivalent"),
        ((right[0][:5], right[1]), "equivalent"),
        (right, "equivalent"),
        ((right[0][:2], right[1]), "violation"),
        ((right[0][:3], right[1][:3]), "violation"),
    ):
        returned = list(map(list, rows))

        def answer(target: Any, draft: Any, request: Request, returned: Any = returned) -> Any:
            return returned

        assert judge(run(answer, case)).status == status
    with pytest.raises(CaseError, match=re.escape("cancel_after: expected those of 2 rows, got 1")):
        replace(CASE, cancel_after=(3,))
    assert Case.from_dict(case.to_dict()) == case
