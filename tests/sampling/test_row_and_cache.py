"""Sampled rows whose returned tokens are not those in the cache: what is certain is told in order of place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from test_sampling_lane import Sampler
from transformers import DynamicCache

import eqcheck
from eqcheck.audit.loop import Campaign
from eqcheck.contract.decoders import Decoder, RowOptions
from eqcheck.core.case.sampling import SampledCase
from eqcheck.core.explanation.text import render
from eqcheck.core.law import law
from eqcheck.core.result.findings import Options
from eqcheck.sampling.judge import SampledOutcome, try_case
from eqcheck.sampling.lane import SampledLane
from eqcheck.sampling.transparent_target import TransparentTarget

Commit = Callable[[list[int], int, list[int], int, bool], None]


def right(tokens: list[int], start: int, path: list[int], bonus: int, sampled: bool) -> None:
    """Gather the accepted nodes, then write the bonus behind them."""
    tokens[start : start + len(path)] = [tokens[at] for at in path]
    tokens[start + len(path)] = bonus


def bonus_first(tokens: list[int], start: int, path: list[int], bonus: int, sampled: bool) -> None:
    """The bonus overwrites an accepted node that stands where it goes, before that is gathered."""
    if not sampled:
        right(tokens, start, path, bonus, sampled)
        return
    tokens[start + len(path)] = bonus
    tokens[start : start + len(path)] = [tokens[at] for at in path]


def engine(commit: Commit) -> Decoder:
    """A tree of the draft's two best tokens in each round, a cache for each row, and one buffer for text and tree.

    A node is accepted where the target draws the same token.
    """

    def one(target: Any, draft: Any, prompt: list[int], row: RowOptions) -> list[int]:
        cache, size = DynamicCache(), len(prompt)
        tokens = [*prompt, 0, 0, 0]

        def drawn(logits: torch.Tensor) -> int:
            if not row.temperature:
                return int(logits.argmax())
            return int(torch.multinomial(law(logits[None].double(), row).probabilities[0], 1))

        def call(fed: list[int], where: list[int], seen: torch.Tensor) -> torch.Tensor:
            block = torch.tensor([fed])
            logits = target(block, attention_mask=seen[None, None], position_ids=torch.tensor([where]),
                            past_key_values=cache).logits[0]  # fmt: skip
            return torch.as_tensor(logits)

        first = call(prompt, list(range(size)), torch.ones(size, size).tril().bool())[-1]
        tokens[size] = drawn(first)
        new = 1
        while new < row.max_new_tokens and tokens[size + new - 1] not in row.eos_token_ids:
            end = size + new  # the newest token is the one before
            nodes = draft(torch.tensor([tokens[:end]]), use_cache=False).logits[0, -1].topk(2).indices.tolist()
            tokens[end : end + 2] = nodes
            seen = torch.ones(3, end + 2).bool()
            seen[:, end:] = torch.eye(3)[:, 1:].bool()
            logits = call(tokens[end - 1 : end + 2], [end - 1, end, end], seen)
            token = drawn(logits[0])
            path = [end + nodes.index(token)] if token in nodes else []
            bonus = drawn(logits[path[0] - end + 1]) if path else token
            commit(tokens, end, path, bonus, bool(row.temperature))
            keep = torch.tensor([*range(end), *path])
            for layer in cache.layers:
                layer.keys, layer.values = layer.keys[:, :, keep], layer.values[:, :, keep]
            new += len(path) + 1
            tokens = [*tokens[: size + new], 0, 0, 0]
        out = tokens[size : size + min(new, row.max_new_tokens)]
        ends = [at for at, token in enumerate(out) if token in row.eos_token_ids]
        return out[: ends[0] + 1] if ends else out

    def generate(target: Any, draft: Any, request: Any) -> list[list[int]]:
        return [one(target, draft, *pair) for pair in zip(request.prompts, request.rows, strict=True)]

    return eqcheck.decoder(name=commit.__name__, capabilities=("temperature", "top-p"), families=("rotary",))(generate)


PINNED = RowOptions(16, temperature=0.7, top_p=0.002)  # one token alone may follow
FREE = RowOptions(16, temperature=0.7)


def tried(generate: Any, *rows: RowOptions, entropy: int = 1) -> SampledOutcome:
    torch.set_num_threads(1)
    case = SampledCase(((20, 11, 31), (5, 7))[: len(rows)], rows, num_draft_tokens=2, mix=0.25, entropy=entropy)
    outcome = try_case(generate, case, None)
    assert isinstance(outcome, SampledOutcome)
    return outcome


@pytest.mark.parametrize("options", [PINNED, FREE], ids=["pinned", "free"])
def test_a_row_that_was_changed_after_its_tokens_were_accepted(options: RowOptions) -> None:
    said = []
    for entropy in range(1, 7):
        assert not tried(engine(right), options, options, entropy=entropy).explanation
        outcome = tried(engine(bonus_first), options, options, entropy=entropy)
        assert outcome.explanation is None or not outcome.sampled, "what follows is drawn from no law that is known"
        if outcome.explanation and outcome.explanation.component == "bookkeeping":  # else nothing follows it
            said.append(outcome.explanation)
    assert len(said) > 2
    for one in said:
        assert one.fingerprint == "bookkeeping/changed-token"
        assert f"The returned token equals new token {int(one.facts['index']) + 1}, which comes after it." in render(
            one
        )
        assert ("allow only token" in one.detail) == (options is PINNED)


def test_a_cache_that_keeps_another_node_is_no_changed_row() -> None:
    """The row is right, and the cache has the node beside the accepted one."""

    def other_node(tokens: list[int], start: int, path: list[int], bonus: int, sampled: bool) -> None:
        right(tokens, start, path, bonus, sampled)
        path[:] = [2 * start + 1 - at for at in path]

    found = [tried(engine(other_node), FREE, entropy=entropy).explanation for entropy in range(1, 7)]
    assert {one.kind for one in found if one} - {"changed-token"}
    assert "changed-token" not in {one.kind for one in found if one}


class TwoFaults(Sampler):
    """Without caches. New token ``odd`` has no probability; from new token ``shifted`` on contexts are wrong."""

    def __init__(self, odd: int, shifted: int) -> None:
        self.odd, self.shifted = odd, shifted

    def row(self, target: Any, draft: Any, prompt: list[int], row: RowOptions, k: int) -> list[int]:
        new: list[int] = []
        while len(new) < row.max_new_tokens:
            fed = torch.tensor([prompt + new])
            where = torch.arange(fed.shape[1])[None]
            where += where >= len(prompt) - 1 + self.shifted
            scores = target(fed, attention_mask=torch.ones_like(fed), position_ids=where, use_cache=False).logits[:, -1]
            own = self.target_law(scores, row)[0]
            new.append(int(own.argmin() if len(new) == self.odd else own.argmax()))
        return new


@pytest.mark.parametrize(
    ("odd", "shifted", "kind", "index"),
    [
        (0, 3, "impossible-token", 0),
        (3, 1, "query-position", 1),
        (2, 2, "query-position", 2),
        (99, 99, None, None),
    ],
)
def test_what_is_certain_is_told_in_order_of_place(odd: int, shifted: int, kind: str | None, index: int | None) -> None:
    outcome = tried(TwoFaults(odd, shifted), PINNED)
    found = outcome.explanation
    assert (found and found.kind, found and found.token_index) == (kind, index)
    assert bool(outcome.sampled) == (found is None)


@pytest.mark.rest
def test_an_audit_names_the_changed_row_and_spares_the_right_one() -> None:
    results = {}
    for commit in (right, bonus_first):
        campaign = Campaign(SampledLane(engine(commit), Options(cases=20), TransparentTarget), lambda event: None)
        campaign.run()
        results[commit] = [finding.fingerprint for finding in campaign.result.findings]
    assert results == {right: [], bonus_first: ["bookkeeping/changed-token"]}
