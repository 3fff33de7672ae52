"""Draw a case from choices alone: a seed can make them, and so can Hypothesis, which then shrinks them.

Small is simple and simple comes first: of each choice the first option, of each range the lowest number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Protocol, TypeVar

import numpy as np

from eqcheck.contract.family import FAMILY, WINDOW
from eqcheck.contract.profiles import BLOCKS, Bounds
from eqcheck.contract.requirements import barred, lengthened, without_ids
from eqcheck.contract.trees import REJECTED, Nodes, of_round
from eqcheck.core.case.record import Case
from eqcheck.transparent.hashlm.hashing import mix
from eqcheck.transparent.truth.continuation import continue_rows, continued

# The choices by which cases are drawn: by chance, or by a library of property tests.

T = TypeVar("T")
Prompt = tuple[int, ...]


class Choices(Protocol):
    """The maker of the choices."""

    def integer(self, low: int, high: int) -> int:
        """A number from ``low`` to ``high``, both included."""

    def pick(self, options: Sequence[T]) -> T:
        """One of the options."""

    def some(self, make: Callable[[Choices], T], least: int, most: int) -> list[T]:
        """Draw from ``least`` to ``most`` things."""


class Chance:
    """Choices by a random generator of Python's own, the same for the same seed on every machine."""

    def __init__(self, random: Random) -> None:
        self._random = random.random

    def integer(self, low: int, high: int) -> int:
        return low + int(self._random() * (high - low + 1))

    def pick(self, options: Sequence[T]) -> T:
        return options[int(self._random() * len(options))]

    def some(self, make: Callable[[Choices], T], least: int, most: int) -> list[T]:
        return [make(self) for _ in range(self.integer(least, most))]


# Draw the trees of a case, and the paths along which its target goes.


def draw_trees(
    choose: Choices, rows: int, limit: int, k: int
) -> tuple[list[tuple[Nodes, ...]], list[tuple[Prompt, ...]]]:
    """Trees of at most ``k`` nodes for the rounds of each row, now and then none, and the paths that are right."""
    trees: list[tuple[Nodes, ...]] = []
    paths: list[tuple[Prompt, ...]] = []
    for _ in range(rows):
        rounds = choose.integer(1, min(limit, 4))
        trees.append(tuple(_tree(choose, k) for _ in range(rounds)))
        paths.append(tuple(_path(choose, of_round(trees[-1], number)) for number in range(min(limit, rounds + 2))))
    return trees, paths


def end_before(
    choose: Choices,
    token: int,
    truth: list[Prompt],
    k: int,
    trees: list[tuple[Nodes, ...]],
    paths: list[tuple[Prompt, ...]],
) -> None:
    """Let a row's first path end at a leaf, beside a longer branch, where the target goes on with ``token``.

    A decoder may have the first new token from the prompt alone, and then the path begins behind it.
    """
    rows = [(row, tokens.index(token)) for row, tokens in enumerate(truth) if token in tokens]
    skipped = choose.integer(0, 1)
    rows = [(row, at) for row, at in rows if skipped < at <= skipped + (k - 1) // 2]
    if not rows:
        return
    row, at = choose.pick(rows)
    length = at - skipped
    short = ((0, 1), *((number, 0) for number in range(1, length)))
    long = ((0, 0), *((length + number, 0) for number in range(1, length + 1)))
    trees[row] = ((*short, *long), *trees[row][1:])
    paths[row] = ((0,) * skipped + (1,) + (0,) * (length - 1), *paths[row][1:])


def _tree(choose: Choices, k: int) -> Nodes:
    """A tree whose nodes are in any order that has parents first; siblings mostly have the next rank."""
    nodes: list[tuple[int, int]] = []
    for number in range(choose.integer(1, k) if choose.integer(0, 7) else 0):
        parent = max(0, number - choose.integer(0, number))
        siblings = sum(node[0] == parent for node in nodes)
        odd = choose.integer(0, 11)
        rank = siblings + (odd == 11) - (odd == 10 and siblings > 0)
        nodes.append((parent, min(rank, REJECTED - 1)))
    return tuple(nodes)


def _path(choose: Choices, nodes: Nodes) -> Prompt:
    """Ranks from the root along some branch, often to its end; where the decoder makes its tree, any low ones."""
    if not nodes:
        return tuple(choose.some(lambda choose: choose.integer(0, 1), 0, 3))
    at, path = 0, list[int]()
    while (below := [number for number, node in enumerate(nodes, 1) if node[0] == at]) and choose.integer(0, 4):
        at = choose.pick(below)
        path.append(nodes[at - 1][1])
    return tuple(path)


VOCAB_SIZE = 128  # prompts are made of these ids
FIRST_ID, LAST_ID = 0, VOCAB_SIZE - 1  # ids that code is apt to treat in a special way
DRAWN_OPTIONS = ("stop-sequences", "cancel", "logprobs")
"""Capabilities that add options to cases of the transparent target."""


USUAL = Bounds(4, 6, 10, 4)  # most cases stay within these, in each respect
_ONCE_IN = Bounds(rows=12, prompt=14, new_tokens=20, draft_tokens=6)  # how often one may be larger


@dataclass(frozen=True)
class Claims:
    """Describe the cases that a decoder takes; ``requires`` names preconditions (`eqcheck.contract.requirements`).

    Of the ``capabilities`` only those count that add options to cases.
    """

    families: tuple[str, ...]
    padding_sides: tuple[str, ...]
    cache_states: tuple[str, ...]
    requires: tuple[str, ...] = ()
    capabilities: tuple[str, ...] = ()


def draw_case(choose: Choices, claims: Claims, bounds: Bounds) -> Case:
    """Draw one case within the claims and the bounds."""
    requires = claims.requires
    limit = _mostly(choose, "new_tokens", bounds, least=2 if "min-limit-2" in requires else 1)
    k = _mostly(choose, "draft_tokens", bounds)
    family, side = choose.pick(claims.families), choose.pick(claims.padding_sides)
    agreement = choose.pick((None,) * 7 + (0.0, 0.3, 0.7, 1.0))
    own, accepts = _rows(choose, limit, k, bounds, requires)
    prompts, state = _state(choose, claims, family, own, bounds)
    prompts = tuple(lengthened(requires, prompts))
    special = choose.pick((None,) * 6 + (FIRST_ID, LAST_ID))
    if state["cache_state"] == "tree" and special is None:  # what fills up short paths is often the id 0
        special = choose.pick((None, FIRST_ID))
    if special is not None:
        prompts = _emitting(choose, family, prompts, limit, special)
    prompts = tuple(without_ids(prompts, barred(requires), _ids(requires)))
    size = FAMILY[family].vocab_size
    truth = [tokens for tokens, _ in continue_rows(family, size, 0, prompts, limit)]
    eos = _eos(choose, prompts, truth, special, requires)
    if state["cache_state"] == "tree":
        k = min(max(k, choose.integer(2, 6)), bounds.draft_tokens)
        trees, paths = draw_trees(choose, len(prompts), limit, k)
        if special is not None and choose.integer(0, 3):
            end_before(choose, special, truth, k, trees, paths)
        state["tree"], state["paths"] = tuple(trees), tuple(paths) if agreement is None else ()
    return Case(
        prompts=prompts,
        max_new_tokens=limit,
        num_draft_tokens=k,
        accepts=accepts if agreement is None and state["cache_state"] != "tree" else (),
        agreement=agreement,
        eos_token_ids=tuple(dict.fromkeys(eos)),
        pad_token_id=_pad(choose, prompts, truth, eos, size, "pad-not-in-prompt" in requires),
        padding_side=side,  # type: ignore[arg-type]
        family=family,
        stop_sequences=_stops(choose, prompts, truth) if "stop-sequences" in claims.capabilities else (),
        logprobs="logprobs" in claims.capabilities and not choose.integer(0, 1),
        cancel_after=_cancels(choose, len(prompts), limit) if "cancel" in claims.capabilities else (),
        vocab_size=size,
        **state,
    )


def _mostly(choose: Choices, name: str, bounds: Bounds, least: int = 1) -> int:
    """Mostly a usual number, now and then any."""
    return _folded(choose, choose.integer(least, max(least, getattr(bounds, name))), name, least)


def _folded(choose: Choices, number: int, name: str, least: int = 1) -> int:
    """Mostly within what is usual; a number that is so already stays, so that shrinking goes straight down."""
    usual: int = getattr(USUAL, name)
    if _seldom(choose, getattr(_ONCE_IN, name)) or number <= usual:
        return number
    return least + (number - least) % (usual - least + 1)


def _seldom(choose: Choices, once_in: int) -> bool:
    return choose.integer(1, once_in) == once_in


def _ids(requires: tuple[str, ...]) -> int:
    """Return the ids that prompts are made of: if the pad must occur in none, one is left for it."""
    return VOCAB_SIZE - 1 if "pad-not-in-prompt" in requires else VOCAB_SIZE


def _rows(
    choose: Choices, limit: int, k: int, bounds: Bounds, requires: tuple[str, ...]
) -> tuple[list[Prompt], tuple[Prompt, ...]]:
    """Prompts, and how many draft tokens of each row's rounds are accepted."""
    most = 1 if "batch-1" in requires else bounds.rows
    many, long = _seldom(choose, _ONCE_IN.rows), _seldom(choose, _ONCE_IN.prompt)
    length = _length(choose, bounds.prompt, long) if "equal-lengths" in requires else None
    ids = _ids(requires)

    def row(choose: Choices) -> tuple[Prompt, Prompt]:
        count = length or _length(choose, bounds.prompt, long and choose.integer(0, 1) == 1)
        shifts = [choose.integer(0, VOCAB_SIZE - 1) for _ in range(min(count, USUAL.prompt))]
        if count > USUAL.prompt:
            shifts += _scrambled(choose.integer(0, 2**16), count - USUAL.prompt)
        most = min(limit, 5) if limit <= USUAL.new_tokens else limit
        rounds = choose.some(lambda choose: choose.integer(0, k), 0, most)
        return tuple(shifts), tuple(rounds)

    rows = choose.some(row, 1, most if many else min(USUAL.rows, most))
    step = apart(max(len(shifts) for shifts, _ in rows))  # where nothing is shifted, ids are distinct
    prompts = [
        tuple((step * (number + 1) + place + shift) % VOCAB_SIZE % ids for place, shift in enumerate(shifts))
        for number, (shifts, _) in enumerate(rows)
    ]
    return _related(choose, prompts, ids, "equal-lengths" in requires), tuple(rounds for _, rounds in rows)


def apart(longest: int) -> int:
    """Return how far apart the first ids of prompts stand that are 10, 11, 12 and 20, 21."""
    return 10 * -(-longest // 10)


def _length(choose: Choices, most: int, long: bool) -> int:
    """Draw the length of a prompt; a long one often just fills blocks, or ends one token before or after them."""
    if not long:
        return choose.integer(1, min(USUAL.prompt, most))
    length = choose.integer(1, most)
    form = choose.pick(("any", "medium", "medium", "blocks", "blocks"))
    if form == "medium":
        return 1 + (length - 1) % 20
    if form == "blocks":
        size = choose.pick(BLOCKS)
        return min(most, -(-length // size) * size + choose.pick((0, -1, 1)))
    return length


def _scrambled(number: int, count: int) -> list[int]:
    """Shifts that follow from one number; zero for zero."""
    if not number:
        return [0] * count
    words = mix(np.arange(count, dtype=np.uint64) + np.uint64(number << 16))
    return [int(word) for word in words % np.uint64(VOCAB_SIZE)]


def _related(choose: Choices, prompts: list[Prompt], ids: int, equal_lengths: bool) -> list[Prompt]:
    """Prompts; a prompt may be equal to another, or its beginning, or begin like it; or hold a special id."""
    prompts = list(prompts)
    special = choose.pick((None,) * 6 + (FIRST_ID, LAST_ID))
    if special is not None and special < ids:
        row = choose.integer(0, len(prompts) - 1)
        place = choose.integer(0, len(prompts[row]) - 1)
        prompts[row] = (*prompts[row][:place], special, *prompts[row][place + 1 :])
    if len(prompts) < 2:
        return prompts
    relation = choose.pick(("none",) * 9 + ("equal", "beginning", "begins-alike"))
    if relation != "none":
        one = choose.integer(0, len(prompts) - 2)
        other = choose.integer(one + 1, len(prompts) - 1)
        first, second = prompts[one], prompts[other]
        if relation == "begins-alike":
            shared = choose.integer(1, min(len(first), len(second)))
            prompts[other] = first[:shared] + second[shared:]
        elif relation == "beginning" and len(first) > 1 and not equal_lengths:
            prompts[other] = first[: choose.integer(1, len(first) - 1)]
        else:
            prompts[other] = first
    return prompts


def _coming_later(choose: Choices, prompts: list[Prompt], claims: Claims, bounds: Bounds) -> list[Prompt]:
    """Prompts of rows that come later, which may be served what a cache holds of earlier ones: they may be alike."""
    alike = ("equal", "all-but-the-last", "beginning-of-blocks", *("blocks-behind-another",) * 3)
    relation = choose.pick(("none",) * 2 + alike) if len(prompts) > 1 else "none"
    if relation == "none":
        return prompts
    other, ids = choose.integer(1, len(prompts) - 1), _ids(claims.requires)
    if relation == "equal":
        return [*prompts[:other], prompts[other - 1], *prompts[other + 1 :]]
    if relation == "all-but-the-last":
        *begin, last = prompts[other - 1]
        return [*prompts[:other], (*begin, (last + choose.integer(1, ids - 1)) % ids), *prompts[other + 1 :]]
    return _behind_blocks(choose, prompts, ids, bounds.prompt, other if relation == "blocks-behind-another" else None)


def _behind_blocks(choose: Choices, prompts: list[Prompt], ids: int, most: int, other: int | None) -> list[Prompt]:
    """Prompts behind one beginning, which ends at a border of blocks or within a block.

    The row ``other`` holds a block of another row behind a different beginning: its own second block comes first, or,
    where there are three rows, it begins like a row and goes on like a third.
    """
    size = choose.pick(tuple(size for size in BLOCKS if 2 * size < most) or (1,))
    length = min(size * (1 if other is None else 2) + choose.pick((0, 1, -1, size // 2)), most - 1)
    number = choose.integer(1, 2**16)
    beginning, another = (tuple(s % ids for s in _scrambled(n, max(length, 1))) for n in (number, number + 1))
    starts = [beginning] * len(prompts)
    if other is not None and len(prompts) > 2:
        starts[other - 1], starts[other] = another, beginning[:size] + another[size:]
    elif other is not None:
        starts[other] = beginning[size:] + beginning[:size]
    return [(start + prompt)[:most] for start, prompt in zip(starts, prompts, strict=True)]


def _state(
    choose: Choices, claims: Claims, family: str, prompts: list[Prompt], bounds: Bounds
) -> tuple[tuple[Prompt, ...], dict[str, Any]]:
    """The prompts as a cache state has them, and the state with its parameters; two cases in three start empty."""
    possible = [state for state in claims.cache_states if fits(state, family, bounds)] or ["empty"]
    more = 2 * (len(possible) - 1) if "empty" in possible else 0
    options = ["empty"] * more + possible
    name = choose.pick(options + ["tree"] * (len(options) if "tree" in possible else 0))
    ids = _ids(claims.requires)
    fields: dict[str, Any] = {"cache_state": name}

    def tokens(least: int, most: int) -> Prompt:
        return tuple(choose.some(lambda choose: choose.integer(0, ids - 1), least, most))

    if name == "chunked":
        fields["prefill_chunk"] = choose.integer(1, max(1, max(map(len, prompts)) - 1))
    if name == "prefix":
        prefix = tokens(1, min(4, bounds.prompt - 1))
        fields["prefix_length"] = len(prefix)
        prompts = [(prefix + prompt)[: bounds.prompt] for prompt in prompts]
    if name == "late-rows":
        fields["arrivals"] = tuple(choose.integer(0, 4) for _ in prompts)
        prompts = _coming_later(choose, prompts, claims, bounds)
    if name == "wrapped":
        before = tokens(WINDOW, WINDOW)
        prompts = [(before + prompt)[: bounds.prompt] for prompt in prompts]
    return tuple(prompts), fields


def fits(state: str, family: str, bounds: Bounds) -> bool:
    """Return whether cases of a family can be of a cache state within the bounds."""
    if state == "wrapped":
        window = FAMILY[family].lower.window
        return bool(FAMILY[family].layer_types) and bounds.prompt > (window or 0)
    return state != "prefix" or bounds.prompt > 1


def _emitting(choose: Choices, family: str, prompts: tuple[Prompt, ...], limit: int, token: int) -> tuple[Prompt, ...]:
    """The prompts, the last token of the shortest one so chosen that its row emits ``token`` early, if any is."""
    shortest = min(prompts, key=len)
    if len(shortest) > 2 * WINDOW:
        return prompts
    variants = [(*shortest[:-1], last) for last in range(VOCAB_SIZE)]
    new, _ = continued(family, FAMILY[family].vocab_size, 0, variants, min(limit, 4))
    lasts = [last for last in np.flatnonzero((new == token).any(axis=1)).tolist() if last < LAST_ID]
    if not lasts:
        return prompts
    changed = variants[choose.pick(lasts)]
    return tuple(changed if prompt == shortest else prompt for prompt in prompts)


def _eos(
    choose: Choices,
    prompts: tuple[Prompt, ...],
    truth: list[Prompt],
    special: int | None,
    requires: tuple[str, ...],
) -> list[int]:
    """EOS ids: mostly emitted ones, now and then one of a prompt; fewer where ``requires`` leaves no candidate."""
    if "no-eos" in requires:
        return []
    # An id that is emitted ends a row somewhere in the middle; one drawn from all ids would hardly ever occur. One that
    # is in a prompt is seldom wanted: it finds decoders that look for an EOS in the whole row.
    barred = {token for prompt in prompts for token in prompt} if "eos-not-in-prompt" in requires else set()
    eos = []
    for _ in range(choose.integer(0, 1 if "one-eos" in requires else 2)):
        candidates = [token for token in choose.pick(truth) if token not in barred]
        if special in candidates and choose.integer(0, 1):
            candidates = [token for token in candidates if token == special]
        if candidates:
            eos.append(choose.pick(candidates))
    if not barred and not (eos and "one-eos" in requires) and _seldom(choose, 8):
        eos.append(choose.pick(choose.pick(prompts)))
    return eos


def _stops(choose: Choices, prompts: tuple[Prompt, ...], truth: list[Prompt]) -> tuple[tuple[Prompt, ...], ...]:
    """Stop sequences of each row in two cases of three: most of them are emitted, some stand in the prompt."""
    if not choose.integer(0, 2):
        return ()
    stops = tuple(_stop(choose, *pair) for pair in zip(prompts, truth, strict=True))
    return stops if any(stops) else ()


def _cancels(choose: Choices, rows: int, limit: int) -> tuple[int, ...]:
    """Draw by row after how many new tokens it is cancelled; 0 for never. Half of the cases have none."""
    if not choose.integer(0, 1):
        return ()
    counts = tuple(choose.integer(0, limit) for _ in range(rows))
    return counts if any(counts) else ()


def _stop(choose: Choices, prompt: Prompt, new: Prompt) -> tuple[Prompt, ...]:
    kind = choose.pick(("emitted", "emitted", "begun-before", "of-the-prompt", "across", "none"))
    start = choose.integer(0, len(new) - 1)
    stop = new[start : start + choose.integer(1, 4)]
    if kind == "begun-before" and start:  # the tokens before the match begin another stop sequence, which is left open
        return ((*new[start - 1 : start + 1], (new[start] + 1) % VOCAB_SIZE), stop)
    inside = {"of-the-prompt": (prompt[-2:],), "across": ((*prompt[-1:], new[0]),), "none": ()}
    return inside.get(kind, (stop,))


def _pad(
    choose: Choices, prompts: tuple[Prompt, ...], truth: list[Prompt], eos: list[int], size: int, apart: bool
) -> int:
    """A pad id, at most the ``size`` of the vocabulary; with ``apart`` one that occurs in no prompt."""
    fed = {token for prompt in prompts for token in prompt}
    kind = choose.pick(("unused", "eos", "prompt", "emitted") * 2 + ("first", "last", "outside"))
    pads: Sequence[int] = {"eos": eos[:1], "first": [FIRST_ID], "last": [LAST_ID], "outside": [size]}.get(kind, ())
    if kind in ("prompt", "emitted"):
        pads = choose.pick(prompts if kind == "prompt" else truth)
    pads = [token for token in pads if not (apart and token in fed)]
    if pads:
        return choose.pick(pads)
    return unused_id(prompts, truth, VOCAB_SIZE)


def unused_id(prompts: Sequence[Prompt], truth: Sequence[Prompt], vocab_size: int) -> int:
    """An id that occurs nowhere, the last such one; or in no prompt; or the last of the vocabulary."""
    fed, emitted = ({token for tokens in rows for token in tokens} for rows in (prompts, truth))
    for used in (fed | emitted, fed):
        free = [token for token in range(vocab_size) if token not in used]
        if free:
            return free[-1]
    return vocab_size - 1
