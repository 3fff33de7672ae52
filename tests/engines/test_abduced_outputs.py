"""Attribution from outside of outputs: rows of others, tokens lost, repeated or never verified, and wrong ends."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from test_abduction import PROMPTS, case_of, named

from eqcheck.contract.decoders import RowOptions
from eqcheck.core.case.engine import PAD, VOCAB_SIZE, EngineCase, EngineRow
from eqcheck.core.explanation.text import render
from eqcheck.engines.abduction import Evidence, abduce, abduce_alike, fits
from eqcheck.engines.checkpoints.continuations import ModelTruth, row_with
from eqcheck.engines.checkpoints.dictation import agreeing
from eqcheck.engines.checkpoints.folders import checkpoint
from eqcheck.engines.checkpoints.row_judge import Judge
from eqcheck.engines.construction.function import Function
from eqcheck.engines.engine_outcome import UNEXPLAINED, abduced, explain, judged


@pytest.fixture(scope="module")
def models() -> tuple[Any, Any]:
    torch.set_num_threads(1)
    return checkpoint().models()


def _ends(outputs: list[list[int]]) -> dict[str, list[list[int]]]:
    first, *rest = outputs
    return {
        "premature-stop": [first[:-3], *rest],
        "pad-in-output": [[*first, PAD, PAD], *rest],
        "row-swap": [*rest[:1], first, *rest[1:]],
        "lost-token": [first[2:], *rest],
        "repeated-token": [[*first[:7], first[6], *first[7:-1]], *rest],
    }


@pytest.mark.parametrize("kind", ["premature-stop", "pad-in-output", "row-swap", "lost-token", "repeated-token"])
@pytest.mark.tiers(quick=2, rest=2)
def test_what_is_only_returned_wrongly_is_bookkeeping(models: tuple[Any, Any], kind: str) -> None:
    case = case_of(max_new_tokens=14)
    right = [ModelTruth(models[0]).row(row) for row in case.rows]
    assert named(abduce(Evidence(*models, case, _ends(right)[kind]))) == f"bookkeeping/{kind}"


def test_rows_returned_whole_are_named_before_any_search(models: tuple[Any, Any]) -> None:
    case = case_of(max_new_tokens=6)
    right = [ModelTruth(models[0]).row(row) for row in case.rows]
    whole = tuple((*row.prompt, *new) for row, new in zip(case.rows, right, strict=True))
    outcome = judged(Judge("float32"), case, {"outputs": whole})
    explanation = explain(outcome, None)
    assert explanation.fingerprint == "bookkeeping/prompt-in-output"
    assert explanation.detail.endswith("return row[len(prompt):]")
    wrong = (*whole[:-1], (*whole[-1][:-1], (whole[-1][-1] + 1) % VOCAB_SIZE))
    assert explain(judged(Judge("float32"), case, {"outputs": wrong}), None).component == "unattributed"


def test_an_explanation_has_the_search_as_data_and_the_text_says_it(models: tuple[Any, Any]) -> None:
    case = case_of(max_new_tokens=14)
    right = [ModelTruth(models[0]).row(row) for row in case.rows]
    outcome = judged(Judge("float64"), case, {"outputs": tuple(map(tuple, _ends(right)["row-swap"]))})
    explanation = explain(outcome, abduced(outcome))
    assert (explanation.fingerprint, explanation.detail) == ("bookkeeping/row-swap:rows-swapped", "")
    search = explanation.search
    assert search is not None
    assert (search.edit, search.of, search.cases, search.wrong_cases) == ("rows-swapped", "this case", 1, 1)
    assert search.explained == search.surprising > 0
    assert 0 < search.chance < 1e-9 < 1 < search.tried
    assert explanation.to_dict()["search"]["words"] == search.words == "rows return the output of other rows"
    said = f"If {search.words}, the reference model gives exactly the {search.surprising} wrong tokens."
    assert said in " ".join(render(explanation).split())
    nothing = explain(outcome, None)
    assert (nothing.search, nothing.detail) == (None, UNEXPLAINED)


@pytest.mark.rest
def test_first_tokens_of_the_row_before_are_a_wrong_correction_also_beside_other_faults(
    models: tuple[Any, Any],
) -> None:
    truth = ModelTruth(models[0])
    draw = random.Random(3)
    prompts = tuple(tuple(draw.randrange(VOCAB_SIZE) for _ in range(draw.randint(2, 9))) for _ in range(8))
    case = case_of(prompts=prompts, max_new_tokens=6)
    right = [truth.row(row) for row in case.rows]
    shifted = [truth.row(row, [right[n - 1][0]]) if n in (3, 4, 5, 6) else right[n] for n, row in enumerate(case.rows)]
    found = abduce(Evidence(*models, case, shifted))
    assert named(found) == "bookkeeping/wrong-correction"
    assert found is not None
    assert (found.search.explained, found.search.surprising) == (4, 4)
    other = next(token for token in range(VOCAB_SIZE) if token not in {row[0] for row in right})
    beside = [*shifted[:-1], truth.row(case.rows[-1], [other])]
    found = abduce(Evidence(*models, case, beside))
    assert named(found) == "bookkeeping/wrong-correction"
    assert found is not None
    assert (found.search.explained, found.search.surprising) == (4, 5)


def test_first_tokens_of_one_another_are_a_wrong_correction(models: tuple[Any, Any]) -> None:
    truth = ModelTruth(models[0])
    draw = random.Random(4)
    prompts = tuple(tuple(draw.randrange(VOCAB_SIZE) for _ in range(draw.randint(2, 9))) for _ in range(20))
    case = case_of(prompts=prompts, max_new_tokens=4)
    right = [truth.row(row) for row in case.rows]
    sources = {1: 5, 5: 13, 13: 1}
    outputs = [truth.row(row, [right[sources.get(n, n)][0]]) for n, row in enumerate(case.rows)]
    found = abduce(Evidence(*models, case, outputs))
    assert named(found) == "bookkeeping/wrong-correction"
    assert found is not None
    assert found.search.edit == "first-token-of-one-another"
    tokens = [right[2][0], right[9][0], 255]
    others = [truth.row(row, [tokens[n]] if n < len(tokens) else []) for n, row in enumerate(case.rows)]
    assert abduce(Evidence(*models, case, others)) is None, "tokens of rows that are right are no exchange"


def test_rows_that_go_on_are_past_their_eos_or_over_their_limit(models: tuple[Any, Any]) -> None:
    truth = ModelTruth(models[0])
    case = case_of(prompts=PROMPTS[:2], max_new_tokens=8)
    longer = [truth.row(row_with(row, max_new_tokens=11)) for row in case.rows]
    assert named(abduce(Evidence(*models, case, longer))) == "bookkeeping/over-length"
    ended = case_of(prompts=PROMPTS[:2], max_new_tokens=11, eos_token_ids=(longer[0][4],))
    assert named(abduce(Evidence(*models, ended, longer))) == "bookkeeping/past-eos"


def _unverified_once(models: tuple[Any, Any], case: EngineCase) -> list[list[int]]:
    """A draft token that the target rejects is emitted, then its own prediction for that place; the rest is right."""
    truth = ModelTruth(models[0])
    right = truth.row(case.rows[0])
    evidence = Evidence(*models, case, [right])
    start = len(case.rows[0].prompt)
    at = next(n for n, token in enumerate(right) if evidence.drafts[0][start + n][0] != token)
    return [truth.row(case.rows[0], [*right[:at], evidence.drafts[0][start + at][0], right[at]])]


@pytest.mark.rest
def test_what_one_case_does_not_show_several_alike_do(models: tuple[Any, Any]) -> None:
    draw = random.Random(5)
    decoded: list[tuple[EngineCase, list[list[int]]]] = []
    while len(decoded) < 4:  # cases of which each alone leaves it to chance
        case = case_of(prompts=(tuple(draw.randrange(VOCAB_SIZE) for _ in range(5)),), max_new_tokens=18)
        outputs = _unverified_once(models, case)
        if abduce(Evidence(*models, case, outputs)) is None:
            decoded.append((case, outputs))
    assert abduce_alike([Evidence(*models, *one) for one in decoded[:1]]) is None
    found = abduce_alike([Evidence(*models, *one) for one in decoded])
    assert named(found) == "bookkeeping/unverified"
    assert found is not None
    assert found.search.explained == found.search.surprising > len(decoded)
    assert (found.search.of, found.search.cases, found.search.wrong_cases) == ("cases like this one", 4, 4)
    truth = ModelTruth(models[0])
    random_tokens = [
        (case, [truth.row(case.rows[0], [draw.randrange(VOCAB_SIZE) for _ in range(2)])]) for case, _ in decoded
    ]
    assert abduce_alike([Evidence(*models, *one) for one in random_tokens]) is None
    assert abduce_alike([Evidence(*models, *one) for one in [*decoded[:1], *random_tokens]]) is None


@pytest.mark.rest
def test_a_known_edit_fits_where_it_explains_most_and_chance_does_not(models: tuple[Any, Any]) -> None:
    draw = random.Random(6)
    prompts = tuple(tuple(draw.randrange(VOCAB_SIZE) for _ in range(5)) for _ in range(8))
    outputs = [_unverified_once(models, case_of(prompts=(prompt,), max_new_tokens=18))[0] for prompt in prompts]
    case, known = case_of(prompts=prompts, max_new_tokens=18), ["unverified-emitted"]

    def fitting(outputs: list[list[int]]) -> list[set[str]]:
        evidence = Evidence(*models, case, outputs)
        return [fits(evidence, known, partly) for partly in (False, True)]

    assert fitting(outputs) == [{*known}, {*known}]
    worse = [
        [*outputs[0][:-1], (outputs[0][-1] + 1) % VOCAB_SIZE],
        *outputs[1:],
    ]  # and its last token is something else
    assert fitting(worse) == [set(), {*known}]
    truth = ModelTruth(models[0])
    strange = [truth.row(row, [draw.randrange(VOCAB_SIZE) for _ in range(2)]) for row in case.rows]
    assert fitting(strange) == [set(), set()]
    evidence = Evidence(*models, case_of(prompts=prompts[:1], max_new_tokens=18), worse[:1])
    assert fits(evidence, known, partly=True) == set()  # in one row it may be chance


def test_a_known_edit_does_not_fit_partly_where_another_explains_all() -> None:
    """The newest token is committed twice, which the bonus of the column before resembles."""
    pair = checkpoint("full").built
    assert pair
    prompts = ((140, 165, 130, 123, 135, 224, 46), (45, 103, 65, 216, 148, 190, 22, 226, 192, 187))
    rows = tuple(EngineRow(prompt, RowOptions(limit)) for prompt, limit in zip(prompts, (11, 7), strict=True))
    outputs = [[179, 60, 99, 175, 175, 96, 203, 157, 231, 231, 168], [88, 88, 82, 140, 180, 91, 91]]
    case = EngineCase(rows, num_draft_tokens=3, checkpoint=checkpoint("full").name)
    evidence = Evidence(pair[0].function, pair[1].function, case, outputs)
    found = abduce(evidence)
    assert found is not None
    assert found.search.edit == "newest-twice"
    for known in (["bonus-of-column-before"], ["bonus-of-column-before", "pads-seen"]):
        assert fits(evidence, known, partly=True) == set()
    assert fits(evidence, ["newest-twice"]) == {"newest-twice"}


@pytest.mark.parametrize(("kind", "since"), [("window", 31), ("window", 32), ("full", 0)])
@pytest.mark.rest
def test_rejected_tokens_that_stay_in_the_caches_of_both_models_are_named(kind: str, since: int) -> None:
    """With a window as in ml-explore/mlx-lm#1423: a ring that has come round is not rolled back, nor is the draft's."""
    pair = checkpoint(kind).built
    assert pair
    target, draft = pair[0].function, pair[1].function
    rows = [EngineRow(tuple(range(n, n + 27)), RowOptions(16)) for n in (3, 90)]
    case = EngineCase(tuple(rows), num_draft_tokens=3, checkpoint=checkpoint(kind).name)

    def decoded(since: float) -> list[list[int]]:
        return [_both_keep(target, draft, row, 3, since) for row in rows]

    assert abduce(Evidence(target, draft, case, decoded(float("inf")))) is None
    found = abduce(Evidence(target, draft, case, decoded(since)))
    assert found is not None
    assert (found.component, found.kind, found.open) == ("cache", "stale-entry", False)


def _both_keep(target: Function, draft: Function, row: EngineRow, k: int, since: float) -> list[int]:
    """The output of an engine with one row; it takes nothing back in a cache of more than ``since`` tokens."""
    output: list[int] = []
    seen, known = list(row.prompt[:-1]), list(row.prompt[:-1])
    fed = new = [row.prompt[-1]]
    while len(output) < row.options.max_new_tokens:
        drafts: list[int] = []
        for _ in range(k):
            known += new
            new = [draft.next(known)]
            drafts += new
        seen += [*fed, *drafts]
        wanted = [target.next(seen[: len(seen) - k + column]) for column in range(k + 1)]
        accepted = agreeing(drafts, wanted)
        output += wanted[: accepted + 1]
        fed = [wanted[accepted]]
        new = fed if accepted < k else [drafts[-1], *fed]
        if len(seen) <= since:
            del seen[len(seen) - k + accepted :]
        if len(known) <= since:
            del known[len(known) - max(0, k - accepted - 1) :]
    return output[: row.options.max_new_tokens]
