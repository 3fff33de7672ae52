"""Cases that are made for one thing each, where drawing meets it too seldom: they stand among the drawn ones.

`Made.lengths` has prompts and rows of every length modulo the sizes of blocks, pages, chunks, windows and buckets,
those at their ends oftener, in batches between the usual buckets. Prompts are long and limits short: an end is crossed
by three new tokens as well as by thirty. `Made.shared` has prompts that share their first block only, or a later one
only. `Made.repeating` has rows that emit a token twice and more in a row. `Made.reweighted` asks a request again when
target, draft or both have got other weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice, pairwise
from random import Random

import numpy as np

from eqcheck.case.record import Case
from eqcheck.contract.errors import CaseError
from eqcheck.contract.family import FAMILY
from eqcheck.contract.requirements import prompts_meeting, unmet
from eqcheck.contract.sizes import SIZES, Bounds
from eqcheck.drawing.cases import VOCAB_SIZE, Claims, unused_id
from eqcheck.drawing.choices import Prompt
from eqcheck.hashlm.hashing import mix
from eqcheck.truth.continuation import continue_rows, continued

_LIMIT = 3  # new tokens of a row that crosses an end
_ROWS = (7, 9, 5, 11, 6, 3, 10)  # between buckets of 1, 2, 4, 8, 16
_SHORT = 6  # tokens of a prompt that is drawn often
_FEW_IDS = 8
_TRIED = 64  # prompts, of which the rows are kept that repeat themselves most
_CHANGES: tuple[tuple[int, int | None], ...] = ((1, None), (1, 0), (0, 1), (2, None))
"""Seeds of target and draft (None: the same) after both were 0."""


def lengths(most: int) -> Iterator[int]:
    """Lengths up to ``most`` without end, all that are seldom drawn in turn; of seven, two are at the end of a block.

    >>> [*islice(lengths(136), 7)]
    [128, 7, 8, 1, 9, 10, 11]
    >>> {*range(7, 129)} <= {*islice(lengths(136), 140)}
    True
    """
    every = range(1, most + 1)
    ends = {n: max(size for size in SIZES if n % size in (0, 1, size - 1)) for n in every if _at_end(n)}
    at_ends = cycle(sorted(ends, key=lambda n: (-ends[n], n % ends[n] != 0, n)) or every)
    between = cycle([n for n in every if _SHORT < n < SIZES[-1] and not _at_end(n)] or every)
    while True:
        yield next(at_ends)
        yield from islice(between, 2)
        yield next(at_ends)
        yield from islice(between, 3)


def _at_end(length: int) -> bool:
    return any(length % size in (0, 1, size - 1) for size in SIZES if size >= 16)


def longest_rows(case: Case, count: int) -> Case:
    """The case with its longest rows alone."""
    rows = sorted(range(len(case.prompts)), key=lambda row: -len(case.prompts[row]))[:count]
    return replace(
        case, prompts=tuple(case.prompts[row] for row in rows), accepts=tuple(case.accepts[row] for row in rows)
    )


@dataclass
class Made:
    """Make cases within claims and bounds; the same for the same seed."""

    seed: int
    claims: Claims
    bounds: Bounds

    def __post_init__(self) -> None:
        self._lengths = lengths(self.bounds.prompt)
        self._numbers = dict[str, int]()

    def lengths(self) -> list[Case]:
        """A case whose rows have the next lengths."""
        number, random = self._next("lengths")
        rows = min(_ROWS[number % len(_ROWS)], self.bounds.rows)
        state = {}
        if number % 3 == 2 and "chunked" in self.claims.cache_states:
            state = {"cache_state": "chunked", "prefill_chunk": SIZES[number // 3 % len(SIZES)]}
        limit = max(min(_LIMIT, self.bounds.new_tokens), 2 if "min-limit-2" in self.claims.requires else 1)
        texts = [self._text(random, length) for length in islice(self._lengths, rows)]
        return self._cases(number, random, texts, limit, **state)

    def shared(self) -> list[Case]:
        """Prompts of two blocks: the second and third share one with the first, either in a batch or after it."""
        number, random = self._next("shared")
        sizes = [size for size in SIZES if 2 * size < self.bounds.prompt]
        if not sizes or self.bounds.rows < 2:
            return []
        size = sizes[number % len(sizes)]
        first, second, third, fourth = (self._text(random, size) for _ in range(4))
        ends = [self._text(random, 1 + n) for n in (0, 1, 2)]
        blocks = ((first, second), (third, second), (first, fourth))
        texts = [(*one, *other, *end)[: self.bounds.prompt] for (one, other), end in zip(blocks, ends, strict=True)]
        texts = texts[: self.bounds.rows]
        if number % 2 == 0:
            return self._cases(number, random, texts, _LIMIT)
        earlier = self._cases(number, random, texts[:1], _LIMIT)
        later = self._cases(number, random, texts[1:], _LIMIT)
        return [replace(last, before=(before,)) for before, last in zip(earlier, later, strict=True)]

    def repeating(self) -> list[Case]:
        """Rows that emit a token several times in a row: of few ids in half of the cases."""
        number, random = self._next("repeating")
        family = self.claims.families[number % len(self.claims.families)]
        if FAMILY[family].target or self.bounds.prompt < 2:
            return []
        few = number % 2 == 1 and not {"pad-not-in-prompt"} & {*self.claims.requires}
        ids = _FEW_IDS if few else FAMILY[family].vocab_size
        limit = min(10 if few else 4, self.bounds.new_tokens)
        start = self._text(random, random.randint(1, min(6, self.bounds.prompt - 1)), ids)
        tried = [(*start, last) for last in range(ids)]
        while len(tried) < _TRIED:
            tried.append(self._text(random, len(start) + 1, ids))
        new, _ = continued(family, ids, 0, tried, limit)
        rows = [(*prompt[-1:], *tokens) for prompt, tokens in zip(tried, new.tolist(), strict=True)]
        best = sorted(range(len(tried)), key=lambda n: -sum(one == other for one, other in pairwise(rows[n])))
        chosen = [tried[n] for n in best[: min(1 + number % 3, self.bounds.rows)]]
        return self._cases(number, random, chosen, limit, vocab_size=ids, family=family)

    def reweighted(self, case: Case) -> list[Case]:
        """A request that was asked before, as it was or with another end, when weights have changed in between."""
        number, random = self._next("reweighted")
        family = FAMILY[case.family]
        if "same-weights" in self.claims.requires or case.before or case.vocab_size != family.vocab_size:
            return []
        seed, draft_seed = _CHANGES[number % len(_CHANGES)]
        if family.target and draft_seed is not None:  # a real draft follows from its target
            seed, draft_seed = 1, None
        prompts = case.prompts
        if number % 3 == 2:  # what was computed for all but the last tokens may be found again
            end = [token for token in self._text(random, len(prompts)) if token not in case.eos_token_ids]
            prompts = (
                tuple((*prompt[:-1], last) for prompt, last in zip(prompts, end, strict=False)) if end else prompts
            )
        if len(prompts) != len(case.prompts):  # too few ids are none of its EOS
            prompts = case.prompts
        try:
            return [replace(case, prompts=prompts, seed=seed, draft_seed=draft_seed, before=(case,))]
        except CaseError:  # an end that takes away the common prefix
            return [replace(case, seed=seed, draft_seed=draft_seed, before=(case,))]

    def _next(self, name: str) -> tuple[int, Random]:
        """The number of the next case of this name, counted from 0, and the chance for it."""
        number = self._numbers.get(name, 0)
        self._numbers[name] = number + 1
        return number, Random(f"eqcheck {self.seed} {name} {number}")

    def _text(self, random: Random, length: int, ids: int = VOCAB_SIZE) -> Prompt:
        words = mix(np.arange(length, dtype=np.uint64) + np.uint64(random.getrandbits(40) << 16))
        return tuple((words % np.uint64(ids)).tolist())

    def _cases(self, number: int, random: Random, texts: Sequence[Prompt], limit: int, **fields: object) -> list[Case]:
        """The case with these prompts, changed as little as the decoder requires; none where that is not enough."""
        claims, k = self.claims, min(1 + number % 4, self.bounds.draft_tokens)
        if fields.get("cache_state", "empty") not in claims.cache_states:
            return []
        family = str(fields.get("family", claims.families[number % len(claims.families)]))
        size = int(str(fields.get("vocab_size", FAMILY[family].vocab_size)))
        apart = size == _FEW_IDS or random.randrange(2) == 0
        truth = [tokens for tokens, _ in continue_rows(family, size, 0, texts, limit)]
        pad = size if apart and "pad-not-in-prompt" not in claims.requires else unused_id(texts, truth, VOCAB_SIZE)
        prompts = prompts_meeting(claims.requires, texts, pad, min(size, VOCAB_SIZE))
        accepts = tuple(tuple(random.randint(0, k) for _ in range(limit)) for _ in prompts)
        given = {"family": family, "vocab_size": size, **fields}
        case = Case(
            prompts=tuple(prompts),
            max_new_tokens=limit,
            num_draft_tokens=k,
            accepts=accepts,
            pad_token_id=pad,
            padding_side=claims.padding_sides[number // 2 % len(claims.padding_sides)],  # type: ignore[arg-type]
            **given,  # type: ignore[arg-type]
        )
        return [] if unmet(case, claims.requires) else [case]
