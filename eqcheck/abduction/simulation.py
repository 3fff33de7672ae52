"""Batch engines in outline, without a model: who writes which entry where, and what is seen, under one edit.

`Simulation` follows an engine through the rounds that its outputs show and writes down, as a `Program`, every entry and
what its query saw. Styles, by what happens to the caches after a round:

realigned   one cache for the batch, left padded; what is left is moved together at the right edge
holes       the same, but nothing moves: rejected slots are hidden by the mask
cropped     the same, but columns that no row has a use for are cut off at the end
separate    a cache per row, cropped; no padding, no mask

An engine of another style makes the same fault show in other tokens, so an edit is tried in every style in which it
makes a difference. What it changes is in `eqcheck.abduction.changes`.
"""

from __future__ import annotations

from collections.abc import Sequence

from eqcheck.abduction.batch import (
    GONE,
    PAD_SLOT,
    Applied,
    Batch,
    FedBlock,
    HeldToken,
    Rollback,
    RowView,
)
from eqcheck.abduction.changes import CHANGES, RIGHT, Change
from eqcheck.abduction.evidence import Evidence, Round, Turn
from eqcheck.abduction.program import Program


class Simulation(Batch):
    """One batch under one edit, round by round."""

    def __init__(self, evidence: Evidence, style: str, applied: Applied, rounds: Sequence[Round], final: int) -> None:
        super().__init__(evidence, applied)
        self.style, self._change = style, CHANGES[applied.id]
        self.program = Program(torn=self._change.torn)
        self._change.start(self)
        for self.number, turns in enumerate(rounds[: final + 1]):
            self._feed(turns)
            going = [turn.row for turn in turns if turn.end < len(evidence.texts[turn.row])]
            if going:
                self._keep(turns, going)
        self._change.end(self)

    def change(self, row: int | None = None) -> Change:
        """What goes wrong in this round, with a row or with the batch."""
        now = self.applied.first <= self.number <= self.applied.last
        concerned = row is None or self.applied.row is None or self.applied.row == row
        return self._change if now and concerned else RIGHT

    # A round's forward.

    def _feed(self, turns: Round) -> None:
        self.blocks = {turn.row: self._block(turn) for turn in turns}
        self.before = list(self.lengths)
        width = max(len(block.tokens) for block in self.blocks.values())
        for block in self.blocks.values():
            self._write(block, width)
        for row, block in self.blocks.items():
            self._see(block, self._pads_after(block, width) if self.change(row).pads_after else [])
        for row, block in self.blocks.items():
            self.lengths[row] += len(block.tokens) - block.again
            self.believed[row] += len(block.tokens) - block.again

    def _block(self, turn: Turn) -> FedBlock:
        again = int(self.change(turn.row).again and self.number > 0)
        start = self.lengths[turn.row] - again
        return FedBlock(turn, start, [*self.evidence.texts[turn.row][start : turn.start], *turn.drafts], again)

    def _write(self, block: FedBlock, width: int) -> None:
        """Entries for a block and the pads before it. What is fed again has no place of its own, but is seen."""
        row = block.turn.row
        change = self.change(row)
        cache = change.cache_of(self, row)
        block.begin = len(self.held[cache])
        block.pads = width - len(block.tokens) if self.style != "separate" else 0
        for column in range(block.pads):
            self._entry(row, cache, HeldToken(PAD_SLOT, self.evidence.pad), change.pad_position(self, block, column))
        for rank, (token, position) in enumerate(zip(block.tokens, change.positions(self, block), strict=True)):
            twice = rank < block.again
            self._entry(row, cache, HeldToken(GONE if twice else block.start + rank, token, twice), position)

    def _entry(self, row: int, cache: int, slot: HeldToken, position: int) -> None:
        self.slots[cache].append(slot)
        self.held[cache].append(self.program.write(slot.token, position))
        self.rows.append(row)

    def _pads_after(self, block: FedBlock, width: int) -> list[int]:
        """The pads that follow a block, which the next one overwrites."""
        end, count = block.start + len(block.tokens), width - len(block.tokens)
        self.rows += [block.turn.row] * count
        return [self.program.write(self.evidence.pad, end + n) for n in range(count)]

    def _see(self, block: FedBlock, after: list[int]) -> None:
        """Write down what each query of a row's block sees, and which of them is asked for which new token."""
        turn, program = block.turn, self.program
        row, change = turn.row, self.change(turn.row)
        cache = change.cache_of(self, row)
        slots, held = self.slots[cache], self.held[cache]
        seen = [column if self.visible(cache, slot, block.begin) else None for slot, column in enumerate(held)]
        view = change.view(self, block, RowView(slots, held, seen, block.begin))
        for query in range(view.begin, len(view.slots)):
            visible = [column for column in view.seen[: query + 1] if column is not None]
            visible = [*change.query(self, row, view, query, visible), *after]
            entry = program.entry(view.held[query])
            if not visible and change.blind:
                program.blind[entry] = list(view.held)
            program.sees[entry] = visible or ([] if change.blind else [self.blank()])
        for pad in after:
            program.sees[program.entry(pad)] = [*(column for column in view.seen if column is not None), *after]
        first = turn.start - len(self.evidence.prompts[row])
        newest = len(view.slots) - len(turn.drafts) - 1
        for offset in range(turn.end - turn.start):
            program.queries[row, first + offset] = program.entry(view.held[newest + offset])

    def visible(self, row: int, slot: int, begin: int) -> bool:
        """Whether the row's mask shows a slot, to a block that begins at ``begin``; caches of single rows need none."""
        if self.style == "separate":
            return True
        shown = self.change(row).shows(self, row, slot, begin)
        return self.slots[row][slot].at >= 0 or self.slots[row][slot].shown if shown is None else shown

    # What is kept after it.

    def _keep(self, turns: Round, going: list[int]) -> None:
        lengths = {t.row: min(t.start + t.accepted, t.end - 1) for t in turns}
        surplus = {row: self.lengths[row] - count for row, count in lengths.items()}
        most, least = max(surplus[row] for row in going), min(surplus[row] for row in going)
        backs = {row: Rollback(row, lengths[row], surplus[row], most, least) for row in lengths}
        for row, back in backs.items():
            if self.style == "separate" and self.change().crops(self, row not in going):
                self._crop(back)
                self.lengths[row] = back.length
            elif self.style != "separate" and row in going:
                self._mark(back)
                self.lengths[row] = back.length
        if self.style != "separate":
            self._move(list(backs), going)
        self.change().after(self)
        for row, back in backs.items():
            if self.change(row).restored and back.surplus:
                self.lengths[row] = self.before[row]
            self.believed[row] = self.change(row).believes(self, back)
        assert all(self.lengths[row] < len(self.evidence.texts[row]) for row in going)

    def _mark(self, back: Rollback) -> None:
        """Hide what is rejected in a row of the batch's cache, and what an edit loses; show what an edit leaves."""
        change = self.change(back.row)
        kept = change.kept(self, back)
        for place, slot in enumerate(self.slots[back.row]):
            if slot.at >= back.length:
                slot.shown = slot.shown or slot.at < back.length + kept
                if slot.shown and change.zeroed:
                    self.held[back.row][place] = self.blank()
                slot.at = GONE
            elif slot.at >= 0 and change.loses(self, back, slot.at):
                slot.at = GONE

    def _crop(self, back: Rollback) -> None:
        """Cut rejected tokens off the end of a row's own cache."""
        change, held, slots = self.change(back.row), self.held[back.row], self.slots[back.row]
        count = back.surplus - change.kept(self, back) + change.cut(self, back)
        if count:
            del held[-count:], slots[-count:]
        for place in reversed(range(len(slots))):
            if change.loses(self, back, slots[place].at):
                del held[place], slots[place]

    def _move(self, batch: list[int], rows: list[int]) -> None:
        """Take the rows that go on, and make the batch's cache follow the mask."""
        held = {
            row: list(self.held[source]) for row, source in zip(rows, self.change().sources(rows, batch), strict=True)
        }
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
        change, columns = self.change(), self.program.columns
        for slot in (slot for row in rows for slot in self.slots[row]):
            slot.shown = slot.shown and slot.at != PAD_SLOT
        used = {row: [k for k, slot in enumerate(self.slots[row]) if slot.at >= 0 or slot.shown] for row in rows}
        before, width = len(self.slots[rows[0]]), max(map(len, used.values()))
        for row in rows:
            slots, here = self.slots[row], change.placed(used[row], width, before)
            unused = len(here) - len(used[row])
            moved = [self.blank() if k is None else held[row][k] for k in here]
            if change.torn:
                unmoved = held[row][before - width :]
                moved = [self.program.column(columns[a][0], columns[b][1]) for a, b in zip(moved, unmoved, strict=True)]
            pads = next((k for k, slot in enumerate(slots) if slot.at != PAD_SLOT), before)
            added = [HeldToken(PAD_SLOT, self.evidence.pad, change.new_pads and k >= pads) for k in range(unused)]
            self.held[row], self.slots[row] = moved, [*added, *(slots[k] for k in used[row])]
