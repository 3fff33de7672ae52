"""Heads with weights: exact output whatever they are, in steps the same as at once, and training makes them better."""

from __future__ import annotations

import importlib
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import pair
from eqcheck import Oracle
from eqcheck.contract.errors import Unsupported

heads = importlib.import_module("eqcheck.reference_impls.heads")
trained = importlib.import_module("eqcheck.reference_impls.drafters.trained")
training = importlib.import_module("benchmarks.heads.train")
trees = importlib.import_module("eqcheck.reference_impls.drafters.trees")
measure = importlib.import_module("benchmarks.heads.measure")
NAMES = ("medusa", "clover")
TEXTS = (
    "import os\nimport sys\n\n\ndef main(",
    "class Error(Exception):\n    pass\n\n\nclass ",
    "for i in range(",
    "x",
)


@pytest.fixture(scope="module")
def target() -> Any:
    torch.set_num_threads(1)
    return pair.load(torch.float64).target


def states_of(target: Any, ids: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        states: torch.Tensor = target(ids, output_hidden_states=True).hidden_states[-1]
    return states


def own(name: str, target: Any) -> Any:
    """A head with some weights: those before training, shaken."""
    torch.manual_seed(0)
    head = trained.untrained(target)[name].eval().requires_grad_(False)
    for parameter in head.parameters():
        parameter += 0.02 * torch.randn_like(parameter)
    return head


def alone(target: Any, prompt: list[int], new: int) -> list[int]:
    ids = target.generate(torch.tensor([prompt]), max_new_tokens=new, do_sample=False, eos_token_id=None)
    found: list[int] = ids[0, len(prompt) :].tolist()
    return found


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.tiers(quick=1, rest=1)
def test_rows_are_those_of_the_target(name: str, target: Any) -> None:
    engine = heads.Heads(target, own(name, target), num_draft_tokens=trained.HEADS, batch_size=3)
    prompts = [pair.encode(text) for text in TEXTS]
    assert engine.generate(prompts, max_new_tokens=16) == [alone(target, prompt, 16) for prompt in prompts]
    assert 0 < engine.stats.accepted < engine.stats.drafted, "acceptance is not ragged: the check would be weak"


def test_before_training_each_head_says_what_the_one_before_it_says(target: Any) -> None:
    ids = torch.tensor([pair.encode(TEXTS[0])])
    states = states_of(target, ids)
    untrained = trained.untrained(target)
    own = target(ids).logits
    for place in range(trained.HEADS):
        assert torch.allclose(untrained["medusa"].propose(states, ids)[..., place, :], own)
    clover = untrained["clover"].double().propose(states, ids)
    assert torch.allclose(clover, clover[..., :1, :].expand_as(clover))


@pytest.mark.parametrize("name", NAMES)
def test_in_steps_it_says_what_it_says_at_once(name: str, target: Any) -> None:
    """Training sees all positions at once; decoding goes by rounds, through a cache with a write offset by row."""
    head = own(name, target)
    ids = torch.tensor([pair.encode(TEXTS[0])[:20]])
    states = states_of(target, ids)
    with torch.no_grad():
        wanted = head.propose(states, ids)[0, 11, 0].argmax().item()
        drafter = heads.SHAPES[head.shape](head)
        drafter.fit(1, 40)
        following = ids.roll(-1, 1)
        drafter.observe(states[:, :8], following[:, :8], [0], [5])  # the last three were rejected
        drafter.observe(states[:, 5:15], following[:, 5:15], [5], [7])
        row = importlib.import_module("eqcheck.reference_impls.serving").Row
        prompt = importlib.import_module("eqcheck.reference_impls.serving").Prompt
        assert drafter.propose([row(prompt(ids[0, :13].tolist()))], 1).item() == wanted


def test_the_block_of_clover_knows_what_stands_before(target: Any) -> None:
    clover = own("clover", target)
    ids = torch.tensor([pair.encode(TEXTS[0])[:20]])
    states = states_of(target, ids)
    with torch.no_grad():
        whole = clover.accepted(states, use_cache=False).last_hidden_state
        assert torch.allclose(whole[:, :9], clover.accepted(states[:, :9], use_cache=False).last_hidden_state)
        assert not torch.allclose(whole[:, 9:], clover.accepted(states[:, 9:], use_cache=False).last_hidden_state)


def test_more_draft_tokens_than_heads_are_refused(target: Any) -> None:
    with pytest.raises(Unsupported, match="expected at most 4 draft tokens, as many as the head has, got 5"):
        heads.Heads(target, own("medusa", target), num_draft_tokens=5)


def test_a_head_of_another_target_is_refused(target: Any) -> None:
    medusa = trained.Medusa(torch.zeros(256, 64))
    with pytest.raises(Unsupported, match="hidden_size of 192, got one for 64"):
        heads.Heads(target, medusa, num_draft_tokens=4)


def test_acceptance_by_place() -> None:
    # Ten rounds: of four the first is rejected, of the six others one is accepted whole.
    assert measure.by_place(Counter({0: 4, 1: 2, 2: 2, 3: 1, 4: 1})) == [0.6, 0.6667, 0.5, 0.5]
    assert measure.by_place(Counter()) == [0.0] * trained.HEADS


def test_weights_are_written_and_found_again(target: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trained, "HERE", tmp_path)
    with pytest.raises(Unsupported, match=r"medusa.safetensors is not there; .*benchmarks\.heads\.train"):
        trained.load("medusa", target)
    for name in NAMES:
        head = own(name, target)
        trained.save(name, head)
        again = trained.load(name, target).state_dict()
        assert all(torch.allclose(again[key], value, atol=1e-3) for key, value in head.state_dict().items())


def test_training_makes_them_better(target: Any) -> None:
    """A few steps on one text, from the weights before training."""
    torch.manual_seed(0)
    ids = torch.tensor([pair.encode(TEXTS[0])])
    states = states_of(target, ids)
    law = torch.log_softmax(target(ids).logits, -1).detach()
    for name, head in trained.untrained(target).items():
        head.double()
        optimizer = torch.optim.AdamW(head.parameters(), lr=2e-3)
        losses = []
        for _ in range(6):
            loss = training.loss_of(head, states, ids, law)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert losses[-1] < 0.9 * losses[0], name


def in_trees(head: Any, target: Any, nodes: int = 6) -> tuple[list[list[int]], Any]:
    engine = trees.TreeHeads(target, head, num_draft_tokens=trained.HEADS, nodes=nodes, batch_size=3)
    return engine.generate([pair.encode(text) for text in TEXTS], max_new_tokens=16), engine.stats


@pytest.fixture
def paths(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The accepted nodes of each row and round, as they are found."""
    found: list[list[int]] = []
    right = trees.Growing.accepted

    def accepted(self: Any, answers: list[int]) -> list[int]:
        found.append(right(self, answers))
        return found[-1]

    monkeypatch.setattr(trees.Growing, "accepted", accepted)
    return found


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.tiers(quick=1, rest=1)
def test_rows_of_trees_are_those_of_the_target(name: str, target: Any, paths: list[list[int]]) -> None:
    rows, stats = in_trees(trained.load(name, target), target)
    assert rows == [alone(target, pair.encode(text), 16) for text in TEXTS]
    assert 0 < stats.accepted < stats.drafted
    assert any(path != list(range(1, len(path) + 1)) for path in paths), "no path has to be moved: the check is weak"


def test_a_path_that_is_not_moved_is_seen(target: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trees, "compact", lambda *_: None)
    rows, _ = in_trees(trained.load("clover", target), target)
    assert rows != [alone(target, pair.encode(text), 16) for text in TEXTS]


def test_a_node_goes_on_from_its_own_state(target: Any) -> None:
    """Where all nodes of a level have one, what they propose is what the head proposes behind each of them alone."""
    head = trained.load("clover", target)
    ids = torch.tensor([pair.encode(TEXTS[0])])
    with torch.no_grad():
        state = head.accepted(states_of(target, ids), use_cache=False).last_hidden_state[:, -1]
        tokens = torch.tensor([[7, 9, 11]])
        first, states = head.step(state[:, None].expand(-1, 3, -1), tokens, 0)
        for column in range(3):
            alone_first, alone_state = head.step(state, tokens[:, column], 0)
            assert torch.allclose(first[:, column], alone_first)
            assert torch.allclose(states[:, column], alone_state)
    assert not torch.allclose(first[:, 0], first[:, 1])


def test_trees_accept_more_than_chains_of_as_many_tokens(target: Any) -> None:
    head = trained.load("clover", target)
    chain = heads.Heads(target, head, num_draft_tokens=4, batch_size=3)
    prompts = [pair.encode(text) for text in TEXTS]
    chain.generate(prompts, max_new_tokens=16)
    assert in_trees(head, target, nodes=12)[1].accepted > chain.stats.accepted


def test_a_head_with_a_cache_of_pairs_has_no_trees(target: Any) -> None:
    with pytest.raises(Unsupported, match="for which there are trees, got pairs"):
        trees.TreeHeads(target, own("medusa", target), shape="pairs")
    with pytest.raises(Unsupported, match="nodes: expected an integer of at least 1"):
        trees.TreeHeads(target, own("medusa", target), nodes=0)


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    torch.set_num_threads(1)
    data: dict[str, Any] = measure.measure(prompts=4, new=16, batch=4)
    return data


@pytest.mark.rest
def test_what_is_measured_is_right_and_said(found: dict[str, Any], tmp_path: Path) -> None:
    assert [(run["drafter"], run["tree"], run["columns"]) for run in found["runs"]] == [
        (name, tree, columns) for name in ("draft", *NAMES) for tree, columns in ((False, 4), (True, 4), (True, 8))
    ]
    assert all(run["rows_right"] == run["rows"] == 4 for run in found["runs"])
    measure.write(found, tmp_path)
    assert (tmp_path / "heads.md").read_text().count("4 of 4") == len(found["runs"])


def test_a_wrong_row_is_counted(target: Any) -> None:
    class Wrong(heads.Heads):  # type: ignore[misc, name-defined]
        def feed(self, *given: Any) -> Any:
            answers, hidden = super().feed(*given)
            return answers.clamp(max=60), hidden

    engine = Wrong(target, own("medusa", target), num_draft_tokens=2)
    prompts = [pair.encode(text) for text in TEXTS]
    assert measure.measured("medusa", engine, prompts, 16, Oracle(target))["rows_right"] < len(TEXTS)


def test_the_committed_page_is_that_of_the_committed_data() -> None:
    folder = Path(__file__).parents[2] / "reports" / "bench"
    assert measure.page(json.loads((folder / "heads.json").read_text())) == (folder / "heads.md").read_text()


def test_shipped_weights_are_of_the_shape_that_is_trained(target: Any) -> None:
    made = json.loads((trained.HERE / "training.json").read_text())
    assert (made["seed"], made["steps"], made["rows"]) == (training.SEED, training.STEPS, training.ROWS)
    for name in NAMES:
        size = sum(parameter.numel() for parameter in trained.load(name, target).parameters())
        assert made["parameters"][name] == size
