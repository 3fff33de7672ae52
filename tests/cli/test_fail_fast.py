"""`--fail-fast` ends the drawing at a failing case, but not at one that is known."""

from __future__ import annotations

import pytest

import eqcheck
from eqcheck.audit.loop import audit
from eqcheck.cli import _parsed, _parser
from eqcheck.cli.plan import Plan
from eqcheck.core.explanation.notice import VACUOUS
from eqcheck.core.result.findings import Options

SHORT = "bookkeeping/premature-stop"
RIGHT = eqcheck.load("eqspec").function


@eqcheck.decoder(name="right")
def right(target: object, draft: object, request: eqcheck.Request) -> list[list[int]]:
    return [list(row) for row in RIGHT(target, draft, request)]


@eqcheck.decoder(name="short")
def short(target: object, draft: object, request: eqcheck.Request) -> list[list[int]]:
    rows = right.function(target, draft, request)
    return [row[: max(1, min(map(len, rows)))] for row in rows]


@pytest.mark.parametrize(
    ("decoder", "passing", "all_drawn"), [(short, (), False), (short, (SHORT,), True), (right, (), True)]
)
@pytest.mark.tiers(quick=2, rest=1)
def test_drawing_ends_at_a_failing_case_that_is_not_known(
    decoder: eqcheck.Decoder, passing: tuple[str, ...], all_drawn: bool
) -> None:
    result = audit(decoder, Options(cases=20, fail_fast=frozenset(passing)))
    assert result.verdict == ("equivalent" if decoder is right else "violation")
    assert (result.tally.run == 20) == all_drawn
    assert {one.fingerprint for one in result.violations} == (set() if decoder is right else {SHORT})


@pytest.mark.parametrize("passing", [(), (SHORT,)])
def test_too_little_was_asked_only_where_all_was_drawn(passing: tuple[str, ...]) -> None:
    """An audit that ended at its first violation asked for less than it could, and does not say so."""
    result = audit(short, Options(cases=5, fail_fast=frozenset(passing)))
    assert result.violations
    assert any(getattr(said, "kind", "") == VACUOUS for said in result.warnings) == bool(passing)


def test_it_is_off_unless_it_is_asked() -> None:
    plans = [Plan.of(_parsed(_parser(), ["audit", "eqspec", *words])) for words in ((), ("--fail-fast",))]
    assert [plan.asked.fail_fast for plan in plans] == [None, frozenset()]
