"""Tree: batch speculative decoding with trees of draft tokens, on ordinary models and without kernels of its own.

Every row of the caches has a write offset of its own, as in `ragged`. A round feeds each row's newest token, the root,
and behind it the nodes of the row's tree in one forward of the target. A 4-D mask lets each node see the row's
committed tokens, its ancestors and itself; its position is that of its depth. From the root on the path is taken whose
tokens are what the target answers, and the answer at its end is the bonus. Keys and values of the path then move to the
slots behind the root, all layers by the same indices; what else was fed lies behind the row and is overwritten by the
next round. The draft grows its trees level by level in the same way.

Rows differ in the shape of their trees. ``shapes`` names a row's tree for a round; where it names none, the draft makes
one: it expands the likeliest nodes of each level and keeps the ``num_draft_tokens`` likeliest of all, as EAGLE-2 does
(https://arxiv.org/abs/2406.16858). Where trees differ in size, the smaller ones are filled up with columns that see
themselves alone and that nothing sees.

Rows are greedy or sampled. Of a sampled row the nodes are candidates that are drawn, in trees whose shape is fixed
before (`serving.recursive`).

    >>> from eqcheck.transparent.hashlm.model import HashConfig, HashLM
    >>> target, draft = HashLM(HashConfig(seed=1)), HashLM(HashConfig(seed=1, role=2))
    >>> engine = Tree(target, draft, num_draft_tokens=4, shapes=lambda row, number: ((0, 0), (0, 1), (1, 0), (3, 0)))
    >>> outputs = engine.generate([[3, 1, 4], [1, 5]], max_new_tokens=10)
    >>> [len(row) for row in outputs], engine.stats.verify_calls
    ([10, 10], 3)

Works on the models that `ragged` works on. With ``kv_bytes`` its caches never take more than so many bytes: rows wait,
and trees have fewer nodes (`serving.bounded`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import torch

import eqcheck
from eqcheck.contract.errors import UsageError
from eqcheck.contract.trees import Nodes, cut, depths, of_round, wrong_with

from .serving import SAMPLING, Bounded, Prompt, PromptError, Row, RowModel, decode
from .serving.branches import behind_chain, compact, sights
from .serving.recursive import Draws, paired

Shapes = Callable[[Any, int], Nodes]  # the tree of a prompt's (by id) round, from 0; () where the draft makes it
BRANCHES = 3  # choices of the draft behind a node, where it makes the tree


@dataclass
class Growing:
    """A row's tree while it is drafted. ``nodes`` are its nodes so far without the root, with their ``tokens``.

    ``shape`` names the nodes; without it there are at most ``most``, down to ``depth``. ``scores`` are the draft's log
    probabilities of the paths; ``fed`` has the columns that the draft was fed, root first. In a sampled row
    ``draws`` has the draws.
    """

    shape: Nodes
    most: int
    depth: int
    draws: Draws | None = None
    nodes: list[tuple[int, int]] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    scores: list[float] = field(default_factory=lambda: [0.0])
    fed: dict[int, int] = field(default_factory=lambda: {0: 0})

    def level(self, depth: int) -> list[int]:
        """The nodes of this depth behind which more are to be drafted."""
        if self.shape:
            deep = depths(self.shape)
            return sorted({parent for parent, _ in self.shape if deep[parent] == depth})
        deep = depths(tuple(self.nodes))
        here = [number for number in range(len(deep)) if deep[number] == depth < self.depth]
        return sorted(sorted(here, key=lambda number: -self.scores[number])[: min(BRANCHES, self.most)])

    def behind(self, parent: int, choices: Sequence[int], likely: Sequence[float]) -> None:
        """Take the draft's ``choices`` behind a node, best first, with their log probabilities."""
        if self.shape:
            if not self.nodes:  # tokens are filled in as their parents are fed
                self.nodes, self.tokens = list(self.shape), [0] * len(self.shape)
            for number, (above, rank) in enumerate(self.shape):
                if above == parent:
                    self.tokens[number] = choices[rank]
            return
        for rank, (token, score) in enumerate(zip(choices[: min(BRANCHES, self.most)], likely, strict=False)):
            self.nodes.append((parent, rank))
            self.tokens.append(token)
            self.scores.append(self.scores[parent] + score)

    def drawn_behind(self, parent: int, logits: torch.Tensor) -> None:
        """Take candidates that are drawn of the draft's logits behind a node, those of equal ranks once."""
        assert self.draws is not None
        ranks = list(dict.fromkeys(rank for above, rank in self.shape if above == parent))
        tokens = dict(zip(ranks, self.draws.candidates(parent, logits, len(ranks)), strict=True))
        self.behind(parent, [tokens.get(rank, 0) for rank in range(max(ranks) + 1)], ())

    def done(self) -> None:
        """Keep the likeliest nodes where there are too many; a parent is no less likely than what is behind it."""
        if self.shape or len(self.nodes) <= self.most:
            return
        best = sorted(range(1, len(self.nodes) + 1), key=lambda number: (-self.scores[number], number))[: self.most]
        number = {0: 0} | {old: new for new, old in enumerate(sorted(best), start=1)}
        kept = [old - 1 for old in sorted(best)]
        self.nodes = [(number[self.nodes[old][0]], self.nodes[old][1]) for old in kept]
        self.tokens = [self.tokens[old] for old in kept]
        self.fed = {number[old]: column for old, column in self.fed.items() if old in number}

    def accepted(self, answers: Sequence[int]) -> list[int]:
        """The nodes along which the target's answers lead, by column: the root's first."""
        return self.led(answers)[0]

    def led(self, answers: Sequence[int], logits: torch.Tensor | None = None) -> tuple[list[int], int]:
        """Return `accepted` and the token after the last of them; if it is drawn, from the target's ``logits``."""
        at, path = 0, list[int]()
        while True:
            children = [number for number, (parent, _) in enumerate(self.nodes, start=1) if parent == at]
            tokens = [self.tokens[number - 1] for number in children]
            behind = dict(zip(reversed(tokens), reversed(children), strict=True))  # of equal ones the first
            answer = answers[at]
            if self.draws is not None and logits is not None:
                answer = self.draws.answer(at, logits[at], list(dict.fromkeys(tokens)))
            if answer not in behind:
                return path, answer
            at = behind[answer]
            path.append(at)


class Tree(Bounded):
    """A tree of draft tokens for each row; see the module. ``draws`` draws for the rows that are sampled.

    Raises `UsageError` for a shape that is no tree of at most ``num_draft_tokens`` nodes.
    """

    draws: ClassVar[type[Draws]] = Draws

    def __init__(self, target: Any, draft: Any, *, shapes: Shapes = lambda row, number: (), **settings: Any) -> None:
        super().__init__(target, draft, **settings)
        self.shapes = shapes

    def _check(self, prompt: Prompt) -> None:
        super()._check(prompt)
        if self.noise != "row" and prompt.sampling is not None and prompt.sampling.temperature:
            raise PromptError(f"noise: expected 'row' for rows that are sampled with trees, got {self.noise!r}")
        self._shape(prompt.id, 0)

    def begin(self) -> None:
        super().begin()
        # The draft is fed level by level, and a level fills up to that of the row with the widest one.
        self.pool.block = (BRANCHES + 1) * (self.num_draft_tokens + 1)
        self.rounds: WeakKeyDictionary[Row, int] = WeakKeyDictionary()

    def round(self) -> list[Row]:
        rows = self.let_in()
        trees = [self._begun(row) for row in rows]
        self._grow(rows, trees)
        logits = self._verify(rows, trees)
        answers: list[list[int]] = logits.argmax(-1).tolist()
        led = [tree.led(*of_row) for tree, *of_row in zip(trees, answers, logits, strict=True)]
        paths = [path for path, _ in led]
        lengths = [len(row.tokens) for row in rows]
        for row, tree, (path, last) in zip(rows, trees, led, strict=True):
            committed = row.commit([*(tree.tokens[node - 1] for node in path), last])
            # Where nothing was drafted the draft was fed nothing.
            unseen = sum(node not in tree.fed for node in path)
            row.behind, row.unfed = unseen if any(one.nodes for one in trees) else row.behind + committed, 0
            self.stats.count(len(tree.nodes), len(path), committed)
        compact(self.pool.target, paths, lengths)
        fed = [[t.fed[node] for node in path if node in t.fed] for t, path in zip(trees, paths, strict=True)]
        compact(self.pool.draft, fed, lengths)
        self.let_go()
        return rows

    def _begun(self, row: Row) -> Growing:
        number = self.rounds.get(row, 0)
        self.rounds[row] = number + 1
        shape, room = self._shape(row.prompt.id, number), row.budget(self.num_draft_tokens)
        # Where memory is narrow a tree has fewer nodes: the first of them are a tree, too.
        most = min(self.num_draft_tokens, (self.pool.draft_tokens() + 1) // (BRANCHES + 1) - 1)
        draws = self.draws(row) if row.options.temperature else None
        shape = shape or (paired(most) if draws else ())
        shape, room = (shape[:most], room) if most > 0 else ((), 0)
        return Growing(cut(shape, room), 0 if shape else min(room, 1) * most, room, draws)

    def _shape(self, prompt: Any, number: int) -> Nodes:
        shape = self.shapes(prompt, number)
        if wrong := wrong_with(shape, self.num_draft_tokens):
            raise UsageError(f"shapes({prompt}, {number}): {wrong}")
        return shape

    def _grow(self, rows: Sequence[Row], trees: Sequence[Growing]) -> None:
        """Draft the trees of all rows: first what the draft has not seen of the rows, then level by level."""
        draft, device = self.pool.draft, self.draft.device
        depth = 0
        while any(levels := [tree.level(depth) for tree in trees]):
            if depth == 0:
                logits = feed_newest(draft, rows)[:, None]
            else:
                width = max(map(len, levels))
                shapes, columns = [], []
                for tree, level in zip(trees, levels, strict=True):
                    for node in level:
                        tree.fed[node] = len(tree.fed)
                    order = sorted(tree.fed, key=lambda node: tree.fed[node])
                    shapes.append(tuple((tree.fed[tree.nodes[node - 1][0]], 0) for node in order[1:]))
                    columns.append([tree.fed[node] for node in level])
                ids = [
                    [tree.tokens[node - 1] for node in level] + row.tokens[-1:] * (width - len(level))
                    for row, tree, level in zip(rows, trees, levels, strict=True)
                ]
                starts = [len(row.tokens) - 1 for row in rows]
                skip = [len(shape) + 1 - len(level) for shape, level in zip(shapes, levels, strict=True)]
                shown = sights(shapes, starts, skip, width, draft)
                at = [start + n for start, n in zip(starts, skip, strict=True)]
                logits = draft.feed(torch.tensor(ids, device=device), at, shown=shown)
            most = 1 + max([rank for tree in trees for _, rank in tree.shape] + [BRANCHES - 1])
            likely, best = logits.log_softmax(-1).topk(min(most, logits.shape[-1]), dim=-1)
            found = zip(trees, levels, logits, best.tolist(), likely.tolist(), strict=True)
            for tree, level, of_row, choices, scores in found:
                for column, node in enumerate(level):
                    if tree.draws is None:
                        tree.behind(node, choices[column], scores[column])
                    else:
                        tree.drawn_behind(node, of_row[column])
            depth += 1
        for tree in trees:
            tree.done()

    def _verify(self, rows: Sequence[Row], trees: Sequence[Growing]) -> torch.Tensor:
        """The target's logits ``[rows, nodes + 1, vocab]`` at the root and the nodes of each row."""
        unfed, width = rows[0].unfed, 1 + max(len(tree.nodes) for tree in trees)
        ids, starts, shown = laid_out(rows, trees, unfed, self.pool.target)
        return self.pool.target.feed(ids, starts, 0, width, shown)


def laid_out(
    rows: Sequence[Row], trees: Sequence[Growing], unfed: int, model: RowModel
) -> tuple[torch.Tensor, list[int], tuple[torch.Tensor, torch.Tensor]]:
    """The input of a target that verifies the rows' trees: ids, the slots they begin at, and what is shown of the rest.

    Before a row's root go the ``unfed`` tokens that the target has not been fed.
    """
    width = 1 + max(len(tree.nodes) for tree in trees)
    ids = [
        row.tokens[-1 - unfed :] + tree.tokens + row.tokens[-1:] * (width - 1 - len(tree.nodes))
        for row, tree in zip(rows, trees, strict=True)
    ]
    starts = [row.cached - unfed for row in rows]
    shapes = [behind_chain(tuple(tree.nodes), unfed) for tree in trees]
    shown = sights(shapes, starts, [0] * len(rows), unfed + width, model)
    return torch.tensor(ids, device=model.device), starts, shown


def feed_newest(draft: RowModel, rows: Sequence[Row]) -> torch.Tensor:
    """The draft's logits ``[rows, vocab]`` behind each row's newest token, and before it what it has not seen."""
    behind = max(row.behind for row in rows)
    starts = [max(0, row.cached - behind) for row in rows]
    waiting = [row.tokens[start:] for row, start in zip(rows, starts, strict=True)]
    block = [tokens + tokens[-1:] * (behind + 1 - len(tokens)) for tokens in waiting]
    logits = draft.feed(torch.tensor(block, device=draft.device), starts)
    last = torch.tensor([len(tokens) - 1 for tokens in waiting], device=draft.device)
    return logits[torch.arange(len(rows), device=draft.device), last]


@eqcheck.decoder(
    name="tree",
    padding_sides=("left", "right"),
    families=("rotary", "learned", "window"),
    cache_states=("empty", "pads-huge", "pads-nan", "wrapped", "chunked", "late-rows", "tree"),
    origin="trees of draft tokens with a 4-D mask, and their paths moved in the cache: see the module's docstring",
    engine=Tree,
    capabilities=SAMPLING,
    seeds="mates",
)
def generate(target: Any, draft: Any, request: eqcheck.Request) -> list[list[int]]:
    """New tokens of each row, two rows at a time, so that rows join and leave."""
    trees = request.tree

    def shapes(row: int, number: int) -> Nodes:
        return of_round(trees[row], number) if row < len(trees) else ()

    return decode(Tree, target, draft, request, batch_size=2, shapes=shapes)
