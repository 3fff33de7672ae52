"""Rows of a call that hold several requests: what the mask lets in of others is the mask's, whatever the texts are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
import torch
from packed_trees import ForkedPacked

from eqcheck.catalogue.engines.pool import Packed, Pooled
from eqcheck.catalogue.faults import wrong_trees
from eqcheck.catalogue.faults.masks import RestOfBlockHidden
from eqcheck.catalogue.faults.wrong_rows import MovedInAnotherOrder, ReadOneSlotOn, TablesInAnotherOrder
from eqcheck.contract.decoders import Decoder, decoder
from eqcheck.core.case.record import Case
from eqcheck.transparent.attribution.witnesses import second_opinion
from eqcheck.transparent.coverage import exercised
from eqcheck.transparent.decoding import run
from eqcheck.transparent.oracle import judge
from eqcheck.transparent.search import Source

MASK, CACHE = "mask/other-row-visible", "cache/misaligned"


class CausalOfTheRow(Packed):
    """The call's row is one causal text."""

    def sees(self, i: int, at: int, row: int, position: int) -> bool:
        return self.held.index((row, position)) <= self.held.index((i, at))


class EdgeOffByOne(Packed):
    """A request begins one column early: it sees the last token fed of the one before."""

    def sees(self, i: int, at: int, row: int, position: int) -> bool:
        last = self.held[self.held.index((i, self.lengths[i])) - 1]
        return super().sees(i, at, row, position) or (i > 0 and (row, position) == last and row != i)


class EndedRowsSeen(Packed):
    """The tokens of requests that have ended stay in the cache, and in sight."""

    def stays(self, i: int, position: int) -> bool:
        return i not in self.active or super().stays(i, position)

    def sees(self, i: int, at: int, row: int, position: int) -> bool:
        return super().sees(i, at, row, position) or row not in self.active


class FirstEntryLost(Packed):
    """After the first round the cache has no entry of the first token of the first request."""

    def stays(self, i: int, position: int) -> bool:
        return super().stays(i, position) and (i, position) != (0, 0)


class EntriesExchanged(Packed):
    """The first entries of the first and of the last request change places in the cache."""

    def after(self, going: Sequence[int], lengths: Sequence[int]) -> None:
        super().after(going, lengths)
        firsts = [slot for slot, (_, position) in enumerate(self.held) if not position]
        order = list(range(len(self.held)))
        order[firsts[0]], order[firsts[-1]] = firsts[-1], firsts[0]
        for layer in self.cache.layers:
            layer.keys, layer.values = layer.keys[:, :, order], layer.values[:, :, order]


class StaleTables(Pooled):
    """When requests leave, the tables of the first ones are read."""

    def read(self) -> list[int]:
        firsts = zip(range(len(self.active)), self.active, strict=True)
        return [slot for n, i in firsts for slot in (self.tables[n] + [0] * self.lengths[i])[: self.lengths[i]]]


class PreviousHidden(Packed):
    """Within the block a token does not see the one before it."""

    def sees(self, i: int, at: int, row: int, position: int) -> bool:
        return super().sees(i, at, row, position) and not self.lengths[i] <= position == at - 1


def packed(engine: type[Packed]) -> Decoder:
    return decoder(name="packed")(lambda target, draft, request: engine(target, draft, request).decode())


def cause(engine: type[Packed], prompts: tuple[tuple[int, ...], ...], family: str = "rotary") -> str:
    case = Case(prompts=prompts, num_draft_tokens=2, max_new_tokens=6, accepts=((2, 2), (0, 1), (1, 0)), family=family)
    done = run(packed(engine), case)
    found = judge(done).explanation
    return "" if found is None else second_opinion(packed(engine), done, found).fingerprint


PROMPTS = [((5, 7, 9), (11, 3), (4, 8, 2, 6)), ((5, 7, 9), (5, 7), (5, 7, 2)), ((5, 7), (5, 7), (5, 7))]


@pytest.mark.parametrize("prompts", PROMPTS, ids=["different", "begin-alike", "equal"])
@pytest.mark.parametrize("family", ["rotary", "learned"])
@pytest.mark.tiers(quick=2, rest=1)
def test_what_is_seen_of_others_is_the_masks(prompts: tuple[tuple[int, ...], ...], family: str) -> None:
    assert cause(Packed, prompts, family) == ""
    assert cause(CausalOfTheRow, prompts, family) == MASK
    assert cause(EdgeOffByOne, prompts, family) == MASK


def test_what_is_seen_of_a_request_that_has_ended_is_the_masks() -> None:
    assert cause(EndedRowsSeen, PROMPTS[0]) == MASK


def test_an_entry_of_another_in_the_place_of_ones_own_is_the_caches() -> None:
    assert cause(EntriesExchanged, PROMPTS[0]) == "cache/wrong-row"


@pytest.mark.parametrize("prompts", PROMPTS, ids=["different", "begin-alike", "equal"])
def test_an_equal_entry_of_another_is_not_the_one_that_was_lost(prompts: tuple[tuple[int, ...], ...]) -> None:
    """The mask rightly hides it. Where it could be either's, repair does not bear out that it is missing."""
    honest = {"cache/missing-entry"} if prompts == PROMPTS[0] else {"cache/missing-entry", "unattributed/unattributed"}
    assert cause(FirstEntryLost, prompts) in honest


@pytest.mark.parametrize(("rows", "counts"), [(((3, 1), (4, 1, 5)), True), (((3, 1),), False)])
def test_a_row_that_holds_several_requests_is_a_batch(rows: tuple[tuple[int, ...], ...], counts: bool) -> None:
    done = run(packed(Packed).function, Case(rows))
    assert judge(done)
    assert ("batched_call" in exercised(done)) == counts


HIDDEN = "mask/token-hidden"


@pytest.mark.parametrize(
    ("engine", "cause"),
    [
        (type("RestHidden", (RestOfBlockHidden.InOneRow, Packed), {}), HIDDEN),
        (PreviousHidden, HIDDEN),
        (MovedInAnotherOrder, "cache/misaligned"),
        (TablesInAnotherOrder, "cache/misaligned"),
        (ReadOneSlotOn, "cache/misaligned"),
        (Pooled, ""),
    ],
)
@pytest.mark.tiers(quick=1, rest=4)
def test_tokens_are_told_by_what_wrote_them_whatever_their_ids(engine: type[Packed], cause: str) -> None:
    """Where ids coincide, too, one thing is said that is true of all of these cases."""
    generate = packed(engine)
    found = [
        judge(run(generate, case)) for case in Source(1, ("rotary", "learned"), ("left",), ("empty",)).chunk(0, 12)
    ]
    named = Counter(one.explanation.fingerprint for one in found if one.explanation)
    assert set(named) == ({cause} if cause else set())
    assert not cause or named[cause] > 4


def test_what_a_stale_table_shows_is_not_given_to_the_row_whose_entries_they_are() -> None:
    found = [
        judge(run(packed(StaleTables), case)).explanation
        for case in Source(1, ("rotary", "learned"), ("left",), ("empty",)).chunk(0, 12)
    ]
    named = Counter(one.fingerprint for one in found if one)
    assert named["cache/misaligned"] > 4
    assert not {name for name in named if name.startswith(("cache", "mask"))} - {"cache/misaligned"}


class FreedTwice(Pooled):
    """The slot of the last row's newest token is free again while its table has it: the next call gives it away."""

    def after(self, going: Sequence[int], lengths: Sequence[int]) -> None:
        super().after(going, lengths)
        self.free = self.tables[going[-1]][-1:] + self.free if len(going) > 1 else self.free


def test_entries_that_another_row_has_written_over_have_not_moved() -> None:
    found = [
        judge(run(packed(FreedTwice), case)).explanation
        for case in Source(1, ("rotary", "learned"), ("left",), ("empty",)).chunk(0, 12)
    ]
    named = Counter(one.fingerprint for one in found if one)
    assert named["cache/wrong-row"] > 2, named
    assert CACHE not in named


class NeighbourSeen(ForkedPacked):
    def shown(self, query: torch.Tensor, entry: torch.Tensor) -> torch.Tensor:
        return (query == entry) | (query == entry + 1)


class MaskOneSlotOff(ForkedPacked):
    def shown(self, query: torch.Tensor, entry: torch.Tensor) -> torch.Tensor:
        return query == entry.roll(1, dims=-1)


class CallOfAll(ForkedPacked):
    """Trees of others are seen, but for what is behind."""

    def in_call(self, owners: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        return seen | ((owners[:, None] != owners[None]) & torch.ones_like(seen).tril())


def causes(engine: type[ForkedPacked], count: int) -> Counter[str]:
    """What is found in drawn cases, some of which name trees; prompts are fed without their last tokens."""
    taken = decoder(
        name="trees",
        families=("rotary", "learned"),
        padding_sides=("right",),
        cache_states=("empty", "tree"),
    )(lambda target, draft, request: engine(target, draft, request).decode())
    named: Counter[str] = Counter()
    for case in Source(1, taken.families, taken.padding_sides, taken.cache_states).chunk(0, count):
        done = run(taken, case)
        found = judge(done).explanation
        named.update([second_opinion(taken, done, found).fingerprint] if found else [])
    return named


@pytest.mark.rest
def test_several_trees_in_one_row_are_right() -> None:
    assert not causes(ForkedPacked, 50)


FAULTS_OF_MASKS = [(NeighbourSeen, MASK), (MaskOneSlotOff, MASK), (CallOfAll, MASK)]
FAULTS_OF_TREES = [
    (wrong_trees.SiblingsSeen, "mask/sibling-visible"),
    (wrong_trees.PositionByIndex, "position/query-position"),
]
FAULTS_OF_TREES += [
    (wrong_trees.PathNotMoved, "cache/wrong-path"),
    (wrong_trees.PathValuesNotMoved, "cache/torn-entry"),
]
FAULTS_OF_TREES += [
    (wrong_trees.BonusOfLastNode, "bookkeeping/wrong-correction"),
    (wrong_trees.RootHidden, "mask/token-hidden"),
]


@pytest.mark.parametrize(
    ("engine", "cause"),
    FAULTS_OF_MASKS + [(type(one.__name__, (one, ForkedPacked), {}), cause) for one, cause in FAULTS_OF_TREES],
)
@pytest.mark.tiers(quick=0, rest=1)
def test_several_trees_in_one_row_are_told_apart(engine: type[ForkedPacked], cause: str) -> None:
    named = causes(engine, 16)
    others = set(named) - {cause, "unattributed/unattributed"}
    assert not others, named
    assert named[cause] >= max(3, 5 * named["unattributed/unattributed"]), named
