"""An engine of two-stage drafts: the draft has a cheap draft of its own, what came before in the row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from eqcheck.catalogue.engines.engine import Rows
from eqcheck.catalogue.engines.rows import PerRow


class Staged(PerRow):
    """Tokens looked up in the row are verified by the draft, and what it makes of them by the target."""

    def begin(self) -> None:
        super().begin()
        request = replace(self.request, target_cache=self.request.draft_cache)
        self.drafter = PerRow(self.draft, self.draft, request)  # only its caches are used
        self.drafter.begin()

    def propose(self, budget: Sequence[int]) -> Rows:
        return [self._draft(i, count) for i, count in zip(self.active, budget, strict=True)]

    def _draft(self, i: int, count: int) -> list[int]:
        """So many draft tokens for a row, fewer calls of the draft where the look-up was right."""
        text, start = list(self.rows[i]), len(self.rows[i])
        while len(text) < start + count:
            guess = looked_up(text, start + count - len(text) - 1)
            logits = self.drafter.feed(i, text[self.drafter.lengths[i] :] + guess)
            answers = logits[-len(guess) - 1 :].argmax(-1).tolist()
            agreed = next((n for n, token in enumerate(guess) if token != answers[n]), len(guess))
            self.drafter.roll_back(i, len(guess) - agreed)
            text += answers[: agreed + 1]
        return text[start:]

    def after(self, going: Sequence[int], lengths: Sequence[int]) -> None:
        super().after(going, lengths)
        for i, length in zip(self.active, lengths, strict=True):
            self.drafter.roll_back(i, max(0, self.drafter.lengths[i] - length))


def looked_up(text: list[int], count: int) -> list[int]:
    """What followed the last token where it came before, else the row's first tokens: at most ``count``.

    >>> looked_up([7, 3, 5, 3], 2), looked_up([7, 3, 5], 2)
    ([5, 3], [7, 3])
    """
    before = [at for at, token in enumerate(text[:-1]) if token == text[-1]]
    start = before[-1] + 1 if before else 0
    return text[start : start + count]
