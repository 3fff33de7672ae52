"""A replay gives the explanation that the audit gave for the same case: the same fingerprint, the same words."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from eqcheck.audit.lanes import new_lane
from eqcheck.audit.loop import audit
from eqcheck.catalogue.faults import FAULTS
from eqcheck.catalogue.samplers import SAMPLED_FAULTS
from eqcheck.cli.replaying import _told
from eqcheck.contract import registry
from eqcheck.contract.decoders import Decoder, RowOptions
from eqcheck.core.case.sampling import SampledCase
from eqcheck.core.explanation.records import Explanation
from eqcheck.core.explanation.text import render
from eqcheck.core.result.findings import Audit, Options
from eqcheck.core.result.outcome import Outcome
from eqcheck.core.store.casefile import StoredViolation, parsed_case, stored_violation
from eqcheck.sampling.judge import try_case

CHANGED = """
import eqcheck
from eqcheck.catalogue.samplers import RIGHT
from eqcheck.catalogue.samplers.sampler_engine import sampler

right = sampler(RIGHT["rejection"], "per_row", "right")

@eqcheck.decoder(name="changed-later", capabilities=right.capabilities)
def changed(target, draft, request):
    rows = [list(row) for row in right(target, draft, request)]
    for row, options in zip(rows, request.rows):
        if options.temperature and len(row) > 3 and row[1] not in options.eos_token_ids:
            row[2] = row[1]
    return rows
"""
"""A sampler that changes a row after its tokens were accepted: the cache holds what was drawn, the row does not."""


def disagreements(result: Audit, decoder: Decoder) -> list[str]:
    """The stored cases of an audit that a replay explains otherwise; of a law that all tokens show, it cannot tell."""
    wrong = []
    for finding in result.findings:
        stored = parsed_case(stored_violation(result, finding, finding.id).to_json())
        if finding.explanation.of_law or not stored.minimised or finding.standing == "slow":
            continue  # tests/transparent/test_draft_causes.py replays lost draft tokens
        options = Options(case_timeout=60.0, isolate=stored.isolated, python=result.options.python)
        outcome, _ = new_lane(stored.case.lane, decoder, options).again(stored.case, False)
        now = outcome.explanation
        if now is None or now.fingerprint != finding.fingerprint or render(now) != stored.explanation:
            wrong.append(f"{stored.explanation}\n--- and now\n{now and render(now)}")
        elif "differently" in "".join(_told("it", stored, outcome, 100)[2:]):
            wrong.append(finding.id)
    return wrong


@pytest.mark.rest
def test_a_row_that_was_changed_after_it_was_accepted(tmp_path: Path) -> None:
    (tmp_path / "changed.py").write_text(CHANGED)
    decoder = registry.load(str(tmp_path / "changed.py") + ":changed")
    result = audit(decoder, Options(cases=30))
    assert result.violations
    assert not disagreements(result, decoder)


def test_what_an_audit_withholds_a_replay_withholds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reading of sampled rows that no greedy request shows is no cause, whoever asks."""
    fault = next(one for one in SAMPLED_FAULTS if one.name == "bonus-argmax").decoder("per_row")
    case = SampledCase(((5, 7), (9,)), tuple(RowOptions(4, temperature=1.0) for _ in range(2)))
    read = Explanation("cache", "stale-entry", row=0, token_index=1, detail="slot 3 holds the rejected draft")

    def judged(*given: object, **more: object) -> Outcome:
        return replace(try_case(*given, **more), status="violation", explanation=read)  # type: ignore[arg-type]

    monkeypatch.setattr("eqcheck.sampling.transparent_target.try_case", judged)
    lane = new_lane("sampling", fault, Options(case_timeout=20.0))
    outcome, _ = lane.again(case, False)
    assert outcome.explanation is not None
    assert outcome.explanation.component == "unattributed"
    assert "cache/stale-entry" in outcome.explanation.detail  # beside what it was not confirmed by
    stored = StoredViolation(case, "eqspec", "unattributed/unattributed")
    assert "differently" not in "".join(_told("it", stored, outcome, 100)[2:])


def test_a_case_that_nobody_looked_into_is_not_said_to_fail_differently() -> None:
    case = SampledCase(((5, 7),), (RowOptions(4, temperature=1.0),))
    now = Outcome(case, "violation", explanation=Explanation("unattributed", "unattributed"))
    for stored, said in (
        (StoredViolation(case, "it", "cache/stale-entry", minimised=False), "had not been looked into"),
        (StoredViolation(case, "it", "sampling/bonus-law"), "fails differently"),
        (StoredViolation(case, "it", "cache/stale-entry"), "was found from other cases"),
    ):
        assert said in _told("it", stored, now, 100)[2]
    impossible = replace(now, explanation=Explanation("sampling", "impossible-token"))
    assert (
        "was found from other cases"
        in _told("it", StoredViolation(case, "it", "sampling/bonus-law"), impossible, 100)[2]
    )


@pytest.mark.parametrize("name", ["bsp", "hf_pr"])
@pytest.mark.rest
def test_shipped_decoders(name: str) -> None:
    decoder = registry.load(name)
    result = audit(decoder, Options(cases=30))
    assert result.violations
    assert not disagreements(result, decoder)


FAULT = """
from eqcheck.catalogue.faults import FAULTS

wrong = next(fault for fault in FAULTS if fault.id == {!r}).decoder()
"""
EVERY = 6  # fault: some 40 of them


@pytest.mark.parametrize("fault", [fault.id for fault in FAULTS[::EVERY]])
@pytest.mark.long
def test_the_catalogue_of_faults(tmp_path: Path, fault: str) -> None:
    (tmp_path / "wrong.py").write_text(FAULT.format(fault))
    decoder = registry.load(str(tmp_path / "wrong.py") + ":wrong")
    assert not disagreements(audit(decoder, Options(cases=40)), decoder)


@pytest.mark.parametrize("name", ["bsp", "hf_pr"])
@pytest.mark.long
def test_on_checkpoints(name: str) -> None:
    """The same decoders where nothing can be read: causes are searched for, and options may be needed."""
    import sys

    decoder = registry.load(name)
    result = audit(decoder, Options(cases=30, python=sys.executable))
    assert not disagreements(result, decoder)
