"""`eqcheck.kit`: a class that names a decoder or a server has tests, which fail by the part that is wrong."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from unittest import SkipTest

import pytest
from test_openai_http import serving

import eqcheck
from eqcheck.contract.kinds import KINDS
from eqcheck.kit import CONTEXT, Equivalence

RIGHT = eqcheck.load("eqspec").function


@eqcheck.decoder(name="short")
def short(target: object, draft: object, request: eqcheck.Request) -> list[list[int]]:
    rows = [list(row) for row in RIGHT(target, draft, request)]
    return [row[: max(1, min(map(len, rows)))] for row in rows]


def test_every_component_has_a_test() -> None:
    own = {"bookkeeping", "options", "sampling", "crash", "unattributed"}
    assert {kind.component for kind in KINDS.values()} == own | {*CONTEXT}


@pytest.mark.rest
def test_a_wrong_decoder_fails_one_test_and_a_right_one_none() -> None:
    class Wrong(Equivalence):
        adapter, cases = short, 20

    names = [name for name in dir(Wrong) if name.startswith("test_")]
    assert len(names) == 7
    with pytest.raises(eqcheck.Violation, match=r"^bookkeeping/premature-stop in \d+ of 20 cases\n"):
        Wrong().test_ends()
    for name in {*names} - {"test_ends"}:
        getattr(Wrong(), name)()


KNOWN = """
[[violation]]
fingerprint = "bookkeeping/premature-stop"
link = "https://example.org/1"
until = 9999-12-31
"""
PROJECT = """
import unittest
from eqcheck.kit import Equivalence

class TestRight(Equivalence, unittest.TestCase):
    adapter, cases = "eqspec", 12  # with fewer some claims are not tested, which is inconclusive
    test_options = None
"""


@pytest.mark.rest
def test_what_is_known_passes(tmp_path: Path) -> None:
    (tmp_path / "known.toml").write_text(KNOWN)

    class Listed(Equivalence):
        adapter, cases, known = short, 20, str(tmp_path / "known.toml")

    with pytest.warns(UserWarning, match="premature-stop shows, and is listed as known"):
        Listed().test_ends()


def test_a_known_violation_whose_day_is_past_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    (tmp_path / "known.toml").write_text(re.sub(r"until = \S+", "until = 2026-01-31", KNOWN))

    class Listed(Equivalence):
        adapter, cases, known = short, 20, str(tmp_path / "known.toml")

    with pytest.warns(UserWarning, match="2026-01-31"), pytest.raises(AssertionError):
        Listed().test_ends()


def test_a_list_of_known_that_is_not_there_is_told_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Listed(Equivalence):
        adapter, cases, known = short, 20, str(tmp_path / "known.toml")

    monkeypatch.setattr("eqcheck.audit.loop.audit", None)
    with pytest.raises(AssertionError, match=r"nothing was audited: .*known\.toml"):
        Listed().test_ends()


@pytest.mark.parametrize("command", ["unittest", "pytest"])
@pytest.mark.long
def test_both_runners_have_its_tests_but_those_switched_off(tmp_path: Path, command: str) -> None:
    (tmp_path / "test_project.py").write_text(PROJECT)
    words = [sys.executable, "-m", command, "test_project.py", "-v"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    said = done.stdout + done.stderr
    assert "test_ends" in said, said
    assert "test_options" not in said, said
    assert done.returncode == 0, said


@pytest.mark.long
def test_its_cases_are_those_of_the_profile() -> None:
    class Profiled(Equivalence):
        adapter = short

    with pytest.raises(eqcheck.Violation, match=r"of 200 cases[^$]*Reproduce: run this test;"):
        Profiled().test_ends()


SHORT = """
import eqcheck
right = eqcheck.load("eqspec").function

@eqcheck.decoder(name="short")
def short(target, draft, request):
    return [row[:-1] for row in right(target, draft, request)]
"""
FAILING = """
from eqcheck.kit import Equivalence

class TestShort(Equivalence):
    adapter, cases = "mine.py:short", 20
"""


@pytest.mark.rest
def test_what_pytest_shows_has_the_fingerprint_and_a_replay_that_fails(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(SHORT)
    (tmp_path / "test_short.py").write_text(FAILING)
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_short.py", "-k", "ends"]
    wide = {**os.environ, "COLUMNS": "200"}
    done = subprocess.run(words, cwd=tmp_path, env=wide, capture_output=True, text=True, check=False)
    summary = r"^FAILED test_short.py::TestShort::test_ends - eqcheck.Violation: bookkeeping/premature-stop in"
    assert re.search(summary, done.stdout, re.MULTILINE), done.stdout
    (command,) = re.findall(r"Reproduce: (eqcheck replay .*)", done.stdout.partition("short test summary")[0])
    assert command.endswith(" --adapter mine.py:short")
    words = [sys.executable, "-m", "eqcheck.cli", *command.split()[1:]]
    again = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (again.returncode, "premature-stop" in again.stdout) == (1, True)


@pytest.mark.rest
def test_a_server_is_named_by_its_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # the case is stored here
    with serving() as url:  # which tells one reason for every end

        class Served(Equivalence):
            base_url, cases = url.removesuffix("/v1"), 6

        with pytest.raises(AssertionError, match=f"finish-reason[^$]*EQCHECK_SPECULATIVE_URL={url} eqcheck replay"):
            Served().test_ends()
        Served().test_crashes()
        Served().test_conclusive()


def test_a_class_that_names_no_decoder_is_told_so() -> None:
    class Nameless(Equivalence):
        pass

    with pytest.raises(AssertionError, match="expected adapter = a SPEC"):
        Nameless().test_ends()
    with pytest.raises(SkipTest, match="expected adapter = a SPEC"):  # it is told once
        Nameless().test_options()

    class Plain(Equivalence):
        adapter = staticmethod(lambda target, draft, request: [])

    with pytest.raises(AssertionError, match=r"eqcheck\.decoder"):
        Plain().test_ends()
