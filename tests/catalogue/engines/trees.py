"""Engines that verify trees: `Forked` has one cache for the batch, `ForkedRows` one for each row.

A block is a row's newest token, the root, and behind it the nodes of its tree. The engine keeps the path
of it that the target's answers lead along; the cache is cut down to that path by picking slots.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers import DynamicCache

from eqcheck.catalogue.engines.engine import KeysValues, RoundEngine, Rows, additive, logits_of
from eqcheck.contract.decoders import Request
from eqcheck.contract.trees import Nodes, chain, cut, depths, of_round

PAD = -1  # what a slot holds instead of the token of a logical position


class Forking(RoundEngine):
    """The rounds that both share. ``trees`` and ``tokens`` are of the active rows in this round; node 0 is the root."""

    trees: list[Nodes]
    tokens: Rows

    def decode(self) -> Rows:
        self.rounds = [0] * len(self.rows)
        self.begin()
        while self.active:
            self.trees = [self.shape(i) for i in self.active]
            self.tokens = [self.grow(i, nodes) for i, nodes in zip(self.active, self.trees, strict=True)]
            answers = self.verify(self.tokens)
            paths = []
            for place, i in enumerate(self.active):
                path = self.path(place, answers[place])
                bonus = answers[place][self.column_of_bonus(place, path)]
                self.append(i, [*(self.token(place, node) for node in path), bonus])
                paths.append(path)
                self.rounds[i] += 1
            going = [place for place, i in enumerate(self.active) if not self.finished(i, [])]
            self.retire_to(going, paths)
        return self.outputs()

    def retire_to(self, going: Sequence[int], paths: Rows) -> None:
        """Go on with the rows at these places, and in their caches with the root and the path of each."""
        if going:
            self.keep(going, [[0, *self.kept(place, paths)] for place in going])
        self.active = [self.active[place] for place in going]

    def shape(self, i: int) -> Nodes:
        """The tree of a row in this round, as far as its limit leaves room for it."""
        rounds = self.request.tree[i] if i < len(self.request.tree) else ()
        nodes = of_round(rounds, self.rounds[i]) or chain(self.request.num_draft_tokens)
        return cut(nodes, self.budget(i))

    def grow(self, i: int, nodes: Nodes) -> list[int]:
        """The tokens of a row's nodes: the draft is asked behind each node that has others below it."""
        tokens: list[int] = []
        for number, (parent, rank) in enumerate(nodes):
            above = self.drafted_behind(nodes, number, parent)
            context = self.drafted_on(i, self.rows[i]) + [tokens[node - 1] for node in self.ancestors(nodes, above)]
            logits = self.draft(input_ids=torch.tensor([context]), use_cache=False).logits[0, -1]
            tokens.append(int(logits.topk(rank + 1).indices[rank]))
        return tokens

    def drafted_behind(self, nodes: Nodes, number: int, parent: int) -> int:
        """The node behind which the draft is asked for a node; its parent."""
        return parent

    def ancestors(self, nodes: Nodes, node: int) -> list[int]:
        """The path to a node, itself included, the root not."""
        path: list[int] = []
        while node:
            path.append(node)
            node = nodes[node - 1][0]
        return path[::-1]

    def sees(self, place: int) -> torch.Tensor:
        """Return which of a row's block each of it sees, ``[nodes + 1, nodes + 1]``, the root first."""
        nodes = self.trees[place]
        seen = torch.eye(len(nodes) + 1, dtype=torch.bool)
        for number, (parent, _) in enumerate(nodes, start=1):
            seen[number] |= seen[parent]
        return seen

    def depth(self, place: int) -> list[int]:
        """Return how far behind the root the root and each node stand."""
        return depths(self.trees[place])

    def token(self, place: int, node: int) -> int:
        return self.tokens[place][node - 1]

    def path(self, place: int, answers: Sequence[int]) -> list[int]:
        """The nodes along which the target's answers lead."""
        at, path = 0, list[int]()
        while (node := self.child(place, at, answers[at])) is not None:
            path.append(node)
            at = node
        return path

    def child(self, place: int, parent: int, token: int) -> int | None:
        """The first child of a node that holds this token."""
        found = (
            n for n, node in enumerate(self.trees[place], 1) if node[0] == parent and self.token(place, n) == token
        )
        return next(found, None)

    def column_of_bonus(self, place: int, path: Sequence[int]) -> int:
        """The column of the block behind whose token the bonus is answered."""
        return path[-1] if path else 0

    def kept(self, place: int, paths: Rows) -> list[int]:
        """The nodes whose entries are kept of a row's block."""
        return paths[place]

    def keep(self, going: Sequence[int], columns: Rows) -> None:
        """Keep these rows, and of their blocks these columns."""
        raise NotImplementedError

    def moved(self, layer: int, picked: KeysValues, unmoved: KeysValues) -> KeysValues:
        """K and V of a layer with the path ``picked`` out of the block, beside those of as many first columns."""
        return picked


class Forked(Forking):
    """One cache for the batch; blocks are filled up behind, and what is kept is moved together at the right edge.

    ``holds`` ``[batch, slots]`` is the logical position of the token in each slot, or `PAD`.
    """

    def begin(self) -> None:
        self.cache = DynamicCache()
        self.holds = torch.zeros((len(self.rows), 0), dtype=torch.long)
        longest = max(map(len, self.rows)) - 1
        if longest:
            ids = [[self.request.pad_token_id] * (longest - len(row) + 1) + row[:-1] for row in self.rows]
            real = torch.tensor([[False] * (longest - len(row) + 1) + [True] * (len(row) - 1) for row in self.rows])
            at = (real.long().cumsum(1) - 1).masked_fill(~real, PAD)
            causal = torch.ones(longest, longest, dtype=torch.bool).tril()
            seen = (real[:, None] & causal) | torch.eye(longest, dtype=torch.bool)
            self.feed(torch.tensor(ids), at, seen)

    def feed(self, ids: torch.Tensor, at: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        """Logits of a block; ``at`` are logical positions or `PAD`, ``seen`` ``[batch, block, block]`` is within it."""
        held = (self.holds >= 0)[:, None] & (at >= 0)[..., None]
        seen = self.windowed(torch.cat([held, seen], 2), at, torch.cat([self.holds, at], 1))
        logits = logits_of(self.target, ids, additive(seen, self.target), self.positions(at, at >= 0), self.cache)
        self.holds = torch.cat([self.holds, at], 1)
        return logits

    def windowed(self, seen: torch.Tensor, at: torch.Tensor, held: torch.Tensor) -> torch.Tensor:
        window = getattr(self.target.config, "sliding_window", None)
        return seen if not window else seen & ((held[:, None] > at[..., None] - window) | (at < 0)[..., None])

    def verify(self, drafts: Rows) -> Rows:
        width = 1 + max(map(len, drafts))
        ids = torch.full((len(drafts), width), self.request.pad_token_id)
        at = torch.full((len(drafts), width), PAD)
        fed = at.clone()
        seen = torch.eye(width, dtype=torch.bool).repeat(len(drafts), 1, 1)
        for place, (i, drafted) in enumerate(zip(self.active, drafts, strict=True)):
            n, root = len(drafted) + 1, len(self.rows[i]) - 1
            ids[place, :n] = torch.tensor([self.rows[i][-1], *drafted])
            at[place, :n] = root + torch.tensor(depths(self.trees[place]))
            fed[place, :n] = root + torch.tensor(self.depth(place))
            seen[place, :n, :n] = self.sees(place)
            self.dead(seen[place], n)
        self.numbered = fed
        self.width = width
        return self.feed(ids, at, seen).argmax(-1).tolist()

    def positions(self, at: torch.Tensor, real: torch.Tensor) -> torch.Tensor | None:
        fed = self.__dict__.pop("numbered", at)
        return super().positions(fed, real)

    def dead(self, seen: torch.Tensor, count: int) -> None:
        """Columns from ``count`` on only fill up the row: they see themselves, and nothing sees them."""

    def keep(self, going: Sequence[int], columns: Rows) -> None:
        before = self.holds.shape[1] - self.width
        slots = [
            [slot for slot in range(before) if self.holds[place, slot] >= 0] + [before + c for c in of_row]
            for place, of_row in zip(going, columns, strict=True)
        ]
        longest = max(map(len, slots))
        gaps = [longest - len(of_row) for of_row in slots]
        source = torch.tensor([[0] * gap + of_row for gap, of_row in zip(gaps, slots, strict=True)])
        kept = torch.tensor([[len(of_row)] for of_row in columns])
        last = torch.arange(longest) - longest + kept  # the column of the block that stands there if nothing is moved
        straight = torch.where(last >= 0, before + last, source)
        blank = torch.arange(longest) < torch.tensor(gaps)[:, None]
        index = torch.tensor(list(going))[:, None]
        for number, layer in enumerate(self.cache.layers):
            keys, values = layer.keys, layer.values
            picked, unmoved = (
                (pick(keys, index, slots, blank), pick(values, index, slots, blank)) for slots in (source, straight)
            )
            layer.keys, layer.values = self.moved(number, picked, unmoved)
        lengths = torch.tensor([len(of_row) for of_row in slots])[:, None]
        self.holds = (torch.arange(longest) - longest + lengths).masked_fill(blank, PAD)


class ForkedRows(Forking):
    """One cache for each row; the path's slots are picked out of it. Nothing is padded."""

    def __init__(self, target: object, draft: object, request: Request) -> None:
        super().__init__(target, draft, request)
        self.caches = [DynamicCache() for _ in self.rows]

    def begin(self) -> None:
        for i, row in enumerate(self.rows):
            if len(row) > 1:
                at = list(range(len(row) - 1))
                self.feed(i, row[:-1], at, at, torch.ones(len(at), len(at), dtype=torch.bool).tril())

    def feed(self, i: int, block: list[int], behind: list[int], fed: list[int], seen: torch.Tensor) -> torch.Tensor:
        """Logits ``[block, vocab]``; ``seen`` ``[block, block]`` is within the block.

        ``behind`` says how far behind the first token each one stands, ``fed`` the same for the position ids.
        """
        past = self.caches[i].get_seq_length()
        at = past + torch.tensor(fed)[None]
        whole = torch.cat([torch.ones(len(block), past, dtype=torch.bool), seen], 1)
        if window := getattr(self.target.config, "sliding_window", None):
            places = past + torch.tensor(behind)
            whole &= torch.cat([torch.arange(past), places]) > places[:, None] - window
        mask, positions = additive(whole[None], self.target), self.positions(at, at >= 0)
        return logits_of(self.target, torch.tensor([block]), mask, positions, self.caches[i])[0]

    def verify(self, drafts: Rows) -> Rows:
        answers = []
        for place, (i, drafted) in enumerate(zip(self.active, drafts, strict=True)):
            block, behind = [self.rows[i][-1], *drafted], depths(self.trees[place])
            answers.append(self.feed(i, block, behind, self.depth(place), self.sees(place)).argmax(-1).tolist())
        return answers

    def keep(self, going: Sequence[int], columns: Rows) -> None:
        for place, of_row in zip(going, columns, strict=True):
            i = self.active[place]
            before = self.caches[i].get_seq_length() - len(self.tokens[place]) - 1
            slots = torch.tensor([*range(before), *(before + column for column in of_row)])
            straight = slice(before + len(of_row))
            for number, layer in enumerate(self.caches[i].layers):
                keys, values = layer.keys, layer.values
                picked = keys.index_select(2, slots), values.index_select(2, slots)
                unmoved = keys[:, :, straight], values[:, :, straight]
                layer.keys, layer.values = self.moved(number, picked, unmoved)


def pick(states: torch.Tensor, rows: torch.Tensor, slots: torch.Tensor, blank: torch.Tensor) -> torch.Tensor:
    """Pick these ``slots`` ``[rows, width]`` of K or V of the batch's ``rows`` ``[rows, 1]``, zero where ``blank``."""
    return states[rows, :, slots].transpose(1, 2).masked_fill(blank[:, None, :, None], 0)
