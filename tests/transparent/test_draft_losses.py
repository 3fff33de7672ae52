"""What the draft side lost is counted exactly: it is the rounds that the engine took more than the right one."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import pytest
import torch
from drafting import (
    RIGHT,
    Change,
    DraftReadOneEarly,
    DraftSeesNoPrompt,
    LookedUpForSome,
    NewestDraftedOnTwice,
    accepting_one_fewer,
    changed,
    first_round_garbage,
    first_round_zeros,
    first_token_garbage,
    first_two_exchanged,
    last_token_garbage,
    losses_and_rounds,
)
from transformers import DynamicCache

from eqcheck.catalogue import BUILDS, FAULTS, Fault
from eqcheck.catalogue.engines.batch import Realigned, RolledBack
from eqcheck.catalogue.engines.engine import RoundEngine
from eqcheck.catalogue.engines.lines import Continuous
from eqcheck.catalogue.engines.pool import Packed
from eqcheck.catalogue.engines.rows import Expanded, PerRow, Uncached
from eqcheck.contract.decoders import CLAIMED, Decoder, Request
from eqcheck.contract.registry import load
from eqcheck.core.case.record import Case
from eqcheck.core.result.outcome import Loss, LossesOf
from eqcheck.transparent.attribution.lost_drafts import draft_losses, draft_warnings, settled
from eqcheck.transparent.decoding import Schedule, run, truth_of
from eqcheck.transparent.oracle import judge
from eqcheck.transparent.search import Source

LOSSES = ("wrong-context", "altered", "lost", "lost-bonus", "asked-again")
OTHERS = ("unasked", "policy")
CHAINS = sorted(
    name for name, build in BUILDS.items() if "tree" not in build.cache_states
)  # tests/transparent/test_trees.py: trees
DRAFT = [fault for fault in FAULTS if fault.component == "draft" and fault.build in CHAINS]
ALL_RIGHT = Case(prompts=((5, 7, 11),), max_new_tokens=8, num_draft_tokens=3, agreement=1.0)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@lru_cache
def drawn(families: tuple[str, ...] = CLAIMED, states: tuple[str, ...] = ("empty",), count: int = 24) -> list[Case]:
    return Source(8, families, ("left",), states).chunk(0, count)


def adds_up(losses: Counter[Loss], of: LossesOf = LossesOf.ALONE) -> bool:
    counts = Counter({loss.name: count for loss, count in losses.items() if loss.of is of})
    why = sum(counts[name] for name in (*LOSSES, *OTHERS, "wrong-context?", "lost-bonus?"))
    return counts["rounds"] == counts["ideal"] + why - counts["spared"]


def counted(counts: Mapping[str, int]) -> Counter[Loss]:
    return Counter({Loss(name): count for name, count in counts.items()})


def told(engine: type[RoundEngine], cases: Sequence[Case]) -> tuple[Counter[Loss], int]:
    """The losses of all cases, and how many rounds they took, as the engine counts them."""
    total, rounds = Counter[Loss](), 0
    for case in cases:
        losses, counted = losses_and_rounds(engine, case)
        if losses:
            # A pad that fills up a row may happen to be its EOS, and then nothing is left to ask for, or to ask again.
            if case.pad_token_id in case.eos_token_ids:
                counted = losses[Loss("rounds")]
            assert losses[Loss("rounds")] == counted
            assert adds_up(losses)
            assert adds_up(losses, LossesOf.WAITING)
            rounds += counted
            total.update(losses)
    return total, rounds


RIGHT_ROUNDS: dict[tuple[type[RoundEngine], tuple[str, ...], tuple[str, ...]], int] = {}


def rounds_of_right(
    engine: type[RoundEngine], families: tuple[str, ...] = CLAIMED, states: tuple[str, ...] = ("empty",)
) -> int:
    key = (engine, families, states)
    if key not in RIGHT_ROUNDS:
        total, RIGHT_ROUNDS[key] = told(engine, drawn(families, states))
        assert draft_warnings(total) == []
    return RIGHT_ROUNDS[key]


def planted(name: str) -> type[RoundEngine]:
    return next(fault for fault in FAULTS if fault.id == name).engine()


def lost(counts: Counter[str]) -> int:
    return sum(counts[name] for name in LOSSES)


@pytest.mark.parametrize(
    ("engine", "expected"),
    [
        (Realigned, {"rounds": 2}),
        # 1 + 4 + 3 new tokens, where 4 + 4 would do
        (changed(Realigned, first_round_garbage), {"rounds": 3, "altered": 1}),
        # one token in each round
        (changed(Realigned, first_token_garbage), {"rounds": 8, "altered": 6}),
        # 3 + 3 + 1 + 1: the last round has no room for a draft token, and asks for the bonus that was dropped
        (planted("T13-bonus-dropped.realigned"), {"rounds": 4, "lost-bonus": 2}),
        (planted("T12-full-acceptance-is-none.realigned"), {"rounds": 8, "lost-bonus": 6}),
        (accepting_one_fewer(Realigned), {"rounds": 4, "lost-bonus": 2}),
    ],
)
def test_a_case_counted_by_hand(engine: type[RoundEngine], expected: dict[str, int]) -> None:
    losses, rounds = losses_and_rounds(engine, ALL_RIGHT)
    assert settled(losses) == {"ideal": 2, "allowed": 6, **expected}
    assert rounds == expected["rounds"]


@pytest.mark.parametrize("accepts", [(1, 2, 1), (2, 1, 1)])
def test_undoing_a_rejection_in_a_state_costs_no_draft_token(accepts: tuple[int, ...]) -> None:
    """The accepted tokens of the last round are fed again, to a copy of the state before it, when the row has ended."""

    def decode(target: Any, draft: Any, request: Request) -> list[list[int]]:
        (prompt,), k, new = request.prompts, request.num_draft_tokens, list[int]()
        states = [DynamicCache(), DynamicCache()]

        def feed(which: int, tokens: list[int], state: DynamicCache) -> list[int]:
            output = (target, draft)[which](input_ids=torch.tensor([tokens]), past_key_values=state)
            return list(map(int, output.logits[0].argmax(-1)))

        for which, state in enumerate(states):
            feed(which, prompt[:-1], state)
        while len(new) < request.max_new_tokens:
            block, before = [(prompt + new)[-1]], copy.deepcopy(states)
            for _ in range(k):
                block += feed(1, block[-1:], states[1])
            picks = feed(0, block, states[0])
            n = next((i for i in range(k) if block[i + 1] != picks[i]), k)
            new += picks[: n + 1]
            for which in (0, 1):
                if n < k or which:
                    states[which] = before[which]
                    feed(which, block[: n + 1], states[which])
        return [new[: request.max_new_tokens]]

    case = Case(prompts=((10, 11),), max_new_tokens=7, num_draft_tokens=2, accepts=(accepts,), family="recurrent")
    done = run(decode, case)
    assert judge(done)
    assert draft_warnings(draft_losses(done)) == []
    assert settled(draft_losses(done))["lost-bonus"] == 0


@pytest.mark.parametrize("fault", DRAFT, ids=lambda fault: fault.id)
@pytest.mark.tiers(quick=1, rest=4)
def test_losses_of_a_planted_fault_are_the_rounds_it_costs(fault: Fault) -> None:
    build = BUILDS[fault.build]
    total, rounds = told(fault.engine(), drawn(fault.families, fault.cache_states))
    counts = settled(total)
    assert adds_up(counted(counts))
    names = [warning.partition(":")[0] for warning in draft_warnings(total)]
    assert names[0] == fault.fingerprint, (names, counts)
    assert set(names) <= {fault.fingerprint, "draft"}
    if fault.switch != "D11-first-draft-dropped":  # it verifies K - 1, and is held against an engine that does so too
        more = rounds - rounds_of_right(build.engine, fault.families, fault.cache_states)
        assert counts["rounds"] - counts["ideal"] == more
        assert abs(lost(counts) - more) <= max(3, 0.12 * more), counts


WRONG: list[tuple[type[RoundEngine], Change]] = [
    (Realigned, first_round_garbage),
    (Continuous, first_round_garbage),
    (Uncached, first_round_garbage),
    (RolledBack, first_round_garbage),
    (Realigned, first_round_zeros),
    (PerRow, first_round_zeros),
    (Packed, first_token_garbage),
    (Continuous, first_token_garbage),
    (Expanded, last_token_garbage),
    (RolledBack, last_token_garbage),
    (Realigned, first_two_exchanged),
]


@pytest.mark.parametrize(("engine", "change"), WRONG, ids=lambda one: one.__name__)
@pytest.mark.tiers(quick=2, rest=4)
def test_garbage_for_draft_tokens_is_told_in_full(engine: type[RoundEngine], change: Change) -> None:
    total, rounds = told(changed(engine, change), drawn())
    counts = settled(total)
    more = rounds - rounds_of_right(engine)
    assert counts["rounds"] - counts["ideal"] == more > 0
    assert lost(counts) - counts["spared"] + counts["policy"] + counts["unasked"] == more
    # Pads at the end of a row are taken for padding, so those which stand in for draft tokens are not all told.
    assert counts["policy"] + counts["unasked"] <= (0.3 if change is first_round_zeros else 0.05) * more
    assert counts["altered"] == lost(counts)
    assert [warning.partition(":")[0] for warning in draft_warnings(total)] == ["draft/desync"]


@pytest.mark.parametrize("engine", [Realigned, Uncached, Continuous])
@pytest.mark.tiers(quick=2, rest=1)
def test_answers_that_are_thrown_away_are_told_in_full(engine: type[RoundEngine]) -> None:
    total, rounds = told(accepting_one_fewer(engine), drawn())
    counts = settled(total)
    more = rounds - rounds_of_right(engine)
    assert abs(counts["lost-bonus"] + counts["asked-again"] - more) <= 0.05 * more
    assert not any(counts[name] for name in ("wrong-context", "altered", "lost"))
    assert [warning.partition(":")[0] for warning in draft_warnings(total)] == ["draft/lost-bonus", "draft"]


@pytest.mark.parametrize(
    ("engine", "right", "kind"),
    [
        (NewestDraftedOnTwice, PerRow, "wrong-context"),
        (DraftSeesNoPrompt, Uncached, "wrong-context"),
        (DraftReadOneEarly, Uncached, "altered"),
    ],
)
@pytest.mark.rest
def test_what_the_draft_was_asked_is_told(engine: type[RoundEngine], right: type[RoundEngine], kind: str) -> None:
    total, rounds = told(engine, drawn())
    counts = settled(total)
    assert counts["rounds"] - counts["ideal"] == rounds - rounds_of_right(right) > 0
    assert lost(counts) >= 0.95 * (rounds - rounds_of_right(right))
    # Where the only token of a prompt begins another prompt, too, no entry tells that the draft saw this row; and
    # `NewestDraftedOnTwice` asks it in the right context as well, so that the token fed is "altered", which is so, too.
    assert counts[kind] + counts["lost"] >= lost(counts) - (engine is NewestDraftedOnTwice)
    assert counts["lost"] <= 0.03 * lost(counts)


@pytest.mark.parametrize("build", CHAINS)
@pytest.mark.tiers(quick=2, rest=16)
def test_right_builds_lose_nothing(build: str) -> None:
    total, _ = told(BUILDS[build].engine, drawn(BUILDS[build].families, BUILDS[build].cache_states, 20))
    assert draft_warnings(total) == []
    assert lost(settled(total)) == 0
    assert settled(total)["spared"] <= 1
    assert settled(total)["policy"] == 0


@pytest.mark.parametrize("engine", RIGHT, ids=lambda engine: engine.__name__)
@pytest.mark.tiers(quick=7, rest=16)
def test_right_engines_of_unusual_build_lose_nothing(engine: type[RoundEngine]) -> None:
    total = Counter[Loss]()
    for case in drawn(count=15):
        losses, _ = losses_and_rounds(engine, case)
        assert adds_up(losses)
        total.update(losses)
    assert draft_warnings(total) == [], total


@pytest.mark.parametrize("name", ["eqspec", "exspec", "ragged", "transformers"])
@pytest.mark.tiers(quick=1, rest=1)
def test_shipped_decoders_lose_nothing(name: str) -> None:
    decoder: Decoder = load(name)
    total = Counter[Loss]()
    with decoder.running() as generate:
        for case in drawn(decoder.families, decoder.cache_states, 40):
            rows = [*case.prompts, *truth_of(case).uncut]
            if name == "transformers" and any(case.pad_token_id in row for row in rows):
                continue  # its assistant infers its mask from pad ids, and so does not see its row
            done = run(generate, case)
            if judge(done):
                assert adds_up(draft_losses(done))
                total.update(draft_losses(done))
    assert total[Loss("rounds")] > 80
    assert draft_warnings(total) == []


def test_the_assistant_of_transformers_loses_where_a_row_holds_the_pad_id() -> None:
    pad = truth_of(ALL_RIGHT).uncut[0][0]
    with load("transformers").running() as generate:
        losses = draft_losses(run(generate, Case(**{**vars(ALL_RIGHT), "pad_token_id": pad})))
    assert lost(settled(losses)) > 0


def test_rounds_needed_are_those_of_the_script() -> None:
    for case in drawn():
        losses, _ = losses_and_rounds(Realigned, case)
        if losses:
            assert losses[Loss("ideal")] == sum(map(len, Schedule(case, truth_of(case)).rounds))


def test_rows_that_wait_are_held_against_rows_that_wait() -> None:
    """`RolledBack` takes back what one row does not accept: no loss, and not the measure of one either."""
    waiting, rounds = told(RolledBack, drawn())
    free, fewer = told(Realigned, drawn())
    assert (waiting[Loss("ahead")], free[Loss("level")]) == (0, 0)
    assert settled(waiting)["ideal"] == settled(waiting)["rounds"] == rounds
    assert settled(free)["ideal"] == fewer < rounds


def test_equal_prompts() -> None:
    """Rows that cannot be told apart are counted; none of them is accused."""
    case = Case(prompts=((5, 7), (5, 7), (5, 7, 9)), max_new_tokens=8, num_draft_tokens=3, agreement=0.7)
    for engine in (Realigned, Continuous, PerRow, Expanded, RolledBack):
        losses, rounds = losses_and_rounds(engine, case)
        assert adds_up(losses)
        assert draft_warnings(losses) == []
        assert losses[Loss("rounds")] == rounds or engine is Expanded
    losses, _ = losses_and_rounds(changed(PerRow, first_round_garbage), case)
    assert losses[Loss("altered")] > 0


def test_equal_rows_that_fare_differently_are_left_out() -> None:
    """The draft was asked about one of them, and nothing says which; so neither is held to have been given others."""
    row = (122, 44, 123, 51)
    case = Case(prompts=(row, row, (5, 7)), max_new_tokens=8, num_draft_tokens=3, agreement=1.0)
    losses, rounds = losses_and_rounds(LookedUpForSome, case)
    assert (losses[Loss("rounds")], rounds) == (8, 18)
    assert losses[Loss("unasked")] == 6
    assert draft_warnings(losses) == []


@pytest.mark.parametrize("rows", [((14,), (14, 71, 127, 48)), ((9, 3, 4), (9, 3), (9,))])
@pytest.mark.parametrize("build", sorted(set(CHAINS) - {"one_row"}))
@pytest.mark.tiers(quick=22, rest=18)
def test_rows_of_which_one_begins_another(build: str, rows: tuple[tuple[int, ...], ...]) -> None:
    """Whose row it is shows later, by who goes on with its cache; a piece of a prompt is no round of another row."""
    for state in {"empty", "chunked"} & set(BUILDS[build].cache_states):
        chunk = 1 if state == "chunked" else None
        case = Case(rows, 8, 3, agreement=0.7, family=BUILDS[build].families[0], cache_state=state, prefill_chunk=chunk)
        losses, rounds = losses_and_rounds(BUILDS[build].engine, case)
        ideal = losses[Loss("ideal", LossesOf.WAITING)] if build == "rolled_back" else losses[Loss("ideal")]
        assert losses[Loss("rounds")] == rounds == ideal


def test_draft_tokens_that_are_what_another_prompt_goes_on_with() -> None:
    """The shorter row holds, with its draft tokens, what the longer one does: each of them is one of the rows."""
    for rows in (((24, 64), (24,)), ((24,), (24, 64))):
        case = Case(rows, max_new_tokens=2, num_draft_tokens=4, agreement=1.0, pad_token_id=64, family="learned")
        losses, rounds = losses_and_rounds(changed(Realigned, first_round_zeros), case)
        assert losses[Loss("rounds")] == rounds == 4
        assert losses[Loss("ideal")] == 2
        assert adds_up(losses)


def test_a_coincidence_names_no_cause() -> None:
    now_and_then = counted({"rounds": 100, "allowed": 60, "unasked": 20, "wrong-context?": 2})
    assert draft_warnings(now_and_then) == []
    mostly = counted({"rounds": 100, "allowed": 60, "unasked": 2, "wrong-context?": 20})
    assert draft_warnings(mostly)[0].startswith("draft/desync: 20 of 60 ")


def test_what_is_not_seen_is_not_named() -> None:
    (warning,) = draft_warnings(counted({"rounds": 100, "allowed": 60, "lost": 9}))
    assert warning.startswith("draft: 9 of 60 draft tokens were lost (15 %)")
    assert "no cause was seen" in warning
    assert "speed, not output" in warning
