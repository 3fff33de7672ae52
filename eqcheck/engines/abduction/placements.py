"""Try edits of what is seen: everywhere in a case, or once, in a row, from a round on; as programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import combinations, product
from typing import Any

from eqcheck.engines.abduction.context_edits import CONTEXTS
from eqcheck.engines.abduction.evidence import Evidence
from eqcheck.engines.abduction.queries import Program, Round, recomputed, restricted
from eqcheck.engines.abduction.simulation import ALWAYS, RIGHT, ContextEdit, EditedContext, Simulation
from eqcheck.engines.checkpoints.dictation import agreeing
from eqcheck.engines.construction.function import Function

AT_ONSET = (
    "newest-shifted",
    "rejected-kept",
    "first-rejected-kept",
    "newest-lost",
    "newest-again",
    "future-seen",
    "itself-hidden",
    "restored-with-all",
)
# They may happen after some rollbacks only: of many draft tokens, or of all of a round.
AFTER_SOME = (
    "newest-lost",
    "rewound-too-far",
    "rejected-kept",
    "nothing-rolled-back",
    "first-rejected-kept",
    "first-rejected-counted",
)
IN_BOTH = ("rejected-kept", "nothing-rolled-back")  # the draft's cache may be kept by the same code
STATES_OF_BOTH = ("state-keeps-rejected",)  # and so may the draft's states
OF_WINDOW = "window"  # the scope of edits that layers with a window may have alone
GRAIN, BEHIND = 8, 32  # prefixes are cached in blocks of so many tokens; a state may be so many away from its place
ONSETS = 12  # of the rounds before the first wrong token the last so many: each costs some 40 hypotheses for a row


def systematic(evidence: Evidence) -> Iterator[EditedContext]:
    """Every edit in every style that it makes a difference to, and in parts of the target that it may happen in alone.

    Those of a state or window are tried where the target has one.
    """
    for edit in CONTEXTS:
        if not _concerns(evidence, edit):
            continue
        for amount, place in product(edit.amounts, edit.places):
            yield from _in_style(evidence, edit, amount, place)


def _in_style(evidence: Evidence, edit: ContextEdit, amount: int, place: str) -> Iterator[EditedContext]:
    """An edit in one style; where rows have caches of their own, also in parts, later, and in the draft's cache."""
    style, _, schedule = place.partition("/")
    once = edit.scope == "prefix"  # a hit may be of a row that ended otherwise
    context = EditedContext(edit=edit, amount=amount, style=style, schedule=schedule, once=once)
    yield context
    if style == "separate":
        yield from _in_parts(evidence, context)
        yield from _grown(evidence, context)
        yield from _after_some(evidence, context)
    if place == "separate/own" and edit.id in IN_BOTH and isinstance(evidence.draft, Function):
        yield replace(context, schedule="stale:1")
        for grown in _grown(evidence, context):
            yield replace(grown, schedule=f"stale:{grown.since + 1}")
    if place == "separate/own" and edit.id in STATES_OF_BOTH:
        for name in evidence.with_stale_states:
            yield replace(context, schedule=name)


def _concerns(evidence: Evidence, edit: ContextEdit) -> bool:
    """Return whether the target has what an edit is of: a state, windows, or prefixes that are cached."""
    has = {
        "state": evidence.recurrent,
        "states": evidence.recurrent,
        "windows": bool(evidence.windows),
        "prefix": bool(evidence.case.prefix_caching),
    }
    return has.get(edit.scope, True)


def _in_parts(evidence: Evidence, context: EditedContext) -> Iterator[EditedContext]:
    """The same, in parts of the target only."""
    for words, parts in evidence.scopes.get(context.edit.scope, ()):
        yield replace(context, when=f"{context.when} {words}".strip(), parts=parts)


def _after_some(evidence: Evidence, context: EditedContext) -> Iterator[EditedContext]:
    """The same after some of the rounds in which draft tokens are rejected: many of them, or all of a round."""
    if context.edit.id not in AFTER_SOME or context.amount > evidence.case.num_draft_tokens:
        return
    turns = [turn for turns in evidence.schedules[context.schedule] for turn in turns]
    rejecting = [turn for turn in turns if turn.accepted < len(turn.drafts)]
    # Where no token is rejected none is left; what is taken out besides may be taken out of any round.
    known = {tuple(turns if context.edit.kind == "missing-entry" else rejecting)}
    for none_accepted, least in product((False, True), range(1, evidence.case.num_draft_tokens + 1)):
        some = replace(context, rejected=least, none_accepted=none_accepted)
        if (after := tuple(filter(some.takes_back, rejecting))) and after not in known:
            known.add(after)
            yield replace(some, when=f"{context.when} {_rejecting(least, none_accepted)}".strip())


def _rejecting(least: int, none_accepted: bool) -> str:
    """Words for rounds in which so many draft tokens are rejected, or more, or all."""
    if none_accepted:
        return f"where all of {least} or more draft tokens are rejected" if least > 1 else "where none is accepted"
    return f"where {least} or more draft tokens are rejected" if least > 1 else "after a rejection"


def _grown(evidence: Evidence, context: EditedContext) -> Iterator[EditedContext]:
    """The same once a row fills a window, or is longer: where a ring comes round, it may no longer be taken back."""
    if context.edit.scope == OF_WINDOW:
        for full in evidence.rings:
            grown = replace(
                context, since=full - 1, when=f"{context.when} from {full} tokens (prompt and output) on".strip()
            )
            yield grown
            yield from _in_parts(evidence, grown)


def single(evidence: Evidence, row: int, wrong: int) -> Iterator[EditedContext]:
    """Edits that happen to one row, once or from some round on; ``wrong`` is the index of its first wrong token."""
    length = len(evidence.prompts[row])
    rounds = enumerate(evidence.schedules["own"])
    turns = [(n, turn) for n, turns in rounds for turn in turns if turn.row == row and turn.start <= length + wrong]
    onsets = [n for n, _ in turns][-ONSETS:]
    others = [other for other in range(len(evidence.texts)) if other != row]
    reach = evidence.case.num_draft_tokens + 1
    # The first of the edits that explain as much by the same chance is named: this order decides.
    for onset in onsets:
        yield from _at_onset(row, onset, others, reach)
    for other, onset in product(others, onsets):
        yield _once("rows-exchanged", row, other, onset, onset, when=f"after round {onset + 1}", row=other)
    for other, whole in product(others, (0, 1)):
        yield _once("ended-row-seen", other, row, token=whole, row=other)
    for token in range(length + wrong):
        written = next((n for n, turn in turns if token < turn.end - 1), turns[-1][0])
        for onset in sorted({written, max(0, turns[-1][0] - 1)}):
            yield _once("token-lost", row, 0, onset, token=token, when=f"after round {onset + 1}", position=token)
    for token, name in product(range(1, length), ("chunk-lost", "chunk-blind", "chunk-restarted")):
        yield _once(name, row, token=token, position=token)
    for cap in range(1, length + wrong - 1):
        yield _once("capped-positions", row, token=cap, position=cap)
    yield from _of_prefixes(evidence, row, others)
    yield from _of_windows(row, length * bool(evidence.windows))
    if evidence.recurrent:
        for context in _of_states(evidence, row, others):
            yield context
            yield from _in_parts(evidence, context)


def _at_onset(row: int, onset: int, others: Sequence[int], reach: int) -> Iterator[EditedContext]:
    """Edits of what a row sees in one round, or from there on; positions are shifted by up to ``reach``."""
    for last, when in ((onset, f"in round {onset + 1} only"), (ALWAYS, f"from round {onset + 1} on")):
        for shift in (*range(-reach, 0), *range(1, reach + 1)):
            yield _once("shifted-positions", row, shift, onset, last, when=when, shift=f"{shift:+d}")
        for name in AT_ONSET:
            yield _once(name, row, 1, onset, last, when=when)
        for other, name in product(others, ("another-seen", "another-instead")):
            yield _once(name, row, other, onset, last, when=when, row=other)


def _of_windows(row: int, length: int) -> Iterator[EditedContext]:
    """Blocks of a window that are lost behind a hit, at the edges of blocks, in a prompt of this ``length``."""
    for hit in range(GRAIN, length, GRAIN):
        for first, last in combinations(range(0, hit + 1, GRAIN), 2):
            said: dict[str, Any] = {"position": hit, "begin": first, "end": last - 1}
            yield _once("window-lost", row, hit, token=first, source=last, **said)


def _of_prefixes(evidence: Evidence, row: int, others: list[int]) -> Iterator[EditedContext]:
    """Edits of a beginning of the prompt that is cached already."""
    prompt = evidence.prompts[row]
    for hit in range(GRAIN, len(prompt), GRAIN):
        yield _once("positions-behind-hit", row, token=hit, position=hit)
    if not evidence.case.prefix_caching:
        return
    for short in (1, 2):
        yield _once("hit-short", row, short)
    for other in others:
        text = evidence.texts[other]
        for begin, end in _taken(prompt, text):
            prefilled = end <= len(evidence.prompts[other])  # together with the row, as far as that matters
            if prefilled or other < row:
                said: dict[str, Any] = {"token": end, "source": begin, "schedule": "own" if prefilled else "in-turn"}
                said |= {"begin": begin, "end": end - 1, "row": other}
                yield _once("hit-of-another", row, other, **said)


def _taken(prompt: Sequence[int], text: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Where tokens of a text may be taken for those of a prompt, and are not: other ones, or the same behind others.

    A cache that knows a block by its own tokens alone finds the same behind others.
    """
    most, shared = min(len(prompt), len(text) + 1), agreeing(prompt, text)
    for end in range(shared + 1, most):
        if end < 2 * GRAIN or end % GRAIN == 0:
            yield 0, end
    for begin in range(GRAIN, most, GRAIN):
        for end in range(begin + GRAIN, most, GRAIN):
            if begin > shared and prompt[begin:end] == text[begin:end]:
                yield begin, end


def _of_states(evidence: Evidence, row: int, others: list[int]) -> Iterator[EditedContext]:
    """Edits of the state with which a row begins, or goes on in its prompt or behind it."""
    prompt = evidence.prompts[row]
    for token in range(1, len(prompt) + 1):
        yield _once("state-cut", row, token=token, position=token)
    for token in range(1, len(prompt)):
        yield _once("state-without-end", row, token=token, position=token)
    for token in range(1, GRAIN * 3 + 1):
        yield _once("state-pads", row, token=token, schedule="in-turn", count=token)
    rounds = evidence.schedules["in-turn"]
    own = [number for number, (turn,) in enumerate(rounds) if turn.row == row]
    ended = [other for other in others if other < row]
    known = max((agreeing(prompt, evidence.texts[other]) for other in ended), default=0)  # a cached prefix is no longer
    for other in ended:
        yield from _of_left_states(row, other, own[:-1])
        yield _of_place(row, len(prompt), other, len(evidence.prompts[other]))
        for token, count in _mistaken_places(prompt, evidence.texts[other], known):
            yield _of_place(row, token, other, count)


def _of_left_states(row: int, other: int, onsets: Sequence[int]) -> Iterator[EditedContext]:
    """A row begins with the state that another one left, or takes it up between its rounds, rejected tokens or not."""
    for rejected in (0, 1):
        said: dict[str, Any] = {"token": rejected, "schedule": "in-turn", "row": other}
        yield _once("state-left", row, other, **said)
        for number, onset in enumerate(onsets):
            yield _once("state-taken", row, other, onset, onset, when=f"after its round {number + 1}", **said)


def _mistaken_places(prompt: Sequence[int], text: Sequence[int], known: int) -> Iterator[tuple[int, int]]:
    """The tokens of a prompt, up to those ``known`` in a cache, and of a text whose state may be taken for theirs.

    Where both begin alike, the states near by may be; elsewhere only those that a cache keeps, at the edges of blocks.
    """
    shared = agreeing(prompt, text)
    for token in range(GRAIN, min(known, len(prompt) - 1) + 1, GRAIN):
        near = range(max(1, token - BEHIND), min(len(text), token + BEHIND) if token <= shared else 0)
        for count in sorted({*near, *range(GRAIN, len(text), GRAIN)}):
            if count != token or token > shared:
                yield token, count


def _of_place(row: int, token: int, other: int, count: int) -> EditedContext:
    said: dict[str, Any] = {"token": token, "source": count, "schedule": "in-turn"}
    said |= {"position": token, "row": other, "count": count}
    return _once("state-of-another-place", row, other, **said)


def _once(name: str, of: int, amount: int = 0, first: int = 0, last: int = ALWAYS, **said: Any) -> EditedContext:
    """An edit that happens to a row; besides places and rounds, ``said`` are the parameters of its words."""
    edit = next(edit for edit in CONTEXTS if edit.id == name)
    tried: dict[str, Any] = {key: said.pop(key) for key in ("token", "source", "schedule") if key in said}
    when = said.pop("when", "")
    parameters = tuple((key, str(value)) for key, value in said.items())
    tried |= {"amount": amount, "first": first, "last": last, "row": of}
    return EditedContext(edit=edit, parameters=parameters, when=when, once=True, **tried)


def programs(evidence: Evidence, context: EditedContext, final: int, row: int | None = None) -> list[Program]:
    """The programs of all calls up to the round ``final``, in one context; of one row, if only that is asked for."""
    rounds, edit = evidence.schedules[context.schedule], context.edit
    if context.style in ("recomputed", "expanded"):
        texts, prompts, expanded = evidence.texts, evidence.prompts, context.style == "expanded"
        return recomputed(texts, prompts, edit.anew, context.amount, rounds[: final + 1], expanded)
    final = final if edit.change.end is RIGHT.end else len(rounds)  # what it ends with may concern any round
    # Rows with caches of their own do not meet, but where an edit makes them, or pads a block for the longest one.
    alone = row if context.style == "separate" and edit.kind != "wrong-row" and not edit.change.pads_after else None
    program = Simulation(evidence, context, _of_row(rounds[: final + 1], alone)).program
    if not context.parts:
        return [program]
    return [restricted(_right(evidence, context.style, context.schedule, final, alone), program, context.parts)]


def _of_row(rounds: Sequence[Round], row: int | None) -> Sequence[Round]:
    """The rounds, with the turns of one row only; a round without it is empty."""
    return rounds if row is None else [tuple(turn for turn in turns if turn.row == row) for turns in rounds]


@lru_cache(maxsize=64)  # the rounds of a row
def _right(evidence: Evidence, style: str, schedule: str, final: int, row: int | None) -> Program:
    """The program of an engine without a fault."""
    context = EditedContext(edit=ContextEdit("", "", ""), style=style, schedule=schedule)
    return Simulation(evidence, context, _of_row(evidence.schedules[schedule][: final + 1], row)).program
