"""An error of eqcheck itself in one case ends no audit: the case is recorded, all else is judged, the exit code is 3.

Each step has an exception planted in it, for one case or for all. The decoder is wrong in two ways, so that there is a
finding elsewhere that has to be reported all the same.
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

import eqcheck
from eqcheck.audit.loop import audit
from eqcheck.audit.shards import from_builtins, merged, part_of, run, terms_of, to_builtins
from eqcheck.audit.workers.fork import decoding
from eqcheck.audit.workers.worker import Limits, LocalWorker, Workers
from eqcheck.cli.audit import exit_code
from eqcheck.contract import registry
from eqcheck.contract.completion import observed_of
from eqcheck.contract.decoders import Decoder, RowOptions
from eqcheck.contract.errors import INTERNAL, CaseError, UsageError
from eqcheck.core.case.engine import EngineCase, EngineRow
from eqcheck.core.case.record import Case
from eqcheck.core.case.sampling import SampledCase
from eqcheck.core.explanation.notice import EqcheckFailed, InternalError, guarded, internal_error, note
from eqcheck.core.result.findings import Audit, Options
from eqcheck.core.store.casefile import read_case
from eqcheck.engines.lane import worker
from eqcheck.report import load
from eqcheck.report.build import write
from eqcheck.report.checks import junit
from eqcheck.report.terminal import summary
from eqcheck.sampling.judge import try_case as try_sampled
from eqcheck.transparent import oracle
from eqcheck.transparent.coverage import try_case

ROOT = Path(__file__).parents[2]
FILES = ("report.json", "report.md", "report.html")
TWO = Case(prompts=((1, 2), (3,)))


def planted(*_: Any, **__: Any) -> Any:
    raise KeyError("planted")


def wrong_twice() -> Decoder:
    """A decoder with wrong position ids that goes on past an EOS, in this process."""
    bsp = registry.load("bsp")
    return eqcheck.decoder(name="wrong-twice")(lambda *given: bsp(*given))


def in_two_rows(own: Callable[..., Any]) -> Callable[..., Any]:
    """A function of a run that fails for cases of two rows."""

    def judge(done: Any, *given: Any) -> Any:
        return planted() if len(done.case.prompts) == 2 else own(done, *given)

    return judge


def judging(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("eqcheck.transparent.coverage.judge", in_two_rows(oracle.judge))


def explaining(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("eqcheck.transparent.coverage.second_opinion", planted)


def minimising(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("eqcheck.transparent.lane.minimise", planted)


def only_of_queries(own: Callable[..., Any]) -> Callable[..., Any]:
    def render(explanation: Any, *given: Any, **more: Any) -> Any:
        return planted() if explanation.query is not None else own(explanation, *given, **more)

    return render


def rendering(patch: pytest.MonkeyPatch) -> None:
    from eqcheck.core.explanation.text import render

    for place in ("report.build", "core.store.casefile", "audit.loop"):
        patch.setattr(f"eqcheck.{place}.render", only_of_queries(render))


def in_markdown(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("eqcheck.report.markdown._explanation", planted)


def on_the_page(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("eqcheck.report.page.page", planted)


def in_the_terminal(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("eqcheck.report.terminal._finding", planted)


def concluding(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("eqcheck.transparent.lane.with_axes", planted)


STEPS = (judging, explaining, minimising, rendering, in_markdown, on_the_page, in_the_terminal, concluding)


def reported(result: Audit, folder: Path) -> str:
    """The report of an audit in all media, which have to be there; the text for people."""
    report = write(result, folder)
    assert all((folder / name).stat().st_size for name in FILES)
    loaded = load(folder)
    assert loaded == report
    ElementTree.fromstring(junit([report], False).partition("\n")[2])
    for error in report.internal_errors:
        assert "planted" in error.traceback
        assert error.text.splitlines()[-2 if error.reproduce else -1]
        if error.case is not None:
            assert read_case(Path(error.reproduce.split()[2])).case.to_dict() == error.case
    for name in FILES[1:]:
        assert "INTERNAL ERROR" in (folder / name).read_text()
    return (folder / "report.md").read_text()


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.tiers(quick=1, rest=len(STEPS))
def test_an_exception_in_any_step_ends_no_audit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: Callable[[pytest.MonkeyPatch], None]
) -> None:
    monkeypatch.setattr("eqcheck.transparent.sequences.MINIMISE_S", 1.0)
    step(monkeypatch)
    result = audit(wrong_twice(), Options(cases=12))
    text = reported(result, tmp_path)
    assert "planted" in text
    assert result.internal
    assert exit_code([result], allow_known=True) == INTERNAL
    found = {finding.fingerprint for finding in result.violations}
    assert found == {"position/query-position", "bookkeeping/past-eos"}
    assert sum(finding.count for finding in result.violations) == result.tally.statuses["violation"]
    assert result.tally.run + sum(error.count for error in result.internal if error.step == "judge") >= 12
    assert result.verdict == "violation"


def test_without_a_violation_the_verdict_is_no_clean_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    judging(monkeypatch)
    right = registry.load("eqspec")
    decoder = eqcheck.decoder(name="right")(lambda *given: right(*given))
    result = audit(decoder, Options(cases=10))
    assert (result.verdict, result.violations, exit_code([result], False)) == ("inconclusive", [], INTERNAL)
    reported(result, tmp_path)
    report = load(tmp_path)
    assert [check.status for check in eqcheck.report.checks.checks(report, False)] == ["inconclusive", "inconclusive"]
    assert "eqcheck itself failed" in summary([report], [str(tmp_path)])
    (error,) = report.internal_errors
    assert f"; the same in {error.count} cases" in error.headline


def test_a_right_audit_has_no_internal_error(tmp_path: Path) -> None:
    right = registry.load("eqspec")
    result = audit(eqcheck.decoder(name="right")(lambda *given: right(*given)), Options(cases=10))
    assert not result.internal
    assert not write(result, tmp_path).internal_errors
    assert "INTERNAL" not in (tmp_path / "report.md").read_text() + (tmp_path / "report.html").read_text()


@pytest.mark.parametrize(
    "step",
    ["naming.cause", "lane.law_finding", "transparent_target.smallest", "judge.Gathered.exclusion", "judge.impossible"],
)
@pytest.mark.rest
def test_in_the_lane_of_sampling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    from eqcheck.catalogue.samplers import SAMPLED_FAULTS

    fault = next(fault for fault in SAMPLED_FAULTS if fault.name == "bonus-argmax").decoder("per_row")
    where = "transparent_target.cause" if step == "naming.cause" else step
    monkeypatch.setattr(f"eqcheck.sampling.{where}", planted)
    decoder = eqcheck.decoder(name="wrong", capabilities=("temperature",))(lambda *given: fault(*given))
    result = audit(decoder, Options(cases=120))
    if result.internal:
        reported(result, tmp_path)
        assert exit_code([result], False) == INTERNAL
    assert result.violations or result.internal


PLANT = """
import os
import eqcheck
import eqcheck.transparent.coverage as judging
from eqcheck.adapters.bsp import generate as bsp

own = judging.judge

def judge(done, *given):
    if len(done.case.prompts) == 2:
        raise KeyError("planted")
    return own(done, *given)

judging.judge = judge

@eqcheck.decoder(name="planted")
def wrong(target, draft, request):
    return bsp(target, draft, request)
"""


@pytest.mark.parametrize("more", [(), ("--isolate",), ("--jobs", "2")])
@pytest.mark.rest
def test_the_command_goes_on_wherever_the_decoder_runs(tmp_path: Path, more: tuple[str, ...]) -> None:
    (tmp_path / "planted.py").write_text(PLANT)
    done = command(tmp_path, "audit", "planted.py:wrong", "--cases", "12", "--out", "out", "--junit", "j.xml", *more)
    assert done.returncode == INTERNAL
    assert 'raise KeyError("planted")' in done.stderr  # the line of the traceback that says where
    assert "planted: violation in" in done.stdout
    folder = tmp_path / "out" / "planted"
    assert all((folder / name).is_file() for name in FILES)
    suite = ElementTree.parse(tmp_path / "j.xml").getroot()
    assert "internal error: KeyError" in [case.get("name") for case in suite.iter("testcase")]
    data = json.loads((folder / "report.json").read_text())
    assert {one["fingerprint"] for one in data["violations"]} == {"position/query-position", "bookkeeping/past-eos"}
    (error,) = data["internal_errors"]
    again = command(tmp_path, *error["reproduce"].split()[1:])
    assert again.returncode == INTERNAL
    # A replay judges and looks for the cause in one step, which is named by the latter.
    assert again.stdout.startswith("ERROR: INTERNAL ERROR: eqcheck failed when it looked for the cause")


@pytest.mark.rest
def test_the_suite_for_adapters_goes_on_and_ends_with_3(tmp_path: Path) -> None:
    (tmp_path / "planted.py").write_text(PLANT)
    words = ["--adapter", "planted.py:wrong", "--eqcheck-cases", "4", "-p", "no:cacheprovider", "-q"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env=environment(),
        check=False,
    )
    assert done.returncode == INTERNAL
    assert "eqcheck: internal errors" in done.stdout
    assert "position/query-position" in done.stdout  # what is wrong is told all the same
    assert list((tmp_path / ".eqcheck").rglob("transparent-*.json"))


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def command(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "eqcheck.cli", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        env=environment(),
        check=False,
    )


def test_errors_of_one_place_are_counted_once() -> None:
    found: list[InternalError] = []
    for case in (TWO, replace(TWO, seed=1), replace(TWO, seed=2)):
        with guarded(found, "judge", case):
            planted()
    with guarded(found, "explain", TWO):
        planted()
    assert [(one.step, one.count) for one in found] == [("judge", 3), ("explain", 1)]
    assert found[0].case == TWO.to_dict()
    again = list(found)
    for one in found:
        note(again, one)
    assert [one.count for one in again] == [6, 2]


def test_what_is_for_the_user_passes_the_guard_where_no_case_is_at_work() -> None:
    found: list[InternalError] = []
    with pytest.raises(UsageError, match="no such engine"), guarded(found, "explain"):
        raise UsageError("no such engine")
    with guarded(found, "explain", TWO):
        raise CaseError("a case that was derived is malformed")
    with pytest.raises(KeyboardInterrupt), guarded(found, "explain", TWO):
        raise KeyboardInterrupt
    assert [one.error for one in found] == ["CaseError"]


def test_a_record_crosses_pipes_and_shards() -> None:
    try:
        planted()
    except KeyError as error:
        failed = EqcheckFailed(internal_error("judge", error, TWO))
    assert pickle.loads(pickle.dumps(failed)).internal == failed.internal
    assert internal_error("explain", failed) == failed.internal  # the record of where it was first seen
    eqspec = registry.load("eqspec")
    shard = run(eqspec, Options(seed=3), 0, cases=2)
    result = Audit(eqspec, Options(), internal=[failed.internal])
    part = replace(shard.parts[0], internal=part_of(result).internal)
    again = from_builtins(to_builtins(replace(shard, parts=(part,), terms=terms_of(eqspec, Options(seed=3)))))
    assert merged(eqspec, Options(seed=3), [again]).internal == [failed.internal]


def test_a_worker_says_where_it_failed_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    judging(monkeypatch)
    running = Workers([LocalWorker(registry.load("eqspec"), try_case, 20.0)])
    first, second = running.outcomes([TWO, Case(prompts=((1, 2),))])
    assert first.internal is not None
    assert first.internal.message == "'planted'"
    assert "in planted" in first.internal.traceback
    assert (first.status, second.status) == ("unjudged", "equivalent")
    with pytest.raises(EqcheckFailed, match="planted"):
        running.try_case(TWO)


# The decoder's own doing is never an error of eqcheck.


@pytest.mark.parametrize("rows", [[[], []], [[], [5, 7, 2, 3]], [(), ()]])
def test_a_sampled_row_without_tokens_is_a_premature_stop(rows: list[list[int]]) -> None:
    case = SampledCase(((5, 7), (9,)), tuple(RowOptions(4, temperature=1.0) for _ in range(2)))
    outcome = try_sampled(lambda *_: rows, case, 20.0)
    assert outcome.fingerprint == "bookkeeping/premature-stop"
    assert outcome.explanation is not None
    assert outcome.explanation.row == 0


def test_a_whole_row_that_is_sampled_is_none() -> None:
    case = SampledCase(((5, 7), (9,)), tuple(RowOptions(4, temperature=1.0) for _ in range(2)))
    exspec = registry.load("exspec")
    assert try_sampled(lambda *given: exspec(*given), case, 20.0).status == "equivalent"


class Raises:
    """An object that raises what no ``except Exception`` catches."""

    def __index__(self) -> int:
        raise SystemExit("looked at")

    __repr__ = __str__ = __index__  # type: ignore[assignment]


@pytest.mark.parametrize("body", ["return [[Raises()] for _ in request.prompts]", "raise KeyboardInterrupt"])
@pytest.mark.rest
def test_what_an_object_or_a_decoder_raises_is_the_decoders(tmp_path: Path, body: str) -> None:
    text = "import eqcheck\nfrom test_internal_errors import Raises\n@eqcheck.decoder(name='sly')\n"
    text += f"def sly(target, draft, request):\n    {body}\n"
    (tmp_path / "sly.py").write_text(f"import sys\nsys.path.insert(0, {str(Path(__file__).parent)!r})\n{text}")
    with decoding(
        registry.load(str(tmp_path / "sly.py") + ":sly"), Limits(20.0), try_case, [], isolate=True
    ) as running:
        outcomes = list(running.outcomes([TWO, TWO]))
    assert [one.explanation.component for one in outcomes if one.explanation] == ["crash", "crash"]
    assert "ProcessExit" not in str(outcomes[0].fingerprint)


def test_counters_of_another_shape_say_nothing() -> None:
    told = {
        "drafted": None,
        "accepted": True,
        "preemptions": 2,
        "rounds": [[1, 2]],
        "accepted_of_rows": [1],
    }
    assert observed_of(told, 1) == {"preemptions": 2, "accepted_of_rows": [1]}
    assert observed_of([1], 1) == {}


@pytest.mark.rest
def test_an_engine_that_counts_wrongly_is_judged_by_its_tokens(tmp_path: Path) -> None:
    (tmp_path / "odd.py").write_text(
        "import eqcheck\nfrom eqcheck.reference_impls.eqspec import generate as right\n"
        "@eqcheck.decoder(name='odd')\nclass Odd:\n    observed = {'drafted': None, 'rounds': 3}\n"
        "    def __call__(self, *given):\n        return right(*given)\n"
    )
    case = EngineCase((EngineRow((1, 2), RowOptions(4)),))
    with worker(registry.load(f"{tmp_path / 'odd.py'}:Odd"), sys.executable, 60.0) as spawned:
        assert spawned.try_case(case).status == "equivalent"
