"""Losses of the draft side are warned of, and only where there are any."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from eqcheck.attribution.rounds import draft_losses, draft_warnings
from eqcheck.audit.search import Source
from eqcheck.catalogue import BUILDS, FAULTS, Fault
from eqcheck.contract import Decoder
from eqcheck.harness import run
from eqcheck.oracle import judge

CASES = 30


def _losses(decoder: Decoder, families: tuple[str, ...]) -> Counter[str]:
    torch.set_num_threads(1)
    total: Counter[str] = Counter()
    with decoder.running() as generate:
        for case in Source(4, families, decoder.padding_sides, decoder.cache_states).chunk(0, CASES):
            done = run(generate, case)
            assert judge(done), judge(done).explain()
            total += draft_losses(done)
    return total


@pytest.mark.parametrize("fault", [f for f in FAULTS if f.component == "draft"], ids=lambda fault: fault.id)
def test_a_planted_loss_is_named_and_counted(fault: Fault) -> None:
    losses = _losses(fault.decoder(), fault.families)
    warnings = draft_warnings(losses)
    assert [warning.partition(":")[0] for warning in warnings] == [fault.fingerprint], (warnings, losses)
    assert "lost per round" in warnings[0]


@pytest.mark.parametrize("build", BUILDS)
def test_a_right_draft_side_loses_nothing(build: str) -> None:
    assert draft_warnings(_losses(BUILDS[build].decoder(build), ("rotary", "learned"))) == []


def test_feeding_last_tokens_again_now_and_then_is_no_lost_bonus() -> None:
    assert draft_warnings(Counter(rounds=100, full=50, **{"lost-bonus": 10})) == []
    often = Counter(rounds=100, full=50, **{"lost-bonus": 40, "lost-bonus_tokens": 40})
    assert "0.40 tokens" in draft_warnings(often)[0]
