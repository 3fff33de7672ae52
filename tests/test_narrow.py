"""What the terminal shows fits into it, at 60 columns as at 80, and a pipe gets all of it as it is."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from pages import on_a_terminal, told

from eqcheck import cli
from eqcheck.kinds import FINGERPRINTS
from eqcheck.narrow import WHOLE, wrapped
from eqcheck.report.compare import compare, to_text
from eqcheck.report.terminal import summary
from eqcheck.text import render

SHOWCASE = ("showcase/bsp", "showcase/dsd", "showcase/hf_pr")
Printed = pytest.CaptureFixture[str]


def too_long(text: str, width: int) -> list[str]:
    """The lines that do not fit: commands are to be copied, frames of tracebacks stay, single words are not broken."""
    long = [line for line in text.splitlines() if len(line) > width]
    return [line for line in long if not re.search("eqcheck replay|  File ", line) and len(line.split()) > 2]


@pytest.mark.parametrize("width", [60, 80, 200])
def test_a_report_fits(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    reports = [told(name) for name in (*SHOWCASE, "openvino_genai", "vllm")]
    on_a_terminal(monkeypatch, width)
    text = summary(reports, (*SHOWCASE, "a", "b"))
    assert too_long(text, width) == []
    monkeypatch.undo()
    monkeypatch.setenv("COLUMNS", str(width))
    whole = summary(reports, (*SHOWCASE, "a", "b"))
    assert too_long(whole, width), "a pipe gets the lines as they are, and what does not fit is seen"
    words = set(re.findall(r"[\w./-]{3,}", whole)) - set(re.findall(r"[\w./-]{3,}", text))
    assert words <= {"yes", "slot", "holds", *re.findall("-{3,}", whole)}, "nothing else is left out"


@pytest.mark.parametrize("width", [60, 80])
def test_lists_and_comparisons_fit(width: int, monkeypatch: pytest.MonkeyPatch, capsys: Printed) -> None:
    on_a_terminal(monkeypatch, width)
    for command in ("list", "kinds"):
        assert cli.main([command]) == 0
        text = capsys.readouterr().out
        assert too_long(text, width) == [], command
        names = FINGERPRINTS if command == "kinds" else ("bsp", "eqspec", "vllm")
        assert all(re.search(rf"^{re.escape(name)}\b", text, re.M) for name in names)
    assert too_long(to_text([compare(told("showcase/bsp"), told("showcase/dsd"))]), width) == []


def test_a_narrow_picture_says_what_the_table_says() -> None:
    e = told("showcase/bsp").violations[0].evidence
    assert "slot    holds" in render(e, 100)
    assert "slot    holds" not in (text := render(e, 60))
    assert "  - slot 2: rejected draft at position 2, id 62, carries 2,\n    hidden\n" in text
    assert "  - slot 3: position 2, id 104, carries 3 where 2 is right,\n    seen   <--" in text
    assert text.count("<--") == render(e).count("<--") == 1
    wrong = replace(e.slots[2], visible=True)
    assert "hidden, seen, should be hidden   <--" not in text
    shown = " ".join(render(replace(e, slots=(*e.slots[:2], wrong, *e.slots[3:])), 60).split())
    assert "slot 2: rejected draft at position 2, id 62, carries 2, seen, should be hidden <--" in shown


def test_words_are_not_broken() -> None:
    link = "https://example.org/" + "a" * 80
    assert wrapped(f"see {link}", 40) == f"see\n  {link}"
    assert wrapped("x " * 100, WHOLE) == "x " * 100
