"""Batch engines in outline, without a model: who writes which entry where, and what is seen, under one change.

`Simulation` follows an engine through the rounds that its outputs show and writes down, as a `Program`, every entry and
what its query saw. Styles, by what happens to the caches after a round:

realigned   one cache for the batch, left padded; what is left is moved together at the right edge
holes       the same, but nothing moves: rejected slots are hidden by the mask
cropped     the same, but columns that no row has a use for are cut off at the end
separate    a cache per row, cropped; no padding, no mask

An engine of another style makes the same fault show in other tokens, so an edit is tried in every style in which it
makes a difference. A `Change` has a place for each thing that an engine does; the engine knows no edit by name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import compress

from eqcheck.core.case.engine import PAD
from eqcheck.engines.abduction.evidence import Edit, Evidence, Hypothesis
from eqcheck.engines.abduction.queries import EMPTY, RIGHT_ANEW, Program, Recomputation, Round, Turn

# A row of a batch as an engine holds it: slots, the block that is fed, what is seen, what is taken back.

PAD_SLOT, GONE = -1, -2
ALWAYS = 10**9  # a round that no case reaches


@dataclass
class HeldToken:
    """A slot, as a row's mask knows it: the logical position of its token, PAD_SLOT or GONE; if it is shown anyway."""

    at: int
    token: int
    shown: bool = False


@dataclass
class FedBlock:
    """A row's part of a forward: ``tokens`` from logical position ``start`` on, behind ``pads``.

    With these it begins at slot ``begin``. The first ``again`` of them are in the cache already.
    """

    turn: Turn
    start: int
    tokens: list[int]
    again: int
    pads: int = 0
    begin: int = 0


@dataclass(frozen=True)
class RowView:
    """The view of a block's queries: the row's slots, the columns in them, and the same, or None where hidden.

    The block's own begin at ``begin``.
    """

    slots: list[HeldToken]
    held: list[int]
    seen: list[int | None]
    begin: int


@dataclass(frozen=True)
class Rollback:
    """A row after a round: ``length`` tokens are kept, ``surplus`` were rejected; ``ended``: the row leaves.

    ``most`` and ``least`` are the surpluses of the rows of the batch.
    """

    row: int
    length: int
    surplus: int
    most: int
    least: int
    ended: bool


def right_position(sim: Simulation, block: FedBlock, rank: int) -> int:
    """The logical position of a block's token; pads are at 0."""
    return block.start + rank if rank >= 0 else 0


def _at_the_right_edge(used: list[int], width: int, before: int) -> list[int | None]:
    return [*[None] * (width - len(used)), *used]


@dataclass(frozen=True)
class Change:
    """The faulty parts of an engine. The defaults are right."""

    # before the first round
    start: Callable[[Simulation], None] = lambda sim: None
    # what is fed, where, and at which positions: by rank in the block, that of pads is below 0
    again: bool = False  # the last cached token is fed again
    pads_after: bool = False  # pads that follow a short block are seen
    pads_enter: bool = False  # pads before a block enter the recurrent state
    cache_of: Callable[[Simulation, int], int] = lambda sim, row: row
    position: Callable[[Simulation, FedBlock, int], int] = right_position
    place: Callable[[Simulation, FedBlock, int], int] = right_position  # the same, as windows count it
    # what is seen, by a block and by each of its queries
    view: Callable[[Simulation, FedBlock, RowView], RowView] = lambda sim, block, view: view
    query: Callable[[Simulation, int, RowView, int, list[int]], list[int]] = lambda sim, row, view, at, visible: visible
    blind: bool = False  # a query that sees nothing attends to everything alike
    # what is kept, and how far positions are from there on ahead of it
    kept: Callable[[Simulation, Rollback], int] = lambda sim, back: 0  # of the rejected tokens; below 0 of the others
    loses: Callable[[Simulation, Rollback, int], bool] = lambda sim, back, at: False
    zeroed: bool = False  # what is kept of the rejected tokens is zeros
    restored: bool = False  # after a rejection the round's tokens are fed again
    drift: Callable[[Simulation, Rollback], int] = lambda sim, back: 0
    # the first position that a query sees in a layer, of a target with windows
    least: Callable[[Simulation, FedBlock, int, int], int] | None = None
    near: Callable[[Simulation, int, int, bool], bool] | None = None  # whether a place is seen, if in a window or not
    # the entry whose recurrent state goes on after a round, and before a token at a position, if another one
    state: Callable[[Simulation, Rollback], int] | None = None
    follows: Callable[[Simulation, int, int], int | None] = lambda sim, row, at: None
    # where it goes in the batch's cache
    sources: Callable[[list[int], list[int]], Sequence[int]] = lambda rows, batch: rows
    placed: Callable[[list[int], int, int], list[int | None]] = _at_the_right_edge
    new_pads: bool = False  # pads that realigning adds are seen
    torn: str = ""  # what realigning leaves where it was, see `Program`
    # after a round, and after the last
    after: Callable[[Simulation], None] = lambda sim: None
    end: Callable[[Simulation], None] = lambda sim: None


RIGHT = Change()


@dataclass(frozen=True)
class ContextEdit(Edit):
    """An edit of what is seen: what it changes in an engine with caches, and in one without.

    ``places`` are the styles of engines and the schedules in which it makes a difference or a difference of its own,
    ``amounts`` are tried in each. Without places it is only tried in single rows. It may happen in some parts of the
    target only, see `Evidence.scopes`.
    """

    places: tuple[str, ...] = ()
    amounts: tuple[int, ...] = (0,)
    change: Change = RIGHT
    anew: Recomputation = RIGHT_ANEW
    scope: str = ""

    @property
    def rivals(self) -> tuple[str, ...]:
        """No mask hides a token from a state, and none but a window's from the layers that have it, or moves others."""
        moves = self.change.drift is not RIGHT.drift
        return () if moves or self.scope in ("state", "states", "windows", "prefix") else super().rivals


@dataclass(frozen=True, kw_only=True)
class EditedContext(Hypothesis):
    """One edit of what is seen: by how much, in which rounds, and with the row or token where it concerns only one.

    ``amount`` is a number of tokens or positions, or another row, and ``source`` a number of its tokens. The engine is
    of one ``style``; ``schedule`` names its rounds, see `Evidence.schedules`. With ``parts`` it happens in these only,
    with ``since`` in a row once it has had more tokens than that, with ``rejected`` after rounds in which so many draft
    tokens are rejected, or more, and with ``none_accepted`` after those in which all are.
    """

    edit: ContextEdit
    style: str = "separate"
    schedule: str = "own"
    amount: int = 0
    first: int = 0
    last: int = ALWAYS
    row: int | None = None
    token: int = -1
    source: int = 0
    parts: tuple[tuple[str, int], ...] = ()
    since: int = 0
    rejected: int = 0
    none_accepted: bool = False

    def takes_back(self, turn: Turn) -> bool:
        """Return whether it happens to what is taken back after a turn."""
        rejected = len(turn.drafts) - turn.accepted
        return rejected >= self.rejected and not (self.none_accepted and (turn.accepted or not rejected))


class Simulation:
    """One batch in one context, round by round.

    ``held[row]`` are the columns in the row's slots; ``lengths`` the tokens cached, ``reached`` the most there were
    before this round, and ``drift`` is how far positions are ahead of them; ``blocks`` are what each row is fed in the
    present round; ``rows`` those of the entries.
    """

    def __init__(self, evidence: Evidence, context: EditedContext, rounds: Sequence[Round]) -> None:
        self.evidence, self.style, self.context, self.rounds = evidence, context.style, context, rounds
        count = len(evidence.texts)
        self.rows: list[int] = []
        self.slots: list[list[HeldToken]] = [[] for _ in range(count)]
        self.held: list[list[int]] = [[] for _ in range(count)]
        self.lengths, self.drift, self.reached = [0] * count, [0] * count, [0] * count
        # by row, the entry whose recurrent state the next token goes on from, and the same at the begin of the round
        self.states = self.began = [EMPTY] * count
        self.paths: list[dict[int, int]] = [{} for _ in range(count)]  # by row and position, the entry fed there last
        self.blocks: dict[int, FedBlock] = {}
        change = context.edit.change
        self.program = Program(torn=change.torn, near={layer: [] for layer in evidence.windows})
        self.places: list[int] = []  # by entry, its place in its row: windows are counted in these, not in positions
        change.start(self)
        for self.number, turns in enumerate(rounds):
            before, self.began = list(self.lengths), list(self.states)
            self._feed(turns)
            going = [turn.row for turn in turns if turn.end < len(evidence.texts[turn.row])]
            if going:
                self._keep(turns, going, before)
        change.end(self)

    def change(self, row: int | None = None) -> Change:
        """The change in this round, of a row or of the batch."""
        now = self.context.first <= self.number <= self.context.last
        concerned = row is None or self.context.row in (None, row)
        if row is not None and self.context.since:
            concerned = concerned and max(self.reached[row], self.lengths[row]) > self.context.since
        return self.context.edit.change if now and concerned else RIGHT

    def taking_back(self, back: Rollback) -> Change:
        """The change in what is taken back of a row after this round."""
        return self.change(back.row) if self.context.takes_back(self.blocks[back.row].turn) else RIGHT

    def visible(self, row: int, slot: int) -> bool:
        """Return whether the row's mask shows a slot; caches of single rows need none."""
        held = self.slots[row][slot]
        return self.style == "separate" or held.at >= 0 or held.shown

    # A round's forward.

    def _feed(self, turns: Round) -> None:
        self.blocks = {turn.row: self._block(turn) for turn in turns}
        width = max((len(block.tokens) for block in self.blocks.values()), default=0)
        for block in self.blocks.values():
            self._write(block, width)
        for row, block in self.blocks.items():
            self._see(block, self._pads_after(block, width) if self.change(row).pads_after else [])
        for row, block in self.blocks.items():
            self.lengths[row] += len(block.tokens) - block.again

    def _block(self, turn: Turn) -> FedBlock:
        again = int(self.change(turn.row).again and self.number > 0)
        start = self.lengths[turn.row] - again
        return FedBlock(turn, start, [*self.evidence.texts[turn.row][start : turn.start], *turn.drafts], again)

    def _write(self, block: FedBlock, width: int) -> None:
        """Entries for a block and the pads before it. A token fed again has no place of its own, but is seen."""
        row = block.turn.row
        change = self.change(row)
        cache = change.cache_of(self, row)
        block.begin = len(self.held[cache])
        block.pads = width - len(block.tokens) if self.style != "separate" else 0
        for rank in range(-block.pads, len(block.tokens)):
            slot = HeldToken(PAD_SLOT, PAD)
            if rank >= 0:
                twice = rank < block.again
                slot = HeldToken(GONE if twice else block.start + rank, block.tokens[rank], twice)
            self.slots[cache].append(slot)
            goes_on = self._goes_on(block, rank)  # from a state that may take an entry of its own
            column = self.program.write(slot.token, change.position(self, block, rank), goes_on)
            self._enter(block, rank, self.program.entry(column))
            self.held[cache].append(column)
            self.rows.append(row)
            self.places.append(max(0, change.place(self, block, rank)))

    def _goes_on(self, block: FedBlock, rank: int) -> int:
        """The entry from whose state a token that is fed goes on; pads enter no state."""
        row, change = block.turn.row, self.change(block.turn.row)
        if rank < 0:
            return self.states[row] if change.pads_enter else EMPTY
        follows = change.follows(self, row, block.start + rank)
        return self.states[change.cache_of(self, row)] if follows is None else follows

    def _enter(self, block: FedBlock, rank: int, entry: int) -> None:
        """Let the row's next token go on from one that is fed."""
        row = block.turn.row
        if rank >= 0:
            self.states[row] = self.paths[row][block.start + rank] = entry
        elif self.change(row).pads_enter:
            self.states[row] = entry

    def _pads_after(self, block: FedBlock, width: int) -> list[int]:
        """The pads that follow a block, which the next one overwrites."""
        end, count = block.start + len(block.tokens), width - len(block.tokens)
        self.rows += [block.turn.row] * count
        self.places += range(end, end + count)
        return [self.program.write(PAD, end + n) for n in range(count)]

    def _see(self, block: FedBlock, after: list[int]) -> None:
        """Write down what each query of a row's block sees, and which of them is asked for which new token."""
        turn, program = block.turn, self.program
        row, change = turn.row, self.change(turn.row)
        cache = change.cache_of(self, row)
        held = self.held[cache]
        seen = [column if self.visible(cache, slot) else None for slot, column in enumerate(held)]
        view = change.view(self, block, RowView(self.slots[cache], held, seen, block.begin))
        places = [self.places[one] if one >= 0 else ALWAYS for one, _ in program.columns] if program.near else []
        for query in range(view.begin, len(view.slots)):
            visible = [column for column in view.seen[: query + 1] if column is not None]
            visible = [*change.query(self, row, view, query, visible), *after]
            entry = program.entry(view.held[query])
            # A query that sees nothing attends to all slots alike, or to a blank one: kernels differ.
            if not visible and change.blind:
                program.blind[entry] = list(view.held)
            program.sees[entry] = visible or ([] if change.blind else [self.program.blank()])
            self._see_near(block, entry, visible, places)
        for pad in after:
            program.sees[program.entry(pad)] = [*(column for column in view.seen if column is not None), *after]
            self._see_near(block, program.entry(pad), program.sees[program.entry(pad)], places)
        first = turn.start - len(self.evidence.prompts[row])
        newest = len(view.slots) - len(turn.drafts) - 1
        for offset in range(turn.end - turn.start):
            program.queries[row, first + offset] = program.entry(view.held[newest + offset])

    def _see_near(self, block: FedBlock, entry: int, visible: Sequence[int], by_column: Sequence[int]) -> None:
        """Write down what a query sees in each layer of a target with windows."""
        change, program, at = self.change(block.turn.row), self.program, self.places[entry]
        places = [by_column[column] for column in visible] if program.near else []
        inside = cache(lambda least: list(compress(visible, map(least.__le__, places))))  # layers share windows
        for layer, window in self.evidence.windows.items():
            least = change.least(self, block, at, layer) if change.least else at - window + 1 if window else 0
            program.near[layer][entry] = inside(least)
            if window and change.near:
                seen = (change.near(self, at, place, place >= least) for place in places)
                program.near[layer][entry] = list(compress(visible, seen))

    # The tokens that are kept after it.

    def _keep(self, turns: Round, going: list[int], before: list[int]) -> None:
        lengths = {turn.row: min(turn.start + turn.accepted, turn.end - 1) for turn in turns}
        surplus = {row: self.lengths[row] - count for row, count in lengths.items()}
        most, least = max(surplus[row] for row in going), min(surplus[row] for row in going)
        for row, length in lengths.items():
            back = Rollback(row, length, surplus[row], most, least, row not in going)
            change = self.taking_back(back)
            self.drift[row] += change.drift(self, back)
            if self.style == "separate":
                self._crop(back)
            elif not back.ended:
                self._mark(back)
            self.reached[row] = max(self.reached[row], self.lengths[row])
            self.lengths[row] = before[row] if change.restored and back.surplus else length
            state = change.state
            self.states[row] = self.at(row, length) if state is None else state(self, back)
        if self.style != "separate":
            self._move(list(lengths), going)
        self.change().after(self)
        assert all(self.lengths[row] < len(self.evidence.texts[row]) for row in going)

    def twice(self, entry: int, follows: int) -> int:
        """An entry for a token that enters a recurrent state a second time; nothing sees it."""
        self.rows.append(self.rows[entry])
        self.places.append(self.places[entry])
        return self.program.again(entry, follows)

    def at(self, row: int, length: int) -> int:
        """The entry of the last of a row's first tokens, as they were fed last."""
        return self.paths[row].get(length - 1, EMPTY)

    def _mark(self, back: Rollback) -> None:
        """Hide what is rejected in a row of the batch's cache, and what a change loses; show what it leaves."""
        change = self.taking_back(back)
        kept = change.kept(self, back)
        for place, slot in enumerate(self.slots[back.row]):
            if slot.at >= back.length:
                slot.shown = slot.shown or slot.at < back.length + kept
                if slot.shown and change.zeroed:
                    self.held[back.row][place] = self.program.blank()
                slot.at = GONE
            elif slot.at >= 0 and change.loses(self, back, slot.at):
                slot.at = GONE

    def _crop(self, back: Rollback) -> None:
        """Cut rejected tokens off the end of a row's own cache."""
        change, held, slots = self.taking_back(back), self.held[back.row], self.slots[back.row]
        if count := back.surplus - change.kept(self, back):
            del held[-count:], slots[-count:]
        for place in reversed(range(len(slots))):
            if change.loses(self, back, slots[place].at):
                del held[place], slots[place]

    def _move(self, batch: list[int], rows: list[int]) -> None:
        """Take the rows that go on, and make the batch's cache follow the mask."""
        sources = self.change().sources(rows, batch)
        held = {row: list(self.held[source]) for row, source in zip(rows, sources, strict=True)}
        if self.style == "realigned":
            self._realign(rows, held)
            return
        for row in rows:
            self.held[row] = held[row]
        if self.style == "cropped":
            width = max((k + 1 for row in rows for k in self._used(row)), default=0)
            for row in rows:
                del self.held[row][width:], self.slots[row][width:]

    def _used(self, row: int) -> list[int]:
        return [k for k, slot in enumerate(self.slots[row]) if slot.at >= 0 or slot.shown]

    def _realign(self, rows: Sequence[int], held: dict[int, list[int]]) -> None:
        change, columns = self.change(), self.program.columns
        for slot in (slot for row in rows for slot in self.slots[row]):
            slot.shown = slot.shown and slot.at != PAD_SLOT
        used = {row: self._used(row) for row in rows}
        before, width = len(self.slots[rows[0]]), max(map(len, used.values()))
        for row in rows:
            slots, here = self.slots[row], change.placed(used[row], width, before)
            moved = [self.program.blank() if k is None else held[row][k] for k in here]
            if change.torn:
                unmoved = held[row][before - width :]
                moved = [self.program.column(columns[a][0], columns[b][1]) for a, b in zip(moved, unmoved, strict=True)]
            pads = next((k for k, slot in enumerate(slots) if slot.at != PAD_SLOT), before)
            # Rows end in the same column, so what a shorter one lacks stands before its tokens, as pads.
            added = [HeldToken(PAD_SLOT, PAD, change.new_pads and k >= pads) for k in range(len(here) - len(used[row]))]
            self.held[row], self.slots[row] = moved, [*added, *(slots[k] for k in used[row])]
