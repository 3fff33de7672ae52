"""EAGLE's linked trees: right as they are, and what the reports of engines say is wrong with such trees is named."""

from __future__ import annotations

import sys
from collections import Counter
from typing import Any

import pytest
import torch

from eqcheck.contract import registry
from eqcheck.core.case.record import Case
from eqcheck.core.result.outcome import Loss, LossesOf
from eqcheck.transparent.attribution.lost_drafts import all_losses, all_warnings
from eqcheck.transparent.coverage import exercised
from eqcheck.transparent.decoding import run
from eqcheck.transparent.oracle import judge
from eqcheck.transparent.search import Source

EAGLE = registry.load("eagle")
SHAPE: Any = sys.modules[EAGLE.function.__module__]
Eagle: Any = SHAPE.Eagle


def drawn(count: int, states: tuple[str, ...]) -> list[Case]:
    return Source(5, EAGLE.families, ("left",), states, EAGLE.requires).chunk(0, count)


def decoded(engine: Any) -> Any:
    """The decoder with another engine in the place of its own."""
    return lambda target, draft, request: [engine(target, draft.head, request).generate()]


def test_it_is_right_and_loses_nothing() -> None:
    counts: Counter[str] = Counter()
    losses: Counter[Loss] = Counter()
    for case in drawn(25, EAGLE.cache_states):
        done = run(EAGLE.function, case)
        assert judge(done), case.to_dict()
        counts.update(exercised(done))
        losses.update(all_losses(done))
    assert counts["off_spine"] > 2
    assert losses[Loss("allowed", LossesOf.HEAD)] > 5
    assert not all_warnings(losses)


def test_trees_that_no_request_names_keep_the_best_of_all_nodes() -> None:
    row = Eagle(None, None, Case(((5,),), num_draft_tokens=3).request())
    kept = row.best([0, 0, 1, 1, 2], [11, 12, 13, 14, 15], [0.0, -1.0, -2.0, -4.0, -1.5, -2.5])
    assert kept == SHAPE.Linked([0, 0, 1], [11, 12, 14])
    assert kept.paths().tolist() == [[0, 2, -1], [0, 1, 3]]


class ByIndex(Eagle):  # type: ignore[misc]
    def depths(self, tree: Any) -> torch.Tensor:
        return torch.arange(len(tree.tokens) + 1)


class DensePrefix(Eagle):  # type: ignore[misc]
    """Keeps as many of the first nodes as were accepted, whichever these were."""

    def keep(self, path: torch.Tensor) -> None:
        super().keep(torch.arange(len(path)))


class NextLeaf(Eagle):  # type: ignore[misc]
    """Keeps the beginning of another leaf's path."""

    def keep(self, path: torch.Tensor) -> None:
        super().keep(torch.cat([path[:-1], path[-1:] - (path[-1:] > 1).long()]))


class LastAnswer(Eagle):  # type: ignore[misc]
    """The bonus is read where a path was filled up: at the last node."""

    def accept(self, tree: Any, answers: torch.Tensor) -> tuple[torch.Tensor, int]:
        path, _ = super().accept(tree, answers)
        return path, int(answers[-1])


class LevelsSeen(Eagle):  # type: ignore[misc]
    """A node sees all that were proposed before its own level."""

    def sees(self, tree: Any) -> torch.Tensor:
        depths = tree.depths()
        seen: torch.Tensor = tree.sees() | (depths[None] < depths[:, None])
        return seen


@pytest.mark.parametrize(
    ("engine", "fingerprint"),
    [
        (ByIndex, "position/query-position"),
        (DensePrefix, "cache/wrong-path"),
        (NextLeaf, "cache/wrong-path"),
        (LastAnswer, "bookkeeping/wrong-correction"),
        (LevelsSeen, "mask/sibling-visible"),
    ],
)
@pytest.mark.tiers(quick=1, rest=4)
def test_published_faults_of_such_trees_are_named(engine: Any, fingerprint: str) -> None:
    found = [judge(run(decoded(engine), case)).explanation for case in drawn(40, ("tree",))]
    named = Counter(one.fingerprint for one in found if one is not None)
    assert named[fingerprint] > 1
    assert set(named) == {fingerprint}
