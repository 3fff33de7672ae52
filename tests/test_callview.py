"""``eqcheck replay -v``: what is printed of a call is what the trace holds, and suffices to find the fault by hand."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import eqcheck
from eqcheck import cli
from eqcheck.callview import _ranges, view
from eqcheck.case import Case
from eqcheck.contract import Request
from eqcheck.harness import Run, run
from eqcheck.trace import DRAFT, TARGET

CASE = Case(
    prompts=((5, 7, 9), (11,)), max_new_tokens=5, num_draft_tokens=2, accepts=((2, 0), (0, 1)), eos_token_ids=(1,)
)
SHOWCASE = Path(__file__).parents[1] / "reports" / "showcase" / "bsp" / "cases" / "position-query-position.json"
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
        at = next(index for index, line in enumerate(lines) if line.startswith("    slots"))
        end = next((i for i, line in enumerate(lines) if i > at and not line.startswith(" " * 11)), len(lines))
        self.table = [re.split(r"  +", line.strip()) for line in lines[1:at]]
        self.slots: dict[int, str] = {}
        for part in " ".join(line.strip() for line in lines[at:end]).removeprefix("slots ").split(" | "):
            slots, what = part.strip().split(": ", 1)
            held = re.fullmatch(r"(.*)positions (\d+\.\.\d+)", what)
            names = [f"{held[1]}position {n}" for n in numbers(held[2])] if held else [what] * len(numbers(slots))
            self.slots.update(zip(numbers(slots), names, strict=True))


def shown(text: str) -> list[list[Shown]]:
    """The batch rows of each call."""
    blocks = [block for block in text.split("\n\n") if block.startswith("call ")]
    return [
        [Shown(block.split(":")[0].split()[-1], part) for part in re.split(r"\n  batch row \d+ ", block)[1:]]
        for block in blocks
    ]


def decoded(name: str) -> tuple[Run, str]:
    done = run(eqcheck.load(name), CASE)
    return done, view(done)


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
            for column, (number, _, token, position, sees, answers) in enumerate(one.table):
                assert (int(number), int(token)) == (column, call.tokens[row, column])
                assert (int(position), int(answers)) == (call.positions[row, column], call.predictions[row, column])
                seen = [] if sees == "none" else numbers(sees)
                assert seen == [slot for slot, visible in enumerate(call.visible[row, column]) if visible]


def test_of_a_right_decoder_every_query_is_seen_to_see_its_row() -> None:
    _, text = decoded("eqspec")
    queries = 0
    for rows in shown(text):
        for one in rows:
            for _, stands_for, _, carried, sees, _ in one.table:
                if stands_for.startswith("position "):
                    position = int(stands_for.split()[1])
                    assert sorted(one.slots[slot] for slot in numbers(sees)) == sorted(
                        f"position {n}" for n in range(position + 1)
                    )
                    assert int(carried) == position
                    queries += 1
    assert queries > 15
    assert "[" not in text


def test_of_a_wrong_decoder_the_fault_is_to_be_seen() -> None:
    done, text = decoded("bsp")
    wrong = [
        (stands_for, carried)
        for rows in shown(text)
        for one in rows
        for _, stands_for, _, carried, _, _ in one.table
        if one.role == "target" and stands_for.startswith("position ") and stands_for != f"position {carried}"
    ]
    assert wrong
    assert done.outputs is not None
    assert done.outputs != done.truth.rows
    assert "after it row 1 has 4 new tokens: ids 62 [" in text
    assert "rejected draft at position" in text


@pytest.mark.parametrize("name", ["bsp", "eqspec"])
def test_what_rows_have_grows_to_what_was_returned(name: str) -> None:
    done, text = decoded(name)
    assert done.outputs is not None
    for row, output in enumerate(done.outputs):
        counts = [int(count) for count in re.findall(rf"after it row {row} has (\d+) new token", text)]
        assert counts == sorted(set(counts))
        assert counts[-1] == len(output)
        (ids,) = re.findall(rf"returned for row {row}: \d+ new tokens?, ids (.*)", text)
        assert [int(one.strip("[]")) for one in ids.split()] == list(output)


def test_many_rows_and_columns_are_shortened() -> None:
    prompts = tuple(tuple(range(row + 1, row + 41)) for row in range(12))
    text = view(run(eqcheck.load("eqspec"), Case(prompts=prompts, max_new_tokens=4, num_draft_tokens=8)))
    assert "  and 4 more batch rows" in text
    assert "    ... 28 more columns" in text
    assert max(map(len, text.splitlines())) < 160
    small = view(run(eqcheck.load("eqspec"), Case(prompts=((1, 2), (3,), (4, 5, 6), (7,)), num_draft_tokens=7)))
    assert "more" not in small.partition("call 1")[2]


def test_a_decoder_that_returns_nothing_still_shows_its_calls() -> None:
    def fails(target: Any, draft: Any, request: Request) -> Any:
        target(input_ids=torch.tensor([request.prompts[0]]))
        raise KeyError("no such layer")

    text = view(run(fails, CASE))
    assert len(shown(text)) == 1
    assert text.endswith("The decoder returned no rows.")


def test_ranges() -> None:
    assert (_ranges([]), _ranges([3]), _ranges([0, 1, 4, 5, 6, 9])) == ("none", "3", "0..1 4..6 9")


def test_replay_prints_them_above_the_same_explanation(capsys: Printed) -> None:
    assert cli.main(("replay", str(SHOWCASE))) == 1
    plain = capsys.readouterr().out
    assert cli.main(("replay", "-v", str(SHOWCASE))) == 1
    text = capsys.readouterr().out
    assert text.endswith(plain)
    case = Case.from_dict(json.loads(SHOWCASE.read_text())["case"])
    assert text.startswith(view(run(eqcheck.load("bsp"), case)))
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
