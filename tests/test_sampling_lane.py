"""The lane of sampling: what each fault of a sampler is called, and that right samplers pass."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import eqcheck
from eqcheck.campaign.events import CaseDone
from eqcheck.campaign.loop import Campaign, audit
from eqcheck.contract import Decoder, Request, RowOptions
from eqcheck.errors import CaseError
from eqcheck.findings import Audit, Options
from eqcheck.lanes.sampling.case import SampledCase
from eqcheck.lanes.sampling.decode import decode
from eqcheck.lanes.sampling.drawing import DRAWN, SampledCases
from eqcheck.lanes.sampling.judge import try_case
from eqcheck.lanes.sampling.lane import TOKENS, SamplingLane
from eqcheck.lanes.sampling.seeds import trials
from eqcheck.law import law
from eqcheck.report.build import report_of
from eqcheck.report.markdown import sampled, to_markdown

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
    campaign = Campaign(SamplingLane(decoder, Options(cases=cases, seed=seed)), lambda event: None)
    campaign.run()
    return campaign.result


@pytest.mark.parametrize("kind", [Sampler, Matching])
def test_a_right_sampler_passes(kind: type[Sampler]) -> None:
    result = audited(registered("right", kind), 25)
    assert result.evidence is not None
    assert (result.findings, result.evidence.verdict) == ([], "equivalent")
    assert result.evidence.greatest < 100
    assert result.evidence.tokens > 1000
    assert any("drawn from the draft" in sentence for sentence in result.evidence.excludes)


def test_nothing_says_how_many_cases_are_to_come_because_tokens_decide() -> None:
    totals: list[int | None] = []
    lane = SamplingLane(registered("right", Sampler), Options(cases=2))
    Campaign(lane, lambda event: totals.append(event.total) if isinstance(event, CaseDone) else None).run()
    assert totals == [None, None]


FAULTS: dict[str, tuple[str, dict[str, Any]]] = {
    "halved-coin": (
        "over-acceptance",
        {"accepts": lambda self, p, q, token: bool(torch.rand((), dtype=torch.float64) / 2 * q[token] < p[token])},
    ),
    "residual-unused": ("residual", {"correction": lambda self, p, q, column: self.pick(p[column])}),
    "column-behind": ("correction-column", {"correction": lambda self, p, q, column: self.pick(p[column + 1])}),
    "greedy-draft": ("draft-law", {"propose": lambda self, q: int(q.argmax())}),
    "hot": (
        "target-option",
        {"target_law": lambda self, scores, row: law(scores, RowOptions(1, temperature=float(row.temperature > 0)))[0]},
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found_and_named(name: str) -> None:
    kind, methods = FAULTS[name]
    found = audited(registered(name, **methods), 120).violations
    (finding,) = (one for one in found if one.explanation.component == "sampling")
    assert finding.fingerprint == f"sampling/{kind}"
    assert {one.explanation.component for one in found} <= {"sampling", "bookkeeping"}  # of greedy rows
    assert finding.explanation.facts["tokens"]


def test_a_seed_used_for_all_rows_is_shared_noise() -> None:
    def row(self: Sampler, *arguments: Any) -> list[int]:
        torch.manual_seed(7)
        return Sampler.row(self, *arguments)

    (finding,) = audited(registered("one-seed", row=row), 120).violations
    assert finding.fingerprint in ("sampling/shared-noise", "sampling/reused-noise")


def test_requests_that_begin_with_the_same_random_numbers_share_them() -> None:
    class Reset(Sampler):
        def __call__(self, target: Any, draft: Any, request: Request) -> list[list[int]]:
            torch.manual_seed(0)
            return super().__call__(target, draft, request)

    (finding,) = audited(registered("reset", Reset), 30).violations
    assert finding.fingerprint == "sampling/shared-noise:requests"
    assert "the same request with fresh random numbers emits the same" in finding.explanation.detail


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


def test_a_greedy_answer_is_said_to_be_the_argmax() -> None:
    def best(self: Sampler, scores: Laws, row: RowOptions) -> Laws:
        return law(scores, RowOptions(1)).probabilities

    both: dict[str, Any] = {"target_law": best, "draft_law": best}
    for cases, decoder in ((60, registered("greedy", target_law=best)), (5, registered("greedy", **both))):
        (finding,) = audited(decoder, cases).violations
        assert finding.fingerprint == "sampling/target-option"
        assert "the answer is the argmax" in finding.explanation.detail


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


def test_a_row_that_ends_too_early_is_bookkeeping() -> None:
    def done(self: Sampler, new: list[int], row: RowOptions) -> bool:
        return Sampler.done(self, new, row) or len(new) >= row.max_new_tokens - 1

    (finding,) = audited(registered("short", done=done), 10).violations
    assert finding.fingerprint == "bookkeeping/premature-stop"


def seeded(self: Sampler, target: Any, draft: Any, prompt: list[int], row: RowOptions, k: int) -> list[int]:
    if row.seed is not None:
        torch.manual_seed(row.seed % 2**63)
    return Sampler.row(self, target, draft, prompt, row, k)


def test_a_kept_promise_passes_and_a_broken_one_is_named() -> None:
    kept = audited(registered("kept", row=seeded, seeds="repeatable"), 12)
    assert not kept.violations
    (ignored,) = audited(registered("ignored", seeds="repeatable"), 12).violations
    assert ignored.fingerprint == "sampling/seed-ignored"
    (depends,) = audited(registered("depends", row=seeded, seeds="speculation"), 16).violations
    assert depends.fingerprint == "sampling/batch-dependent:speculation"


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
    lane = SamplingLane(registered("doubtful"), Options(budget=budget))
    lane.gathered.wealth.tokens = 2 * TOKENS
    assert lane.enough()
    lane.gathered.wealth.log_supremum = 10.0
    lane.gathered.wealth._all += 10.0
    assert lane.gathered.wealth.verdict() == "inconclusive"
    assert lane.enough() != on


def test_few_tokens_have_no_name() -> None:
    found = audited(registered("hasty", accepts=lambda self, p, q, token: True), 8).violations
    (finding,) = (one for one in found if one.explanation.component == "sampling")
    assert finding.fingerprint == "sampling/impossible-token"


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


def test_an_audit_has_both_lanes_in_one_report(tmp_path: Any) -> None:
    result = audit(registered("right"), Options(cases=15))
    report = report_of(result, tmp_path)
    assert report.sampling is not None
    assert report.sampling.verdict == "equivalent"
    assert report.cases.run == 30
    assert "once in a million" in to_markdown(report)
    assert sampled(report)[0] in to_markdown(report)
