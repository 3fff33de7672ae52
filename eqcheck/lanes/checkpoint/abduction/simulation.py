"""Batch engines in outline, without a model: who writes which entry where, and what is seen, under one edit.

`Simulation` follows an engine through the rounds that its outputs show and writes down, as a `Program`, every entry and
what its query saw. Styles, by what happens to the caches after a round:

realigned   one cache for the batch, left padded; what is left is moved together at the right edge
holes       the same, but nothing moves: rejected slots are hidden by the mask
cropped     the same, but columns that no row has a use for are cut off at the end
separate    a cache per row, cropped; no padding, no mask
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from eqcheck.lanes.checkpoint.abduction.evidence import Evidence, Round, Turn
from eqcheck.lanes.checkpoint.abduction.program import BLANK, Program

PAD_SLOT, GONE = -1, -2
TORN = {"values-not-moved": "values", "layers-not-moved": "layers", "heads-not-moved": "heads"}


@dataclass(frozen=True)
class Edit:
    """One edit: what it does, by how much, in which rounds, and to which row or token where it concerns only one."""

    name: str = ""
    amount: int = 0
    first: int = 0
    last: int = 10**9
    row: int | None = None
    token: int = -1


@dataclass
class Slot:
    """What a row's mask knows of a slot: the logical position of its token, PAD_SLOT or GONE; if it is shown anyway."""

    at: int
    token: int
    shown: bool = False


class Simulation:
    """One batch under one edit. ``held[row]`` are the columns in the row's slots; ``lengths`` the tokens cached."""

    def __init__(self, evidence: Evidence, style: str, edit: Edit, rounds: Sequence[Round], final: int) -> None:
        self.evidence, self.style, self.edit = evidence, style, edit
        self.program = Program(torn=TORN.get(edit.name, ""))
        rows = range(len(evidence.texts))
        self.rows: list[int] = []  # of each entry
        self.slots: list[list[Slot]] = [[] for _ in rows]
        self.held: list[list[int]] = [[] for _ in rows]
        self.lengths = [0 for _ in rows]
        self.believed = [0 for _ in rows]
        if edit.name in ("not-prefilled", "not-prefilled-zeroed"):
            for row in rows[edit.amount :]:
                self.lengths[row] = self.believed[row] = len(evidence.prompts[row]) - 1
                if edit.name == "not-prefilled-zeroed":
                    self.held[row] = [self._blank() for _ in range(self.lengths[row])]
                    self.slots[row] = [Slot(GONE, token, True) for token in evidence.prompts[row][:-1]]
        for self.number, turns in enumerate(rounds[: final + 1]):
            self._feed(turns)
            going = [turn for turn in turns if turn.end < len(evidence.texts[turn.row])]
            if going:
                self._keep(turns, going)
        if edit.name == "tenant-seen":
            self._see_tenant()

    def _see_tenant(self) -> None:
        """The row sees all that another held at its end, besides its own."""
        assert self.edit.row is not None
        for entry, row in enumerate(self.rows):
            if row == self.edit.row:
                self.program.sees[entry] = [*self.held[self.edit.amount], *self.program.sees[entry]]

    def on(self, *names: str, row: int | None = None) -> bool:
        edit = self.edit
        concerned = edit.row is None or row is None or edit.row == row
        return edit.name in names and edit.first <= self.number <= edit.last and concerned

    def _blank(self) -> int:
        return self.program.column(BLANK, BLANK)

    # A round's forward.

    def _feed(self, turns: Round) -> None:
        blocks: dict[int, list[int]] = {}
        starts: dict[int, int] = {}
        again = {turn.row: int(self.on("newest-again", row=turn.row) and self.number > 0) for turn in turns}
        for turn in turns:
            starts[turn.row] = self.lengths[turn.row] - again[turn.row]
            text = self.evidence.texts[turn.row][: turn.start]
            blocks[turn.row] = [*text[starts[turn.row] :], *turn.drafts]
        width = max(map(len, blocks.values()))
        begin: dict[int, int] = {}
        self.before = list(self.lengths)
        self.begin = begin
        for row, block in blocks.items():
            begin[row] = len(self.held[self._cache_of(row)])
            pads = width - len(block) if self.style != "separate" else 0
            positions = self._positions(row, starts, blocks, width)
            for column, token in enumerate([self.evidence.pad] * pads + block):
                rank = column - pads
                at = starts[row] + rank if rank >= 0 else PAD_SLOT
                twice = rank >= 0 and rank < again[row]
                place = positions[rank] if rank >= 0 else self._pad_position(column, begin[row])
                cache = self._cache_of(row)
                self.slots[cache].append(Slot(GONE if twice else at, token, twice))
                self.held[cache].append(self.program.write(token, place))
                self.rows.append(row)
        for turn in turns:
            row = turn.row
            after = []  # the pads that follow the block, which the next one overwrites
            if self.on("pads-after-seen", row=row):
                end = starts[row] + len(blocks[row])
                after = [self.program.write(self.evidence.pad, end + n) for n in range(width - len(blocks[row]))]
                self.rows += [row] * len(after)
            self._see(turn, begin[row], list(blocks), after)
        for row, block in blocks.items():
            self.lengths[row] += len(block) - again[row]
            self.believed[row] += len(block) - again[row]

    def _cache_of(self, row: int) -> int:
        """Whose cache a row is given."""
        return (row + 1) % len(self.held) if self.on("caches-exchanged") and self.number else row

    def _pad_position(self, column: int, begin: int) -> int:
        if self.on("slot-positions"):
            return begin + column
        return self.edit.amount if self.on("pads-seen", "prompt-pads-seen", "block-pads-seen") else 0

    def _positions(self, row: int, starts: dict[int, int], blocks: dict[int, list[int]], width: int) -> list[int]:
        """The position ids of a row's block."""
        count, start = len(blocks[row]), starts[row]
        positions = list(range(start, start + count))
        if self.on("slot-positions", row=row):
            begin = len(self.held[row]) + width - count
            return list(range(begin, begin + count))
        if self.on("longest-positions", row=row):
            return [p - start + max(starts.values()) for p in positions]
        if self.on("another-rows-positions", row=row):
            other = list(blocks)[self.edit.amount]
            gap = len(blocks[other]) - count  # blocks end together; before the other's there are pads, at 0
            return [starts[other] + gap + rank if gap + rank >= 0 else 0 for rank in range(count)]
        if self.on("drift-rejected", "drift-most", "drift-least", row=row):
            return [p - start + self.believed[row] for p in positions]
        if self.on("newest-shifted", row=row) and self.number:
            positions[0] += self.edit.amount
        if self.on("drafts-shifted", row=row) and self.number:
            positions[1:] = [p + self.edit.amount for p in positions[1:]]
        if self.on("clamped", row=row):
            return [max(self.edit.amount, p) for p in positions]
        if self.on("shifted", row=row):
            return [p + self.edit.amount for p in positions]
        if self.on("chunk-restarted", row=row):
            chunk = range(self.edit.token, len(self.evidence.prompts[row]))
            return [p - self.edit.token if p in chunk else p for p in positions]
        return positions

    def _see(self, turn: Turn, begin: int, batch: list[int], after: list[int]) -> None:
        """Write down what each query of a row's block sees, and which of them is asked for which new token."""
        row, program = turn.row, self.program
        cache = self._cache_of(row)
        slots, held = self.slots[cache], self.held[cache]
        seen = [held[k] if self._visible(cache, k, begin) else None for k in range(len(slots))]
        if self.on("mask-of-another"):
            other = batch[self.edit.amount]
            seen = [held[k] if self._visible(other, k, begin) else None for k in range(len(slots))]
        if self.on("another-seen", "another-instead", row=row):
            others = self.held[self.edit.amount][: self.begin.get(self.edit.amount)]
            seen = [*others, *(seen if self.on("another-seen") else [*[None] * begin, *seen[begin:]])]
            slots, held, begin = [*[Slot(GONE, 0)] * len(others), *slots], [*others, *held], begin + len(others)
        future = self.on("future", row=row)
        itself = self.on("itself-hidden", row=row)
        for query in range(begin, len(slots)):
            visible = [column for column in seen[: query + 1] if column is not None]
            if future:
                visible += [column for column in seen[query + 1 : query + 2 + self.edit.amount] if column is not None]
            if itself and query > begin and seen[query] is not None:
                visible = [column for column in seen[:query] if column is not None]
            if self.on("chunk-blind", "chunk-lost", row=row) and slots[query].at >= self.edit.token:
                forgotten = self.on("chunk-lost") or slots[query].at < len(self.evidence.prompts[row])
                visible = [
                    c
                    for c, slot in zip(held[: query + 1], slots, strict=False)
                    if slot.at >= self.edit.token * forgotten
                ]
            visible = [*visible, *after]
            entry = program.entry(held[query])
            if not visible and itself:
                program.blind[entry] = list(held)
            program.sees[entry] = visible or ([] if itself else [self._blank()])
        for pad in after:
            program.sees[program.entry(pad)] = [*(column for column in seen if column is not None), *after]
        prompt = len(self.evidence.prompts[row])
        newest = len(slots) - len(turn.drafts) - 1
        for offset in range(turn.end - turn.start):
            program.asked[row, turn.start - prompt + offset] = program.entry(held[newest + offset])

    def _visible(self, row: int, k: int, begin: int) -> bool:
        slot = self.slots[row][k]
        if self.style == "separate":
            return True
        visible = slot.at >= 0 or slot.shown
        if slot.at == PAD_SLOT and self.on("pads-seen", row=row):
            visible = True
        if slot.at == PAD_SLOT and self.on("prompt-pads-seen", row=row) and self._of_prompt(row, k):
            visible = True
        if k >= begin and begin and self.on("block-pads-seen", row=row):
            visible = True
        if self.on("pad-id-hidden", row=row) and slot.token == self.evidence.pad:
            visible = False
        return visible

    def _of_prompt(self, row: int, k: int) -> bool:
        return all(slot.at == PAD_SLOT for slot in self.slots[row][:k])

    # What is kept after it.

    def _keep(self, turns: Round, going: Sequence[Turn]) -> None:
        texts = self.evidence.texts
        wanted = {t.row: min(t.start + t.accepted, t.end - 1) for t in turns}
        surplus = {t.row: self.lengths[t.row] - wanted[t.row] for t in turns}
        rows = [turn.row for turn in going]
        most, least = max(surplus[row] for row in rows), min(surplus[row] for row in rows)
        if self.style == "separate":
            for turn in turns:
                if self.on("tenant-seen") and self.edit.token and turn not in going:
                    continue
                self._crop(turn.row, surplus[turn.row], turn)
                self.lengths[turn.row] = wanted[turn.row]
        else:
            for row in rows:
                self._mark(row, wanted[row], surplus[row], most, least)
                self.lengths[row] = wanted[row]
            self._move(turns, rows)
        if self.on("exchanged"):
            one, other = self.edit.row or 0, self.edit.amount
            self.held[one], self.held[other] = self.held[other], self.held[one]
            self.slots[one], self.slots[other] = self.slots[other], self.slots[one]
        for turn in turns:
            row = turn.row
            if self.on("restored-with-all", row=row) and surplus[row]:
                self.lengths[row] = self.before[row]
            if self.on("drift-rejected"):
                continue
            if self.on("drift-most"):
                self.believed[row] -= least
            elif self.on("drift-least"):
                self.believed[row] -= most
            else:
                self.believed[row] = wanted[row]
        assert all(self.lengths[row] < len(texts[row]) for row in rows)

    def _mark(self, row: int, wanted: int, surplus: int, most: int, least: int) -> None:
        """Hide what is rejected in a row of the batch's cache, and what an edit loses; show what an edit leaves."""
        kept = {
            "rejected-kept": surplus,
            "first-rejected-kept": self.edit.amount,
            "rejected-kept-to-most": surplus - least,
            "rejected-zeroed": surplus,
        }
        shown = next((count for name, count in kept.items() if self.on(name, row=row)), 0)
        for place, slot in enumerate(self.slots[row]):
            if slot.at >= wanted:
                slot.shown = slot.shown or slot.at < wanted + shown
                if slot.shown and self.on("rejected-zeroed", row=row):
                    self.held[row][place] = self._blank()
                slot.at = GONE
            elif slot.at >= 0 and self._lost(row, slot.at, wanted, surplus, most):
                slot.at = GONE

    def _lost(self, row: int, at: int, wanted: int, surplus: int, most: int) -> bool:
        prompt = len(self.evidence.prompts[row])
        return (
            (self.on("newest-lost", row=row) and wanted - self.edit.amount <= at < wanted)
            or (self.on("lost-to-least", row=row) and at >= wanted - (most - surplus))
            or (self.on("reset", row=row) and surplus > 0)
            or (self.on("token-lost", row=row) and at == self.edit.token)
            or (self.on("prompt-end-lost", row=row) and at == prompt - 1)
            or (self.on("prompt-begin-lost", row=row) and at < self.edit.amount)
        )

    def _crop(self, row: int, surplus: int, turn: Turn) -> None:
        """Cut rejected tokens off the end of a row's own cache."""
        count = surplus
        if self.on("rejected-kept", "restored-with-all", row=row):
            count = 0
        if self.on("first-rejected-kept", row=row):
            count = max(0, surplus - self.edit.amount)
        if self.on("newest-lost", row=row):
            count = surplus + self.edit.amount
        if self.on("reset", row=row) and surplus:
            count = len(self.held[row])
        if count:
            del self.held[row][-count:], self.slots[row][-count:]
        for place in reversed(range(len(self.slots[row]))):
            if self.on("token-lost", row=row) and self.slots[row][place].at == self.edit.token:
                del self.held[row][place], self.slots[row][place]

    def _move(self, turns: Round, rows: Sequence[int]) -> None:
        """Take the rows that go on, and make the batch's cache follow the mask."""
        batch = [turn.row for turn in turns]
        source = dict(zip(rows, rows, strict=True))
        if self.on("stale-rows"):
            source = dict(zip(rows, batch, strict=False))
        if self.on("rows-reversed"):
            source = dict(zip(rows, [source[row] for row in reversed(rows)], strict=True))
        if self.on("rows-rotated"):
            source = dict(zip(rows, [source[row] for row in (*rows[1:], *rows[:1])], strict=True))
        held = {row: list(self.held[source[row]]) for row in rows}
        if self.style == "realigned":
            self._realign(rows, held)
            return
        for row in rows:
            self.held[row] = held[row]
        if self.style == "cropped":
            used = [k for row in rows for k, slot in enumerate(self.slots[row]) if slot.at >= 0 or slot.shown]
            width = max(used, default=-1) + 1
            for row in rows:
                del self.held[row][width:], self.slots[row][width:]

    def _realign(self, rows: Sequence[int], held: dict[int, list[int]]) -> None:
        used = {}
        for row in rows:
            for slot in self.slots[row]:
                slot.shown = slot.shown and slot.at != PAD_SLOT
            used[row] = [k for k, slot in enumerate(self.slots[row]) if slot.at >= 0 or slot.shown]
        before = len(self.slots[rows[0]])
        width = before if self.on("not-moved") else max(map(len, used.values()))
        for row in rows:
            slots, unused = self.slots[row], width - len(used[row])
            pads = next((k for k, slot in enumerate(slots) if slot.at != PAD_SLOT), before)
            here: list[int | None] = [*[None] * unused, *used[row]]
            if self.on("moved-wrong-way"):
                here = [*used[row], *[None] * unused]
            unmoved = held[row][before - width :]
            if self.on("not-moved"):
                here = [k if k in set(used[row]) else None for k in range(before)]
            moved = [self._blank() if k is None else held[row][k] for k in here]
            if self.program.torn and self.on(*TORN):
                columns = self.program.columns
                moved = [self.program.column(columns[a][0], columns[b][1]) for a, b in zip(moved, unmoved, strict=True)]
            self.held[row] = moved
            self.slots[row] = [Slot(PAD_SLOT, self.evidence.pad) for _ in range(unused)] + [slots[k] for k in used[row]]
            if self.on("new-pads-seen", row=row):
                for k, slot in enumerate(self.slots[row][:unused]):
                    slot.shown = k >= pads
