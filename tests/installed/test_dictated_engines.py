"""Dictated drafts in released engines, and what is said of a proposer that hands over the wrong ones."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

from eqcheck.audit.workers.interpreter import environment
from eqcheck.contract import registry
from eqcheck.contract.decoders import Decoder
from eqcheck.core.result.outcome import DictatedRounds
from eqcheck.engines.checkpoints.dictation import ASKED, FEWER, OTHERS, PLAYED
from eqcheck.engines.drawing import BLOCK, EngineCases
from eqcheck.engines.lane import worker

PLANTED = """
import eqcheck
from eqcheck.adapters import vllm as shipped

right = shipped.Dictated.propose

def propose(self, sampled, lengths, tokens, slot_mappings=None):
    self.drafts = [row[1:] for row in shipped.Dictated.drafts]  # one place late
    return right(self, sampled, lengths, tokens, slot_mappings)

shipped.Dictated.propose = propose
decoder = eqcheck.load("vllm")
"""

UNALIGNED = """
import eqcheck

try:
    from mlx_vlm.speculative import cache_state
except ImportError:
    pass  # in the audit's own process
else:
    right = cache_state._trim_append_caches

    def trim(caches, retained, *rest):  # what other rows accepted more stays in the cache of a row
        right(caches, [max(retained)] * len(retained), *rest)

    cache_state._trim_append_caches = trim
decoder = eqcheck.load("mlx_vlm")
"""


def _rounds(decoder: Decoder, count: int) -> tuple[Counter[DictatedRounds], set[str]]:
    """The statuses of some cases with dictated drafts, and their rounds."""
    decoder = replace(decoder, capabilities=("only-dictated-drafts", "row-limits"))
    counts, statuses = Counter[DictatedRounds](), set[str]()
    source = EngineCases(31, decoder.capabilities)
    with worker(decoder, environment(decoder, None)) as running:
        for case in islice(map(source.case, range(BLOCK - count // 2, 2 * BLOCK)), count):  # of two settings
            outcome = running.try_case(case)
            statuses.add(outcome.status)
            counts.update(outcome.dictated)
    return counts, statuses


@pytest.mark.parametrize(("name", "share"), [("vllm", 1.0), ("mlx_vlm", 0.75)])  # one shortens blocks near its limit
def test_dictated_rounds_are_played(name: str, share: float) -> None:
    counts, statuses = _rounds(registry.load(name), 30)
    assert statuses == {"equivalent"}
    assert counts[ASKED] > 150
    assert counts[PLAYED] >= share * counts[ASKED]
    assert not counts[OTHERS]
    assert not counts[FEWER]


def test_a_fault_of_the_proposer_is_told_as_such(tmp_path: Path) -> None:
    (tmp_path / "late.py").write_text(PLANTED)
    counts, statuses = _rounds(registry.load(str(tmp_path / "late.py") + ":decoder"), 20)
    assert statuses == {"equivalent"}
    assert counts[OTHERS] > counts[ASKED] / 2
    assert not counts[FEWER]


def test_a_rollback_that_forgets_the_rows_is_caught(tmp_path: Path) -> None:
    (tmp_path / "unaligned.py").write_text(UNALIGNED)
    _, statuses = _rounds(registry.load(str(tmp_path / "unaligned.py") + ":decoder"), 12)
    assert "violation" in statuses
