"""Trees in caches with one write offset per row: where nodes stand, what they see, and how a path moves."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch

from eqcheck.contract.trees import Nodes, depths

from .row_cache import RowModel


def behind_chain(nodes: Nodes, length: int) -> Nodes:
    """The tree with so many tokens more before its root; the first of them is the root then."""
    return (*((n, 0) for n in range(length)), *((parent + length, rank) for parent, rank in nodes))


@lru_cache(maxsize=4096)
def ancestry(nodes: Nodes) -> tuple[torch.Tensor, torch.Tensor]:
    """Depths ``[nodes + 1]`` of the root and its nodes, and which of them each one sees, ``[nodes + 1, nodes + 1]``."""
    sees = torch.eye(len(nodes) + 1, dtype=torch.bool)
    for number, (parent, _) in enumerate(nodes, start=1):
        sees[number] |= sees[parent]
    return torch.tensor(depths(nodes)), sees


def sights(
    shapes: Sequence[Nodes], starts: Sequence[int], skip: Sequence[int], width: int, model: RowModel
) -> tuple[torch.Tensor, torch.Tensor]:
    """Positions ``[rows, width]`` and what is seen, ``[rows, width, slots]``, of ``width`` columns of each row's tree.

    The root of row i is in slot ``starts[i]``, its nodes behind it; the first ``skip[i]`` of them all are not fed now.
    """
    device = model.device
    end = max(start + n for start, n in zip(starts, skip, strict=True)) + width
    most = max(len(shape) + 1 for shape in shapes)
    depth = torch.zeros(len(shapes), most + width, dtype=torch.long)
    sees = torch.zeros(len(shapes), most + width, most, dtype=torch.bool)
    for number, shape in enumerate(shapes):
        n = len(shape) + 1
        depth[number, :n], sees[number, :n, :n] = ancestry(shape)
    columns = torch.tensor(list(skip))[:, None] + torch.arange(width)  # [rows, width], of the tree
    row = torch.arange(len(shapes))[:, None]
    real = columns < torch.tensor([len(shape) + 1 for shape in shapes])[:, None]
    positions = torch.tensor(list(starts))[:, None] + depth[row, columns]
    node = torch.arange(end) - torch.tensor(list(starts))[:, None]  # [rows, slots]: which of the tree a slot holds
    inside = (node >= 0) & (node < most)
    held = node.clamp(0, most - 1)
    seen = sees[row, columns].gather(2, held[:, None].expand(-1, width, -1)) & inside[:, None]
    seen |= (node < 0)[:, None] & real[..., None]
    if model.window is not None:
        at = torch.where(inside, torch.tensor(list(starts))[:, None] + depth[row, held], torch.arange(end))
        seen &= at[:, None] > positions[..., None] - model.window
    seen |= (node[:, None] == columns[..., None]) & ~real[..., None]  # what only fills up sees itself alone
    return positions.to(device), seen.to(device)


def compact(model: RowModel, paths: Sequence[Sequence[int]], roots: Sequence[int]) -> None:
    """Move each row's path to the slots behind its root, which is in slot ``roots[i] - 1``; paths are columns."""
    moved = [row for row, path in enumerate(paths) if list(path) != list(range(1, len(path) + 1))]
    if not moved:
        return
    longest = max(len(paths[row]) for row in moved)
    source = [
        [roots[row] - 1 + column for column in [*paths[row], *range(len(paths[row]) + 1, longest + 1)]] for row in moved
    ]
    model.move(moved, torch.tensor(source, device=model.device), [roots[row] for row in moved])
