"""``known.toml``: what passes, until when, and one clear message for each file that is wrong."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest

from eqcheck.cli import main
from eqcheck.cli.audit import exit_code
from eqcheck.contract import registry
from eqcheck.contract.errors import UsageError
from eqcheck.contract.known_violations import Known, in_ci, load, older, unheard
from eqcheck.core.case.record import Case
from eqcheck.core.explanation.records import Explanation
from eqcheck.core.result.findings import Audit, Finding, Options
from eqcheck.core.result.outcome import Outcome
from eqcheck.core.result.tally import Alike, Tally
from eqcheck.report.build import report_of
from eqcheck.report.checks import checks
from eqcheck.report.terminal import summary

TODAY = date(2026, 11, 23)
PAST_EOS = "bookkeeping/past-eos"
ENTRY = f"""[[violation]]
fingerprint = "{PAST_EOS}"
decoder = "eqspec"
link = "https://example.org/1"
until = 2026-12-31
"""


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "known.toml"
    path.write_text(text)
    return path


def audit(*kinds: str) -> Audit:
    """An audit of eqspec that found violations of these fingerprints."""
    decoder = registry.load("eqspec")
    result = Audit(decoder, Options(), families=decoder.families, claimed_families=decoder.families)
    for fingerprint in kinds:
        component, kind = fingerprint.split("/")
        explanation = Explanation(component, kind, row=0, token_index=0)
        outcome = Outcome(Case(prompts=((3, 1),)), "violation", explanation=explanation)
        result.outcomes.append(outcome)
        result.findings.append(Finding(outcome, explanation))
    return result


def listed(result: Audit, today: date = TODAY, **changed: object) -> Audit:
    entry = Known(PAST_EOS, "https://example.org/1", date(2026, 12, 31), "eqspec")
    result.list_known([replace(entry, **changed)], today)  # type: ignore[arg-type]
    return result


def test_a_file_is_read(tmp_path: Path) -> None:
    entry = Known(PAST_EOS, "https://example.org/1", date(2026, 12, 31), "eqspec")
    assert load(written(tmp_path, ENTRY)) == (entry,)
    assert load(written(tmp_path, ENTRY.replace('decoder = "eqspec"\n', ""))) == (replace(entry, decoder=""),)
    assert load(written(tmp_path, "")) == ()


@pytest.mark.parametrize(
    ("right", "wrong", "said"),
    [
        (PAST_EOS, "bookkeeping/past-eso", "did you mean 'bookkeeping/past-eos'?"),
        (f'"{PAST_EOS}"', "3", "expected a fingerprint such as 'mask/window', got 3."),
        ('link = "https://example.org/1"', "", "(bookkeeping/past-eos): expected a link, 'https://...', got none"),
        ("https://example.org/1", "javascript:alert(1)", "expected a link"),
        ("https://example.org/1", "https://example.org/\\u001b[31m", "expected a link"),
        ("2026-12-31", '"2026-12-31"', "expected until = a date such as 2027-03-31, without quotes"),
        ("2026-12-31", "2026-12-31T00:00:00", "expected until = a date"),
        ("2026-12-31", "2026-13-31", "not TOML"),
        ("until = 2026-12-31", "", "expected until = a date"),
        ('"eqspec"', "[1]", "expected the name of a decoder"),
        ("decoder", "decodr", "unknown field 'decodr'; did you mean 'decoder'?"),
        ("[[violation]]", "[violation]", "expected tables [[violation]] and nothing else"),
        ("[[violation]]", "[[violations]]", "expected tables [[violation]] and nothing else, got violations"),
        ("[[violation]]", "][", "not TOML"),
        (ENTRY, ENTRY + ENTRY, "is listed twice"),
        (ENTRY, "x = " + "[" * 100_000, "not TOML"),
    ],
)
def test_a_wrong_file_gives_one_clear_line(tmp_path: Path, right: str, wrong: str, said: str) -> None:
    path = written(tmp_path, ENTRY.replace(right, wrong))
    with pytest.raises(UsageError) as raised:
        load(path)
    assert said in str(raised.value)
    assert str(raised.value).startswith(f"known violations, {path}: ")
    assert str(raised.value).isprintable()


def test_a_file_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        load(tmp_path / "none.toml")
    with pytest.raises(UsageError, match="cannot be read"):
        load(tmp_path)
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="not TOML"):
        load(tmp_path / "bytes.toml")


def test_a_wrong_file_ends_an_audit_before_it_begins(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, ENTRY.replace("past-eos", "past"))
    assert main(["audit", "eqspec", "--known", str(path), "--out", str(tmp_path / "out")]) == 4
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_a_listed_violation_passes_until_its_last_day() -> None:
    assert exit_code([audit(PAST_EOS)], False) == 1
    known = listed(audit(PAST_EOS))
    assert (exit_code([known], False), known.warnings) == (0, [])
    assert exit_code([listed(audit(PAST_EOS), date(2026, 12, 31))], False) == 0
    past = listed(audit(PAST_EOS), date(2027, 1, 1))
    assert exit_code([past], False) == 1
    assert past.warnings == [
        "listed as known, bookkeeping/past-eos (https://example.org/1): fails again, for its last day, 2026-12-31, "
        "is past"
    ]


def test_only_what_is_listed_passes() -> None:
    assert exit_code([listed(audit(PAST_EOS, "mask/window"))], False) == 1
    assert exit_code([listed(audit("mask/window"))], False) == 1
    assert exit_code([listed(audit(PAST_EOS), decoder="another")], False) == 1
    assert exit_code([listed(audit(PAST_EOS), decoder="")], False) == 0
    assert exit_code([listed(audit(PAST_EOS), fingerprint="bookkeeping/past-eos:subject")], False) == 1


@pytest.mark.rest
def test_an_entry_of_a_decoder_that_is_not_audited_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A misspelt name would otherwise be an entry that nobody hears of again."""
    assert unheard([Known(PAST_EOS, "https://example.org/1", TODAY)], ["eqspec"]) == ""
    monkeypatch.setattr("eqcheck.selfcheck.faults.short", lambda: type("Right", (), {"failures": []}))
    words = ["--cases", "3", "--no-corpus", "--out", str(tmp_path / "out")]
    for name, said in (("eqspec", False), ("eqspek", True)):
        path = written(tmp_path, ENTRY.replace('"eqspec"', f'"{name}"'))
        main(["audit", "eqspec", "--known", str(path), *words])
        printed = capsys.readouterr().err
        assert ("not audited here: 'eqspek'; did you mean 'eqspec'?" in printed) == said


def test_what_other_machines_saw_has_occurred() -> None:
    """Of cases that were drawn elsewhere there are counts, and no outcomes."""
    cases = Tally(alike=Counter({Alike(True, "rotary", "violation", PAST_EOS): 300}))
    for seen, warned in ({PAST_EOS}, 0), (set(), 1):
        result = audit()
        result.decoder = replace(result.decoder, known={PAST_EOS: "https://example.org/1"})
        result.counted = replace(cases, fingerprints=seen)
        listed(result)
        assert len(result.warnings) == warned
        assert result.stale == [PAST_EOS] * warned


def test_what_no_longer_occurs_is_told_and_fails_nothing() -> None:
    gone = audit()
    gone.outcomes.append(Outcome(Case(prompts=((3, 1),)), "equivalent"))
    listed(gone)
    assert exit_code([gone], False) == 0
    assert gone.warnings == [
        "listed as known, bookkeeping/past-eos (https://example.org/1): did not occur in 1 case; if it is gone, take "
        "the entry out"
    ]


def test_what_did_not_occur_may_be_hidden_by_other_failures() -> None:
    other = listed(audit("mask/window"))
    assert (
        "did not occur in 1 case, and 1 of them fails otherwise, which may hide it; if it is gone" in other.warnings[0]
    )


@pytest.mark.parametrize(
    ("kinds", "cases", "today", "code"),
    [
        ((PAST_EOS,), 300, TODAY, 0),
        ((PAST_EOS,), 1, date(2027, 1, 1), 1),
        ((), 299, TODAY, 0),  # too few to say that it is gone
        ((), 300, TODAY, 1),
        ((), 300, date(2027, 1, 1), 1),
    ],
)
def test_where_it_is_strict_an_entry_that_is_past_or_gone_fails(
    kinds: tuple[str, ...], cases: int, today: date, code: int, tmp_path: Path
) -> None:
    results = []
    for strict in (True, False):
        result = audit(*kinds)
        result.counted = Tally(alike=Counter({Alike(True, "rotary", "equivalent", ""): cases - len(result.outcomes)}))
        result.list_known([Known(PAST_EOS, "https://example.org/1", date(2026, 12, 31), "eqspec")], today, strict)
        results.append(result)
    strictly, loosely = results
    assert strictly.warnings == loosely.warnings
    assert exit_code([strictly], False) == code
    assert exit_code([loosely], False) == int(bool(kinds) and today > TODAY)
    assert bool(strictly.outdated) == bool(code)
    report = report_of(strictly, tmp_path)
    assert checks(report, False)[0].status == ("failed" if code else "passed")
    assert ("  FAILED: " in summary([report], ["out"])) == bool(code)


def test_an_entry_that_is_gone_and_past_is_told_as_both() -> None:
    both = listed(audit(), date(2027, 1, 1))
    assert both.warnings == [
        "listed as known, bookkeeping/past-eos (https://example.org/1): did not occur in 0 cases, and its last day, "
        "2026-12-31, is past: take the entry out"
    ]


def test_ci_is_strict(monkeypatch: pytest.MonkeyPatch) -> None:
    for value, strict in (("", False), ("false", False), ("0", False), ("true", True), ("1", True)):
        monkeypatch.setenv("CI", value)
        assert in_ci() == strict


def test_a_report_says_until_when_a_violation_is_known(tmp_path: Path) -> None:
    (violation,) = report_of(listed(audit(PAST_EOS)), tmp_path).violations
    assert (violation.known, violation.known_until) == ("https://example.org/1", "2026-12-31")
    assert violation.in_known_words == "known until 2026-12-31: https://example.org/1"
    (violation,) = report_of(audit(PAST_EOS), tmp_path).violations
    assert (violation.known, violation.known_until, violation.in_known_words) == (None, None, "")


def test_what_a_decoder_of_the_user_declares_in_code_is_called_the_older_way() -> None:
    shipped = registry.load("bsp")
    assert not older([shipped, replace(registry.load("eqspec"), name="mine")], registry.shipped())
    assert older([replace(shipped, name="mine")], registry.shipped()).startswith("mine: known= is the older way")
