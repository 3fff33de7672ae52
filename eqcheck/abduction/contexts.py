"""Hypotheses about what is seen: edits that an engine makes everywhere, and those that happen to one row."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from eqcheck.abduction.batch import ALWAYS, Applied
from eqcheck.abduction.edits import EDITS, Hypothesis
from eqcheck.abduction.evidence import Evidence
from eqcheck.abduction.program import Program
from eqcheck.abduction.recomputing import recomputed
from eqcheck.abduction.simulation import Simulation


@dataclass(frozen=True, kw_only=True)
class ContextEdit(Hypothesis):
    """One edit of what is seen, in one style of engine; ``schedule`` names its rounds, see `Evidence.schedules`."""

    applied: Applied
    style: str = "separate"
    schedule: str = "own"

    def programs(self, evidence: Evidence, final: int) -> list[Program]:
        """What was seen up to the round ``final``."""
        rounds = evidence.schedules[self.schedule]
        if self.style in ("recomputed", "expanded"):
            return recomputed(evidence, self.style, self.applied, rounds, final)
        if self.edit.id == "ended-row-seen":  # what the other row held when it ended
            final = len(rounds)
        return [Simulation(evidence, self.style, self.applied, rounds, final).program]


LINE = ("separate/own", "separate/least")
HOLES = ("holes/own",)
REALIGNED = ("realigned/own",)
BATCH = ("realigned/own", "holes/own", "cropped/least")
ANEW = ("recomputed/own", "expanded/own")

# The edit, the amounts to try, and the styles and schedules in which it makes a difference or a difference of its own.
SYSTEMATIC = (
    ("slot-positions", (0,), BATCH),
    ("longest-positions", (0,), ("holes/own", "cropped/least")),
    ("another-rows-positions", (0, -1), ("holes/own", "cropped/least", *ANEW)),
    ("drift-rejected", (0,), LINE),
    ("drift-most", (0,), HOLES),
    ("drift-least", (0,), HOLES),
    ("newest-shifted", (-1, 1), LINE),
    ("drafts-shifted", (-1, 1), LINE),
    ("clamped-positions", (1, 2), ("separate/own",)),
    ("pads-seen", (0, 1), (*BATCH, *ANEW)),  # the amount is the position of pads
    ("prompt-pads-seen", (0, 1), HOLES),
    ("block-pads-seen", (0, 1), BATCH),
    ("pads-after-seen", (0,), ("separate/own",)),
    ("new-pads-seen", (0,), REALIGNED),
    ("rejected-zeroed", (0,), HOLES),
    ("pads-accumulate", (0,), ANEW),
    ("future-seen", (0, 64), LINE),  # the next token, or all of the block
    ("itself-hidden", (0,), (*LINE, *BATCH)),
    ("pad-id-hidden", (0,), (*HOLES, *ANEW)),
    ("mask-of-another", (0, -1), (*HOLES, *ANEW)),
    ("rejected-kept", (0,), LINE),
    ("first-rejected-kept", (1, 2), LINE),
    ("rejected-kept-to-most", (0,), HOLES),
    ("restored-with-all", (0,), LINE),
    ("newest-lost", (1, 2), LINE),
    ("lost-to-least", (0,), HOLES),
    ("reset", (0,), LINE),
    ("prompt-end-lost", (0,), HOLES),
    ("prompt-begin-lost", (1,), HOLES),
    ("not-prefilled", (0, 1, 2, 3), ("separate/own",)),  # from which row on
    ("not-prefilled-zeroed", (0, 1, 2, 3), ("separate/own",)),
    ("newest-again", (0,), (*LINE, *BATCH)),
    ("not-moved", (0,), REALIGNED),
    ("moved-wrong-way", (0,), REALIGNED),
    ("values-not-moved", (0,), REALIGNED),
    ("layers-not-moved", (0,), REALIGNED),
    ("heads-not-moved", (0,), REALIGNED),
    ("rows-reversed", (0,), BATCH),
    ("rows-rotated", (0,), BATCH),
    ("stale-rows", (0,), BATCH),
    ("caches-exchanged", (0,), ("separate/own",)),
)

AT_ONSET = (
    "newest-shifted",
    "rejected-kept",
    "first-rejected-kept",
    "newest-lost",
    "newest-again",
    "future-seen",
    "itself-hidden",
    "restored-with-all",
)
ONSETS = 12  # of the rounds before the first wrong token the last so many: each costs some 40 hypotheses for a row


def systematic() -> Iterator[ContextEdit]:
    """Every edit in every style that it makes a difference to."""
    for name, amounts, places in SYSTEMATIC:
        for amount in amounts:
            for place in places:
                style, _, schedule = place.partition("/")
                yield ContextEdit(edit=EDITS[name], applied=Applied(name, amount), style=style, schedule=schedule)


def single(evidence: Evidence, row: int, wrong: int) -> Iterator[ContextEdit]:
    """Edits that happen to one row, once or from some round on; ``wrong`` is the index of its first wrong token."""
    length = len(evidence.prompts[row])
    turns = [
        (n, turn)
        for n, some in enumerate(evidence.schedules["own"])
        for turn in some
        if turn.row == row and turn.start <= length + wrong
    ]
    onsets = [n for n, _ in turns][-ONSETS:]
    others = [other for other in range(len(evidence.texts)) if other != row]
    yield from _from_an_onset(row, onsets, others, reach=evidence.case.num_draft_tokens + 1)
    for other in others:
        for onset in onsets:
            applied = Applied("rows-exchanged", other, onset, onset, row)
            yield _once(applied, f"after round {onset + 1}", row=other)
    for other in others:
        for whole in (0, 1):
            yield _once(Applied("ended-row-seen", other, row=row, token=whole), row=other)
    for token in range(length + wrong):
        written = next((n for n, turn in turns if token < turn.end - 1), turns[-1][0])
        for onset in sorted({written, max(0, turns[-1][0] - 1)}):
            applied = Applied("token-lost", 0, onset, row=row, token=token)
            yield _once(applied, f"after round {onset + 1}", position=token)
    for token in range(1, length):
        for name in ("chunk-lost", "chunk-blind", "chunk-restarted"):
            yield _once(Applied(name, row=row, token=token), position=token)


def _from_an_onset(row: int, onsets: list[int], others: list[int], reach: int) -> Iterator[ContextEdit]:
    for onset in onsets:
        for last, when in ((onset, f"in round {onset + 1} only"), (ALWAYS, f"from round {onset + 1} on")):
            for shift in (*range(-reach, 0), *range(1, reach + 1)):
                yield _once(Applied("shifted-positions", shift, onset, last, row), when, shift=f"{shift:+d}")
            for name in AT_ONSET:
                yield _once(Applied(name, 1, onset, last, row), when)
            for other in others:
                for name in ("another-seen", "another-instead"):
                    yield _once(Applied(name, other, onset, last, row), when, row=other)


def _once(applied: Applied, when: str = "", **parameters: object) -> ContextEdit:
    values = tuple((name, str(value)) for name, value in parameters.items())
    return ContextEdit(edit=EDITS[applied.id], parameters=values, when=when, once=True, applied=applied)
