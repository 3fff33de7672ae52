"""Attribution from outside: the one edit of what was seen or emitted that yields an engine's wrong tokens.

evidence.py       where the model alone disagrees with the output, what was drafted, which rounds there were; an edit in
                  particular, how much it explains, and by how small a chance
queries.py        what every query saw, as data; one forward answers for all calls of an engine
simulation.py     who writes which entry where in a batch engine, and what is seen, in one context
context_edits.py  every edit of what is seen, of windows and of states, and what it changes of that
placements.py     in which row and round an edit is tried
output_edits.py   edits of what is done with predictions, of what is returned, and of options
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, reduce
from itertools import islice
from math import comb

from eqcheck.core.explanation.records import Search
from eqcheck.engines.abduction import output_edits
from eqcheck.engines.abduction.context_edits import CONTEXTS
from eqcheck.engines.abduction.evidence import Edit, Evidence, Explained, explained, predictions
from eqcheck.engines.abduction.output_edits import RULES, emitted, follow, misused, unverified_ends, wrong_end
from eqcheck.engines.abduction.placements import programs, single, systematic
from eqcheck.engines.abduction.queries import answers
from eqcheck.engines.abduction.simulation import EditedContext

__all__ = ["EDITS", "Abduced", "Edit", "Evidence", "abduce", "abduce_alike", "abduce_options", "fits"]

EDITS: dict[str, Edit] = {edit.id: edit for edit in (*CONTEXTS, *(rule.edit for rule in RULES))} | output_edits.EDITS
# The greatest chance with which an explanation of all wrong tokens, or of some, is given. Of some it has to be less:
# what goes on wrongly afterwards is not explained, so the edit may only resemble the fault.
COMPLETE, PARTIAL = 0.01, 1e-4
LEAST_ROWS = 0.5  # of the wrong rows, in which an explanation of some tokens explains the first wrong one
# Wrong rows, and rows, up to which all is tried that may be seen. With more it takes minutes.
ROW_BY_ROW, BATCH = 8, 16
# Pairs of a query and a token that it may see, in all contexts of a search: more take minutes. Long rows have many.
MOST_PAIRS = 150_000_000
_MINIMUM = ("option-ignored:min-new-tokens", "option-over-prompt:min-new-tokens")


@dataclass(frozen=True)
class Abduced:
    """The explanation of an engine's wrong tokens, and what that rests on.

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
        """Return whether another component explains as much."""
        return any(rival.partition("/")[0] != self.component for rival in self.search.rivals)

    def of_edit(self, id: str) -> bool:
        """Return whether this edit is the explanation, or one of those that are sure beside it."""
        return id in {one.search.edit for one in (self, *self.also)}


@lru_cache(maxsize=48)  # cases wait, and are asked about again
def abduce(evidence: Evidence) -> Abduced | None:
    """Explain the wrong tokens of a case, or say nothing: for right outputs, and where no edit is sure enough.

    The rows judged are explained; the tokens of others are taken for what they are.
    """
    if evidence.first is None:
        return _ended(evidence)
    findings, count = everywhere(evidence)
    findings = [finding for finding in findings if finding.complete or _of_most_rows(evidence, finding)]
    best = _best(evidence, findings, count)
    if best is None or not any(finding.complete for finding in findings if finding.explained):
        if evidence.least_chance * count > COMPLETE or len(evidence.wrong_rows) > ROW_BY_ROW:
            return best
        # Last, for it takes longest: skipped where no edit could be sure enough, and above 8 wrong rows.
        alone, more = row_by_row(evidence)
        best = _best(evidence, [*findings, *alone], count + more) or best
    return best


def _of_most_rows(evidence: Evidence, finding: Explained) -> bool:
    begun = {row for row, index in finding.explained if evidence.first_wrong.get(row) == index}
    return len(begun) >= len(evidence.wrong_rows) * LEAST_ROWS


def fits(evidence: Evidence, ids: Collection[str], partly: bool = False) -> set[str]:
    """Return those edits of ``ids`` that explain every wrong token, however likely by chance.

    With ``partly`` also an edit that explains some of them, if that is surely no chance, and no edit of another kind
    that was tried explains all.
    """
    if evidence.first is None:
        end = _ended(evidence)
        return {end.search.edit} if end else set()
    contexts = {edit.id for edit in CONTEXTS} & {id.partition(":")[0] for id in ids}  # they take most of the time
    outputs = of_outputs(evidence)
    findings, count = everywhere(evidence) if contexts else (outputs, len(outputs))
    findings = [finding for finding in findings if finding.explained]
    whole = {finding.hypothesis.edit.fingerprint for finding in findings if finding.complete}

    def fit(finding: Explained) -> bool:
        alone = whole <= {finding.hypothesis.edit.fingerprint}
        sure = finding.chance * count <= PARTIAL**2  # contexts may not have been tried
        return finding.complete or (partly and alone and sure and _of_most_rows(evidence, finding))

    return {finding.hypothesis.id for finding in findings if fit(finding)} & {*ids}


def abduce_options(evidences: Sequence[Evidence]) -> Abduced | None:
    """The one wrong use of a penalty or minimum that explains all wrong tokens of several cases, the first one wrong.

    For cases that are right once such an option is at its default: nothing else is tried. A held back EOS makes one
    wrong token, and that the second best, so that only several cases together show more than chance. Cases that come
    out right count against every use that would make them wrong.
    """
    misuses = [(evidence, list(misused(evidence))) for evidence in evidences]
    cause = _pooled([(evidence, findings, len(findings)) for evidence, findings in misuses if findings])
    if cause and set(_MINIMUM) <= {cause.search.edit, *(one.search.edit for one in cause.also)}:
        edit = EDITS["forbidding-option-ignored"]  # behind long prompts both say the same
        return replace(cause, search=replace(cause.search, edit=edit.id, words=edit.words))
    return cause


def abduce_alike(evidences: Sequence[Evidence]) -> Abduced | None:
    """The one edit that explains all wrong tokens of the first case and of others like it, all of them wrong.

    For a case so small that chance may explain it. Of an edit that happens now and then it is enough that it explains
    some of the others, as far as that is no chance.
    """
    first, *others = evidences
    findings, count = everywhere(first)
    # In the others only what explains the first is looked at.
    kept = [finding.hypothesis for finding in findings if finding.complete and finding.explained]
    contexts = [hypothesis for hypothesis in kept if isinstance(hypothesis, EditedContext)]
    tries = [(first, findings, count)]
    for other in others:
        seen = tried(other, contexts, other.first) if other.first is not None else []
        tries.append((other, [*of_outputs(other), *seen], count))
    return _pooled(tries)


def _pooled(tries: Sequence[tuple[Evidence, list[Explained], int]]) -> Abduced | None:
    """The best of what explains the first case, by what it explains of all cases."""
    if not tries:
        return None
    by_case = [
        {
            one.hypothesis: one
            for one in findings
            if (one.complete or (number and one.hypothesis.once)) and (one.explained or evidence.first is None)
        }
        for number, (evidence, findings, _) in enumerate(tries)
    ]
    shared = {key: [here[key] for here in by_case if key in here] for key in by_case[0]}
    shared = {key: findings for key, findings in shared.items() if key.once or len(findings) == len(tries)}
    # An edit that happens once may explain any of the cases, so each of them counts as one more choice.
    pooled = {
        key: replace(
            reduce(Explained.beside, findings).times(comb(len(tries), len(findings))),
            complete=len(findings) == len(tries) and all(finding.complete for finding in findings),
        )
        for key, findings in shared.items()
    }
    best = _best(tries[0][0], list(pooled.values()), max(count for _, _, count in tries))
    if best is None:
        return None
    key = min((key for key in pooled if key.id == best.search.edit), key=lambda key: pooled[key].chance)
    evidences = [evidence for evidence, _, _ in tries]
    search = replace(
        best.search,
        explained=sum(len(finding.explained) for finding in shared[key]),
        surprising=sum(len(evidence.surprising) for evidence in evidences),
        cases=len(tries),
        wrong_cases=sum(evidence.first is not None or wrong_end(evidence) is not None for evidence in evidences),
        of="cases like this one" if len(tries) > 1 else "this case",
    )
    return replace(best, search=search)


def _ended(evidence: Evidence) -> Abduced | None:
    """Rows whose tokens are right, and that end too early or too late."""
    end = wrong_end(evidence)
    if end is None:
        return None
    hypothesis, row, index = end
    edit = hypothesis.edit
    return Abduced(edit.component, edit.kind, row, index, Search(hypothesis.id, hypothesis.words))


@lru_cache(maxsize=32)
def of_outputs(evidence: Evidence) -> list[Explained]:
    """The findings of edits of predictions, of outputs and of options."""
    rows = len(evidence.texts)
    rules = [
        replace(rule, least=least, wait=wait)
        for rule in RULES
        for wait in (range(max(1, rows - 1)) if rows <= BATCH else (0,))
        for least in (False, True)
    ]
    rules += unverified_ends(evidence.case)
    findings = [explained(evidence, rule, follow(evidence, rule)) for rule in rules]
    return [*findings, *emitted(evidence), *misused(evidence)]


@lru_cache(maxsize=32)
def everywhere(evidence: Evidence) -> tuple[list[Explained], int]:
    """The findings of edits that an engine makes everywhere, and how many were tried."""
    findings = of_outputs(evidence)
    contexts = _few(evidence, systematic(evidence)) if len(evidence.texts) <= BATCH else []
    if not contexts and len(evidence.texts) <= BATCH:  # in long rows those that happen after any round, if any at all
        contexts = _few(evidence, (one for one in systematic(evidence) if not one.rejected))
    seen = tried(evidence, contexts, evidence.first) if evidence.first is not None else []
    return [*findings, *seen], len(findings) + len(contexts)


def _few(evidence: Evidence, contexts: Iterator[EditedContext]) -> list[EditedContext]:
    """The contexts, or none where it takes too long to try them all: a rival would not be seen."""
    most = MOST_PAIRS // sum(len(text) ** 2 for text in evidence.texts)
    few = list(islice(contexts, most + 1))
    return few if len(few) <= most else []


def tried(
    evidence: Evidence, contexts: Sequence[EditedContext], first: tuple[int, int], rows: Sequence[int] | None = None
) -> list[Explained]:
    """The findings of contexts; only a context that yields the surprising token ``first`` is followed to the end."""
    row, index = first
    at = len(evidence.prompts[row]) + index
    screened = []
    owners = []
    for number, context in enumerate(contexts):
        rounds = evidence.schedules[context.schedule]
        final = next(n for n, turns in enumerate(rounds) for t in turns if t.row == row and t.start <= at < t.end)
        for program in programs(evidence, context, final, row):
            if first in program.queries:
                screened.append(program.needed({first}))
                owners.append(number)
    predicted: dict[int, int] = {}
    for number, answered in zip(owners, answers(evidence.target, screened), strict=True):
        predicted[number] = predictions(evidence, [answered])[first]
    token = evidence.outputs[row][index]
    return [_followed(evidence, contexts[number], rows) for number, one in predicted.items() if one == token]


def _followed(evidence: Evidence, context: EditedContext, rows: Sequence[int] | None) -> Explained:
    whole = programs(evidence, context, len(evidence.schedules[context.schedule]))
    needed = [program.needed(set(program.queries)) for program in whole]
    return explained(evidence, context, predictions(evidence, answers(evidence.target, needed)), rows)


def row_by_row(evidence: Evidence) -> tuple[list[Explained], int]:
    """Findings of edits that happen to single rows: of every kind the likeliest in each wrong row, taken together.

    Rows are taken in the order in which they go wrong, as long as some kind that explains all before explains the next.
    """
    known: dict[str, Explained] = {}
    count = 0
    for number, row in enumerate(sorted(evidence.wrong_rows, key=evidence.first_wrong.__getitem__)):
        index = evidence.first_wrong[row]
        contexts = _few(evidence, single(evidence, row, index))
        # Only kinds that explain every row so far are tried in the next one: one cause has to explain all of them.
        contexts = [one for one in contexts if not number or one.edit.fingerprint in known]
        count += len(contexts)
        choices = len(contexts) if number else 1  # the caller counts once
        here = _likeliest(finding.times(choices) for finding in tried(evidence, contexts, (row, index), [row]))
        if not here:
            return [replace(finding, complete=False) for finding in known.values()], count
        known = {kind: known[kind].beside(finding) if kind in known else finding for kind, finding in here.items()}
    return list(known.values()), count


def _likeliest(findings: Iterator[Explained]) -> dict[str, Explained]:
    """The likeliest of the complete findings of each kind, by fingerprint."""
    likeliest: dict[str, Explained] = {}
    for finding in findings:
        kind = finding.hypothesis.edit.fingerprint
        if finding.complete and (kind not in likeliest or finding.chance < likeliest[kind].chance):
            likeliest[kind] = finding
    return likeliest


def _best(evidence: Evidence, findings: list[Explained], count: int) -> Abduced | None:
    findings = [finding for finding in findings if finding.explained]
    if not findings:
        return None
    best = min(findings, key=lambda finding: (not finding.complete, finding.chance))
    abduced = _abduced(evidence, best, count)
    if abduced.search.chance > (COMPLETE if best.complete else PARTIAL):
        return None
    edit = best.hypothesis.edit

    def sure(finding: Explained) -> bool:
        return finding.chance * count <= PARTIAL

    # Two partial findings that are both sure enough leave each other in doubt.
    rivals = {f.hypothesis.edit.fingerprint for f in findings if f.complete or (not best.complete and sure(f))}
    rivals = (rivals | set(edit.rivals)) - {edit.fingerprint}
    also = {
        finding.hypothesis.id: _abduced(evidence, finding, count)
        for finding in sorted(findings, key=lambda finding: -finding.chance)
        if sure(finding) and finding.hypothesis.edit.component == edit.component and not finding.hypothesis.loose
    }
    also.pop(best.hypothesis.id, None)
    return replace(abduced, search=replace(abduced.search, rivals=tuple(sorted(rivals))), also=tuple(also.values()))


def _abduced(evidence: Evidence, finding: Explained, count: int) -> Abduced:
    row, index = min(finding.explained, key=lambda at: (at[1], at[0]))
    hypothesis, chance = finding.hypothesis, min(1.0, finding.chance * count)
    search = Search(hypothesis.id, hypothesis.words, len(finding.explained), len(evidence.surprising), chance, count)
    return Abduced(hypothesis.edit.component, hypothesis.edit.kind, row, index, search)
