"""Trees of draft tokens: the case dictates them, right engines pass, and what is wrong is read along branches."""

from __future__ import annotations

import importlib
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch

from eqcheck.catalogue import BUILDS
from eqcheck.catalogue.engines.trees import Forked
from eqcheck.contract import registry
from eqcheck.contract.errors import CaseError, UsageError
from eqcheck.core.case.record import Case
from eqcheck.core.result.outcome import Loss
from eqcheck.transparent.attribution.labels import labels_of
from eqcheck.transparent.attribution.lost_drafts import draft_losses, draft_warnings
from eqcheck.transparent.attribution.witnesses import as_table, second_opinion, variants
from eqcheck.transparent.coverage import exercised, vacuous
from eqcheck.transparent.decoding import Schedule, run, truth_of
from eqcheck.transparent.oracle import judge
from eqcheck.transparent.search import Source

TREE = registry.load("tree")
tree = importlib.import_module("eqcheck.reference_impls.tree")
branches = importlib.import_module("eqcheck.reference_impls.serving.branches")
Tree = TREE.engine
FORK = ((0, 0), (0, 1), (2, 0), (3, 0))  # a leaf, and a branch of three
CASE = Case(
    ((5, 7, 9), (11,)),
    max_new_tokens=8,
    num_draft_tokens=4,
    cache_state="tree",
    tree=((FORK,), (FORK, ())),
    paths=(((1, 0, 0), (0,)), ((0,), ())),
)


def drawn(count: int, states: tuple[str, ...] = ("tree",)) -> list[Case]:
    return Source(5, TREE.families, TREE.padding_sides, states).chunk(0, count)


def test_a_case_keeps_its_trees() -> None:
    assert Case.from_dict(CASE.to_dict()) == CASE
    assert CASE.request().tree == CASE.tree
    assert "tree" not in Case(((5,),)).to_dict()


@pytest.mark.parametrize(
    ("nodes", "said"),
    [
        (((0, 0), (2, 0)), "node 2: expected a parent from 0 to 1"),  # its own parent
        (((2, 0), (1, 0)), "node 1: expected a parent from 0 to 0"),  # a cycle, and a parent that comes later
        (((0, 0),) * 5, "at most 4 nodes"),
        (((0, -1),), "a rank from 0 to 7"),
        (((0, 0, 0),), "a parent and a rank"),
        (((0, "a"),), "expected an integer"),
    ],
)
def test_what_is_no_tree_is_refused(nodes: Any, said: str) -> None:
    with pytest.raises(CaseError, match=said):
        replace(CASE, tree=((nodes,),))
    target, draft = models()
    calls: list[Any] = []
    target.register_forward_hook(lambda *given: calls.append(given))
    said = said if said.startswith(("node", "at most")) else "expected a parent and a rank|a rank from 0"
    with pytest.raises(UsageError, match=said):
        Tree(target, draft, num_draft_tokens=4, shapes=lambda row, number: nodes).generate([[1, 2]])
    assert not calls, "nothing is decoded before"


def models() -> tuple[Any, Any]:
    from eqcheck.transparent.drafting import ScriptedDraft
    from eqcheck.transparent.hashlm.model import HashConfig, HashLM

    target = HashLM(HashConfig(seed=1))
    return target, ScriptedDraft.of(target)


@pytest.mark.parametrize("changes", [{"accepts": ((1,),)}, {"paths": ((("a",),),)}, {"agreement": 0.5}, {"tree": ()}])
def test_tables_that_do_not_go_together_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(CaseError):
        replace(CASE, **changes)


def test_paths_dictate_what_is_accepted() -> None:
    done = run(TREE.function, CASE)
    assert judge(done)
    # Row 0 takes the long branch and its bonus, then the leaf and its bonus; behind that no node is right.
    assert Schedule(CASE, truth_of(CASE)).ranks[0] == [1, 0, 0, 8, 0, 8, 8, 8]
    assert as_table(CASE)["paths"][0] == ((1, 0, 0), (0,), (), ())
    assert {"tree", "off_spine", "different_trees"} <= exercised(done)


def test_the_engine_needs_the_rounds_that_the_paths_leave() -> None:
    target, draft = models()
    engine = Tree(target, draft, num_draft_tokens=4, shapes=lambda row, number: FORK)
    engine.generate([[3, 1, 4]], max_new_tokens=9)
    assert engine.stats.tokens_per_verify == pytest.approx(9 / 5)  # the first choice is always right: the leaf


@pytest.mark.parametrize("name", ["tree", "forked", "forked_rows"])
@pytest.mark.rest
def test_right_engines_are_right(name: str) -> None:
    decoder = TREE if name == "tree" else BUILDS[name].decoder(name)
    counts: Counter[str] = Counter()
    for case in drawn(25):
        done = run(decoder.function, case)
        assert judge(done), case.to_dict()
        counts.update(exercised(done))
    assert counts["off_spine"] > 5
    assert not any("first choices of trees" in warning for warning in vacuous(counts))


def test_the_engine_makes_trees_of_its_own() -> None:
    case = replace(CASE, tree=((), ()), paths=(((1, 1), (1,)), ((), (1,))))
    done = run(TREE.function, case)
    assert judge(done)
    assert "off_spine" in exercised(done), "the draft's second choices are in its trees"


@pytest.mark.parametrize("component", ["position", "mask"])
@pytest.mark.rest
def test_faults_in_trees_that_no_case_names_are_read_along_branches(
    component: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nodes by their number, not their depth, or the mask of a chain: no answer is that behind a rejected draft."""
    right = branches.ancestry

    def wrong(nodes: Any) -> tuple[torch.Tensor, torch.Tensor]:
        depth, sees = right(nodes)
        return (torch.arange(len(depth)), sees) if component == "position" else (depth, torch.ones_like(sees).tril())

    monkeypatch.setattr(branches, "ancestry", wrong)
    named: Counter[str] = Counter()
    for case in drawn(40, ("empty",)):
        found = judge(run(TREE.function, case)).explanation
        if found is not None and found.component == "bookkeeping":
            pytest.fail(f"{found.kind}: {case.to_dict()}")
        named[found.component if found else "right"] += 1
    assert named[component] > 10, named


def test_an_audit_of_chains_alone_is_vacuous() -> None:
    spines = replace(CASE, paths=(((0,),), ((),)))
    found = exercised(run(TREE.function, spines))
    assert "off_spine" not in found
    assert any("first choices of trees" in warning for warning in vacuous(dict.fromkeys(found, 1)))


@pytest.mark.rest
def test_other_ids_leave_the_paths_as_they_are() -> None:
    for case in drawn(10):
        for other in variants(case):
            assert other.tree == case.tree
            assert other.paths == (case.paths if case.agreement is None else as_table(case)["paths"])


def test_labels_follow_branches() -> None:
    done = run(BUILDS["forked"].decoder("forked").function, CASE)
    labels = labels_of(done, done.trace)
    first = next(number for number, call in labels.calls.items() if call.tokens.shape == (2, 5))
    row = [labels.of[first, 0, column] for column in range(5)]
    assert [(one.what, one.position) for one in row] == [
        ("token", 2), ("draft", 3), ("token", 3), ("token", 4), ("token", 5)
    ]  # fmt: skip


def test_equal_siblings_are_both_the_rows_own() -> None:
    case = replace(CASE, tree=((((0, 0), (0, 0), (2, 0)),), ()), paths=(((0, 0),),))
    done = run(BUILDS["forked"].decoder("forked").function, case)
    assert judge(done)
    labels = labels_of(done, done.trace)
    first = next(number for number, call in labels.calls.items() if call.tokens.shape[1] == 5)
    assert [labels.of[first, 0, column].position for column in (1, 2, 3)] == [3, 3, 4]


def test_a_filler_that_holds_what_a_token_holds_is_taken_for_it() -> None:
    """On real models a slot is known by its bytes, and these may be the filler's."""

    def filled(target: Any, draft: Any, request: Any) -> Any:
        own = torch.eye(2, dtype=torch.bool)[None, None].expand(len(request.prompts), 1, 2, 2)
        ids = torch.tensor([[prompt[0], prompt[0]] for prompt in request.prompts])
        mask = torch.zeros(own.shape, dtype=target.dtype).masked_fill(~own, torch.finfo(target.dtype).min)
        target(input_ids=ids, attention_mask=mask, position_ids=torch.zeros_like(ids), use_cache=False)
        return BUILDS["forked"].decoder("forked").function(target, draft, request)

    done = run(filled, CASE)
    labels = labels_of(done, done.trace)
    first = done.trace.made(1)[0].number
    assert [(one.what, one.position) for one in (labels.of[first, 0, column] for column in (0, 1))] == [
        ("token", 0)
    ] * 2


class Causal(Forked):
    """The mask of a chain; of nodes with equal tokens the last is accepted."""

    def child(self, place: int, parent: int, token: int) -> int | None:
        nodes = enumerate(self.trees[place], 1)
        return max((n for n, node in nodes if node[0] == parent and self.token(place, n) == token), default=None)

    def sees(self, place: int) -> Any:
        return torch.ones_like(super().sees(place)).tril()


def test_of_equal_siblings_a_node_is_itself() -> None:
    """A node that sees its equal sees that one too often, and not itself."""
    nodes = ((0, 0), (0, 0), (2, 0), (3, 0))
    case = replace(CASE, tree=((nodes,), (nodes,)), paths=(((0, 0, 0),), ((0, 0, 0),)))
    decoder = replace(BUILDS["forked"], engine=Causal).decoder("causal")
    found = judge(run(decoder.function, case)).explanation
    assert found is not None
    assert found.fingerprint == "mask/sibling-visible"
    assert found.query is not None
    assert all(deviation.slot != found.query.column for deviation in found.deviations)


# The target goes along the shorter branch, and answers 0 behind it.
MISSING = Case(
    ((99, 60, 44),),
    max_new_tokens=5,
    num_draft_tokens=5,
    pad_token_id=127,
    family="learned",
    cache_state="tree",
    tree=((((0, 1), (1, 0), (0, 0), (3, 0), (4, 0)),),),
    paths=(((0, 1, 0),),),
)


def test_medusa_accepts_a_node_that_does_not_exist() -> None:
    medusa = registry.load("medusa")
    done = run(medusa.function, MISSING)
    found = judge(done).explanation
    assert found is not None
    found = second_opinion(medusa.function, done, found, variants=variants(MISSING))
    assert found.fingerprint in medusa.known
    assert found.facts["statement"] == "missing-node"
    assert 0 in done.truth.rows[0], "the id that stands for no node"


def test_medusa_is_right_where_the_target_does_not_answer_0() -> None:
    medusa = registry.load("medusa")
    cases = Source(5, medusa.families, ("left",), ("empty", "tree"), medusa.requires).chunk(0, 30)
    for case in (case for case in cases if not any(0 in row for row in truth_of(case).uncut)):
        assert judge(run(medusa.function, case)), case.to_dict()


def test_rounds_that_a_right_draft_needs_are_those_of_the_paths() -> None:
    losses: Counter[Loss] = Counter()
    for case in drawn(25):
        losses += draft_losses(run(TREE.function, case))
    assert losses[Loss("rounds")] == losses[Loss("ideal")] > 50
    assert not draft_warnings(losses)


def test_what_fills_up_a_short_prompt_is_no_tree() -> None:
    trees = ((), (((0, 0), (1, 0)),))
    case = Case(((5, 7, 9), (11,)), 4, num_draft_tokens=2, cache_state="tree", tree=trees, paths=((), ((0,),)))
    losses = draft_losses(run(TREE.function, case))
    assert losses[Loss("rounds")] == losses[Loss("ideal")]


class OtherRoot(Forked):
    """The draft is asked one token too early: it never sees a row's newest token."""

    def drafted_on(self, i: int, tokens: list[int]) -> list[int]:
        return tokens[:-1] or tokens


@pytest.mark.rest
def test_a_draft_that_does_not_see_its_row_is_a_warning() -> None:
    decoder = replace(BUILDS["forked"], engine=OtherRoot).decoder("other-root")
    losses: Counter[Loss] = Counter()
    for case in drawn(25):
        done = run(decoder.function, case)
        assert judge(done)
        losses += draft_losses(done)
    assert draft_warnings(losses)[0].startswith("draft/desync")


class SelfHidden(Forked):
    """A mask in which the nodes of the second branch do not see themselves."""

    def sees(self, place: int) -> Any:
        seen = super().sees(place)
        for node in range(3, len(seen)):
            seen[node, node] = False
        return seen


def test_a_node_hidden_from_itself_is_a_node_all_the_same() -> None:
    decoder = replace(BUILDS["forked"], engine=SelfHidden).decoder("self-hidden")
    found = judge(run(decoder.function, CASE)).explanation
    assert found is not None
    assert found.fingerprint == "mask/token-hidden"


class LeafHidden(Forked):
    """A mask in which the second branch does not see its own first node."""

    def sees(self, place: int) -> Any:
        seen = super().sees(place)
        if len(seen) > 3:
            seen[3, 2] = False
        return seen


def test_a_wrong_mask_within_a_tree_is_named_with_its_node() -> None:
    decoder = replace(BUILDS["forked"], engine=LeafHidden).decoder("leaf-hidden")
    found = judge(run(decoder.function, CASE)).explanation
    assert found is not None
    assert found.fingerprint == "mask/token-hidden"
    assert found.query is not None
    assert found.query.logical_position == 4


def positions_told(engine: Any) -> Counter[Any]:
    """What is said of wrong positions in drawn cases, beside the kind."""
    decoder = replace(BUILDS["forked"], engine=engine).decoder("positions")
    found = [judge(run(decoder.function, case)).explanation for case in drawn(25)]
    named = [one for one in found if one is not None and one.fingerprint == "position/query-position"]
    assert len(named) > 3
    return Counter(one.facts.get("statement") for one in named)


class ByIndex(Forked):
    def depth(self, place: int) -> list[int]:
        return list(range(len(self.trees[place]) + 1))


class Shifted(Forked):
    """All nodes but the root are one position too far."""

    def depth(self, place: int) -> list[int]:
        return [depth + (depth > 0) for depth in super().depth(place)]


@pytest.mark.rest
def test_positions_that_count_nodes_are_said_to_and_no_others() -> None:
    assert set(positions_told(ByIndex)) == {"counts-nodes"}
    assert set(positions_told(Shifted)) == {None}
    fork = replace(CASE, prompts=CASE.prompts[:1], tree=CASE.tree[:1], paths=CASE.paths[:1])
    decoder = replace(BUILDS["forked"], engine=ByIndex).decoder("by-index")
    found = judge(run(decoder.function, fork)).explanation
    assert "counts nodes, not depth" in str(found)
