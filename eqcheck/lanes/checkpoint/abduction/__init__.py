"""Attribution from outside: the one edit of what was seen or emitted that yields an engine's wrong tokens.

program      what every query saw, as data; one forward answers for all calls of an engine
evidence     where the model alone disagrees with the output, what was drafted, which rounds there were
engines      who writes which entry where in a batch engine, and what is seen, under one edit
recomputing  the same for engines without caches
contexts     the edits of what is seen; commits, outputs, options: those of what is done with predictions
ranking      what each explains, and by how small a chance
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from math import comb
from typing import Any

from eqcheck.lanes.checkpoint.abduction.commits import RULES, follow
from eqcheck.lanes.checkpoint.abduction.contexts import systematic
from eqcheck.lanes.checkpoint.abduction.evidence import Evidence
from eqcheck.lanes.checkpoint.abduction.options import anothers_end, ignored
from eqcheck.lanes.checkpoint.abduction.outputs import emitted, ended
from eqcheck.lanes.checkpoint.abduction.ranking import (
    Finding,
    Hypothesis,
    finding,
    fingerprint,
    row_by_row,
    together,
    tried,
)
from eqcheck.lanes.checkpoint.case import EngineCase

COMPLETE, PARTIAL = 0.01, 1e-4  # the greatest chance with which an explanation of all tokens, or of some, is given
ROW_BY_ROW, BATCH = 8, 16  # wrong rows, and rows, up to which all is tried that may be seen; of more it takes minutes


@dataclass(frozen=True)
class Abduced:
    """What explains an engine's wrong tokens.

    ``token_index`` is the first wrong token of ``row``, ``edit`` what was changed, in words. ``surprising`` counts the
    tokens that the model alone does not emit after what is there before them, ``explained`` those of them that are
    predicted under the edit, with no token before them predicted wrongly (both 0 where rows only end wrongly).
    ``chance`` is the probability that any of the edits tried does that by accident, see `Evidence.chance`. ``rivals``
    are other fingerprints that explain as much: with one of another component, the component is open. ``also`` are
    edits of the same component that are sure enough by themselves: several things may be wrong in one case.
    """

    component: str
    kind: str
    row: int
    token_index: int
    edit: str
    explained: int
    surprising: int
    chance: float
    rivals: tuple[str, ...] = ()
    also: tuple[Abduced, ...] = ()


def abduce(
    target: Any, draft: Any, case: EngineCase, outputs: Sequence[Sequence[int]], *, rows: Sequence[int] | None = None
) -> Abduced | None:
    """Explain the wrong tokens of ``outputs``, or say nothing: for right outputs, and where no edit is sure enough.

    ``rows`` are those to explain; the tokens of others are taken for what they are.
    """
    evidence = Evidence(target, draft, case, outputs, rows)
    first = evidence.first
    if first is None:
        return _ended(evidence)
    found, count = everywhere(evidence)
    best = _best(evidence, found, count)
    if best is None or not any(one.complete for one in found if one.explained):
        if evidence.least_chance * count > COMPLETE or len({row for row, _ in evidence.surprising}) > ROW_BY_ROW:
            return best
        alone, more = row_by_row(evidence)
        best = _best(evidence, found + alone, count + more) or best
    return best


def fits(target: Any, draft: Any, case: EngineCase, outputs: Sequence[Sequence[int]]) -> set[str]:
    """All edits that explain every wrong token, in words, however likely by chance."""
    evidence = Evidence(target, draft, case, outputs)
    if evidence.first is None:
        end = _ended(evidence)
        return {end.edit} if end else set()
    found = everywhere(evidence)[0]
    return {one.hypothesis.words for one in found if one.complete and one.explained}


Decoded = Sequence[tuple[EngineCase, Sequence[Sequence[int]]]]


def abduce_options(target: Any, draft: Any, decoded: Decoded) -> Abduced | None:
    """The one wrong use of a penalty or minimum that explains all wrong tokens of several cases, the first one wrong.

    For cases that are right once such an option is at its default: nothing else is tried. A held back EOS makes one
    wrong token, and that the second best, so that only several cases together show more than chance. Cases that come
    out right count against every use that would make them wrong.
    """
    evidences = [Evidence(target, draft, case, outputs) for case, outputs in decoded]
    misuses = [(evidence, list(ignored(evidence))) for evidence in evidences]
    return _pooled([(evidence, found, len(found)) for evidence, found in misuses if found])


def abduce_alike(target: Any, draft: Any, decoded: Decoded) -> Abduced | None:
    """The one edit that explains all wrong tokens of the first case and of others like it, all of them wrong.

    For a case so small that chance may explain it. Of an edit that happens now and then it is enough that it explains
    some of the others, as far as that is no chance.
    """
    return _pooled(
        [(one, *everywhere(one)) for one in (Evidence(target, draft, case, outputs) for case, outputs in decoded)]
    )


def _pooled(tries: Sequence[tuple[Evidence, list[Finding], int]]) -> Abduced | None:
    """The best of what explains the first case, by what it explains of all cases."""
    common: dict[Hypothesis, list[Finding]] = {}
    for number, (evidence, found, _) in enumerate(tries):
        here = {
            one.hypothesis: one
            for one in found
            if (one.complete or (number and _once(one))) and (one.explained or evidence.first is None)
        }
        if not number:
            common = {key: [] for key in here}
        common = {
            key: [*before, here[key]] if key in here else before
            for key, before in common.items()
            if key in here or _once(before[0])
        }
    pooled = {
        key: replace(
            one := reduce(together, found),
            chance=one.chance * comb(len(tries), len(found)),
            complete=len(found) == len(tries) and all(some.complete for some in found),
        )
        for key, found in common.items()
    }
    best = _best(tries[0][0], list(pooled.values()), max((count for _, _, count in tries), default=0))
    if best is None:
        return None
    key = min((key for key in pooled if key.words == best.edit), key=lambda key: pooled[key].chance)
    surprising = sum(len(evidence.surprising) for evidence, _, _ in tries)
    return replace(best, explained=sum(len(found.explained) for found in common[key]), surprising=surprising)


def _once(found: Finding) -> bool:
    return getattr(found.hypothesis, "once", False)


def _ended(evidence: Evidence) -> Abduced | None:
    """Rows whose tokens are right, and that end too early or too late."""
    end = ended(evidence)
    if end is None:
        return None
    component, kind, row, index, words = end
    other = anothers_end(evidence)
    if other is not None:
        component, kind, words = "options", "ignored-option", f"{words}: rows end as row {other} should"
    return Abduced(component, kind, row, index, words, 0, 0, 0.0)


def everywhere(evidence: Evidence) -> tuple[list[Finding], int]:
    """What the edits explain that an engine makes everywhere, and how many were tried."""
    rows = len(evidence.texts)
    found = [
        finding(evidence, replace(rule, least=least, most=rows - most), follow(evidence, rule, least, most))
        for rule in RULES
        for most in (range(rows, min(1, rows - 1), -1) if rows <= BATCH else (rows,))
        for least in (False, True)
    ]
    found += [*emitted(evidence), *ignored(evidence)]
    contexts = list(systematic(evidence)) if rows <= BATCH else []
    count = len(found) + len(contexts)
    if evidence.first is not None:
        found += tried(evidence, contexts, evidence.first)
    return found, count


def _best(evidence: Evidence, found: list[Finding], count: int) -> Abduced | None:
    found = [one for one in found if one.explained]
    if not found:
        return None
    best = min(found, key=lambda one: (not one.complete, one.chance))
    said = _said(evidence, best, count)
    if said.chance > (COMPLETE if best.complete else PARTIAL):
        return None
    rivals = {fingerprint(o.hypothesis) for o in found if _rivals(o, best, count)}
    rivals |= set(getattr(best.hypothesis, "rivals", ()))
    also = {
        o.hypothesis.words: _said(evidence, o, count)
        for o in sorted(found, key=lambda one: -one.chance)
        if o.chance * count <= PARTIAL and o.hypothesis.component == best.hypothesis.component
    }
    also.pop(best.hypothesis.words, None)
    return replace(said, rivals=tuple(sorted(rivals - {fingerprint(best.hypothesis)})), also=tuple(also.values()))


def _said(evidence: Evidence, found: Finding, count: int) -> Abduced:
    row, index = min(found.explained, key=lambda at: (at[1], at[0]))
    chance = min(1.0, found.chance * count)
    component, kind, words = found.hypothesis.component, found.hypothesis.kind, found.hypothesis.words
    return Abduced(component, kind, row, index, words, len(found.explained), len(evidence.surprising), chance)


def _rivals(other: Finding, best: Finding, count: int) -> bool:
    """Whether another finding leaves the best one in doubt: of two partial ones each that is sure enough does."""
    return other.complete or (not best.complete and other.chance * count <= PARTIAL)
