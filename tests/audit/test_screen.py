"""The first screen: what is printed at once, while an audit runs, and last, where a terminal stands still."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing import connection
from pathlib import Path
from typing import Any

import pytest
from pages import on_a_terminal, told

from eqcheck import cli
from eqcheck.audit import processes
from eqcheck.audit.events import CaseDone, Event, Finished, Settling, Started, ViolationSeen
from eqcheck.audit.loop import audit
from eqcheck.contract import registry
from eqcheck.contract.errors import UsageError
from eqcheck.core.result.findings import Audit, Options
from eqcheck.report.terminal import summary
from eqcheck.transparent.lane import TransparentLane

ROOT = Path(__file__).parents[2]
WITHOUT_TORCH = """
import sys

class No:
    def find_spec(self, name, *_):
        if name in ("torch", "transformers"):
            raise ImportError(f"{name} is not to be imported here")

sys.meta_path.insert(0, No())
from eqcheck.cli import main
sys.exit(main(sys.argv[1:]))
"""
Printed = pytest.CaptureFixture[str]


def without_torch(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", WITHOUT_TORCH, *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.rest
def test_the_first_line_comes_before_torch_does() -> None:
    done = without_torch("audit", "bsp")
    assert done.stderr.startswith("loading torch\n")
    assert "is not to be imported here" in done.stderr
    assert without_torch("audit", "bsp", "--json").stdout == ""


def test_the_list_needs_no_torch() -> None:
    done = without_torch("list")
    assert (done.returncode, done.stderr) == (0, "")
    assert [line.split()[0] for line in done.stdout.splitlines()[2:]] == registry.names()


@pytest.mark.parametrize("name", registry.shipped())
def test_what_is_read_of_a_decoder_is_what_it_declares(name: str) -> None:
    loaded, declared = registry.load(name), registry.declared(name)
    for field in ("families", "padding_sides", "origin", "checkpoints"):
        assert getattr(declared, field) == getattr(loaded, field)
    sure = [one for one in declared.known if "versions" not in one]
    assert sure == [one for one in loaded.known if f"{one} (in some versions)" not in declared.known]


@pytest.mark.rest
def test_the_campaign_tells_which_cause_and_how_far() -> None:
    events: list[Event] = []
    audit(registry.load("bsp"), Options(cases=12), events.append)
    started = [event for event in events if isinstance(event, Started)]
    assert [(event.total, event.families) for event in started] == [(12, ("rotary", "learned"))]
    settling = [event for event in events if isinstance(event, Settling)]
    failing = [event.failing for event in events if isinstance(event, CaseDone)][-1]
    assert {event.total for event in settling} == {failing}
    assert [event.number for event in settling[:-1]] == sorted(event.number for event in settling[:-1])
    *looking, last = settling
    assert all(0 <= event.done < failing for event in looking)
    assert (last.symptom, last.done) == ("", failing)
    seen = {event.outcome.symptom for event in events if isinstance(event, ViolationSeen)}
    assert {event.symptom for event in looking} <= seen


def test_that_causes_are_looked_for_is_told_before_processes_start(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def interrupted(*_: object) -> Iterator[None]:
        raise KeyboardInterrupt
        yield

    monkeypatch.setattr(TransparentLane, "settling", interrupted)
    events: list[Event] = []
    audit(registry.load("bsp"), Options(cases=6), events.append)
    settling = [event for event in events if isinstance(event, Settling)]
    assert [(event.number, event.done) for event in settling] == [(1, 0)]


def test_the_last_lines_are_the_verdict_the_causes_and_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    on_a_terminal(monkeypatch, 80)
    text = summary([told("showcase/bsp")], ["reports/showcase/bsp"])
    lines = text.splitlines()
    assert lines[-3:] == [
        "bsp: violation in 130 of 150 cases; exact match 20.1 %, prefix match 59.4 %",
        "  position/query-position 111 (known); bookkeeping/past-eos 19 (known)",
        "bsp: report: reports/showcase/bsp/report.html",
    ]
    screen = "\n".join(lines[-23:])
    for part in (
        "FAIL position/query-position",
        "expected  106 104 12",
        "position id 3",
        ">   3 ",
        "Confirmed",
        "Reproduce      eqcheck",
    ):
        assert part in screen, "24 lines show the most frequent cause whole"
    assert text.index("FAIL bookkeeping/past-eos: ") < text.index("FAIL position/query-position: ")


def test_of_several_decoders_each_cause_is_a_line_and_the_table_is_last(monkeypatch: pytest.MonkeyPatch) -> None:
    on_a_terminal(monkeypatch, 80)
    reports = [told(f"showcase/{name}") for name in ("bsp", "dsd", "hf_pr")]
    lines = summary(reports, ["a", "b", "c"]).splitlines()
    assert [line.split()[0] for line in lines[-5:]] == ["decoder", "-------", "bsp", "dsd", "hf_pr"]
    assert len(lines) < 45
    assert not [line for line in lines if "Smallest case" in line]
    said = " ".join(" ".join(lines).split())
    listed = [
        f"{one.fingerprint} {one.count} cases (known), {one.cause.meaning}"
        for report in reports
        for one in report.violations
    ]
    assert [said.count(line) for line in listed] == [listed.count(line) for line in listed]


def test_an_audit_that_exercised_too_little_says_so_in_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    right = replace(told("showcase/bsp"), verdict="equivalent", violations=(), warnings=())
    loud = replace(right, warnings=("VACUOUS: no case was seen to exercise: ragged_round",))
    on_a_terminal(monkeypatch, 80)
    marked = [line.split()[-2:] for line in summary([right, loud], ["a", "b"]).splitlines()[-2:]]
    assert [words[-1] for words in marked] == ["-", "(VACUOUS)"]
    assert "; VACUOUS, see the warning" in summary([loud], ["a"])
    assert "VACUOUS" not in summary([right], ["a"])


def test_narrow_tables_stay_tables(monkeypatch: pytest.MonkeyPatch, capsys: Printed) -> None:
    on_a_terminal(monkeypatch, 60)
    table = summary([told("showcase/bsp"), told("showcase/hf_pr")], ["a", "b"]).split("\n\n")[-1]
    assert table.splitlines() == [
        "decoder  verdict    cases   exact  prefix  violations",
        "-------  ---------  -----  ------  ------  -----------------",
        "bsp      violation    150  20.1 %  59.4 %  position 111,",
        "                                           bookkeeping 19",
        "hf_pr    violation    150  64.4 %  84.5 %  bookkeeping 95",
    ]
    on_a_terminal(monkeypatch, 80)
    assert cli.main(["list"]) == 0
    listed = capsys.readouterr().out
    assert listed.startswith("decoder ")
    shown, _, served = listed.partition("\nThe same engines in other dtypes: ")
    assert len(shown.splitlines()) <= 23  # of 24, with the prompt; the table is whole
    assert {line.split()[0] for line in shown.splitlines() if line} | set(served.replace(",", "").split()) >= set(
        registry.names()
    )
    assert max(map(len, listed.splitlines())) <= 80


@pytest.mark.long
def test_decoders_are_audited_side_by_side_as_they_are_one_after_the_other() -> None:
    decoders = [registry.load(name) for name in ("bsp", "hf_pr")]
    events: list[Event] = []
    found = {
        one.decoder.name: one for one in processes.side_by_side(decoders, Options(cases=10, jobs=2), events.append)
    }
    assert sorted(found) == ["bsp", "hf_pr"]
    for decoder in decoders:
        alone, beside = audit(decoder, Options(cases=10)), found[decoder.name]
        assert beside.decoder is decoder
        assert [one.fingerprint for one in beside.findings] == [one.fingerprint for one in alone.findings]
        assert [one.outputs for one in beside.outcomes] == [one.outputs for one in alone.outcomes]
        mine = [event for event in events if event.decoder == decoder.name]
        assert isinstance(mine[0], Started)
        assert isinstance(mine[-1], Finished)
        assert len([event for event in mine if isinstance(event, CaseDone)]) == 10


def test_an_audit_that_is_lost_beside_others_is_told(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import os\nimport pathlib\nimport eqcheck\n\nif pathlib.Path(__file__).with_name('ends').exists():\n"
        "    os._exit(1)\n\n@eqcheck.decoder(name='ends')\ndef f(target, draft, request):\n    return []\n"
    )
    decoders = [registry.load(str(tmp_path / "mine.py"))]
    (tmp_path / "ends").touch()
    with pytest.raises(UsageError, match="ends: the process that audited it ended; try it alone, with --isolate"):
        list(processes.side_by_side(decoders, Options(cases=1, jobs=1), lambda event: None))


def test_a_first_interrupt_ends_the_audits_that_run(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def interrupted(pipes: Any) -> Any:
        calls.append(1)
        if len(calls) == 9:
            raise KeyboardInterrupt
        return connection.wait(pipes)

    monkeypatch.setattr(processes, "wait", interrupted)
    decoders = [registry.load(name) for name in ("eqspec", "ragged")]
    found: list[Audit] = []
    asked = Options(cases=100_000, jobs=1)
    found += processes.side_by_side(decoders, asked, lambda event: None)
    assert [(one.decoder.name, one.interrupted) for one in found] == [("eqspec", True)]
