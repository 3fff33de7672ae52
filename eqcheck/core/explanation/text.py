"""An explanation as text, in parts: the case with expected and got, the cause with its slots, what confirms it.

The terminal, Markdown, JUnit and annotations print the parts as `render` lays them out; a page draws the tokens and the
slots of the same parts itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from eqcheck.contract.decoders import CACHE_STATES
from eqcheck.contract.kinds import DRAFT_CAUSES, KINDS
from eqcheck.contract.trees import Nodes
from eqcheck.core.explanation.layout import filled, table
from eqcheck.core.explanation.records import BY_TOKENS, Deviation, Explanation, Given, Slot, many
from eqcheck.core.explanation.statements import (
    DRAFT_OF_THIS_CALL,
    held,
    needs_words,
    nothing_expected,
    ordinal,
    plain_words,
    said,
    say_all,
    searched,
    sentence,
)
from eqcheck.core.explanation.token_words import compared, shortened

WIDTH = 100  # characters a line, where nothing says how wide the output is
_EXPECTED, _AGAIN = ("expected", "got"), ("first", "again")  # of a seed: the same request twice
_UNNAMED = ("stray-law", "impossible-token")  # kinds that say that a law is wrong, and not what is wrong with it
_TWICE = ("seed-ignored", "batch-dependent")
RIGHT_SO_FAR = "tokens right so far"  # in spite of a wrong context
_TITLE = 13  # characters of the longest title
_ROWS, _BESIDE, _CLAUSES = 12, 3, 4
_ALIKE = 3  # so many slots share a line
_ROUNDS = 24  # whose accepted drafts are listed
_TREES = 4  # rounds whose trees are listed
_VALUES = ("logprobs", "usage", "finish-reason")  # what is returned with a row whose tokens are correct
_NOTHING_LEADS = "no part of the sampler stands out"
_LINES = 6  # of what else is wrong
_ENDS = ("past-eos", "over-length", "pad-in-output")  # tokens after the end of a row
_LIMITED = ("premature-stop", "over-length")  # faults for which the limit of the row matters
_MEANINGS = {  # of kinds of cause by their source, where the model is not like others
    ("query-position", "counted"): "wrong position",
    ("pad-visible", "masked-pad"): "masked padding changes a state",
}


@dataclass(frozen=True)
class Part:
    """One part of an explanation: its title, a ``note`` after the title, sentences, and lines that are laid out.

    ``rows`` are label and line of the rows of tokens of a case, ``slots`` the lines of a table of slots; neither is
    wrapped.
    """

    title: str
    note: str = ""
    sentences: tuple[str, ...] = ()
    rows: tuple[tuple[str, str, str], ...] = ()
    slots: tuple[str, ...] = ()


def headline(e: Explanation) -> str:
    """Return the fingerprint and its meaning.

    >>> headline(Explanation("position", "query-position"))
    'position/query-position: wrong position id'
    """
    return f"{e.fingerprint}: {meaning(e)}"


def meaning(e: Explanation) -> str:
    """Return what the kind means, as likely where it was found by search, and whether a token shows it."""
    searched_for = e.search is not None and e.search.surprising
    likely = " (likely)" if searched_for else ""
    return f"{cause_words(e)}{likely}{f'; {RIGHT_SO_FAR}' if e.harmless else ''}"


def cause_words(e: Explanation) -> str:
    """Return what the kind means; of lost draft tokens, what is wrong with the draft.

    >>> cause_words(Explanation("draft", "desync", subject="mask/token-hidden"))
    'in the draft, a token of the row is cached but masked'
    """
    if e.component != "draft" or not e.subject:
        source = e.deviations[0].source if e.deviations else ""
        return _MEANINGS.get((e.kind, source), KINDS[e.kind].meaning)
    kind = KINDS.get(e.subject.rpartition("/")[2])
    return f"in the draft, {kind.meaning}" if kind else DRAFT_CAUSES.get(e.subject, KINDS[e.kind].meaning)


def agreement(status: str, rows: int, ties: int, seen: int | None = None) -> str:
    """Return the text of a verdict in which nothing is wrong; ``seen``: so many tokens are judged, and more may follow.

    >>> agreement("equivalent", 3, 0)
    'equivalent: 3 rows, every token is what the target returns alone'
    >>> agreement("tie", 3, 2)
    "tie: 3 rows, 2 tokens differ from the target's own choice by no more than rounding; all others are that choice"
    >>> print(agreement("equivalent", 3, 0, seen=2).replace("; ", ";\\n"))
    equivalent: 3 rows, every token that calls show (2 new tokens) is what the target returns alone;
    set `outputs` to judge all that your code returned
    """
    shown = "" if seen is None else f" that calls show ({many(seen, 'new token')})"
    more = "" if seen is None else "; set `outputs` to judge all that your code returned"
    if status != "tie":
        return f"{status}: {many(rows, 'row')}, every token{shown} is what the target returns alone{more}"
    few = f"{many(ties, 'token')} differ{'s' * (ties == 1)}"
    rest = f"by no more than rounding; all others{shown} are that choice"
    return f"tie: {many(rows, 'row')}, {few} from the target's own choice {rest}{more}"


def undecided(e: Explanation) -> str:
    """Return the headline of an inconclusive verdict: what was seen, and what is missing.

    >>> e = Explanation("unattributed", "unattributed", facts={"exceeding": 1, "counted": 24, "weight": "4.2"})
    >>> print(undecided(e).replace("; ", ";\\n"))
    inconclusive: 1 of 24 rows goes further from the target than rounding does;
    the evidence is 4.2, and 10^6 decides: check more rows with this oracle
    """
    exceeding, counted, weight = (e.facts.get(name, "?") for name in ("exceeding", "counted", "weight"))
    go = "goes" if exceeding == 1 else "go"
    seen = f"{exceeding} of {counted} rows {go} further from the target than rounding does"
    return f"inconclusive: {seen}; the evidence is {weight}, and 10^6 decides: check more rows with this oracle"


def render(
    e: Explanation, needs: Sequence[str] | None = None, plain: str = "", width: int = WIDTH, status: str = "violation"
) -> str:
    """Return the text of an explanation, in lines of at most ``width`` characters; the rest as for `parts`.

    An ``inconclusive`` one begins with what is missing.

    >>> from eqcheck.core.explanation.records import crash
    >>> print(render(crash("exception", "KeyError", "'x'")))
    crash/exception:KeyError: the decoder raised an exception
      Error
        KeyError: 'x'
    """
    width = min(width, WIDTH)
    first = undecided(e) if status == "inconclusive" else headline(e)
    return "\n".join([filled(first, width, 2), *laid_out(parts(e, needs, plain, width), width)])


def kinds_known(e: Explanation) -> bool:
    """Return whether this eqcheck has all kinds of the explanation, so that its text can be made again."""
    return {e.kind, *(deviation.kind for deviation in e.deviations)} <= KINDS.keys()


def parts(
    e: Explanation, needs: Sequence[str] | None = None, plain: str = "", width: int = WIDTH, brief: bool = False
) -> list[Part]:
    """Return the parts of an explanation in order: the case, the cause, what confirms it, what else is wrong.

    ``needs`` are the options without which the case does not fail, None where it was not made small; ``plain`` is how
    the engine does without speculation. ``brief``: without slots that are as they should be, and what else is wrong.
    """
    found = [_case(e, needs, plain, width), *_causes(e, width, brief), _confirmed(e)]
    if e.consequences and not brief:
        found.append(Part("Also wrong", f"{', '.join(consequences(e))}; follows from the cause, not counted"))
    return [part for part in found if part is not None and (part.note or part.rows or part.sentences or part.slots)]


def laid_out(sections: Sequence[Part], width: int = WIDTH) -> list[str]:
    """Return the lines of parts: a title with its note, then sentences, rows and slots further in.

    >>> print("\\n".join(laid_out([Part("Confirmed", "so it is"), Part("Cause", sentences=("One.", "Two."))])))
      Confirmed      so it is
      Cause
        One.
        Two.
    """
    lines: list[str] = []
    for part in sections:
        head = f"  {part.title:<{_TITLE}}  {part.note}" if part.note else f"  {part.title}"
        lines.append(filled(head, width, _TITLE + 4))
        labels = [max((len(row[at]) for row in part.rows), default=0) for at in (0, 1)]
        for first, second, line in part.rows:
            text = f"    {first:<{labels[0]}}   {second:<{labels[1]}}  {line}".rstrip()
            lines.append(filled(text, width, labels[0] + labels[1] + 9) if second == "options" or first else text)
        lines += [filled(f"    {line}", width, 4) for text in part.sentences for line in text.split("\n")]
        lines += [f"    {line}".rstrip() for line in part.slots]
    return lines


# The case.


def _case(e: Explanation, needs: Sequence[str] | None, plain: str, width: int) -> Part | None:
    """The case: how many requests of which kind, and the tokens of the row that is wrong."""
    given, title = e.given, "Smallest case" if needs is not None else "Case"
    of_row = e.row is not None and e.token_index is not None
    if not of_row and given is None and needs is None and not plain:
        return None
    without = plain_words(plain)
    note = "; ".join(filter(None, (", ".join(_asked_of_all(e, needs)), without)))
    rows: list[tuple[str, str, str]] = []
    if of_row:
        name = f"request {e.row}"
        if given is not None:
            rows.append((name, "prompt", shortened(given.prompt, room=width - len(name) - 18)))
            rows += [("", "options", ", ".join(options))] if (options := _options(e)) else []
        else:
            rows.append((name, "", ""))
        assert e.token_index is not None
        sampled = e.component == "sampling" and not e.expected_row
        expected = None if sampled or nothing_expected(e) else e.expected_row
        room = max(20, width - len(name) - 19)
        names = _AGAIN if e.kind in _TWICE else _EXPECTED
        for label, line in compared(expected, e.observed_row, e.token_index, room, _note_of(e), names):
            rows.append(("", label, line))
        rows += _others(e, width)
    elif e.component == "crash" and given is not None:
        rows = _requests(given, width)
    return Part(title, note, rows=tuple(rows))


def _asked_of_all(e: Explanation, needs: Sequence[str] | None) -> list[str]:
    """Describe what holds for the whole case."""
    given = e.given
    count = (given.requests or len(given.rows)) if given else 0
    words = [many(count, "request")] if count else []
    words += [named] if (named := needs_words(needs)) and (needs or e.search) else []
    if given is None:
        return words
    words += [] if given.num_draft_tokens is None else [f"K = {given.num_draft_tokens}"]
    dictated = [rounds for row in given.rows for rounds in (row.accepts, row.paths) if rounds is not None]
    went_on = len(e.observed_row or ()) > len(e.expected_row or ())  # beyond the rounds whose drafts are dictated
    if dictated and not went_on and not any(any(rounds) for rounds in dictated):
        words.append("every draft wrong")
    if e.component == "crash":  # no row is at fault, so what all rows have in common is of the case
        limits = {row.limit for row in given.rows}
        ends = {_eos_of(row, given) for row in given.rows}
        words += [f"max_new_tokens {limit}" for limit in limits if limit is not None and len(limits) == 1]
        words += [eos_words(eos) for eos in ends if eos is not None and len(ends) == 1]
    return words


def _eos_of(row: Given, given: Given) -> tuple[int, ...] | None:
    return given.eos_token_ids if row.eos_token_ids is None else row.eos_token_ids


def _requests(given: Given, width: int) -> list[tuple[str, str, str]]:
    """All requests of a case that has no wrong row, each with the options in which it may differ from others."""
    limits, ends = {row.limit for row in given.rows}, {_eos_of(row, given) for row in given.rows}
    rows = []
    for number, row in enumerate(given.rows[: _BESIDE + 1]):
        about = [f"max_new_tokens {row.limit}"] if len(limits) > 1 else []
        about += [*([row.sampling] if row.sampling else []), *_accepted(row)]
        about += [eos_words(_eos_of(row, given))] if len(ends) > 1 else []
        rows.append((f"request {number}", "prompt", shortened(row.prompt, room=width - 30)))
        rows += [("", "options", ", ".join(about))] if about else []
    left = len(given.rows) - _BESIDE - 1
    return [*rows, *([("", "", f"and {many(left, 'more request')}")] if left > 0 else [])]


def _options(e: Explanation) -> list[str]:
    """The options of the wrong row, as far as they may matter for what is wrong."""
    given = e.given
    assert given is not None
    own = given.rows[e.row] if e.row is not None and e.row < len(given.rows) else given
    shown = {e.expected, e.observed, *e.expected_row, *e.observed_row}
    words = [] if own.limit is None or e.kind not in _LIMITED else [f"max_new_tokens {own.limit}"]
    words += [own.sampling] if own.sampling else []
    words += _accepted(own)
    eos = _eos_of(own, given)
    words += [eos_words(eos)] if eos and (shown & set(eos) or e.kind in ("past-eos", "premature-stop")) else []
    if given.pad_token_id is not None and (
        given.pad_token_id in shown or any(slot.kind == "pad" and slot.visible for slot in e.slots)
    ):
        words.append(f"pad id {given.pad_token_id}")
    return words


def _others(e: Explanation, width: int) -> list[tuple[str, str, str]]:
    """The other requests of the case, and which of them are wrong, too."""
    wrong = [row for row in e.wrong_rows if row != e.row and e.component != "sampling"]
    beside = [(number, other) for number, other in enumerate(e.given.rows) if number != e.row] if e.given else []
    rows = []
    for number, other in beside[:_BESIDE]:
        about = [*_accepted(other), *([other.sampling] if other.sampling else []), *["wrong, too"] * (number in wrong)]
        text = shortened(other.prompt, room=width - 30) + (f"   ({', '.join(about)})" if about else "")
        rows.append((f"request {number}", "prompt", text))
    left = [number for number in wrong if number not in dict(beside[:_BESIDE])]
    if more := len(beside[_BESIDE:]):
        rows.append(("", "", f"and {many(more, 'more request')}{f'; wrong, too: {_numbers(left)}' if left else ''}"))
    elif left:
        rows.append(("", "", f"wrong, too: request{'s' * (len(left) > 1)} {_numbers(left)}"))
    return rows


def _accepted(row: Given) -> list[str]:
    """The draft tokens that the case has accepted of a row, by round, in words; and its trees."""
    if row.trees is not None:
        return _trees(row)
    if not row.accepts or not any(row.accepts):
        return []
    more = " ..." if len(row.accepts) > _ROUNDS else ""
    return [f"correct drafts per round [{' '.join(map(str, row.accepts[:_ROUNDS]))}{more}]"]


def _trees(row: Given) -> list[str]:
    """The trees of a row by round, and which of their nodes the target agrees with.

    >>> _trees(Given((5,), trees=(((0, 0), (0, 1)),), paths=((1,), (0, 0))))
    ['draft tree per round [0>1 0>2:2nd] (the number of each node after that of its parent; 0 is the newest token)', \
'correct choices per round [2nd; 1st 1st]']
    """
    trees, more = row.trees or (), " ..." if len(row.trees or ()) > _TREES else ""
    shown = "; ".join(map(_tree, trees[:_TREES]))
    key = "(the number of each node after that of its parent; 0 is the newest token)"
    words = [f"draft tree per round [{shown}{more}] {key}" if any(trees) else "the decoder's own draft trees"]
    if row.paths is not None and any(row.paths):
        paths = "; ".join(" ".join(ordinal(rank + 1) for rank in path) or "none" for path in row.paths[:_ROUNDS])
        words.append(f"correct choices per round [{paths}{' ...' if len(row.paths) > _ROUNDS else ''}]")
    return words


def _tree(nodes: Nodes) -> str:
    """Write a tree: each node after its parent, with its rank among the draft's choices where it is not the first."""
    each = (f"{parent}>{at}" + (f":{ordinal(rank + 1)}" if rank else "") for at, (parent, rank) in enumerate(nodes, 1))
    return " ".join(each) or "the decoder's own"


def _numbers(rows: Sequence[int]) -> str:
    shown = [str(row) for row in rows[:_ROWS]] + ([f"{len(rows) - _ROWS} more"] if len(rows) > _ROWS else [])
    *begin, last = shown
    return f"{', '.join(begin)} and {last}" if begin else last


def _note_of(e: Explanation) -> str:
    """Describe what else the wrong token is: the pad id, an EOS, a draft token."""
    if e.component == "draft":
        return f" ({'kept' if e.kind == 'lost-bonus' else 'drafted'} in this round; the output is correct)"
    marks = []
    for token, name in ((e.expected, "expected"), (e.observed, "got")):
        kind = _meaning(e, token)
        if kind and e.expected != e.observed:
            marks.append(f"{name} {kind}" if not nothing_expected(e) else kind)
    if e.observed is not None and e.observed in e.drafted:
        marks.append("got a draft token")
    marks += ["right so far"] * e.harmless
    return f" ({', '.join(marks)})" if marks else ""


def _meaning(e: Explanation, token: int | None) -> str:
    given = e.given
    if given is None or token is None:
        return ""
    own = given.rows[e.row] if e.row is not None and e.row < len(given.rows) else given
    eos = _eos_of(own, given)
    return "an EOS" if token in (eos or ()) else "the pad id" if token == given.pad_token_id else ""


def eos_words(tokens: tuple[int, ...] | None) -> str:
    """Name the EOS ids of a row.

    >>> eos_words((9, 11)), eos_words(())
    ('EOS 9 11', 'no EOS')
    """
    return f"EOS {' '.join(map(str, tokens))}" if tokens else "no EOS"


# The cause.


def _causes(e: Explanation, width: int, brief: bool) -> list[Part]:
    if e.component == "crash":
        return [Part("Error", sentences=(e.detail,))]
    slots = tuple(_picture(e, width - 4, brief)) if e.slots else ()
    if e.component == "unattributed" and e.query is not None and e.repair is not None:
        read = Part("Read", "from the cache, but not confirmed:", tuple(_read(e)), slots=slots)
        return [Part("Cause unknown", sentences=(f"{sentence(e.detail)}",)), read]
    sentences = [*_read(e), *_told(e)]
    if e.of_law:
        named = 1 if "likelier" in e.facts else 0  # the first sentence is the cause, where there is one
        evidence = Part("Evidence", sentences=tuple(sentences[named:]))
        if named:
            return [Part("Likely cause", sentences=tuple(sentences[:1])), evidence]
        if e.kind in _UNNAMED:
            return [Part("Cause unknown", _NOTHING_LEADS), evidence]
        return [evidence]  # the kind is the cause, and the headline has its meaning
    return [Part(_certainty(e), sentences=tuple(sentences), slots=slots)]


def _certainty(e: Explanation) -> str:
    """Say how sure the cause is, in the words that every report uses."""
    if e.component == "unattributed":
        return "Cause unknown"
    if e.component == "sampling" or e.kind in _VALUES:
        return "Evidence"  # one case that chance cannot give; a value that is wrong, with no word on why
    return "Likely cause" if e.search is not None and e.search.surprising else "Cause"


def _read(e: Explanation) -> list[str]:
    """Describe what the query at fault was fed and what it attended to, and what is wrong with that."""
    q = e.query
    if q is None:
        return []
    row = e.deviations[0].row if e.deviations else e.row
    where = f" (round {e.round})" if e.round else ""
    several = e.given is not None and len(e.given.rows) > 1
    place = f" in column {q.column} of batch row {q.call_row}" if several or q.column or q.call_row else ""
    own = f"It is at position {q.logical_position} of {'the row' if row == e.row else f'row {row}'}"
    model = "Draft" if e.component == "draft" else "Target"
    call = f"{model} call {q.call}{where} feeds token {q.token}{place}"
    first, rest = (e.deviations[0], e.deviations) if e.deviations else (None, ())
    if first is not None and first.kind == "query-position":
        lines = [f"{call} with position id {first.observed}. {own}, so its position id must be {first.expected}."]
        if first.source == "counted":
            right = f"so the position {first.origin} must be {first.expected}"
            lines = [f"{call}. {own}, {right}, and it is {first.observed}."]
        lines += _offset(e, first)
        rest = rest[1:]
    else:
        once = ", each once" * any(d.kind == "duplicate-entry" for d in rest)
        seen = f"positions {q.sees_from}..{q.logical_position}{once}" if q.logical_position else "itself only"
        lines = [f"{call}. {own} and must attend to {seen}."]
    clauses = say_all(rest)
    lines += map(sentence, clauses[:_CLAUSES])
    if len(clauses) > _CLAUSES:
        lines.append(f"{len(clauses) - _CLAUSES} more of what it attends to is wrong.")
    if e.detail and e.component != "unattributed":
        lines += [sentence(clause) for clause in (said(e.facts) or [e.detail])]
    if shift := shifted(e):
        lines.append(shift)
    if (
        e.component != "draft" and e.expected == e.observed and not nothing_expected(e)
    ):  # a wrong context that led to the right token
        lines.append(f"New token {e.token_index} is correct all the same.")
    return lines


def _offset(e: Explanation, d: Deviation) -> list[str]:
    """Say that the position id is too high by as many as there are masked rejected drafts before the token.

    Only where nothing else is known of it, and where the padding does not have the same number.
    """
    q = e.query
    own = next((s.index for s in e.slots if q and (s.kind, s.of_position) == ("token", q.logical_position)), None)
    if e.detail or own is None or d.observed is None or d.expected is None or d.source == "counted":
        return []
    masked: dict[str, list[int]] = {"draft": [], "pad": []}
    for slot in e.slots:
        if slot.kind in masked and slot.index is not None and slot.index < own:
            masked[slot.kind] += [] if slot.visible or slot.expected_visible else [slot.index]
    off, slots = d.observed - d.expected, masked["draft"]
    if off <= 0 or len(slots) != off or len(masked["pad"]) == off:
        return []
    if off == 1:
        masked_one = f"The rejected draft in slot {slots[0]} is masked, as it should be"
        return [f"{masked_one}; the position id is 1 too high, as if it still counted."]
    return [
        f"The {off} rejected drafts in slots {_numbers(slots)} are masked, as they should be; the position id is {off} "
        "too high, as if they still counted."
    ]


def _told(e: Explanation) -> list[str]:
    """The cause where no query is at fault: what the tokens or a search show."""
    if e.query is not None:
        return []
    lines = []
    if e.component != "unattributed" and e.basis not in ("", BY_TOKENS):
        lines.append(sentence(e.basis))
    lines += [sentence(clause) for clause in (said(e.facts) or e.said)]
    if e.search is not None:
        lines += [sentence(clause) for clause in searched(e.search)]
        if e.search.surprising:
            lines.append("The engine's internals were not read.")
    return lines or ["Nothing shows which part is broken."]


# The lines that confirm it.


def _confirmed(e: Explanation) -> Part | None:
    """Describe what repair and copies of the case with other tokens showed."""
    if e.component == "unattributed":
        return None
    lines = []
    if e.repair is not None and e.repair_confirms:
        lines.append(sentence(str(e.repair)))
    elif e.repair is not None and e.repair.failed:
        lines.append(f"The repair could not be tried ({e.repair.failed}).")
    same, other, none = e.permuted
    if same and (tried := same + other + none):
        does, one_does = ("lose draft tokens", "loses them") if e.component == "draft" else ("fail", "fails")
        right = "is correct" if none == 1 else "are correct"
        if e.component == "draft":
            right = "does not" if none == 1 else "do not"
        copies = f"{same} of {tried} copies of the case with other tokens {does} in the same way"
        copies += f"; {other} {does if other > 1 else one_does} in another way" if other else ""
        lines.append(copies + (f"; {none} {right}" if none else "") + ".")
    return Part("Confirmed", " ".join(lines)) if lines else None


def consequences(e: Explanation) -> list[str]:
    """List what else is wrong, in this call or later: an entry for each call and kind, and how often."""
    groups: dict[tuple[int, str], int] = {}
    for deviation in e.consequences:
        key = (deviation.call, deviation.fingerprint)
        groups[key] = groups.get(key, 0) + 1
    lines = [
        f"{fingerprint} in call {call}{f' ({count} times)' if count > 1 else ''}"
        for (call, fingerprint), count in groups.items()
    ]
    return lines[:_LINES] + ([f"and {len(lines) - _LINES} more"] if len(lines) > _LINES else [])


# The slots.


def slot_lines(e: Explanation) -> list[list[object]]:
    """Return the row's cache at the query at fault: mark, slot, content, token, position id, attended.

    Neighbours that are as they should be, and alike, share a line; ``mark`` is empty for them.
    """
    rows: list[list[object]] = []
    for alike, group in groupby(enumerate(e.slots), key=lambda numbered: _likeness(numbered[0], numbered[1], e)):
        slots = [slot for _, slot in group]
        if alike is not None and len(slots) >= _ALIKE:
            rows.append(_folded(slots, e))
        else:
            rows += [_line(slot, e) for slot in slots]
    return rows


def _picture(e: Explanation, width: int, brief: bool) -> list[str]:
    rows = slot_lines(e)
    if brief:
        gap: list[object] = ["", "...", "", "", "", ""]
        rows = [row for row, _ in groupby(row if row[0] else gap for row in rows)]
    headers = ["", "slot", "holds", "token", "position id", "attended"]
    short = ["", "slot", "holds", "token", "pos. id", "att."]
    if all(slot.position is None and slot.expected_position is None for slot in e.slots):  # the model takes none
        rows = [row[:4] + row[5:] for row in rows]
        headers, short = headers[:4] + headers[5:], short[:4] + short[5:]
    return table(rows, headers, width, short, tablefmt="plain").splitlines()


_TOKENS = ("token", "other-token")  # of the row itself, and of another one: neighbours hold positions in order


def _likeness(number: int, slot: Slot, e: Explanation) -> object:
    """Return what correct neighbours share; None for a slot that gets a line of its own."""
    if _wrong(slot) or slot.index is None or _is_query(slot, e):
        return None
    if _is_draft(slot, e):
        return DRAFT_OF_THIS_CALL, slot.visible
    if slot.kind not in _TOKENS or slot.of_position is None or slot.position is None:
        return slot.kind, slot.holds if slot.kind == "draft" else "", slot.of_row, slot.visible
    return slot.kind, slot.of_row, slot.of_position - number, slot.position - number, slot.visible


def _wrong(slot: Slot) -> bool:
    misplaced = slot.visible and slot.expected_position not in (None, slot.position)
    return slot.torn or slot.visible != slot.expected_visible or misplaced


def _folded(slots: Sequence[Slot], e: Explanation) -> list[object]:
    """A line for neighbours that are alike."""
    first, last = slots[0], slots[-1]
    token, position = _line(first, e)[3:5]
    if first.kind not in ("blank", "masked-pad"):
        token = first.token if len({slot.token for slot in slots}) == 1 else f"{first.token} .. {last.token}"
        position = "-" if first.position is None else f"{first.position}..{last.position}"
    if first.kind == "pad" and first.position == last.position:
        position = first.position
    several = first.kind in _TOKENS and not _is_draft(first, e)
    holds = held(first.kind, first.of_row, first.of_position, last.of_position) if several else _holds(first, e)
    return ["", f"{first.index}..{last.index}", holds, token, position, _attended(first)]


def _line(slot: Slot, e: Explanation) -> list[object]:
    marked, index = ">" if _wrong(slot) else "", "none" if slot.index is None else slot.index
    if slot.kind in ("blank", "masked-pad"):
        return [marked, index, _holds(slot, e), "-", "-", _attended(slot)]
    position = "-" if slot.position is None else str(slot.position)
    if slot.visible and slot.expected_position not in (None, slot.position):
        position += f", must be {slot.expected_position}"
    return [marked, index, _holds(slot, e), slot.token, position, _attended(slot)]


def _holds(slot: Slot, e: Explanation) -> str:
    if slot.kind == "blank":
        return "never written"
    holds = DRAFT_OF_THIS_CALL if _is_draft(slot, e) else slot.holds
    return holds + (", torn" if slot.torn else "") + (" (query)" if _is_query(slot, e) else "")


def _is_query(slot: Slot, e: Explanation) -> bool:
    """Return whether a slot is the one to which the query at fault writes its token.

    An earlier call may have written the same token elsewhere. A query's own slot has its position id; of several such
    slots it is the last.
    """
    own = [one for one in e.slots if _feeds(one, e)]
    placed = [one for one in own if e.query is not None and one.position == e.query.position]
    return slot in (placed or own)[-1:]


def _feeds(slot: Slot, e: Explanation) -> bool:
    """Return whether a slot holds the token that the query at fault feeds."""
    q, row = e.query, e.deviations[0].row if e.deviations else e.row
    return bool(
        q
        and slot.index is not None
        and slot.kind == "token"
        and slot.of_row in (row, None)
        and slot.of_position == q.logical_position
        and slot.token == q.token
    )


def _is_draft(slot: Slot, e: Explanation) -> bool:
    """Return whether a slot holds a draft token that the call at fault verifies: one after the query's own slot."""
    q, given = e.query, e.given
    if q is None or given is None or slot.index is None or slot.of_position is None:
        return False
    own = max((s.index for s in e.slots if s.index is not None and _is_query(s, e)), default=None)
    new = slot.kind in ("token", "draft") and slot.of_position >= len(given.prompt) and not slot.expected_visible
    return new and slot.of_position > q.logical_position and own is not None and slot.index > own


def _attended(slot: Slot) -> str:
    if slot.visible == slot.expected_visible:
        return "yes" if slot.visible else "no"
    return "yes, must be no" if slot.visible else "no, must be yes"


def _within(e: Explanation, offset: int) -> bool:
    """Return whether an offset of a row's entries is also that from which a wrong position id of the query is told.

    Entries and a later query may count from different places: then the shift is the fault, and no family allows it.
    """
    first = e.deviations[0] if e.deviations else None
    if first is None or e.query is None or first.kind != "query-position":
        return True
    return first.expected == e.query.logical_position + offset


def shifted(e: Explanation) -> str:
    """Say by how much all position ids of the row are shifted, where its model family allows that; else empty."""
    offsets = {
        slot.expected_position - slot.of_position
        for slot in e.slots
        if slot.expected_position is not None and slot.of_position is not None and slot.kind == "token"
    }
    if len(offsets) == 1 and (offset := offsets.pop()) and _within(e, offset):
        return f"(All position ids of the row are shifted by {offset:+d}; this model family allows that.)"
    return ""


# A request that is right alone and wrong after others.


class SequencedRequest(NamedTuple):
    """A request of a sequence, for its line; ``seeds`` are those of target and draft, where they change."""

    prompts: tuple[tuple[int, ...], ...]
    max_new_tokens: int
    num_draft_tokens: int
    eos_token_ids: tuple[int, ...]
    pad_token_id: int
    padding_side: str
    family: str
    cache_state: str
    seeds: tuple[int, int] | None = None


class Leak(NamedTuple):
    """The facts on a request that is right alone, and of which ``wrong`` says what is wrong after the ``earlier`` ones.

    Both were seen so many ``times``. ``stale``: after the same requests under its own weights the last one is right.
    ``emitted_before``: its wrong row is what the target of an earlier request would emit.
    """

    wrong: Explanation
    earlier: tuple[SequencedRequest, ...]
    last: SequencedRequest
    times: int
    stale: bool
    emitted_before: bool


def leak_words(leak: Leak) -> str:
    """The explanation of a leak: what was tried, what it showed, and a line for each request."""
    often = f" ({leak.times} of {leak.times} times, each in a new process)" if leak.times > 1 else ""
    others = "the earlier request" if len(leak.earlier) == 1 else f"the {len(leak.earlier)} earlier requests"
    lines = [
        f"Alone, the last request is answered correctly{often}.",
        f"After {others} it is not{often}: {_wrong_after(leak.wrong)}.",
    ]
    if leak.stale:
        lines.append(f"After {others} under the same weights as the last one, it is answered correctly{often}.")
        lines += _of_other_weights(leak)
    for number, earlier in enumerate(leak.earlier, start=1):
        which = f"Earlier request{f' {number}' if len(leak.earlier) > 1 else ''}:"
        lines.append(f"{which} {_request_line(earlier)}")
    return "\n".join([*lines, f"Last request: {_request_line(leak.last)}"])


def _of_other_weights(leak: Leak) -> list[str]:
    """Return sentences on what the target of the last request saw of other weights, and whose tokens were emitted."""
    sentences, facts = list[str](), leak.wrong.facts
    if "stale_call" in facts:
        one, first, last = facts["stale_entries"] == 1, facts["stale_from"], facts["stale_to"]
        at = f"position {first}" if first == last else f"positions {first} to {last}"
        entries = "an entry that was" if one else f"{facts['stale_entries']} entries that were"
        sentences.append(
            f"In call {facts['stale_call']} of the last request, batch row {facts['stale_row']} of the target attends "
            f"to {entries} written under other weights ({at})."
        )
    if leak.emitted_before:
        count = len(leak.wrong.observed_row)
        sentences.append(
            f"Row {leak.wrong.row} is what the target of the earlier request would emit: {count} of {count} tokens are "
            "those of the weights before."
        )
    return sentences


def _wrong_after(wrong: Explanation) -> str:
    if wrong.row is None or wrong.token_index is None:
        return f"{wrong.fingerprint.partition(':')[0]}, {wrong.detail}"
    place = f"new token {wrong.token_index} of row {wrong.row}"
    if wrong.observed is None:
        return f"{place} is missing, it must be {wrong.expected}"
    right = "the row must end before it" if wrong.expected is None else f"it must be {wrong.expected}"
    return f"{place} is {wrong.observed}, {right}"


def _request_line(request: SequencedRequest) -> str:
    rows = f"{len(request.prompts)} requests, " if len(request.prompts) > 1 else ""
    prompts = " | ".join(" ".join(map(str, prompt)) for prompt in request.prompts)
    facts = [
        f"{rows}prompt{'s' if rows else ''} {prompts}; max_new_tokens {request.max_new_tokens}",
        f"K = {request.num_draft_tokens}",
        eos_words(request.eos_token_ids),
        f"pad id {request.pad_token_id}",
        f"{request.padding_side} padding",
        f"family {request.family}",
    ]
    if request.seeds:
        target, draft = request.seeds
        facts.append(
            f"weights of seed {target}" if target == draft else f"weights of seed {target} (target) and {draft} (draft)"
        )
    if request.cache_state != "empty":
        facts.append(f"cache state {request.cache_state} ({CACHE_STATES[request.cache_state]})")
    return ", ".join(facts)
