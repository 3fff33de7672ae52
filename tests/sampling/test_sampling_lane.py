"""The lane of sampling: what each fault of a sampler is called, and that right samplers pass."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

import eqcheck
from eqcheck.audit.events import CaseDone
from eqcheck.audit.loop import Campaign, audit
from eqcheck.audit.time_budget import Pace
from eqcheck.contract.decoders import Decoder, Request, RowOptions
from eqcheck.contract.errors import CaseError
from eqcheck.core.case.sampling import SampledCase
from eqcheck.core.explanation.records import Explanation
from eqcheck.core.explanation.text import render
from eqcheck.core.law import law
from eqcheck.core.result.findings import Audit, Options
from eqcheck.core.result.outcome import Outcome
from eqcheck.report.build import report_of
from eqcheck.report.content import Content
from eqcheck.report.markdown import to_markdown
from eqcheck.sampling.betting.laws import SampledRow
from eqcheck.sampling.betting.wealth import Wealth
from eqcheck.sampling.decode import decode, trials
from eqcheck.sampling.drawing import DRAWN, SampledCases
from eqcheck.sampling.judge import try_case, wrong_law
from eqcheck.sampling.lane import TO_NAME, TOKENS, SampledLane
from eqcheck.sampling.transparent_target import TransparentTarget

Laws = torch.Tensor
TAKES = ("temperature", "top-k", "top-p", "min-p")


class Sampler:
    """Rejection sampling, row by row and without caches; a fault overrides one method."""

    def __call__(self, target: Any, draft: Any, request: Request) -> list[list[int]]:
        pairs = zip(request.prompts, request.rows, strict=True)
        return [self.row(target, draft, prompt, row, request.num_draft_tokens) for prompt, row in pairs]

    def row(self, target: Any, draft: Any, prompt: list[int], row: RowOptions, k: int) -> list[int]:
        new: list[int] = []
        while not self.done(new, row):
            drafts, laws = list[int](), list[Laws]()
            for _ in range(min(k, row.max_new_tokens - len(new) - 1)):
                scores = draft(input_ids=torch.tensor([prompt + new + drafts]), use_cache=False).logits[:, -1]
                laws.append(self.draft_law(scores, row)[0])
                drafts.append(self.propose(laws[-1]))
            fed = torch.tensor([prompt + new + drafts])
            scores = target(input_ids=fed, use_cache=False).logits[0, len(prompt + new) - 1 :]
            for token in self.round(self.target_law(scores, row), laws, drafts):
                if not self.done(new, row):
                    new.append(token)
        return new

    def round(self, p: Laws, q: list[Laws], drafts: list[int]) -> list[int]:
        for column, token in enumerate(drafts):
            if not self.accepts(p[column], q[column], token):
                return [*drafts[:column], self.correction(p, q, column)]
        return [*drafts, self.bonus(p)]

    def done(self, new: list[int], row: RowOptions) -> bool:
        return len(new) >= row.max_new_tokens or bool(new and new[-1] in row.eos_token_ids)

    def draft_law(self, scores: Laws, row: RowOptions) -> Laws:
        return law(scores.double(), row).probabilities

    def target_law(self, scores: Laws, row: RowOptions) -> Laws:
        return law(scores.double(), row).probabilities

    def pick(self, weights: Laws) -> int:
        return int(torch.multinomial(weights, 1))

    def propose(self, q: Laws) -> int:
        return self.pick(q)

    def accepts(self, p: Laws, q: Laws, token: int) -> bool:
        return bool(torch.rand((), dtype=torch.float64) * q[token] < p[token])

    def correction(self, p: Laws, q: list[Laws], column: int) -> int:
        residual = (p[column] - q[column]).clamp(min=0)
        return self.pick(residual if residual.sum() > 0 else p[column])

    def bonus(self, p: Laws) -> int:
        return self.pick(p[-1])


class Matching(Sampler):
    """The draft's likeliest token, accepted where the target draws the same."""

    def propose(self, q: Laws) -> int:
        return int(q.argmax())

    def round(self, p: Laws, q: list[Laws], drafts: list[int]) -> list[int]:
        drawn = [self.pick(column) for column in p]
        accepted = next((n for n, (a, b) in enumerate(zip(drawn, drafts, strict=False)) if a != b), len(drafts))
        return drawn[: accepted + 1]


def registered(name: str, kind: type[Sampler] = Sampler, **methods: Any) -> Decoder:
    seeds = methods.pop("seeds", "none")
    takes = (*TAKES, "seeds") if seeds != "none" else TAKES
    return eqcheck.decoder(name=name, capabilities=takes, seeds=seeds)(type(name, (kind,), methods))


def audited(decoder: Decoder, cases: int = 60, seed: int = 0) -> Audit:
    campaign = Campaign(SampledLane(decoder, Options(cases=cases, seed=seed), TransparentTarget), lambda event: None)
    campaign.run()
    return campaign.result


@pytest.mark.parametrize("kind", [Sampler, Matching])
@pytest.mark.rest
def test_a_right_sampler_passes(kind: type[Sampler]) -> None:
    result = audited(registered("right", kind), 25)
    assert result.evidence is not None
    assert (result.findings, result.evidence.verdict) == ([], "equivalent")
    assert result.evidence.greatest < 100
    assert result.evidence.tokens > 1000
    assert any("drawn from the draft" in sentence for sentence in result.evidence.excludes)


@pytest.mark.rest
def test_cases_are_counted_up_to_those_asked_for_and_tokens_are_told_because_they_decide() -> None:
    told: list[CaseDone] = []
    lane = SampledLane(registered("right", Sampler), Options(cases=2), TransparentTarget)
    Campaign(lane, lambda event: told.append(event) if isinstance(event, CaseDone) else None).run()
    assert [(event.done, event.total) for event in told] == [(1, 2), (2, 2)]
    # A case is counted when the next one begins.
    assert told[0].tokens < told[1].tokens <= lane.gathered.wealth.tokens


FAULTS: dict[str, tuple[str, dict[str, Any]]] = {
    "halved-coin": (
        "over-acceptance",
        {"accepts": lambda self, p, q, token: bool(torch.rand((), dtype=torch.float64) / 2 * q[token] < p[token])},
    ),
    "residual-unused": ("residual", {"correction": lambda self, p, q, column: self.pick(p[column])}),
    "column-behind": ("correction-column", {"correction": lambda self, p, q, column: self.pick(p[column + 1])}),
    "half": ("threshold-acceptance", {"accepts": lambda self, p, q, token: bool(p[token] >= 0.5 * q[token])}),
    "greedy-draft": ("draft-law", {"propose": lambda self, q: int(q.argmax())}),
    "hot": (
        "target-option",
        {"target_law": lambda self, scores, row: law(scores, RowOptions(1, temperature=float(row.temperature > 0)))[0]},
    ),
}


@pytest.mark.parametrize(("usual", "drawn"), [(True, 7), (False, 3)])
def test_a_run_in_doubt_goes_on_where_nobody_said_how_long_it_is(
    usual: bool, drawn: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The evidence is near its limit until the seventh case."""
    monkeypatch.setattr(Wealth, "verdict", lambda self: "inconclusive" if self.cases < 7 else "equivalent")
    lane = SampledLane(registered("right"), Options(cases=3, usual=usual), TransparentTarget)
    Campaign(lane, lambda event: None).run()
    assert len(lane.result.outcomes) == drawn


def test_what_other_lanes_left_of_the_time_is_taken() -> None:
    pace = Pace(SampledLane(registered("right"), Options(cases=None, budget=10.0), TransparentTarget))
    pace.has_at_least(25.0)
    assert pace.draws_until(100.0) == 125.0
    pace.has_at_least(5.0)
    assert pace.budget == 25.0


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.rest
def test_a_fault_is_found_and_named(name: str) -> None:
    kind, methods = FAULTS[name]
    found = audited(registered(name, **methods), 120).violations
    (finding,) = (one for one in found if one.explanation.component == "sampling")
    assert finding.fingerprint == f"sampling/{kind}"
    assert {one.explanation.component for one in found} <= {"sampling", "bookkeeping"}  # of greedy rows
    assert finding.explanation.facts["tokens"]


@pytest.mark.rest
def test_a_seed_used_for_all_rows_is_shared_noise() -> None:
    def row(self: Sampler, *arguments: Any) -> list[int]:
        torch.manual_seed(7)
        return Sampler.row(self, *arguments)

    (finding,) = audited(registered("one-seed", row=row), 120).violations
    assert finding.fingerprint in ("sampling/shared-noise", "sampling/reused-noise")


@pytest.mark.rest
def test_requests_that_begin_with_the_same_random_numbers_share_them() -> None:
    class Reset(Sampler):
        def __call__(self, target: Any, draft: Any, request: Request) -> list[list[int]]:
            torch.manual_seed(0)
            return super().__call__(target, draft, request)

    (finding,) = audited(registered("reset", Reset), 40).violations  # one case in 16 is drawn again
    assert finding.fingerprint == "sampling/shared-noise:requests"
    assert "the same request with fresh random numbers returns the same" in finding.explanation.detail


@pytest.mark.rest
def test_rows_that_are_greedy_beside_a_greedy_one_share_no_random_numbers() -> None:
    """Twins of such a batch are alike, and yet that is not what is wrong."""

    class Beside(Sampler):
        def __call__(self, target: Any, draft: Any, request: Request) -> list[list[int]]:
            if not all(row.temperature for row in request.rows):
                request = replace(request, rows=tuple(replace(row, temperature=0.0) for row in request.rows))
            return super().__call__(target, draft, request)

    (finding,) = audited(registered("beside", Beside), 60).violations
    assert finding.fingerprint == "sampling/target-option"
    assert "as if a row beside a greedy one were greedy" in finding.explanation.detail


@pytest.mark.rest
def test_a_greedy_answer_is_said_to_be_the_argmax() -> None:
    def best(self: Sampler, scores: Laws, row: RowOptions) -> Laws:
        return law(scores, RowOptions(1)).probabilities

    both: dict[str, Any] = {"target_law": best, "draft_law": best}
    for cases, decoder in ((60, registered("greedy", target_law=best)), (5, registered("greedy", **both))):
        (finding,) = audited(decoder, cases).violations
        assert finding.fingerprint == "sampling/target-option"
        assert "every sampled token is the target's likeliest" in finding.explanation.detail


@pytest.mark.rest
def test_a_wrong_context_is_the_cause_and_not_the_sampling() -> None:
    class Shifted(Sampler):
        def row(self, target: Any, draft: Any, prompt: list[int], row: RowOptions, k: int) -> list[int]:
            def late(input_ids: torch.Tensor, use_cache: bool) -> Any:
                given = {"position_ids": torch.arange(input_ids.shape[1])[None] * 2, "use_cache": use_cache}
                return target(input_ids=input_ids, attention_mask=torch.ones_like(input_ids), **given)

            return super().row(late, draft, prompt, row, k)

    fingerprints = {finding.fingerprint for finding in audited(registered("shifted", Shifted), 10).violations}
    assert fingerprints
    assert fingerprints == {"position/query-position"}


@pytest.mark.rest
def test_a_row_that_ends_too_early_is_bookkeeping() -> None:
    def done(self: Sampler, new: list[int], row: RowOptions) -> bool:
        return Sampler.done(self, new, row) or len(new) >= row.max_new_tokens - 1

    (finding,) = audited(registered("short", done=done), 10).violations
    assert finding.fingerprint == "bookkeeping/premature-stop"


ENDS: dict[str, tuple[Callable[[list[int]], list[int]], tuple[int, ...], list[str]]] = {
    "premature-stop": (
        lambda row: row[:3],
        (),
        ["^^^ new token 3", "3 of 4 tokens were returned, and the last is not an EOS."],
    ),
    "over-length": (lambda row: [*row, 7], (), ["^ new token 4", "The row has 5 tokens; max_new_tokens is 4."]),
    "past-eos": (lambda row: [9, 9], (9,), ["^ new token 1 (an EOS)", "The row continues with 1 token after its EOS."]),
    "pad-in-output": (lambda row: [*row, 0], (), ["^ new token 4 (the pad id)"]),
}


@pytest.mark.parametrize("kind", ENDS)
def test_nothing_is_said_to_be_expected_of_a_sampled_row_that_ends_wrongly(kind: str) -> None:
    change, eos, told = ENDS[kind]

    def ends(target: Any, draft: Any, request: Request) -> list[list[int]]:
        return [change(row) for row in Sampler()(target, draft, request)]

    outcome = try_case(ends, SampledCase(((3, 1),), (RowOptions(4, eos, temperature=1.0),)), None)
    assert outcome.fingerprint == f"bookkeeping/{kind}"
    assert outcome.explanation is not None
    text = render(outcome.explanation)
    assert "  got  " in text
    assert all(one in text for one in told), text
    for never in ("expected", "correct", "None", "differs"):
        assert never not in text
    assert outcome.explanation.expected_row == ()


def test_a_wrong_context_of_a_sampled_row_makes_no_token_right() -> None:
    def shifted(target: Any, draft: Any, request: Request) -> list[list[int]]:
        def late(input_ids: torch.Tensor, use_cache: bool) -> Any:
            given = {"position_ids": torch.arange(input_ids.shape[1])[None] * 2, "use_cache": use_cache}
            return target(input_ids=input_ids, attention_mask=torch.ones_like(input_ids), **given)

        return Sampler()(late, draft, request)

    outcome = try_case(shifted, SampledCase(((3, 1),), (RowOptions(4, temperature=1.0),)), None)
    assert outcome.explanation is not None
    text = render(outcome.explanation)
    assert "so its position id must be 1" in " ".join(text.split())
    assert not re.search("expected|all the same", text)


def seeded(self: Sampler, target: Any, draft: Any, prompt: list[int], row: RowOptions, k: int) -> list[int]:
    if row.seed is not None:
        torch.manual_seed(row.seed % 2**63)
    return Sampler.row(self, target, draft, prompt, row, k)


@pytest.mark.long
def test_a_kept_promise_passes_and_a_broken_one_is_named() -> None:
    kept = audited(registered("kept", row=seeded, seeds="repeatable"), 12)
    assert not kept.violations
    (ignored,) = audited(registered("ignored", seeds="repeatable"), 12).violations
    assert ignored.fingerprint == "sampling/seed-ignored"
    (depends,) = audited(registered("depends", row=seeded, seeds="speculation"), 16).violations
    assert depends.fingerprint == "sampling/batch-dependent:speculation"


@pytest.mark.rest
def test_a_broken_promise_is_shown_whole_and_in_few_rows() -> None:
    """A row whose seed counts from its place; each row is drawn with a generator of its own."""

    def placed(target: Any, draft: Any, request: Request) -> list[list[int]]:
        rows = [replace(row, seed=(row.seed or 0) + place) for place, row in enumerate(request.rows)]
        alone = zip(request.prompts, rows, strict=True)
        return [seeded(Sampler(), target, draft, prompt, row, request.num_draft_tokens) for prompt, row in alone]

    options = [RowOptions(5, temperature=1.0, top_k=8, seed=90 + n) for n in range(4)]
    case = SampledCase(((3, 1), (5,), (7, 7), (2,)), tuple(options), promise="mates")
    lane = SampledLane(registered("placed", seeds="mates"), Options(cases=1), TransparentTarget)
    lane.running = cast(Any, SimpleNamespace(try_case=lambda case: try_case(placed, case, None)))
    outcome = lane.running.try_case(case)
    assert outcome.fingerprint == "sampling/batch-dependent:mates"
    (finding,) = lane.explain(outcome, [outcome], lambda: 60.0) or []
    assert finding.fingerprint == outcome.fingerprint
    assert len(finding.case.prompts) == 2
    text = render(finding.explanation)
    for number, (prompt, row) in enumerate(zip(finding.case.prompts, finding.case.rows, strict=True)):
        assert re.search(rf"request {number} +prompt +{' '.join(map(str, prompt))}\b", text)
        assert f"temperature 1, top-k 8, seed {row.seed}" in text


def test_a_wrong_law_takes_the_place_of_what_it_explains_and_says_so() -> None:
    """A promise is exact: no law that is wrong explains that it is broken."""
    lane = SampledLane(registered("both", seeds="mates"), Options(cases=1), TransparentTarget)
    outcome = try_case(Sampler(), SampledCase(((3, 1),), (RowOptions(4, temperature=1.0),)), None)
    lane.result.outcomes.append(outcome)
    lane.gathered.wealth.log_supremum = 20.0
    for kind in ("seed-ignored", "batch-dependent", "shared-noise", "unattributed", "impossible-token", "greedy-drawn"):
        component = kind if kind == "unattributed" else "sampling"
        told = replace(outcome, status="violation", explanation=Explanation(component, kind, detail="so"))
        lane.result.findings.append(replace(lane.unsettled(told), count=2))
    lane.conclude()
    kinds = [one.explanation.kind for one in lane.result.findings]
    assert kinds == ["greedy-drawn", "impossible-token", "seed-ignored", "batch-dependent"]
    assert "evidence" in lane.result.findings[1].explanation.facts
    assert [warning for warning in lane.result.warnings if "may come from" in warning] == [
        f"2 cases of {fingerprint} may come from the wrong distribution: fix that, then audit again"
        for fingerprint in ("sampling/shared-noise", "unattributed/unattributed")
    ]


def test_seeds_are_repeated_where_no_row_is_without_one() -> None:
    """What rows without a seed draw may reach others, where only the same request is promised the same answer."""
    drawn = SampledCases(0, ("rotary",), ("left",), (*TAKES, "seeds"), promise="repeatable")
    cases = [case for case, _ in zip(drawn.cases(), range(60), strict=False) if case.promise != "none"]
    assert cases
    for case in cases:
        sampled = [number for number, row in enumerate(case.rows) if row.temperature]
        assert all(case.rows[number].seed is not None for number in sampled)
        assert [level for level, *_ in trials(case, sampled)] == ["repeatable"]
        some = (replace(case.rows[0], seed=None), *case.rows[1:])
        assert not list(trials(replace(case, rows=some), sampled[1:]))
        assert list(trials(replace(case, rows=some, promise="mates"), sampled[1:]))


@pytest.mark.parametrize(("budget", "on"), [(None, False), (600.0, True)])
def test_what_is_in_doubt_goes_on_as_long_as_was_asked_for(budget: float | None, on: bool) -> None:
    lane = SampledLane(registered("doubtful"), Options(budget=budget), TransparentTarget)
    lane.gathered.wealth.tokens = 2 * TOKENS
    assert lane.enough()
    lane.gathered.wealth.log_supremum = 10.0
    lane.gathered.wealth._all += 10.0
    assert lane.gathered.wealth.verdict() == "inconclusive"
    assert lane.enough() != on


def test_few_tokens_have_no_name() -> None:
    lane = SampledLane(registered("hasty", accepts=lambda self, p, q, token: True), Options(cases=1), TransparentTarget)
    Campaign(lane, lambda event: None).run()
    assert 0 < lane.gathered.wealth.tokens < TO_NAME
    assert lane.cause(lane.gathered) is None


def test_a_law_without_a_name_has_hints_that_say_something() -> None:
    flat, rng = np.full((60, 8), 1 / 8), np.random.default_rng(0)
    sharp = np.tile(np.array([0.9, *[0.1 / 7] * 7]), (60, 1))
    wealth = Wealth()
    for regime, law_of, tokens in (("near", sharp, rng.integers(0, 8, 60)), ("std", flat, rng.integers(0, 8, 60))):
        row = SampledRow(tokens, law_of, None, law_of, np.zeros(60, bool))
        wealth.add([row], regime)
    assert wealth.best()[0][0].law == "uniform"
    outcome = Outcome(next(SampledCases(1, ("rotary",), ("left",), TAKES).cases()), "equivalent")
    explanation = wrong_law(outcome, wealth, None).explanation
    assert explanation is not None
    assert "vocabulary" not in explanation.detail
    assert "hint" not in explanation.detail
    assert "it shows in one kind of case only: the draft is close to the target, K = 1" in explanation.detail


def test_the_best_bet_is_no_cause_of_a_law_without_a_name() -> None:
    """A bet on earlier random numbers earns most where tokens repeat, and whatever is wrong may make them repeat."""
    flat, wealth = np.full((60, 8), 1 / 8), Wealth()
    for regime in ("near", "std"):
        row = SampledRow(np.arange(60) // 20, flat, None, flat, np.zeros(60, bool))
        wealth.add([row, row], regime)
    best = wealth.best()[0][0]
    assert best.kind != "stray-law"
    assert wealth.supremum > 1e6
    outcome = Outcome(next(SampledCases(1, ("rotary",), ("left",), TAKES).cases()), "equivalent")
    explanation = wrong_law(outcome, wealth, None).explanation
    assert explanation is not None
    assert best.expects not in explanation.detail
    assert explanation.facts["bet"] == best.name


@pytest.mark.long
def test_clear_evidence_ends_the_audit_soon_and_with_a_name() -> None:
    result = audited(registered("hasty", accepts=lambda self, p, q, token: True), 120)
    assert result.evidence is not None
    assert result.evidence.tokens < 1500
    assert [one.fingerprint for one in result.violations if one.explanation.component == "sampling"] == [
        "sampling/over-acceptance"
    ]


@pytest.mark.parametrize("takes", [TAKES, ("temperature", "top-p")])
@pytest.mark.rest
def test_the_first_case_has_rows_that_one_token_alone_may_follow(takes: tuple[str, ...]) -> None:
    for seed in range(5):
        case = next(SampledCases(seed, ("rotary",), ("left",), takes).cases())
        rows = decode(Sampler(), case).rows
        pinned = [number for number, row in rows.items() if (row.p.max(-1) == 1).all()]
        assert 1 <= len(pinned) < len(rows)
        assert all(not row.impossible for row in rows.values())


@pytest.mark.rest
def test_a_forgotten_option_shows_in_a_row_of_one_token_without_statistics() -> None:
    def cold(self: Sampler, scores: Laws, row: RowOptions) -> Laws:
        return law(scores.double(), replace(row, temperature=max(row.temperature, 0.9), top_k=0, top_p=1.0, min_p=0.0))[
            0
        ]

    result = audited(registered("forgetful", draft_law=cold, target_law=cold), 1)
    (finding,) = result.violations
    read, case = finding.explanation, finding.case
    assert finding.fingerprint == "sampling/impossible-token"
    assert read.row is not None
    assert (len(case.rows), read.row) == (1, 0)
    assert case.max_new_tokens == 1
    assert read.expected not in (None, read.observed)
    assert f"(temperature 1, top-k 1) allow only token {read.expected} as new token 0" in read.detail
    assert try_case(registered("again", draft_law=cold, target_law=cold), case, None).failed


@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.tiers(quick=0, rest=1)
def test_a_greedy_row_that_is_drawn_is_said_to_be(beside: bool) -> None:
    class Drawn(Sampler):
        def __call__(self, target: Any, draft: Any, request: Request) -> list[list[int]]:
            drawn = not beside or any(row.temperature for row in request.rows)
            rows = tuple(replace(row, temperature=row.temperature or 1.0 * drawn) for row in request.rows)
            return super().__call__(target, draft, replace(request, rows=rows))

    (finding,) = audited(registered("drawn", Drawn), 12).violations
    assert finding.fingerprint == "sampling/greedy-drawn"
    assert ("next to a sampled row" if beside else "alone") in finding.explanation.detail


@pytest.mark.rest
def test_a_decoder_that_uses_up_random_numbers_does_not_change_other_cases() -> None:
    torch.manual_seed(5)
    before = torch.rand(1)
    torch.manual_seed(5)
    case = next(SampledCases(1, ("rotary",), ("left",), TAKES).cases())
    first, again = (decode(Sampler(), case).run.outputs for _ in range(2))
    assert first == again
    assert torch.equal(torch.rand(1), before)


def test_what_cannot_be_decoded_is_a_violation_and_no_evidence() -> None:
    def broken(target: Any, draft: Any, request: Request) -> Any:
        raise ValueError("no")

    case = next(SampledCases(1, ("rotary",), ("left",), TAKES).cases())
    outcome = try_case(broken, case, None)
    assert (outcome.fingerprint, getattr(outcome, "sampled", None)) == ("crash/exception:ValueError", {})


def test_every_regime_is_drawn_and_cases_come_back_from_json() -> None:
    cases = [
        one
        for one, _ in zip(SampledCases(0, ("rotary",), ("left",), (*TAKES, "seeds")).cases(), range(200), strict=False)
    ]
    assert {case.regime for case in cases} == set(DRAWN)
    assert all(SampledCase.from_dict(case.to_dict()) == case for case in cases)
    assert any(row.seed is not None for case in cases for row in case.rows)
    assert any(not row.temperature for case in cases for row in case.rows)


@pytest.mark.parametrize(
    ("field", "value"),
    [("scale", 0.0), ("mix", 2.0), ("regime", "none"), ("entropy", -1), ("rows", ()), ("support", 1000), ("order", ())],
)
def test_a_bad_field_is_one_clear_error(field: str, value: Any) -> None:
    case = next(SampledCases(1, ("rotary",), ("left",), TAKES).cases())
    with pytest.raises(CaseError, match=field):
        replace(case, **{field: value})


@pytest.mark.long
def test_an_audit_has_both_lanes_in_one_report(tmp_path: Any) -> None:
    result = audit(registered("right"), Options(cases=30))  # of both lanes together
    report = report_of(result, tmp_path)
    assert report.sampling is not None
    assert report.sampling.verdict == "equivalent"
    assert report.cases.run == 30
    assert "once in a million" in to_markdown(report)
    assert Content(report).sampled[0] in to_markdown(report)
