"""An engine that applies options to scores while it speculates, in two builds, and faults in how it does that.

`Rounds` drafts greedily, verifies the first token with drafts, and has a row after the other. `Together` drafts with
the options of the row, takes the first token from the prefill, and goes on with all rows round by round. Both compute
the built checkpoint `full`; a fault is a function that says with which options, and after which new tokens, a token is
chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import eqcheck
from eqcheck.contract.decoders import Request, RowOptions
from eqcheck.contract.options import SCORING
from eqcheck.core.case.engine import EngineRow
from eqcheck.engines.checkpoints.continuations import FunctionTruth, at_place
from eqcheck.engines.checkpoints.folders import checkpoint

CLAIMS = ("row-limits", "row-eos", "min-new-tokens", "presence-penalty", "repetition-penalty")
NEW = ("frequency-penalty", "logit-bias", "bad-words", "allowed-ids", "no-repeat-ngram-size")


@dataclass
class Going:
    """A row being decoded: its ``output``, what was ``proposed`` and ``rejected``, the ``last`` tokens of its rounds.

    The round before began after ``earlier`` tokens. ``refuted`` is the output with the first rejected token of rounds.
    """

    number: int
    prompt: tuple[int, ...]
    options: RowOptions
    output: list[int] = field(default_factory=list)
    proposed: list[int] = field(default_factory=list)
    rejected: list[int] = field(default_factory=list)
    refuted: list[int] = field(default_factory=list)
    last: list[int] = field(default_factory=list)
    drafts: list[int] = field(default_factory=list)
    earlier: int = 0

    @property
    def ended(self) -> bool:
        ends = self.options.eos_token_ids
        return len(self.output) >= self.options.max_new_tokens or bool(self.output and self.output[-1] in ends)


@dataclass(frozen=True)
class Place:
    """Where a token is chosen: in a row, after so many draft tokens of its round, beside all rows."""

    row: Going
    offset: int
    rows: Sequence[Going]

    @property
    def before(self) -> list[int]:
        return [*self.row.output, *self.row.drafts[: self.offset]]

    @property
    def bonus(self) -> bool:
        return self.offset == len(self.row.drafts)

    def off(self, *names: str) -> RowOptions:
        """The row's options without these, or without any on scores."""
        return replace(self.row.options, **{name: SCORING[name] for name in names or SCORING})

    def neighbour(self, shift: int) -> RowOptions:
        """The options on scores of another row."""
        return self.lent(self.rows[(self.row.number + shift) % len(self.rows)].options)

    def lent(self, other: RowOptions) -> RowOptions:
        return replace(self.row.options, **{name: getattr(other, name) for name in SCORING})

    @property
    def going(self) -> list[Going]:
        return [row for row in self.rows if not row.ended]

    def scaled(self, factor: float) -> RowOptions:
        """The row's options with penalties and biases so many times as strong."""
        options = self.row.options
        bias = tuple((token, max(-100.0, min(value * factor, 100.0))) for token, value in options.logit_bias)
        penalties = {name: getattr(options, name) * factor for name in ("presence_penalty", "frequency_penalty")}
        return replace(options, logit_bias=bias, repetition_penalty=options.repetition_penalty**factor, **penalties)


Fault = Callable[[Place], tuple[RowOptions, Sequence[int]]]
FAULTS: dict[str, Fault] = {
    "frequency-ignored": lambda at: (at.off("frequency_penalty"), at.before),
    "frequency-as-presence": lambda at: (at.row.options, [*dict.fromkeys(at.before)]),
    "bias-ignored": lambda at: (at.off("logit_bias"), at.before),
    "words-ignored": lambda at: (at.off("bad_words"), at.before),
    "longer-words-ignored": lambda at: (
        replace(at.row.options, bad_words=tuple(word for word in at.row.options.bad_words if len(word) == 1)),
        at.before,
    ),
    "ngrams-ignored": lambda at: (at.off("no_repeat_ngram_size"), at.before),
    "allowed-ignored": lambda at: (at.off("allowed_ids"), at.before),
    "stale": lambda at: (at.row.options, at.row.output),
    "stale-bonus": lambda at: (at.row.options, at.row.output if at.bonus else at.before),
    "first-alone": lambda at: (at.off() if at.offset else at.row.options, at.before),
    "row-start-alone": lambda at: (at.off() if at.before else at.row.options, at.before),
    "bonus-without": lambda at: (at.off() if at.bonus else at.row.options, at.before),
    "drafts-without": lambda at: (at.row.options if at.bonus else at.off(), at.before),
    "over-rejected": lambda at: (at.row.options, [*at.row.rejected, *at.before]),
    "over-first-rejected": lambda at: (at.row.options, [*at.row.refuted, *at.row.drafts[: at.offset]]),
    "over-proposed": lambda at: (at.row.options, [*at.before, *at.row.proposed, *at.row.drafts]),
    "once-a-round": lambda at: (at.row.options, at.row.last),
    "next-row": lambda at: (at.neighbour(1), at.before),
    "first-row": lambda at: (at.neighbour(-at.row.number), at.before),
    "prompt-counted": lambda at: (at.row.options, [*at.row.prompt, *at.before]),
    "first-without": lambda at: (at.row.options if at.offset else at.off(), at.before),
    "times-tokens": lambda at: (at.scaled(len(at.row.drafts) + 1), at.before),
    "by-tokens": lambda at: (at.scaled(1 / (len(at.row.drafts) + 1)), at.before),
    "over-drafts": lambda at: (at.row.options, [*at.row.output, *at.row.drafts]),
    "prompt-counted-minimum": lambda at: (
        replace(at.row.options, min_new_tokens=max(0, at.row.options.min_new_tokens - len(at.row.prompt))),
        at.before,
    ),
    "ids-off-by-one": lambda at: (
        replace(at.row.options, logit_bias=tuple(((n + 1) % 256, by) for n, by in at.row.options.logit_bias)),
        at.before,
    ),
    "next-bias": lambda at: (replace(at.row.options, logit_bias=at.neighbour(1).logit_bias), at.before),
    "a-round-late": lambda at: (at.row.options, at.row.output[: at.row.earlier]),
    "next-of-going": lambda at: (at.lent(at.going[(at.going.index(at.row) + 1) % len(at.going)].options), at.before),
}


class Rounds:
    """One row after the other."""

    kind = "full"
    asked, prefilled = False, False
    fault: Fault | None = None

    def __call__(self, target: str, draft: str, request: Request) -> list[list[int]]:
        built = checkpoint(self.kind).built
        assert built is not None
        self.target, self.draft = (FunctionTruth(one.function) for one in built)
        self.observed = {"drafted": 0, "accepted": 0}
        asked = enumerate(zip(request.prompts, request.rows, strict=True))
        rows = [Going(number, tuple(prompt), options) for number, (prompt, options) in asked]
        while going := [row for row in rows if not row.ended]:
            for row in going if self.asked else going[:1]:
                k = 0 if request.drafting == "none" or (self.prefilled and not row.output) else request.num_draft_tokens
                self.round(row, min(k, row.options.max_new_tokens - len(row.output) - 1), rows)
        return [row.output for row in rows]

    def round(self, row: Going, k: int, rows: Sequence[Going]) -> None:
        """Draft, verify, and keep what agrees and one more."""
        options = row.options if self.asked else replace(row.options, **SCORING)
        free = EngineRow(row.prompt, replace(options, max_new_tokens=len(row.output) + max(k, 1), eos_token_ids=()))
        free = replace(free, options=replace(free.options, min_new_tokens=0))
        row.drafts = self.draft.row(free, row.output)[len(row.output) :] if k else []
        plain = EngineRow(row.prompt, RowOptions(1))
        (scores,) = self.target.together([plain], [[*row.output, *row.drafts]])
        new: list[int] = []
        for offset, score in enumerate(scores[-len(row.drafts) - 1 :]):
            place = Place(row, offset, rows)
            asked, before = self.fault(place) if self.fault else (row.options, place.before)
            new.append(int(at_place(score, EngineRow(row.prompt, asked), before).argmax()))
            if new[-1] in row.options.eos_token_ids or row.drafts[offset : offset + 1] != new[-1:]:
                break
        agreed = len(new) - (row.drafts[len(new) - 1 : len(new)] != new[-1:])
        self.observed["drafted"] += len(row.drafts)
        self.observed["accepted"] += agreed
        row.proposed += row.drafts
        row.rejected += row.drafts[agreed:]
        row.refuted += [*new[:-1], *row.drafts[agreed:][:1], new[-1]]
        row.earlier = len(row.output)
        row.output += new
        row.last.append(new[-1])


class Together(Rounds):
    """All rows, round by round; the draft applies the options."""

    asked, prefilled = True, True


def _registered(build: type[Rounds], fault: str = "") -> None:
    name = "-".join(filter(None, (build.__name__.lower(), fault)))
    engine = type(build.__name__, (build,), {"fault": staticmethod(FAULTS[fault]) if fault else None})
    claims: dict[str, Any] = {"checkpoints": True, "dtype": "float32", "kinds": ("full",)}
    globals()[name] = eqcheck.decoder(name=name, capabilities=(*CLAIMS, *NEW), **claims)(engine)


for _build in (Rounds, Together):
    for _fault in ("", *FAULTS):
        _registered(_build, _fault)
