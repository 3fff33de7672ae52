"""Files of every kind that eqcheck reads, changed anywhere: each is read, or refused in one line; and large ones."""

from __future__ import annotations

import copy
import gc
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from eqcheck import cli
from eqcheck.audit import shards
from eqcheck.audit.shards import Shard, part_of, read, to_builtins
from eqcheck.contract import known_violations
from eqcheck.contract.decoders import RowOptions, decoder
from eqcheck.contract.errors import UsageError
from eqcheck.core.case.engine import EngineCase, EngineRow
from eqcheck.core.case.record import Case
from eqcheck.core.explanation.notice import VACUOUS, InternalError, Notice
from eqcheck.core.explanation.records import Explanation, Slot
from eqcheck.core.result.claims import Claim, Unreached
from eqcheck.core.result.findings import Audit, Finding, Options
from eqcheck.core.result.outcome import Loss, Outcome
from eqcheck.core.store.casefile import parsed_case
from eqcheck.report import load
from eqcheck.report.compare import compare
from eqcheck.report.markdown import to_markdown
from eqcheck.report.page import compared_to_html, to_html
from eqcheck.report.terminal import summary
from eqcheck.sampling.betting.exclusion import Exclusion
from eqcheck.sampling.betting.laws import SampledRow
from eqcheck.sampling.betting.wealth import Wealth

REPORT = json.loads((Path(__file__).resolve().parents[2] / "reports/showcase/bsp/report.json").read_text())
BARE = Case(prompts=((1, 2), (3,)), accepts=((1,), (0,)), before=(Case(prompts=((4,),)),)).to_dict()
STORED = {"format": "eqcheck-violation/1", "adapter": "eqspec", "fingerprint": "cache/stale-entry", "case": BARE}
ENGINE = {**STORED, "case": EngineCase((EngineRow((1, 2), RowOptions(4)),)).to_dict()}
KNOWN = (
    '[[violation]]\nfingerprint = "mask/window"\nlink = "https://example.org/1"\nuntil = 2027-03-31\ndecoder = "mine"\n'
)


MINE = decoder(name="mine")(lambda target, draft, request: [])


def stored_shard() -> dict[str, Any]:
    """A shard with a record of each sort."""
    case, wrong = (
        Case(prompts=((1, 2), (3,))),
        Explanation("mask", "window", 0, slots=(Slot(1, "pad", 0, 3, 3, True, True),)),
    )
    outcome = Outcome(case, "violation", explanation=wrong, losses=((Loss("rounds"), 2),), traits=(1, "none"))
    row = SampledRow(np.zeros(4, np.int64), law := np.full((4, 4), 0.25), None, law, np.zeros(4, bool))
    result = Audit(MINE, Options(), "sampling", MINE.families, MINE.families, outcomes=[outcome])
    result.wealth, result.exclusion, result.telling = Wealth(), Exclusion(), (1.5, outcome)
    result.wealth.add([row], "std")
    result.exclusion.add([row], "std")
    result.warnings, result.unreached = [Notice("none", VACUOUS)], [Unreached(Claim("drafter", "ngram"), 9)]
    result.findings = [Finding(outcome, wrong, axes={"rows": {"1": (1, 2)}})]
    result.internal = [InternalError("judge", "sampling", "KeyError", "'x'", "law.py:1", "")]
    part = part_of(result)
    return to_builtins(Shard(shards.terms_of(MINE, Options()), 0, 5, None, (part,), stored={"a.json": "{}"}))


def read_in_a_file(data: Any, name: str, reader: Callable[[Path], Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / name).write_text(json.dumps(data))
        reader(Path(folder))


READERS: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "case": (STORED, lambda data: parsed_case(json.dumps(data))),
    "bare case": (BARE, lambda data: parsed_case(json.dumps(data))),
    "case of an engine": (ENGINE, lambda data: parsed_case(json.dumps(data))),
    "report": (REPORT, lambda data: read_in_a_file(data, "report.json", load)),
    "shard": (stored_shard(), lambda data: read_in_a_file(data, "00000.json", lambda folder: list(read(folder)))),
}
ODD = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**19), 10**19) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
    max_leaves=4,
)


def places(data: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    return [at, *(place for name, one in inner for place in places(one, (*at, name)))]


def changed(data: Any, place: tuple[Any, ...], value: Any) -> Any:
    if not place:
        return value
    data = copy.copy(data)
    data[place[0]] = changed(data[place[0]], place[1:], value)
    return data


def refused_in_one_line(reading: Callable[[], Any]) -> None:
    said = ""
    try:
        reading()
    except UsageError as error:
        said = str(error)
    assert "\n" not in said


@pytest.mark.parametrize("kind", READERS)
@pytest.mark.tiers(quick=3, rest=1)
def test_a_file_changed_anywhere_is_read_or_refused_in_one_line(kind: str) -> None:
    whole, reader = READERS[kind]

    @settings(max_examples=150, deadline=None)
    @given(st.sampled_from(places(whole)), ODD)
    @example(("format",), [])
    @example(("format",), {})
    @example(("format",), None)
    def one_change(place: tuple[Any, ...], value: Any) -> None:
        refused_in_one_line(lambda: reader(changed(whole, place, value)))

    reader(whole)
    one_change()


@settings(max_examples=150, deadline=None)
@given(
    st.integers(0, len(KNOWN)), st.integers(0, 8), st.text(max_size=8) | st.sampled_from(["[]", "{}", "1", "[[", "inf"])
)
def test_so_is_a_file_of_known_violations(at: int, cut: int, put: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "known.toml"
        file.write_bytes((KNOWN[:at] + put + KNOWN[at + cut :]).encode("utf-8", "surrogatepass"))
        refused_in_one_line(lambda: known_violations.load(file))


@pytest.mark.parametrize("format_", [[], {}, None, 1, [["eqcheck-case/1"]]])
@pytest.mark.parametrize("whole", [STORED, BARE, ENGINE])
def test_replay_of_an_odd_format_is_a_usage_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], whole: dict[str, Any], format_: Any
) -> None:
    file = tmp_path / "case.json"
    for data in ({**whole, "format": format_}, {**whole, "case": {**BARE, "format": format_}}):
        file.write_text(json.dumps(data))
        assert cli.main(["replay", str(file)]) == 4
        printed = capsys.readouterr().err
        assert len(printed.splitlines()) == 1, printed


@pytest.mark.parametrize("name", ["../outside.py", "/tmp/outside.py", "..", "a/../../b", ".hidden"])
def test_no_file_of_a_shard_lies_elsewhere(tmp_path: Path, name: str) -> None:
    shard = stored_shard()
    for data in (changed(shard, ("parts", 0, "files"), {name: ""}), {**shard, "stored": {name: "{}"}}):
        (tmp_path / "00000.json").write_text(json.dumps(data))
        with pytest.raises(UsageError, match="Expected `str` matching regex"):
            list(read(tmp_path))


def test_no_folder_is_read_that_only_the_file_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "case.json"
    file.write_text(json.dumps({**STORED, "case": {**BARE, "family": f"rotary@{tmp_path}", "before": []}}))
    assert cli.main(["replay", str(file)]) == 4
    printed = capsys.readouterr().err
    assert f"got a folder to read, '{tmp_path}'; if you trust it, type: eqcheck replay" in printed
    assert f"--target {tmp_path}" in printed


@pytest.mark.parametrize(
    "words", [["replay", "nothere.json"], ["audit", "nothere.py"], ["audit", "eqspek"], ["report", "nothere"]]
)
@pytest.mark.tiers(quick=2, rest=2)
def test_what_is_not_there_is_told_without_torch(words: list[str]) -> None:
    code = f"import sys; sys.modules['torch'] = None\nfrom eqcheck import cli\nsys.exit(cli.main({words}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr.count("\n")) == (4, 1), done.stderr


@pytest.mark.rest
def test_a_report_of_thousands_of_violations_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = REPORT["violations"][0]
    many = [{**one, "fingerprint": f"{one['fingerprint']}:{number}"} for number in range(6000)]
    (tmp_path / "report.json").write_text(json.dumps({**REPORT, "violations": many}))
    report = load(tmp_path)
    assert summary([report], ["there"]).count("  Reproduce  ") == to_markdown(report).count("Reproduce:") == 6000
    page = to_html(report)
    assert page.count("<article") == 100
    assert "5900 findings of this audit stand in report.json alone" in page


@pytest.mark.rest
def test_two_reports_of_thousands_of_violations_are_compared_on_a_small_page(tmp_path: Path) -> None:
    one, folders = REPORT["violations"][0], [tmp_path / "before", tmp_path / "now"]
    for folder, first in zip(folders, (0, 300), strict=True):
        folder.mkdir()
        numbered = [{**one, "fingerprint": f"{one['fingerprint']}:{first + n}"} for n in range(600)]
        (folder / "report.json").write_text(json.dumps({**REPORT, "violations": numbered}))
    before, now = map(load, folders)
    assert gc.isenabled()
    page = compared_to_html([compare(before, now)])
    assert "300 causes are new, 300 causes are still there, 300 causes are gone." in page
    assert page.count("<tr><td><b class=") == 500
    assert "400 more causes: the command prints all of them." in page


@pytest.mark.rest
def test_to_read_a_report_needs_no_torch(tmp_path: Path) -> None:
    folder = Path(__file__).resolve().parents[2] / "reports/showcase/bsp"
    words = ["report", str(folder), "--html", str(tmp_path / "page.html")]
    code = f"import sys; sys.modules['torch'] = None\nfrom eqcheck import cli\nsys.exit(cli.main({words}))"
    assert subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL).returncode == 0
