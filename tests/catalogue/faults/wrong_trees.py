"""Faults of decoders that verify trees: masks, positions, the path in the cache, what is accepted, the draft's tree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from eqcheck.catalogue.engines.engine import KeysValues, Rows
from eqcheck.catalogue.engines.trees import Forked, Forking
from eqcheck.catalogue.faults.fault import OUTPUT_RIGHT, fault, planted, step
from eqcheck.contract.trees import Nodes, depths

_BUILDS = "forked forked_rows"
_NO_TREES = "engines that load a checkpoint are not handed trees"
_TREE: dict[str, Any] = {"cache_states": ("tree",), "no_edit": _NO_TREES}
_SGLANG, _TRT = "sgl-project/sglang", "NVIDIA/TensorRT-LLM"


@planted(_BUILDS, **_TREE)
@fault("K30-path-not-moved", "cache/wrong-path", f"{_SGLANG}#26866")
class PathNotMoved(Forking):
    """Nothing is moved: behind the committed tokens the cache holds the first nodes of the block, not the path."""

    def moved(self, layer: int, picked: KeysValues, unmoved: KeysValues) -> KeysValues:
        return unmoved


fault("K30-lower-layer-moved", "cache/torn-entry", "openvinotoolkit/openvino#38079").plant(
    "The path is moved in the first layer alone",
    planted(_BUILDS, **_TREE),
    step(Forking, moved=lambda right, self, layer, picked, unmoved: unmoved if layer else picked),
)

fault("K30-path-by-count", "cache/wrong-path", f"{_TRT}#10343").plant(
    "The tree is rolled back by a count: as many first nodes are kept as the path has",
    planted(_BUILDS, **_TREE),
    step(Forking, kept=lambda right, self, place, paths: list(range(1, len(paths[place]) + 1))),
)

fault("T30-bonus-by-count", "bookkeeping/wrong-correction", f"{_SGLANG}#15360").plant(
    "The bonus is read from the column whose number is the length of the path",
    planted(_BUILDS, **_TREE),
    step(Forking, column_of_bonus=lambda right, self, place, path: len(path)),
)


@planted(_BUILDS, **_TREE)
@fault("M30-siblings-seen", "mask/sibling-visible", "vllm-project/vllm#17560")
class SiblingsSeen(Forking):
    """A node sees the siblings before it."""

    def sees(self, place: int) -> torch.Tensor:
        seen, nodes = super().sees(place), self.trees[place]
        for number, (parent, _) in enumerate(nodes, start=1):
            for other in range(1, number):
                seen[number, other] |= nodes[other - 1][0] == parent
        return seen


@planted(_BUILDS, **_TREE)
@fault("M30-root-hidden", "mask/token-hidden", "sgl-project/sgl-kernel-npu#146")
class RootHidden(Forking):
    """Nodes that have none behind them do not see the root."""

    def sees(self, place: int) -> torch.Tensor:
        seen, nodes = super().sees(place), self.trees[place]
        parents = {parent for parent, _ in nodes}
        for number in range(1, len(nodes) + 1):
            seen[number, 0] &= number in parents
        return seen


@planted(_BUILDS, **_TREE)
@fault("P30-position-by-index", "position/query-position", f"{_TRT}#13081")
class PositionByIndex(Forking):
    """The position of a node is its place in the block, not its depth."""

    def depth(self, place: int) -> list[int]:
        return list(range(len(self.trees[place]) + 1))


@planted(_BUILDS, **_TREE)
@fault("T31-missing-node-accepted", "bookkeeping/over-accept", "https://github.com/FasterDecoding/Medusa")
class MissingNodeAccepted(Forking):
    """Paths shorter than the longest go on with an index of no node, whose id is 0; where the target answers 0, it is
    accepted, and the last node of the tree stands for it."""

    def path(self, place: int, answers: Sequence[int]) -> list[int]:
        path, nodes = super().path(place, answers), self.trees[place]
        last, deep = path[-1] if path else 0, depths(nodes)
        ends = 0 < last < len(nodes) and deep[last] < max(deep) and all(parent != last for parent, _ in nodes)
        return [*path, len(nodes) + 1] if ends and answers[last] == 0 else path

    def token(self, place: int, node: int) -> int:
        return 0 if node > len(self.trees[place]) else super().token(place, node)

    def column_of_bonus(self, place: int, path: Sequence[int]) -> int:
        return min(super().column_of_bonus(place, path), len(self.trees[place]))

    def kept(self, place: int, paths: Rows) -> list[int]:
        return [min(node, len(self.trees[place])) for node in paths[place]]


@planted(_BUILDS, cache_states=("tree",), no_edit=OUTPUT_RIGHT)
@fault("D31-wrong-parent", "draft/desync", f"{_SGLANG}#8409")
class WrongParent(Forking):
    """The draft is asked behind the node before the parent, where that is of the same depth."""

    def drafted_behind(self, nodes: Nodes, number: int, parent: int) -> int:
        deep = depths(nodes)
        return parent - 1 if parent > 1 and deep[parent - 1] == deep[parent] else parent


@planted("forked", cache_states=("tree",), rows=2, no_edit=_NO_TREES)
@fault("M31-filler-seen", "mask/pad-visible", f"{_SGLANG}#37120")
class FillerSeen(Forked):
    """A node sees the columns that fill up its row to the largest tree of the batch."""

    def dead(self, seen: torch.Tensor, count: int) -> None:
        seen[1:count, count:] = True


@planted("", _BUILDS, **_TREE)
@fault("K30-values-not-moved", "cache/torn-entry", "alibaba/MNN#4600", mechanism="K6-values-not-moved")
class PathValuesNotMoved(Forking):
    """Keys of the path are moved, values are not."""

    def moved(self, layer: int, picked: KeysValues, unmoved: KeysValues) -> KeysValues:
        return picked[0], unmoved[1]


@planted("", _BUILDS, cache_states=("tree",), rows=2, no_edit=_NO_TREES)
@fault("K30-path-of-first-row", "cache/wrong-path", f"{_SGLANG}#26866")
class PathOfFirstRow(Forking):
    """Every row keeps the nodes that the first row accepted, as many as it accepted itself."""

    def kept(self, place: int, paths: Rows) -> list[int]:
        own, nodes = paths[place], len(self.trees[place])
        return [min(node, nodes) for node in [*paths[0], *own[len(paths[0]) :]][: len(own)]]


@planted("", _BUILDS, **_TREE)
@fault("T30-bonus-of-last-node", "bookkeeping/wrong-correction", f"{_SGLANG}#15360", mechanism="T30-bonus-by-count")
class BonusOfLastNode(Forking):
    """The bonus is the answer at the last node of the tree."""

    def column_of_bonus(self, place: int, path: Sequence[int]) -> int:
        return len(self.trees[place])


@planted("", _BUILDS, **_TREE)
@fault("M30-earlier-levels-seen", "mask/sibling-visible", "vllm-project/vllm#17560", mechanism="M30-siblings-seen")
class EarlierLevelsSeen(Forking):
    """A node sees all nodes of the levels above it, those of other branches among them."""

    def sees(self, place: int) -> torch.Tensor:
        deep = torch.tensor(depths(self.trees[place]))
        return super().sees(place) | (deep[:, None] > deep)


fault("P30-position-of-parent", "position/query-position", f"{_TRT}#12962", mechanism="P30-position-by-index").plant(
    "A node has the position of its parent",
    planted("", _BUILDS, **_TREE),
    step(Forking, depth=lambda right, self, place: [max(0, depth - 1) for depth in right(place)]),
)


@planted("", _BUILDS, cache_states=("tree",), rows=2, no_edit=_NO_TREES)
@fault("M31-mask-of-first-row", "mask/sibling-visible", f"{_TRT}#13006", mechanism="X3-mask-of-first-row")
class MaskOfFirstRow(Forking):
    """The tree of the first row is the mask of all."""

    def sees(self, place: int) -> torch.Tensor:
        own, first = super().sees(place), super().sees(0)
        n = min(len(own), len(first))
        own[:n, :n] = first[:n, :n]
        return own


@planted("", _BUILDS, cache_states=("tree",), no_edit=OUTPUT_RIGHT)
@fault("D30-tree-left-in-draft", "draft/desync", f"{_SGLANG}#8409")
class TreeLeftInDraft(Forking):
    """The nodes of a tree that the draft was fed stay in its cache: it goes on behind nodes that were not accepted."""

    def retire_to(self, going: Sequence[int], paths: Rows) -> None:
        left = self.__dict__.setdefault("left", {})
        for place, i in enumerate(self.active):
            nodes = range(1, len(self.trees[place]) + 1)
            left[i] = [self.token(place, node) for node in nodes if node not in paths[place]]
        super().retire_to(going, paths)

    def drafted_on(self, i: int, tokens: list[int]) -> list[int]:
        return [*tokens[:-1], *self.__dict__.get("left", {}).get(i, []), tokens[-1]]
