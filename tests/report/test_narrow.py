"""What the terminal shows fits into it, at 60 columns as at 80, and a pipe gets all of it as it is."""

from __future__ import annotations

import re

import pytest
from pages import on_a_terminal, told

from eqcheck import cli
from eqcheck.contract.kinds import FINGERPRINTS
from eqcheck.core.explanation.layout import WHOLE, table, wrapped
from eqcheck.core.explanation.text import render
from eqcheck.report.compare import compare, to_text
from eqcheck.report.terminal import summary

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
    heads = {"match", "component"}
    assert words <= {*heads, *re.findall("-{3,}", whole)}, "nothing but heads is left out"


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


def test_a_narrow_picture_is_a_table_with_shorter_heads() -> None:
    e = told("showcase/bsp").violations[0].evidence
    assert "slot    holds" in render(e, width=100)
    lines = render(e, width=50).splitlines()
    assert "       slot  holds       token  pos. id     att." in lines
    at = lines.index("    >  3     position 2  104    3, must be  yes")
    assert lines[at + 1] == "             (query)            2"


def test_words_are_not_broken() -> None:
    link = "https://example.org/" + "a" * 80
    assert wrapped(f"see {link}", 40) == f"see\n  {link}"
    assert wrapped("x " * 100, WHOLE) == "x " * 100


def test_an_empty_column_is_no_reason_to_fail() -> None:
    rows = [["0", "a rejected draft at position 1 of row 12", "", "yes"], ["1", "position 3", "", "no"]]
    for width in (30, 40, 60):
        assert max(map(len, table(rows, ["slot", "holds", "", "seen"], width, tablefmt="plain").splitlines())) <= width
