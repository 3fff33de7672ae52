"""The plan of an audit: decided by its options alone, in a process that has imported no torch."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from eqcheck.cli import _parsed, _parser
from eqcheck.cli.plan import Plan
from eqcheck.contract import registry
from eqcheck.contract.errors import UsageError
from eqcheck.contract.profiles import SERVED, WIDE


def plan(*words: str) -> Plan:
    return Plan.of(_parsed(_parser(), ["audit", *words]))


@pytest.mark.parametrize(
    ("words", "cases", "budget"),
    [((), 300, None), (("--budget", "1m"), None, 60.0), (("--cases", "5", "--budget", "9"), 5, 9.0)],
)
def test_an_audit_ends_after_cases_or_at_a_time_or_at_the_first_of_both(
    words: tuple[str, ...], cases: int | None, budget: float | None
) -> None:
    made = plan(*words)
    assert (made.asked.cases, made.asked.budget) == (cases, budget)


def test_decoders_may_stand_anywhere_and_be_named_in_two_ways() -> None:
    made = plan("bsp", "--adapter", "hf_pr", "--seed", "7", "eqspec")
    assert sorted(made.specs) == ["bsp", "eqspec", "hf_pr"]
    assert made.command == "eqcheck audit bsp --adapter hf_pr --seed 7 eqspec"


def test_a_corpus_is_read_unless_it_is_left_out() -> None:
    assert (plan().corpus, plan("--no-corpus").corpus) == (".eqcheck", None)


def test_known_violations_are_read_before_anything_is_loaded(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"absent\.toml"):
        plan("--known", str(tmp_path / "absent.toml"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--target", "llama", "--families", "rotary"), "--target, --families: expected one of the two"),
        (("--json", "--ndjson", "-"), "both want standard output"),
        (("eqspecc",), "eqspecc"),
        (("absent.py",), "absent.py"),
    ],
)
def test_a_mistake_in_the_options_is_told(words: tuple[str, ...], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        plan(*words)


def test_two_reports_do_not_share_a_folder(tmp_path: Path) -> None:
    made, decoder = plan("--out", str(tmp_path)), registry.load("eqspec")
    assert made.loaded([decoder]).with_folders().folders == {"eqspec": tmp_path / "eqspec"}
    with pytest.raises(UsageError, match="two adapters are named 'eqspec'"):
        made.loaded([decoder, decoder]).with_folders()


def test_an_engine_has_targets_of_its_own_and_heeds_the_sizes_that_were_given() -> None:
    made = plan("--max-rows", str(WIDE.rows), "--python", sys.executable)
    made.loaded([registry.load("eqspec")])
    assert made.asked.within(SERVED) == replace(SERVED, rows=WIDE.rows), "also where it is the usual number of others"
    assert plan("--max-rows", "2").asked.bounds == replace(WIDE, rows=2)
    with pytest.raises(UsageError, match=r"--target: an engine that loads a checkpoint"):
        plan("--target", "llama", "--python", sys.executable).loaded([registry.load("eqspec")])


def test_a_plan_imports_no_torch() -> None:
    code = "from eqcheck.cli.plan import Plan; import sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
