"""Every edit that is tried: what it is called, which kind of fault it would be, and what it says, in one table.

The catalogue of faults names edits by their ids. The words are a clause that completes "the reference emits the wrong
tokens if ...".
"""

from __future__ import annotations

import re
from dataclasses import dataclass

# What is never seen again may be lost or hidden for good: tokens do not tell.
_HIDDEN_INSTEAD = ("mask/token-hidden",)


@dataclass(frozen=True)
class Edit:
    """One thing that an engine may do wrong. ``rivals`` are fingerprints that the same tokens always fit as well."""

    id: str
    component: str
    kind: str
    words: str
    rivals: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Hypothesis:
    """An edit, and what is said of it in particular.

    ``parameters`` are what its words name, ``when`` the rounds that it happens in. One that happens ``once``,
    not in every round of every row, explains less by what it gets right: see `Evidence.chance`. Two hypotheses with one
    id say the same, whatever style of engine they assume.
    """

    edit: Edit
    parameters: tuple[tuple[str, str], ...] = ()
    when: str = ""
    once: bool = False

    @property
    def id(self) -> str:
        """The edit's id and its parameters, ``shifted-positions:+1:from-round-3-on``."""
        values = [value for _, value in self.parameters] + [self.when] * bool(self.when)
        return ":".join([self.edit.id, *(re.sub(r"[\s_]+", "-", one) for one in values)])

    @property
    def words(self) -> str:
        words = self.edit.words.format(**dict(self.parameters))
        return f"{words} {self.when}" if self.when else words

    @property
    def fingerprint(self) -> str:
        return f"{self.edit.component}/{self.edit.kind}"


_TABLE = {
    "position/query-position": {
        "slot-positions": "tokens are numbered by the slots they are written to",
        "longest-positions": "every row's tokens are numbered on from the longest row's",
        "another-rows-positions": "the positions of one row of the batch are used for every row",
        "drift-rejected": "positions advance by all tokens fed, rejected ones included",
        "drift-most": "positions advance in every row as in the one that accepts most",
        "drift-least": "positions advance in every row as in the one that accepts least",
        "newest-shifted": "the correction or bonus token is fed one position off",
        "drafts-shifted": "draft tokens are verified one position off",
        "clamped-positions": "the first positions are clamped, so that the first token is off",
        "shifted-positions": "positions are {shift} off",
        "chunk-restarted": "the prompt is cut before position {position}, and positions of its second part begin at 0",
    },
    "mask/pad-visible": {
        "pads-seen": "pads are seen",
        "prompt-pads-seen": "the pads before the prompt are seen",
        "block-pads-seen": "the pads of a short block are seen",
        "pads-after-seen": "the pads that follow a short block are seen",
        "new-pads-seen": "pads that realigning adds to a row are seen",
        "rejected-zeroed": "zeroed slots are seen",
        "pads-accumulate": "pads between a row's prompt and its new tokens are seen",
    },
    "mask/future-visible": {"future-seen": "within a block a token sees later ones"},
    "mask/token-hidden": {
        "itself-hidden": "within a block tokens do not see themselves",
        "pad-id-hidden": "tokens that equal the pad id are hidden",
        "mask-of-another": "the mask of one row of the batch is used for every row",
        "chunk-blind": "the prompt is cut before position {position}, and its second part does not see the first",
    },
    "cache/stale-entry": {
        "rejected-kept": "rejected draft tokens are still seen",
        "first-rejected-kept": "rollback stops short, and the first rejected draft tokens are still seen",
        "rejected-kept-to-most": "rows are cropped as the one that accepted most, and rejected tokens are still seen",
        "restored-with-all": "after a rejection tokens are fed again, and what was there is still seen",
    },
    "cache/missing-entry": {
        "newest-lost": "rollback goes too far, and the newest accepted token is no longer seen",
        "lost-to-least": "rows are cropped as the one that accepted least, and accepted tokens are no longer seen",
        "reset": "after a rejection nothing is seen of what was cached",
        "prompt-end-lost": "the last token of the prompt is not seen by later rounds",
        "prompt-begin-lost": "the first token of the prompt is not seen by later rounds",
        "not-prefilled": "of the prompt of a row only the last token is fed",
        "not-prefilled-zeroed": "of the prompt of a row only the last token is fed, behind empty slots",
        "token-lost": "position {position} is not seen",
        "chunk-lost": "the prompt is cut before position {position}, and what follows never sees what is before it",
    },
    "cache/duplicate-entry": {"newest-again": "the last cached token is fed again and seen twice"},
    "cache/misaligned": {
        "not-moved": "mask and positions are realigned, the cache is not",
        "moved-wrong-way": "entries are moved together at the wrong edge",
    },
    "cache/torn-entry": {
        "values-not-moved": "keys are realigned, values are not",
        "layers-not-moved": "only the first layer is realigned",
        "heads-not-moved": "only the first head is realigned",
    },
    "cache/wrong-row": {
        "rows-reversed": "after every round the rows of the cache are exchanged",
        "rows-rotated": "after every round the rows of the cache are one place off",
        "stale-rows": "once a row has left, the rows of the cache are read by their old numbers",
        "caches-exchanged": "each row is given the next row's cache",
        "another-seen": "the tokens of row {row} are seen besides the row's own",
        "another-instead": "the tokens of row {row} are seen instead of the row's own",
        "rows-exchanged": "the row's tokens in the cache and those of row {row} are exchanged",
        "ended-row-seen": "what row {row} left in the cache is seen",
    },
    "bookkeeping/over-accept": {
        "rejected-emitted": "the first rejected draft token is emitted in place of the correction",
        "rejected-answered": "the first rejected draft token is emitted, and then what the target predicts after it",
        "any-match-accepted": "as many draft tokens are emitted as agree anywhere in the block",
        "all-accepted": "all draft tokens are emitted, and then what the target predicts after the last",
        "all-accepted-corrected": "all draft tokens are emitted, and then the correction",
    },
    "bookkeeping/unverified": {
        "unverified-emitted": "draft tokens are emitted that the target never verified, and its predictions for their "
        "places follow them",
    },
    "bookkeeping/lost-token": {
        "last-accepted-lost": "the last accepted draft token of a round is lost",
        "last-of-several-lost": "the last accepted draft token is lost where a round accepts at least two",
        "first-accepted-lost": "the first accepted draft token of a round is lost",
        "accepted-lost": "the accepted draft tokens of a round are lost",
        "missing-in-output": "the output lacks {tokens} that the engine computed",
    },
    "bookkeeping/repeated-token": {
        "newest-twice": "the correction or bonus token is committed twice",
        "correction-twice": "the correction is committed twice",
        "last-accepted-twice": "the last accepted draft token is committed twice",
        "twice-in-output": "the output has {tokens} twice",
    },
    "bookkeeping/wrong-correction": {
        "correction-of-last-column": "the correction is what the target predicts in the last column of the block",
        "correction-of-next-column": "the correction is what the target predicts one column later",
        "correction-of-column-before": "the correction is what the target predicts one column earlier",
        "correction-of-first-column": "the correction is what the target predicts in the first column of the block",
        "correction-of-next-row": "the correction is the target's prediction for the next row of the batch",
        "correction-of-row-before": "the correction is the target's prediction for the row before in the batch",
        "next-row-once-one-left": "once a row has left, predictions are those of the next row of the batch",
        "row-before-once-one-left": "once a row has left, predictions are those of the row before in the batch",
        "first-token-of-row-before": "the first token of rows is what the target predicts for the row before them",
        "first-token-of-next-row": "the first token of rows is what the target predicts for the row after them",
        "first-token-of-one-another": "the first token of rows is what the target predicts for another of these rows",
    },
    "bookkeeping/pad-in-output": {
        "pad-for-bonus": "a pad is emitted for the bonus token where fewer drafts than K fit and all are accepted",
        "pad-for-correction": "a pad is emitted for the correction",
        "pads-after-end": "the row goes on with {tokens} after its end, all of them pads",
    },
    "bookkeeping/row-swap": {"rows-swapped": "rows hold the output of other rows"},
    "bookkeeping/premature-stop": {"ends-early": "the row ends after {tokens}"},
    "bookkeeping/past-eos": {"eos-passed": "the row goes on with {tokens} after its EOS"},
    "bookkeeping/over-length": {"limit-passed": "the row goes on with {tokens} after its limit"},
    "options/ignored-option": {
        "option-ignored": "{options} is ignored",
        "forbidding-option-ignored": "an option that forbids a token is not applied",
        "option-stale": "the tokens of the current round do not count for {options}",
        "option-stale-for-bonus": "the tokens of the current round do not count for {options} at the bonus token",
        "option-for-first-alone": "{options} is applied to the first token of a round alone",
        "minimum-stale": "min_new_tokens is compared with the number of new tokens when the round began",
        "minimum-stale-with-prompt": "min_new_tokens is compared with the number of new tokens when the round began, "
        "or after a rejection with the number of all tokens but one, those of the prompt included",
        "options-of-another": "every row is given the options of row {row}",
        "end-of-another": "rows end where the limit and the EOS ids of row {row} would end them",
    },
}


def _edit(name: str, fingerprint: str, words: str) -> Edit:
    component, _, kind = fingerprint.partition("/")
    absent = kind == "missing-entry" and name != "not-prefilled-zeroed"
    return Edit(name, component, kind, words, _HIDDEN_INSTEAD if absent else ())


EDITS = {name: _edit(name, fingerprint, words) for fingerprint, some in _TABLE.items() for name, words in some.items()}
