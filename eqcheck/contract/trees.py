"""Trees of draft tokens, as data: each node has a parent and a rank among the draft's choices behind it.

The nodes of a tree are numbered from 1 in the order given; 0 is its root, the newest token of the row. The node
``(2, 1)`` is the draft's second choice (rank 1) behind node 2. A chain of three is ``((0, 0), (1, 0), (2, 0))``. Nodes
of equal parent and rank hold equal tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

Nodes = tuple[tuple[int, int], ...]
REJECTED = 8  # the rank of a token that no tree holds


def chain(length: int) -> Nodes:
    """The tree that is a chain of the draft's first choices.

    >>> chain(2)
    ((0, 0), (1, 0))
    """
    return tuple((number, 0) for number in range(length))


def wrong_with(nodes: Nodes, most: int) -> str:
    """Return why this is no tree of at most so many nodes; empty where it is one.

    >>> wrong_with(((0, 0), (2, 0)), most=4)
    'node 2: expected a parent from 0 to 1, an earlier node or 0 for the root, got 2'
    """
    if len(nodes) > most:
        return f"expected at most {most} nodes (num_draft_tokens), got {len(nodes)}"
    for number, node in enumerate(nodes, start=1):
        if not isinstance(node, tuple) or [type(one) for one in node] != [int, int]:
            return f"node {number}: expected a parent and a rank, two whole numbers in a tuple, got {node!r:.60}"
        parent, rank = node
        if not 0 <= parent < number:
            earlier = f"from 0 to {number - 1}, an earlier node or 0 for the root"
            return f"node {number}: expected a parent {earlier}, got {parent}"
        if not 0 <= rank < REJECTED:
            return f"node {number}: expected a rank from 0 to {REJECTED - 1}, got {rank}"
    return ""


def depths(nodes: Nodes) -> list[int]:
    """Return how many nodes are on the path to each node, itself included; 0 for the root, which comes first.

    >>> depths(((0, 0), (0, 1), (2, 0)))
    [0, 1, 1, 2]
    """
    found = [0]
    for parent, _ in nodes:
        found.append(found[parent] + 1)
    return found


def cut(nodes: Nodes, depth: int) -> Nodes:
    """The nodes that are not deeper than this, numbered anew.

    >>> cut(((0, 0), (1, 0), (0, 1)), 1)
    ((0, 0), (0, 1))
    """
    deep, number = depths(nodes), {0: 0}
    kept = []
    for old, (parent, rank) in enumerate(nodes, start=1):
        if deep[old] <= depth:
            kept.append((number[parent], rank))
            number[old] = len(kept)
    return tuple(kept)


def walk(nodes: Nodes, ranks: Sequence[int]) -> list[int]:
    """The nodes along which ranks lead, from the root on, as far as there are such nodes.

    >>> walk(((0, 0), (0, 1), (2, 0)), ranks=(1, 0, 0))
    [2, 3]
    """
    at, path = 0, list[int]()
    for rank in ranks:
        child = next((number for number, node in enumerate(nodes, start=1) if node == (at, rank)), 0)
        if not child:
            break
        path.append(child)
        at = child
    return path


def of_round(rounds: Sequence[Nodes], number: int) -> Nodes:
    """A row's tree in the round of this number, from 0; behind the last one named it stays the same; () for none.

    >>> of_round((((0, 0),), ((0, 1),)), 5)
    ((0, 1),)
    """
    return rounds[min(number, len(rounds) - 1)] if rounds else ()
