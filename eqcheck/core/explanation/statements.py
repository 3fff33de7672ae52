"""Facts as clauses and sentences: statements by name, deviations, a search, the condition of a cause."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import groupby
from math import inf, log10
from typing import Literal, NamedTuple

from eqcheck.contract.kinds import KINDS
from eqcheck.core.explanation.records import Deviation, Explanation, Opinion, Search, many

# Numbers take their noun from the format: ``{tokens:token}`` is "1 token" or "2 tokens"; ``{nth:th}`` is "2nd".
STATEMENTS = {
    # why draft tokens are lost, where every context is right
    "fed-another": "draft call {call} feeds token {fed} at position {position} of the row, where token {due} is due; "
    "what it attends to before that is correct",
    "given-another": "draft call {call} attends to exactly the right tokens and proposes {proposed}; target call "
    "{target_call} is given {given} in its place",
    "answer-dropped": "all draft tokens of the row in target call {call} were accepted, and the call predicted new "
    "token {index}, {token}; it is verified again in call {again}",
    "proposal-of": "that is what the draft proposed for row {other_row}",
    # rows that end wrongly, or are not their own
    "eos-missing": "only the EOS that ends the row is missing",
    "ends-early": "{emitted} of {expected_tokens} tokens were returned, all of them correct",
    "sampled-ends-early": "{emitted} of {expected_tokens} tokens were returned, and the last is not an EOS",
    "refused": "the engine ended the row with an error after {emitted:token}, all of them correct",
    "refused-behind": "the engine ended the row with an error, after {emitted:token}",
    "nothing-emitted": "none of {expected_tokens:token} was returned",
    # what else there is to say of a row that ends early
    "eos-answered": "the target predicted the EOS, token {missing}, in call {answered_in}; it was not returned",
    "next-answered": "the target predicted the missing token {missing} in call {answered_in}; it was not returned",
    "eos-of-others": "{eos_rows:row} reached an EOS in this round",
    "limit-of-others": "{limit_rows:row} reached max_new_tokens in this round",
    "nobody-ended": "no other row reached an EOS or max_new_tokens in this round",
    "all-right": "all draft tokens of {full_rows:row} were accepted by the target in this round",
    "eos-drafted": "an EOS was among the rejected draft tokens of {drafted_rows:row} in this round",
    "eos-in-prompt": "the prompt contains an EOS at position {eos_position}",
    "stop-with-prompt": "the stop sequence {stop} matches across the end of the prompt and the new tokens",
    "pad-last": "the last token of the row is the pad id",
    "as-many-pads": "the expected row contains the pad id exactly as often as tokens are missing",
    "limit-short": "the row is {short:token} short of max_new_tokens, which is {limit}",
    "little-room": "this row has room for {room:token}, while a round returns up to K + 1 = {block}",
    "calls-end": "the target is not called after this round",
    "pads-behind": "the row continues with {pads:pad} after its end",
    "goes-on": "the row continues with {tokens:token} after its EOS",
    "stop-passed": "the row continues with {tokens:token} after its stop sequence {stop}",
    "reason": "the row ends at {given}, but the finish reason given is {told}",
    "logprob": "new token {index} has log-probability {own}, but {told} was returned",
    "logprob-of-token": "new token {index} has log-probability {own}, but {told} was returned: that of new token "
    "{other} of request {other_row}, which the same call predicted (call {call}, column {column} of batch row "
    "{batch_row})",
    "logprob-of-column": "new token {index} has log-probability {own}, but {told} was returned: that of the prediction "
    "in column {column} of batch row {batch_row} of the same call (call {call})",
    "logprob-in-column": "new token {index} has log-probability {own}, but {told} was returned: that of the same token "
    "under the scores in column {column} of batch row {batch_row} of the same call (call {call})",
    "logprob-mixed": "the log-probability of new token {index} is computed with the row's option, that of new token "
    "{other} without it",
    "prompt-logprob": "prompt token {index} has log-probability {own}, but {told} was returned",
    "prompt-logprobs": "{told:log-probability} were returned for a prompt that has {tokens}",
    "logprob-before": "from new token {index} on, each log-probability returned belongs to the token before it",
    "logprob-behind": "from new token {index} on, each log-probability returned belongs to the token after it",
    "switched": "with {switch} the engine returns other tokens here than without speculation",
    "switched-alone": "with {switch} the engine returns other tokens here than for the row alone",
    "beside": "with {switch} the {what} returned with the row differ from those without speculation{place}",
    "usage": "{count} is given as {told}, but the row has {tokens}",
    "too-long": "the row has {tokens:token}; max_new_tokens is {limit}",
    "of-another-row": "the row is exactly what row {other_row} should be",
    "short-start": "the output starts {tokens:token} too early, with the end of the prompt",
    "as-many-special": "exactly as many tokens of the prompt are equal to {special}",
    "option-lent": "from new token {since} on, each token of request {lent_to} is the one that the target chooses with "
    "the {option} of {lent_rows:request}",
    "option-lent-at-times": "from new token {since} on, each wrong token of request {lent_to} is the one that the "
    "target chooses with the {option} of {lent_rows:request}; other tokens there are chosen with its own",
    "lent-alike": "these requests have the same value",
    "left-behind": "with another prompt in {gone:row} this row returns other tokens; it arrived {steps:step} after "
    "their last token",
    # where a wrong token comes from
    "unverified": "the returned token is the draft's proposal, and the target was never given it to verify",
    "models-exchanged": "the returned token is the draft's proposal, and the target was never given it to verify; "
    "the draft was given the target's prediction instead, as if the two models were swapped",
    "rejected": "the returned token is the draft token that the target rejected",
    "refused-beside": "the target verified the returned token right after this query and predicted another",
    "rejected-unqueried": "the returned token is the draft token, though the target never had the right context here",
    "rejected-again": "the returned token is the rejected draft token, and it equals new token {before}",
    "rejected-unqueried-again": "the returned token is the draft token, though the target never saw the correct "
    "context here, and it equals new token {before}",
    "rejected-or-behind": "the returned token is the rejected draft token, and also what the target predicted after "
    "one",
    "rejected-or-filler": "the returned token is the rejected draft token, and also what the target predicted in a "
    "filler column",
    "behind": "the returned token is what the target predicted after a rejected draft token",
    "behind-or-again": "the returned token equals new token {before}, and is also what the target predicted after a "
    "rejected draft token",
    "filler": "the returned token is what the target predicted in a filler column",
    "filler-or-again": "the returned token equals new token {before}, and is also what the target predicted in a "
    "filler column",
    "twice": "new token {before} is returned twice",
    "twice-or-elsewhere": "new token {before} is returned twice, or the target's prediction after token {position} of "
    "the row is read instead of the right one",
    "twice-or-of-another": "new token {before} is returned twice, or the target's prediction after token {position} "
    "of row {other_row} is read instead of the right one",
    "one-lost": "new token {index} is missing, and the next one is in its place",
    "exchanged": "new tokens {index} and {behind} are swapped",
    "lost": "the row continues after {tokens:missing token}",
    "pad": "new token {index} is the pad id",
    "behind-pad": "the returned token is what the target predicted in the column of a pad",
    "elsewhere": "the returned token is the target's prediction after position {position} of the row",
    "elsewhere-of-another": "the returned token is the target's prediction after position {position} of row "
    "{other_row}",
    "slots-of-another": "among the slots that existed in call {last_call}, it attends to those of row {other_row}, "
    "which was batch row {held_row} up to that call",
    "due-to-another": "{due} is the correct position id for row {other_row}, which was batch row {held_row} up to call "
    "{last_call}",
    "counts-nodes": "it counts nodes, not depth: in call {call} the position ids of batch row {batch_row} only number "
    "the nodes of the tree",
    # what became of an entry before
    "overwritten": "{over_slots:slot}, which held {over_positions:position..} of the row until call {over_until}, "
    "{over_was} written again in call {over_call}, by {over_by}",
    "overwritten-at-once": "{over_slots:slot}, to which call {over_call} wrote {over_positions:position..} of the row, "
    "{over_was} written again in the same call, by {over_by}",
    "replaced": "{over_slots:slot}, which held {over_positions:position..} of the row until call {over_until}, now "
    "{over_holds} {over_by}, from call {over_call}",
    "let-go": "call {last_read} was the last to read {lost_positions:position..} of the row, and this part of the row "
    "was not fed again",
    "left-out": "call {last_read} was the last to read {lost_positions:position..} of the row; {other_calls:call} went "
    "on with {other_rows:row} without this row, and this part of the row was not fed again",
    "shown": "what slot {slot_now} holds was masked until call {changed_after} and is attended since call {changed_in}",
    "masked": "what slot {slot_now} holds was attended until call {changed_after} and is masked since call "
    "{changed_in}",
    "moved": "what slot {slot_now} holds was in slot {slot_before} until call {changed_after}, {was}; it is in slot "
    "{slot_now} since call {changed_in}, {is}",
    "left-between": "{left_rows:row} left the batch in between",
    # masks
    "top-left": "in call {call} column c of the block of {columns} columns attends to exactly slots 0..c",
    "top-left-often": "in call {call} column c of the block of {columns} columns attends to exactly slots 0..c, as in "
    "{alike} of the {calls} calls that have cached slots of this row and feed it several columns",
    "no-order": "in call {call} each of the {columns} columns of the block attends to every slot",
    "no-order-often": "in call {call} each of the {columns} columns of the block attends to every slot, as in {alike} "
    "of the {calls} calls that feed this row several columns",
    "other-node": "the correct prediction is in column {right_column} of batch row {batch_row} of call {call}; the "
    "returned token is the prediction in column {column}, at another node of the tree",
    "missing-node": "call {call} has no node for position {position} of the row; its prediction in column {column} of "
    "batch row {batch_row} is used as if that node were there and accepted",
    "unfinished": "the prompt was not completely prefilled: when call {call} made this prediction, positions "
    "0..{last} of 0..{end} had been fed; the returned token is its prediction after position {position}",
    "neither": "the returned token is neither the draft token nor the target's prediction there",
    "of-residual": "the returned token is the likeliest of max(0, p - q), from which sampling draws after it rejects "
    "draft token {draft} (p: the target's probabilities in column {column} of call {call}, q: the draft's); greedy "
    "decoding returns the likeliest of p",
    "lower-choice": "the returned token is the target's {nth:th} choice there, in column {column} of batch row "
    "{batch_row}, and not its first",
    "choice-of-column": "the returned token is the target's {nth:th} choice in column {column} of the same call and "
    "batch row; the correct prediction is its first choice in column {right_column}",
    "choice-of-other-row": "the returned token is the target's {nth:th} choice in column {column} of batch row "
    "{other_row} of the same call; the correct prediction is its first choice in column {right_column} of batch row "
    "{batch_row}",
    "prediction-of-column": "the returned token is the target's prediction in column {column} of the same call and "
    "batch row; the correct prediction is in column {right_column}",
    "prediction-of-other-row": "the returned token is the target's prediction in column {column} of batch row "
    "{other_row} of the same call; the correct prediction is in column {right_column} of batch row {batch_row}",
    # a sampled row that is not the one in the cache
    "cache-differs": "the cache holds token {cached} at position {position} of the row, which call {verified} verified "
    "and call {call} goes on from; the returned row has token {returned} there, which was never fed in that place",
    "equals-next": "the returned token equals new token {behind}, which comes after it",
    "changed-after": "so one of the two was changed after the token was accepted",
    # another token than the row's newest one is fed
    "fed-before": "call {call} feeds token {fed}, the token before it, in its place, at position {position} of the row",
    "fed-pad": "call {call} feeds the pad id ({fed}) in its place, at position {position} of the row",
    "fed-drafted": "call {call} feeds the draft's proposal, token {fed}, in its place, at position {position} of the "
    "row",
    "fed-other": "call {call} feeds token {fed} in its place, at position {position} of the row",
    "newest-unfed": "new token {before}, token {unfed}, was not fed up to call {call}",
    "prompt-unfed": "the last token of the prompt, token {unfed}, was not fed up to call {call}",
    "answer-to-it": "the returned token is the target's prediction there",
    "window-alone": "only layers with a window are wrong here; the other layers attend to exactly the row",
    "convolution-alone": "only the inputs of the convolution are wrong here; the recurrent state contains exactly the "
    "row",
    # why no cause is named
    "unread-answer": "call {right_call} made the correct prediction for this token; the returned token was predicted "
    "in column {column} of batch row {batch_row} of call {other_call}, and it is not known for which token",
    "no-query": "no target query was found that had to predict this token",
    "no-difference": "a target query had to predict this token, but nothing it attended to explains its wrong "
    "prediction",
    "no-right-query": "no target query that attended to exactly the row could have predicted this token",
    "slot-unexplained": "slot {slot} is not what it should be, and no query was found that explains it",
    "displaced": "the mask shows slot {shown_slot}, but the query's own entry is in slot {own_slot}; either may be "
    "wrong",
    "outputs-alone": "outputs alone do not show which part is broken; `Oracle.watch` and `eqcheck audit` do",
    "beyond-noise": "a token of the row is {gap} nats below the target's own choice, and the noise of this dtype is "
    "half of {threshold} nats; {exceeding} of {counted} rows so far have such a token; the evidence is {weight}, and "
    "10^6 decides; outputs alone do not show which part is broken",
    "not-a-number": "target call {call} attended to exactly the right tokens for new token {token_index} of row {row}, "
    "and its scores there are NaN; a pad that attends to nothing may become NaN in this dtype and spread to its row",
    # a target that answers a row alone in several ways
    "rope-of-the-call": "everything that was attended to is right, but the target's rope ({rope}) depends on the "
    "length of what a call feeds; beside a longer row, or with drafts, it may answer otherwise than alone",
    "rope-by-length": "row {row} alone: from new token {token_index} on the target returns other tokens with its cache "
    "than without, because its rope ({rope}) depends on the length and its cache keeps keys as they were rotated "
    "before; both are accepted",
    "after-longer-rows": "row {row} is what the target returns alone after {tokens:token}, and from new token "
    "{token_index} on not what it returns at first, because its rope ({rope}) keeps the frequencies of the longest "
    "row; both are accepted",
    "generate-answers-otherwise": "row {row} alone: from new token {token_index} on the target's `generate` returns "
    "other tokens than its calls without position ids and mask; both are accepted",
    "cache-answers-otherwise": "row {row} alone: from new token {token_index} on the target returns other tokens with "
    "its cache than without; both are accepted",
    # what a decoder declares
    "chunk": "chunked: call {call} feeds {tokens:token} of row {row}'s prompt in batch row {batch_row} (positions "
    "{first_position}..{last_position}), but `prefill_chunk` allows {limit}",
    "arrival": "late-rows: call {call} feeds row {row} (position {first_position}) in batch row {batch_row} after "
    "{calls:target call}, but `arrivals` makes it wait for {limit}; not done before it: row {waiting}",
    "prefix-fed": "prefix: call {call} feeds position {first_position} of row {row} in batch row {batch_row}, but the "
    "given cache already holds the first {length:token} (`prefix_length`)",
    "prefix-fed-many": "prefix: call {call} feeds positions {first_position}..{last_position} of row {row} in batch "
    "row {batch_row}, but the given cache already holds the first {length:token} (`prefix_length`)",
    "unwritten": "preallocated: nothing was ever written into the given target cache in {calls:target call}; call "
    "{call} saw {slots:slot}, but the cache has {capacity}",
}


def ordinal(number: int) -> str:
    """Write an ordinal number.

    >>> ordinal(1), ordinal(2), ordinal(12), ordinal(23)
    ('1st', '2nd', '12th', '23rd')
    """
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


class _Number(int):
    def __format__(self, noun: str) -> str:
        if noun == "th":
            return ordinal(int(self))
        return many(self, noun) if noun else str(int(self))


class _Numbers(str):
    """Several, as "1 2"; ``{rows:row}`` is "row 1" or "rows 1 and 2", and ``{at:position..}`` is "positions 1..3"."""

    def __format__(self, noun: str) -> str:
        if noun.endswith(".."):
            numbers = [int(one) for one in self.split()]
            return f"{noun[:-2]}{'s' * (len(numbers) > 1)} {in_order(numbers)}"
        *begin, last = self.split() if noun else [str(self)]
        return f"{noun}s {', '.join(begin)} and {last}" if begin else f"{noun} {last}" if noun else last


# Words on how an entry, a position or a row came to be; `Deviation.origin` has them.
ORIGINS = {
    "fed": "fed with this position id",
    "changed": "changed in the cache",
    "ranks": "counted in the attention mask",
    "slots": "counted by slot",
    "nowhere": "found in no batch row",
    "in-row": "found in batch row {batch_row}",
    "layers-differ": "the layers have {slots} slots",
    "layer-1": "layer 1 does not contain what was written to it",
    "rounded": "entries differ from what was written by up to {norm:.2g} of their norm",
    "unordered": "not in the order, or not in the slots, from which the call reads them",
    "shifted": "in {slots}, and the call attends to {attended}",
    "batch-row-before": "row {other_row}, which was batch row {batch_row} up to call {call}",
    # the copies of an entry that disagree
    "no-model": "it holds numbers that no model wrote (scaled, rounded, moved or overwritten)",
    "scaled": "it holds numbers that no model wrote (scaled or rounded)",
    "models": "its copies are from different models, or some were never written",
    "written-as": "{copy} of layer {layer}, head {head} contains what was written to {other_copy} of layer "
    "{other_layer}, head {other_head}",
    "disagree": "{one} and {other} disagree about its {what}",
    "disagree-on": "{one} and {other} disagree about its {what} ({value} and {other_value})",
}


def origin(name: str, **facts: object) -> str:
    """The words of the table on where something comes from.

    >>> origin("batch-row-before", other_row=1, batch_row=0, call=5)
    'row 1, which was batch row 0 up to call 5'
    """
    return ORIGINS[name].format(**facts)


# Words on what a cause without a query at fault rests on; `Explanation.basis` has them.
BASES = {
    "right-context": "target call {call} attended to exactly the right tokens, so its prediction here is correct",
    "no-query": "no target query was made for this token",
    "query-behind": "no target query was made for this token; call {call} predicted it after a rejected draft token",
    "query-of-filler": "no target query was made for this token; call {call} predicted it in a filler column",
    "no-call": "the target was never called for this row",
    "no-query-before": "no query stands for the token before it",
    "piece-fed": "call {call} was fed a piece of the prompt",
}


def basis(name: str, **facts: int) -> str:
    """The words of the table on what a cause rests on.

    >>> basis("piece-fed", call=3)
    'call 3 was fed a piece of the prompt'
    """
    return BASES[name].format(**facts)


class Statement(NamedTuple):
    """A statement in words, and the facts in it; its name is the fact ``statement``."""

    detail: str
    facts: dict[str, int | str]


NOTHING = Statement("", {})


def state(name: str, **facts: int | str) -> Statement:
    """A statement of the table.

    >>> state("lost", tokens=2)
    Statement(detail='the row continues after 2 missing tokens', facts={'statement': 'lost', 'tokens': 2})
    """
    shown = {key: _Number(value) if isinstance(value, int) else _Numbers(value) for key, value in facts.items()}
    written = _written_over(facts) if "over_kind" in facts else {}
    return Statement(STATEMENTS[name].format(**shown, **written), {"statement": name, **facts})


def together(first: Statement, *others: Statement) -> Statement:
    """Several statements as one, whose name is that of the first; the names of the others are the fact ``also``.

    >>> both = together(state("lost", tokens=2), state("eos-of-others", eos_rows="1 3"))
    >>> both.detail, both.facts["also"]
    ('the row continues after 2 missing tokens; rows 1 and 3 reached an EOS in this round', 'eos-of-others')
    """
    also = " ".join(str(one.facts["statement"]) for one in others)
    facts = {key: value for one in (*others, first) for key, value in one.facts.items()}
    return Statement("; ".join(one.detail for one in (first, *others)), {**facts, **({"also": also} if also else {})})


def _written_over(facts: Mapping[str, int | str]) -> dict[str, str]:
    """The words on what was written over entries, from its kind, row, positions and tokens.

    >>> _written_over({"over_slots": "0", "over_kind": "filler", "over_tokens": "0"})
    {'over_was': 'was', 'over_holds': 'holds', 'over_by': 'filler (token 0)'}
    """
    kind = str(facts["over_kind"])
    own = kind.removeprefix("other-")
    tokens = list(dict.fromkeys(str(facts["over_tokens"]).split()))
    of = "of the row" if own == kind else f"of row {facts['over_row']}"
    by, several = held_within(kind, None, None), len(str(facts["over_slots"]).split()) > 1
    if own == "token":
        by = f"{_Numbers(facts['over_places']):position..} {of}"
    elif own in _HELD:
        by = f"{'' if several else 'a '}{'rejected ' if own == 'draft' else ''}draft token{'s' * several} {of}"
    shown = f" (token{'s' * (len(tokens) > 1)} {', '.join(tokens[:8])}{', ...' if len(tokens) > 8 else ''})"
    was, holds = ("were", "hold") if several else ("was", "holds")
    return {"over_was": was, "over_holds": holds, "over_by": by + shown}


DRAFT_OF_THIS_CALL = "draft of this call"
"""A draft token that the call at fault verifies: whether it is rejected is known after the call."""
_HELD = {"token": "position", "draft": "rejected draft", "cut-draft": "draft after the row's end"}


def held(kind: str, row: int | None, position: int | None, last: int | None = None) -> str:
    """Name the content of a slot for a table: its kind, and for a token its row and logical position.

    With ``last``, neighbouring slots hold the positions up to that one.

    >>> held("token", 0, 3, 5), held("other-token", 1, 3), held("other-draft", 1, 3), held("pad", None, None)
    ('positions 3..5', 'row 1, position 3', 'row 1, rejected draft', 'pad')
    """
    own = kind.removeprefix("other-")
    if own not in _HELD:
        return kind
    number = "" if own != "token" else f" {position}" if last is None else f" {position}..{last}"
    several = "s" if last is not None and own != "cut-draft" else ""
    return f"{'' if own == kind else f'row {row}, '}{_HELD[own]}{several}{number}"


def held_within(kind: str, row: int | None, position: int | None, token: int | None = None) -> str:
    """Name the content of a slot within a sentence.

    >>> held_within("other-token", 1, 3), held_within("draft", 0, 3, 62), held_within("pad", None, None)
    ('position 3 of row 1', 'a rejected draft token (62)', 'padding')
    """
    own = kind.removeprefix("other-")
    of = "" if own == kind else f" of row {row}"
    shown = "" if token is None else f" ({token})"
    if own == "token":
        return f"position {position}{of or ' of the row'}"
    if own in _HELD:
        after = " after the row's end" if own == "cut-draft" else ""
        return f"a {'rejected ' if own == 'draft' else ''}draft token{shown}{of}{after}"
    named = {
        "pad": "padding",
        "draft model": "an entry of the draft model",
        "target model": "an entry of the target model",
        "other weights": "an entry that was written under other weights",
        "no-model": "numbers that no model wrote",
        "unknown": "an unknown entry",
    }
    return named.get(kind, kind)


class WholeRow(NamedTuple):
    """The make-up of a row that is returned whole: pads, the prompt, pads, the row's tokens, ``behind`` them pads."""

    prompt: int
    before: int
    between: int
    behind: int
    tokens: int


def whole_row(row: WholeRow, starts: Collection[int], padded: bool, pads_behind: bool) -> Statement:
    """The statement on a row that is returned whole, with what to return in its place.

    ``starts`` is where the new tokens of all such rows begin; ``padded``: some have pads before or after the prompt,
    ``pads_behind``: some have pads at the end.

    >>> whole_row(WholeRow(2, 1, 0, 0, 3), {3}, True, False).detail
    'the row is 1 pad, its prompt of 2 tokens, then what the target returns; return row[3:]'
    """
    ahead = f"{many(row.before, 'pad')}, " if row.before else ""
    after = f", {many(row.between, 'pad')}" if row.between else ""
    advice = "return row[len(prompt):]"
    if padded:
        (start, *others) = starts
        advice = "return what follows the pads and the prompt" if others else f"return row[{start}:]"
    advice += " without the pads at its end" if pads_behind else ""
    makeup = f"the row is {ahead}its prompt of {many(row.prompt, 'token')}{after}, then what the target returns"
    return Statement(f"{makeup}; {advice}", {"statement": "whole-row", **row._asdict()})


def not_asserted(read: Explanation, opinion: Opinion, changes: bool) -> str:
    """Say why a cause that was read is not asserted: copies with other tokens show another, or repair does not help.

    >>> e = Explanation("mask", "token-hidden", 0, 0)
    >>> not_asserted(e, Opinion((), ()), changes=False)
    'the trace shows mask/token-hidden, but no repair of position ids, attention mask or cache makes the output correct'
    """
    copies = "copies of the case with other tokens show something else; " if changes else ""
    return f"the trace shows {read.fingerprint}, but {copies}{opinion}"


def said(facts: Mapping[str, int | str]) -> list[str]:
    """The clauses of several statements that were put `together`, made from their facts.

    None for a single one, and for statements of another eqcheck, which this one has not.

    >>> said(together(state("lost", tokens=2), state("calls-end")).facts)
    ['the row continues after 2 missing tokens', 'the target is not called after this round']
    """
    if "also" not in facts:
        return []
    told = {key: value for key, value in facts.items() if key not in ("statement", "also")}
    names = [str(facts["statement"]), *str(facts["also"]).split()]
    try:
        return [state(name, **told).detail for name in names]
    except KeyError:
        return []


def ends_early(emitted: int, limit: int) -> Statement:
    """The statement on a sampled row that ends before its limit and without an EOS.

    >>> ends_early(3, 4).detail
    '3 of 4 tokens were returned, and the last is not an EOS'
    """
    if not emitted:
        return state("nothing-emitted", expected_tokens=limit)
    return state("sampled-ends-early", emitted=emitted, expected_tokens=limit)


def nothing_expected(e: Explanation) -> bool:
    """Return whether the row is sampled: then no token of it is the right one, and only how it ends may be wrong.

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


_LEAST = -200  # a decimal logarithm: smaller products of chances are shown as this one


def one_in(chance: float) -> str:
    """Write a small probability as people say it.

    >>> one_in(0.02), one_in(3e-6), one_in(2e-40), one_in(0.0)
    ('1 in 50', '1 in 300,000', '1 in 10^39', 'less than 1 in 10^200')
    """
    return odds(_log10(chance))


def odds(exponent: float) -> str:
    """Write a probability that is given as its decimal logarithm, since it may be smaller than any float.

    >>> odds(-36.2), odds(-4000.0)
    ('1 in 10^36', 'less than 1 in 10^200')
    """
    if exponent < _LEAST:
        return f"less than 1 in 10^{-_LEAST}"
    if exponent < -9:
        return f"1 in 10^{int(-exponent)}"
    one_of = 10**-exponent
    digits = max(0, int(-exponent))
    return f"1 in {round(one_of / 10**digits) * 10**digits:,}" if one_of > 100 else f"1 in {one_of:.0f}"


def power(value: float) -> str:
    """Write evidence as people do: as a power of ten from 1,000 on.

    >>> power(0.63), power(41.7), power(316.0), power(1.2e151), power(inf)
    ('0.63', '42', '316', '10^151.1', 'more than 10^300')
    """
    return "more than 10^300" if value == inf else power_of_ten(_log10(value))


def power_of_ten(exponent: float) -> str:
    """Write evidence that is given as its decimal logarithm, since it may be larger than any float.

    >>> [power_of_ten(exponent) for exponent in (-3.0, -0.2, 1.9999, 6.0, 4000.2)]
    ['below 0.01', '0.63', '100', '10^6', '10^4000.2']
    """
    if exponent >= 3:
        return f"10^{exponent:.1f}".removesuffix(".0")
    if exponent >= 1:
        return f"{10**exponent:.0f}"
    return f"{10**exponent:.2g}" if exponent >= -2 else "below 0.01"


def _log10(value: float) -> float:
    return log10(value) if value > 0 else -inf


def searched(search: Search) -> list[str]:
    """Say what a search found, as clauses.

    >>> for clause in searched(Search("pads-seen", "pads are attended to", 3, 4, 2e-6, tried=390)):
    ...     print(clause)
    if pads are attended to, the reference model gives 3 of the 4 wrong tokens
    390 explanations were tried; the chance that any of them fits by accident is 1 in 500,000
    """
    if not search.surprising:
        return [search.words]
    fail = "all of which fail" if search.wrong_cases == search.cases else f"of which {search.wrong_cases} fail"
    where = {
        "a larger case": " of a larger case that fails in the same way",
        "cases like this one": f" of {many(search.cases, 'similar case')}, {fail}",
    }.get(search.of, "")
    exactly = search.explained == search.surprising
    wrong = many(search.surprising, "wrong token")
    tokens = f"exactly the {wrong}" if exactly else f"{search.explained} of the {wrong}"
    clauses = [f"if {search.words}, the reference model gives {tokens}{where}"]
    if search.chance:
        tried = "1 explanation was tried" if search.tried == 1 else f"{search.tried:,} explanations were tried"
        clauses.append(f"{tried}; the chance that any of them fits by accident is {one_in(search.chance)}")
    else:
        clauses.append("the options forbid a returned token, so this is not an accident")
    return clauses + [f"another explanation fits as well: {rival}" for rival in search.rivals]


def needs_words(needs: Sequence[str] | None) -> str:
    """Name the options that a minimised case needs to fail; empty where that is not known.

    >>> needs_words(()), needs_words(("token-budget", "many-rows"))
    ('default settings', 'needs token-budget and many rows')
    """
    if needs is None:
        return ""
    return f"needs {needs_named(needs)}" if needs else needs_named(needs)


def needs_named(needs: Sequence[str]) -> str:
    """Name the options that a minimised case needs, without a verb.

    >>> needs_named(("token-budget", "many-rows"))
    'token-budget and many rows'
    """
    *begin, last = ["many rows" if name == "many-rows" else name for name in needs] or ["default settings"]
    return f"{', '.join(begin)} and {last}" if begin else last


def plain_words(plain: str) -> str:
    """Say how the engine fares on the case without speculation; empty where that was not tried."""
    return {
        "right": "without speculation the engine is correct",
        "wrong too": "without speculation the engine is wrong, too: this is not a fault of speculation",
    }.get(plain, "")


def reason(e: Explanation) -> str:
    """Say everything about the cause besides its kind, in one line."""
    return e.detail or " ".join(map(sentence, searched(e.search))) if e.search else e.detail


def say(d: Deviation) -> str:
    """Say one deviation as a clause.

    >>> say(Deviation("position", "query-position", 3, 0, 1, token_position=5, expected=5, observed=7))
    "the query's position id is 7, but must be 5"
    """
    if d.source == "blank":
        return f"slot {d.slot} was never written and is attended"
    slot = f"slot {d.slot}"
    if d.source == "masked-pad":
        return f"{slot} is masked padding between the row's tokens, which a state of this kind takes as a step"
    return KINDS[d.kind].clause.format(
        slot=slot,
        at=f"position {d.token_position} of the row",
        held=_content(d),
        origin=d.origin,
        reason=f" ({d.origin})" if d.origin else "",
        seen="" if d.slot is None else f"{slot} is attended, and ",
        token=d.token,
        expected=d.expected,
        observed=d.observed,
        position="position" if d.source == "counted" else "position id",
    )


def say_all(deviations: Sequence[Deviation]) -> list[str]:
    """Say deviations as clauses, neighbours of one kind together.

    >>> def seen(slot, token):
    ...     return Deviation("cache", "stale-entry", 8, 0, 0, slot, token, source="draft")
    >>> say_all([seen(6, 72), seen(7, 67)])
    ['slots 6 and 7 hold rejected draft tokens (72, 67) and are attended']
    """
    clauses: list[str] = []
    for key, group in groupby(deviations, key=_alike):
        same = list(group)
        clauses += [_together(same)] if key is not None and len(same) > 1 else map(say, same)
    return clauses


_TOGETHER = {"draft": "rejected draft tokens", "pad": "padding"}


def _alike(d: Deviation) -> object:
    """Return what deviations share that are said in one clause; None for one that is said by itself."""
    if d.kind == "missing-entry":
        return d.kind, d.origin
    if d.kind == "token-hidden":
        return d.kind
    if d.kind in ("stale-entry", "pad-visible", "wrong-row") and d.source != "blank":
        known = d.source in ("draft", "pad", "masked-pad", "other-token")
        return (d.kind, d.source, d.of_row) if known else None
    return None


def _together(same: Sequence[Deviation]) -> str:
    first = same[0]
    tokens = f"positions {in_order([d.token_position for d in same if d.token_position is not None])} of the row"
    slots = f"slots {in_order([d.slot for d in same if d.slot is not None])}"
    if first.kind == "missing-entry":
        return f"{tokens} are not among what the call reads ({first.origin})"
    if first.kind == "token-hidden":
        return f"{slots} hold {tokens} and are masked"
    if first.source == "masked-pad":
        return f"{slots} are masked padding between the row's tokens, which a state of this kind takes as steps"
    if first.source == "other-token":
        at = in_order([d.of_position for d in same if d.of_position is not None])
        return f"{slots} hold positions {at} of row {first.of_row} and are attended"
    shown = f" ({', '.join(str(d.token) for d in same[:8])}{', ...' if len(same) > 8 else ''})"
    return f"{slots} hold {_TOGETHER[first.source]}{shown if first.source == 'draft' else ''} and are attended"


def in_order(numbers: Sequence[int]) -> str:
    """Write numbers in a sentence, three or more in a row as a range.

    >>> in_order([6, 7]), in_order([1, 2, 3, 7])
    ('6 and 7', '1..3 and 7')
    """
    runs = [[number for _, number in run] for _, run in groupby(enumerate(numbers), key=lambda one: one[1] - one[0])]
    shown = [word for run in runs for word in ([f"{run[0]}..{run[-1]}"] if len(run) > 2 else map(str, run))]
    *begin, last = shown or [""]
    return f"{', '.join(begin)} and {last}" if begin else last


def _content(d: Deviation) -> str:
    """The content of a slot, within a sentence."""
    if d.source == "filler":
        return f"{d.origin} (token {d.token})"
    return held_within(d.source, d.of_row, d.of_position, d.token) or d.origin or "an unknown entry"


Doubt = Literal["hung", "differs", "unlike", "passed", "two-answers"]
_DOUBTS: dict[Doubt, str] = {
    "hung": "no answer within the time limit, and an answer when it was decoded again",
    "differs": "the output does not repeat",
    "unlike": "the request fails each time, and not in the same way: the decoder is nondeterministic",
    "passed": "it does not repeat in a fresh process: the decoder is nondeterministic or keeps state",
    "two-answers": "the same request gave two answers; name the decoder by a spec to have it tried in a fresh process",
}


def unrepeated(hung: bool) -> str:
    """Say why a failure is in doubt that was not seen again; one that ``hung`` may have been slow.

    >>> unrepeated(hung=True)
    'no answer within the time limit, and an answer when it was decoded again'
    """
    return _DOUBTS["hung" if hung else "differs"]


def not_counted(fingerprint: str, case: str, why: Doubt) -> str:
    """Say that a failure is not counted, and why it is in doubt.

    >>> print(not_counted("crash/raised", "6b1", "two-answers").partition(";")[0])
    crash/raised (case 6b1) is not counted: the same request gave two answers
    """
    slow = "; if the machine is slow, raise --case-timeout" if why == "hung" else ""
    return f"{fingerprint} (case {case}) is not counted: {_DOUBTS[why]}{slow}"


CALLS_UNSEEN = {
    "hung": "The decoder did not end: its calls are not shown.",
    "ended": "The decoder ended its process: its calls are not shown.",
    "differs": "The decoder answered differently when its calls were recorded.",
}
"""Notes in place of the calls of a decode, or beside them."""
