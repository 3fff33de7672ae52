"""Samplers with one error each, beside those that are right: what may have drawn the tokens of an audit.

What is right is rejection sampling (Leviathan and others, 2023, https://arxiv.org/abs/2211.17192; Chen and others,
2023, https://arxiv.org/abs/2302.01318) with any draft whose law it knows, or matching, where a draft token is accepted
if the target draws the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from eqcheck.sampling.rounds import BASES, FACTORS, FIRST, MATCH, POWERS, REJECTION, SHARP, STEPS, Name, Read

_WITHOUT = {
    "temperature": "without the row's temperature",
    "temperature-twice": "with the row's temperature applied twice",
    "top-k": "without the row's top-k",
    "top-p": "without the row's top-p",
    "min-p": "without the row's min-p",
    "cuts": "without the row's cuts",
    "options": "without the row's options",
    "greedy": "as if the row were greedy",
    "order": "with the temperature applied behind the cuts",
    "order-first": "with the temperature applied before the cuts",
    "top-k-tighter": "with a top-k that is less by one",
    "top-k-looser": "with a top-k that is greater by one",
    "top-p-tighter": "with a top-p that cuts one token too many",
    "top-k-greedy": "as if a row with a top-k were greedy",
    "greedy-beside": "as if a row beside a greedy one were greedy",
    "first-row": "with the options of the first row",
    "first-row-temperature": "with the temperature of the first row",
    "first-row-top-k": "with the top-k of the first row",
    "first-row-top-p": "with the top-p of the first row",
    "first-row-min-p": "with the min-p of the first row",
    "greatest-top-k": "with the greatest top-k of all rows",
    "next-row": "with the options of the next row",
    "row-before": "with the options of the row before",
}
VARIANTS = tuple(_WITHOUT)
BESIDE = {
    "q-next-row": "the next row",
    "q-row-before": "the row before",
    "q-first-row": "the first row",
    "q-next-column": "the next column",
    "q-column-before": "the column before",
    "q-first-column": "the first column",
    "q-last-column": "the last column",
    "q-round-before": "the round before",
}


LEFT = {"before": "the column before", "behind": "the column behind", "first-column": "the first column"}
"""Other columns whose residual may be taken, that of the target's law and the draft's."""
_STALE = {
    "before": ("bonus-column", "the column before"),
    "first-column": ("bonus-column", "the first column of the round"),
    "round-before": ("stale-bonus", "the law of the last token of the round before"),
    "round-before-end": ("stale-bonus", "the law of the last column of the round before"),
}


class Sampler(NamedTuple):
    """A sampler with at most one error: its ``kind``, what is wrong in words, and the law of each part by name."""

    kind: str
    words: str
    draft: Name
    accept: Name
    correction: Name
    bonus: Name = ("",)
    first: Name = ("",)

    @property
    def known_in_first_columns(self) -> bool:
        """Whether only these tell: behind them, a corrected token may look accepted."""
        rule = self.accept[3]
        less = rule in ("never", "inverted", "one-minus") or "times-0" in rule
        return less or rule.startswith(("again", "first-"))

    @property
    def beside(self) -> str:
        """The other row or column whose law of the draft it takes, if any."""
        return next((law[2] for law in (self.accept, self.correction) if law[2] in BESIDE), "")

    def tells(self, reads: list[Read], part: str) -> list[Read]:
        """The tokens that tell whether a part is of this sampler."""
        if self.known_in_first_columns:
            return [read.first_columns() for read in reads]
        takes = part in ("accept", "correction") and getattr(self, part)[2] in BESIDE
        return [read.beside_known(self.beside) for read in reads] if takes else reads


def right_samplers() -> Iterator[Sampler]:
    """Matching, and rejection with drafts that take the options of the row or leave some out."""
    # What draft tokens are drawn from does not matter where they are matched: the likeliest name stands for it.
    yield Sampler("", "", (), (MATCH, "", "", ""), (MATCH, "", "", ""))
    for base in BASES:
        yield Sampler("", "", (base,), (REJECTION, "", base, ""), (REJECTION, "", base, ""))


def wrong_samplers() -> Iterator[Sampler]:
    """Every right sampler with every error."""
    for right in right_samplers():
        scheme, base = right.accept[0], right.accept[2]
        yield from _wrong_target(right, scheme, base)
        yield from _wrong_rule(right, scheme, base)
        yield from _redrawn(right, base)
        yield from _wrong_end(right)
        if scheme == REJECTION:
            yield from _wrong_draft(right, base)


def _wrong_target(right: Sampler, scheme: str, base: str) -> Iterator[Sampler]:
    for variant, how in _WITHOUT.items():
        law = (scheme, variant, base, "")
        verified = right._replace(kind="target-option", accept=law, correction=law)
        yield verified._replace(words=f"the target's law is taken {how} where draft tokens are verified")
        words = f"the target's law is taken {how}"
        words = f"{words}: the answer is the argmax" if variant == "greedy" else words
        yield verified._replace(words=words, bonus=(variant,), first=(variant,))
        yield right._replace(kind="target-option", words=f"acceptance takes the target's law {how}", accept=law)
        yield right._replace(kind="residual", words=f"corrections take the target's law {how}", correction=law)
        yield right._replace(kind="bonus-law", words=f"a bonus is drawn {how}", bonus=(variant,))
        yield right._replace(kind="first-token", words=f"the first token is drawn {how}", first=(variant,))
        if scheme == REJECTION and not base and variant not in BASES:
            both = (scheme, variant, variant, "")
            words = f"the laws of target and draft are taken {how}"
            yield Sampler("target-option", words, (variant,), both, both, (variant,), (variant,))
            words = f"the laws of target and draft are taken {how} where draft tokens are verified"
            yield Sampler("target-option", words, (variant,), both, both)
            words = f"corrections take the laws of target and draft {how}"
            yield right._replace(kind="residual", words=words, correction=both)
        elif scheme == REJECTION and not base:
            both = (scheme, variant, variant, "")
            words = f"corrections take the laws of target and draft {how}"
            yield right._replace(kind="residual", words=words, correction=both)


def _wrong_draft(right: Sampler, base: str) -> Iterator[Sampler]:
    for variant, how in _WITHOUT.items():
        words = f"draft tokens are drawn {how}, and compared with another law"
        yield right._replace(kind="draft-law", words=words, draft=(variant,))
    for sharp in SHARP:
        what = {"greedy": "the draft's likeliest", "uniform": "drawn uniformly"}.get(
            sharp, f"drawn from the draft's {sharp.partition('-')[2]} likeliest"
        )
        words = f"draft tokens are {what}, and compared with another law"
        yield right._replace(kind="draft-law", words=words, draft=(sharp,))
    for power in POWERS:
        words = f"draft tokens are drawn at {1 / power:.2g} times the temperature at which they are compared"
        yield right._replace(kind="draft-law", words=words, draft=(f"power-{power}",))
    certain = "acceptance takes the draft token for certain"
    yield right._replace(kind="draft-law", words=certain, accept=(MATCH, "", "", ""))
    if base:
        return
    for variant, how in _WITHOUT.items():
        law = (REJECTION, "", variant, "")
        words = f"draft tokens are compared with the draft's law {how}, which they are not drawn from"
        yield right._replace(kind="draft-law", words=words, accept=law, correction=law)
        words = f"acceptance takes the draft's law {how}"
        yield right._replace(kind="draft-law", words=words, accept=law)
        yield right._replace(kind="residual", words=f"corrections take the draft's law {how}", correction=law)
    for variant, whose in BESIDE.items():
        law = (REJECTION, "", variant, "")
        changed = right._replace(kind="wrong-draft-row")
        yield changed._replace(
            words=f"draft tokens are compared with the draft's law of {whose}", accept=law, correction=law
        )
        yield changed._replace(words=f"acceptance takes the draft's law of {whose}", accept=law)
        yield changed._replace(words=f"corrections take the draft's law of {whose}", correction=law)


def _wrong_rule(right: Sampler, scheme: str, base: str) -> Iterator[Sampler]:
    def accepting(kind: str, words: str, rule: str) -> Sampler:
        return right._replace(kind=kind, words=words, accept=(scheme, "", base, rule))

    yield accepting("over-acceptance", "every draft token is accepted", "always")
    yield accepting("over-acceptance", "the first draft token of a round is always accepted", "first-column")
    yield accepting("over-acceptance", "draft tokens behind the first of a round are always accepted", "later-columns")
    yield accepting("over-acceptance", "draft tokens are accepted that the target never emits", "impossible")
    yield accepting("over-acceptance", "draft tokens are accepted where they are to be refused", "one-minus")
    yield accepting("under-acceptance", "no draft token is accepted", "never")
    if scheme == REJECTION:  # matching has no ratio
        yield accepting("over-acceptance", "the ratio is inverted", "inverted")
    for factor in FACTORS if scheme == REJECTION else ():
        kind = "over-acceptance" if factor > 1 else "under-acceptance"
        yield accepting(kind, f"the ratio is about {factor:.2g} times what is right", f"times-{factor:g}")
        if factor < 1:
            words = f"draft tokens are accepted about {factor:.2g} times as often as is right"
            yield accepting(kind, words, f"then-times-{factor:g}")
    compared = "its ratio" if scheme == REJECTION else "its probability"
    for step in STEPS:
        words = f"a draft token is accepted where {compared} exceeds about {step:.2g}: no random number decides"
        yield accepting("threshold-acceptance", words, f"step-{step:g}")
    for rule, what in (
        ("likeliest", "the likeliest of what the draft left of the target's law"),
        ("backwards", "drawn from what the target leaves of the draft's law"),
    ):
        if scheme == REJECTION:
            law = (scheme, "", base, rule)
            yield right._replace(kind="residual", words=f"corrections are {what}", correction=law)
    yield right._replace(
        kind="residual", words="corrections are drawn from the draft", correction=("", "", "", "draft")
    )
    if scheme == REJECTION:
        words = "the random number that refused the draft token picks the correction"
        yield right._replace(kind="reused-noise", words=words, correction=(scheme, "", base, "coin"))
        coin = (scheme, "", base, "coin")
        words = "the random number that refused a draft token, or accepted the last, picks the correction and the bonus"
        yield right._replace(kind="reused-noise", words=words, correction=coin, bonus=("coin",))
        words = "the random number that accepted the last draft token picks the bonus"
        yield right._replace(kind="reused-noise", words=words, bonus=("coin",))
        words = "one random number decides on all draft tokens of a round"
        yield right._replace(kind="reused-noise", words=words, accept=(scheme, "", base, "one-coin"))
        words = "the random numbers that drew the draft token draw the correction"
        yield right._replace(kind="reused-noise", words=words, correction=(scheme, "", base, "race"))


def _redrawn(right: Sampler, base: str) -> Iterator[Sampler]:
    """Corrections that may be the refused draft token, which then looks accepted: what seems a bonus is none."""
    for rule, kind, what in (
        ("again", "residual", "from the target's law, and not from what the draft left of it"),
        ("again-options", "residual", "from the target's law without the row's options"),
        ("again-absolute", "residual", "from the absolute difference of the laws"),
        ("again-before", "correction-column", "from the column before"),
        ("again-behind", "correction-column", "from the column behind"),
        *((f"again-left-{name}", "correction-column", f"from the residual of {where}") for name, where in LEFT.items()),
    ):
        elsewhere = rule.startswith("again-left")  # in the first column it may be the right one: the bonus must be, too
        if elsewhere and (base or right.accept[0] == MATCH):
            continue
        if right.accept[0] == MATCH and rule == "again":
            words = "a refused draft token may be drawn again"
        else:
            words = f"corrections are drawn {what}"
        accept = (*right.accept[:3], rule)
        bonus = ("",) if elsewhere else ()
        correction = ("", "", base, rule)
        yield right._replace(kind=kind, words=words, accept=accept, correction=correction, bonus=bonus)
    accept, correction = (*right.accept[:3], "again-argmax"), ("", "", base, "again-argmax")
    words = "corrections are the target's likeliest"
    yield right._replace(kind="residual", words=words, accept=accept, correction=correction, bonus=())
    if right.accept[0] == REJECTION:
        words = "corrections are drawn as if the draft token had been certain"
        yield right._replace(kind="residual", words=words, correction=("", "", base, "again"))


def _wrong_end(right: Sampler) -> Iterator[Sampler]:
    for variant in FIRST:  # the draft token at its place does not matter then
        law = (*right.accept[:3], f"first-{variant}")
        words = f"the first token is drawn {_WITHOUT[variant]}"
        yield right._replace(kind="first-token", words=words, accept=law, correction=law, first=(variant,))
    for power in POWERS:
        how = f"at {1 / power:.2g} times the temperature"
        yield right._replace(kind="bonus-law", words=f"a bonus is drawn {how}", bonus=(f"power-{power}",))
        yield right._replace(kind="first-token", words=f"the first token is drawn {how}", first=(f"power-{power}",))
    for name, (kind, where) in _STALE.items():
        yield right._replace(kind=kind, words=f"a bonus is drawn from {where}", bonus=(name,))
