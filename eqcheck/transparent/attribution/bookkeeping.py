"""The bookkeeping fault that a wrong row shows, once every context is known to have been right."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from eqcheck.contract.completion import Completion
from eqcheck.contract.decoders import RowOptions
from eqcheck.contract.endings import EARLY, RowEnd, ended_by
from eqcheck.core.explanation.records import Explanation, Given
from eqcheck.core.explanation.statements import Statement, WholeRow, state, together, whole_row
from eqcheck.core.result.outcome import RowVerdict, common_start
from eqcheck.transparent.attribution.writes import Write
from eqcheck.transparent.decoding import Run
from eqcheck.transparent.truth.continuation import Logprobs, logprobs

if TYPE_CHECKING:
    from eqcheck.transparent.decoding import Run


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
        may = endings(said.facts) if end[0] == EARLY else ()
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
    # Answers that were seen behind a rejected draft or in filler come first, since the trace names their place. A
    # repeated, an exchanged or a lost token is read from the row alone; only then follow pads, and what is left.
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
    end = RowEnd(len(observed), len(expected), ended_by(expected, eos))
    if not end.kind or expected[: end.first] != observed[: end.first]:
        return None
    if set(observed[end.due :]) == {pad}:
        return "pad-in-output", state("pads-behind", pads=end.surplus)
    return end.kind, _wrong_end(end)


def _wrong_end(end: RowEnd) -> Statement:
    if not end.early:
        if end.by == "eos":
            return state("goes-on", tokens=end.surplus)
        return state("too-long", tokens=end.length, limit=end.due)
    if end.by == "eos" and end.length == end.due - 1:
        return state("eos-missing")
    if not end.length:
        return state("nothing-emitted", expected_tokens=end.due)
    return state("ends-early", emitted=end.length, expected_tokens=end.due)


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


# Recognise rows returned whole, as ``generate()`` gives them: the prompt, perhaps padded, then the new tokens.

Ids = tuple[int, ...]


class _Whole(NamedTuple):
    """The make-up of a whole row: pads, the prompt, pads, the row's tokens, and ``behind`` them pads again."""

    before: int
    between: int
    behind: int
    tokens: int


def prompt_returned(
    prompts: Sequence[Ids], rows: Sequence[RowVerdict], limits: Sequence[int], pad: int | None, eos: Ids = ()
) -> tuple[RowVerdict, Statement] | None:
    """The first row that begins with its prompt or the end of it; None unless that is so of every wrong row.

    The tokens behind the prompt must be the target's, or as many of these as the row's limit leaves. A row counts as
    proof only where it differs from the truth within its prompt, and either has all that the target emits or a prompt
    of two different tokens: a single one can have come from elsewhere. Where the ``pad`` id is not known (None),
    any one id will do.

    >>> wrong = [RowVerdict(0, expected=(7, 8), observed=(3, 1, 7, 8))]
    >>> prompt_returned([(3, 1)], wrong, limits=[2], pad=None)[1].detail
    'the row is its prompt of 2 tokens, then what the target returns; return row[len(prompt):]'
    """
    wrong = [row for row in rows if row.first is not None]
    ids = [pad] if pad is not None else [-1, *sorted({token for row in wrong for token in row.observed})]
    for one in ids:
        found = {row: _whole(prompts[row.row], row, limits[row.row], one) for row in wrong}
        wholes = {row: whole for row, whole in found.items() if isinstance(whole, _Whole)}
        if all(found.values()) and (proof := _proof(prompts, wholes)):
            return proof
    return _short_start(prompts, rows, limits, pad, eos)


def _proof(prompts: Sequence[Ids], wholes: Mapping[RowVerdict, _Whole]) -> tuple[RowVerdict, Statement] | None:
    """The first whole row that proves that rows are returned whole, with the statement on it."""
    row = next((row for row, whole in wholes.items() if _proves(prompts[row.row], row, whole)), None)
    if row is None:
        return None
    starts = {len(prompts[r.row]) + w.before + w.between for r, w in wholes.items()}
    padded = any(whole.before or whole.between for whole in wholes.values())
    behind = any(whole.behind for whole in wholes.values())
    return row, whole_row(WholeRow(len(prompts[row.row]), *wholes[row]), starts, padded, behind)


def _short_start(
    prompts: Sequence[Ids], rows: Sequence[RowVerdict], limits: Sequence[int], pad: int | None, eos: Ids
) -> tuple[RowVerdict, Statement] | None:
    """The first row that begins with the end of its prompt, where that is so of every wrong row.

    A new token behind it proves that; or, where the limit leaves none, that as many ids of every prompt are special: a
    single id of a prompt may come from elsewhere.
    """
    # One wrong row that does not begin so speaks against it for all: a decoder that cuts at a wrong place does it to
    # every row. Where the limit leaves no new token, special ids have to say by how much each prompt is shorter than
    # the decoder took it to be, for right rows as well (short by none).
    short = {row: _missing(prompts[row.row], row, limits[row.row]) for row in rows if row.first is not None}
    if not all(short.values()):
        return None
    special: dict[str, set[RowVerdict]] = {}  # the wrong rows that are short by as many ids as it explains
    for name, ids in (("the pad id", (pad,)), ("the EOS id" if len(eos) == 1 else "an EOS id", eos), ("id 0", (0,))):
        counts = {row: sum(token in ids for token in prompts[row.row]) for row in rows}
        if all(counts[row] == short.get(row, 0) or short.get(row, 0) >= limits[row.row] for row in rows):
            special[name] = {row for row, n in short.items() if counts[row] == n}
    proved = [row for row, n in short.items() if len(row.observed) > n or any(row in some for some in special.values())]
    if not proved:
        return None
    names = " and to ".join(name for name, some in special.items() if proved[0] in some)
    said = [state("as-many-special", special=names)] if names else []
    return proved[0], together(state("short-start", tokens=short[proved[0]]), *said)


def _missing(prompt: Ids, row: RowVerdict, limit: int) -> int:
    """Return how many ids of the end of its prompt a row begins with, before all that it is due,
    or what its length leaves.
    """
    for count in range((row.first or 0) + 1, len(prompt)):  # behind the first difference; the row may repeat its prompt
        tail = row.observed[count:]
        whole = len(tail) == len(row.expected) or len(row.observed) in (limit, len(row.expected))
        if row.observed[:count] == prompt[-count:][: len(row.observed)] and tail == row.expected[: len(tail)] and whole:
            return count
    return 0


def _whole(prompt: Ids, row: RowVerdict, limit: int, pad: int) -> _Whole | bool:
    """The make-up of the row; True where the limit cut it off within its prompt, False for any other row."""
    # Pads are taken off one at a time, because the prompt, or the row, may itself begin with the pad id.
    observed, right = row.observed, row.expected
    cut = len(observed) == limit
    for before in _pads(observed, pad):
        rest = observed[before:]
        if rest[: len(prompt)] == prompt:
            for between in _pads(rest[len(prompt) :], pad):
                tail = rest[len(prompt) + between :]
                behind = tail[len(right) :]
                if tail[: len(right)] == right[: len(tail)] and set(behind) <= {pad} and (tail or cut):
                    return _Whole(before, between, len(behind), len(tail) - len(behind))
        elif cut and rest and rest == prompt[: len(rest)]:
            return True
    return False


def _pads(row: Ids, pad: int) -> Iterator[int]:
    """Yield how many pads may be taken off the front of a row: none, one, and so on."""
    yield 0
    for count, token in enumerate(row, 1):
        if token != pad:
            return
        yield count


def _proves(prompt: Ids, row: RowVerdict, whole: _Whole) -> bool:
    assert row.first is not None
    shown = whole.tokens and row.first < whole.before + len(prompt)
    return bool(shown) and (len(set(prompt)) > 1 or whole.tokens == len(row.expected))


# The ends and counts that are told beside a row, held against the row; and rows that go on behind a stop sequence.


def told_wrongly(
    completions: Sequence[Completion | None],
    prompts: Sequence[Ids],
    options: Sequence[RowOptions],
    rows: Sequence[Ids],
    own: Callable[[int], Logprobs | None] = lambda row: None,
    of_prompt: Callable[[int], Logprobs | None] = lambda row: None,
) -> Explanation | None:
    """The first completion that tells another end of its row, other counts or probabilities; None if all are right.

    The rows are the target's own; ``own`` are the logarithms of the target's probabilities of a row, ``of_prompt`` of
    the tokens of its prompt behind the first.

    >>> told_wrongly([Completion((5,), "stop")], [(1,)], [RowOptions(1)], [(5,)]).fingerprint
    'bookkeeping/finish-reason'
    """
    for number, told in enumerate(completions):
        if told is None:
            continue
        for kind, statement in (
            ("finish-reason", _reason(told, options[number], rows[number])),
            ("usage", _usage(told, prompts[number], rows[number])),
            ("logprobs", _logprobs(told.logprobs, own(number)) if told.logprobs is not None else None),
            ("logprobs", _of_prompt(told, prompts[number], partial(of_prompt, number))),
        ):
            if statement:
                return Explanation("bookkeeping", kind, row=number, **statement._asdict())
    return None


def otherwise(case: Any, completions: Sequence[Completion | None], rows: Sequence[Ids]) -> Explanation | None:
    """The first row that the engine answers otherwise than without drafts, in its tokens or in what is beside them."""
    # Tokens before what is told beside them: other tokens have other log-probabilities. A near-tie passes, since blocks
    # of another shape round otherwise and the engine is its own measure here.
    for number, (told, row) in enumerate(zip(completions, rows, strict=True)):
        alone = dict(told.alone or {}) if told else {}
        tokens, margins = tuple(alone.pop("tokens", row)), alone.pop("margins", ())
        if row != tokens:
            index, eos = common_start(row, tokens), case.options[number].eos_token_ids
            if margins[index : index + 1] and index < len(row) and margins[index] < _TIE:
                continue
            return Explanation(
                *("options", "ignored-option"),
                row=number,
                token_index=index,
                expected=tokens[index] if index < len(tokens) else None,
                observed=row[index] if index < len(row) else None,
                expected_row=tokens,
                observed_row=row,
                wrong_rows=(number,),
                given=Given(
                    case.prompts[number], case.pad_token_id, eos, case.num_draft_tokens, requests=len(case.prompts)
                ),
                subject=case.switch,
                **state("switched" if case.drafting != "none" else "switched-alone", switch=case.switch)._asdict(),
            )
        for name, own in alone.items():
            place = _differ((told.beside or {}).get(name) if told else None, own)
            if place is not None:
                at = f", first at new token {place[0]}" if place else ""
                said = state("beside", switch=case.switch, what=name.replace("_", " "), place=at)
                return Explanation("options", "ignored-option", row=number, subject=case.switch, **said._asdict())
    return None


_NOISE, _TIE = 1e-3, 1e-2  # of numbers in float32, where blocks are computed in other shapes


def _differ(told: Any, own: Any) -> tuple[int, ...] | None:
    """Where two values differ, as indices; None if nowhere. Numbers may differ a little, NaN always does."""
    if isinstance(told, list | tuple) and isinstance(own, list | tuple) and len(told) == len(own):
        found = ((index, _differ(one, other)) for index, (one, other) in enumerate(zip(told, own, strict=True)))
        return next(((index, *place) for index, place in found if place is not None), None)
    if isinstance(told, int | float) and isinstance(own, int | float):
        return None if told == own or abs(told - own) <= _NOISE * (1 + abs(own)) else ()
    return None if told == own else ()


def told_wrongly_of(run: Run) -> Explanation | None:
    """The first completion of a run that tells something wrong of its row, where all rows are right."""
    case, rows, digests = run.case, run.truth.rows, run.truth.digests
    own = [partial(logprobs, case, row, rows[row], digests[row]) for row in range(len(rows))]
    wrong = told_wrongly(run.completions, case.prompts, case.options, rows, lambda row: own[row]())
    if wrong is None or wrong.row is None or wrong.kind != "logprobs":
        return wrong
    number, index = wrong.row, int(wrong.facts["index"])
    return replace(wrong, token_index=index, observed_row=rows[number], wrong_rows=(number,), given=case.given(number))


def _reason(told: Completion, options: RowOptions, row: Ids) -> Statement | None:
    """Return how a row ends, where something else is told;
    an EOS that completes a stop sequence may be told as either.
    """
    stops, by_eos = options.stops_of(row), row[-1:] != () and row[-1] in options.eos_token_ids
    reason = "stop" if stops or by_eos else "length"
    given = f"its stop sequence {_ids(stops[0])}" if stops else "an EOS" if by_eos else "its limit"
    if options.cancel_after is not None and len(row) >= options.cancel_after:
        return None  # engines have names of their own for it
    if told.finish_reason not in (None, reason):
        return state("reason", given=given, told=f"{told.finish_reason!r:.80}")
    stop = None if told.stop is None else tuple(told.stop)
    if stop is not None and stop not in stops:
        return state("reason", given=given, told=f"stop sequence {_ids(stop)}")
    return None


def _usage(told: Completion, prompt: Ids, row: Ids) -> Statement | None:
    for name, tokens in (("prompt_tokens", prompt), ("completion_tokens", row)):
        count = (told.usage or {}).get(name, len(tokens))
        if count != len(tokens):
            return state("usage", count=name, told=f"{count!r:.80}", tokens=len(tokens))
    return None


def _logprobs(told: Sequence[float], right: Logprobs | None) -> Statement | None:
    """The first log-probability that is not the target's own, and whose they all are from there on."""
    own, bound, asked = right or Logprobs([*told], 0.0)
    if asked:
        return _mixed(told, own, asked, bound)

    def differs(index: int, other: int) -> bool:
        return not abs(told[index] - own[other]) <= bound  # NaN differs

    places = range(len(own))
    first = next((index for index in places if differs(index, index)), None)
    if first is None:
        return None
    for name, by in (("logprob-before", -1), ("logprob-behind", 1)):
        moved = [index for index in places if index >= first and index + by in places]
        if len(moved) > 1 and not any(differs(index, index + by) for index in moved):
            return state(name, index=first)
    return state("logprob", index=first, told=f"{told[first]:.6g}", own=f"{own[first]:.6g}")


def _of_prompt(told: Completion, prompt: Ids, own: Callable[[], Logprobs | None]) -> Statement | None:
    """The first log-probability of a prompt's token that is not the target's own."""
    values = told.prompt_logprobs
    if values is None:
        return None
    if len(values) != len(prompt):
        return state("prompt-logprobs", told=len(values), tokens=len(prompt))
    right = own()
    for index, (value, one) in enumerate(zip(values[1:], right.own if right else (), strict=False), 1):
        if right and value is not None and not abs(value - one) <= right.bound:
            return state("prompt-logprob", index=index, told=f"{value:.6g}", own=f"{one:.6g}")
    return None


def _mixed(told: Sequence[float], own: Sequence[float], asked: Sequence[float], bound: float) -> Statement | None:
    """Return whether some log-probabilities are those with the row's options, and others those without;
    others say nothing.
    """
    near = [(abs(value - one) <= bound, abs(value - other) <= bound)
            for value, one, other in zip(told, own, asked, strict=True)]  # fmt: skip
    if not all(map(any, near)) or (False, True) not in near or (True, False) not in near:
        return None
    return state("logprob-mixed", index=near.index((False, True)), other=near.index((True, False)))


def without_passed_stops(run: Run) -> tuple[Run, Explanation | None]:
    """The run as if no row went on behind its stop sequence, and the explanation of the first that does, if any.

    The tokens of such a row are right, so other faults come first.
    """
    passed = [row for row in run.verdicts if _passes(run.case.options[row.row], row)]
    if not passed:
        return run, None
    ended, row = {one.row: one.expected for one in passed}, passed[0]
    said = state(
        "stop-passed",
        tokens=len(row.observed) - len(row.expected),
        stop=_ids(run.case.options[row.row].stops_of(row.expected)[0]),
    )
    explanation = Explanation(
        "options",
        "ignored-option",
        row=row.row,
        token_index=row.first,
        observed=row.observed[len(row.expected)],
        expected_row=row.expected,
        observed_row=row.observed,
        wrong_rows=tuple(ended),
        given=run.case.given(row.row),
        subject="stop-sequences",
        **said._asdict(),
    )
    return replace(run, outputs=tuple(ended.get(each.row, each.observed) for each in run.verdicts)), explanation


def _passes(options: RowOptions, row: RowVerdict) -> bool:
    """Return whether a row is right up to its stop sequence and goes on behind it; an EOS there is another fault."""
    expected = row.expected
    ended = bool(options.stops_of(expected)) and expected[-1] not in options.eos_token_ids
    return ended and len(row.observed) > len(expected) and row.first == len(expected)


def _ids(tokens: Ids) -> str:
    return " ".join(map(str, tokens))
