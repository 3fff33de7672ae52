"""What reading, repair and other ids prove together: every row of the table, and decoders that stand on either side."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch

from eqcheck.audit.workers.worker import Workers
from eqcheck.catalogue import FAULTS, Fault
from eqcheck.contract.decoders import Generate
from eqcheck.core.case.record import Case
from eqcheck.core.explanation.records import Explanation, Opinion
from eqcheck.core.result.outcome import Outcome
from eqcheck.transparent.attribution import witnesses
from eqcheck.transparent.attribution.witnesses import (
    asserted,
    bearing,
    mechanism,
    permutation,
    read_of,
    redrawn,
    second_opinion,
    variants,
)
from eqcheck.transparent.decoding import Run, run
from eqcheck.transparent.oracle import judge
from eqcheck.transparent.search import Source
from eqcheck.transparent.sequences import confirmed

OTHERS = {"position": "cache", "mask": "position", "cache": "position"}
OPINIONS = {"confirms": Opinion((("cache",),), ()), "contradicts": Opinion((("mask",),), ()), "silent": Opinion((), ())}
# Asserted: component, tied, what repair does, what other ids show. Nothing else may be.
PROVED = {
    *(("cache", True, "confirms", shown) for shown in ("stable", "depends", "scores", "untried")),
    ("cache", True, "silent", "stable"),
    ("cache", False, "confirms", "stable"),
    *(("bookkeeping", True, "silent", shown) for shown in ("stable", "depends", "scores", "untried")),
    *(("bookkeeping", True, "contradicts", shown) for shown in ("stable", "depends", "scores", "untried")),
    *(("bookkeeping", False, "silent", shown) for shown in ("stable", "scores")),
}
SHOWN = ("stable", "changes", "depends", "scores", "untried")


@pytest.mark.parametrize(
    ("component", "tied", "does", "shown"), list(product(("cache", "bookkeeping"), (True, False), OPINIONS, SHOWN))
)
def test_every_row_of_the_table(component: str, tied: bool, does: str, shown: str) -> None:
    if (component, does) == ("bookkeeping", "confirms"):
        assert bearing(Explanation("bookkeeping", "over-accept"), OPINIONS["confirms"]) == "contradicts"
        return
    read = Explanation(component, "missing-entry" if component == "cache" else "over-accept", tied=tied)
    assert bearing(read, OPINIONS[does]) == does
    assert asserted(read, OPINIONS[does], shown) == ((component, tied, does, shown) in PROVED)


def test_hiding_a_stale_entry_is_as_good_as_removing_it() -> None:
    only_mask = Opinion((("mask",),), ())
    assert bearing(Explanation("cache", "stale-entry"), only_mask) == "confirms"
    assert bearing(Explanation("cache", "misaligned"), only_mask) == "confirms", "a mask that is moved as they were"
    assert bearing(Explanation("cache", "missing-entry"), only_mask) == "contradicts"


def test_two_faults_at_once_are_restored_by_a_pair() -> None:
    both = Opinion((("position", "cache"),), ())
    assert bearing(Explanation("cache", "torn-entry"), both) == "confirms"
    assert str(both) == "with the correct position ids and cache entries in every target call, the output is correct"


def first(fault: Fault, without: str = "nothing") -> tuple[Generate, Run, Explanation]:
    """The first violation of a planted fault, of those that right parts of a kind ``without`` do not restore."""
    torch.set_num_threads(1)
    decoder = fault.decoder()
    source = Source(2, fault.families, decoder.padding_sides, fault.cache_states)
    with decoder.running() as generate:
        for case in source.chunk(0):
            done = run(generate, case)
            explanation = judge(done).explanation
            if explanation is not None and without not in str(second_opinion(generate, done, explanation).repair):
                return generate, done, explanation
    raise AssertionError(f"{fault.id} was not caught")


@pytest.mark.parametrize("component", OTHERS)
@pytest.mark.tiers(quick=1, rest=2)
def test_a_reading_that_repair_contradicts_is_not_asserted(component: str) -> None:
    fault = next(fault for fault in FAULTS if fault.component == component)
    generate, done, explanation = first(fault, OTHERS[component])
    agreed = second_opinion(generate, done, explanation)
    assert agreed.fingerprint == explanation.fingerprint
    assert agreed.repair_confirms
    wrong = replace(explanation, component=OTHERS[component], kind="window")
    both = second_opinion(generate, done, wrong)
    assert both.fingerprint == "unattributed/unattributed"
    assert f"the trace shows {OTHERS[component]}/window" in both.detail
    assert str(both.repair) in both.detail


def test_a_crash_has_no_second_opinion() -> None:
    generate, done, explanation = first(next(fault for fault in FAULTS if fault.component == "crash"))
    assert second_opinion(generate, done, explanation) is explanation


def permuted(generate: Any, explanation: Explanation, cases: Sequence[Case]) -> tuple[str, tuple[int, int, int]]:
    return permutation(explanation, [read_of(generate, case, None) for case in cases])


def test_what_rests_on_a_coincidence_of_ids_changes_with_them() -> None:
    """A decoder emits its own prompt's last id: the same fault reads as different ones, as the ids happen to be."""
    generate, done, explanation = first(next(fault for fault in FAULTS if fault.component == "cache"))
    same = [done.case] * 3
    assert permuted(generate, explanation, same) == ("stable", (3, 0, 0))
    other = replace(explanation, kind="window")
    assert permuted(generate, other, same) == ("changes", (0, 3, 0))
    assert second_opinion(generate, done, other, variants=same).component == "unattributed"

    def right(target: Any, draft: Any, request: Any) -> Any:
        return done.truth.rows

    assert permuted(right, explanation, same) == ("depends", (0, 0, 3))
    assert permuted(generate, explanation, []) == ("untried", (0, 0, 0))
    assert mechanism(explanation) != mechanism(other)


def test_one_variant_may_differ_by_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    generate, done, explanation = first(next(fault for fault in FAULTS if fault.component == "mask"))
    odd = replace(explanation, kind="window")
    found = iter([explanation, odd, explanation, explanation, odd])

    class Reads:
        def __init__(self, done: Run) -> None:
            self.explain = lambda: next(found)

    monkeypatch.setattr(witnesses, "Reader", Reads)
    cases: list[Case] = [done.case] * 4
    assert permuted(generate, explanation, cases) == ("stable", (3, 1, 0))
    assert permuted(generate, explanation, cases[:1]) == ("changes", (0, 1, 0))


class Says(Workers):
    """Workers by whom each case has a cause that was thought of beforehand."""

    def __init__(self, causes: dict[Case, Explanation]) -> None:
        super().__init__([])
        self.causes = causes

    def try_case(self, case: Case, timeout: float | None = None, *, opinion: bool = False) -> Outcome:
        return Outcome(case, "violation", outputs=((0,),), explanation=self.causes[case])

    def outcomes(self, cases: Iterable[Case]) -> Iterator[Outcome]:
        return map(self.try_case, cases)

    def renew(self) -> bool:
        return True


def test_a_case_that_rests_on_a_coincidence_gives_way_to_one_with_other_ids() -> None:
    case = Case(prompts=((5, 7), (9,)))
    unproved = Explanation("unattributed", "unattributed", permuted=(0, 4, 0))
    repeated, swapped = Explanation("bookkeeping", "repeated-token"), Explanation("bookkeeping", "row-swap")
    others = (*variants(case)[3:], redrawn(case, 6))  # those in which ids are equal elsewhere
    most = Says({case: unproved, **dict.fromkeys(others[:3], repeated), others[3]: swapped})
    found = confirmed(most.try_case(case), most)
    assert (found.fingerprint, found.case) == ("bookkeeping/repeated-token", others[0])
    half = Says({case: unproved, **dict.fromkeys(others[:2], repeated), **dict.fromkeys(others[2:], swapped)})
    assert confirmed(half.try_case(case), half).case == case
    tried = replace(unproved, permuted=(4, 0, 0))  # the ids are not to blame
    same = Says({case: tried, **dict.fromkeys(others, repeated)})
    assert confirmed(same.try_case(case), same).fingerprint == "unattributed/unattributed"


def test_a_mask_of_another_row_is_told_as_the_kind_of_a_slot_where_it_has_few() -> None:
    of_another = mechanism(Explanation("mask", "of-another-row"))
    for component, kind in (("mask", "token-hidden"), ("cache", "stale-entry"), ("mask", "pad-visible")):
        assert witnesses.alike(of_another, mechanism(Explanation(component, kind)))
    assert not witnesses.alike(of_another, mechanism(Explanation("cache", "missing-entry")))
    assert not witnesses.alike(
        mechanism(Explanation("mask", "token-hidden")), mechanism(Explanation("cache", "stale-entry"))
    )
