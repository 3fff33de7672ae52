"""Draw the trees of a case, and the paths along which its target goes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eqcheck.contract.trees import REJECTED, Nodes, of_round

if TYPE_CHECKING:
    from eqcheck.drawing.choices import Choices, Prompt


def draw_trees(
    choose: Choices, rows: int, limit: int, k: int
) -> tuple[list[tuple[Nodes, ...]], list[tuple[Prompt, ...]]]:
    """Trees of at most ``k`` nodes for the rounds of each row, now and then none, and the paths that are right."""
    trees: list[tuple[Nodes, ...]] = []
    paths: list[tuple[Prompt, ...]] = []
    for _ in range(rows):
        rounds = choose.integer(1, min(limit, 4))
        trees.append(tuple(_tree(choose, k) for _ in range(rounds)))
        paths.append(tuple(_path(choose, of_round(trees[-1], number)) for number in range(min(limit, rounds + 2))))
    return trees, paths


def end_before(
    choose: Choices,
    token: int,
    truth: list[Prompt],
    k: int,
    trees: list[tuple[Nodes, ...]],
    paths: list[tuple[Prompt, ...]],
) -> None:
    """Let a row's first path end at a leaf, beside a longer branch, where the target goes on with ``token``.

    A decoder may have the first new token from the prompt alone, and then the path begins behind it.
    """
    rows = [(row, tokens.index(token)) for row, tokens in enumerate(truth) if token in tokens]
    skipped = choose.integer(0, 1)
    rows = [(row, at) for row, at in rows if skipped < at <= skipped + (k - 1) // 2]
    if not rows:
        return
    row, at = choose.pick(rows)
    length = at - skipped
    short = ((0, 1), *((number, 0) for number in range(1, length)))
    long = ((0, 0), *((length + number, 0) for number in range(1, length + 1)))
    trees[row] = ((*short, *long), *trees[row][1:])
    paths[row] = ((0,) * skipped + (1,) + (0,) * (length - 1), *paths[row][1:])


def _tree(choose: Choices, k: int) -> Nodes:
    """A tree whose nodes are in any order that has parents first; siblings mostly have the next rank."""
    nodes: list[tuple[int, int]] = []
    for number in range(choose.integer(1, k) if choose.integer(0, 7) else 0):
        parent = max(0, number - choose.integer(0, number))
        siblings = sum(node[0] == parent for node in nodes)
        odd = choose.integer(0, 11)
        rank = siblings + (odd == 11) - (odd == 10 and siblings > 0)
        nodes.append((parent, min(rank, REJECTED - 1)))
    return tuple(nodes)


def _path(choose: Choices, nodes: Nodes) -> Prompt:
    """Ranks from the root along some branch, often to its end; where the decoder makes its tree, any low ones."""
    if not nodes:
        return tuple(choose.some(lambda choose: choose.integer(0, 1), 0, 3))
    at, path = 0, list[int]()
    while (below := [number for number, node in enumerate(nodes, 1) if node[0] == at]) and choose.integer(0, 4):
        at = choose.pick(below)
        path.append(nodes[at - 1][1])
    return tuple(path)
