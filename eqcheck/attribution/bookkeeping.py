"""The bookkeeping fault that a wrong row shows, once every context is known to have been right."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from eqcheck.attribution.record import Write
from eqcheck.explanation.statements import Statement, state, together
from eqcheck.result.verdict import RowVerdict

if TYPE_CHECKING:
    from eqcheck.decoding.run import Run


Ending = Literal["own-eos", "prompt-eos", "another-row", "limit"]
"""A row may end too early at its own EOS, at an EOS of its prompt, at the end of another row, or at its limit."""


@dataclass(frozen=True)
class WrongToken:
    """The first wrong token of a row, and the queries of the target for it.

    It stands at ``index`` of the output, and a query at logical ``position`` had to predict it, up to call ``commit``.
    The ``right`` queries saw exactly the row, the ``wrong`` ones did not. Those of the wrong ones are ``blamed`` that
    answered the token; ``loosely``, where one was found by its token and its answer alone. ``drafted``: the draft
    proposed the token. ``repeated``: it is the one before it again.
    """

    verdict: RowVerdict
    index: int
    position: int
    commit: int = 0
    right: tuple[Write, ...] = ()
    wrong: tuple[Write, ...] = ()
    blamed: tuple[Write, ...] = ()
    loosely: bool = False
    drafted: bool = False
    repeated: bool = False

    @property
    def row(self) -> int:
        return self.verdict.row

    @property
    def ends(self) -> bool:
        """Return whether the row is right as far as it goes, and ends too early or too late."""
        return self.index in (len(self.verdict.observed), len(self.verdict.expected))

    @property
    def observed(self) -> int:
        """The token that was emitted."""
        return self.verdict.observed[self.index]


class Told(NamedTuple):
    """A fault of bookkeeping that a call shows: its kind, the statement on it, the call, and the basis of all this."""

    kind: str
    statement: Statement
    call: int
    basis: str


@dataclass(frozen=True)
class CommitKnowledge:
    """The facts that were known when a token was committed.

    drafted         the tokens that the draft proposed there
    verified        the tokens that the target was fed there
    after_rejected  what the target predicted behind rejected draft tokens of the row, there or in the calls around
    filled          what it predicted in the columns of filler
    nearby          all that it predicted for any row around that call
    queried         whether it was queried for this token in exactly the right context
    next_queried    the same for the token after this one
    exchanged       whether the draft was fed what the target had predicted there
    for_another     a request and logical position behind which the target answered the emitted token around then
    behind_pad      whether it answered the token in the column of a pad of the row
    beside          the tokens that it was fed behind this place in the first call that asked about it
    ending          of a row that ends there: what else there is to say
    """

    drafted: set[int]
    verified: set[int]
    after_rejected: set[int]
    filled: set[int]
    nearby: set[int]
    queried: bool
    next_queried: bool
    exchanged: bool
    for_another: tuple[int, int] | None
    behind_pad: bool
    ending: tuple[Statement, ...] = ()
    beside: frozenset[int] = frozenset()


class Diagnosis(NamedTuple):
    """A bookkeeping fault, the statement on it, and whether the origin of the wrong token is certain."""

    kind: str
    statement: Statement
    certain: bool = True


def diagnose(verdict: RowVerdict, index: int, run: Run, known: CommitKnowledge) -> Diagnosis:
    """The kind of fault of a wrong row, the statement on it, and whether the record proves it."""
    expected, observed = verdict.expected, verdict.observed
    pad = run.case.pad_token_id
    swapped = _swapped_with(verdict, run)
    if swapped is not None:
        return Diagnosis("row-swap", state("of-another-row", other_row=swapped))
    uncut = run.truth.uncut[verdict.row]
    ran_on = len(observed) > len(expected) and observed[: len(uncut)] == uncut[: len(observed)]
    ran_on = ran_on and (len(observed) <= len(uncut) or pad in known.nearby)
    end = ends(expected, observed, run.case.eos_token_ids, -1 if ran_on else pad)
    if end is not None:
        said = together(end[1], *known.ending) if known.ending else end[1]
        may = endings(said.facts) if end[0] == "premature-stop" else ()
        # One round shows what may have ended the row; which of it did, only many cases show.
        return Diagnosis(end[0], said._replace(facts=said.facts | ({"may_end_by": " ".join(may)} if may else {})))
    token = observed[index]
    if token in known.drafted:
        return _draft_token(token, index, observed, known)
    return _other_token(verdict, index, uncut[index:], pad, known)


def _draft_token(token: int, index: int, observed: tuple[int, ...], known: CommitKnowledge) -> Diagnosis:
    """The diagnosis of a token that the draft proposed there."""
    again = index > 0 and token == observed[index - 1]
    elsewhere = token in known.after_rejected | known.filled
    if token not in known.verified:
        return Diagnosis("unverified", state("models-exchanged" if known.exchanged else "unverified"), not elsewhere)
    if elsewhere:
        where = "rejected-or-behind" if token in known.after_rejected else "rejected-or-filler"
        return Diagnosis("wrong-correction", state(where), False)
    name = "rejected" if known.queried else "rejected-unqueried"
    said = state(f"{name}-again", before=index - 1) if again else state(name)
    return Diagnosis("over-accept", said, known.queried and not again)


def _other_token(verdict: RowVerdict, index: int, rest: tuple[int, ...], pad: int, known: CommitKnowledge) -> Diagnosis:
    """The diagnosis of a token that the draft did not propose there; the target emits ``rest`` from there on."""
    observed = verdict.observed
    token, again = observed[index], index > 0 and observed[index] == observed[index - 1]
    if token in known.after_rejected | known.filled:
        where = "behind" if token in known.after_rejected else "filler"
        said = state(f"{where}-or-again", before=index - 1) if again else state(where)
        return Diagnosis("wrong-correction", said, not again)
    if again:
        return Diagnosis("repeated-token", _of_another("twice", verdict.row, known, before=index - 1), known.queried)
    if token in rest[1:2] and observed[index + 1 : index + 2] == rest[:1]:
        return Diagnosis("wrong-correction", state("exchanged", index=index, behind=index + 1), known.queried)
    if token in rest[1:2] and known.next_queried:
        return Diagnosis("lost-token", state("one-lost", index=index), known.queried)
    for dropped in range(1, len(rest)):
        two = rest[dropped:][:2]  # one token alone may agree by chance
        if observed[index:][:2] == two and len(two) == 2:
            return Diagnosis("lost-token", state("lost", tokens=dropped), known.queried)
    if token == pad and token not in known.nearby and token not in verdict.expected:
        # With other ids the pad id is another: only what emits that, too, emits a pad.
        return Diagnosis("pad-in-output", state("pad", index=index), False)
    if known.behind_pad:
        return Diagnosis("wrong-correction", state("behind-pad"), known.queried)
    if token in known.beside and known.for_another is None:
        return Diagnosis("over-accept", state("refused-beside"), known.queried)
    return Diagnosis("wrong-correction", _of_another("", verdict.row, known), False)


def _of_another(prefix: str, row: int, known: CommitKnowledge, **facts: int) -> Statement:
    """The statement where the target answered the emitted token around then, but elsewhere or for another row."""
    if known.for_another is None:
        return state(prefix or "neither", **facts)
    request, position = known.for_another
    name = f"{prefix}-or-" if prefix else ""
    if request == row:
        return state(f"{name}elsewhere", position=position, **facts)
    return state(f"{name or 'elsewhere-'}of-another", position=position, other_row=request, **facts)


def ends(
    expected: tuple[int, ...], observed: tuple[int, ...], eos: tuple[int, ...], pad: int
) -> tuple[str, Statement] | None:
    """The kind of a row that is right as far as it goes but ends too early or too late; None for any other."""
    if len(observed) < len(expected) and expected[: len(observed)] == observed:
        if len(observed) == len(expected) - 1 and expected[-1] in eos:
            return "premature-stop", state("eos-missing")
        if not observed:
            return "premature-stop", state("nothing-emitted", expected_tokens=len(expected))
        return "premature-stop", state("ends-early", emitted=len(observed), expected_tokens=len(expected))
    if len(observed) > len(expected) and observed[: len(expected)] == expected:
        surplus = observed[len(expected) :]
        after_eos = bool(expected) and expected[-1] in eos
        if set(surplus) == {pad}:
            return "pad-in-output", state("pads-behind", pads=len(surplus))
        if after_eos:
            return "past-eos", state("goes-on", tokens=len(surplus))
        return "over-length", state("too-long", tokens=len(observed), limit=len(expected))
    return None


def endings(facts: Mapping[str, int | str]) -> tuple[Ending, ...]:
    """Return what may have ended a row that ends too early, from the facts on its round.

    >>> endings({"statement": "ends-early", "also": "next-answered eos-of-others limit-short", "short": 1})
    ('another-row', 'limit')
    """
    names = {str(facts.get("statement")), *str(facts.get("also", "")).split()}
    others = bool({"eos-of-others", "limit-of-others"} & names)
    may: list[tuple[Ending, bool]] = [
        ("own-eos", "eos-missing" in names and ("eos-answered" in names or not others)),
        ("prompt-eos", "eos-in-prompt" in names),
        ("another-row", others),
        ("limit", "limit-short" in names),
    ]
    return tuple(name for name, applies in may if applies)


def _swapped_with(verdict: RowVerdict, run: Run) -> int | None:
    """Another row whose truth this row emitted; for a single token only if all rows were merely exchanged."""
    assert run.outputs is not None
    exchanged = sorted(run.outputs) == sorted(run.truth.rows)
    if len(verdict.observed) < 2 and not exchanged:
        return None
    for other, truth in enumerate(run.truth.rows):
        if other != verdict.row and truth == verdict.observed:
            return other
    return None
