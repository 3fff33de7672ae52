"""The smallest case that fails in the same way: the fields of a case, and how each can be made smaller.

Whole rows go before tokens, halves before single ones, so that a case of 12 rows with 150 tokens each gets small within
the same number of tries as one of two rows. Ids are made distinct. EOS ids and the pad id stay in their places
(`eqcheck.transparent.attribution.witnesses`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from eqcheck.contract.requirements import unmet
from eqcheck.core.case.record import Case
from eqcheck.core.shrinking.items import kept, spared
from eqcheck.core.shrinking.numbers import lowered, lowered_part, put
from eqcheck.core.shrinking.options import earlier
from eqcheck.core.shrinking.reducer import Budget, Shrinking
from eqcheck.core.shrinking.tokens import shortened
from eqcheck.transparent.attribution.witnesses import Places, as_table, distinct, renamed, with_ids
from eqcheck.transparent.drawing import Claims

_OF_ROWS = ("prompts", "accepts", "arrivals", "tree", "paths", "cancel_after")


def smallest(
    case: Case, fails: Callable[[Case], bool], claims: Claims, *, tries: int = 500, seconds: float = 60.0
) -> Case:
    """The smallest case found that ``fails``, from ``case``, which does; itself where nothing smaller fails.

    Ends after ``tries`` decodes, so that the result does not depend on the machine's speed; ``seconds`` bounds slow
    decoders. The case that was reached by then is returned.
    """
    budget = Budget.of(seconds, tries)

    def shows(candidate: Case, _: bool) -> bool | None:
        if unmet(candidate, claims.requires):  # it is no request to this decoder
            return None
        budget.spend()
        return fails(candidate) or None

    search = Shrinking(case, True, shows)
    of = _Fields(search, claims)
    search.run(of.ids, of.rows, of.state, of.prompts, of.limits, of.draft, of.ends)
    return search.case


class _Fields:
    """The fields of the smallest case so far; every method tries to make one smaller."""

    def __init__(self, search: Shrinking[Case, bool], claims: Claims) -> None:
        self._search, self._claims = search, claims
        self.places = Places.of(search.case)

    @property
    def case(self) -> Case:
        return self._search.case

    def attempt(self, case: Case, places: Places | None = None) -> bool:
        """Return whether a case fails; if so, it is the smallest now, and its ids stand at these places."""
        fails = self._search.attempt(case)
        if fails:
            self.places = places or self.places
        return fails

    def change(self, **changes: Any) -> bool:
        return self.attempt(with_ids(self.case, self.places, **changes))

    def lower(self, name: str, path: tuple[int, ...] = (), least: int = 0) -> None:
        lowered_part(getattr(self.case, name), path, least, lambda field: self.change(**{name: field}))

    def ids(self) -> None:
        """Distinct ids in all rows; or, where some must be equal, in as many rows as can be."""
        if self.attempt(distinct(self.case, self.places)):
            return
        self.attempt(renamed(self.case, self.places))
        for row in range(len(self.case.prompts)):
            self.attempt(distinct(self.case, self.places, [row]))

    def rows(self) -> None:
        count = len(self.case.prompts)
        spared(count, count // 2, self.without_rows)

    def without_rows(self, gone: range) -> bool:
        case, places = self.case, self.places
        if len(gone) == len(case.prompts):
            return False
        for row in reversed(gone):
            places = places.without_row(row)
        fields = {name: kept(getattr(case, name), gone) for name in _OF_ROWS}
        return self.attempt(with_ids(case, places, **fields), places)

    def state(self) -> None:
        """The first cache state, family and padding side that the source has, and the simplest parameters."""
        case = self.case
        if case.cache_state != "empty" and "empty" in self._claims.cache_states:
            self.change(cache_state="empty", prefill_chunk=None, prefix_length=0, arrivals=(), tree=(), paths=())
        if self.case.prefill_chunk:
            self.lower("prefill_chunk", least=1)
        self.change(cancel_after=())
        for row in range(len(self.case.arrivals)):
            self.lower("arrivals", (row,))
        for name, choices in (("family", self._claims.families), ("padding_side", self._claims.padding_sides)):
            earlier(choices, getattr(case, name), lambda choice, name=name: self.change(**{name: choice}))  # type: ignore[misc]

    def prompts(self) -> None:
        """Shorter, all at once and then one by one; then a shorter common prefix."""
        least = self.case.prefix_length + 1
        shortened(lambda: self.case.prompts, least, lambda prompts: self.change(prompts=prompts))
        while self.case.prefix_length > 1:
            shorter = tuple(prompt[1:] for prompt in self.case.prompts)
            if not self.change(prompts=shorter, prefix_length=self.case.prefix_length - 1):
                break

    def limits(self) -> None:
        self.lower("max_new_tokens", least=2 if "min-limit-2" in self._claims.requires else 1)
        lowered(self.case.num_draft_tokens, 1, self.fewer_drafts)

    def fewer_drafts(self, k: int) -> bool:
        """A smaller K; where all drafts were accepted, all are."""
        full = self.case.num_draft_tokens
        if any(len(nodes) > k for rounds in self.case.tree for nodes in rounds):
            return False
        accepts = tuple(tuple(k if n == full else min(n, k) for n in rounds) for rounds in self.case.accepts)
        return self.change(num_draft_tokens=k, accepts=accepts)

    def draft(self) -> None:
        """A table of as few rounds, and as few accepted draft tokens, as can be; few rounds with trees of their own."""
        if self.case.agreement is not None or self.case.accepts or self.case.paths:
            if self.change(agreement=None, accepts=(), paths=()):
                return
            self.change(**as_table(self.case))
        for row in range(len(self.case.tree)):
            for number in reversed(range(len(self.case.tree[row]) - 1)):
                self.without_round(row, number)
        for name in ("tree", "paths", "accepts"):
            for row in range(len(getattr(self.case, name))):
                self.lower(name, (row,), least=int(name == "tree"))
                for number in range(len(getattr(self.case, name)[row])):
                    self.lower(name, (row, number))

    def without_round(self, row: int, number: int) -> bool:
        """Leave out a round of a row that is not its last one."""
        left = {name: list(getattr(self.case, name)) for name in ("tree", "paths")}
        for rounds in left.values():
            if row < len(rounds):
                rounds[row] = rounds[row][:number] + rounds[row][number + 1 :]
        return self.change(**{name: tuple(rounds) for name, rounds in left.items()})

    def ends(self) -> None:
        """Fewer EOS ids, earlier ones, and a pad id that occurs nowhere."""
        for place in self.places.eos:
            fewer = replace(self.places, eos=tuple(other for other in self.places.eos if other != place))
            self.attempt(with_ids(self.case, fewer), fewer)
        for number, place in enumerate(self.places.eos):
            if place.kind == "new":
                lowered(place.index, 0, partial(self.end_at, number))
        for row, stops in enumerate(self.places.stops):
            for number in reversed(range(len(stops))):
                left = put(self.places.stops, (row,), stops[:number] + stops[number + 1 :])
                fewer = replace(self.places, stops=left if any(left) else ())
                self.attempt(with_ids(self.case, fewer), fewer)
                stops = self.places.stops[row] if self.places.stops else ()
        plain = replace(self.places, pad=None)
        self.attempt(with_ids(self.case, plain), plain)

    def end_at(self, number: int, index: int) -> bool:
        """Let an EOS be the new token of this number in its row."""
        place = replace(self.places.eos[number], index=index)
        moved = replace(self.places, eos=put(self.places.eos, (number,), place))
        return self.attempt(with_ids(self.case, moved), moved)
