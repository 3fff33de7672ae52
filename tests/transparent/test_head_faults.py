"""Every planted fault of what a head is given is named, and right builds are not accused."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
import torch

from eqcheck.catalogue.engines.builds import HEAD_BUILDS
from eqcheck.catalogue.faults import HEAD_FAULTS, Fault
from eqcheck.contract.kinds import KINDS
from eqcheck.core.case.record import Case
from eqcheck.core.result.outcome import Loss, LossesOf
from eqcheck.selfcheck import faults as selfcheck
from eqcheck.selfcheck.faults import check_head, check_known_good
from eqcheck.transparent.attribution.lost_drafts import head_losses, head_warnings
from eqcheck.transparent.decoding import run
from eqcheck.transparent.hashlm.trace import TARGET
from eqcheck.transparent.oracle import judge
from eqcheck.transparent.search import Source

# One of each mechanism: `eqcheck selfcheck` has every fault in every build.
FIRST = {fault.mechanism: fault for fault in reversed(HEAD_FAULTS)}
PARTLY = Case(  # rows that accept different numbers, and neither none nor all
    prompts=((3, 1, 4, 1), (5, 9), (2, 6, 5)),
    max_new_tokens=10,
    num_draft_tokens=3,
    accepts=((1, 2), (2, 1), (3, 0, 1)),
)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.mark.parametrize("name", HEAD_BUILDS)
@pytest.mark.tiers(quick=1, rest=2)
def test_right_builds_are_not_accused(name: str) -> None:
    assert check_known_good(name, 0, 20).violations == 0


@pytest.mark.parametrize("fault", [*FIRST.values()][::-1], ids=lambda fault: fault.id)
@pytest.mark.tiers(quick=3, rest=30)
def test_a_planted_fault_is_named(fault: Fault) -> None:
    found = check_head(HEAD_FAULTS.index(fault))
    assert found.caught
    assert found.attributed, found.named


def test_every_kind_is_planted_and_a_third_is_held_back() -> None:
    kinds = {name for name, kind in KINDS.items() if kind.component == "draft"} - {"desync", "lost-bonus"}
    assert {fault.kind for fault in HEAD_FAULTS if fault.component == "draft"} == kinds
    assert all(
        issubclass(HEAD_BUILDS[fault.id.partition(".")[2]].engine, fault.patches[0].__mro__[1]) for fault in HEAD_FAULTS
    )
    switches = {fault.id.partition(".")[0]: fault.held_back for fault in HEAD_FAULTS}
    assert 0.3 < sum(switches.values()) / len(switches) < 0.5


@pytest.mark.parametrize("name", HEAD_BUILDS)
@pytest.mark.tiers(quick=0, rest=1)
def test_tokens_that_agree_behind_a_rejected_one_show_as_often_as_with_a_draft_model(name: str) -> None:
    decoder = next(fault for fault in HEAD_FAULTS if fault.id == f"T15-counts-matches.{name}").decoder()
    source = Source(1, ("rotary",), ("left",), ("empty",))
    wrong = [case for case in source.chunk(0, 50) if not judge(run(decoder.function, case))]
    assert len(wrong) >= 10, (
        "a head that is wrong once has to agree again with what the target answers behind that token"
    )


@pytest.mark.parametrize("name", HEAD_BUILDS)
def test_a_head_agrees_again_behind_its_wrong_token(name: str) -> None:
    case = Case(prompts=((3, 1, 4),), max_new_tokens=8, num_draft_tokens=3, accepts=((0, 1, 3),))
    done = run(HEAD_BUILDS[name].decoder(name).function, case)
    assert judge(done)
    blocks = [call for call in done.trace.made(TARGET) if call.tokens.shape[1] == 4]
    agrees = [(call.tokens[0, 1:] == call.predictions[0, :-1]).tolist() for call in blocks]
    assert agrees[0] == [True, False, True]


def test_a_fault_that_cannot_show_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Nothing(HEAD_BUILDS["head_column"].engine):  # type: ignore[misc]
        """Nothing is broken."""

    monkeypatch.setattr(
        selfcheck, "HEAD_FAULTS", [replace(HEAD_FAULTS[0], id="H0-nothing.head_column", patches=(Nothing,))]
    )
    monkeypatch.setattr(selfcheck, "MOST_CASES", 3)
    assert not check_head(0).caught


@pytest.mark.parametrize("name", HEAD_BUILDS)
def test_rows_of_one_call_accept_different_numbers(name: str) -> None:
    done = run(HEAD_BUILDS[name].decoder(name).function, PARTLY)
    assert judge(done)
    losses = head_losses(done)
    rounds = Loss("rounds", LossesOf.HEAD)
    assert losses == {rounds: losses[rounds], Loss("allowed", LossesOf.HEAD): 8}


def one(switch: str) -> Fault:
    return next(fault for fault in HEAD_FAULTS if fault.id.startswith(f"{switch}-"))


@pytest.mark.parametrize(("switch", "hits", "lost"), [("H4", None, 10), ("H17", 3, 1), ("H13", None, 10)])
def test_losses_counted_by_hand(switch: str, hits: int | None, lost: int) -> None:
    fault = one(switch)
    losses = head_losses(run(fault.decoder().function, PARTLY))
    name = fault.kind.removesuffix("-hidden")
    assert hits is None or losses[Loss(name, LossesOf.HIT)] == hits
    assert losses[Loss(name, LossesOf.HEAD)] >= lost


def test_little_is_no_warning() -> None:
    counts = Counter(
        {
            Loss("rounds", LossesOf.HEAD): 1000,
            Loss("allowed", LossesOf.HEAD): 900,
            Loss("stale", LossesOf.HEAD): 4,
            Loss("stale", LossesOf.HIT): 9,
        }
    )
    assert head_warnings(counts) == []
    counts[Loss("stale", LossesOf.HIT)] = 10
    (said,) = head_warnings(counts)
    assert said.startswith("draft/stale-hidden: 4 of 900 draft tokens lost in ")
    assert "in 10 of 1000 rounds of a head" in said
    # Another row's state of an earlier call is what is seen elsewhere.
    counts[Loss("wrong-row?", LossesOf.HIT)] = 500
    (said,) = head_warnings(counts)
    assert "in 510 of 1000 rounds" in said


def test_what_cannot_be_told_is_said_to_have_no_cause() -> None:
    counts = Counter(
        {
            Loss("rounds", LossesOf.HEAD): 1000,
            Loss("allowed", LossesOf.HEAD): 900,
            Loss("unclear", LossesOf.HEAD): 5,
            Loss("unnamed", LossesOf.HEAD): 5,
        }
    )
    (said,) = head_warnings(counts)
    assert said.startswith("draft: 10 of 900 draft tokens of a head")
    assert "no cause was seen" in said
