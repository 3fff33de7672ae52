"""Decoders that are right except under one rare conjunction: how soon does drawing come upon it?

A build that is right decodes; its rounds are noted; where the conjunction holds, the first row's last token is changed.
Nothing else depends on the fault, so what is measured is the drawing of cases alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from eqcheck.catalogue.engines.engine import Rows
from eqcheck.catalogue.engines.rows import PerRow
from eqcheck.contract.decoders import CLAIMED, PADDING_SIDES, Decoder, Request, decoder


@dataclass(frozen=True)
class Share:
    """Hold what a round did to a row: drafts proposed and accepted, tokens committed, and whether it ended."""

    row: int
    proposed: int
    accepted: int
    committed: tuple[int, ...]
    length: int
    ended: bool


@dataclass(frozen=True)
class Answered:
    """A request, what a right build answered, and how its rounds went."""

    request: Request
    outputs: Rows
    rounds: list[list[Share]]

    @property
    def lengths(self) -> list[int]:
        return [len(prompt) for prompt in self.request.prompts]

    def crosses(self, size: int) -> bool:
        """Return whether a row's prompt fits into so many tokens and the whole row does not."""
        return any(n <= size < n + len(row) for n, row in zip(self.lengths, self.outputs, strict=True))

    def ended(self, part: Share) -> bool:
        """Return whether the part is the end of its row by an EOS."""
        return part.ended and part.committed[-1] in self.request.eos_token_ids

    def full(self, part: Share) -> bool:
        """Return whether all K drafts were accepted."""
        return part.accepted == self.request.num_draft_tokens


@dataclass(frozen=True)
class Rare:
    """A rare conjunction; one that is ``held_back`` was not looked at while drawing was tuned."""

    id: str
    when: str
    holds: Callable[[Answered], bool]
    held_back: bool = False

    def decoder(self) -> Decoder:
        """The decoder that is wrong under this conjunction alone."""
        return _declared(self.id)(partial(_decode, self))

    def broken(self, seen: Answered) -> Rows:
        """The rows that it answers."""
        if not self.holds(seen):
            return seen.outputs
        first, *others = seen.outputs
        return [[*first[:-1], first[-1] ^ 1], *others]


def recording(target: Any, draft: Any, request: Request) -> Answered:
    """Decode with a build that is right, and note what happened."""
    engine = _Recording(target, draft, request)
    return Answered(request, engine.decode(), engine.rounds)


def _declared(name: str) -> Callable[[Any], Decoder]:
    return decoder(name=name, families=CLAIMED, padding_sides=PADDING_SIDES)


def _decode(rare: Rare, target: Any, draft: Any, request: Request) -> Rows:
    return rare.broken(recording(target, draft, request))


class _Recording(PerRow):
    """A cache per row; notes its rounds."""

    def begin(self) -> None:
        self.rounds: list[list[Share]] = []
        super().begin()

    def commit(self, drafts: Rows, predicted: Rows) -> list[int]:
        before = [len(self.rows[i]) for i in self.active]
        counts = super().commit(drafts, predicted)
        self.rounds.append(
            [
                Share(i, len(proposed), count, tuple(self.rows[i][n:]), len(self.rows[i]), self.finished(i, proposed))
                for i, proposed, count, n in zip(self.active, drafts, counts, before, strict=True)
            ]
        )
        return counts


def _first_beside(prompts: Sequence[Sequence[int]], related: Callable[[list[int], list[int]], bool]) -> bool:
    """Return whether any prompt is so related to another row's."""
    rows = [list(prompt) for prompt in prompts]
    return any(related(a, b) for i, a in enumerate(rows) for j, b in enumerate(rows) if i != j)


def _round(seen: Answered, holds: Callable[[list[Share]], bool]) -> bool:
    return any(holds(parts) for parts in seen.rounds)


def _part(seen: Answered, holds: Callable[[Share], bool]) -> bool:
    return any(holds(part) for parts in seen.rounds for part in parts)


def _bonus(seen: Answered, part: Share) -> int | None:
    """The token that a part committed after all K drafts, if it came to that."""
    return part.committed[-1] if seen.full(part) and len(part.committed) == part.accepted + 1 else None


def _ends_at_last_draft(seen: Answered, part: Share) -> bool:
    k = seen.request.num_draft_tokens
    return k > 1 and seen.full(part) and len(part.committed) == k and seen.ended(part)


def _streak(seen: Answered, holds: Callable[[list[Share]], bool], count: int) -> bool:
    held = 0
    for parts in seen.rounds:
        held = held + 1 if holds(parts) else 0
        if held == count:
            return True
    return False


RARE = [
    Rare("crosses-16", "a row grows past 16 tokens", lambda seen: seen.crosses(16)),
    Rare("crosses-32", "a row grows past 32 tokens", lambda seen: seen.crosses(32)),
    Rare("crosses-64", "a row grows past 64 tokens", lambda seen: seen.crosses(64)),
    Rare("crosses-128", "a row grows past 128 tokens", lambda seen: seen.crosses(128)),
    Rare("k-7", "K is 7", lambda seen: seen.request.num_draft_tokens == 7),
    Rare("five-rows", "there are five rows or more", lambda seen: len(seen.outputs) >= 5),
    Rare("prompt-over-12", "a prompt is longer than 12 tokens", lambda seen: max(seen.lengths) > 12),
    Rare("over-10-new", "a row gets more than 10 new tokens", lambda seen: max(map(len, seen.outputs)) > 10),
    Rare(
        "equal-prompts",
        "two prompts are equal",
        lambda seen: _first_beside(seen.request.prompts, lambda a, b: a == b),
    ),
    Rare(
        "prefix-prompt",
        "a prompt is the beginning of another",
        lambda seen: _first_beside(seen.request.prompts, lambda a, b: len(a) < len(b) and a == b[: len(a)]),
    ),
    Rare(
        "multiple-of-16", "a prompt has 16 tokens, or 32, 48, ...", lambda seen: any(n % 16 == 0 for n in seen.lengths)
    ),
    Rare(
        "eos-0",
        "a row ends with the EOS id 0",
        lambda seen: _part(seen, lambda p: seen.ended(p) and p.committed[-1] == 0),
    ),
    Rare("last-id", "the last id of the vocabulary is emitted", lambda seen: any(127 in row for row in seen.outputs)),
    Rare(
        "pad-at-bonus",
        "the pad id is emitted after K accepted drafts",
        lambda seen: _part(seen, lambda p: _bonus(seen, p) == seen.request.pad_token_id),
    ),
    Rare(
        "eos-at-last-draft",
        "an EOS is the K-th accepted draft of a row (K at least 2) while another row accepts none",
        lambda seen: _round(
            seen,
            lambda parts: (
                any(_ends_at_last_draft(seen, p) for p in parts)
                and any(p.proposed > 0 and p.accepted == 0 for p in parts)
            ),
        ),
    ),
    Rare(
        "first-to-end",
        "a row ends in the first round and three others go on",
        lambda seen: any(p.ended for p in seen.rounds[0]) and sum(not p.ended for p in seen.rounds[0]) >= 3,
    ),
    Rare(
        "all-end-together",
        "three rows or more, all still going, end in one round after the first",
        lambda seen: any(
            len(parts) == len(seen.outputs) >= 3 and all(p.ended for p in parts) for parts in seen.rounds[1:]
        ),
        held_back=True,
    ),
    Rare("id-0-emitted", "the id 0 is emitted", lambda seen: any(0 in row for row in seen.outputs), held_back=True),
    Rare("nine-rows", "there are nine rows or more", lambda seen: len(seen.outputs) >= 9, held_back=True),
    Rare(
        "round-ends-at-32",
        "a round leaves a row that goes on at exactly 32 tokens",
        lambda seen: _part(seen, lambda p: p.length == 32 and not p.ended),
        held_back=True,
    ),
    Rare(
        "k-over-limit",
        "K is above max_new_tokens, with three rows or more",
        lambda seen: seen.request.num_draft_tokens > seen.request.max_new_tokens and len(seen.outputs) >= 3,
        held_back=True,
    ),
    Rare(
        "pad-0-right",
        "the pad id is 0, and rows of different lengths are padded on the right",
        lambda seen: (
            seen.request.pad_token_id == 0 and seen.request.padding_side == "right" and len(set(seen.lengths)) > 1
        ),
        held_back=True,
    ),
    Rare(
        "two-eos-ids-at-once",
        "two rows end in one round, with different EOS ids",
        lambda seen: _round(seen, lambda parts: len({p.committed[-1] for p in parts if seen.ended(p)}) > 1),
        held_back=True,
    ),
    Rare(
        "left-behind",
        "in three rounds on end one row accepts none and another all of its K (at least 2)",
        lambda seen: (
            seen.request.num_draft_tokens > 1
            and _streak(
                seen,
                lambda parts: (
                    any(p.proposed > 0 and p.accepted == 0 for p in parts) and any(seen.full(p) for p in parts)
                ),
                3,
            )
        ),
        held_back=True,
    ),
]
