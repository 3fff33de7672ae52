"""Engines that sample, on the checkpoints: laws, verdicts, the smallest request, and what a replay says."""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from clock import CHECKPOINT, Clock

from eqcheck.audit.lanes import lanes_of
from eqcheck.audit.loop import Campaign
from eqcheck.catalogue.samplers import RIGHT, SAMPLED_FAULTS
from eqcheck.catalogue.samplers.sampler_engine import sampler
from eqcheck.contract import registry
from eqcheck.contract.decoders import Decoder, Request, RowOptions
from eqcheck.contract.errors import CaseError
from eqcheck.core.case.engine import EngineRow
from eqcheck.core.case.sampling import ENGINE_REGIMES as REGIMES
from eqcheck.core.case.sampling import SampledEngineCase
from eqcheck.core.explanation.text import render
from eqcheck.core.result.findings import Audit, Options
from eqcheck.core.result.outcome import Outcome
from eqcheck.core.store.casefile import read_case
from eqcheck.engines.checkpoints.folders import checkpoint
from eqcheck.engines.checkpoints.row_judge import Judge, truth
from eqcheck.report.build import write
from eqcheck.sampling.betting.wealth import Wealth
from eqcheck.sampling.decode import laws_of
from eqcheck.sampling.drawing import BLOCK, SampledEngineCases
from eqcheck.sampling.engine_target import EngineTarget, _judged
from eqcheck.sampling.judge import judged
from eqcheck.sampling.lane import SampledLane
from eqcheck.sampling.transparent_target import SINGLE, TransparentTarget

TAKES = ("temperature", "top-k", "top-p", "min-p", "seeds", "ngram")


@dataclass
class Local:
    """What decodes in this process, in place of an engine's own."""

    decode: Any
    judge: Any
    given_up: set[str] = field(default_factory=set)
    note: str = ""
    version: str = ""

    def try_case(self, case: Any, timeout: float | None = None, *, opinion: bool = False) -> Outcome:
        entropy = getattr(case, "entropy", 0)
        random.seed(entropy)
        torch.manual_seed(entropy)
        with torch.no_grad():
            dtype = self.judge.args[1]
            pair = checkpoint(case.checkpoint, dtype)
            models = pair.models(getattr(torch, dtype) if pair.built else torch.float64)
            outputs = self.decode(*models, case.request())
        outcome: Outcome = self.judge(case, {"outputs": outputs, "observed": {"drafted": 1}})
        return outcome

    def outcomes(self, cases: Iterable[Any]) -> Iterator[Outcome]:
        return map(self.try_case, cases)

    def renew(self) -> bool:
        return False


class LocalTarget(EngineTarget):
    @contextmanager
    def drawing(self, lane: SampledLane) -> Iterator[Any]:
        dtype = self.decoder.dtype
        yield Local(self.decoder, partial(_judged, Judge(dtype), dtype))


def audited(decoder: Decoder, cases: int, **options: Any) -> tuple[SampledLane, Audit]:
    lane = SampledLane(decoder, Options(cases=cases, seed=1, **options), LocalTarget)
    Campaign(lane, lambda event: None).run()
    return lane, lane.result


def planted(name: str) -> Decoder:
    fault = next(fault for fault in SAMPLED_FAULTS if fault.name == name)
    return fault.decoder("per_row")


def right(name: str) -> Decoder:
    return sampler(RIGHT[name], "per_row", name)


@pytest.mark.rest
def test_cases_come_back_from_json_and_every_regime_is_drawn() -> None:
    source = SampledEngineCases(0, TAKES, promise="repeatable")
    cases = list(islice(source.cases(), 5 * BLOCK))
    assert {case.regime for case in cases} == set(REGIMES)
    assert all(SampledEngineCase.from_dict(case.to_dict()) == case for case in cases)
    assert {case.drafting for case in cases if case.regime == "ngram"} == {"ngram"}
    assert any(not row.options.temperature for case in cases for row in case.rows)
    assert any(row.options.seed is not None for case in cases for row in case.rows)
    without = SampledEngineCases(0, ("temperature",))
    assert "ngram" not in {case.regime for case in islice(without.cases(), 5 * BLOCK)}
    assert all(row.options.top_k == 0 for case in islice(without.cases(), BLOCK) for row in case.rows)


def test_a_case_drawn_again_asks_for_the_same_with_other_chance() -> None:
    case = next(case for case in SampledEngineCases(0, TAKES).cases() if case.rows[0].options.seed is not None)
    again = case.renewed(random.Random(1))
    assert again.entropy != case.entropy
    assert [replace(row.options, seed=None) for row in again.rows] == [
        replace(row.options, seed=None) for row in case.rows
    ]
    assert again.rows[0].options.seed != case.rows[0].options.seed
    assert [row.options.temperature for row in case.greedy().rows] == [0.0] * len(case.rows)
    assert case.greedy().lane == "engine"
    assert case.of([1]).rows == (case.rows[1],)


@pytest.mark.parametrize(
    ("name", "value"), [("regime", "near"), ("entropy", -1), ("promise", "all"), ("order", ()), ("crosses_after", -1)]
)
def test_a_bad_field_is_one_clear_error(name: str, value: Any) -> None:
    case = SampledEngineCases(0, TAKES).case(0)
    with pytest.raises(CaseError, match=name):
        replace(case, **{name: value})


def sampled_row(**options: Any) -> SampledEngineCase:
    asked = RowOptions(20, temperature=0.7, **options)
    return SampledEngineCase((EngineRow((5, 7, 11), asked), EngineRow((2,), asked)))


def test_a_position_is_skipped_for_what_comes_before_it_and_the_law_is_that_of_the_prefix() -> None:
    case = sampled_row(top_k=8, top_p=0.9)
    numbers = np.random.default_rng(3).integers(0, 256, (2, 20)).tolist()
    whole, part = laws_of(case, numbers, "float32"), laws_of(case, [row[:7] for row in numbers], "float32")
    for number in (0, 1):
        one, other = whole[number].row, part[number].row
        np.testing.assert_allclose(one.p[:7], other.p, atol=1e-12)
        if number == 0:  # before a later row stand all tokens of this one
            assert one.skip[:7].tolist() == other.skip.tolist()
        assert (np.asarray(one.eps) > 0).all()
    changed = laws_of(case, [[*row[:7], *((token + 1) % 256 for token in row[7:])] for row in numbers], "float32")
    one, other = whole[0].row, changed[0].row
    assert np.asarray(one.eps)[:8].tolist() == np.asarray(other.eps)[:8].tolist()
    assert one.skip[:8].tolist() == other.skip[:8].tolist()


def test_a_token_beyond_a_cut_by_what_float16_rounds_is_not_impossible_there() -> None:
    """A right engine in float16 emitted it: it is 2.377 below the likeliest, and a min-p of 0.1 cuts at 2.303."""
    row = EngineRow((33,), RowOptions(19, temperature=1.0, min_p=0.1))
    case = SampledEngineCase((row,), checkpoint=checkpoint("full").name, regime="flat")
    tokens = [92, 147, 5, 174, 72, 198, 199, 160, 43, 179, 132, 125, 140, 114, 224, 28, 76, 109, 215]
    impossible = {dtype: laws_of(case, [tokens], dtype)[0].row.impossible for dtype in ("float16", "bfloat16")}
    assert impossible == {"float16": [], "bfloat16": [16]}


def test_what_float32_changes_is_well_within_the_bound() -> None:
    case = sampled_row()
    outputs = np.random.default_rng(4).integers(0, 256, (2, 20)).tolist()
    exact, single = laws_of(case, outputs, "float64"), laws_of(case, outputs, "float32")
    target = checkpoint().models(torch.float32)[0]
    for number, row in enumerate(case.rows):
        ids = torch.tensor([[*row.prompt, *outputs[number]]])
        with torch.no_grad():  # one row alone, in another order of additions than all together
            scores = target(ids).logits[0, len(row.prompt) - 1 : -1].double()
        p = (scores / 0.7).softmax(-1).numpy()
        right = exact[number].row.p
        off = np.abs(np.where(right > 1e-7, p / right - 1, 0)).max(-1)
        assert (off <= np.asarray(single[number].row.eps)).all()
        assert np.asarray(exact[number].row.eps).max() < 1e-8


def test_how_a_sampled_row_ends_is_judged_for_certain() -> None:
    judge = Judge("float64")
    case = replace(sampled_row(eos_token_ids=(9,)))
    good = [[1] * 19 + [9], [4, 9]]

    def kind(outputs: list[list[int]]) -> str | None:
        return judged(judge, "float64", case, {"outputs": outputs}).fingerprint

    assert kind(good) is None
    assert kind([good[0], [4]]) == "bookkeeping/premature-stop"
    assert kind([good[0], [4, 9, 9]]) == "bookkeeping/past-eos"
    assert kind([[1] * 21, good[1]]) == "bookkeeping/over-length"
    assert kind([[1] * 20]) == "crash/invalid-output:outputs"
    for outputs, told in (
        ([good[0], [4]], "^^^ new token 1|Cause 1 of 20 tokens were returned, and the last is not an EOS."),
        ([good[0], [4, 9, 9]], "^ new token 2 (an EOS)|Cause The row continues with 1 token after its EOS."),
        ([[1] * 21, good[1]], "^ new token 20|Cause The row has 21 tokens; max_new_tokens is 20."),
    ):
        explanation = judged(judge, "float64", case, {"outputs": outputs}).explanation
        assert explanation is not None
        text = " ".join(render(explanation).split())
        assert all(one in text for one in told.split("|")), text
        assert not re.search("expected|None|correct|right|and then", text)


def test_a_token_without_probability_needs_no_evidence() -> None:
    case = sampled_row(top_k=3)
    row = laws_of(case, [[1] * 20, [1] * 20], "float32")[0].row
    never = int(np.flatnonzero(row.p[0] == 0)[0])
    outcome = judged(Judge("float32"), "float32", case, {"outputs": [[never] * 20, [1] * 20]})
    assert outcome.fingerprint == "sampling/impossible-token"


@pytest.mark.parametrize("name", ["rejection", "one-hot", "sample-match"])
@pytest.mark.rest
def test_a_right_sampler_passes(name: str) -> None:
    _, result = audited(right(name), 14)
    assert result.evidence is not None
    assert (result.findings, result.evidence.verdict) == ([], "equivalent")
    assert result.evidence.greatest < 100
    assert result.evidence.tokens > 600
    assert any("VACUOUS" in warning for warning in result.warnings)


@pytest.mark.rest
def test_rounding_to_float32_is_no_violation() -> None:
    def rounded(target: Any, draft: Any, request: Request) -> Any:
        return right("rejection")(*checkpoint().models(torch.float32), request)

    _, result = audited(replace(right("rejection"), function=rounded, dtype="float32"), 10)
    assert result.evidence is not None
    assert (result.findings, result.evidence.verdict) == ([], "equivalent")


def in_bfloat16(decoder: Decoder) -> Decoder:
    return replace(decoder, dtype="bfloat16", kinds=("full",))


def test_the_laws_of_a_built_checkpoint_are_those_of_its_scores_in_bfloat16() -> None:
    case = SampledEngineCases(0, ("temperature",), kind="full").case(0)
    outputs = np.random.default_rng(4).integers(0, 256, (len(case.rows), 12)).tolist()
    laws = laws_of(case, outputs, "bfloat16")
    for which, name in enumerate(("p", "q")):
        model = checkpoint("full", "bfloat16").models(torch.bfloat16)[which]
        for number, own in laws.items():
            ids = torch.tensor([[*case.rows[number].prompt, *outputs[number]]])
            with torch.no_grad():
                scores = model(ids).logits[0, len(case.rows[number].prompt) - 1 : -1]
            p = (scores.float() / case.rows[number].options.temperature).softmax(-1).double().numpy()
            right = getattr(own.row, name)  # up to an EOS
            assert (np.abs(p[: len(right)] / right - 1).max(-1) <= np.asarray(own.row.eps)).all()


@pytest.mark.rest
def test_rows_of_an_engine_in_bfloat16_sample_on_a_built_checkpoint() -> None:
    _, result = audited(in_bfloat16(right("rejection")), 14)
    assert result.evidence is not None
    assert (result.findings, result.evidence.verdict) == ([], "equivalent")
    assert result.evidence.tokens > 600
    assert {case.case.checkpoint.partition("-")[0] for case in result.outcomes} == {"full"}
    options = Options(budget=100.0, python="python3")
    one = replace(in_bfloat16(right("rejection")), checkpoints=True)
    assert [len(lanes_of(its, options)) for its in (one, replace(one, kinds=("window",)))] == [2, 1]


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Audits that end soon after the evidence is clear."""
    monkeypatch.setattr(EngineTarget, "naming", (4, 900))
    monkeypatch.setattr("eqcheck.sampling.engine_target.INVESTIGATING_S", 6.0)
    Clock().put(monkeypatch, CHECKPOINT).charge(monkeypatch, Local, "try_case", 0.02)


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize(
    ("name", "fingerprint"),
    [("bonus-from-last-draft", "sampling/bonus-column"), ("greedy-draft", "sampling/draft-law")],
)
@pytest.mark.rest
def test_a_fault_is_named_made_small_and_seen_again(name: str, fingerprint: str, tmp_path: Path) -> None:
    lane, result = audited(planted(name), 40)
    finding = next(one for one in result.violations if one.explanation.component == "sampling")
    assert finding.fingerprint == fingerprint
    case = finding.case
    assert len(case.rows) == 1
    assert 0 < case.crosses_after < 6000
    assert finding.needs[:1] == ("temperature",)
    assert "these tokens are of this request alone, sampled again and again; " in finding.explanation.detail
    assert re.search(r"in the whole audit the evidence is 10\^[\d.]+ after [\d,]+ tokens", finding.explanation.detail)
    assert ("greedy rows are wrong, too" in finding.explanation.detail) == (name == "bonus-from-last-draft")
    report = write(result, tmp_path)
    assert fingerprint in [violation.fingerprint for violation in report.violations]
    stored = read_case(next((tmp_path / "cases").glob(f"sampling-{fingerprint.partition('/')[2]}*.json")))
    assert stored.case == case
    again, _ = SampledLane(planted(name), Options(), LocalTarget).again(case, False)
    assert again.failed
    assert again.fingerprint in ("sampling/stray-law", "sampling/impossible-token")  # too few tokens for a name
    fixed, _ = SampledLane(right("rejection"), Options(), LocalTarget).again(replace(case, crosses_after=60), False)
    assert not fixed.failed
    assert fixed.observed["tokens"] >= 600
    assert lane.gathered.wealth.crossed
    assert lane.gathered.wealth.by_regime()["std"] > np.log(1e6)


@pytest.mark.usefixtures("short")
@pytest.mark.long
def test_a_wrong_law_in_bfloat16_is_named() -> None:
    _, result = audited(in_bfloat16(planted("greedy-draft")), 40)
    (finding,) = (one for one in result.violations if one.explanation.component == "sampling")
    assert finding.fingerprint == "sampling/draft-law"
    assert finding.case.checkpoint.startswith("full")


@pytest.mark.usefixtures("short")
@pytest.mark.rest
def test_what_is_wrong_with_greedy_rows_too_is_not_called_sampling() -> None:
    def late(target: Any, draft: Any, request: Request) -> Any:
        """Every row loses the first token of its prompt."""
        shorter = [prompt[1:] or prompt for prompt in request.prompts]
        return right("rejection")(target, draft, replace(request, prompts=shorter))

    _, result = audited(replace(right("rejection"), function=late), 8)
    assert result.violations
    assert {finding.explanation.component for finding in result.violations}.isdisjoint({"sampling"})


@pytest.mark.usefixtures("short")
@pytest.mark.rest
def test_a_seed_that_is_ignored_is_named_where_two_cases_show_it() -> None:
    kept = replace(right("rejection"), seeds="repeatable")
    assert not audited(kept, 12)[1].violations
    (ignored,) = audited(replace(planted("seed-ignored"), seeds="repeatable"), 16)[1].violations
    assert ignored.fingerprint == "sampling/seed-ignored"
    assert ignored.count > 1
    assert not ignored.minimised


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("seeds", ["repeatable", "speculation"])
@pytest.mark.rest
def test_a_promise_that_breaks_with_greedy_rows_too_is_not_called_sampling(seeds: str) -> None:
    rng = random.Random(3)

    def leaking(target: Any, draft: Any, request: Request) -> Any:
        """Rows see a token before their prompt: another one for each request, or for each K."""
        seen = rng.randrange(200) if seeds == "repeatable" else request.num_draft_tokens
        prompts = [[seen, *prompt] for prompt in request.prompts]
        return right("rejection")(target, draft, replace(request, prompts=prompts))

    _, result = audited(replace(right("rejection"), function=leaking, seeds=seeds), 16)
    assert {finding.fingerprint for finding in result.violations} == {"unattributed/unattributed"}
    assert not [said for said in result.warnings if ":speculation" in said]


def test_who_samples_on_checkpoints_is_audited_in_both_lanes() -> None:
    decoder = replace(right("rejection"), checkpoints=True)
    options = Options(budget=100.0, python="python3")
    assert [lane.result.lane for lane in lanes_of(decoder, options)] == ["engine", "engine-sampling"]
    assert [lane.result.options.budget for lane in lanes_of(decoder, options)] == [50.0, 50.0]
    assert len(lanes_of(replace(decoder, capabilities=(), seeds="none"), options)) == 1


def test_one_change_of_float32_for_all_tokens_is_not_needed() -> None:
    case = sampled_row()
    outputs = np.random.default_rng(4).integers(0, 256, (2, 20)).tolist()
    rows = [one.row for one in laws_of(case, outputs, "float32").values()]
    exact, rounded = Wealth(), Wealth()
    exact.add([replace(row, eps=0.0) for row in rows], "std")
    rounded.add(rows, "std")
    assert rounded.log_evidence < exact.log_evidence


@pytest.mark.rest
def test_the_released_library_draws_from_the_law_and_its_entropy_repeats_it() -> None:
    decoder = registry.load("transformers")
    lane = SampledLane(decoder, Options(cases=6, python=sys.executable), EngineTarget)
    with lane.drawing():
        case = lane.target.source.case(0)
        first, again, other = (
            lane.running.try_case(one).outputs for one in (case, case, case.renewed(random.Random(1)))
        )
    assert first == again
    assert first != other


def test_a_wrong_greedy_row_is_said_to_be_expected_as_the_target_emits_it() -> None:
    greedy = EngineRow((5, 7), RowOptions(4))
    case = SampledEngineCase((sampled_row().rows[0], greedy))
    right_row = truth().row(greedy)
    wrong = [*right_row[:2], (right_row[2] + 1) % 256, 0]
    outcome = judged(Judge("float32"), "float32", case, {"outputs": [[1] * 20, wrong]})
    assert outcome.explanation is not None
    assert outcome.fingerprint == "unattributed/unattributed:greedy-row"
    assert (outcome.explanation.row, outcome.explanation.token_index) == (1, 2)
    assert list(outcome.explanation.expected_row) == right_row
    assert judged(Judge("float32"), "float32", case, {"outputs": [[1] * 20, right_row]}).explanation is None


def test_decoders_are_allowed_to_round_to_float32_on_transparent_models_too() -> None:
    single = replace(right("rejection"), dtype="float32")
    assert [SampledLane(one, Options(), TransparentTarget).gathered.eps for one in (right("rejection"), single)] == [
        SINGLE,
        SINGLE,
    ]
