"""An engine that holds rows to grammars by matchers, in three builds, and faults in how it does that.

A step proposes draft tokens for all rows, makes a mask for each place of each row, asks the target, and moves the
matchers on. `Free` proposes what the draft likes best; `Checked` leaves out what the grammar forbids, and all behind
it; `Held` has the draft follow the grammar, and takes the first token from the prefill. All compute the built
checkpoint `full`. A fault changes one method of `Free`, and so of all three.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import eqcheck
from eqcheck.contract.decoders import Request, RowOptions
from eqcheck.core.case.engine import EngineRow
from eqcheck.engines.checkpoints.continuations import FunctionTruth
from eqcheck.engines.checkpoints.folders import checkpoint

IDS = frozenset(range(256))
CLAIMS = ("row-limits", "row-eos", "grammar")
Mask = frozenset[int]


class Matcher:
    """Where a row is in a grammar; it goes back by tokens. Without a grammar everything is allowed."""

    def __init__(self, options: RowOptions) -> None:
        self.edges, self.eos = options.grammar, options.eos_token_ids
        self.states = [0]

    @property
    def allowed(self) -> Mask:
        if not self.edges:
            return IDS
        here = [edge for edge in self.edges if edge[0] == self.states[-1]]
        named = {token for _, ids, _ in here for token in ids} - {*self.eos}
        return frozenset(named | ({*self.eos} if any(not ids for _, ids, _ in here) else set()))

    def accept(self, token: int) -> bool:
        """Go on by a token; one that is not allowed is told, and leaves the state."""
        here = [edge for edge in self.edges if edge[0] == self.states[-1] and token in edge[1]]
        fits = token in self.allowed
        self.states.append(here[0][2] if fits and here and token not in self.eos else self.states[-1])
        return fits

    def back(self, count: int) -> None:
        self.states = self.states[: len(self.states) - count]


@dataclass
class Going:
    """A row being decoded."""

    number: int
    prompt: tuple[int, ...]
    options: RowOptions
    matcher: Matcher
    output: list[int] = field(default_factory=list)
    drafts: list[int] = field(default_factory=list)
    earlier: list[Mask] = field(default_factory=list)
    last: list[int] = field(default_factory=list)
    refused: bool = False

    @property
    def ended(self) -> bool:
        ends = self.options.eos_token_ids
        return (
            self.refused
            or len(self.output) >= self.options.max_new_tokens
            or bool(self.output and self.output[-1] in ends)
        )


class Free:
    """All rows, step by step; the draft knows no grammar."""

    prefilled = False

    def __call__(self, target: str, draft: str, request: Request) -> list[list[int]]:
        built = checkpoint("full").built
        assert built is not None
        self.target, self.draft = (FunctionTruth(one.function) for one in built)
        self.observed = {"drafted": 0, "accepted": 0}
        asked = enumerate(zip(request.prompts, request.rows, strict=True))
        rows = [Going(number, tuple(prompt), own, self.matcher(prompt, own)) for number, (prompt, own) in asked]
        while going := [row for row in rows if not row.ended]:
            for row in going:
                k = 0 if request.drafting == "none" or (self.prefilled and not row.output) else request.num_draft_tokens
                row.drafts = self.proposed(row, min(k, row.options.max_new_tokens - len(row.output) - 1))
            for row, masks in zip(going, self.masks(going), strict=True):
                self.verify(row, masks)
        self.told = [{"finish_reason": "error"} if row.refused else None for row in rows]
        return [row.output for row in rows]

    def matcher(self, prompt: Any, options: RowOptions) -> Matcher:
        return Matcher(options)

    def proposed(self, row: Going, k: int) -> list[int]:
        drafts = list[int]()
        for _ in range(k):
            drafts.append(self.best(self.draft, row, drafts, IDS)[-1])
        return drafts

    def best(self, model: FunctionTruth, row: Going, drafts: list[int], *masks: Mask) -> list[int]:
        """The best tokens that the masks allow behind the last of the drafts, and behind each before it."""
        plain = EngineRow(row.prompt, RowOptions(1))
        (scores,) = model.together([plain], [[*row.output, *drafts]])
        return [
            max(mask, key=score.tolist().__getitem__) for mask, score in zip(masks, scores[-len(masks) :], strict=True)
        ]

    def masks(self, going: list[Going]) -> list[list[Mask]]:
        """For each row a mask for each of its places."""
        return [self.mask(row) for row in going]

    def mask(self, row: Going) -> list[Mask]:
        masks = [row.matcher.allowed]
        for token in row.drafts:
            row.matcher.accept(token)
            masks.append(row.matcher.allowed)
        row.matcher.back(len(row.drafts))
        return masks

    def verify(self, row: Going, masks: list[Mask]) -> None:
        """Keep drafts as long as they are the best tokens that are allowed, and one more."""
        answers, drafts = self.best(self.target, row, row.drafts, *masks), row.drafts
        accepted = next((n for n, token in enumerate(drafts) if token != answers[n]), len(drafts))
        new = answers[: accepted + 1]
        ends = [n for n, token in enumerate(new, 1) if token in row.options.eos_token_ids]
        new = new[: min(ends, default=len(new))]
        self.observed["drafted"] += len(drafts)
        self.observed["accepted"] += min(accepted, len(new))
        self.move(row, new)
        row.output += new
        row.last.append(new[-1])

    def move(self, row: Going, new: list[int]) -> None:
        """Move the matcher on by new tokens."""
        for token in new:
            row.matcher.accept(token)


class Checked(Free):
    """Drafts end before the first one that the grammar forbids."""

    def proposed(self, row: Going, k: int) -> list[int]:
        drafts = super().proposed(row, k)
        fits = [row.matcher.accept(token) for token in drafts]
        row.matcher.back(len(drafts))
        return drafts[: (*fits, False).index(False)]


class Held(Free):
    """Drafts follow the grammar."""

    prefilled = True

    def proposed(self, row: Going, k: int) -> list[int]:
        drafts = list[int]()
        for _ in range(k):
            drafts.append(self.best(self.draft, row, drafts, row.matcher.allowed)[-1])
            row.matcher.accept(drafts[-1])
        row.matcher.back(len(drafts))
        return drafts


class KeepsRejected(Free):
    """The matcher is not taken back behind drafts that are rejected."""

    def move(self, row: Going, new: list[int]) -> None:
        for token in (*row.drafts, new[-1]):
            row.matcher.accept(token)


class FreeBonus(Free):
    """The bonus token is chosen freely."""

    def mask(self, row: Going) -> list[Mask]:
        return [*super().mask(row)[: len(row.drafts)], IDS]


class RefusedBonus(FreeBonus):
    """The bonus token is chosen freely, and a row of which the matcher does not take it ends with an error."""

    def move(self, row: Going, new: list[int]) -> None:
        fits = [row.matcher.accept(token) for token in new]
        row.refused = not all(fits)


class FirstAlone(Free):
    """The first place of a block is masked, and no other."""

    def mask(self, row: Going) -> list[Mask]:
        return [super().mask(row)[0], *[IDS] * len(row.drafts)]


class NextMask(Free):
    """Masks are those of the next row of the batch."""

    def masks(self, going: list[Going]) -> list[list[Mask]]:
        right = super().masks(going)
        moved = [*right[1:], right[0]]
        return [[*other, *[other[-1]] * len(own)][: len(own)] for own, other in zip(right, moved, strict=True)]


class LosesAccepted(Free):
    """Of each block the last token alone moves the matcher."""

    def move(self, row: Going, new: list[int]) -> None:
        row.matcher.accept(new[-1])


class Stale(Free):
    """All places of a block have the mask of the first."""

    def mask(self, row: Going) -> list[Mask]:
        return [row.matcher.allowed] * (len(row.drafts) + 1)


class DraftOnly(Free):
    """The target's answers are not masked."""

    def mask(self, row: Going) -> list[Mask]:
        return [IDS] * (len(row.drafts) + 1)


class OpenAtEnd(Free):
    """Within a block a grammar that has come to its end is taken to be over."""

    def mask(self, row: Going) -> list[Mask]:
        first, *others = super().mask(row)
        return [first, *(IDS if mask <= {*row.options.eos_token_ids} else mask for mask in others)]


class RoundLate(Free):
    """A mask is that of where the row was a block before, for all places of a block."""

    def mask(self, row: Going) -> list[Mask]:
        before = row.earlier or [row.matcher.allowed]
        row.earlier = [row.matcher.allowed]
        return before * (len(row.drafts) + 1)


class NeverMoved(Free):
    """The matcher stays at the beginning."""

    def mask(self, row: Going) -> list[Mask]:
        return [Matcher(row.options).allowed] * (len(row.drafts) + 1)


class CountsPrompt(Free):
    """The matcher begins behind the prompt's tokens."""

    def matcher(self, prompt: Any, options: RowOptions) -> Matcher:
        made = Matcher(options)
        for token in prompt:
            made.accept(token)
        return made


class FreeCorrection(Free):
    """The token in place of a rejected draft is chosen freely."""

    def verify(self, row: Going, masks: list[Mask]) -> None:
        answers = self.best(self.target, row, row.drafts, *masks)
        wrong = next((n for n, token in enumerate(row.drafts) if token != answers[n]), None)
        super().verify(row, masks if wrong is None else [*masks[:wrong], IDS, *masks[wrong + 1 :]])


FAULTS: dict[str, tuple[type[Free], str]] = {
    "keeps-rejected": (KeepsRejected, "option-over-rejected"),
    "free-bonus": (FreeBonus, "option-missing-at-bonus"),
    "refused-bonus": (RefusedBonus, "option-missing-at-bonus"),
    "first-alone": (FirstAlone, "option-for-first-alone"),
    "next-mask": (NextMask, "grammar-of-neighbour"),
    "loses-accepted": (LosesAccepted, "grammar-without-accepted"),
    "stale": (Stale, "option-stale"),
    "draft-only": (DraftOnly, "option-ignored"),
    "open-at-end": (OpenAtEnd, "grammar-open-at-end"),
    "round-late": (RoundLate, "option-stale-by-a-round"),
    "never-moved": (NeverMoved, "grammar-at-beginning"),
    "counts-prompt": (CountsPrompt, "option-over-prompt"),
    "free-correction": (FreeCorrection, "option-missing-at-correction"),
}
"""Faults, and the edits that say what they do."""
BUILDS = (Free, Checked, Held)


def engine(build: type[Free], fault: type[Free] = Free) -> type[Free]:
    """A build with a fault in it."""
    return build if fault is Free else type(f"{build.__name__}{fault.__name__}", (fault, build), {})


for _build in BUILDS:
    for _name, (_fault, _) in {"": (Free, ""), **FAULTS}.items():
        _called = "-".join(filter(None, (_build.__name__.lower(), _name)))
        _claims: dict[str, Any] = {"checkpoints": True, "dtype": "float32", "capabilities": CLAIMS}
        globals()[_called] = eqcheck.decoder(name=_called, **_claims)(engine(_build, _fault))
