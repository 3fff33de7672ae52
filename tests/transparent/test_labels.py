"""Rows in which no query is right are still known for what they are, and every weight of the alignment is needed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest
import torch

from eqcheck.catalogue import FAULTS
from eqcheck.catalogue.engines.batch import Holes, Realigned
from eqcheck.catalogue.engines.engine import RoundEngine
from eqcheck.core.case.record import Case
from eqcheck.transparent.attribution.labels import AGAINST, FOR, OBJECTIONS, Labels, labels_of
from eqcheck.transparent.attribution.writes import Label, Write
from eqcheck.transparent.decoding import run
from eqcheck.transparent.oracle import judge
from eqcheck.transparent.search import Source


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


class Row(NamedTuple):
    """A row of a call that a fault makes, one column of it, and what stands there."""

    fault: str
    case: Case
    write: Write
    label: tuple[int, int, str]


def case(prompts: list[list[int]], new: int, k: int, accepts: Any, pad: int, family: str, **more: Any) -> Case:
    some = tuple(map(tuple, prompts))
    table = tuple(map(tuple, accepts))
    return Case(some, max_new_tokens=new, num_draft_tokens=k, accepts=table, pad_token_id=pad, family=family, **more)


ROLLED_BACK = case(
    [[43, 84, 15], [114, 60, 76, 18], [31], [114, 60, 76, 18]],
    1,
    4,
    [[3], [0], [1], [1]],
    18,
    "window",
    eos_token_ids=(125, 114),
    cache_state="preallocated",
)
EQUAL_BEGINNINGS = case(
    [[46, 77, 112, 43], [46, 77, 112], [89, 72]],
    8,
    4,
    [[0, 0], [1, 2, 1, 2, 1], [1, 1]],
    112,
    "rotary",
    eos_token_ids=(37,),
)
SCALED = case([[33, 8, 101, 7], [125, 85, 116, 74]], 6, 3, [[2, 3], []], 127, "slot-distance")
# fmt: off
LONG = [
    127, 14, 90, 27, 14, 43, 94, 24, 61, 126, 43, 16, 63, 24, 110, 44, 47, 15, 72, 10, 55, 17, 114, 2, 43,
    39, 52, 10, 116, 59, 67, 51, 94, 93, 36, 90, 81, 127, 120, 106, 22, 89, 122, 1, 56, 87, 44, 96, 56, 71,
    117, 24, 27, 112, 63, 18, 33, 25, 41, 66, 88, 51, 25, 54, 53, 24, 125, 124, 70, 57, 39, 10, 1, 62, 85,
    72, 75, 28, 92, 115, 86, 19, 88, 105, 10, 127, 40, 122, 109, 63, 7, 5, 78, 68, 29, 113, 32, 122, 10, 51,
    108, 98, 52, 116, 94, 14, 124, 91, 2, 10, 13, 22, 106, 118, 95, 15, 29, 88, 43, 29, 69, 8, 39, 98, 71,
    124, 108,
]
# fmt: on
# In all of these but one the row of the call has the number of its request, and the position ids are right.
ROWS = {
    "held": Row(
        "K9-spare-slots-visible.holes",
        case([[64, 100, 122, 34], [123, 56]], 4, 2, [[], [2, 1, 1]], 127, "learned", cache_state="preallocated"),
        (9, 0, 0),
        (0, 6, "token"),
    ),
    "gap": Row("K29-sizes-one-late.static", EQUAL_BEGINNINGS, (10, 1, 0), (1, 3, "token")),
    "beyond": Row(
        "M7-sees-next-draft.holes",
        case(
            [[37, 56, 45, 39], [110, 46, 105, 127, 48]],
            16,
            6,
            [[6, 1, 5, 4, 5, 2, 0, 0], [2]],
            126,
            "learned",
            eos_token_ids=(18, 94),
        ),
        (63, 1, 0),
        (1, 12, "token"),
    ),
    "fed": Row(
        "K9-spare-slots-visible.holes",
        case(
            [[118], [127, 48], [96, 78]],
            5,
            3,
            [],
            111,
            "rotary",
            agreement=0.7,
            eos_token_ids=(111,),
            cache_state="preallocated",
        ),
        (4, 1, 0),
        (1, 0, "token"),
    ),
    "position": Row("K18-keys-scaled.paged_small", SCALED, (15, 1, 0), (1, 6, "token")),
    "own_row": Row(
        "K3-never-cropped.static",
        case(
            [
                [115, 119, 41, 68, 51],
                [126, 55],
                [9],
                [104, 69, 118, 36],
                [1],
                [104, 69, 118, 36],
                [30, 5, 61],
                [111, 86],
                [87, 61, 8, 91],
            ],
            2,
            3,
            [[1, 3], [], [], [], [3, 0], [2], [2], [3], [3]],
            82,
            "learned",
            eos_token_ids=(82, 69),
        ),
        (3, 5, 0),
        (5, 4, "token"),
    ),
    "own_row_in_order": Row("K9-spare-slots-visible.rolled_back", ROLLED_BACK, (1, 2, 3), (2, 0, "token")),
    "prompt": Row(  # one batch row holds all prompts, in order
        "P10-positions-not-restarted.packed",
        case(
            [
                [93, 108, 19, 103, 124, 77],
                [87],
                [0, 62, 64, 103],
                [102],
                [63, 103, 5, 57, 72],
                [0],
                [14, 37, 5],
                [70, 119, 21, 112, 47, 65],
                [102],
                [70, 57, 72, 119, 126, 39],
            ],
            1,
            1,
            [[], [], [1], [], [], [1], [], [1], [0], [0]],
            37,
            "learned",
            eos_token_ids=(122, 103),
        ),
        (1, 0, 17),
        (5, 0, "token"),
    ),
    "taken": Row("K18-keys-scaled.paged_small", SCALED, (15, 1, 0), (1, 6, "token")),
    "hidden": Row("K9-spare-slots-visible.rolled_back", ROLLED_BACK, (1, 2, 3), (2, 0, "token")),
    "strange": Row("K11-reset-instead-of-rollback.realigned", EQUAL_BEGINNINGS, (27, 1, 1), (1, 8, "token")),
    "scaled_pages": Row(
        "K18-keys-scaled.paged_small",
        case(
            [[115, 105, 109, 48, 115], [61], [18, 18, 58, 115]],
            5,
            4,
            [],
            0,
            "slot-distance",
            agreement=0.7,
            eos_token_ids=(100, 7),
        ),
        (5, 0, 0),
        (0, 0, "token"),
    ),
    "in_chunks": Row(
        "K14-first-token-skipped.static",
        case(
            [
                [120, 120, 112, 40, 78, 126],
                [127, 6],
                [69, 91, 112, 4, 28, 55, 100, 82, 59, 88, 57, 74],
                LONG,
            ],
            20,
            3,
            [
                [1, 0, 3, 2, 3, 2, 3, 3, 0],
                [1, 0, 2, 0, 1, 0, 1, 2, 0, 1, 0, 2, 1, 3, 2],
                [0, 2, 2, 2, 1, 1, 2, 2, 2, 3, 3, 3, 2, 0, 3, 2, 2, 2],
                [1, 2, 2, 1, 0, 3, 0, 0, 0, 1, 0, 1],
            ],
            5,
            "rotary",
            eos_token_ids=(19, 93),
            cache_state="chunked",
            prefill_chunk=26,
        ),
        (1, 3, 0),
        (3, 1, "token"),
    ),
}


def labelled(row: Row) -> tuple[Labels, Label]:
    fault = next(fault for fault in FAULTS if fault.id == row.fault)
    done = run(fault.decoder(), row.case)
    labels = labels_of(done, done.trace)
    return labels, labels.of[row.write]


@pytest.mark.parametrize("row", ROWS)
def test_a_row_is_known_for_what_it_is(row: str) -> None:
    labels, label = labelled(ROWS[row])
    number, batch_row, column = ROWS[row].write
    call = labels.calls[number]
    assert (label.request, label.position, label.what) == ROWS[row].label
    if ROWS[row].fault.endswith(".packed"):
        assert sum(map(len, ROWS[row].case.prompts[: label.request])) == column
    else:
        assert (label.request, label.position) == (batch_row, call.positions[batch_row, column])


# By clue, a row that is aligned wrongly without it.
NEEDED = {
    "taken": "taken",
    "hidden": "hidden",
    "strange": "in_chunks",
    "held": "held",
    "fed": "scaled_pages",
    "position": "strange",
    "own_row": "own_row",
    "prompt": "prompt",
    "gap": "gap",
    "beyond": "beyond",
}


@pytest.mark.parametrize("clue", [*OBJECTIONS, *FOR, *AGAINST])
def test_no_clue_can_be_done_without(clue: str, monkeypatch: pytest.MonkeyPatch) -> None:
    row = ROWS[NEEDED[clue]]
    for table in (OBJECTIONS, FOR, AGAINST):
        if clue in table:
            monkeypatch.delitem(table, clue)
    label = labelled(row)[1]
    assert (label.request, label.position, label.what) != row.label


class Staying(RoundEngine):
    """Rows that have ended are fed on until the others are done, and never move."""

    def finished(self, i: int, drafts: Sequence[int]) -> bool:
        return False

    def admit(self) -> bool:
        ended = [set(self.cut(i)) & {*self.eos} or len(self.rows[i]) >= self.limit(i) for i in self.active]
        return not all(ended)

    def budget(self, i: int) -> int:
        return self.request.num_draft_tokens

    def append(self, i: int, block: Sequence[int]) -> None:
        self.rows[i] += block

    def cut(self, i: int) -> list[int]:
        """The new tokens of a row, up to its limit."""
        return self.rows[i][self.starts[i] : self.limit(i)]

    def outputs(self) -> list[list[int]]:
        ends = [next((n for n, t in enumerate(self.cut(i), 1) if t in self.eos), None) for i in self.active]
        return [self.cut(i)[:end] for i, end in zip(self.active, ends, strict=True)]


@pytest.mark.parametrize("engine", [Holes, Realigned])
@pytest.mark.tiers(quick=1, rest=1)
def test_a_row_that_goes_on_after_its_end_is_taken_for_no_other(engine: type[RoundEngine]) -> None:
    """It is the row whose entries it holds, though ids that it is fed stand in other rows, too."""
    stays = type("Stays", (Staying, engine), {})
    for case in Source(1, ("rotary", "learned"), ("left",), ("empty",)).chunk(0, 12):
        done = run(lambda target, draft, request: stays(target, draft, request).decode(), case)
        assert judge(done)
        labels = labels_of(done, done.trace)
        moved = {write for write, one in labels.of.items() if one.what == "token" and one.request != write[1]}
        assert all(labels.of[write].exact for write in moved), "a row with the same context counts as either"
