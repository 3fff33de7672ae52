"""Other token ids for a case, the rest of it as it was.

The tokens that the target emits follow from the ids of the prompts. So EOS ids and the pad id are not kept as numbers,
but by where they stand: the EOS that ends row 1 at new token 3 becomes whatever is new token 3 of row 1 now.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, cycle
from random import Random
from typing import Any

from eqcheck.case.record import Case
from eqcheck.decoding.harness import truth_of
from eqcheck.decoding.run import Truth
from eqcheck.decoding.schedule import Schedule
from eqcheck.drawing.cases import apart, unused_id

_PERMUTATIONS = 200  # to try; the first that keeps all is taken


@dataclass(frozen=True)
class Place:
    """Locate an id: ``new`` token or ``prompt`` token number ``index`` of a row; or an ``id`` by itself."""

    kind: str
    row: int = 0
    index: int = 0


@dataclass(frozen=True)
class Places:
    """Locate EOS ids, pad id and stop sequences of a case; the pad is None if its id occurs nowhere."""

    eos: tuple[Place, ...]
    pad: Place | None
    stops: tuple[tuple[tuple[Place, ...], ...], ...] = ()

    @classmethod
    def of(cls, case: Case) -> Places:
        truth, pad = truth_of(case), case.pad_token_id
        eos = {token: _place(case, truth, token) or Place("id", index=token) for token in case.eos_token_ids}
        alone = Place("id", index=pad) if pad in (0, case.vocab_size) else _place(case, truth, pad)
        stops = tuple(
            tuple(_places(number, truth.uncut[number], case.prompts[number], stop) for stop in of_row)
            for number, of_row in enumerate(case.stop_sequences)
        )
        return cls(tuple(eos.values()), eos.get(pad, alone), stops)

    def without_row(self, row: int) -> Places:
        """The places in the case with one row less; what stood in that row is gone."""

        def moved(place: Place | None) -> Place | None:
            if place is None or place.kind == "id":
                return place
            return None if place.row == row else replace(place, row=place.row - (place.row > row))

        stops = tuple(
            tuple(tuple(place for place in map(moved, stop) if place) for stop in of_row)
            for number, of_row in enumerate(self.stops)
            if number != row
        )
        return Places(tuple(place for place in map(moved, self.eos) if place), moved(self.pad), stops)

    def renamed(self, name: Sequence[int]) -> Places:
        """The places, with other ids where they are ids by themselves."""

        def other(place: Place) -> Place:
            return replace(place, index=name[place.index]) if place.kind == "id" else place

        stops = tuple(tuple(tuple(map(other, stop)) for stop in of_row) for of_row in self.stops)
        return Places(tuple(map(other, self.eos)), self.pad and other(self.pad), stops)


def with_ids(case: Case, places: Places, **changes: Any) -> Case:
    """The case with other prompts, limits and so on, and the ids that now stand at the places."""
    changed = replace(case, **{"eos_token_ids": (), "pad_token_id": 0, "stop_sequences": (), **changes})
    uncut = truth_of(changed).uncut

    def standing(place: Place | None) -> list[int]:
        if place is None or place.kind == "id":
            return [place.index] if place else []
        rows = changed.prompts if place.kind == "prompt" else uncut
        return [*rows[place.row][place.index : place.index + 1]]

    eos = tuple(dict.fromkeys(token for place in places.eos for token in standing(place)))
    pad, *_ = (*standing(places.pad), unused_id(changed.prompts, uncut, case.vocab_size))
    stops = tuple(
        tuple(
            stop for places_of in of_row if (stop := tuple(token for place in places_of for token in standing(place)))
        )
        for of_row in places.stops
    )
    return replace(changed, eos_token_ids=eos, pad_token_id=pad, stop_sequences=stops if any(stops) else ())


def _places(number: int, new: Sequence[int], prompt: Sequence[int], stop: tuple[int, ...]) -> tuple[Place, ...]:
    """Return where the tokens of a stop sequence stand: all in a row with its prompt, or each by itself as an id."""
    text, size = (*prompt, *new), len(stop)
    for start in (*range(len(prompt), len(text)), *range(len(prompt))):
        if text[start : start + size] == stop:
            places = range(start - len(prompt), start - len(prompt) + size)
            return tuple(
                Place("new", number, at) if at >= 0 else Place("prompt", number, at + len(prompt)) for at in places
            )
    return tuple(Place("id", index=token) for token in stop)


def _place(case: Case, truth: Truth, token: int) -> Place | None:
    """Where an id is emitted first, or else where it stands in a prompt."""
    for kind, rows in (("new", truth.rows), ("new", truth.uncut), ("prompt", case.prompts)):
        found = [(row.index(token), number) for number, row in enumerate(rows) if token in row]
        if found:
            index, number = min(found)
            return Place(kind, number, index)
    return None


def distinct(case: Case, places: Places, rows: Iterable[int] | None = None) -> Case:
    """The case with prompts of distinct ids, such as 10, 11, 12 and 20, 21; of the given ``rows`` or of all.

    A prefix that all rows share stays one. Of ten ways to do it the one is taken after which the fewest ids occur
    twice in prompts and truths: where ids coincide, rows and positions can be mixed up.
    """
    chosen = set(range(len(case.prompts)) if rows is None else rows)
    prefix = case.prefix_length
    step = apart(max(map(len, case.prompts)))

    def prompts(shift: int) -> tuple[tuple[int, ...], ...]:
        def token(row: int, place: int) -> int:
            return (shift + step * (row + 1) + place) % case.vocab_size

        return tuple(
            tuple(
                token(0 if place < prefix else row, place) if row in chosen or place < prefix else old
                for place, old in enumerate(prompt)
            )
            for row, prompt in enumerate(case.prompts)
        )

    options = [with_ids(case, places, prompts=prompts(shift)) for shift in range(10)]
    return min(options, key=_repeats)


def renamed(case: Case, places: Places) -> Case:
    """The case with ids 10, 11, ... in the order in which they first occur; equal ids stay equal."""
    names = {token: 10 + n for n, token in enumerate(dict.fromkeys(t for prompt in case.prompts for t in prompt))}
    if len(names) > case.vocab_size - 10:
        return case
    return with_ids(case, places, prompts=tuple(tuple(names[token] for token in p) for p in case.prompts))


def _repeats(case: Case) -> int:
    """Return how many tokens of prompts and truth have an id that occurred before."""
    tokens = [token for rows in (case.prompts, truth_of(case).rows) for row in rows for token in row]
    return len(tokens) - len(set(tokens))


def permuted(case: Case, seed: int, tries: int = _PERMUTATIONS) -> Case:
    """The case with the ids of its prompts renamed, each id to one other, by a permutation that ``seed`` selects.

    Always kept are the lengths of the prompts, which of their ids are equal, the id 0 wherever it stands in one, all
    limits, K, and how many draft tokens each round accepts (a case with ``agreement`` gets the table that it amounts
    to). The target now emits other tokens, so EOS ids and pad id are the ids that stand where the old ones stood. That
    keeps the lengths of the outputs, where EOS ids stand in prompts, and whether and where the pad id is an EOS, stands
    in a prompt or is emitted, unless ids coincide that did not before: the first permutation of ``tries`` is taken that
    keeps all of it, or else the one that keeps most.

    An explanation does not depend on numbers: one that changes here rests on a coincidence.

        >>> case = permuted(Case(((5, 7), (9, 5)), max_new_tokens=6), seed=1)
        >>> case.prompts[0][0] == case.prompts[1][1]
        True
    """
    return _renewed(case, Random(f"permuted {seed}"), tries, one_for_each=True)


def redrawn(case: Case, seed: int, tries: int = _PERMUTATIONS) -> Case:
    """Permute like `permuted`, but make equal ids of prompts different (as far as ids last), and different ones equal.

    Kept are equal ids that are an EOS or the pad, and a prefix that all rows share. An explanation that takes a token
    for another with the same id says something else here. ``seed`` even: no id twice; odd: half as many ids.

    The id 0 is renamed here and kept by `permuted`: many decoders fill up calls with it, whatever the pad id of the
    request, so a prompt's 0 is told from what fills up a row only where it is another id; and a decoder that takes 0
    for "none" fails only where it is 0.

        >>> case = redrawn(Case(((5, 7), (7, 5)), max_new_tokens=6), seed=2)
        >>> len({token for prompt in case.prompts for token in prompt})
        4
    """
    return _renewed(case, Random(f"redrawn {seed}"), tries, one_for_each=False, scarce=bool(seed % 2))


def _renewed(case: Case, random: Random, tries: int, *, one_for_each: bool, scarce: bool = False) -> Case:
    """The case with other ids: ``one_for_each`` that it has, or one a place; of ``scarce`` ids many are equal."""
    places, traits = Places.of(case), _traits(case)
    table = {} if case.agreement is None else as_table(case)
    kept = {case.pad_token_id, *case.eos_token_ids}
    ids = {token for prompt in case.prompts for token in prompt}
    best, least = case, len(traits) + 1
    for _ in range(tries):
        others = list(range(1, case.vocab_size))
        random.shuffle(others)
        name = [0, *others, case.vocab_size]  # the last one is a pad that is no id of the vocabulary
        prompts = tuple(tuple(name[token] for token in prompt) for prompt in case.prompts)
        if not one_for_each:
            free = [token for token in others if token not in {name[one] for one in kept}]
            supply = (
                iter(random.choices(free[: len(ids) // 2 + 1], k=sum(map(len, prompts)))) if scarce else cycle(free)
            )
            prompts = tuple(
                tuple(new if old in kept else next(supply) for old, new in zip(*pair, strict=True))
                for pair in zip(case.prompts, prompts, strict=True)
            )
            prompts = tuple(prompts[0][: case.prefix_length] + prompt[case.prefix_length :] for prompt in prompts)
        new = with_ids(case, places.renamed(name), prompts=prompts, **table)
        different = sum(a != b for a, b in zip(_traits(new), traits, strict=True))
        if different < least:
            best, least = new, different
        if not different:
            break
    return best


def variants(case: Case) -> tuple[Case, ...]:
    """The case with other ids: three times with equal ids where they were, and three times with others equal.

    Two of these have a pad that no token can be taken for.

    >>> [variant.pad_token_id for variant in variants(Case(((5, 7),)))][2:4]
    [128, 128]
    """
    renamed = [*(permuted(case, seed) for seed in (1, 2, 3)), *(redrawn(case, seed) for seed in (2, 4, 5))]
    return tuple(replace(one, pad_token_id=one.vocab_size) if at in (2, 3) else one for at, one in enumerate(renamed))


def as_table(case: Case) -> dict[str, Any]:
    """The fields that say what is accepted by a table: of how many draft tokens, or of trees, along which ranks."""
    schedule = Schedule(case, truth_of(case))
    if not case.tree:
        accepts = tuple(tuple(own.accepted for own in of_row) for of_row in schedule.rows)
        return {"agreement": None, "accepts": accepts}
    paths = []
    for rounds, ranks in zip(schedule.rows, schedule.ranks, strict=True):
        starts = accumulate((own.emitted for own in rounds), initial=0)
        paths.append(tuple(tuple(ranks[at : at + own.accepted]) for at, own in zip(starts, rounds, strict=False)))
    return {"agreement": None, "paths": tuple(paths)}


def _traits(case: Case) -> tuple[Any, ...]:
    """The traits that a case with other ids is to have in common with this one."""
    rows, eos, pad = truth_of(case).rows, case.eos_token_ids, case.pad_token_id

    def stands(tokens: Sequence[int], ids: Iterable[int]) -> tuple[int, ...]:
        return tuple(place for place, token in enumerate(tokens) if token in ids)

    return (
        tuple(map(len, rows)),
        tuple(tuple(map(len, stops)) for stops in case.stop_sequences),
        len(eos),
        eos.index(pad) if pad in eos else None,
        tuple(stands(prompt, eos) for prompt in case.prompts),
        tuple(stands(prompt, (pad,)) for prompt in case.prompts),
        tuple(stands(row, (pad,)) for row in rows),
    )
