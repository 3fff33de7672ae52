"""EAGLE (Li et al. 2024, arXiv 2401.15077 and 2406.16858) with greedy verification, in the shape of its published code.

One row at a time. The head reads the target's hidden states, each with the token behind it, and goes on with states of
its own. Its proposals are linked nodes: each has its parent, its token and the sum of log probabilities on its path. A
level is proposed behind the best nodes of the level before; at the end the best of all nodes are kept, in the order in
which they were proposed, so that parents come first. Mask, depths and the paths to the leaves follow from the links.
The head drops its entries of the tree, and keeps those of the row's pairs.

Where a request names a tree, its nodes are proposed instead, as in the first version's static trees. Tokens behind
an EOS or the limit are cut off here, as callers of the published code do it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from transformers import DynamicCache

import eqcheck
from eqcheck.contract.cache_names import cache_argument
from eqcheck.contract.trees import of_round

SOURCE = "https://github.com/SafeAILab/EAGLE/blob/main/eagle/model/utils.py"
WIDTH = 3  # nodes of a level that go on, and choices behind each
NOTHING = -1  # a path's place behind its leaf, and the token there


class Linked(NamedTuple):
    """Draft tokens behind a root, which is node 0: a parent and a token of each from 1 on."""

    parents: list[int]
    tokens: list[int]

    def sees(self) -> torch.Tensor:
        """Return which nodes each one sees, ``[nodes + 1, nodes + 1]``: what its parent sees, and itself."""
        seen = torch.eye(len(self.tokens) + 1, dtype=torch.bool)
        for node, parent in enumerate(self.parents, start=1):
            seen[node] |= seen[parent]
        return seen

    def depths(self) -> torch.Tensor:
        return self.sees().sum(1) - 1

    def paths(self) -> torch.Tensor:
        """The nodes from the root to each leaf, ``[leaves, depth + 1]``; behind a leaf `NOTHING`."""
        sees = self.sees()
        leaves = [node for node in range(len(sees)) if node not in self.parents]
        found = [sees[leaf].nonzero()[:, 0].tolist() for leaf in leaves]
        longest = max(map(len, found))
        return torch.tensor([path + [NOTHING] * (longest - len(path)) for path in found])


class Eagle:
    """The row of a request, while it is decoded."""

    def __init__(self, target: Any, head: Any, request: eqcheck.Request) -> None:
        (self.ids,) = (list(prompt) for prompt in request.prompts)
        self.target, self.head, self.request = target, head, request
        self.start, self.rounds = len(self.ids), 0
        self.cache, self.kept = DynamicCache(), DynamicCache()  # of the target and of the head

    def generate(self) -> list[int]:
        """The new tokens up to an EOS or the limit."""
        output = self.target(
            input_ids=torch.tensor([self.ids]),
            use_cache=True,
            output_hidden_states=True,
            **cache_argument(self.target, self.cache),
        )
        self.ids.append(int(output.logits[0, -1].argmax()))
        states, ends = output.hidden_states[-1], set(self.request.eos_token_ids)
        while len(self.ids) - self.start < self.request.max_new_tokens and not ends & set(self.ids[self.start :]):
            tree = self.propose(states)
            answers, states = self.verify(tree)
            path, bonus = self.accept(tree, answers)
            self.keep(path)
            self.ids += [*(tree.tokens[node - 1] for node in path[1:].tolist()), bonus]
            states = states[:, path]
            self.rounds += 1
        new = self.ids[self.start :][: self.request.max_new_tokens]
        end = next((place for place, token in enumerate(new) if token in ends), len(new))
        return new[: end + 1]

    def propose(self, states: torch.Tensor) -> Linked:
        """A tree behind the newest token, from the states of the tokens before it that the head has not had."""
        following = torch.tensor([self.ids[-states.shape[1] :]])
        cache = cache_argument(self.head.pairs, self.kept)
        output = self.head.pairs(input_ids=following, hidden_states=states, **cache)
        length, named = self.kept.get_seq_length(), self.named()
        parents, tokens, scores = list[int](), list[int](), [0.0]
        ranks: list[tuple[int, ...]] = [()]  # the choices that lead to each node
        own: dict[int, torch.Tensor] = {}  # the head's state at each node that it was fed
        fed, level = list[int](), [0]
        while level and len(ranks[level[0]]) < self.request.num_draft_tokens:
            if level != [0]:
                fed += level
                output = self.head.pairs(
                    input_ids=torch.tensor([[tokens[node - 1] for node in level]]),
                    hidden_states=torch.stack([own[parents[node - 1]] for node in level])[None],
                    attention_mask=self.branches(Linked(parents, tokens), fed, len(level), length),
                    **cache,
                )
            likely = output.logits[0, -len(level) :].log_softmax(-1)
            own.update(zip(level, output.hidden_states[-1][0, -len(level) :], strict=True))
            children = list[int]()
            for above, scored in zip(level, likely, strict=True):
                order = scored.argsort(descending=True).tolist()
                for rank in [r for r in range(len(order)) if (*ranks[above], r) in named] if named else range(WIDTH):
                    parents.append(above)
                    tokens.append(order[rank])
                    scores.append(scores[above] + float(scored[order[rank]]))
                    ranks.append((*ranks[above], rank))
                    children.append(len(tokens))
            level = children if named else sorted(sorted(children, key=lambda node: -scores[node])[:WIDTH])
        keep(self.kept, torch.arange(length))
        return self.best(parents, tokens, scores)

    def named(self) -> set[tuple[int, ...]]:
        """The tree that the request names for this round, each node by the choices that lead to it."""
        nodes = of_round(self.request.tree[0], self.rounds) if self.request.tree else ()
        found: list[tuple[int, ...]] = [()]
        for parent, rank in nodes:
            found.append((*found[parent], rank))
        return set(found[1:])

    def branches(self, tree: Linked, fed: list[int], new: int, length: int) -> torch.Tensor:
        """The slots of ``length`` pairs and of the nodes ``fed`` to the head that the newest ``new`` of these see."""
        nodes = torch.tensor(fed)
        within = tree.sees()[nodes[-new:]][:, nodes]
        return torch.cat([torch.ones(new, length, dtype=torch.bool), within], dim=1)[None, None]

    def best(self, parents: list[int], tokens: list[int], scores: list[float]) -> Linked:
        """The best of all nodes, linked anew; a parent is never worse than what is behind it."""
        ranked = sorted(range(1, len(tokens) + 1), key=lambda node: (-scores[node], node))
        kept = sorted(ranked[: self.request.num_draft_tokens])
        number = {0: 0} | {old: new for new, old in enumerate(kept, start=1)}
        return Linked([number[parents[node - 1]] for node in kept], [tokens[node - 1] for node in kept])

    def verify(self, tree: Linked) -> tuple[torch.Tensor, torch.Tensor]:
        """The target's answers ``[nodes + 1]`` and states ``[1, nodes + 1, size]`` at the newest token and its tree."""
        before = len(self.ids) - 1
        seen = torch.cat([torch.ones(len(tree.tokens) + 1, before, dtype=torch.bool), self.sees(tree)], dim=1)
        mask = torch.zeros(seen.shape, dtype=self.target.dtype).masked_fill(~seen, torch.finfo(self.target.dtype).min)
        output = self.target(
            input_ids=torch.tensor([[self.ids[-1], *tree.tokens]]),
            attention_mask=mask[None, None],
            position_ids=(before + self.depths(tree))[None],
            use_cache=True,
            output_hidden_states=True,
            **cache_argument(self.target, self.cache),
        )
        return output.logits[0].argmax(-1), output.hidden_states[-1]

    def sees(self, tree: Linked) -> torch.Tensor:
        return tree.sees()

    def depths(self, tree: Linked) -> torch.Tensor:
        return tree.depths()

    def accept(self, tree: Linked, answers: torch.Tensor) -> tuple[torch.Tensor, int]:
        """The nodes of the path that the answers go along furthest, root first, and the answer at its end."""
        paths = tree.paths()
        tokens = torch.tensor([self.ids[-1], *tree.tokens, NOTHING])[paths]
        right = (tokens[:, 1:] == answers[paths][:, :-1]).long().cumprod(1).sum(1)
        furthest = int(right.argmax())
        path = paths[furthest, : int(right[furthest]) + 1]
        return path, int(answers[path[-1]])

    def keep(self, path: torch.Tensor) -> None:
        """Keep only the entries of these nodes of the verified block, in this order."""
        before = len(self.ids) - 1
        keep(self.cache, torch.cat([torch.arange(before), before + path]))


def keep(cache: Any, slots: torch.Tensor) -> None:
    for layer in cache.layers:
        layer.keys, layer.values = layer.keys[:, :, slots], layer.values[:, :, slots]


@eqcheck.decoder(
    name="eagle",
    cache_states=("empty", "tree"),
    requires=("batch-1",),
    origin=SOURCE,
    note="one row at a time; a head reads the target's hidden states with the tokens behind them",
)
@torch.no_grad()
def generate(target: Any, draft: Any, request: eqcheck.Request) -> list[list[int]]:
    """New tokens of the one row: in each round a tree of the head's proposals is verified."""
    head = getattr(draft, "head", None)
    if head is None:
        raise eqcheck.Unsupported("it drafts with a head, and this draft model has none")
    return [Eagle(target, head, request).generate()]
