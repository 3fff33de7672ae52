"""Edits of what is seen, and what each changes in an engine; prefixes, windows and states have their own modules."""

from __future__ import annotations

from collections.abc import Callable

from eqcheck.abduction.blocks import GONE, PAD_SLOT, FedBlock, HeldToken, RowView
from eqcheck.abduction.edits import LINE, OWN, edit
from eqcheck.abduction.prefixes import PREFIXES
from eqcheck.abduction.program import Recomputation
from eqcheck.abduction.simulation import Simulation
from eqcheck.abduction.states import STATES
from eqcheck.abduction.windows import WINDOWS
from eqcheck.case.engine import PAD


def _not_prefilled(zeroed: bool) -> Callable[[Simulation], None]:
    def start(sim: Simulation) -> None:
        for row in range(sim.context.amount, len(sim.held)):
            prompt = sim.evidence.prompts[row]
            sim.lengths[row] = len(prompt) - 1
            if zeroed:
                sim.held[row] = [sim.program.blank() for _ in prompt[:-1]]
                sim.slots[row] = [HeldToken(GONE, token, True) for token in prompt[:-1]]

    return start


def _moved(by: Callable[[Simulation, FedBlock], int]) -> Callable[[Simulation, FedBlock, int], int]:
    """All positions of a block shifted alike."""
    return lambda sim, block, rank: block.start + rank + by(sim, block)


def _like_another(sim: Simulation, block: FedBlock, rank: int) -> int:
    """Blocks end together; before a shorter one there are pads, at 0."""
    other = list(sim.blocks.values())[sim.context.amount]
    rank += len(other.tokens) - len(block.tokens)
    return other.start + rank if rank >= 0 else 0


def _shifted(concerned: Callable[[int], bool]) -> Callable[[Simulation, FedBlock, int], int]:
    """Positions of some ranks shifted, in all rounds but the first."""
    return lambda sim, block, rank: block.start + rank + sim.context.amount * (concerned(rank) and sim.number > 0)


def _restarted(sim: Simulation, block: FedBlock, rank: int) -> int:
    at = block.start + rank
    return at - sim.context.token if sim.context.token <= at < len(sim.evidence.prompts[block.turn.row]) else at


def _pads_at(sim: Simulation, block: FedBlock, rank: int) -> int:
    return block.start + rank if rank >= 0 else sim.context.amount


def _seen_too(which: Callable[[RowView, int], bool]) -> Callable[[Simulation, FedBlock, RowView], RowView]:
    """Some slots are attended to besides the ones that the mask shows."""

    def view(sim: Simulation, block: FedBlock, view: RowView) -> RowView:
        pairs = enumerate(zip(view.held, view.seen, strict=True))
        seen = [held if which(view, slot) else column for slot, (held, column) in pairs]
        return RowView(view.slots, view.held, seen, view.begin)

    return view


def _pad_id_hidden(sim: Simulation, block: FedBlock, view: RowView) -> RowView:
    seen = [None if slot.token == PAD else column for slot, column in zip(view.slots, view.seen, strict=True)]
    return RowView(view.slots, view.held, seen, view.begin)


def _mask_of_another(sim: Simulation, block: FedBlock, view: RowView) -> RowView:
    other = list(sim.blocks)[sim.context.amount]
    seen = [column if sim.visible(other, slot) else None for slot, column in enumerate(view.held)]
    return RowView(view.slots, view.held, seen, view.begin)


def _another(instead: bool) -> Callable[[Simulation, FedBlock, RowView], RowView]:
    """The columns that another row had before this round are attended to before the row's own, or in their place."""

    def view(sim: Simulation, block: FedBlock, view: RowView) -> RowView:
        other = sim.blocks.get(sim.context.amount)
        others = sim.held[sim.context.amount][: other.begin if other else None]
        own = [*[None] * view.begin, *view.seen[view.begin :]] if instead else view.seen
        slots = [*[HeldToken(GONE, 0)] * len(others), *view.slots]
        return RowView(slots, [*others, *view.held], [*others, *own], view.begin + len(others))

    return view


def _later(sim: Simulation, row: int, view: RowView, query: int, visible: list[int]) -> list[int]:
    later = view.seen[query + 1 : query + 2 + sim.context.amount]
    return [*visible, *(column for column in later if column is not None)]


def _not_itself(sim: Simulation, row: int, view: RowView, query: int, visible: list[int]) -> list[int]:
    return visible[:-1] if query > view.begin and view.seen[query] is not None else visible


def _cut_off(for_good: bool) -> Callable[[Simulation, int, RowView, int, list[int]], list[int]]:
    """The tokens before a cut in the prompt are hidden from the rest of the prompt, or from all tokens behind it."""

    def query(sim: Simulation, row: int, view: RowView, query: int, visible: list[int]) -> list[int]:
        at, cut = view.slots[query].at, sim.context.token
        if at < cut or not (for_good or at < len(sim.evidence.prompts[row])):
            return visible
        return [column for column, slot in zip(view.held[: query + 1], view.slots, strict=False) if slot.at >= cut]

    return query


def _swap(sim: Simulation) -> None:
    one, other = sim.context.row or 0, sim.context.amount
    sim.held[one], sim.held[other] = sim.held[other], sim.held[one]
    sim.slots[one], sim.slots[other] = sim.slots[other], sim.slots[one]


def _see_ended_row(sim: Simulation) -> None:
    """Another row sees all that the row held at its end, besides its own."""
    for entry, row in enumerate(sim.rows):
        if row == sim.context.amount:
            sim.program.sees[entry] = [*sim.held[sim.context.row or 0], *sim.program.sees[entry]]


HOLES = ("holes/own",)
REALIGNED = ("realigned/own",)
BATCH = ("realigned/own", "holes/own", "cropped/least")
ANEW = ("recomputed/own", "expanded/own")


# fmt: off
CONTEXTS = (
    edit("position/query-position", "slot-positions", "position ids are slot numbers", BATCH,
         position=_moved(lambda sim, block: block.begin + block.pads - block.start)),
    edit("position/query-position", "longest-positions",
         "the position ids of every row continue from the longest row's",
         ("holes/own", "cropped/least"),
         position=_moved(lambda sim, block: max(one.start for one in sim.blocks.values()) - block.start)),
    edit("position/query-position", "another-rows-positions",
         "the position ids of one batch row are used for every row",
         ("holes/own", "cropped/least", *ANEW), (0, -1),
         Recomputation(position=lambda row, column, amount: max(0, column - row.first_pads)), position=_like_another),
    edit("position/query-position", "drift-rejected", "position ids advance by all tokens fed, including rejected ones",
         LINE, position=_moved(lambda sim, block: sim.drift[block.turn.row]), drift=lambda back: back.surplus),
    edit("position/query-position", "drift-most", "position ids advance in every row as in the row that accepts most",
         HOLES, position=_moved(lambda sim, block: sim.drift[block.turn.row]),
         drift=lambda back: back.surplus - back.least),
    edit("position/query-position", "drift-least", "position ids advance in every row as in the row that accepts least",
         HOLES, position=_moved(lambda sim, block: sim.drift[block.turn.row]),
         drift=lambda back: back.surplus - back.most),
    edit("position/query-position", "newest-shifted",
         "the correction or bonus token is fed with a position id that is one off",
         LINE, (-1, 1), position=_shifted(lambda rank: rank == 0)),
    edit("position/query-position", "drafts-shifted", "draft tokens are verified with position ids that are one off",
         LINE, (-1, 1), position=_shifted(lambda rank: rank > 0)),
    edit("position/query-position", "clamped-positions",
         "the first position ids are clamped, so the first token's is wrong", OWN, (1, 2),
         position=lambda sim, block, rank: max(sim.context.amount, block.start + rank)),
    edit("position/query-position", "shifted-positions", "position ids are {shift} off",
         position=_moved(lambda sim, block: sim.context.amount)),
    edit("position/query-position", "chunk-restarted",
         "the prompt is split before token {position}, and position ids restart at 0 in its second part",
         position=_restarted),
    # The amount is the position of pads.
    edit("mask/pad-visible", "pads-seen", "pads are attended to", (*BATCH, *ANEW), (0, 1),
         Recomputation(position=lambda row, column, amount: row.positions[column] if row.real[column] else amount,
                       visible=lambda row, column: True),
         position=_pads_at, view=_seen_too(lambda view, slot: view.slots[slot].at == PAD_SLOT)),
    edit("mask/pad-visible", "prompt-pads-seen", "the pads before the prompt are attended to", HOLES, (0, 1),
         position=_pads_at,
         view=_seen_too(lambda view, slot: all(one.at == PAD_SLOT for one in view.slots[: slot + 1]))),
    edit("mask/pad-visible", "block-pads-seen", "the pads of a short block are attended to", BATCH, (0, 1),
         position=_pads_at, view=_seen_too(lambda view, slot: 0 < view.begin <= slot)),
    edit("mask/pad-visible", "pads-after-seen",
         "the pads that follow a short block are attended to", OWN, pads_after=True),
    edit("mask/pad-visible", "new-pads-seen",
         "pads that realigning adds to a row are attended to", REALIGNED, new_pads=True),
    edit("mask/pad-visible", "rejected-zeroed", "zeroed slots are attended to", HOLES,
         kept=lambda sim, back: back.surplus, zeroed=True),
    edit("mask/pad-visible", "pads-accumulate", "pads between a row's prompt and its new tokens are attended to", ANEW,
         anew=Recomputation(visible=lambda row, column: column >= row.pads, accumulates=True)),
    # The next token is seen, or all of the block.
    edit("mask/future-visible", "future-seen", "tokens of a block attend to later ones", LINE, (0, 64), scope="window",
         query=_later),
    edit("mask/token-hidden", "itself-hidden", "tokens of a block do not attend to themselves", (*LINE, *BATCH),
         query=_not_itself, blind=True),
    edit("mask/token-hidden", "pad-id-hidden", "tokens that equal the pad id are masked", (*HOLES, *ANEW),
         anew=Recomputation(visible=lambda row, column: row.tokens[column] != PAD), view=_pad_id_hidden),
    edit("mask/token-hidden", "mask-of-another", "the mask of one row of the batch is used for every row",
         (*HOLES, *ANEW), (0, -1),
         Recomputation(visible=lambda row, column: row.real[column] and column >= row.first_pads),
         view=_mask_of_another),
    edit("mask/token-hidden", "chunk-blind",
         "the prompt is split before token {position}, and its second part does not attend to the first",
         query=_cut_off(for_good=False)),
    edit("cache/stale-entry", "rejected-kept", "rejected draft tokens are still attended to", LINE, scope="window",
         kept=lambda sim, back: back.surplus),
    edit("cache/stale-entry", "nothing-rolled-back",
         "rejected draft tokens are still attended to, and position ids continue after them", LINE, scope="window",
         kept=lambda sim, back: back.surplus, drift=lambda back: back.surplus,
         position=_moved(lambda sim, block: sim.drift[block.turn.row]),
         place=_moved(lambda sim, block: sim.drift[block.turn.row])),
    edit("cache/stale-entry", "first-rejected-kept",
         "rollback stops short, and the first rejected draft tokens are still attended to",
         LINE, (1, 2), scope="window",
         kept=lambda sim, back: min(back.surplus, sim.context.amount)),
    edit("cache/stale-entry", "rejected-kept-to-most",
         "rows are cropped as the one that accepted most, and rejected tokens are still attended to", HOLES,
         kept=lambda sim, back: back.surplus - back.least),
    edit("cache/stale-entry", "restored-with-all",
         "after a rejection tokens are fed again, and their old entries are still attended to", LINE,
         kept=lambda sim, back: back.surplus, restored=True),
    edit("cache/missing-entry", "newest-lost",
         "rollback goes too far, and the newest accepted token is no longer attended to", LINE, (1, 2), scope="window",
         kept=lambda sim, back: -sim.context.amount),
    edit("cache/missing-entry", "lost-to-least",
         "rows are cropped as the one that accepted least, and accepted tokens are no longer attended to", HOLES,
         loses=lambda sim, back, at: at >= back.length - (back.most - back.surplus)),
    edit("cache/missing-entry", "reset", "after a rejection nothing in the cache is attended to", LINE, scope="window",
         loses=lambda sim, back, at: back.surplus > 0),
    edit("cache/missing-entry", "prompt-end-lost", "later rounds do not attend to the last token of the prompt", HOLES,
         loses=lambda sim, back, at: at == len(sim.evidence.prompts[back.row]) - 1),
    edit("cache/missing-entry", "prompt-begin-lost", "later rounds do not attend to the first token of the prompt",
         HOLES, (1,), loses=lambda sim, back, at: at < sim.context.amount),
    # The amount is the row from which on it happens.
    edit("cache/missing-entry", "not-prefilled", "only the last token of a row's prompt is fed",
         OWN, (0, 1, 2, 3), start=_not_prefilled(zeroed=False)),
    edit("cache/missing-entry", "not-prefilled-zeroed",
         "only the last token of a row's prompt is fed, after empty slots",
         OWN, (0, 1, 2, 3), start=_not_prefilled(zeroed=True)),
    edit("cache/missing-entry", "token-lost", "token {position} of the row is not attended to",
         loses=lambda sim, back, at: at == sim.context.token),
    edit("cache/missing-entry", "chunk-lost",
         "the prompt is split before token {position}, and what follows never attends to what is before it",
         query=_cut_off(for_good=True)),
    edit("cache/duplicate-entry", "newest-again", "the last cached token is fed again and attended to twice",
         (*LINE, *BATCH), again=True),
    edit("cache/misaligned", "not-moved", "mask and position ids are realigned, but the cache is not", REALIGNED,
         placed=lambda used, width, before: [k if k in set(used) else None for k in range(before)]),
    edit("cache/misaligned", "moved-wrong-way", "entries are compacted towards the wrong side", REALIGNED,
         placed=lambda used, width, before: [*used, *[None] * (width - len(used))]),
    edit("cache/torn-entry", "values-not-moved", "keys are realigned, but values are not", REALIGNED, torn="values"),
    edit("cache/torn-entry", "layers-not-moved", "only the first layer is realigned", REALIGNED, torn="layers"),
    edit("cache/torn-entry", "heads-not-moved", "only the first head is realigned", REALIGNED, torn="heads"),
    edit("cache/wrong-row", "rows-reversed", "after every round the rows of the cache are swapped", BATCH,
         sources=lambda rows, batch: rows[::-1]),
    edit("cache/wrong-row", "rows-rotated", "after every round the rows of the cache are shifted by one", BATCH,
         sources=lambda rows, batch: [*rows[1:], *rows[:1]]),
    edit("cache/wrong-row", "stale-rows",
         "once a row has left the batch, the cache is indexed by the old row numbers", BATCH,
         sources=lambda rows, batch: batch[: len(rows)]),
    edit("cache/wrong-row", "caches-exchanged", "each row uses the next row's cache", OWN,
         cache_of=lambda sim, row: (row + 1) % len(sim.held) if sim.number else row),
    edit("cache/wrong-row", "another-seen", "the tokens of row {row} are attended to in addition to the row's own",
         view=_another(instead=False)),
    edit("cache/wrong-row", "another-instead", "the tokens of row {row} are attended to instead of the row's own",
         view=_another(instead=True)),
    edit("cache/wrong-row", "rows-exchanged",
         "the row's tokens in the cache are swapped with those of row {row}", after=_swap),
    # With a token of 1 the row that ended keeps its last draft tokens, too.
    edit("cache/wrong-row", "ended-row-seen", "what row {row} left in the cache is attended to",
         kept=lambda sim, back: back.surplus * (back.ended and sim.context.token), end=_see_ended_row),
    edit("position/query-position", "capped-positions", "position ids stop at {position}",
         position=lambda sim, block, rank: min(sim.context.token, block.start + rank)),
    *PREFIXES,
    *WINDOWS,
    *STATES,
)
# fmt: on
