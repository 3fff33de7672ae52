"""Large cases, special ids and rare conjunctions are met within few cases; small bounds show that this can fail."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from eqcheck import cli
from eqcheck.audit.coverage_words import TRANSPARENT
from eqcheck.audit.loop import audit
from eqcheck.catalogue.faults.conjunctions import RARE
from eqcheck.contract import registry
from eqcheck.contract.profiles import WIDE, Bounds
from eqcheck.core.result.findings import Options
from eqcheck.selfcheck import faults as module
from eqcheck.selfcheck.faults import RARE_USUAL, SelfCheck, check_rare
from eqcheck.transparent.drawing import USUAL
from eqcheck.transparent.search import Source

SPECIAL = ("zero_in_prompt", "zero_emitted", "last_id_in_prompt", "last_id_emitted", "pad_emitted", "pad_outside")


@pytest.mark.long
def test_rare_conjunctions_are_met() -> None:
    found = check_rare()
    assert [one.id for one in found] == [rare.id for rare in RARE]
    assert len(found) >= 24
    assert SelfCheck((), (), found).failures == []
    assert sum(one.cases is not None and one.cases <= RARE_USUAL for one in found) >= 0.9 * len(found)
    assert sum(one.held_back for one in found) >= 8


@pytest.mark.rest
def test_small_cases_do_not_meet_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "Source", partial(Source, bounds=USUAL))
    monkeypatch.setattr(module, "RARE_MOST", 100)
    failures = SelfCheck((), (), check_rare()).failures
    assert "crosses-64: not caught in 100 cases" in failures
    assert "nine-rows: not caught in 100 cases" in failures
    assert not any(failure.startswith("equal-prompts") for failure in failures)
    assert failures[-1].endswith("rare conjunctions not met within 300 cases")


@pytest.mark.long
def test_an_audit_meets_large_cases_and_special_ids() -> None:
    result = audit(replace(registry.load("eqspec"), capabilities=(), seeds="none"), Options(cases=300))
    assert result.verdict == "equivalent"
    for name in (
        *SPECIAL,
        "equal_prompts",
        "prompt_begins_another",
        "row_past_64",
        "row_past_128",
        "at_end_of_64",
        "at_end_of_128",
        "repeats_a_token",
        "between_buckets",
        "shares_first_block",
        "shares_later_block",
        "weights_changed",
    ):
        assert name in TRANSPARENT.counters
        assert result.coverage[name] >= 3, name
    largest = result.tally.reached
    assert largest["rows"] == WIDE.rows
    assert largest["draft_tokens"] == WIDE.draft_tokens
    assert largest["prompt"] > 128


def audited(out: Path, *words: str) -> dict[str, Any]:
    greedy = out / "greedy.py"  # no bound is of how it samples
    greedy.write_text(
        "import dataclasses, eqcheck\n"
        "greedy = dataclasses.replace(eqcheck.load('eqspec'), capabilities=(), seeds='none')\n"
    )
    asked = ["audit", "--adapter", str(greedy), "--cases", "60", "--no-corpus", "--out", str(out), *words]
    assert cli.main(asked) == 0
    report: dict[str, Any] = json.loads((out / "eqspec" / "report.json").read_text())
    assert "At most " in (out / "eqspec" / "report.md").read_text()
    return report


@pytest.mark.rest
def test_bounds_are_options(tmp_path: Path) -> None:
    small = ("--max-rows", "2", "--max-prompt", "3", "--max-new-tokens", "4", "--max-draft-tokens", "1")
    assert audited(tmp_path, *small)["reached"] == {"rows": 2, "prompt": 3, "new_tokens": 4, "draft_tokens": 1}
    wide = audited(tmp_path, "--max-rows", "40", "--max-prompt", "600", "--max-new-tokens", "90")["reached"]
    assert wide["rows"] > WIDE.rows
    assert wide["prompt"] > WIDE.prompt
    assert wide["new_tokens"] > WIDE.new_tokens


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--max-rows", "0"), "argument --max-rows: expected an integer from 1 to 256, got '0'"),
        (("--max-prompt", "1024"), "argument --max-prompt: expected an integer from 1 to 1023, got '1024'"),
        (("--max-draft-tokens", "-1"), "argument --max-draft-tokens: expected an integer from 1 to 64, got '-1'"),
        (("--max-new-tokens", "ten"), "argument --max-new-tokens: expected an integer from 1 to 1023, got 'ten'"),
    ],
)
def test_bounds_that_cannot_be(words: tuple[str, str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["audit", "--adapter", "eqspec", *words]) == 4
    assert message in capsys.readouterr().err


@pytest.mark.rest
def test_what_no_case_may_ask_is_not_drawn() -> None:
    source = Source(1, ("rotary",), ("left",), ("empty",), bounds=Bounds(256, 1023, 1023, 64))
    drawn = source.chunk(0)
    assert len(drawn) == 50
    assert max(len(case.prompts) for case in drawn) > 12
