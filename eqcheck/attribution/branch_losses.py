"""What the draft side lost where drafts are trees: rounds that the target would not have needed, and why it did.

The ranks of a case say how far the target goes along each named tree, so the rounds that a right draft needs are known:
every round brings one token that is the target's own, so a round more is an accepted node less. A row counts where
each of its rounds fed a tree of the depths that were named for it, and where no other row can be asked the same.
"""

from __future__ import annotations

from collections import Counter, defaultdict

from eqcheck.attribution.branches import seen_in_block
from eqcheck.attribution.parts import Part, once, parts
from eqcheck.attribution.proposals import Proposals
from eqcheck.contract.trees import cut, depths, walk
from eqcheck.decoding.harness import ranked
from eqcheck.decoding.run import Run


def branch_losses(run: Run) -> Counter[str]:
    """The losses of a run, as counts that `eqcheck.attribution.rounds` describes."""
    proposals = Proposals(run)
    rounds: dict[int, list[Part]] = defaultdict(list)
    for part in once(parts(run, proposals.right), proposals.begun):
        if part.last + 1 >= part.known:
            rounds[part.request].append(part)
    ranks = ranked(run.case, run.truth)
    found: Counter[str] = Counter()
    for row, of_row in rounds.items():
        # What fills up a prompt of one token beside longer ones may look like a tree; nobody had drafted it.
        filled = of_row[0].columns and not proposals.made_before(of_row[0].call.number)
        if filled or _shared(run, proposals, row):
            continue
        if all(_as_named(run, part, at) for at, part in enumerate(of_row)):
            found.update(_of_row(run, proposals, row, of_row, ranks[row]))
    return +found


def _of_row(run: Run, proposals: Proposals, row: int, rounds: list[Part], ranks: list[int]) -> Counter[str]:
    """The counts of one row; a round more is blamed on the first node that the target would have taken."""
    needed, ideal = len(run.truth.rows[row]), 0
    at = 0
    while at < needed:
        at += len(walk(run.case.nodes(row, ideal), ranks[at:])) + 1
        ideal += 1
    more, why = len(rounds) - ideal, "policy"
    for number, part in enumerate(rounds):
        known = part.known - len(run.case.prompts[row])
        if part.accepted < min(len(walk(run.case.nodes(row, number), ranks[known:])), needed - known):
            asked = proposals.proposed(row, part.last, part.call.number)
            why = "altered" if asked else "wrong-context"
            break
    return Counter(
        {"rounds": len(rounds), "ideal": ideal, "allowed": needed - ideal, why: max(0, more), "spared": max(0, -more)}
    )


def _as_named(run: Run, part: Part, number: int) -> bool:
    """Whether the row of a call holds a tree of the depths that are named for this round, as far as there is room."""
    nodes = run.case.nodes(part.request, number)
    start = len(run.case.prompts[part.request])
    named = cut(nodes, run.case.max_new_tokens - (part.known - start) - 1)
    call, row = part.call, part.call_row
    root = next((c for c, d in enumerate(call.digests[row].tolist()) if _is(run, part, int(d))), None)
    if root is None or not nodes:
        return False
    sees, alone = seen_in_block(call, row, set(range(root, call.tokens.shape[1])))
    fed = sorted(len(seen) for column, seen in sees.items() if root in seen and not alone[column])
    return fed == sorted(depths(named)[1:])


def _is(run: Run, part: Part, digest: int) -> bool:
    """Whether a digest is that of the newest token of the row before the call."""
    return digest == int(run.truth.digests[part.request][-1, part.known - 1])


def _shared(run: Run, proposals: Proposals, row: int) -> bool:
    """Whether another row can be asked the same as this one for a new token."""
    start = len(run.case.prompts[row])
    return any(len(proposals.right[int(digest)]) > 1 for digest in run.truth.digests[row][-1, start - 1 :])
