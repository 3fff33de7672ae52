"""An engine loads its checkpoint in a time of its own: a slow load is no hang, and one that fails is a line."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from eqcheck.audit.events import Event, Loading
from eqcheck.audit.loop import audit
from eqcheck.audit.workers import interpreter
from eqcheck.contract import registry
from eqcheck.contract.decoders import RowOptions
from eqcheck.contract.errors import UsageError
from eqcheck.core.case.engine import EngineCase, EngineRow
from eqcheck.core.result.findings import Audit, Options
from eqcheck.engines import drawing
from eqcheck.engines.checkpoints.folders import checkpoint
from eqcheck.engines.lane import worker as worker_of
from eqcheck.report.progress import progress

ENGINE = """
import os, signal, time
import eqcheck
from eqcheck.core.case.engine import EngineRow
from eqcheck.engines.checkpoints.row_judge import truth

@eqcheck.decoder(name="slow", checkpoints=True, dtype="bfloat16", kinds=("full", "window"))
class Slow:
    def open(self):
        self.loaded = {}

    def load(self, target, draft, request):
        kind = "window" if "window-" in target else "full"
        if kind not in self.loaded:
            LOAD
            self.loaded[kind] = truth(kind)
        return self.loaded[kind]

    def __call__(self, target, draft, request):
        alone = self.load(target, draft, request)
        DECODE
        rows = zip(request.prompts, request.rows)
        return [alone.row(EngineRow(tuple(prompt), options)) for prompt, options in rows]
"""
SLOW = "time.sleep(2.5)"


def audited(
    folder: Path, load: str = "pass", decode: str = "pass", cases: int = 4, listen: list[Event] | None = None
) -> Audit:
    """An audit with a limit of 2 s a case, of an engine that runs these lines in its first load and in each case."""
    (folder / "slow.py").write_text(ENGINE.replace("LOAD", load).replace("DECODE", decode))
    heard = [] if listen is None else listen
    options = Options(cases=cases, case_timeout=2.0, python=sys.executable)
    return audit(registry.load(str(folder / "slow.py")), options, heard.append)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drawing, "BLOCK", 2)
    monkeypatch.setattr(drawing, "OPENING", 2)
    monkeypatch.setattr(interpreter, "_TOLD_AFTER_S", 0.5)


@pytest.mark.long
def test_a_slow_load_is_no_violation_and_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    heard: list[Event] = []
    found = audited(tmp_path, load=SLOW, listen=heard)
    assert (found.verdict, found.tally.run) == ("equivalent", 4)
    told = [event for event in heard if isinstance(event, Loading)]
    assert [event.checkpoint.partition("-")[0] for event in told] == ["full", "window"]
    with progress() as listen:
        listen(told[0])
    (line,) = capsys.readouterr().err.splitlines()
    assert line == "slow: loading checkpoint full"


@pytest.mark.rest
def test_a_quick_load_is_not_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interpreter, "_TOLD_AFTER_S", 60.0)
    heard: list[Event] = []
    audited(tmp_path, cases=2, listen=heard)
    assert not [event for event in heard if isinstance(event, Loading)]


@pytest.mark.long
def test_a_case_that_takes_more_than_four_limits_is_a_hang(tmp_path: Path) -> None:
    assert audited(tmp_path, decode=SLOW).violations == []  # it is given four times the limit when it is confirmed
    found = audited(tmp_path, decode="time.sleep(9)")
    assert [finding.fingerprint for finding in found.violations] == ["crash/hang"]


@pytest.mark.parametrize(
    ("load", "why"),
    [
        ("time.sleep(600)", "the engine did not load the checkpoint within 2 s"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "was ended by SIGKILL while it loaded the checkpoint"),
        ('raise KeyError("no such layer")', "the engine does not load the checkpoint: KeyError: 'no such layer'"),
        ('raise eqcheck.Unsupported("no windows")', "no windows"),
    ],
)
@pytest.mark.tiers(quick=0, rest=1)
def test_a_load_that_fails_is_a_line_and_the_audit_goes_on(
    load: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interpreter, "LOADING", 2.0)
    began = time.monotonic()
    found = audited(tmp_path, f"if kind == 'window': {load}")
    assert (found.verdict, found.tally.run, sum(found.tally.declined.values())) == ("equivalent", 2, 2)
    assert sum(why in reason for reason in found.tally.declined) == 1
    (told,) = [warning for warning in found.warnings if "every case on the checkpoint window" in warning]
    assert "in bfloat16 was declined (" in told
    assert time.monotonic() - began < 600


@pytest.mark.long
def test_an_engine_that_never_loads_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interpreter, "LOADING", 1.0)
    (tmp_path / "slow.py").write_text(ENGINE.replace("LOAD", "time.sleep(600)").replace("DECODE", "pass"))
    with worker_of(registry.load(str(tmp_path / "slow.py")), sys.executable, timeout=1.0) as worker:
        row = EngineRow((1, 2), RowOptions(1))
        asked = [EngineCase((row,), k, checkpoint=checkpoint("full").name) for k in (1, 1, 2, 3, 4, 5)]
        answers = [worker.try_case(case) for case in asked]
        starts = worker._process
    assert {answer.status for answer in answers} == {"skipped"}
    assert [answer.declined.rpartition(" ")[2] for answer in answers] == ["s", "s", "s", "s", "times", "times"]
    assert starts is None, "nothing is started for a load that is given up"


@pytest.mark.rest
def test_a_folder_that_was_changed_is_told_in_a_line_before_anything_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    checkpoint.cache_clear()
    try:
        weights = checkpoint("full", "bfloat16").target / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-1])
        checkpoint.cache_clear()
        with pytest.raises(UsageError, match="changed or is torn") as told:
            audited(tmp_path)
        assert "\n" not in str(told.value)
    finally:
        checkpoint.cache_clear()
