"""The published reports of engines are whole, of one version of eqcheck, and told in reports/README.md."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from committed import ROOT, committed

from eqcheck import __version__
from eqcheck.contract import registry
from eqcheck.core.store.casefile import read_case, write_whole
from eqcheck.report import load

ENGINES = [path.parent.name for path in committed("reports/*/report.json")]
SHARED = ROOT / "reports" / "shared"


@pytest.mark.parametrize("engine", ENGINES)
def test_a_report_is_of_this_version_and_says_what_was_asked(engine: str) -> None:
    report = load(ROOT / "reports" / engine)
    assert report.versions["eqcheck"] == __version__
    assert report.decoder.name == engine
    assert {one.dtype for one in report.served} == {registry.load(engine).dtype}
    assert sum(one.cases for one in report.served) >= 100
    assert f"`{engine}/`" in (ROOT / "reports" / "README.md").read_text() or engine.startswith("llama_cpp_")


def _with_what_it_imports(script: Path) -> set[Path]:
    """A script, and the files beside it that it imports, or that these import."""
    beside_it = committed(f"reports/{script.parent.name}/*.py")
    found, texts = {script}, [one.read_text() for one in beside_it]
    for name in ("_engine", "_sampling", "_checkpoint", "_law"):
        beside = script.with_name(f"{name}.py")
        if beside.exists() and any(name in text for text in texts):
            found.add(beside)
    return found


@pytest.mark.parametrize("engine", ENGINES)
def test_every_finding_has_a_case_and_nothing_else_is_there(engine: str) -> None:
    report, folder = load(ROOT / "reports" / engine), ROOT / "reports" / engine
    named = {folder / "report.json", folder / "report.md"}
    for violation in (*report.violations, *report.inconclusive):
        for condition in violation.conditions:
            case = ROOT / condition.reproduce.removeprefix("eqcheck replay ")
            assert str(read_case(case).fingerprint).startswith(violation.fingerprint)
            assert condition.without_speculation in ("", "right", "wrong too")
            named |= {case, *(_with_what_it_imports(ROOT / condition.script) if condition.script else [])}
    assert named == set(committed(f"reports/{engine}/**/*"))


def _again(files: Sequence[Path]) -> list[Path]:
    """The files whose text another file before them has; a link is no file of its own."""
    own = [path for path in files if not path.is_symlink()]
    texts = [path.read_text() for path in own]
    return [path for number, path in enumerate(own) if texts[number] in texts[:number]]


def test_scripts_share_files_by_links_and_no_text_is_there_twice() -> None:
    scripts = committed("reports/**/*.py")
    assert _again(scripts) == [], "an audit wrote copies: make each a link to the file in reports/shared/"
    assert {path.resolve() for path in scripts if path.is_symlink()} == set(committed("reports/shared/*"))


def test_a_copy_that_an_audit_writes_in_place_of_a_link_is_seen(tmp_path: Path) -> None:
    link, law = tmp_path / "_law.py", (SHARED / "law.py").read_text()
    link.symlink_to(SHARED / "law.py")
    assert _again([SHARED / "law.py", link]) == []
    write_whole(link, law)
    assert _again([SHARED / "law.py", link]) == [link]
    write_whole(link, "")
    assert (SHARED / "law.py").read_text() == law
