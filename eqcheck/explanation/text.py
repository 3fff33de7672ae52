"""Explanations as text: *Let* names the things, *Then* gives the reasons in order, *However* the contradiction."""

from __future__ import annotations

from collections.abc import Sequence

from eqcheck.contract.kinds import KINDS
from eqcheck.explanation.layout import WHOLE, filled, table, wrapped
from eqcheck.explanation.records import BY_TOKENS, Explanation, Given, Slot, many
from eqcheck.explanation.statements import about_condition, nothing_expected, said, say, searched, sentence


def render(e: Explanation, width: int = WHOLE) -> str:
    """The text of an explanation, in lines of at most ``width`` characters.

    >>> from eqcheck.explanation.records import crash
    >>> print(render(crash("exception", "KeyError", "'x'")))
    crash/exception:KeyError - the decoder raised
      KeyError: 'x'
    """
    if e.row is None or e.token_index is None:
        return wrapped(f"{headline(e)}\n  {e.detail}", width)
    lines = [headline(e), *_laid_out("Let", [_row(e), *_emits(e), *_beside(e), *_others(e)], width)]
    if e.component == "sampling":  # chance draws the tokens: nothing is expected but what is said of the law
        return wrapped("\n".join([*lines, *(f"  {sentence(clause)}" for clause in e.said)]), width)
    if e.component == "unattributed" and e.query and e.repair:
        lines += [f"  Two opinions: {e.detail}.", "  What was read, which the others do not bear out:"]
    lines += _laid_out("Then", _then(e), width) + _laid_out("However", _however(e), width) + _witnesses(e)
    if e.slots:
        lines += ["", *_picture(e, width)]
    if e.consequences:
        lines += ["", "  Also wrong, there or later (not counted):"]
        lines += [f"    {line}" for line in consequences(e)]
    return wrapped("\n".join(lines), width)


def headline(e: Explanation) -> str:
    """The fingerprint and its meaning."""
    return f"{e.fingerprint} - {KINDS[e.kind].meaning}"


def argument(e: Explanation) -> list[tuple[str, list[str]]]:
    """The sentences of `render` by the word that they begin with; without rows, witnesses and picture.

    >>> e = Explanation("bookkeeping", "past-eos", 0, 1, observed=7, expected_row=(5,), observed_row=(5, 7))
    >>> argument(e)[-1]
    ('However', ['new token 1 is id 7 where the row should have ended.'])
    """
    if e.row is None or e.token_index is None:
        return [("", [sentence(clause) for clause in e.said])]
    let = ("Let", [_row(e), *_beside(e)])
    if e.component == "sampling":
        return [let, ("However", [sentence(clause) for clause in e.said])]
    return [let, *([("Then", then)] if (then := _then(e)) else []), ("However", _however(e))]


def kinds_known(e: Explanation) -> bool:
    """Whether it is of kinds that this eqcheck has, so that it can be told anew."""
    return {e.kind, *(deviation.kind for deviation in e.deviations)} <= KINDS.keys()


def explained(e: Explanation, needs: Sequence[str] | None, plain: str, width: int = WHOLE) -> str:
    """The text of an explanation, and `about_condition` where something is known of that."""
    condition = about_condition(needs, plain) if plain or needs else ""
    return render(e, width) + (wrapped(f"\n  {condition}", width) if condition else "")


def _laid_out(begin: str, sentences: Sequence[str], width: int) -> list[str]:
    """Sentences below one another, behind the word that the first begins with."""
    head = f"  {begin + ',' if begin == 'However' else begin:<5} "
    first, *others = sentences or [""]
    return [filled(head + first, width, len(head)), *(" " * len(head) + more for more in others)] * bool(sentences)


def _witnesses(e: Explanation) -> list[str]:
    """The witnesses of an asserted cause beside the reading."""
    if e.component == "unattributed":
        return []
    beside = e.component == "bookkeeping" and e.repair is not None and (e.repair.restores or e.repair.mends)
    # A repair changes other answers as well, and a wrong choice among them may be right.
    aside = ", which proves nothing where tokens are chosen wrongly" if beside else ""
    lines = [f"  Repair{' agrees' if e.repair_confirms else ''}: {e.repair}{aside}."] if e.repair else []
    same, other, none = e.permuted
    if tried := same + other + none:
        right = f"; {none} {'is' if none == 1 else 'are'} right" if none else ""
        lines.append(f"  Other ids: {same} of {tried} cases with other ids show the same{right}.")
    return lines


def _emits(e: Explanation) -> list[str]:
    """The ids that the row emits, and the ids that it is expected to emit, where any are."""
    expected, observed = (ids(row, e.token_index) for row in (e.expected_row, e.observed_row))
    if e.component == "sampling":
        return [f"It emits ids {expected}, and then ids {observed}." if e.expected_row else f"It emits ids {observed}."]
    if nothing_expected(e):
        return [f"It emits ids {observed}."]
    return [f"It is expected to emit ids {expected}.", f"It is observed to emit ids {observed}."]


def _others(e: Explanation) -> list[str]:
    """The other rows of the case that are wrong."""
    rows = [str(row) for row in e.wrong_rows if row != e.row and e.component != "sampling"]
    if len(rows) < 2:
        return [f"Row {row} is wrong, too." for row in rows]
    *begin, last = rows if len(rows) <= _ROWS else [*rows[:_ROWS], f"{len(rows) - _ROWS} more"]
    return [f"Rows {', '.join(begin)} and {last} are wrong, too."]


def _row(e: Explanation) -> str:
    given = e.given
    if given is None:
        return f"row {e.row} be the one at fault."
    own = given.rows[e.row] if e.row is not None and e.row < len(given.rows) else None
    known = _asked(own or given)
    known += [] if given.pad_token_id is None else [f"pad id {given.pad_token_id}"]
    known += [] if given.eos_token_ids is None else [eos_words(given.eos_token_ids)]
    known += [] if given.num_draft_tokens is None else [f"K = {given.num_draft_tokens}"]
    return f"row {e.row} have the prompt ids {', '.join([ids(given.prompt), *known])}."


def _beside(e: Explanation) -> list[str]:
    """The prompts and options of the other rows of the case."""
    if e.given is None:
        return []
    lines, beside = [], [(number, one) for number, one in enumerate(e.given.rows) if number != e.row]
    for number, one in beside[:_BESIDE]:
        own_eos = [eos_words(one.eos_token_ids)] if one.eos_token_ids not in (None, e.given.eos_token_ids) else []
        lines.append(f"Row {number} has the prompt ids {', '.join([ids(one.prompt), *_asked(one), *own_eos])}.")
    more = len(beside) - _BESIDE
    return [*lines, *([f"The case has {many(more, 'more row')}."] if more > 0 else [])]


def _asked(row: Given) -> list[str]:
    accepted = []
    if row.accepts is not None:
        by_round = " ".join(map(str, row.accepts[:_LONG]))
        accepted = [f"accepts {by_round} by round" if any(row.accepts) else "accepts none"]
    limit = [] if row.limit is None else [f"limit {row.limit}"]
    return [*limit, *([row.sampling] if row.sampling else []), *accepted]


def eos_words(ids: tuple[int, ...] | None) -> str:
    """The EOS ids of a row, in words."""
    shown = " ".join(map(str, ids or ()))
    return f"EOS id{'s' * (len(ids) > 1)} {shown}" if ids else "no EOS id"


def _then(e: Explanation) -> list[str]:
    where = f" (round {e.round} of the row)" if e.round else ""
    if e.query is None and nothing_expected(e):
        return []
    if e.query is None:
        first = f"new token {e.token_index} is the first that differs{where}"
        basis = e.detail if e.component == "unattributed" else e.basis
        return [f"{first}, {BY_TOKENS}."] if basis in ("", BY_TOKENS) else [f"{first}.", sentence(basis)]
    q = e.query
    row = e.deviations[0].row if e.deviations else e.row
    seen = f"positions {q.sees_from}..{q.logical_position}, each once"
    by_reading = "By that reading this" if e.component == "unattributed" else "This"
    return [
        f"call {q.call}{where} feeds {_id(q.token, e)} in column {q.column} of batch row {q.call_row}.",
        f"{by_reading} query stands for position {q.logical_position} of row {row}.",
        f"It should see {seen if q.logical_position else 'position 0 alone'}.",
    ]


def _however(e: Explanation) -> list[str]:
    drawn = nothing_expected(e)
    if e.query is None:
        clauses = [_difference(e)]
        clauses += said(e.facts) or ([e.detail] if e.detail and (drawn or e.component != "unattributed") else [])
        clauses += searched(e.search) if e.search else []
    else:
        doubt = "by that reading " if e.component == "unattributed" else ""
        clauses = [doubt + say(d) for d in e.deviations[:3]]
        if len(e.deviations) > 3:
            clauses.append(f"the query shows this {many(len(e.deviations) - 3, 'time')} more")
        clauses += [e.detail] if e.detail and e.component != "unattributed" else []
        even = e.expected == e.observed  # a wrong context that led to the right token
        clauses.append(f"even so, new token {e.token_index} is right" if even and not drawn else _difference(e))
    return [f"{clauses[0]}.", *map(sentence, clauses[1:])]


def _difference(e: Explanation) -> str:
    """The first difference of the row as a clause."""
    right = _id(e.expected, e)
    if e.observed is None:
        known = "" if nothing_expected(e) else f", where {right} is right"
        return f"the row ends before new token {e.token_index}{known}"
    wrong = f"new token {e.token_index} is {_id(e.observed, e, observed=True)}"
    if nothing_expected(e) and e.kind not in _ENDS:
        return f"{wrong}, which was drawn"
    return f"{wrong} where {right} is right" if e.expected is not None else f"{wrong} where the row should have ended"


def consequences(e: Explanation) -> list[str]:
    """The deviations beside the cause, there or later: a line for each call and kind, and how often."""
    groups: dict[tuple[int, str], int] = {}
    for deviation in e.consequences:
        key = (deviation.call, deviation.fingerprint)
        groups[key] = groups.get(key, 0) + 1
    lines = [f"call {call}: {fingerprint} x{count}" for (call, fingerprint), count in groups.items()]
    return lines[:6] + ([f"and {len(lines) - 6} more"] if len(lines) > 6 else [])


def _picture(e: Explanation, width: int) -> list[str]:
    rows: list[list[object]] = []
    for number, slot in enumerate(e.slots):
        if 0 < number < len(e.slots) - 1 and all(_idle(s) for s in e.slots[number - 1 : number + 2]):
            rows += [["..."]] if rows[-1] != ["..."] else []
            continue
        seen, right = _seen(slot.visible), _seen(slot.expected_visible)
        position = "-" if slot.expected_position is None else str(slot.expected_position)
        wrong = slot.torn or seen != right or (slot.visible and position != str(slot.position))
        index = "none" if slot.index is None else slot.index
        blank = slot.holds == "blank"
        held = "-" if slot.position is None or blank else slot.position
        shown = "-" if blank else _marked(slot.token, e)
        rows.append([index, slot.holds, shown, held, position, seen, right, "<--" if wrong else ""])
    headers = ["slot", "holds", "id", "position", "should be", "seen", "should be", ""]
    short = ["slot", "holds", "id", "at", "right", "seen", "right", ""]
    drawn = table([[*row, *[""] * (8 - len(row))] for row in rows], headers, width - 2, short, tablefmt="plain")
    lines = ["  " + line.rstrip() for line in drawn.splitlines()]
    return lines + ([f"  {shifted(e)}"] if shifted(e) else [])


def shifted(e: Explanation) -> str:
    """A sentence on the shift that all right positions of the row have, where its family forgives one; else empty."""
    offsets = {
        slot.expected_position - slot.of_position
        for slot in e.slots
        if slot.expected_position is not None and slot.of_position is not None and slot.kind == "token"
    }
    if len(offsets) == 1 and (offset := offsets.pop()):
        subject = "By that reading all" if e.component == "unattributed" else "All"
        return f"{subject} positions of the row are shifted by {offset:+d}, which models of this family forgive."
    return ""


def _idle(slot: Slot) -> bool:
    """Whether a slot was never written, is hidden, and rightly so."""
    return slot.holds == "blank" and not slot.visible and not slot.expected_visible


def _seen(visible: bool) -> str:
    return "yes" if visible else "no"


def ids(row: tuple[int, ...], mark: int | None = None) -> str:
    """Ids in a line, the one at ``mark`` in brackets; of a long row the ends and what is around the mark."""
    shown = [f"[{token}]" if at == mark else str(token) for at, token in enumerate(row)]
    if mark is not None and mark >= len(row):
        shown.append("[end]")
    if len(shown) <= _LONG:
        return " ".join(shown)
    near = range(0) if mark is None else range(mark - _END, mark + _END + 1)
    kept = [at for at in range(len(shown)) if at < _END or at >= len(shown) - _END or at in near]
    words = [f"... {shown[at]}" if at and at - 1 not in kept else shown[at] for at in kept]
    return f"{' '.join(words)} ({len(row)} ids)"


_LONG, _END, _ROWS, _BESIDE = 24, 6, 12, 5
_ENDS = ("past-eos", "over-length", "pad-in-output")  # tokens that stand behind the end of a row


def _id(token: int | None, e: Explanation, observed: bool = False) -> str:
    """An id in words."""
    return f"id {_marked(token, e, observed)}"


def _marked(token: int | None, e: Explanation, observed: bool = False) -> str:
    """An id with what it is besides: the pad id, an EOS, or what the draft proposed there."""
    given = e.given
    marks = ["pad id"] if given and token == given.pad_token_id else []
    marks += ["EOS"] if given and token in (given.eos_token_ids or ()) else []
    marks += ["draft token"] if observed and token in e.drafted else []
    return f"{token} ({', '.join(marks)})" if marks else str(token)
