"""Sampled rows of trees: of exactly the target's law, whatever the trees; and each step of it can be wrong."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from test_sampled_engines import DRAFT, FEW, GREEDY, KINDS, NEAR, NEW, PROMPT, TARGET, excess, greedy, laws, serving
from test_sampling_lane import audited

import eqcheck
from eqcheck.contract import registry
from eqcheck.contract.decoders import RowOptions
from eqcheck.contract.trees import Nodes
from eqcheck.core.case.sampling import SampledCase
from eqcheck.sampling.judge import try_case

Tree: Any = importlib.import_module("eqcheck.reference_impls.tree").Tree
recursive: Any = importlib.import_module("eqcheck.reference_impls.serving.recursive")
WIDE = ((0, 0), (0, 1), (0, 2), (2, 0), (2, 1), (1, 0))  # three candidates, and none behind the last
ODD = ((0, 3), (0, 1), (0, 1), (3, 0))  # unused ranks, and equal nodes
ALL = tuple((0, rank) for rank in range(FEW))  # more candidates than rows with cuts have tokens


def worst(shape: Nodes = (), k: int = 4, draft: Any = DRAFT, engine: Any = Tree, rows: int = 500) -> float:
    """The greatest excess of any kind of row, where rows of all kinds and greedy ones are decoded together."""
    torch.manual_seed(11)
    decoder = engine(
        TARGET, draft, num_draft_tokens=max(k, len(shape)), batch_size=500, shapes=lambda row, number: shape
    )
    asked = [serving.Prompt(PROMPT, NEW, sampling=kind) for _ in range(rows) for kind in (*KINDS, GREEDY)]
    outputs = [tuple(row) for row in decoder.generate(asked)]
    assert 0.05 < decoder.stats.acceptance < 0.95, "all draft tokens were one way: the check would be weak"
    assert set(outputs[len(KINDS) :: len(KINDS) + 1]) == {greedy(PROMPT)}
    return max(excess(outputs[i :: len(KINDS) + 1], expected) for i, expected in enumerate(laws()))


@pytest.mark.parametrize("shape", [(), WIDE, ODD, ALL], ids=["own", "wide", "odd", "all"])
@pytest.mark.rest
def test_rows_are_of_their_laws_whatever_the_trees(shape: Nodes) -> None:
    assert worst(shape) < 0


@pytest.mark.rest
def test_rows_are_of_their_laws_with_a_near_draft() -> None:
    assert worst(k=3, draft=NEAR) < 0


class SameLaw(recursive.Draws):  # type: ignore[misc]
    """The target's law stays as it is between siblings, and only the last token is drawn from what is left."""

    def answer(self, node: int, logits: torch.Tensor, candidates: Any) -> int:
        p: torch.Tensor = self.law(logits)
        q = self.q.get(node)
        for token in candidates if q is not None else ():
            if float(self.uniform()) * float(q[token]) < float(p[token]):
                return int(token)
        token = int(self.draw(p if q is None else self.left(p, q)))
        return token if token < len(p) else int(self.draw(p))


class OldDraft(recursive.Draws):  # type: ignore[misc]
    """Candidates are judged by the draft's first law, as if drawn with replacement; they are drawn without."""

    def answer(self, node: int, logits: torch.Tensor, candidates: Any) -> int:
        self.without = lambda q, token: q
        return int(super().answer(node, logits, candidates))


class ByLikelihood(recursive.Draws):  # type: ignore[misc]
    """The likeliest candidates in the place of drawn ones."""

    def candidates(self, node: int, logits: torch.Tensor, count: int) -> list[int]:
        super().candidates(node, logits, count)
        return list(logits.topk(count).indices.tolist())


FAULTS = (SameLaw, OldDraft, ByLikelihood)


def planted(fault: Any) -> Any:
    return type("Planted", (Tree,), {"draws": fault})


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.rest
def test_what_is_drawn_wrongly_is_seen(fault: Any) -> None:
    assert worst(((0, 0), (0, 1), (0, 2)), engine=planted(fault), rows=1200 if fault is OldDraft else 500) > 0


def test_a_row_with_a_seed_does_not_depend_on_its_mates() -> None:
    options = RowOptions(8, temperature=2.0, seed=5)

    def first(mates: int) -> list[int]:
        engine = Tree(TARGET, DRAFT, num_draft_tokens=4)
        others = [serving.Prompt((1, 3, 2)[: n % 3 + 1], 8, sampling=KINDS[n % 4]) for n in range(mates)]
        rows: list[list[int]] = engine.generate([serving.Prompt(PROMPT, 8, sampling=options), *others])
        return rows[0]

    assert first(0) == first(1) == first(5)


def test_noise_by_position_is_refused() -> None:
    engine = Tree(TARGET, DRAFT, noise="position")
    with pytest.raises(serving.PromptError, match="expected 'row'"):
        engine.generate([serving.Prompt(PROMPT, 4, sampling=KINDS[0])])


def decoder_of(engine: Any) -> Any:
    def generate(target: Any, draft: Any, request: Any) -> list[list[int]]:
        rows: list[list[int]] = serving.decode(engine, target, draft, request, batch_size=2)
        return rows

    return eqcheck.decoder(name=engine.__name__, capabilities=serving.SAMPLING, seeds="mates")(generate)


@pytest.mark.rest
def test_an_audit_passes_what_is_right_and_sees_what_is_not() -> None:
    right = audited(decoder_of(Tree), 25)
    assert right.evidence is not None
    assert (right.findings, right.evidence.verdict) == ([], "equivalent")
    assert right.evidence.greatest < 100
    wrong = audited(decoder_of(planted(SameLaw)), 80)
    assert {one.explanation.component for one in wrong.violations} == {"sampling"}


@pytest.mark.parametrize("entropy", [1000004, 1000034, 1000035])
def test_a_branch_that_another_row_of_the_same_prompt_emitted_makes_no_row_of_two_requests(entropy: int) -> None:
    sampled, greedy_row, only = (
        RowOptions(20, temperature=1.0),
        RowOptions(20),
        RowOptions(20, temperature=1.0, top_k=1),
    )
    case = SampledCase(
        ((59,), (47, 18), (14, 11, 9), (59,)),
        (sampled, greedy_row, only, sampled),
        num_draft_tokens=4,
        pad_token_id=52,
        family="window",
        mix=0.09375,
        entropy=entropy,
    )
    assert try_case(eqcheck.load("tree").function, case, None).status == "equivalent"


@pytest.mark.parametrize("stored", json.loads(Path(__file__).with_name("tree_cases.json").read_text()))
def test_columns_that_fill_a_row_up_and_nodes_that_feed_the_pad_id_are_told_apart(stored: dict[str, Any]) -> None:
    """A filler that sees itself alone is like a prompt of one id; a pad id that a node feeds is no pad."""
    with registry.load("tree").running() as generate:
        assert try_case(generate, SampledCase.from_dict(stored), 60.0).explanation is None
