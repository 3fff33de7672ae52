"""What each edit changes in an engine, as functions that `eqcheck.abduction.simulation` calls.

A `Change` has a place for each thing that a batch engine does; what it leaves alone goes right. So an edit is one line
of `CHANGES`, and the engine itself knows no edit by name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from eqcheck.abduction.batch import (
    GONE,
    PAD_SLOT,
    Batch,
    FedBlock,
    HeldToken,
    Rollback,
    RowView,
)


def _in_order(sim: Batch, block: FedBlock) -> list[int]:
    return list(range(block.start, block.start + len(block.tokens)))


def _at_the_right_edge(used: list[int], width: int, before: int) -> list[int | None]:
    return [*[None] * (width - len(used)), *used]


@dataclass(frozen=True)
class Change:
    """What an engine does otherwise than right. The defaults are right."""

    # before the first round
    start: Callable[[Batch], None] = lambda sim: None
    # what is fed, where, and at which positions
    again: bool = False  # the last cached token is fed again
    pads_after: bool = False  # pads that follow a short block are seen
    cache_of: Callable[[Batch, int], int] = lambda sim, row: row
    pad_position: Callable[[Batch, FedBlock, int], int] = lambda sim, block, column: 0
    positions: Callable[[Batch, FedBlock], list[int]] = _in_order
    # what is seen
    shows: Callable[[Batch, int, int, int], bool | None] = lambda sim, row, slot, begin: None  # None: as the mask says
    view: Callable[[Batch, FedBlock, RowView], RowView] = lambda sim, block, view: view
    query: Callable[[Batch, int, RowView, int, list[int]], list[int]] = lambda sim, row, view, query, visible: visible
    blind: bool = False  # a query that sees nothing attends to everything alike
    # what is kept
    crops: Callable[[Batch, bool], bool] = lambda sim, ended: True
    kept: Callable[[Batch, Rollback], int] = lambda sim, back: 0  # of the rejected tokens
    cut: Callable[[Batch, Rollback], int] = lambda sim, back: 0  # besides the rejected tokens
    loses: Callable[[Batch, Rollback, int], bool] = lambda sim, back, at: False
    zeroed: bool = False  # what is kept of the rejected tokens is zeros
    restored: bool = False  # after a rejection the round's tokens are fed again
    believes: Callable[[Batch, Rollback], int] = lambda sim, back: back.length  # the next position
    # where it goes in the batch's cache
    sources: Callable[[list[int], list[int]], Sequence[int]] = lambda rows, batch: rows
    placed: Callable[[list[int], int, int], list[int | None]] = _at_the_right_edge
    new_pads: bool = False  # pads that realigning adds are seen
    torn: str = ""  # what realigning leaves where it was, see `Program`
    # after a round, and after the last
    after: Callable[[Batch], None] = lambda sim: None
    end: Callable[[Batch], None] = lambda sim: None


def _not_prefilled(zeroed: bool) -> Callable[[Batch], None]:
    def start(sim: Batch) -> None:
        for row in range(sim.applied.amount, len(sim.held)):
            prompt = sim.evidence.prompts[row]
            sim.lengths[row] = sim.believed[row] = len(prompt) - 1
            if zeroed:
                sim.held[row] = [sim.blank() for _ in prompt[:-1]]
                sim.slots[row] = [HeldToken(GONE, token, True) for token in prompt[:-1]]

    return start


def _next_rows_cache(sim: Batch, row: int) -> int:
    return (row + 1) % len(sim.held) if sim.number else row


def _moved(by: Callable[[Batch, FedBlock], int]) -> Callable[[Batch, FedBlock], list[int]]:
    """All positions of a block shifted alike."""
    return lambda sim, block: [position + by(sim, block) for position in _in_order(sim, block)]


def _clamped(sim: Batch, block: FedBlock) -> list[int]:
    return [max(sim.applied.amount, position) for position in _in_order(sim, block)]


def _drift(sim: Batch, block: FedBlock) -> int:
    return sim.believed[block.turn.row] - block.start


def _like_another(sim: Batch, block: FedBlock) -> list[int]:
    """Blocks end together; before a shorter one there are pads, at 0."""
    other = list(sim.blocks.values())[sim.applied.amount]
    gap = len(other.tokens) - len(block.tokens)
    return [other.start + gap + rank if gap + rank >= 0 else 0 for rank in range(len(block.tokens))]


def _newest_shifted(sim: Batch, block: FedBlock) -> list[int]:
    first, *rest = _in_order(sim, block)
    return [first + (sim.applied.amount if sim.number else 0), *rest]


def _drafts_shifted(sim: Batch, block: FedBlock) -> list[int]:
    first, *rest = _in_order(sim, block)
    return [first, *(position + (sim.applied.amount if sim.number else 0) for position in rest)]


def _restarted(sim: Batch, block: FedBlock) -> list[int]:
    chunk = range(sim.applied.token, len(sim.evidence.prompts[block.turn.row]))
    return [at - sim.applied.token if at in chunk else at for at in _in_order(sim, block)]


def _pads(sim: Batch, row: int, slot: int, begin: int) -> bool | None:
    return True if sim.slots[row][slot].at == PAD_SLOT else None


def _prompt_pads(sim: Batch, row: int, slot: int, begin: int) -> bool | None:
    return True if all(one.at == PAD_SLOT for one in sim.slots[row][: slot + 1]) else None


def _block_pads(sim: Batch, row: int, slot: int, begin: int) -> bool | None:
    return True if 0 < begin <= slot else None


def _pad_id(sim: Batch, row: int, slot: int, begin: int) -> bool | None:
    return False if sim.slots[row][slot].token == sim.evidence.pad else None


def _mask_of_another(sim: Batch, block: FedBlock, view: RowView) -> RowView:
    other = list(sim.blocks)[sim.applied.amount]
    seen = [column if sim.visible(other, slot, view.begin) else None for slot, column in enumerate(view.held)]
    return RowView(view.slots, view.held, seen, view.begin)


def _another(instead: bool) -> Callable[[Batch, FedBlock, RowView], RowView]:
    """What another row had before this round is seen before the row's own, or in its place."""

    def change(sim: Batch, block: FedBlock, view: RowView) -> RowView:
        other = sim.blocks.get(sim.applied.amount)
        others = sim.held[sim.applied.amount][: other.begin if other else None]
        own = [*[None] * view.begin, *view.seen[view.begin :]] if instead else view.seen
        slots = [*[HeldToken(GONE, 0)] * len(others), *view.slots]
        return RowView(slots, [*others, *view.held], [*others, *own], view.begin + len(others))

    return change


def _later(sim: Batch, row: int, view: RowView, query: int, visible: list[int]) -> list[int]:
    later = view.seen[query + 1 : query + 2 + sim.applied.amount]
    return [*visible, *(column for column in later if column is not None)]


def _not_itself(sim: Batch, row: int, view: RowView, query: int, visible: list[int]) -> list[int]:
    return visible[:-1] if query > view.begin and view.seen[query] is not None else visible


def _cut_off(for_good: bool) -> Callable[[Batch, int, RowView, int, list[int]], list[int]]:
    """Behind a cut in the prompt what is before it is not seen, by the rest of the prompt or by all that follows."""

    def change(sim: Batch, row: int, view: RowView, query: int, visible: list[int]) -> list[int]:
        at, cut = view.slots[query].at, sim.applied.token
        if at < cut or not (for_good or at < len(sim.evidence.prompts[row])):
            return visible
        return [column for column, slot in zip(view.held[: query + 1], view.slots, strict=False) if slot.at >= cut]

    return change


def _swap(sim: Batch) -> None:
    one, other = sim.applied.row or 0, sim.applied.amount
    sim.held[one], sim.held[other] = sim.held[other], sim.held[one]
    sim.slots[one], sim.slots[other] = sim.slots[other], sim.slots[one]


def _see_ended_row(sim: Batch) -> None:
    """The row sees all that another held at its end, besides its own."""
    for entry, row in enumerate(sim.rows):
        if row == sim.applied.row:
            sim.program.sees[entry] = [*sim.held[sim.applied.amount], *sim.program.sees[entry]]


def _amount_for_pads(sim: Batch, block: FedBlock, column: int) -> int:
    return sim.applied.amount


CHANGES = {
    "slot-positions": Change(
        positions=_moved(lambda sim, block: block.begin + block.pads - block.start),
        pad_position=lambda sim, block, column: block.begin + column,
    ),
    "longest-positions": Change(
        positions=_moved(lambda sim, block: max(one.start for one in sim.blocks.values()) - block.start)
    ),
    "another-rows-positions": Change(positions=_like_another),
    "drift-rejected": Change(positions=_moved(_drift), believes=lambda sim, back: sim.believed[back.row]),
    "drift-most": Change(positions=_moved(_drift), believes=lambda sim, back: sim.believed[back.row] - back.least),
    "drift-least": Change(positions=_moved(_drift), believes=lambda sim, back: sim.believed[back.row] - back.most),
    "newest-shifted": Change(positions=_newest_shifted),
    "drafts-shifted": Change(positions=_drafts_shifted),
    "clamped-positions": Change(positions=_clamped),
    "shifted-positions": Change(positions=_moved(lambda sim, block: sim.applied.amount)),
    "chunk-restarted": Change(positions=_restarted),
    "pads-seen": Change(shows=_pads, pad_position=_amount_for_pads),
    "prompt-pads-seen": Change(shows=_prompt_pads, pad_position=_amount_for_pads),
    "block-pads-seen": Change(shows=_block_pads, pad_position=_amount_for_pads),
    "pads-after-seen": Change(pads_after=True),
    "new-pads-seen": Change(new_pads=True),
    "rejected-zeroed": Change(kept=lambda sim, back: back.surplus, zeroed=True),
    "future-seen": Change(query=_later),
    "itself-hidden": Change(query=_not_itself, blind=True),
    "pad-id-hidden": Change(shows=_pad_id),
    "mask-of-another": Change(view=_mask_of_another),
    "chunk-blind": Change(query=_cut_off(for_good=False)),
    "chunk-lost": Change(query=_cut_off(for_good=True)),
    "rejected-kept": Change(kept=lambda sim, back: back.surplus),
    "first-rejected-kept": Change(kept=lambda sim, back: min(back.surplus, sim.applied.amount)),
    "rejected-kept-to-most": Change(kept=lambda sim, back: back.surplus - back.least),
    "restored-with-all": Change(kept=lambda sim, back: back.surplus, restored=True),
    "newest-lost": Change(cut=lambda sim, back: sim.applied.amount),
    "lost-to-least": Change(loses=lambda sim, back, at: at >= back.length - (back.most - back.surplus)),
    "reset": Change(cut=lambda sim, back: back.length if back.surplus else 0),
    "token-lost": Change(loses=lambda sim, back, at: at == sim.applied.token),
    "prompt-end-lost": Change(loses=lambda sim, back, at: at == len(sim.evidence.prompts[back.row]) - 1),
    "prompt-begin-lost": Change(loses=lambda sim, back, at: at < sim.applied.amount),
    "not-prefilled": Change(start=_not_prefilled(zeroed=False)),
    "not-prefilled-zeroed": Change(start=_not_prefilled(zeroed=True)),
    "newest-again": Change(again=True),
    "not-moved": Change(placed=lambda used, width, before: [k if k in set(used) else None for k in range(before)]),
    "moved-wrong-way": Change(placed=lambda used, width, before: [*used, *[None] * (width - len(used))]),
    "values-not-moved": Change(torn="values"),
    "layers-not-moved": Change(torn="layers"),
    "heads-not-moved": Change(torn="heads"),
    "rows-reversed": Change(sources=lambda rows, batch: rows[::-1]),
    "rows-rotated": Change(sources=lambda rows, batch: [*rows[1:], *rows[:1]]),
    "stale-rows": Change(sources=lambda rows, batch: batch[: len(rows)]),
    "caches-exchanged": Change(cache_of=_next_rows_cache),
    "another-seen": Change(view=_another(instead=False)),
    "another-instead": Change(view=_another(instead=True)),
    "rows-exchanged": Change(after=_swap),
    # With a token of 1 the row that ended keeps its last draft tokens, too.
    "ended-row-seen": Change(crops=lambda sim, ended: not (ended and sim.applied.token), end=_see_ended_row),
}
RIGHT = Change()
