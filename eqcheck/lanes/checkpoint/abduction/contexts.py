"""The edits of what is seen that an engine makes everywhere: which component and kind each is, and in which words."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from eqcheck.lanes.checkpoint.abduction.evidence import Evidence
from eqcheck.lanes.checkpoint.abduction.program import Program
from eqcheck.lanes.checkpoint.abduction.recomputing import recomputed
from eqcheck.lanes.checkpoint.abduction.simulation import Edit, Simulation

HIDDEN = ("mask/token-hidden",)  # what is never seen again is lost or hidden for good: tokens do not tell


@dataclass(frozen=True)
class Context:
    """One edit of what is seen, in one style of engine; ``schedule`` names its rounds, see `Evidence.schedules`."""

    component: str
    kind: str
    words: str
    style: str
    schedule: str
    edit: Edit
    rivals: tuple[str, ...] = ()
    once: bool = False

    def programs(self, evidence: Evidence, final: int) -> list[Program]:
        """What was seen up to the round ``final``."""
        rounds = evidence.schedules[self.schedule]
        if self.style in ("recomputed", "expanded"):
            return recomputed(evidence, self.style, self.edit, rounds, final)
        if self.edit.name == "tenant-seen":  # what the other row held when it ended
            final = len(rounds)
        return [Simulation(evidence, self.style, self.edit, rounds, final).program]


LINE = ("separate/own", "separate/least")
BATCH = ("realigned/own", "holes/own", "cropped/least")
ANEW = ("recomputed/own", "expanded/own")

SYSTEMATIC = (
    ("position/query-position", "slot-positions", (0,), BATCH, "tokens are numbered by the slots they are written to"),
    (
        "position/query-position",
        "longest-positions",
        (0,),
        ("holes/own", "cropped/least"),
        "every row's tokens are numbered on from the longest row's",
    ),
    (
        "position/query-position",
        "another-rows-positions",
        (0, -1),
        ("holes/own", "cropped/least", *ANEW),
        "the positions of one row of the batch are used for every row",
    ),
    (
        "position/query-position",
        "drift-rejected",
        (0,),
        LINE,
        "positions advance by all tokens fed, rejected ones, too",
    ),
    (
        "position/query-position",
        "drift-most",
        (0,),
        ("holes/own",),
        "positions advance in every row as in the one that accepts most",
    ),
    (
        "position/query-position",
        "drift-least",
        (0,),
        ("holes/own",),
        "positions advance in every row as in the one that accepts least",
    ),
    (
        "position/query-position",
        "newest-shifted",
        (-1, 1),
        LINE,
        "the correction or bonus token is fed one position off",
    ),
    ("position/query-position", "drafts-shifted", (-1, 1), LINE, "draft tokens are verified one position off"),
    (
        "position/query-position",
        "clamped",
        (1, 2),
        ("separate/own",),
        "the first positions are clamped, so that the first token is off",
    ),
    ("mask/pad-visible", "pads-seen", (0, 1), (*BATCH, *ANEW), "pads are seen"),
    ("mask/pad-visible", "prompt-pads-seen", (0, 1), ("holes/own",), "the pads before the prompt are seen"),
    ("mask/pad-visible", "block-pads-seen", (0, 1), BATCH, "the pads of a short block are seen"),
    ("mask/pad-visible", "pads-after-seen", (0,), ("separate/own",), "the pads that follow a short block are seen"),
    ("mask/pad-visible", "new-pads-seen", (0,), ("realigned/own",), "pads that realigning adds to a row are seen"),
    ("mask/pad-visible", "rejected-zeroed", (0,), ("holes/own",), "zeroed slots are seen"),
    ("mask/pad-visible", "pads-accumulate", (0,), ANEW, "pads between a row's prompt and its new tokens are seen"),
    ("mask/future-visible", "future", (0, 64), LINE, "within a block a token sees later ones"),
    ("mask/token-hidden", "itself-hidden", (0,), (*LINE, *BATCH), "within a block tokens do not see themselves"),
    ("mask/token-hidden", "pad-id-hidden", (0,), ("holes/own", *ANEW), "tokens that equal the pad id are hidden"),
    (
        "mask/token-hidden",
        "mask-of-another",
        (0, -1),
        ("holes/own", *ANEW),
        "the mask of one row of the batch is used for every row",
    ),
    ("cache/stale-entry", "rejected-kept", (0,), LINE, "rejected draft tokens are still seen"),
    (
        "cache/stale-entry",
        "first-rejected-kept",
        (1, 2),
        LINE,
        "rollback stops short: the first rejected draft tokens are still seen",
    ),
    (
        "cache/stale-entry",
        "rejected-kept-to-most",
        (0,),
        ("holes/own",),
        "rows are cropped as the one that accepted most: rejected draft tokens are still seen",
    ),
    (
        "cache/stale-entry",
        "restored-with-all",
        (0,),
        LINE,
        "after a rejection tokens are fed again, and what was there is still seen",
    ),
    (
        "cache/missing-entry",
        "newest-lost",
        (1, 2),
        LINE,
        "rollback goes too far: the newest accepted token is no longer seen",
    ),
    (
        "cache/missing-entry",
        "lost-to-least",
        (0,),
        ("holes/own",),
        "rows are cropped as the one that accepted least: accepted tokens are no longer seen",
    ),
    ("cache/missing-entry", "reset", (0,), LINE, "after a rejection nothing is seen of what was cached"),
    (
        "cache/missing-entry",
        "prompt-end-lost",
        (0,),
        ("holes/own",),
        "the last token of the prompt is not seen by later rounds",
    ),
    (
        "cache/missing-entry",
        "prompt-begin-lost",
        (1,),
        ("holes/own",),
        "the first token of the prompt is not seen by later rounds",
    ),
    (
        "cache/missing-entry",
        "not-prefilled",
        (0, 1, 2, 3),
        ("separate/own",),
        "of the prompt of a row only the last token is fed",
    ),
    (
        "cache/missing-entry",
        "not-prefilled-zeroed",
        (0, 1, 2, 3),
        ("separate/own",),
        "of the prompt of a row only the last token is fed, behind empty slots",
    ),
    (
        "cache/duplicate-entry",
        "newest-again",
        (0,),
        (*LINE, *BATCH),
        "the last cached token is fed again and seen twice",
    ),
    ("cache/misaligned", "not-moved", (0,), ("realigned/own",), "mask and positions are realigned, the cache is not"),
    ("cache/misaligned", "moved-wrong-way", (0,), ("realigned/own",), "entries are moved together at the wrong edge"),
    ("cache/torn-entry", "values-not-moved", (0,), ("realigned/own",), "keys are realigned, values are not"),
    ("cache/torn-entry", "layers-not-moved", (0,), ("realigned/own",), "only the first layer is realigned"),
    ("cache/torn-entry", "heads-not-moved", (0,), ("realigned/own",), "only the first head is realigned"),
    ("cache/wrong-row", "rows-reversed", (0,), BATCH, "after every round the rows of the cache are exchanged"),
    ("cache/wrong-row", "rows-rotated", (0,), BATCH, "after every round the rows of the cache are one place off"),
    (
        "cache/wrong-row",
        "stale-rows",
        (0,),
        BATCH,
        "once a row has left, the rows of the cache are read by their old numbers",
    ),
    ("cache/wrong-row", "caches-exchanged", (0,), ("separate/own",), "each row is given the next row's cache"),
)

AT_ONSET = (
    ("newest-shifted", "position/query-position", "the newest token is fed one position later"),
    ("rejected-kept", "cache/stale-entry", "rejected draft tokens are still seen"),
    ("first-rejected-kept", "cache/stale-entry", "the first rejected draft token is still seen"),
    ("newest-lost", "cache/missing-entry", "the newest accepted token is no longer seen"),
    ("newest-again", "cache/duplicate-entry", "the last cached token is fed again and seen twice"),
    ("future", "mask/future-visible", "within the block tokens see the one after them"),
    ("itself-hidden", "mask/token-hidden", "within the block tokens do not see themselves"),
    (
        "restored-with-all",
        "cache/stale-entry",
        "after a rejection tokens are fed again, and what was there is still seen",
    ),
)
ONSETS = 12  # at most so many rounds before the first wrong token


def systematic(evidence: Evidence) -> Iterator[Context]:
    """Every edit in every style that it makes a difference to."""
    for named, edit, amounts, places, words in SYSTEMATIC:
        component, _, kind = named.partition("/")
        for amount in amounts:
            for place in places:
                style, _, schedule = place.partition("/")
                rivals = HIDDEN if kind == "missing-entry" and edit != "not-prefilled-zeroed" else ()
                yield Context(component, kind, words, style, schedule, Edit(edit, amount), rivals)


def single(evidence: Evidence, row: int, wrong: int) -> Iterator[Context]:
    """Edits that happen to one row, once or from some round on; ``wrong`` is the index of its first wrong token."""
    length = len(evidence.prompts[row])
    rounds = evidence.schedules["own"]
    turns = [
        (n, turn) for n, some in enumerate(rounds) for turn in some if turn.row == row and turn.start <= length + wrong
    ]
    onsets = [n for n, _ in turns][-ONSETS:]
    reach = evidence.case.num_draft_tokens + 1
    others = [other for other in range(len(evidence.texts)) if other != row]

    def context(fingerprint: str, words: str, edit: Edit) -> Context:
        component, _, kind = fingerprint.partition("/")
        rivals = HIDDEN if kind == "missing-entry" else ()
        return Context(component, kind, words, "separate", "own", edit, rivals, once=True)

    for onset in onsets:
        for last, until in ((onset, f"in round {onset + 1} only"), (10**9, f"from round {onset + 1} on")):
            for shift in (*range(-reach, 0), *range(1, reach + 1)):
                words = f"positions are {shift:+d} off {until}"
                yield context("position/query-position", words, Edit("shifted", shift, onset, last, row))
            for name, fingerprint, what in AT_ONSET:
                yield context(fingerprint, f"{what} {until}", Edit(name, 1, onset, last, row))
            for other in others:
                words = f"the tokens of row {other} are seen besides its own {until}"
                yield context("cache/wrong-row", words, Edit("another-seen", other, onset, last, row))
                words = f"the tokens of row {other} are seen instead of its own {until}"
                yield context("cache/wrong-row", words, Edit("another-instead", other, onset, last, row))
    for other in others:
        for onset in onsets:
            words = f"its tokens in the cache and those of row {other} are exchanged after round {onset + 1}"
            yield context("cache/wrong-row", words, Edit("exchanged", other, onset, onset, row))
    for other in others:
        for last_drafts in (0, 1):
            words = f"what row {other} left in the cache is seen"
            yield context("cache/wrong-row", words, Edit("tenant-seen", other, row=row, token=last_drafts))
    for token in range(length + wrong):
        written = next((n for n, turn in turns if token < turn.end - 1), turns[-1][0])
        for onset in sorted({written, max(0, turns[-1][0] - 1)}):
            words = f"position {token} is not seen after round {onset + 1}"
            yield context("cache/missing-entry", words, Edit("token-lost", 0, onset, row=row, token=token))
    for token in range(1, length):
        words = f"the prompt is cut before position {token}: "
        yield context(
            "cache/missing-entry", words + "later ones never see those before", Edit("chunk-lost", row=row, token=token)
        )
        yield context(
            "mask/token-hidden",
            words + "the second part does not see the first",
            Edit("chunk-blind", row=row, token=token),
        )
        yield context(
            "position/query-position",
            words + "positions of the second part begin at 0",
            Edit("chunk-restarted", row=row, token=token),
        )
