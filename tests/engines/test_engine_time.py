"""The time of an audit of an engine: a budget is a bound, loading is not charged, and a cause is looked for at once."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from test_blackbox import ENGINE

from eqcheck.audit import events
from eqcheck.audit.loop import audit
from eqcheck.audit.time_budget import Pace, WorkClock
from eqcheck.contract import registry
from eqcheck.contract.decoders import RowOptions
from eqcheck.core.case.engine import EngineCase, EngineRow
from eqcheck.core.result.findings import Options
from eqcheck.engines.checkpoints.row_judge import RowJudgement
from eqcheck.engines.engine_outcome import EngineOutcome
from eqcheck.engines.investigate import Failure, Investigation, evidence_of
from eqcheck.engines.script import run, unscripted

_LOADING_S = 4.0
LOADS = f"""
    loaded = False

    def load(self, target, draft, request):
        time.sleep(0 if self.loaded else {_LOADING_S})
        self.loaded = True

    def __call__(self, target, draft, request):
        raise eqcheck.Unsupported("no models")
"""


def engine(folder: Path, name: str, text: str) -> Any:
    (folder / f"{name}.py").write_text(text)
    return registry.load(str(folder / f"{name}.py"))


def test_to_load_an_engine_takes_nothing_of_the_budget(tmp_path: Path) -> None:
    """It loads for longer than its budget, and cases are decoded all the same."""
    slow = engine(tmp_path, "slow", ENGINE.partition("    def ")[0] + LOADS)
    heard = list[events.Event]()
    begun = time.monotonic()
    found = audit(slow, Options(cases=None, budget=3.0, python=sys.executable), heard.append)
    assert (len(found.outcomes) > 3, found.violations) == (True, [])
    assert time.monotonic() - begun > _LOADING_S
    assert max(event.seconds for event in heard if isinstance(event, events.Loaded)) > _LOADING_S - 0.5


def test_the_first_failing_case_is_looked_into_before_more_are_drawn(tmp_path: Path) -> None:
    wrong = engine(tmp_path, "raises", ENGINE.replace("if token == 4", "if True"))
    heard = list[events.Event]()
    audit(wrong, Options(cases=None, budget=20.0, python=sys.executable), heard.append)
    first = next(number for number, event in enumerate(heard) if isinstance(event, events.Settled))
    decoded = [event for event in heard[:first] if isinstance(event, events.CaseDone)]
    assert 1 <= len(decoded) <= 6, "the case, and those that were under way"
    assert sum(isinstance(event, events.CaseDone) for event in heard) > len(decoded), "then drawing goes on"


@pytest.mark.parametrize(("looked_s", "now"), [(0.0, True), (4.0, True), (6.0, False)])
def test_looks_take_half_of_the_time_at_most(looked_s: float, now: bool) -> None:
    lane: Any = SimpleNamespace(conditional=True, budget=100.0, begun=time.monotonic() - 30.0)
    pace = Pace(lane)
    pace.extends(20.0)
    pace.looked_s = looked_s
    assert pace.looks_now() == now
    lane.conditional = False
    assert not pace.looks_now(), "where all cases are drawn first"


def test_a_first_look_is_short() -> None:
    result = SimpleNamespace(drawing_s=1.0, outcomes=[0])
    pace = Pace(SimpleNamespace(conditional=True, budget=100.0, begun=time.monotonic(), result=result))  # type: ignore[arg-type]
    pace.settling(1, first=True)
    assert 20 < pace.left(1, 0) < 23
    pace.settling(1)
    assert pace.left(1, 0) > 80


def test_a_script_ends_with_the_audit(tmp_path: Path) -> None:
    begun = time.monotonic()
    assert run(sys.executable, {"finding.py": "import time; time.sleep(60)"}, seconds=0.3) == {}
    assert time.monotonic() - begun < 30
    assert unscripted(time.monotonic()).startswith("no time was left")
    assert unscripted(float("inf")).startswith("no script without eqcheck")


def test_work_is_counted_by_the_cpu_where_the_machine_is_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    wall, own, theirs = [0.0], [0.0], [0.0]
    monkeypatch.setattr(
        "eqcheck.audit.time_budget.time", SimpleNamespace(monotonic=lambda: wall[0], process_time=lambda: own[0])
    )
    clock = WorkClock(lambda: theirs[0])
    for seconds, mine, of_engine, counted in (
        (10.0, 1.0, 2.0, 3.0),  # a busy machine
        (10.0, 9.0, 9.0, 10.0),  # two cores: not more than went by
        (12.0, 0.0, 0.0, 2.0),  # an engine that waits
    ):
        before = clock()
        wall[0], own[0], theirs[0] = wall[0] + seconds, own[0] + mine, theirs[0] + of_engine
        assert clock() - before == pytest.approx(counted)
    before, wall[0], theirs[0] = clock(), wall[0] + 10.0, 1.0  # a new process, which has used one second so far
    assert clock() - before == pytest.approx(10 / WorkClock.PATIENCE)


def judged(case: EngineCase, first: int) -> EngineOutcome:
    """An outcome whose only row is wrong from a token on."""
    limit = case.rows[0].options.max_new_tokens
    return EngineOutcome(case, "violation", outputs=((9,) * limit,), rows=(RowJudgement(0, (9,) * limit, first, 7),))


def test_a_case_keeps_the_evidence_that_tells_its_cause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each smaller case fails alike, but only ten wrong tokens tell why."""
    large = judged(EngineCase((EngineRow((8, 8, 8, 8), RowOptions(12)),)), 2)
    assert evidence_of(large) == 10
    cause: Any = SimpleNamespace(edit="x")
    told = "from tokens"

    def explained(self: Any, outcome: Any, *_: Any, **__: Any) -> Any:
        from eqcheck.core.explanation.records import Explanation

        if evidence_of(outcome) < 6:
            return Explanation("unattributed", "unattributed"), None
        return Explanation("position", "query-position", detail=told), cause

    monkeypatch.setattr(Investigation, "explained", explained)
    decode = lambda case: judged(case, min(2, case.rows[0].options.max_new_tokens - 1))  # noqa: E731
    looking = Investigation(engine(tmp_path, "engine", ENGINE), decode, lambda outcome: True)
    found = looking.finding(large, None, lambda: 60.0)
    assert (found.explanation.kind, found.explanation.detail) == ("query-position", told)
    assert 6 <= evidence_of(found.outcome) <= 10


def test_cases_alike_stop_with_the_time_and_with_the_work(tmp_path: Path) -> None:
    outcome = judged(EngineCase((EngineRow((8, 8), RowOptions(8)),)), 1)
    ticks = iter(range(0, 10_000, 7))
    busy = Failure(outcome, lambda case: outcome, (), lambda: 60.0, clock=lambda: float(next(ticks)))
    assert len(busy.alike(12)[0]) == 2, "the limit of 20 is of the clock of work"
    assert replace(busy, left=lambda: 0.0).alike(12) == ([], False)
