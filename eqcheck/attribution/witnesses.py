"""The proof that the witnesses give together: when the cause that was read is asserted, and when it is not.

Reading names a cause from what a query saw. Whether it is asserted depends on three witnesses beside it:

tied         The record ties the wrong token to the cause. For a wrong context: the query that is blamed answered the
             emitted token. For bookkeeping: a query that saw exactly its row had answered rightly before the token was
             committed, and it was seen where the emitted token comes from; or the outputs alone show the fault.
repair       Right positions, mask or entries took the place of what the queries had (`eqcheck.attribution.repair`):
             ``confirms`` if that of the component that was read helps, ``contradicts`` if only that of others does,
             ``silent`` if none does. Reading and repair take the same queries for the same rows, so repair alone cannot
             confirm which row is concerned.
permutation  The case was decoded again with other ids. ``stable``: the same is read again.
             ``changes``: something else is, so what was read rests on a coincidence of ids. ``depends``: with other ids
             nothing is wrong; ``scores``: the same, and the scores are others with other ids, on which a decoder that
             compares probabilities depends. ``untried``: there was nothing to try.

A wrong context proves a fault of context, because in these models every difference in what is seen changes the answer;
that no repair helps proves nothing. A right context proves bookkeeping, because the target had said what to emit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from eqcheck.attribution.choices import recognised
from eqcheck.attribution.history import LET_GO
from eqcheck.attribution.reading import Reader
from eqcheck.attribution.repair import PLACE, repair
from eqcheck.attribution.telling import whose
from eqcheck.case.record import Case
from eqcheck.contract.decoders import Generate
from eqcheck.contract.kinds import KINDS
from eqcheck.decoding.harness import run as run_case
from eqcheck.decoding.run import Run
from eqcheck.explanation.records import Explanation, Opinion
from eqcheck.explanation.statements import state

# The rows: (is it a context that was read?, tied, what repair does, what permutation shows). A row that is not
# here is not asserted; `tests/test_witnesses.py` tries every combination.
_ANY = ("stable", "depends", "scores", "untried")
ASSERTED = frozenset(
    [("context", "tied", "confirms", shown) for shown in _ANY]
    + [("context", "tied", "silent", "stable"), ("context", "untied", "confirms", "stable")]
    + [("bookkeeping", "tied", bearing, shown) for bearing in ("silent", "contradicts") for shown in _ANY]
    + [("bookkeeping", "untied", "silent", shown) for shown in ("stable", "scores")]
)


# Variants that agree: of one alone the ids may coincide as those of the case did. And so many for each that differs,
# since a token is right by chance once in a vocabulary, whatever is wrong.
_Copy = Explanation | Literal["right", "crashed"]  # what is read of the case with other ids
_AGREEING, _FOR_ONE_THAT_DIFFERS = 2, 3


def second_opinion(
    generate: Generate,
    run: Run,
    explanation: Explanation,
    timeout: float | None = None,
    variants: Sequence[Case] = (),
) -> Explanation:
    """The explanation where the witnesses together prove it, else ``unattributed`` with the testimony of each.

    ``variants`` are the case with other ids. Crashes have no second opinion: there is no output to restore.
    """
    if explanation.component in ("crash", "options", "state") or explanation.token_index is None:
        return explanation
    if explanation.kind == "logprobs":  # all tokens are right: there is nothing to restore
        single = explanation.facts.get("statement") == "logprob"
        known = whose(generate, run, explanation, variants, timeout) if single else None
        return explanation if known is None else replace(explanation, **known._asdict())
    opinion = repair(generate, run, explanation, timeout)
    copies = [read_of(generate, case, timeout) for case in variants]
    shown, counts = permutation(explanation, copies)
    if shown == "changes" and explanation.kind == "wrong-correction":
        # Where the wrong token comes from may be a coincidence, and that it is no prediction need not be.
        plain = _without_source(explanation)
        others = [_without_source(one) if isinstance(one, Explanation) else one for one in copies]
        if permutation(plain, others)[0] == "stable":
            explanation, (shown, counts) = plain, permutation(plain, others)
    shown = "scores" if shown == "depends" and run.case.uneven else shown
    said = replace(explanation, repair=opinion, permuted=counts)
    if explanation.component != "unattributed" and asserted(explanation, opinion, shown):
        if explanation.facts.get("statement") == "neither":
            choice = recognised(generate, run, explanation, variants, timeout)
            said = said if choice is None else replace(said, **choice._asdict())
        return replace(said, repair_confirms=bearing(explanation, opinion) == "confirms")
    if explanation.component == "unattributed":
        detail = "; ".join(filter(None, (explanation.detail, str(opinion))))
    elif shown == "changes":
        detail = (
            f"the trace shows {explanation.fingerprint}, but copies of the case with other tokens show something else; "
            f"{opinion}"
        )
    else:
        detail = f"the trace shows {explanation.fingerprint}, but {opinion}"
    return replace(said, component="unattributed", kind="unattributed", detail=detail)


def asserted(explanation: Explanation, opinion: Opinion, shown: str) -> bool:
    """Return whether the witnesses prove the cause that was read; ``shown`` is what permutation shows."""
    what = "bookkeeping" if explanation.component == "bookkeeping" else "context"
    tied = "tied" if explanation.tied else "untied"
    return (what, tied, bearing(explanation, opinion), shown) in ASSERTED


def bearing(explanation: Explanation, opinion: Opinion) -> str:
    """The testimony of repair on the cause that was read: ``confirms``, ``contradicts`` or ``silent``.

    A rejected draft token that is seen, or a token that is seen twice, counts as the cache's, also where hiding it
    would do. Of a wrong context that no emitted token comes from, only a repair that restores the output says anything:
    its query may have been asked for another row.
    """
    elsewhere = explanation.component != "bookkeeping" and not explanation.tied
    sets = opinion.restores or (() if elsewhere else opinion.mends)
    if not sets:
        return "silent"
    named = {explanation.component, KINDS[explanation.kind].mended_by}
    named |= {PLACE} if "position" in named else set()
    return "confirms" if any(named & set(parts) for parts in sets) else "contradicts"


def permutation(explanation: Explanation, copies: Sequence[_Copy]) -> tuple[str, tuple[int, int, int]]:
    """The testimony of the case with other ids, and how many copies agree, differ, and have nothing wrong.

    A copy that differs is allowed for where three agree: with few ids in a vocabulary, a wrong token can be right by
    chance.
    """
    agree = differ = 0
    for other in copies:
        if not isinstance(other, Explanation):
            continue
        if alike(mechanism(other), mechanism(explanation)):
            agree += 1
        elif not _pad_instead(other, explanation):
            differ += 1
    passed = copies.count("right")
    return shown_by(agree, differ, passed), (agree, differ, passed)


def read_of(generate: Generate, case: Case, timeout: float | None) -> _Copy:
    """Decode a copy of the case with other ids, and read what is wrong."""
    done = run_case(generate, case, timeout)
    if done.outputs is None:
        return "crashed"
    return Reader(done).explain() or "right"


def _without_source(read: Explanation) -> Explanation:
    """A wrong token without a word on where it was predicted."""
    if read.kind != "wrong-correction":
        return read
    neutral = state("neither")
    return replace(read, detail=neutral.detail, clauses=(), facts=neutral.facts, tied=False)


def shown_by(agree: int, differ: int, passed: int) -> str:
    """The testimony of so many variants that agree, that differ, and that have nothing wrong."""
    if agree >= _AGREEING and agree >= _FOR_ONE_THAT_DIFFERS * differ:
        return "stable"
    if differ:
        return "changes"
    return "depends" if passed and not agree else "untried"


_OF_ANOTHER = "mask/of-another-row"
_TOLD_AS = {_OF_ANOTHER, "mask/token-hidden", "mask/pad-visible", "cache/stale-entry"}
Mechanism = tuple[str, frozenset[tuple[str, str]], object]


def mechanism(explanation: Explanation) -> Mechanism:
    """The part of a cause that stays when ids are renamed: what is wrong, and where a wrong token comes from.

    The row, the round and the query are not part of it, nor whose answer was read in place of the right one. With other
    ids drafts are accepted in other places, and then the same fault shows elsewhere first.
    """
    sources = ((one.kind, one.source) for one in explanation.deviations)
    wrong = frozenset((kind, "" if source == LET_GO else source) for kind, source in sources)
    told = {"wrong-correction": "statement", "wrong-token-fed": "also"}.get(explanation.kind)
    source = str(explanation.facts.get(told)) if told else None
    return explanation.fingerprint, wrong, source and source.removesuffix("-of-another")


def alike(first: Mechanism, second: Mechanism) -> bool:
    """Return whether two mechanisms are one: the deviations of the first may be a part of those of the second, or the
    reverse.

    With other ids a draft that is seen by mistake may be an accepted one; then it is a token like the others. A mask of
    another row shows or hides what that row has, and with few slots it is told as the kind of one of them.
    """
    if _OF_ANOTHER in (first[0], second[0]) and {first[0], second[0]} <= _TOLD_AS:
        return True
    parts = first[1] <= second[1] or second[1] <= first[1]
    return (first[0], first[2]) == (second[0], second[2]) and parts and bool(first[1]) == bool(second[1])


def _pad_instead(variant: Explanation, explanation: Explanation) -> bool:
    """Return whether with other ids the wrong token is the pad id, and was not:
    so it is where tokens are as good as drawn.
    """
    pads = [one.given is not None and one.observed == one.given.pad_token_id for one in (variant, explanation)]
    return pads == [True, False]
