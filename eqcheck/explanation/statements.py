"""Facts as clauses and sentences: statements by name, deviations, a search, the condition of a cause."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from eqcheck.contract.kinds import KINDS
from eqcheck.explanation.records import Deviation, Explanation, Search, many

# Numbers take their noun from the format: ``{tokens:token}`` is "1 token" or "2 tokens".
STATEMENTS = {
    # rows that end wrongly, or are not their own
    "eos-missing": "only the EOS that ends the row is missing",
    "ends-early": "{emitted} of {expected_tokens} tokens were emitted, all of them right",
    "sampled-ends-early": "{emitted} of {expected_tokens} tokens were emitted, and the last is no EOS",
    "nothing-emitted": "none of {expected_tokens:token} was emitted",
    # what else there is to say of a row that ends early
    "eos-answered": "the target had answered its EOS, id {missing}, in call {answered_in}; it was not emitted",
    "next-answered": "the target had answered the missing id {missing} in call {answered_in}; it was not emitted",
    "eos-of-others": "{eos_rows:row} emitted an EOS in this round",
    "limit-of-others": "{limit_rows:row} reached the limit in this round",
    "nobody-ended": "no other row emitted an EOS or reached the limit in this round",
    "all-right": "all draft tokens of {full_rows:row} were the target's own in this round",
    "eos-drafted": "an EOS was among the rejected draft tokens of {drafted_rows:row} in this round",
    "eos-in-prompt": "the row's prompt holds an EOS at position {eos_position}",
    "stop-with-prompt": "the row's prompt and new tokens together hold its stop sequence {stop}",
    "pad-last": "the row's last token is the pad id",
    "as-many-pads": "as many ids of its right row are the pad id as are missing",
    "little-room": "the row is {room:token} short of its limit, where a block has up to K + 1 = {block}",
    "calls-end": "the target is not called after this round",
    "pads-behind": "the row goes on with {pads:pad} after its end",
    "goes-on": "the row goes on with {tokens:token} after its EOS",
    "stop-passed": "the row goes on with {tokens:token} after its stop sequence {stop}",
    "reason": "the row ends at {given}, and {told} is told",
    "logprob": "new token {index} has the log-probability {own}, and {told} is told",
    "logprob-mixed": "of new token {index} the log-probability with the row's option is told, of new token {other} "
    "the log-probability without it",
    "prompt-logprob": "token {index} of the prompt has the log-probability {own}, and {told} is told",
    "prompt-logprobs": "{told:log-probability} are told of the prompt, which has {tokens}",
    "logprob-before": "from new token {index} on, each log-probability that is told is that of the token before",
    "logprob-behind": "from new token {index} on, each log-probability that is told is that of the token behind",
    "switched": "with {switch} the engine emits other tokens here than it does without drafts",
    "beside": "with {switch} the engine returns other {what} with the row than it does without drafts{place}",
    "usage": "{count} is {told}, and the row has {tokens}",
    "too-long": "the row has {tokens:token} where the limit is {limit}",
    "of-another-row": "the row holds exactly what row {other_row} should hold",
    "short-start": "the output begins {tokens:id} too early, with the end of its prompt",
    "as-many-special": "as many ids of the prompt equal {special}",
    "left-behind": "with other prompt ids in {gone:row} this row emits other tokens; it arrived {steps:step} after "
    "their last token was due",
    # where a wrong token comes from
    "unverified": "the emitted token is the draft's proposal, and the target was never fed it to verify it",
    "models-exchanged": "the emitted token is the draft's proposal, and the target was never fed it to verify it; the "
    "draft was fed the target's answer there instead, as if the two models were exchanged",
    "rejected": "the emitted token is the draft token that the target rejected",
    "refused-beside": "the target was fed the emitted token behind this query, like a draft token, and answered "
    "another",
    "rejected-unqueried": "the emitted token is the draft token though the target was not asked in the right context",
    "rejected-again": "the emitted token is the draft token that the target rejected, and new token {before} again",
    "rejected-unqueried-again": "the emitted token is the draft token though the target was not asked in the right "
    "context, and new token {before} again",
    "rejected-or-behind": "the emitted token is the rejected draft token, and also what the target predicted behind "
    "one",
    "rejected-or-filler": "the emitted token is the rejected draft token, and also what the target answered in the "
    "column of filler",
    "behind": "the emitted token is what the target predicted after a rejected draft token",
    "behind-or-again": "the emitted token is new token {before} again, and also what the target predicted after a "
    "rejected draft token",
    "filler": "the emitted token is what the target answered in the column of filler",
    "filler-or-again": "the emitted token is new token {before} again, and also what the target answered in the column "
    "of filler",
    "twice": "new token {before} is emitted twice",
    "twice-or-elsewhere": "new token {before} is emitted twice, or the target's answer behind position {position} is "
    "read in place of the right one",
    "twice-or-of-another": "new token {before} is emitted twice, or the target's answer behind position {position} of "
    "row {other_row} is read in place of the right one",
    "one-lost": "new token {index} is missing, and the one after it stands in its place",
    "exchanged": "new tokens {index} and {behind} have changed places",
    "lost": "the row goes on after {tokens:missing token}",
    "pad": "new token {index} is the pad id",
    "behind-pad": "the emitted token is what the target answered in the column of a pad",
    "elsewhere": "the emitted token is the target's answer behind position {position}",
    "elsewhere-of-another": "the emitted token is the target's answer behind position {position} of row {other_row}",
    "slots-of-another": "of the slots that were there in call {last_call} it sees those that are right for row "
    "{other_row}, which held batch row {held_row} up to that call",
    "due-to-another": "{due} is the position due to row {other_row}, which held batch row {held_row} up to call "
    "{last_call}",
    "counts-nodes": "it counts nodes, not depth: in call {call} the positions of batch row {batch_row} only "
    "number the nodes of the tree",
    "other-node": "the target's answer there is in column {right_column} of batch row {batch_row} of call {call}; the "
    "emitted token is its answer in column {column}, at another node of the tree",
    "missing-node": "call {call} was not fed any node for position {position}; its answer in column {column} of batch "
    "row {batch_row} is taken for the one behind that position, as if the node were there and accepted",
    "unfinished": "the prompt was not yet fed whole: when call {call} answered, positions 0..{last} of 0..{end} had "
    "been fed; the emitted token is its answer behind position {position}",
    "neither": "the emitted token is neither the draft token nor the target's prediction there",
    "window-alone": "only layers with a window are wrong here; the others see exactly the row",
    "convolution-alone": "only the inputs of the convolution are wrong here; the recurrent state has exactly the row",
    # why no cause is named
    "unread-answer": "call {right_call} answered rightly for this token; what was emitted was answered in column "
    "{column} of batch row {batch_row} of call {other_call}, and it is not known for which token",
    "no-query": "no query was found that had to predict this token",
    "no-difference": "a query had to predict this token, but no difference in what it saw explains that its hash is "
    "wrong",
    "no-right-query": "no target query that saw exactly its row stands behind this token",
    "slot-unexplained": "slot {slot} is not what it should be, and no query was found that explains it",
    "displaced": "the mask shows slot {shown_slot} where the query's own entry is in slot {own_slot}; either may be "
    "wrong",
    "outputs-alone": "outputs alone do not show which part is broken; `eqcheck audit` of the decoder does",
    "beyond-noise": "a token of the row lies {gap} nats below the target's own choice, and {threshold} nats are twice "
    "the noise; rows with such a token so far: {exceeding} of {counted}; the evidence is 1e{log10}, and 1e6 decides; "
    "outputs alone do not show which part is broken",
    # what a decoder declares
    "chunk": "chunked: call {call} feeds {tokens:token} of row {row}'s prompt in batch row {batch_row} (positions "
    "{first_position}..{last_position}), where `prefill_chunk` allows {limit}",
    "arrival": "late-rows: call {call} feeds row {row} (position {first_position}) in batch row {batch_row} after "
    "{calls:target call}, where `arrivals` has it wait for {limit}; not done before it: row {waiting}",
    "prefix-fed": "prefix: call {call} feeds position {first_position} of row {row} in batch row {batch_row}, where "
    "the cache that is handed over holds the first {length:token} (`prefix_length`)",
    "prefix-fed-many": "prefix: call {call} feeds positions {first_position}..{last_position} of row {row} in batch "
    "row {batch_row}, where the cache that is handed over holds the first {length:token} (`prefix_length`)",
    "unwritten": "preallocated: nothing was ever written into the cache that is handed over for the target, in "
    "{calls:target call}; call {call} saw {slots:slot}, where the cache has {capacity}",
}


class _Number(int):
    def __format__(self, noun: str) -> str:
        return many(self, noun) if noun else str(int(self))


class _Numbers(str):
    """Several, as "1 2"; ``{rows:row}`` is "row 1" or "rows 1 and 2"."""

    def __format__(self, noun: str) -> str:
        *begin, last = self.split() if noun else [str(self)]
        return f"{noun}s {', '.join(begin)} and {last}" if begin else f"{noun} {last}" if noun else last


class Statement(NamedTuple):
    """A statement in words, and the facts in it; its name is the fact ``statement``."""

    detail: str
    facts: dict[str, int | str]


NOTHING = Statement("", {})


def state(name: str, **facts: int | str) -> Statement:
    """A statement of the table.

    >>> state("lost", tokens=2)
    Statement(detail='the row goes on after 2 missing tokens', facts={'statement': 'lost', 'tokens': 2})
    """
    shown = {key: _Number(value) if isinstance(value, int) else _Numbers(value) for key, value in facts.items()}
    return Statement(STATEMENTS[name].format(**shown), {"statement": name, **facts})


def together(first: Statement, *others: Statement) -> Statement:
    """Several statements as one, whose name is that of the first; the names of the others are the fact ``also``.

    >>> both = together(state("lost", tokens=2), state("eos-of-others", eos_rows="1 3"))
    >>> both.detail, both.facts["also"]
    ('the row goes on after 2 missing tokens; rows 1 and 3 emitted an EOS in this round', 'eos-of-others')
    """
    also = " ".join(str(one.facts["statement"]) for one in others)
    facts = {key: value for one in (*others, first) for key, value in one.facts.items()}
    return Statement("; ".join(one.detail for one in (first, *others)), {**facts, **({"also": also} if also else {})})


_AT = {"token": "", "draft": "rejected draft at ", "cut-draft": "cut draft at "}


def held(kind: str, row: int | None, position: int | None, last: int | None = None) -> str:
    """The content of a slot, by its kind, its row and its logical position, or neighbours up to the ``last`` position.

    >>> held("token", 0, 3, 5), held("other-draft", 1, 3), held("pad", None, None)
    ('positions 3..5', 'row 1, rejected draft at position 3', 'pad')
    """
    own = kind.removeprefix("other-")
    if own not in _AT:
        return kind
    at = f"position {position}" if last is None else f"positions {position}..{last}"
    return f"{'' if own == kind else f'row {row}, '}{_AT[own]}{at}"


def held_within(kind: str, row: int | None, position: int | None, article: str = "the ") -> str:
    """The same within a sentence.

    >>> held_within("other-draft", 1, 3), held_within("pad", None, None)
    ('the rejected draft at position 3 of row 1', 'a pad')
    """
    own = kind.removeprefix("other-")
    if own not in _AT:
        return {"pad": "a pad", "draft model": "an entry of the draft model"}.get(kind, kind)
    draft = f"{article}{_AT[own]}" if _AT[own] else ""
    return f"{draft}position {position}{'' if own == kind else f' of row {row}'}"


def said(facts: Mapping[str, int | str]) -> list[str]:
    """The clauses of several statements that were put `together`, made from their facts; none for a single one.

    >>> said(together(state("lost", tokens=2), state("calls-end")).facts)
    ['the row goes on after 2 missing tokens', 'the target is not called after this round']
    """
    if "also" not in facts:
        return []
    told = {key: value for key, value in facts.items() if key not in ("statement", "also")}
    return [state(name, **told).detail for name in (str(facts["statement"]), *str(facts["also"]).split())]


def ends_early(emitted: int, limit: int) -> Statement:
    """The statement on a sampled row that ends before its limit and without an EOS.

    >>> ends_early(3, 4).detail
    '3 of 4 tokens were emitted, and the last is no EOS'
    """
    if not emitted:
        return state("nothing-emitted", expected_tokens=limit)
    return state("sampled-ends-early", emitted=emitted, expected_tokens=limit)


def nothing_expected(e: Explanation) -> bool:
    """Whether the row is drawn by chance: then no token of it is the right one, and only how it ends may be wrong.

    >>> nothing_expected(Explanation("bookkeeping", "over-length", 0, 1, observed=7, observed_row=(5, 7)))
    True
    """
    return not e.expected_row and e.expected is None


def sentence(clause: str) -> str:
    """A clause as a sentence.

    >>> sentence("the row ends too early")
    'The row ends too early.'
    """
    return f"{clause[:1].upper()}{clause[1:]}."


_LEAST = 1e-200  # a product of so many chances says no more than that it is none


def searched(search: Search) -> list[str]:
    """The result of a search, as clauses.

    >>> for clause in searched(Search("pads-seen", "pads are seen", 3, 4, 2e-6, tried=390)):
    ...     print(clause)
    the reference emits 3 of 4 wrong tokens if pads are seen
    390 edits were tried, and any of them does so by chance with probability 2e-06
    """
    if not search.surprising:
        return [search.words]
    cases = f"{many(search.cases, 'case')} like this one, of which {search.wrong_cases} are wrong"
    where = {"a larger case": "in a larger case ", "cases like this one": f"in {cases}, "}.get(search.of, "")
    clauses = [f"{where}the reference emits {search.explained} of {search.surprising} wrong tokens if {search.words}"]
    if search.chance:
        chance = max(search.chance, _LEAST)
        than = "less than " if chance > search.chance else ""
        sure = f"any of them does so by chance with probability {than}{chance:.1g}"
        clauses.append(f"{many(search.tried, 'edit')} were tried, and {sure}")
    else:
        clauses.append("the options forbid a token that was emitted, so this is no chance")
    return clauses + [f"as much is explained by {rival}" for rival in search.rivals]


def about_condition(needs: Sequence[str] | None, plain: str) -> str:
    """The needs of a case that fails, None where they are not known, and whether the fault is the speculation's.

    >>> about_condition(("token-budget",), "right")
    'Needs token-budget. Without speculation the engine is right on this case.'
    """
    wrong_too = "Without speculation the engine is wrong on this case too: the fault is not the speculation's."
    if needs is None:
        return wrong_too if plain == "wrong too" else ""
    options, many_rows = [name for name in needs if name != "many-rows"], "many-rows" in needs
    needed = f"Needs {', '.join(options)}" if options else "Needs no option: it fails at the defaults"
    needed += ", with many rows." if many_rows else "."
    if plain == "right":
        return f"{needed} Without speculation the engine is right on this case."
    if not plain:
        return needed
    return f"{needed} {wrong_too}"


def reason(e: Explanation) -> str:
    """All that is said of the cause beside its kind, in one line."""
    return e.detail or " ".join(map(sentence, searched(e.search))) if e.search else e.detail


def say(d: Deviation) -> str:
    """One deviation as a clause.

    >>> say(Deviation("position", "query-position", 3, 0, 1, token_position=5, expected=5, observed=7))
    'the query carries position 7 where position 5 is right'
    """
    if d.origin == "blank":
        return f"slot {d.slot} was never written and is seen"
    slot = f"slot {d.slot}"
    return KINDS[d.kind].clause.format(
        slot=slot,
        at=f"position {d.token_position}",
        held=_held(d),
        bare=_held(d, ""),
        origin=d.origin,
        reason=f" ({d.origin})" if d.origin else "",
        seen="" if d.slot is None else f"{slot} is seen, and ",
        token=d.token,
        expected=d.expected,
        observed=d.observed,
    )


def _held(d: Deviation, article: str = "the ") -> str:
    """The content of a slot, within a sentence."""
    if d.source == "filler":
        return f"{d.origin} (id {d.token})"
    return held_within(d.source, d.of_row, d.of_position, article) or d.origin or "an unknown entry"
