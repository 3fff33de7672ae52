"""Attribution from outside: the one edit of what was seen or emitted that yields an engine's wrong tokens.

edits        every edit by id: which kind of fault it would be, and in which words
program      what every query saw, as data; one forward answers for all calls of an engine
evidence     where the model alone disagrees with the output, what was drafted, which rounds there were
simulation   who writes which entry where in a batch engine, and what is seen; changes: what each edit changes of that
recomputing  the same for engines without caches
contexts     the hypotheses about what is seen; commits, outputs, options: those about what is done with predictions
ranking      what each explains, and by how small a chance
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from math import comb
from typing import Any

from eqcheck.abduction.commits import RULES, follow
from eqcheck.abduction.contexts import systematic
from eqcheck.abduction.edits import EDITS, Edit, Hypothesis
from eqcheck.abduction.evidence import Evidence
from eqcheck.abduction.options import anothers_end, ignored
from eqcheck.abduction.outputs import emitted, ended
from eqcheck.abduction.ranking import Explained, finding, row_by_row, together, tried
from eqcheck.case.engine import EngineCase
from eqcheck.explanation.records import Search

__all__ = ["EDITS", "Abduced", "Edit", "abduce", "abduce_alike", "abduce_options", "fits"]

# The greatest chance with which an explanation of all wrong tokens, or of some, is given. Of some it has to be less:
# what goes on wrongly afterwards is not explained, so the edit may only resemble the fault.
COMPLETE, PARTIAL = 0.01, 1e-4
# Wrong rows, and rows, up to which all is tried that may be seen. With more it takes minutes.
ROW_BY_ROW, BATCH = 8, 16


@dataclass(frozen=True)
class Abduced:
    """What explains an engine's wrong tokens, and what that rests on.

    ``token_index`` is the first of the explained tokens, in ``row``. A token is wrong (``search.surprising``) where the
    model alone emits something else after what is there before it. It is explained where it is predicted under the edit
    and no token before it is predicted wrongly. With a rival of another component the component is
    open. ``also`` are edits of the same component that are sure enough by themselves: several things may be wrong in
    one case.
    """

    component: str
    kind: str
    row: int
    token_index: int
    search: Search
    also: tuple[Abduced, ...] = ()

    @property
    def open(self) -> bool:
        """Whether another component explains as much."""
        return any(rival.partition("/")[0] != self.component for rival in self.search.rivals)


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
    """The ids of all edits that explain every wrong token, however likely by chance."""
    evidence = Evidence(target, draft, case, outputs)
    if evidence.first is None:
        end = _ended(evidence)
        return {end.search.edit} if end else set()
    found = everywhere(evidence)[0]
    return {one.hypothesis.id for one in found if one.complete and one.explained}


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


def _pooled(tries: Sequence[tuple[Evidence, list[Explained], int]]) -> Abduced | None:
    """The best of what explains the first case, by what it explains of all cases."""
    shared: dict[Hypothesis, list[Explained]] = {}
    for number, (evidence, found, _) in enumerate(tries):
        here = {
            one.hypothesis: one
            for one in found
            if (one.complete or (number and one.hypothesis.once)) and (one.explained or evidence.first is None)
        }
        if not number:
            shared = {key: [] for key in here}
        shared = {
            key: [*before, here[key]] if key in here else before
            for key, before in shared.items()
            if key in here or key.once
        }
    # Which of the cases an edit that happens once explains was not known before: so many choices there were of them.
    pooled = {
        key: replace(
            one := reduce(together, found),
            chance=one.chance * comb(len(tries), len(found)),
            complete=len(found) == len(tries) and all(some.complete for some in found),
        )
        for key, found in shared.items()
    }
    best = _best(tries[0][0], list(pooled.values()), max((count for _, _, count in tries), default=0))
    if best is None:
        return None
    key = min((key for key in pooled if key.id == best.search.edit), key=lambda key: pooled[key].chance)
    evidences = [evidence for evidence, _, _ in tries]
    search = replace(
        best.search,
        explained=sum(len(found.explained) for found in shared[key]),
        surprising=sum(len(evidence.surprising) for evidence in evidences),
        cases=len(tries),
        wrong_cases=sum(evidence.first is not None or ended(evidence) is not None for evidence in evidences),
        of="cases like this one" if len(tries) > 1 else "this case",
    )
    return replace(best, search=search)


def _ended(evidence: Evidence) -> Abduced | None:
    """Rows whose tokens are right, and that end too early or too late."""
    end = ended(evidence)
    if end is None:
        return None
    found, row, index = end
    other = anothers_end(evidence)
    if other is not None:
        found = Hypothesis(edit=EDITS["end-of-another"], parameters=(("row", str(other)),))
    return Abduced(found.edit.component, found.edit.kind, row, index, Search(found.id, found.words))


def everywhere(evidence: Evidence) -> tuple[list[Explained], int]:
    """What the edits explain that an engine makes everywhere, and how many were tried."""
    rows = len(evidence.texts)
    rules = [
        replace(rule, least=least, wait=wait)
        for rule in RULES
        for wait in (range(max(1, rows - 1)) if rows <= BATCH else (0,))
        for least in (False, True)
    ]
    found = [finding(evidence, rule, follow(evidence, rule)) for rule in rules]
    found += [*emitted(evidence), *ignored(evidence)]
    contexts = list(systematic()) if rows <= BATCH else []
    count = len(found) + len(contexts)
    if evidence.first is not None:
        found += tried(evidence, contexts, evidence.first)
    return found, count


def _best(evidence: Evidence, found: list[Explained], count: int) -> Abduced | None:
    found = [one for one in found if one.explained]
    if not found:
        return None
    best = min(found, key=lambda one: (not one.complete, one.chance))
    abduced = _abduced(evidence, best, count)
    if abduced.search.chance > (COMPLETE if best.complete else PARTIAL):
        return None
    named = best.hypothesis.edit
    rivals = {o.hypothesis.fingerprint for o in found if _rivals(o, best, count)} | set(named.rivals)
    rivals.discard(best.hypothesis.fingerprint)
    also = {
        o.hypothesis.id: _abduced(evidence, o, count)
        for o in sorted(found, key=lambda one: -one.chance)
        if o.chance * count <= PARTIAL and o.hypothesis.edit.component == named.component
    }
    also.pop(best.hypothesis.id, None)
    return replace(abduced, search=replace(abduced.search, rivals=tuple(sorted(rivals))), also=tuple(also.values()))


def _abduced(evidence: Evidence, found: Explained, count: int) -> Abduced:
    row, index = min(found.explained, key=lambda at: (at[1], at[0]))
    abduced, chance = found.hypothesis, min(1.0, found.chance * count)
    search = Search(abduced.id, abduced.words, len(found.explained), len(evidence.surprising), chance, count)
    return Abduced(abduced.edit.component, abduced.edit.kind, row, index, search)


def _rivals(other: Explained, best: Explained, count: int) -> bool:
    """Whether another finding leaves the best one in doubt: of two partial ones each that is sure enough does."""
    return other.complete or (not best.complete and other.chance * count <= PARTIAL)
