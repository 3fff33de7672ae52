"""Dictated drafts on engines: what is proposed, whether it was played, and what is said where it was not."""

from __future__ import annotations

import sys
from dataclasses import replace
from importlib import import_module
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from option_right import decoded
from thread_faults import Slots

from eqcheck.audit.coverage_words import CHECKPOINT
from eqcheck.contract import registry
from eqcheck.contract.decoders import RowOptions, decoder
from eqcheck.contract.errors import CaseError
from eqcheck.contract.profiles import WIDE
from eqcheck.core.case.engine import SILENT, EngineCase, EngineRow
from eqcheck.core.explanation.records import Explanation
from eqcheck.core.result.findings import Audit, Finding, Options
from eqcheck.engines import drawing
from eqcheck.engines.abduction import Evidence, abduce
from eqcheck.engines.checkpoints import dictation
from eqcheck.engines.checkpoints.folders import checkpoint
from eqcheck.engines.checkpoints.row_judge import Judge, truth
from eqcheck.engines.checkpoints.steps import Steps
from eqcheck.engines.conclusions import conclusions
from eqcheck.engines.drawing import EngineCases
from eqcheck.engines.engine_outcome import EngineOutcome, judged
from eqcheck.engines.investigate import minimise, needs, without
from eqcheck.engines.lane import worker
from eqcheck.engines.script import script
from eqcheck.report.build import report_of
from eqcheck.report.markdown import to_markdown
from eqcheck.sampling.drawing import SampledEngineCases

CLAIMS = ("row-limits", "row-eos", "dictated-drafts")
Round = tuple[list[int], list[int]]  # the draft tokens, and the target's choice before each of them and after the last


class Engine:
    """A right engine that says what its rounds were; what subclasses change is what goes wrong."""

    def drafts(self, drafts: list[int], start: int, k: int) -> list[int]:
        return drafts[start : start + k]

    def accepted(self, count: int, drafted: int) -> int:
        return count

    @torch.no_grad()
    def answer(self, case: EngineCase) -> dict[str, Any]:
        """As the worker of an engine answers."""
        found = [self._row(case, *of_row) for of_row in zip(case.rows, dictation.drafts(case), strict=True)]
        return {"outputs": [new for new, _ in found], "observed": {"rounds": [rounds for _, rounds in found]}}

    def _row(self, case: EngineCase, row: EngineRow, drafts: tuple[int, ...]) -> tuple[list[int], list[Any]]:
        options, new, rounds = row.options, list[int](), list[Any]()
        while len(new) < options.max_new_tokens and not set(new) & set(options.eos_token_ids):
            start = len(new)
            drafted = self.drafts(list(drafts), start, case.num_draft_tokens) if start else []
            best = truth(case.checkpoint).choices(row, [*new, *drafted])[start:].tolist()
            count = self.accepted(dictation.agreeing(drafted, best), len(drafted))
            new += [*drafted[:count], best[count]]
            end = next((i + 1 for i, token in enumerate(new) if token in options.eos_token_ids), len(new))
            new = new[: min(end, options.max_new_tokens)]
            if start:
                rounds.append([start, drafted, len(new)])
        return new, rounds


class Late(Engine):
    def drafts(self, drafts: list[int], start: int, k: int) -> list[int]:
        return drafts[start + 1 : start + 1 + k]


class Wasteful(Engine):
    def accepted(self, count: int, drafted: int) -> int:
        return max(0, count - 1)


class Trusting(Engine):
    def accepted(self, count: int, drafted: int) -> int:
        return min(count + 1, drafted)


class Silent(Engine):
    def answer(self, case: EngineCase) -> dict[str, Any]:
        return {**super().answer(case), "observed": {}}


@pytest.fixture(autouse=True)
def _one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    monkeypatch.setattr(drawing, "DICTATED_EVERY", 1_000_000)  # every block but the first
    monkeypatch.setattr(drawing, "BLOCK", 8)
    monkeypatch.setattr(drawing, "REACHING", 0)


def _decoded(engine: Engine, count: int = 6) -> Audit:
    """What an audit concludes from so many cases."""
    found = Audit(decoder(name="played", checkpoints=True, capabilities=CLAIMS)(engine.answer), Options(), "engine")
    found.claimed_families = (EngineCase.family,)
    judge = Judge("float64")
    found.outcomes = [judged(judge, case, engine.answer(case)) for case in _cases(count)]
    conclusions(found)
    return found


def _cases(count: int) -> list[EngineCase]:
    drawn = EngineCases(2, CLAIMS).cases()
    return list(islice((case for case in drawn if case.drafting == "dictated"), count))


def test_every_pattern_that_is_asked_for_is_seen_to_be_played(tmp_path: Path) -> None:
    found = _decoded(Engine(), 24)
    assert not any(outcome.failed for outcome in found.outcomes)
    rounds = found.facts["dictated_rounds"]
    assert sum(asked for asked, _ in rounds.values()) > 100
    assert all(asked == played for asked, played in rounds.values())
    names = ("dictated", "dictated_played", "ragged_round", "all_rejected", "all_accepted")
    for name in (*names, "eos_inside_block", "eos_rejected", "limit_inside_block"):
        assert name in CHECKPOINT.counters
        assert found.coverage.get(name, 0) > 0, name
    assert not [warning for warning in found.warnings if "round" in warning]
    text = to_markdown(report_of(found, tmp_path))
    assert "rounds with dictated drafts ran as dictated" in text


OTHERS, LOST = "got other draft tokens than the dictated ones", "correct draft tokens were not accepted"
NONE = "VACUOUS: draft tokens"


@pytest.mark.parametrize(
    ("engine", "said"), [(Engine(), []), (Late(), [OTHERS, NONE]), (Wasteful(), [LOST]), (Silent(), [NONE])]
)
def test_what_is_wrong_with_right_rows_is_told_as_what_it_is(engine: Engine, said: list[str]) -> None:
    found = _decoded(engine)
    assert not any(outcome.failed for outcome in found.outcomes)
    assert [what for what in (OTHERS, LOST, NONE) if any(what in warning for warning in found.warnings)] == said


@pytest.mark.long
def test_a_rejected_draft_that_is_emitted_is_named() -> None:
    found = _decoded(Trusting(), 6)
    function = checkpoint("full").built
    assert function is not None
    target = function[0].function
    named = [abduce(Evidence(target, None, one.case, one.outputs or ())) for one in found.outcomes if one.failed]
    assert len(named) > 2
    assert {one.component for one in named if one} == {"bookkeeping"}
    assert {one.kind for one in named if one} <= {"over-accept", "unverified"}
    assert sum(one is not None for one in named) > len(named) / 2


def test_the_drafts_reach_a_decoder_in_its_process(tmp_path: Path) -> None:
    (tmp_path / "echo.py").write_text("""
import eqcheck

@eqcheck.decoder(name="echo", checkpoints=True, dtype="float64", capabilities=("dictated-drafts",))
def echo(target, draft, request):
    return [drafts[: row.max_new_tokens] for row, drafts in zip(request.rows, request.drafts)]
""")
    row = EngineRow((1, 2, 3), RowOptions(6), (2, 2))
    with worker(registry.load(str(tmp_path / "echo.py")), sys.executable) as echo:
        assert echo.try_case(EngineCase((row,), 2, drafting="dictated")).status == "equivalent"
        wrong = EngineCase((replace(row, accepts=(1, 2)),), 2, drafting="dictated")
        assert echo.try_case(wrong).wrong[0].first == 2


@pytest.mark.rest
def test_drafts_are_the_targets_tokens_but_where_a_round_ends() -> None:
    for case in _cases(6):
        k = case.num_draft_tokens
        for row, drafts in zip(case.rows, dictation.drafts(case), strict=True):
            endless = replace(row, options=replace(row.options, eos_token_ids=()))
            right, count = truth(case.checkpoint).row(endless), row.options.max_new_tokens
            assert len(drafts) == count + k
            wrong = [draft != token for draft, token in zip(drafts, right, strict=False)]
            assert (
                wrong
                == [drafted is dictation.Drafted.WRONG for drafted in dictation.planned(row, k, count)][: len(right)]
            )
    assert dictation.drafts(replace(case, drafting="model")) == ()


def test_rounds_that_differ_from_what_is_asked_are_counted_by_what_differs() -> None:
    row = EngineRow((1, 2, 3), RowOptions(9), (2, 0))
    case = EngineCase((row,), 2, drafting="dictated")
    output = truth().row(row)
    (drafts,) = dictation.drafts(case)
    right = [[1, list(drafts[1:3]), 4], *([n, list(drafts[n : n + 2]), n + 1] for n in range(4, 9))]
    counts, coverage = dictation.played(case, [output], [right])
    for every in (dictation.ASKED, dictation.PLAYED):
        assert [counts[every._replace(accepted=accepted, of=2)] for accepted in range(3)] == [3, 0, 1]
        assert counts[every] == 4
    assert counts.total() == 16
    assert coverage == {"dictated_played", "all_accepted", "all_rejected"}
    for rounds, name, number in (
        ([[1, [drafts[1], 0], 3], *right[1:]], dictation.OTHERS, 1),
        ([[1, list(drafts[1:3]), 2], *right[1:]], dictation.FEWER, 1),
        ([[1, [drafts[1]], 3], *right[1:]], dictation.PLAYED, 3),
        ([], dictation.PLAYED, 0),
    ):
        counts, coverage = dictation.played(case, [output], [rounds])
        assert counts[name] == number
        assert "dictated_played" not in coverage
    less = [[1, list(drafts[1:3]), 2], *right[1:]]
    assert dictation.played(replace(case, token_budget=16), [output], [less])[0][dictation.FEWER] == 0


def test_an_engine_that_never_drafts_is_asked_for_no_drafts() -> None:
    greedy = EngineCases(1, ("no-drafts", "prefix-caching", "kv-blocks"))
    assert {greedy.case(number).drafting for number in range(0, 400, 7)} == {"none"}
    sampled = SampledEngineCases(1, ("no-drafts", "temperature"))
    assert {sampled.case(number).drafting for number in range(12)} == {"none"}


def test_every_block_is_dictated_for_who_takes_no_other_drafts() -> None:
    kinds = {
        claim: [EngineCases(1, ("ngram", claim)).case(block * drawing.BLOCK).drafting for block in range(12)]
        for claim in ("dictated-drafts", "only-dictated-drafts")
    }
    assert kinds["dictated-drafts"][0] == "model"
    assert set(kinds["dictated-drafts"]) == {"model", "ngram", "dictated"}
    assert kinds["only-dictated-drafts"][0] == "dictated"
    assert "model" not in kinds["only-dictated-drafts"]
    case = _cases(1)[0]
    smallest = minimise(case, lambda one: True, 20.0, ("only-dictated-drafts",))
    assert (smallest.drafting, smallest.rows[0].accepts) == ("dictated", ())


def test_a_case_with_dictated_drafts_is_stored_and_bad_ones_are_refused() -> None:
    for case in _cases(3):
        assert EngineCase.from_dict(case.to_dict()) == case
    with pytest.raises(CaseError, match="accepts"):
        EngineRow((1,), RowOptions(3), (-2,))
    data = EngineCase((EngineRow((1,), RowOptions(3)),)).to_dict()
    data["rows"][0]["accepts"] = "3"
    with pytest.raises(CaseError, match=r"rows\[0\].accepts"):
        EngineCase.from_dict(data)


def test_minimising_makes_the_table_dull_or_does_without_it() -> None:
    drawn = (case for case in _cases(24) if any(2 in row.accepts for row in case.rows))
    case = replace(next(drawn), num_draft_tokens=3)
    assert "dictated-drafts" in needs(case)
    bare = without(case, ("dictated-drafts",))
    assert (bare.drafting, {row.accepts for row in bare.rows}) == ("model", {()})
    smallest = minimise(case, lambda one: one.drafting == "dictated", 20.0)
    assert (smallest.drafting, smallest.rows[0].accepts, len(smallest.rows)) == ("dictated", (), 1)
    kept = minimise(case, lambda one: any(2 in row.accepts for row in one.rows), 20.0)
    assert next(row.accepts for row in kept.rows if 2 in row.accepts)[-1] == 2


def test_a_script_has_the_drafts() -> None:
    (case,) = _cases(1)
    finding = Finding(EngineOutcome(case, "violation"), Explanation("bookkeeping", "over-accept"))
    text = script(registry.load("vllm"), "1", finding)
    assert repr(dictation.drafts(case)) in text
    assert "accepts" not in text


def test_the_proposer_in_vllm_finds_each_request_and_how_far_it_is() -> None:
    config = SimpleNamespace(speculative_config=SimpleNamespace(num_speculative_tokens=2))
    proposer: Any = import_module("eqcheck.adapters.vllm").Dictated(config)
    batch = SimpleNamespace(req_ids=["1-a", "0-b", "2-c"], num_prompt_tokens=[3, 2, 4])
    proposer.runner = SimpleNamespace(input_batch=batch)
    proposer.drafts, proposer.proposed = [[10, 11, 12, 13], [20, 21, 22, 23], [30, 31]], {}
    assert proposer.propose([[5], [6, 7], []], [4, 4, 2], None) == [[21, 22], [12, 13], []]
    assert proposer.proposed[1] == {1: [21, 22]}
    assert proposer.proposed[0] == {2: [12, 13]}


def test_steps_of_the_random_checkpoint_are_its_own_scores() -> None:
    """Rows of unequal lengths grow together, and each has the scores that transformers gives it alone."""
    model = checkpoint().models()[0]
    texts = [[7], [1, 2, 3, 4, 5], [9, 8]]
    steps = Steps(model, texts)
    scores = steps.first
    for _ in range(4):
        for text, score in zip(texts, scores, strict=True):
            with torch.no_grad():
                assert torch.allclose(score, model(torch.tensor([text])).logits[0, -1], rtol=0, atol=1e-12)
        for text, score in zip(texts, scores, strict=True):
            text.append(int(score.argmax()))
        scores = steps.next([text[-1] for text in texts])


def test_rows_without_options_are_those_with_options_that_change_nothing() -> None:
    """The short way of a built checkpoint is that of its table of scores."""
    alone = truth("full")
    plain, idle = EngineRow((1, 2, 3), RowOptions(8)), EngineRow((1, 2, 3), RowOptions(8, logit_bias=((250, 0.0),)))
    assert alone.row(plain) == alone.row(idle)
    assert alone.best_two([plain], 8) == alone.best_two([idle], 8)


TAKES = ("row-limits", "dictated-drafts", "only-dictated-drafts", "silent-rounds")


def _silent(count: int, *takes: str) -> list[EngineCase]:
    return list(islice(EngineCases(3, takes or TAKES, bounds=WIDE, latest=True).cases(), count))


def test_rounds_without_drafts_are_drawn_where_they_are_declared() -> None:
    """Of all rows, of one row, or of all but one; a frozen profile draws what it always drew."""
    drawn = [case for case in _silent(160) if any(SILENT in row.accepts for row in case.rows)]
    assert 30 < len(drawn) < 110
    quiet = [sum(SILENT in row.accepts for row in case.rows) for case in drawn if len(case.rows) > 2]
    rows = [len(case.rows) for case in drawn if len(case.rows) > 2]
    assert any(count == size for count, size in zip(quiet, rows, strict=True))
    assert any(count == 1 for count in quiet)
    assert any(count == size - 1 for count, size in zip(quiet, rows, strict=True))
    assert not any(SILENT in row.accepts for case in _silent(60, *TAKES[:3]) for row in case.rows)
    frozen = islice(EngineCases(3, TAKES, bounds=WIDE).cases(), 60)
    assert not any(SILENT in row.accepts for case in frozen for row in case.rows)
    assert all(EngineCase.from_dict(case.to_dict()) == case for case in drawn)


def test_a_round_without_drafts_is_one_token_and_counted_as_silent() -> None:
    row = EngineRow((1, 2, 3), RowOptions(7), (2, SILENT, 1))
    case = EngineCase((row, row), 2, drafting="dictated")
    output = truth().row(row)
    drafts, _ = dictation.drafts(case)
    assert dictation.proposal(drafts, 4, 2) == []
    assert [(one.start, one.accepted, one.end) for one in dictation.asked(case, 0, output)] == [
        *[(1, 2, 4), (4, 0, 5), (5, 1, 7)],
    ]
    played = [[1, list(drafts[1:3]), 4], [4, [], 5], [5, list(drafts[5:7]), 7]]
    for told in (played, [played[0], played[2]]):  # an engine may call it no round
        counts, coverage = dictation.played(case, [output] * 2, [told] * 2)
        assert counts[dictation.OTHERS] == counts[dictation.FEWER] == 0
        assert coverage >= {"dictated_played", "silent_for_all", "all_accepted"}
    assert "silent_round" in coverage
    loud = [played[0], [4, [int(output[4])], 5], played[2]]
    counts, _ = dictation.played(case, [output] * 2, [loud] * 2)
    assert counts[dictation.OTHERS] == 2


class Quiet(Slots):
    """In a step in which no row of the batch drafts, a row sees no token of the round before."""

    def context(self, row: Any) -> list[int]:
        text: list[int] = super().context(row)
        behind = row.blocks and len(row.blocks[-1].tokens) > 2 and not any(one.drafts for one in self.live)
        return [*text[:-2], text[-1]] if behind else text


def test_what_fails_in_silent_rounds_alone_is_found_and_needs_them() -> None:
    """As in vllm#56531: a step without drafts reads the state of another column."""
    torch.set_num_threads(1)
    judge = Judge("float64")
    for engine, found in ((Slots(), False), (Quiet(), True)):
        engine.size = 16
        outcomes = [decoded(engine, judge, case) for case in _silent(60)]
        assert any(outcome.failed for outcome in outcomes) == found
        assert not any(decoded(engine, judge, case).failed for case in _silent(60, *TAKES[:3]))
    failing = next(outcome.case for outcome in outcomes if outcome.failed)
    small = minimise(failing, lambda case: decoded(engine, judge, case).failed, 20.0, TAKES)
    assert "silent-rounds" in needs(small)
    assert not decoded(engine, judge, without(small, ("silent-rounds",))).failed
    assert sum(row.accepts.count(SILENT) for row in small.rows) <= len(small.rows)
