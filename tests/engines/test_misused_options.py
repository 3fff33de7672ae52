"""Attribution from outside of options: what is ignored, another row's, or applied at the wrong places."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from option_faults import Place, Together
from test_abduction import PROMPTS, K, case_of, named

from eqcheck.contract.decoders import RowOptions
from eqcheck.core.case.engine import EngineCase, EngineRow
from eqcheck.core.explanation.records import Search
from eqcheck.core.result.outcome import Outcome
from eqcheck.engines.abduction import Abduced, Evidence, abduce, abduce_options
from eqcheck.engines.abduction.output_edits import TokenPlace, misused
from eqcheck.engines.abduction.queries import Turn
from eqcheck.engines.checkpoints.continuations import ModelTruth, at_place, row_with
from eqcheck.engines.checkpoints.folders import checkpoint
from eqcheck.engines.checkpoints.row_judge import Judge, truth
from eqcheck.engines.drawing import alike
from eqcheck.engines.engine_outcome import evidence, explain, judged
from eqcheck.engines.option_effects import CHANGING


@pytest.fixture(scope="module")
def models() -> tuple[Any, Any]:
    torch.set_num_threads(1)
    return checkpoint().models()


PENALTIES: dict[str, Any] = {"repetition_penalty": 1.7, "presence_penalty": 2.0, "min_new_tokens": 15}


@pytest.mark.parametrize("option", PENALTIES)
@pytest.mark.tiers(quick=1, rest=2)
def test_an_option_that_is_ignored_is_named(models: tuple[Any, Any], option: str) -> None:
    truth = ModelTruth(models[0])
    eos = truth.row(case_of().rows[0])[9]
    case = case_of(eos_token_ids=(eos,), max_new_tokens=30, **{option: PENALTIES[option]})
    right = [truth.row(row) for row in case.rows]
    off = {"min_new_tokens": 0, "presence_penalty": 0.0, "repetition_penalty": 1.0}[option]
    outputs = [truth.row(row_with(row, **{option: off})) for row in case.rows]
    assert outputs != right
    assert abduce(Evidence(*models, case, right)) is None
    found = abduce(Evidence(*models, case, outputs))
    assert named(found) == "options/ignored-option"
    assert found is not None
    assert found.search.edit == f"option-ignored:{option.replace('_', '-')}"


Before = Callable[[EngineRow, list[int], list[int], int, bool], tuple[EngineRow, list[int]]]


def _stale(
    row: EngineRow, output: list[int], drafts: list[int], offset: int, late: bool
) -> tuple[EngineRow, list[int]]:
    return row, output


def _stale_bonus(
    row: EngineRow, output: list[int], drafts: list[int], offset: int, late: bool
) -> tuple[EngineRow, list[int]]:
    return row, output if offset == len(drafts) else [*output, *drafts[:offset]]


def _first_alone(
    row: EngineRow, output: list[int], drafts: list[int], offset: int, late: bool
) -> tuple[EngineRow, list[int]]:
    return row if not offset else EngineRow(row.prompt, RowOptions(row.options.max_new_tokens)), [
        *output,
        *drafts[:offset],
    ]


def _counting_the_prompt(
    row: EngineRow, output: list[int], drafts: list[int], offset: int, late: bool
) -> tuple[EngineRow, list[int]]:
    least = max(0, row.options.min_new_tokens + offset - (len(row.prompt) - 1) * late)
    return row_with(row, min_new_tokens=least), [*output, *drafts[:offset]]


def _decoded(models: tuple[Any, Any], case: EngineCase, before: Before | None = None) -> list[list[int]]:
    """Rounds in which options and the tokens they count are what ``before`` says, which is told of rejections.

    With `_counting_the_prompt` the first token comes from the prefill, and the draft applies the options.
    """
    target, draft = models
    rows = []
    for row in case.rows:
        output: list[int] = []
        late = False
        while len(output) < row.options.max_new_tokens and not set(output) & set(row.options.eos_token_ids):
            drafts: list[int] = []
            most = 0 if not output and before is _counting_the_prompt else case.num_draft_tokens
            while len(drafts) < min(most, row.options.max_new_tokens - len(output) - 1):
                score = draft(torch.tensor([[*row.prompt, *output, *drafts]])).logits[0, -1]
                score = at_place(score, row, [*output, *drafts]) if before is _counting_the_prompt else score
                drafts.append(int(score.argmax()))
            scores = target(torch.tensor([[*row.prompt, *output, *drafts]])).logits[0, -len(drafts) - 1 :]
            start = list(output)
            for offset, score in enumerate(scores):
                what = before(row, start, drafts, offset, late) if before else (row, [*start, *drafts[:offset]])
                output.append(int(at_place(score, *what).argmax()))
                if output[-1] in row.options.eos_token_ids or drafts[offset : offset + 1] != output[-1:]:
                    break
            late = len(output) - len(start) <= len(drafts)
        rows.append(output)
    return rows


MISUSED = [
    (_stale, "repetition_penalty", "option-stale:repetition-penalty"),
    (_first_alone, "presence_penalty", "option-for-first-alone:presence-penalty"),
    (_stale_bonus, "min_new_tokens", "option-stale-for-bonus:min-new-tokens"),
    (_counting_the_prompt, "min_new_tokens", "minimum-stale-with-prompt"),
]


@torch.no_grad()
@pytest.mark.parametrize(("before", "option", "edit"), MISUSED)
@pytest.mark.tiers(quick=0, rest=1)
def test_an_option_applied_at_the_wrong_places_is_named(
    models: tuple[Any, Any], before: Before, option: str, edit: str
) -> None:
    if option == "min_new_tokens":  # a row that may end, for the first time, at each of its places
        cases = [
            case_of(prompts=(row.prompt,), min_new_tokens=place, eos_token_ids=(emitted[place],))
            for row in case_of().rows
            for emitted in (ModelTruth(models[0]).row(row),)
            for place in range(1, 12)
            if emitted[place] not in emitted[:place]
        ]
        row = EngineRow((72,), RowOptions(3))  # the draft proposes this EOS before the minimum, if it may
        cases.append(
            EngineCase((row_with(row, eos_token_ids=(ModelTruth(models[0]).row(row)[2],), min_new_tokens=2),), 1)
        )
    else:
        case = case_of(prompts=PROMPTS[:1], **{option: PENALTIES[option]})
        cases = [case, *(alike(case, number) for number in range(12))]
    assert [_decoded(models, one) for one in cases] == [[ModelTruth(models[0]).row(one.rows[0])] for one in cases]
    decoded = [(one, _decoded(models, one, before)) for one in cases]
    decoded.sort(key=lambda one: one[1] == [ModelTruth(models[0]).row(one[0].rows[0])])
    found = abduce_options([Evidence(*models, *one) for one in decoded])
    assert found is not None
    assert named(found) == "options/ignored-option"
    assert found.search.edit == edit
    right = [(one, [ModelTruth(models[0]).row(one.rows[0])]) for one in cases]
    assert abduce_options([Evidence(*models, *one) for one in right]) is None


@torch.no_grad()
def test_a_word_that_begins_in_the_prompt_is_named(models: tuple[Any, Any]) -> None:
    def over_prompt(row: EngineRow, output: list[int], drafts: list[int], offset: int, late: bool) -> Any:
        return row, [*row.prompt, *output, *drafts[:offset]]

    alone, cases = ModelTruth(models[0]), []
    for seed in range(5):
        prompt = tuple(random.Random(seed).choices(range(256), k=6))
        first, second, *_ = alone.row(case_of(prompts=(prompt,)).rows[0])
        cases.append(case_of(prompts=(prompt,), bad_words=((prompt[-1], first), (first, second)), max_new_tokens=4))
    decoded = [(one, _decoded(models, one, over_prompt)) for one in cases]
    found = abduce_options([Evidence(*models, *one) for one in decoded])
    assert found is not None
    assert found.search.edit == "option-over-prompt:bad-words"
    assert abduce_options([Evidence(*models, one, _decoded(models, one)) for one in cases]) is None


def test_a_decoder_in_float64_has_no_near_ties() -> None:
    """A bonus for a token that is there makes it better by 0.05: that is wrong in float64, and a tie in bfloat16."""
    prompt = (24, 198, 30, 28, 231, 180, 60, 129, 231, 155)
    case = EngineCase((EngineRow(prompt, RowOptions(2, frequency_penalty=-1.3)),), 2, checkpoint="full")
    outputs = (220, 61)
    assert truth("full").row(case.rows[0]) == [220, 220]
    for dtype, wrong in (("float64", {(0, 1)}), ("bfloat16", set())):
        outcome = judged(Judge(dtype), case, {"outputs": [outputs]})
        assert outcome.failed == bool(wrong)
        assert evidence(outcome).surprising == wrong


def test_a_round_at_the_limit_may_have_all_its_drafts() -> None:
    """Its last token is no bonus token then."""
    built = checkpoint("full").built
    assert built is not None
    case = EngineCase((EngineRow((5, 9), RowOptions(7)),), 4, checkpoint="full")
    found = Evidence(built[0].function, built[1].function, case, [truth("full").row(case.rows[0])])
    (cut,), (uncut,) = (found.schedules_with_options[name][-1] for name in ("own", "uncut"))
    assert len(cut.drafts) < 4
    assert len(uncut.drafts) == 4


def _counting_all(case: EngineCase) -> list[EngineRow]:
    return [row_with(r, min_new_tokens=max(0, r.options.min_new_tokens - len(r.prompt))) for r in case.rows]


def _of_next(case: EngineCase) -> list[EngineRow]:
    others = [*case.rows[1:], case.rows[0]]
    return [row_with(row, logit_bias=other.options.logit_bias) for row, other in zip(case.rows, others, strict=True)]


def _one_off(case: EngineCase) -> list[EngineRow]:
    return [row_with(r, logit_bias=tuple(((n + 1) % 256, by) for n, by in r.options.logit_bias)) for r in case.rows]


@pytest.mark.parametrize(
    ("altered", "edit"),
    [
        (_counting_all, "option-over-prompt:min-new-tokens"),
        (_of_next, "option-of-neighbour:logit-bias:after"),
        (_one_off, "option-of-other-ids:logit-bias:above"),
    ],
)
@pytest.mark.tiers(quick=0, rest=2)
def test_what_looks_like_an_ignored_option_is_named_as_it_is(
    altered: Callable[[EngineCase], list[EngineRow]], edit: str
) -> None:
    alone, built = truth("full"), checkpoint("full").built
    assert built is not None
    prompts = [(7, 200, 9, 30, 8, 2, 4, 77), (3, 1, 2), (72,)]
    rows = []
    for number, prompt in enumerate(prompts if altered is _of_next else prompts[:1]):
        row = EngineRow(prompt, RowOptions(12))
        tokens = alone.row(row)
        bias = ((tokens[number], -4.0), (tokens[number + 3] - 1, 5.0 + number))
        asked: dict[str, Any] = {"eos_token_ids": (tokens[3],), "min_new_tokens": 9}
        rows.append(row_with(row, **(asked if altered is _counting_all else {"logit_bias": bias})))
        if altered is _of_next:
            rows[-1] = row_with(rows[-1], presence_penalty=0.5 + number / 8)  # of the row's own
    case = EngineCase(tuple(rows), num_draft_tokens=2, checkpoint="full")
    cases = [case, *(alike(case, number) for number in range(6 // len(rows)))]
    target, draft = (one.function for one in built)

    def found(outputs: Callable[[EngineCase], list[EngineRow]], some: list[EngineCase]) -> str:
        cause = abduce_options([Evidence(target, draft, one, [alone.row(row) for row in outputs(one)]) for one in some])
        return cause.search.edit if cause else ""

    assert found(altered, cases) == edit
    assert found(lambda one: list(one.rows), cases) == ""
    if altered is _counting_all:  # behind long prompts it may as well be ignored
        long = [one for one in cases if len(one.rows[0].prompt) > 2]
        ignored = [[row_with(row, min_new_tokens=0) for row in one.rows] for one in long]
        same = [one for one, off in zip(long, ignored, strict=True)
                if list(map(alone.row, altered(one))) == list(map(alone.row, off))]  # fmt: skip
        assert found(altered, same) == "forbidding-option-ignored"


def test_an_end_that_is_another_rows_is_an_option(models: tuple[Any, Any]) -> None:
    rows = case_of(prompts=PROMPTS[:2]).rows
    case = EngineCase((rows[0], row_with(rows[1], max_new_tokens=6)), num_draft_tokens=K)
    outputs = [ModelTruth(models[0]).row(row) for row in rows]
    assert named(abduce(Evidence(*models, case, outputs))) == "options/ignored-option"


@pytest.mark.rest
def test_options_of_rows_that_go_on_are_no_fault_of_the_commit() -> None:
    """Next rows of those that go on lend their ids: a draft without options proposes what the engine then emits."""
    rng, alone = random.Random("1 allowed-ids"), truth("full")
    rows = []
    for _ in range(3):
        prompt = tuple(rng.randrange(256) for _ in range(rng.randint(1, 10)))
        row = EngineRow(prompt, RowOptions(rng.randint(6, 22)))
        rows.append(CHANGING["allowed-ids"](rng, row, alone.row(row)) if rng.random() < 0.7 else row)
    case = EngineCase(tuple(rows), num_draft_tokens=rng.randint(1, 4), checkpoint="full")

    def next_of_those_that_go_on(at: Place) -> tuple[RowOptions, list[int]]:
        going = [row for row in at.rows if not row.ended]
        after = going[(going.index(at.row) + 1) % len(going)].options
        return replace(at.row.options, allowed_ids=after.allowed_ids), at.before

    engine = type("Lending", (Together,), {"fault": staticmethod(next_of_those_that_go_on)})()
    built = checkpoint("full").built
    assert built is not None
    target, draft = (one.function for one in built)
    outputs = engine("", "", case.request())
    found = abduce(Evidence(target, draft, case, outputs))
    assert found is not None
    assert (found.component, found.open) == ("options", False)


@torch.no_grad()
@pytest.mark.parametrize("since", [0, 4])
def test_the_report_says_whose_option_a_row_got_and_since_when(since: int) -> None:
    """Row 1 gets the bias of row 2, from some new token on; row 0 keeps its own, and row 3 has none."""
    alone = truth("full")
    prompts = ((7, 200, 9, 30), (8, 9, 10), (30, 31), (40, 41, 42))
    biases = (((5, 30.0), (6, 20.0)), ((50, 60.0),), ((90, 60.0), (91, 50.0)), ())
    rows = tuple(
        EngineRow(prompt, RowOptions(10, logit_bias=bias)) for prompt, bias in zip(prompts, biases, strict=True)
    )
    case = EngineCase(rows, num_draft_tokens=2, checkpoint="full")
    outputs = [tuple(alone.row(row)) for row in rows]
    row = alone.row(row_with(rows[1], logit_bias=biases[2]), outputs[1][:since])
    assert outcome_of(case, outputs).status == "equivalent"
    outcome = outcome_of(case, [outputs[0], tuple(row), *outputs[2:]])
    search = Search("option-of-others:logit-bias", "some tokens are chosen with another row's logit_bias", 3, 3, 1e-9)
    said = explain(outcome, Abduced("options", "ignored-option", 1, since, search))
    assert (said.row, said.token_index) == (1, since)
    assert said.detail == (
        f"from new token {since} on, each token of request 1 is the one that the target chooses with the logit_bias of "
        "request 2"
    )


def outcome_of(case: EngineCase, outputs: Sequence[tuple[int, ...]]) -> Outcome:
    return judged(Judge("float64"), case, {"outputs": [*outputs]})


def test_a_penalty_times_the_tokens_of_a_long_round_may_be_one_that_no_case_has() -> None:
    row = EngineRow((1,), RowOptions(4, repetition_penalty=2.0, presence_penalty=90.0))
    place = TokenPlace(row, [1, 2], Turn(0, 1, (1,) * 32, 0, 2), 0, 0, 0, False, (), (), (), ())
    stronger = place.stronger(1).options
    assert (stronger.repetition_penalty, stronger.presence_penalty) == (2.0**33, 90.0 * 33)


@torch.no_grad()
@pytest.mark.rest
def test_a_minimum_that_is_counted_wrongly_is_not_said_to_be_another_rows(models: tuple[Any, Any]) -> None:
    """Whatever holds an EOS back too long looks like the greater minimum of the row beside."""

    def too_long(row: EngineRow, output: list[int], drafts: list[int], offset: int, late: bool) -> Any:
        return row_with(row, min_new_tokens=row.options.min_new_tokens + 6), [*output, *drafts[:offset]]

    beside = EngineRow((9, 4), RowOptions(12, eos_token_ids=(201,), min_new_tokens=12))
    cases = []
    for row in case_of().rows:
        emitted = ModelTruth(models[0]).row(row)
        for place in (place for place in range(2, 9) if emitted[place] not in emitted[:place]):
            asked = row_with(row, eos_token_ids=(emitted[place],), min_new_tokens=place)
            cases.append(EngineCase((asked, beside), 1))
    decoded = [(one, _decoded(models, one, too_long)) for one in cases]
    wrong = [one for one in decoded if one[1] != [ModelTruth(models[0]).row(row) for row in one[0].rows]]
    assert len(wrong) > 5
    tried = {one.hypothesis.edit.id for case in wrong for one in misused(Evidence(*models, *case))}
    assert "option-missing-at-times" in tried
    assert "option-of-others" not in tried
