"""List every kind of fault: its meaning for readers, and what the rest of eqcheck needs to know about it.

    >>> KINDS["window"].fingerprint, KINDS["window"].meaning
    ('mask/window', 'wrong attention window')

A new kind is a record here, a page in `eqcheck/core/explanation/handbook/`, and the code that detects it: of a context
`eqcheck.transparent.attribution.context`, from tokens alone an edit in `eqcheck.engines.abduction`. Where it splits a
kind, search for the name of that kind: code compares names.
"""

from __future__ import annotations

from dataclasses import dataclass

_CACHE, _MASK, _POSITION, _BOOKKEEPING = 0, 10, 20, 30  # cache outranks mask, mask outranks position


@dataclass(frozen=True)
class Kind:
    """A kind of fault of one component; ``component/name`` is its `fingerprint`.

    ``meaning`` is a noun phrase or short clause that headlines print after the fingerprint. ``clause`` describes one
    deviation of this kind; `eqcheck.core.explanation.statements.say` fills in its fields. Among the deviations of a
    call the least ``rank`` is the cause. An ``inherited`` deviation is not a cause if an earlier query explains it. A
    repair of ``mended_by`` also confirms this kind.
    """

    component: str
    name: str
    meaning: str
    clause: str = "{slot} holds {held} and is attended"
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
        "wrong position id",
        "the query's {position} is {observed}, but must be {expected}{reason}",
        rank=_POSITION,
    ),
    Kind(
        "position",
        "key-position",
        "a cached key carries the wrong position",
        "the key of {at} in {slot} has {position} {observed}, but must have {expected}{reason}",
        rank=50,  # the query that fed it is the cause, where there is one
        inherited=True,
    ),
    Kind("mask", "pad-visible", "attends to padding", rank=_MASK),
    Kind(
        "mask",
        "token-hidden",
        "a token of the row is cached but masked",
        "{slot} holds {at} and is masked",
        _MASK,
    ),
    Kind(
        "mask",
        "future-visible",
        "attends to a later token",
        "{slot} holds {held}, which comes later, and is attended",
        rank=_MASK,
    ),
    Kind(
        "mask",
        "sibling-visible",
        "a tree node attends to a node that is not its ancestor",
        "{slot} holds {held} of another branch and is attended",
        rank=_MASK,
    ),
    Kind(
        "mask",
        "other-row-visible",
        "attends to another request packed into the same batch row",
        rank=_MASK,
    ),
    Kind(
        "mask",
        "of-another-row",
        "attention mask of another row",
        "the query attends to the slots that are correct for {origin}",
        rank=_MASK,
    ),
    Kind(
        "mask",
        "window",
        "wrong attention window",
        "{at} in {slot} is on the wrong side of the attention window",
        rank=_MASK,
    ),
    # Within the cache, what displaces whole rows or blocks comes before what it does to single entries.
    Kind("cache", "wrong-row", "attends to another row's cache entries", rank=_CACHE),
    Kind("cache", "draft-entry", "draft and target attend to each other's cache entries", rank=_CACHE),
    Kind(
        "cache",
        "torn-entry",
        "K, V, heads or layers of one slot hold different tokens",
        "{seen}{origin}",
        rank=_CACHE + 1,
    ),
    Kind(
        "cache",
        "misaligned",
        "cache entries are shifted against the attention mask",
        "the row's entries are {origin}",
        rank=_CACHE + 2,
        mended_by="mask",  # one that is moved as the entries were
    ),
    Kind(
        "cache",
        "wrong-path",
        "the cache keeps a tree node that was not accepted",
        "{slot} holds {held} in place of {at} and is attended",
        rank=_CACHE + 3,
        mended_by="mask",
    ),
    Kind("cache", "stale-entry", "attends to a rejected draft token", rank=_CACHE + 4, mended_by="mask"),
    Kind(
        "cache",
        "duplicate-entry",
        "attends to the same token twice",
        "{slot} holds {held} a second time and is attended",
        rank=_CACHE + 5,
        mended_by="mask",
    ),
    Kind(
        "cache",
        "missing-entry",
        "a token of the row is missing from the KV cache that the call reads",
        "{at} is not among what the call reads ({origin})",
        rank=_CACHE + 6,
    ),
    Kind(
        "cache",
        "poisoned-entry",
        "a cache entry was computed under an earlier fault",
        "the entry of {at} in {slot} was computed under an earlier fault",
        rank=_BOOKKEEPING + 5,
        inherited=True,
    ),
    Kind("bookkeeping", "over-accept", "a rejected draft token is returned"),
    Kind("bookkeeping", "unverified", "draft tokens are returned without verification"),
    Kind("bookkeeping", "wrong-correction", "a returned token is not the target's prediction"),
    Kind("bookkeeping", "unfinished-prompt", "decoding starts before the prompt is prefilled"),
    Kind("bookkeeping", "wrong-token-fed", "the target is fed another token than the row's newest"),
    Kind("bookkeeping", "lost-token", "a token is missing from the output"),
    Kind("bookkeeping", "changed-token", "a returned token differs from the one that the decoder went on with"),
    Kind("bookkeeping", "repeated-token", "a token is returned twice"),
    Kind("bookkeeping", "past-eos", "tokens after the EOS"),
    Kind("bookkeeping", "premature-stop", "the row stops too early"),
    Kind("bookkeeping", "over-length", "the output is longer than max_new_tokens"),
    Kind("bookkeeping", "pad-in-output", "padding in the output"),
    Kind("bookkeeping", "row-swap", "the row returns another row's output"),
    Kind("bookkeeping", "finish-reason", "wrong finish reason or stop string"),
    Kind("bookkeeping", "usage", "wrong token counts in usage"),
    Kind("bookkeeping", "logprobs", "wrong log-probability"),
    Kind("bookkeeping", "prompt-in-output", "prompt tokens are returned with the output"),
    Kind("options", "ignored-option", "a requested option is not applied"),
    Kind("state", "leaks-from-earlier-request", "the output depends on an earlier request"),
    Kind("state", "stale-weights", "the output depends on weights that were replaced"),
    Kind("sampling", "impossible-token", "a sampled token has zero probability under the row's options"),
    Kind("sampling", "over-acceptance", "draft tokens are accepted too often"),
    Kind("sampling", "under-acceptance", "draft tokens are accepted too rarely"),
    Kind("sampling", "threshold-acceptance", "draft tokens are accepted by a fixed threshold, not by a random number"),
    Kind("sampling", "residual", "corrections do not follow the residual distribution max(0, p - q)"),
    Kind("sampling", "correction-column", "corrections are drawn from the logits of another column of the block"),
    Kind("sampling", "bonus-column", "bonus tokens are drawn from the logits of another column of the block"),
    Kind("sampling", "stale-bonus", "bonus tokens are drawn from the previous round's distribution"),
    Kind("sampling", "greedy-drawn", "a greedy row is sampled"),
    Kind("sampling", "bonus-law", "bonus tokens do not follow the target's distribution"),
    Kind("sampling", "draft-law", "draft tokens are not drawn from the q that acceptance uses"),
    Kind("sampling", "wrong-draft-row", "acceptance or correction uses the q of another row or column"),
    Kind(
        "sampling",
        "target-option",
        "verification uses a wrong, missing or other row's sampling option",
    ),
    Kind("sampling", "first-token", "the first new token does not follow the target's distribution"),
    Kind("sampling", "seed-ignored", "the same seed gives different tokens"),
    Kind("sampling", "batch-dependent", "a seeded row changes with other rows or with the draft"),
    Kind("sampling", "shared-noise", "rows share random numbers"),
    Kind("sampling", "reused-noise", "a row reuses random numbers"),
    Kind("sampling", "stray-law", "sampled tokens do not follow the target's distribution"),
    # The draft costs speed, not correctness: its kinds are warnings.
    Kind("draft", "desync", "the draft is out of sync with the row"),
    Kind("draft", "lost-bonus", "the bonus token is dropped and computed again"),
    Kind("draft", "torn-hidden", "the draft head gets a vector that is no hidden state of the target"),
    Kind("draft", "wrong-layer-hidden", "the draft head gets hidden states of another layer"),
    Kind("draft", "own-hidden", "the draft head gets its own hidden state instead of the target's"),
    Kind("draft", "wrong-row-hidden", "the draft head gets another row's hidden state"),
    Kind("draft", "stale-hidden", "the draft head gets a hidden state of an earlier call"),
    Kind("draft", "wrong-column-hidden", "the draft head gets a hidden state of another column of the block"),
    Kind("draft", "token-shift", "the draft head gets a hidden state paired with the wrong token"),
    # Leaks of memory cost no correctness either.
    Kind("memory", "rejected-kept", "rejected draft tokens stay in memory, more with every round"),
    Kind("memory", "storage-kept", "old cache buffers stay in memory, more with every round"),
    Kind("memory", "finished-row-kept", "the cache of a finished row stays in memory"),
    Kind("memory", "kept-after-return", "memory stays in use after a request, more with every request"),
    Kind("memory", "growth", "memory grows faster than the rows need"),
    Kind("crash", "exception", "the decoder raised an exception"),
    Kind("crash", "hang", "the decoder did not answer in time"),
    Kind("crash", "invalid-output", "the decoder returned an invalid output or changed its request"),
    Kind(
        "unattributed",
        "unattributed",
        "cause unknown",
        "{slot} is attended and holds an entry of unknown origin (token {token})",
        rank=40,
    ),
)
KINDS = {kind.name: kind for kind in _RECORDS}  # names are unique across components
FINGERPRINTS = tuple(kind.fingerprint for kind in _RECORDS)

# Beside a wrong context, which has the names of the target's kinds, two things make a draft lose tokens: each is a
# subject of `draft/desync`.
FED, ALTERED = "fed-another", "given-another"
DRAFT_CAUSES = {
    FED: "the draft is fed another token than the row's",
    ALTERED: "the target is given another token than the draft proposed",
}

# The wrong input of a draft head, in words, by the name of its kind.
HEAD_LOSSES = {
    "torn": "its input is no hidden state: zeros, changed numbers or a mix",
    "wrong-layer": "its input comes from another layer than the last",
    "own": "its input is its own hidden state where the target's is due",
    "wrong-row": "its input is another row's hidden state",
    "stale": "its input is the hidden state of an earlier call",
    "wrong-column": "its input is the hidden state of another column of the block",
    "token-shift": "its hidden states are paired with the wrong tokens",
}
