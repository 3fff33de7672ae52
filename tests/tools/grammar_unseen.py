"""Wrong uses of grammars by mechanisms that no rule was written for: no sentence but a true one may be said of them."""

from __future__ import annotations

from grammar_faults import IDS, Free, Going, Mask, Matcher


class FreeFirst(Free):
    """The first new token of a row is chosen freely."""

    def mask(self, row: Going) -> list[Mask]:
        first, *others = super().mask(row)
        return [first if row.output else IDS, *others]


class EosAlways(Free):
    """A row may always end."""

    def mask(self, row: Going) -> list[Mask]:
        ends = {*row.options.eos_token_ids}
        return [mask | ends for mask in super().mask(row)]


class EosNever(Free):
    """A row may end only where nothing else is allowed."""

    def mask(self, row: Going) -> list[Mask]:
        ends = {*row.options.eos_token_ids}
        return [(mask - ends or mask) if row.matcher.edges else mask for mask in super().mask(row)]


class ByPlace(Free):
    """A matcher stays at its place of the batch when a row before it has ended."""

    def masks(self, going: list[Going]) -> list[list[Mask]]:
        if not hasattr(self, "places"):
            self.places = [row.matcher for row in going]
        for row, matcher in zip(going, self.places, strict=False):
            row.matcher = matcher
        return super().masks(going)


class Compact(Free):
    """Masks of rows with a grammar are packed, and are unpacked from the first row of the batch on."""

    def masks(self, going: list[Going]) -> list[list[Mask]]:
        packed = [
            mask for row, masks in zip(going, super().masks(going), strict=True) for mask in masks if row.matcher.edges
        ]
        packed += [IDS] * sum(len(row.drafts) + 1 for row in going)
        starts = [sum(len(one.drafts) + 1 for one in going[:place]) for place in range(len(going))]
        return [packed[start : start + len(row.drafts) + 1] for row, start in zip(going, starts, strict=True)]


class BackTooFar(Free):
    """Behind a rejection the matcher goes back by one token too many."""

    def move(self, row: Going, new: list[int]) -> None:
        super().move(row, new)
        if len(new) <= len(row.drafts) and len(row.matcher.states) > 1:
            row.matcher.back(1)


class OddPlaces(Free):
    """Every second place of a block is not masked."""

    def mask(self, row: Going) -> list[Mask]:
        return [IDS if place % 2 else mask for place, mask in enumerate(super().mask(row))]


class SkipsCorrection(Free):
    """The token in place of a rejected draft does not move the matcher."""

    def move(self, row: Going, new: list[int]) -> None:
        super().move(row, new[:-1] if len(new) <= len(row.drafts) else new)


class MovesByDrafts(Free):
    """The matcher goes on by the drafts of a block, accepted or not, and not by the target's token."""

    def move(self, row: Going, new: list[int]) -> None:
        super().move(row, row.drafts or new)


class LastOfBlock(Free):
    """All places of a block have the mask of the last."""

    def mask(self, row: Going) -> list[Mask]:
        return [super().mask(row)[-1]] * (len(row.drafts) + 1)


class TwiceForBonus(Free):
    """The bonus token moves the matcher twice, if it may."""

    def move(self, row: Going, new: list[int]) -> None:
        super().move(row, [*new, new[-1]] if len(new) > len(row.drafts) else new)


class OpenBehindInvalid(Free):
    """Behind a draft that the grammar forbids the mask stays, and after a block with one the matcher starts anew."""

    def move(self, row: Going, new: list[int]) -> None:
        fits = [row.matcher.accept(token) for token in row.drafts]
        row.matcher.back(len(row.drafts))
        super().move(row, new)
        if not all(fits):
            row.matcher = Matcher(row.options)


class FirstGrammar(Free):
    """All rows have the grammar of the first one that has any."""

    def masks(self, going: list[Going]) -> list[list[Mask]]:
        self.given = getattr(self, "given", None) or next((r.matcher.edges for r in going if r.matcher.edges), ())
        for row in going:
            row.matcher.edges = self.given
        return super().masks(going)


UNSEEN: dict[str, tuple[type[Free], str]] = {
    "unseen-free-first": (FreeFirst, "option-missing-at-times"),
    "unseen-eos-always": (EosAlways, ""),
    "unseen-eos-never": (EosNever, ""),
    "unseen-by-place": (ByPlace, "option-of-others"),
    "unseen-compact": (Compact, "grammar-of-neighbour or option-of-others"),
    "unseen-back-too-far": (BackTooFar, ""),
    "unseen-odd-places": (OddPlaces, "option-missing-at-times"),
    "unseen-skips-correction": (SkipsCorrection, ""),
    "unseen-moves-by-drafts": (MovesByDrafts, ""),
    "unseen-last-of-block": (LastOfBlock, "option-over-drafts"),
    "unseen-twice-for-bonus": (TwiceForBonus, ""),
    "unseen-anew": (OpenBehindInvalid, ""),
    "unseen-first-grammar": (FirstGrammar, "options-of-another or option-of-others"),
}
"""Faults, and the edits that are true of them."""
