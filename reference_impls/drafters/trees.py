"""Trees of a head's proposals: several choices at each place, verified in one forward of the target.

The trees are the same as `tree` makes of a draft model: the likeliest nodes of each level are expanded, and the
likeliest of all are kept. A head has no cache to feed them to. It goes from node to node by a state of each node's own,
so siblings know nothing of each other. A head of the shape ``pairs`` has a cache that a tree would have to be fed to:
it is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..heads import Heads
from ..serving import Row, Unsupported
from ..serving.branches import compact
from ..serving.checks import at_least_one
from ..tree import BRANCHES, Growing, laid_out


class TreeHeads(Heads):
    """A tree of at most ``nodes`` proposals for each row, ``num_draft_tokens`` deep at most; see the module."""

    def __init__(self, target: Any, head: Any, *, nodes: int = 4, **settings: Any) -> None:
        super().__init__(target, head, **settings)
        self.nodes = at_least_one("nodes", nodes)
        if self.shape == "pairs":
            raise Unsupported("shape: expected column or accepted, for which there are trees, got pairs")

    def fit(self) -> None:
        slots = max((len(row.tokens) for row in self.rows), default=0) + self.nodes + 1
        self.verifier.fit(len(self.rows), slots)
        self.drafter.fit(len(self.rows), slots)

    def speculate(self) -> None:
        """Draft, verify and commit for all rows at once; the invariant is that of `Heads`."""
        rows = self.rows
        budgets = [row.budget(self.num_draft_tokens) for row in rows]
        trees = [Growing((), self.nodes if budget else 0, budget) for budget in budgets]
        self._grow(rows, trees)
        lengths = [len(row.tokens) for row in rows]
        ids, starts, shown = laid_out(rows, trees, 0, self.verifier)
        output = self.verifier.run(starts, 0, shown, input_ids=ids, output_hidden_states=True)
        answers = output.logits.argmax(-1)  # [rows, nodes + 1]
        paths = [tree.accepted(row) for tree, row in zip(trees, answers.tolist(), strict=True)]
        places = [[0, *path, *[0] * (max(map(len, paths)) - len(path))] for path in paths]
        columns = torch.tensor(places, device=ids.device)  # the root and the path of each row; 0 fills up
        behind = answers.gather(1, columns)
        counts = []
        for row, tree, path, block in zip(rows, trees, paths, behind.tolist(), strict=True):
            counts.append(row.commit(block[: len(path) + 1]))
            self.stats.count(len(tree.nodes), len(path), counts[-1])
        compact(self.verifier, paths, lengths)
        hidden = output.hidden_states[-1]
        self.drafter.observe(hidden[torch.arange(len(rows))[:, None], columns], behind, starts, counts)
        self.stats.verify_calls += 1

    def _grow(self, rows: Sequence[Row], trees: Sequence[Growing]) -> None:
        """Draft the trees of all rows, level by level; rows with fewer nodes in a level are filled up."""
        device = self.verifier.device
        states = torch.stack(self.drafter.newest)[:, None]  # [rows, nodes of the level, size]
        row = torch.arange(len(rows), device=device)[:, None]
        column = [{0: 0} for _ in rows]  # of each row's nodes, in the level before
        for place in range(self.num_draft_tokens):
            levels = [tree.level(place) for tree in trees]
            width = max(map(len, levels))
            if not width:
                break
            above, ids = [], []
            for i, (tree, level) in enumerate(zip(trees, levels, strict=True)):
                parents = [tree.nodes[node - 1][0] if node else 0 for node in level]
                tokens = [tree.tokens[node - 1] if node else rows[i].tokens[-1] for node in level]
                above.append([column[i][parent] for parent in parents] + [0] * (width - len(level)))
                ids.append(tokens + rows[i].tokens[-1:] * (width - len(level)))
                column[i] = {node: n for n, node in enumerate(level)}
            states = states[row, torch.tensor(above, device=device)]
            logits, states = self.drafter.step(states, torch.tensor(ids, device=device), place)
            likely, best = logits.log_softmax(-1).topk(min(BRANCHES, logits.shape[-1]), dim=-1)
            for tree, level, choices, scores in zip(trees, levels, best.tolist(), likely.tolist(), strict=True):
                for n, node in enumerate(level):
                    tree.behind(node, choices[n], scores[n])
        for tree in trees:
            tree.done()
