"""Which bookkeeping fault a wrong row shows, once every context is known to have been right."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from eqcheck.verdict import RowVerdict, many

if TYPE_CHECKING:
    from eqcheck.harness import Run


@dataclass(frozen=True)
class Known:
    """What was known when a token was committed.

    ``drafted`` are the tokens the draft proposed there, ``verified`` those that the target was fed there; ``astray``
    what the target predicted behind rejected draft tokens of the row, there or in the calls around, and ``filled`` what
    it predicted in the columns of filler; ``nearby`` all it
    predicted for any row around that call; ``asked``: it was asked for this token in exactly the right context, and
    ``next_asked`` for the one after, too. ``exchanged``: the draft was fed what the target had predicted there.
    ``for_another`` is a request and logical position behind which the target answered the emitted token around then;
    ``behind_pad``: it answered it in the column of a pad of the row.
    """

    drafted: set[int]
    verified: set[int]
    astray: set[int]
    filled: set[int]
    nearby: set[int]
    asked: bool
    next_asked: bool
    exchanged: bool
    for_another: tuple[int, int] | None
    behind_pad: bool


NEITHER = "the emitted token is neither the draft token nor the target's prediction there"


class Told(NamedTuple):
    """Which bookkeeping fault it is, in words, and whether it is certain where the wrong token comes from."""

    kind: str
    detail: str
    certain: bool = True


def diagnose(verdict: RowVerdict, index: int, run: Run, known: Known) -> Told:
    """The kind of a wrong row, a detail in words, and whether what was seen proves it."""
    expected, observed = verdict.expected, verdict.observed
    pad = run.case.pad_token_id
    swapped = _swapped_with(verdict, run)
    if swapped is not None:
        return Told("row-swap", f"the row holds exactly what row {swapped} should hold")
    uncut = run.truth.uncut[verdict.row]
    ran_on = len(observed) > len(expected) and observed[: len(uncut)] == uncut[: len(observed)]
    ran_on = ran_on and (len(observed) <= len(uncut) or pad in known.nearby)
    end = ends(expected, observed, run.case.eos_token_ids, -1 if ran_on else pad)
    if end is not None:
        return Told(*end)
    token, wanted = observed[index], uncut[index:]
    again = index > 0 and token == observed[index - 1]
    if token in known.drafted and token not in known.verified:
        said = "; the draft was fed the target's answer there instead, as if the two models were exchanged"
        detail = "the emitted token is the draft's proposal, and the target was never fed it to verify it"
        return Told("unverified", detail + (said if known.exchanged else ""), token not in known.astray | known.filled)
    if token in known.drafted and token in known.astray | known.filled:
        where = "predicted behind one" if token in known.astray else "answered in the column of filler"
        detail = f"the emitted token is the rejected draft token, and also what the target {where}"
        return Told("wrong-correction", detail, False)
    if token in known.drafted:
        asked = "that the target rejected" if known.asked else "though the target was not asked in the right context"
        also = f", and new token {index - 1} again" if again else ""
        return Told("over-accept", f"the emitted token is the draft token {asked}{also}", known.asked and not again)
    if token in known.astray | known.filled:
        where = (
            "predicted after a rejected draft token" if token in known.astray else "answered in the column of filler"
        )
        also = f"new token {index - 1} again, and also " if again else ""
        return Told("wrong-correction", f"the emitted token is {also}what the target {where}", not again)
    if again:
        detail = f"new token {index - 1} is emitted twice"
        if known.for_another is not None:
            request, position = known.for_another
            whose = "" if request == verdict.row else f" of row {request}"
            detail += f", or the target's answer behind position {position}{whose} is read in place of the right one"
        return Told("repeated-token", detail, known.asked)
    if token in wanted[1:2] and known.next_asked:
        detail = f"new token {index} is missing, and the one after it stands in its place"
        return Told("lost-token", detail, known.asked)
    for dropped in range(1, len(wanted)):
        after = wanted[dropped:][:2]  # one token alone may agree by chance
        if observed[index:][:2] == after and len(after) == 2:
            return Told("lost-token", f"{many(dropped, 'token')} missing, and the row goes on after that", known.asked)
    if token == pad and token not in known.nearby and token not in expected:
        return Told("pad-in-output", f"new token {index} is the pad id", known.asked)
    if known.behind_pad:
        return Told(
            "wrong-correction", "the emitted token is what the target answered in the column of a pad", known.asked
        )
    if known.for_another is not None:
        request, position = known.for_another
        whose = "" if request == verdict.row else f" of row {request}"
        detail = f"the emitted token is the target's answer behind position {position}{whose}"
        return Told("wrong-correction", detail, False)
    return Told("wrong-correction", NEITHER, False)


def ends(
    expected: tuple[int, ...], observed: tuple[int, ...], eos: tuple[int, ...], pad: int
) -> tuple[str, str] | None:
    """The kind of a row that is right as far as it goes but ends too early or too late; None for any other."""
    if len(observed) < len(expected) and expected[: len(observed)] == observed:
        only_eos = len(observed) == len(expected) - 1 and expected[-1] in eos
        return "premature-stop", "only the EOS that ends the row is missing" if only_eos else (
            f"{len(observed)} of {len(expected)} tokens were emitted, all of them right"
        )
    if len(observed) > len(expected) and observed[: len(expected)] == expected:
        surplus = observed[len(expected) :]
        after_eos = bool(expected) and expected[-1] in eos
        if set(surplus) == {pad}:
            return "pad-in-output", f"the row goes on with {many(len(surplus), 'pad')} after its end"
        if after_eos:
            return "past-eos", f"the row goes on with {many(len(surplus), 'token')} after its EOS"
        return "over-length", f"the row has {many(len(observed), 'token')} where the limit is {len(expected)}"
    return None


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
