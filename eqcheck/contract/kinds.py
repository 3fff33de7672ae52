"""Every kind of fault, one record each: what it means, and what the rest of eqcheck has to know of it.

    >>> KINDS["window"].fingerprint, KINDS["window"].meaning
    ('mask/window', 'the attention window is wrong')

A new kind is a record here, a page in `eqcheck/explanation/handbook/`, and the code that detects it.
"""

from __future__ import annotations

from dataclasses import dataclass

_CACHE, _MASK, _POSITION, _BOOKKEEPING = 0, 10, 20, 30  # cache outranks mask, mask outranks position


@dataclass(frozen=True)
class Kind:
    """A kind of fault of one component; ``component/name`` is its `fingerprint`.

    ``meaning`` is for readers. ``clause`` says one deviation of this kind, as a format string whose fields
    `eqcheck.explanation.statements.say` fills in. Among the deviations of one call the least ``rank`` is the cause. An
    ``inherited`` deviation is no cause where an earlier query explains it. ``mended_by`` is a component whose repair
    also speaks for this kind.
    """

    component: str
    name: str
    meaning: str
    clause: str = "{slot} holds {held} and is seen"
    rank: int = _BOOKKEEPING
    inherited: bool = False
    mended_by: str = ""

    @property
    def fingerprint(self) -> str:
        return f"{self.component}/{self.name}"


_RECORDS = (
    Kind(
        "position",
        "query-position",
        "a query carries a position other than its logical one",
        "the query carries position {observed} where position {expected} is right{reason}",
        rank=_POSITION,
    ),
    Kind(
        "position",
        "key-position",
        "a visible key carries a position other than its logical one",
        "the key of {at} in {slot} carries position {observed} where position {expected} is right{reason}",
        rank=50,  # the query that fed it is the cause, where there is one
        inherited=True,
    ),
    Kind("mask", "pad-visible", "a pad, filler, or a slot without a token, is seen", rank=_MASK),
    Kind(
        "mask",
        "token-hidden",
        "a token of the row is in the cache but hidden",
        "{slot} holds {at} and is hidden",
        _MASK,
    ),
    Kind(
        "mask", "future-visible", "a query sees a later token", "{slot} holds the later {bare} and is seen", rank=_MASK
    ),
    Kind(
        "mask",
        "sibling-visible",
        "a node of a tree sees a node that is not on its path",
        "{slot} holds another branch's {bare} and is seen",
        rank=_MASK,
    ),
    Kind(
        "mask",
        "other-row-visible",
        "where a row of a call holds several requests, another one's token is seen",
        rank=_MASK,
    ),
    Kind(
        "mask",
        "of-another-row",
        "a row is shown the slots that are right for another row",
        "the query sees the slots that are right for {origin}",
        rank=_MASK,
    ),
    Kind(
        "mask",
        "window",
        "the attention window is wrong",
        "{at} in {slot} is on the wrong side of the attention window",
        rank=_MASK,
    ),
    # Within the cache, what displaces whole rows or blocks comes before what it does to single entries.
    Kind("cache", "wrong-row", "another row's entry is seen", rank=_CACHE),
    Kind(
        "cache",
        "torn-entry",
        "K and V, two heads or two layers disagree about what a slot holds",
        "{seen}{origin}",
        rank=_CACHE + 1,
    ),
    Kind(
        "cache",
        "misaligned",
        "cache entries have moved against the mask",
        "the row's entries lie {origin}",
        rank=_CACHE + 2,
        mended_by="mask",  # one that is moved as the entries were
    ),
    Kind(
        "cache",
        "wrong-path",
        "an entry of a tree's node that was not accepted is kept in the place of one that was",
        "{slot} holds {held}, in the place of {at}, and is seen",
        rank=_CACHE + 3,
        mended_by="mask",
    ),
    Kind("cache", "stale-entry", "a draft token is seen that the row does not have", rank=_CACHE + 4, mended_by="mask"),
    Kind(
        "cache",
        "duplicate-entry",
        "a token of the row is seen twice",
        "{slot} holds {held} again and is seen",
        rank=_CACHE + 5,
        mended_by="mask",
    ),
    Kind(
        "cache",
        "missing-entry",
        "a token of the row is not in the cache",
        "{at} is not in the row's cache ({origin})",
        rank=_CACHE + 6,
    ),
    Kind(
        "cache",
        "poisoned-entry",
        "an entry was written under an earlier fault",
        "the entry of {at} in {slot} was written under an earlier fault",
        rank=_BOOKKEEPING + 5,
        inherited=True,
    ),
    Kind("bookkeeping", "over-accept", "a draft token is emitted that the target rejected"),
    Kind("bookkeeping", "unverified", "a draft token is emitted that the target never verified"),
    Kind("bookkeeping", "wrong-correction", "the emitted token is not the target's prediction"),
    Kind("bookkeeping", "unfinished-prompt", "an answer is emitted for which the prompt was not yet fed whole"),
    Kind("bookkeeping", "lost-token", "a token was dropped"),
    Kind("bookkeeping", "repeated-token", "a token was emitted twice"),
    Kind("bookkeeping", "past-eos", "tokens follow the EOS"),
    Kind("bookkeeping", "premature-stop", "the row ends too early"),
    Kind("bookkeeping", "over-length", "the row exceeds its limit"),
    Kind("bookkeeping", "pad-in-output", "a pad was emitted"),
    Kind("bookkeeping", "row-swap", "the row holds another row's output"),
    Kind("bookkeeping", "finish-reason", "the reason or the stop sequence that is told for a row's end is not its own"),
    Kind("bookkeeping", "usage", "the tokens that are counted are not those of the row"),
    Kind("bookkeeping", "logprobs", "a log-probability that is told is not the target's own for its token"),
    Kind("bookkeeping", "prompt-in-output", "the prompt, or its end, is returned with the row"),
    Kind("options", "ignored-option", "an option is not applied as asked"),
    Kind("state", "leaks-from-earlier-request", "the answer depends on what was decoded before"),
    Kind("sampling", "impossible-token", "a token is emitted that has no probability under the options of its row"),
    Kind("sampling", "over-acceptance", "draft tokens are accepted more often than their law allows"),
    Kind("sampling", "under-acceptance", "draft tokens are accepted less often than their law says"),
    Kind("sampling", "threshold-acceptance", "draft tokens are accepted by a threshold, and no random number decides"),
    Kind("sampling", "residual", "corrections are not drawn from what the draft left of the target's law"),
    Kind("sampling", "correction-column", "corrections are drawn from another column of the block"),
    Kind("sampling", "bonus-column", "a bonus is drawn from another column of the block"),
    Kind("sampling", "stale-bonus", "a bonus is drawn from a law of the round before"),
    Kind("sampling", "greedy-drawn", "a greedy row is drawn with random numbers"),
    Kind("sampling", "bonus-law", "a bonus is not drawn from the law of the target"),
    Kind("sampling", "draft-law", "draft tokens are not drawn from the law that their acceptance takes for theirs"),
    Kind("sampling", "wrong-draft-row", "acceptance or correction takes the draft's law of another row or column"),
    Kind(
        "sampling",
        "target-option",
        "where draft tokens are verified, an option of the row is missing, wrong, or another row's",
    ),
    Kind("sampling", "first-token", "the first new token is not drawn from the law of the target"),
    Kind("sampling", "seed-ignored", "a row with a seed emits other tokens when it is asked again"),
    Kind("sampling", "batch-dependent", "a row with a seed depends on what its seed is promised not to depend on"),
    Kind("sampling", "shared-noise", "rows share random numbers"),
    Kind("sampling", "reused-noise", "a row uses random numbers again"),
    Kind(
        "sampling", "stray-law", "rows are not drawn from the law of the target, and no part of a round leads clearly"
    ),
    # The draft costs speed, not correctness: its kinds are warnings.
    Kind("draft", "desync", "the draft has lost its place in the row"),
    Kind("draft", "lost-bonus", "the target is asked again for a token that it has answered for"),
    Kind("draft", "torn-hidden", "a head is given something that is no hidden state of the target"),
    Kind("draft", "wrong-layer-hidden", "a head is given hidden states of another layer"),
    Kind("draft", "own-hidden", "a head is given its own state where the target's is due"),
    Kind("draft", "wrong-row-hidden", "a head is given another row's hidden state"),
    Kind("draft", "stale-hidden", "a head is given a hidden state of an earlier call"),
    Kind("draft", "wrong-column-hidden", "a head is given a hidden state of another column of the block"),
    Kind("draft", "token-shift", "a head is given a hidden state with another token than the one behind it"),
    # So do leaks.
    Kind("memory", "rejected-kept", "rejected draft tokens stay in memory, more with every round"),
    Kind("memory", "storage-kept", "storages that a cache has left behind stay alive, more with every round"),
    Kind("memory", "finished-row-kept", "what a row had cached stays in memory when the row has ended"),
    Kind("memory", "kept-after-return", "memory stays in use when a request was answered, more with every request"),
    Kind("memory", "growth", "memory grows faster than what the rows need"),
    Kind("crash", "exception", "the decoder raised"),
    Kind("crash", "hang", "no answer came in time"),
    Kind("crash", "invalid-output", "what the decoder returned, or left of its request, breaks the contract"),
    Kind(
        "unattributed",
        "unattributed",
        "no cause was shown",
        "{slot} is seen and holds an entry of unknown standing (id {token})",
        rank=40,
    ),
)
KINDS = {kind.name: kind for kind in _RECORDS}  # a name stands for one kind, whatever the component
FINGERPRINTS = tuple(kind.fingerprint for kind in _RECORDS)

# The wrong input of a head, in words, by the name of its kind.
HEAD_LOSSES = {
    "torn": "what it was given is no hidden state of the target: its numbers were changed, or are of two states",
    "wrong-layer": "it was given the states of another layer than the last",
    "own": "its own states stand where those of the target are due",
    "wrong-row": "it was given states of another row",
    "stale": "it was given states of an earlier call",
    "wrong-column": "it was given states of another column of the verified block",
    "token-shift": "states were paired with another token than the one behind them",
}
