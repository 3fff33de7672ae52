"""Medusa (Cai et al. 2024, arXiv 2401.10774) with greedy verification, in the shape of its published code.

One row at a time. A static tree combines choices of the heads; its nodes are in the order of their
depths. Heads read the hidden state of the last accepted token. Every leaf is a path of the tree, and shorter paths are
filled up with the index -1. That is the publication's own fault, and it is kept: as an index of candidates, -1 is a
token 0 that is in no node; as an index of answers, it is the last node of the tree. Where the target answers 0 behind
the end of a shorter path, a node that does not exist is accepted.

The tree is that of the request's first round, or else a chain. Tokens behind an EOS or the limit are
cut off here, as callers of the published code do it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from transformers import DynamicCache

import eqcheck
from eqcheck.contract.cache_names import cache_argument
from eqcheck.contract.trees import Nodes, chain, of_round

SOURCE = "https://github.com/FasterDecoding/Medusa/blob/main/medusa/model/utils.py"


class Buffers(NamedTuple):
    """The tables of a tree: ranks of its nodes, which see which, depths, and its paths, filled up with -1."""

    choices: list[tuple[int, ...]]
    sees: torch.Tensor
    depths: torch.Tensor
    paths: torch.Tensor


def buffers(choices: list[tuple[int, ...]]) -> Buffers:
    ordered: list[tuple[int, ...]] = [(), *sorted(set(choices), key=lambda ranks: (len(ranks), ranks))]
    place = {ranks: number for number, ranks in enumerate(ordered)}
    prefixes = [[place[ranks[:length]] for length in range(len(ranks) + 1)] for ranks in ordered]
    sees = torch.zeros(len(ordered), len(ordered), dtype=torch.bool)
    for number, prefix in enumerate(prefixes):
        sees[number, prefix] = True
    parents = {ranks[:-1] for ranks in ordered if ranks}
    leaves = [prefix for ranks, prefix in zip(ordered, prefixes, strict=True) if ranks not in parents]
    longest = max(map(len, leaves))
    paths = torch.tensor([path + [-1] * (longest - len(path)) for path in leaves])
    return Buffers(ordered, sees, torch.tensor([len(ranks) for ranks in ordered]), paths)


def choices_of(nodes: Nodes) -> list[tuple[int, ...]]:
    """A tree of parents and ranks as Medusa writes it: each node by the ranks that lead to it."""
    found: list[tuple[int, ...]] = [()]
    for parent, rank in nodes:
        found.append((*found[parent], rank))
    return found[1:]


@eqcheck.decoder(
    name="medusa",
    cache_states=("empty", "tree"),
    requires=("batch-1",),
    origin=SOURCE,
    known={"bookkeeping/over-accept": SOURCE},
    note="one row at a time; heads read the target's hidden states",
)
@torch.no_grad()
def generate(target: Any, draft: Any, request: eqcheck.Request) -> list[list[int]]:
    """New tokens of the one row: a tree of the heads' choices is verified in each round."""
    head = getattr(draft, "head", None)
    if head is None:
        raise eqcheck.Unsupported("it drafts with heads, and this draft model has none")
    named = of_round(request.tree[0], 0) if request.tree else ()
    tree = buffers(choices_of(named or chain(request.num_draft_tokens)))
    (ids,) = (list(prompt) for prompt in request.prompts)
    start, cache = len(ids), DynamicCache()
    options = {"use_cache": True, "output_hidden_states": True, **cache_argument(target, cache)}
    output = target(input_ids=torch.tensor([ids]), **options)
    logits, hidden = output.logits[:, -1], output.hidden_states[-1][:, -1]  # [1, vocab], [1, size]
    while len(ids) - start < request.max_new_tokens and not set(request.eos_token_ids) & set(ids[start:]):
        candidates = proposed(tree, logits, head.column(hidden, tree.paths.shape[1]))
        answers, states = decode_tree(target, cache, tree, candidates, len(ids))
        rows = torch.cat([candidates, candidates.new_zeros(1)])[tree.paths]  # [paths, depth + 1]: -1 is the zero
        right = (rows[:, 1:] == answers[tree.paths][:, :-1].argmax(-1)).long().cumprod(1).sum(1)
        best = int(right.argmax())
        accepted = int(right[best])
        nodes = tree.paths[best, : accepted + 1]
        keep(cache, torch.cat([torch.arange(len(ids)), nodes + len(ids)]))
        ids += rows[best, : accepted + 1].tolist()
        logits, hidden = answers[nodes[-1]][None], states[nodes[-1]][None]
    new = ids[start : start + request.max_new_tokens]
    end = next((place for place, token in enumerate(new) if token in request.eos_token_ids), len(new))
    return [new[: end + 1]]


def proposed(tree: Buffers, logits: torch.Tensor, of_heads: torch.Tensor) -> torch.Tensor:
    """The tokens of the tree's nodes: the target's next token, and of each head the choice of the node's last rank."""
    best = of_heads[0].topk(1 + max(ranks[-1] for ranks in tree.choices[1:])).indices  # [heads, choices]
    nodes = [int(best[len(ranks) - 1, ranks[-1]]) for ranks in tree.choices[1:]]
    return torch.tensor([int(logits.argmax()), *nodes])


def decode_tree(
    target: Any, cache: Any, tree: Buffers, candidates: torch.Tensor, length: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits ``[nodes, vocab]`` and hidden states ``[nodes, size]`` of the tree behind ``length`` cached tokens."""
    seen = torch.cat([torch.ones(len(candidates), length, dtype=torch.bool), tree.sees], dim=1)
    mask = torch.zeros(seen.shape, dtype=target.dtype).masked_fill(~seen, torch.finfo(target.dtype).min)
    output = target(
        input_ids=candidates[None],
        attention_mask=mask[None, None],
        position_ids=(length + tree.depths)[None],
        use_cache=True,
        output_hidden_states=True,
        **cache_argument(target, cache),
    )
    return output.logits[0], output.hidden_states[-1][0]


def keep(cache: Any, slots: torch.Tensor) -> None:
    """Keep only these slots of the cache, in this order."""
    for layer in cache.layers:
        layer.keys, layer.values = layer.keys[:, :, slots], layer.values[:, :, slots]
