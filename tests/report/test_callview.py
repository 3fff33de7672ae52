"""``eqcheck replay -v``: what is printed of a call is what the trace holds, and suffices to find the fault by hand."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch

import eqcheck
from eqcheck import cli
from eqcheck.contract.decoders import Request
from eqcheck.core.case.record import Case
from eqcheck.core.result.outcome import DrawnDecode
from eqcheck.report.calls import _ranges, parts, view
from eqcheck.transparent.attribution import story
from eqcheck.transparent.attribution.story import decode_of
from eqcheck.transparent.decoding import Run, run
from eqcheck.transparent.hashlm.trace import DRAFT, TARGET
from eqcheck.transparent.oracle import judge

CASE = Case(
    prompts=((5, 7, 9), (11,)), max_new_tokens=5, num_draft_tokens=2, accepts=((2, 0), (0, 1)), eos_token_ids=(1,)
)
SHOWCASE = Path(__file__).parents[2] / "reports" / "showcase" / "bsp" / "cases" / "position-query-position.json"
Printed = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def numbers(text: str) -> list[int]:
    """``0..2 5`` as the numbers it stands for."""
    found: list[int] = []
    for part in text.split():
        first, _, last = part.partition("..")
        found += range(int(first), int(last or first) + 1)
    return found


class Shown:
    """One batch row of one call, parsed from the text."""

    def __init__(self, role: str, text: str) -> None:
        head, *lines = text.splitlines()
        self.role = role
        self.request = int(found[1]) if (found := re.search(r"row (\d+)(, round|\))", head)) else None
        at = next(index for index, line in enumerate(lines) if line.startswith("    slot"))
        end = next((i for i, line in enumerate(lines) if not line.startswith("    ")), len(lines))
        self.table = [re.split(r"  +", line.strip()) for line in lines[1:at]]
        self.slots: dict[int, str] = {}
        self.carried: dict[int, str] = {}
        self.marks: dict[int, str] = {}
        for line in lines[at + 1 : end]:
            slots, what, _, carried, marks = re.split(r"  +", line.strip())
            held = re.fullmatch(r"(.*)positions (\d+\.\.\d+)", what)
            names = [f"{held[1]}position {n}" for n in numbers(held[2])] if held else [what] * len(numbers(slots))
            self.slots.update(zip(numbers(slots), names, strict=True))
            self.carried.update(dict.fromkeys(numbers(slots), carried))
            self.marks.update(dict.fromkeys(numbers(slots), marks))

    def sees(self, column: int) -> list[int]:
        """The slots that a query sees."""
        return [slot for slot, marks in self.marks.items() if marks[column] in "#X+"]


def shown(text: str) -> list[list[Shown]]:
    """The batch rows of each call."""
    blocks = [block for block in text.split("\n\n") if block.startswith("call ")]
    return [
        [Shown(block.split(":")[0].split()[-1], part) for part in re.split(r"\n  batch row \d+ ", block)[1:]]
        for block in blocks
    ]


def decoded(name: str) -> tuple[Run, str]:
    done = run(eqcheck.load(name), CASE)
    return done, view(drawn_of(done))


def drawn_of(done: Run) -> DrawnDecode:
    return decode_of(done, None if done.outputs is None else judge(done).explanation)


@pytest.mark.parametrize("name", ["bsp", "eqspec"])
def test_every_number_is_that_of_the_trace(name: str) -> None:
    done, text = decoded(name)
    calls = shown(text)
    assert len(calls) == len(done.trace.calls) > 4
    for call, rows in zip(done.trace.calls, calls, strict=True):
        assert len(rows) == len(call.tokens)
        for row, one in enumerate(rows):
            assert one.role == {TARGET: "target", DRAFT: "draft"}[call.role]
            assert list(one.slots) == list(range(call.visible.shape[2]))
            for column, (number, _, token, position, answers, _) in enumerate(one.table):
                assert (int(number.strip("<")), int(token)) == (column, call.tokens[row, column])
                assert int(position.partition(", must be ")[0]) == call.positions[row, column]
                assert int(answers.partition(", must be ")[0]) == call.predictions[row, column]
                assert one.sees(column) == [slot for slot, seen in enumerate(call.visible[row, column]) if seen]


def test_of_a_right_decoder_every_query_is_seen_to_see_its_row() -> None:
    _, text = decoded("eqspec")
    queries = 0
    for rows in shown(text):
        for one in rows:
            for column, (_, stands_for, _, carried, _, right) in enumerate(one.table):
                if stands_for.startswith("position "):
                    position = int(stands_for.split()[1])
                    assert sorted(one.slots[slot] for slot in one.sees(column)) == sorted(
                        f"position {n}" for n in range(position + 1)
                    )
                    assert (int(carried), right) == (position, "yes")
                    assert {marks[column] for marks in one.marks.values()} <= {"#", "."}
                    queries += 1
    assert queries > 15
    assert not re.search(r"\[\d| NO$|must be \d|\(wrong|goes wrong here", text, re.MULTILINE)


def test_of_a_wrong_decoder_the_fault_is_to_be_seen() -> None:
    done, text = decoded("bsp")
    wrong = [
        (number, stands_for, carried, one.slots[one.sees(0)[-1]], one.carried[one.sees(0)[-1]])
        for rows in shown(text)
        for one in rows
        for number, stands_for, _, carried, _, right in one.table
        if right == "NO"
    ]
    assert wrong[0] == ("0<", "position 1", "3, must be 1", "position 1", "3 (wrong)")
    assert "call 4, target: 2 rows, 6 slots   <-- goes wrong here" in text
    assert done.outputs is not None
    assert done.outputs != done.truth.rows
    assert "after it row 1 has 4 new tokens: 62 [" in text
    assert "rejected draft" in text


@pytest.mark.parametrize("name", ["bsp", "eqspec"])
def test_what_rows_have_grows_to_what_was_returned(name: str) -> None:
    done, text = decoded(name)
    assert done.outputs is not None
    for row, output in enumerate(done.outputs):
        counts = [int(count) for count in re.findall(rf"after it row {row} has (\d+) new token", text)]
        assert counts == sorted(set(counts))
        assert counts[-1] == len(output)
        (ids,) = re.findall(rf"returned for row {row}: \d+ new tokens?: (.*)", text)
        assert [int(one.strip("[]")) for one in ids.split()] == list(output)


@pytest.mark.rest
def test_many_rows_and_columns_are_shortened() -> None:
    prompts = tuple(tuple(range(row + 1, row + 41)) for row in range(12))
    text = view(drawn_of(run(eqcheck.load("eqspec"), Case(prompts=prompts, max_new_tokens=4, num_draft_tokens=8))))
    assert "  and 4 more batch rows" in text
    assert re.search(r"^    \.\.\. +28 more columns$", text, re.MULTILINE)
    small = Case(prompts=((1, 2), (3,), (4, 5, 6), (7,)), num_draft_tokens=7)
    assert "more" not in view(drawn_of(run(eqcheck.load("eqspec"), small))).partition("call 1")[2]


def test_very_many_calls_are_left_out_but_for_those_at_the_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    done = run(eqcheck.load("bsp"), CASE)
    whole = drawn_of(done)
    some = replace(whole, calls=(whole.calls[0], *whole.calls[3:]), left_out=2)
    assert "\n... 2 calls left out ...\n\ncall 4" in view(some)
    monkeypatch.setattr(story, "_ALL_CELLS", 80)
    shortened = drawn_of(done)
    assert shortened.left_out == 3
    assert [call.number for call in shortened.calls] == [1, 3, 4, 7]
    assert shortened.story == whole.story


@pytest.mark.parametrize("width", [60, 200])
def test_it_is_legible_on_narrow_and_on_wide_terminals(width: int) -> None:
    done = run(eqcheck.load("bsp"), CASE)
    lines = view(drawn_of(done), width).splitlines()
    assert max(map(len, lines)) <= width
    words = " ".join(lines)
    for said in ("3, must be 1", "62, must be 74", "3 (wrong)", "<-- goes wrong here", "62 [62] 53 81"):
        assert said in words


def test_colours_are_there_on_a_terminal_only_and_say_nothing_that_signs_do_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from rich.console import Console

    def printed(**options: Any) -> str:
        console = Console(file=StringIO(), width=118, highlight=False, markup=False, **options)
        for part in parts(drawn_of(run(eqcheck.load("bsp"), CASE))):
            console.print(part)
        assert isinstance(console.file, StringIO)
        return console.file.getvalue()

    monkeypatch.delenv("NO_COLOR", raising=False)
    plain, coloured = printed(), printed(force_terminal=True, color_system="standard")
    assert "\x1b[" not in plain
    assert "\x1b[1;31m" in coloured
    assert re.sub(r"\x1b\[[\d;]*m", "", coloured) == plain
    monkeypatch.setenv("NO_COLOR", "1")
    assert not re.search(r"\x1b\[[\d;]*3\d", printed(force_terminal=True, color_system="standard"))


def test_a_decoder_that_returns_nothing_still_shows_its_calls() -> None:
    def fails(target: Any, draft: Any, request: Request) -> Any:
        target(input_ids=torch.tensor([request.prompts[0]]))
        raise KeyError("no such layer")

    text = view(drawn_of(run(fails, CASE)))
    assert len(shown(text)) == 1
    assert text.endswith("The decoder returned no rows.")


def test_ranges() -> None:
    assert (_ranges([]), _ranges([3]), _ranges([0, 1, 4, 5, 6, 9])) == ("none", "3", "0..1 4..6 9")


@pytest.mark.rest
def test_replay_prints_them_above_the_same_explanation(capsys: Printed) -> None:
    assert cli.main(("replay", str(SHOWCASE))) == 1
    plain = capsys.readouterr().out
    assert cli.main(("replay", "-v", str(SHOWCASE))) == 1
    text = capsys.readouterr().out
    assert text.endswith(plain)
    case = Case.from_dict(json.loads(SHOWCASE.read_text())["case"])
    printed = "\n".join(line.rstrip() for line in text.splitlines())
    assert printed.startswith(view(drawn_of(run(eqcheck.load("bsp"), case))))
    assert cli.main(("replay", "-v", "--adapter", "eqspec", str(SHOWCASE))) == 0
    assert "call 1, " in capsys.readouterr().out


def test_a_decoder_that_ends_its_process_is_not_decoded_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Printed
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(
        "import os\nimport eqcheck\n@eqcheck.decoder(name='dies')\ndef dies(target, draft, request):\n    os._exit(3)\n"
    )
    path = tmp_path / "case.json"
    path.write_text(json.dumps(CASE.to_dict()))
    assert cli.main(("replay", "-v", "--isolate", "--adapter", "mine.py", str(path))) == 1
    assert "its calls are not shown" in capsys.readouterr().out


@pytest.mark.rest
def test_replay_writes_them_as_a_page_and_takes_the_place_of_nothing_else(tmp_path: Path, capsys: Printed) -> None:
    page, mine = tmp_path / "trace.html", tmp_path / "mine.txt"
    mine.write_text("notes")
    for file in (page, page):  # which is replaced
        assert cli.main(("replay", str(SHOWCASE), "--html", str(file))) == 1
        said = capsys.readouterr().out
        assert said.startswith(f"Every call is shown in {page}\n\nFAILS: bsp")
        assert "call 1, target" not in said
    text = page.read_text()
    assert text.startswith("<!doctype html>")
    assert "FAILS: bsp: position/query-position" in text
    for file, what in (
        (mine, "something else, which stays"),
        (SHOWCASE, "something else"),
        (tmp_path / "no" / "x", "got none"),
    ):
        assert cli.main(("replay", str(SHOWCASE), "--html", str(file))) == 4
        assert what in capsys.readouterr().err
    assert mine.read_text() == "notes"
    assert cli.main(("replay", "-v", "--adapter", "eqspec", str(SHOWCASE), "--html", str(page))) == 0
    said = capsys.readouterr().out
    assert "\ncall 1, " in said
    assert "goes wrong here" not in said + page.read_text()
