"""A case for an engine that loads a checkpoint: its rows with their options, and how the engine is to be set up."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from itertools import groupby
from typing import Annotated, Any, ClassVar, TypeVar

from msgspec import Meta

from eqcheck.contract.decoders import DRAFTING, RowOptions
from eqcheck.contract.errors import CaseError
from eqcheck.contract.family import LLAMA
from eqcheck.contract.fields import Rule, among, check, complaint, plain, read, within
from eqcheck.contract.options import PENALTIES
from eqcheck.contract.profiles import ENGINE_PENALTY, ENGINE_ROWS, ENGINE_TOKENS, MOST_DRAFT_TOKENS
from eqcheck.contract.requirements import options_meeting, prompts_meeting
from eqcheck.core.case.record import AnyCase

VOCAB_SIZE, POSITIONS = 256, 2048  # of the checkpoints
PAD = 0
SILENT = -1  # in place of the accepted draft tokens of a round: nothing is drafted in it
Self = TypeVar("Self", bound="EngineCase")

Token = Annotated[int, Meta(ge=0, le=VOCAB_SIZE - 1, extra={"is": f"token ids below {VOCAB_SIZE}"})]
Tokens = Annotated[tuple[Token, ...], Meta(extra={"is": "a list of token ids"})]
Accepted = Annotated[int, Meta(ge=SILENT, le=MOST_DRAFT_TOKENS)]
Blocks = Annotated[int, Meta(ge=1, le=10**6)]


def _prompt(row: EngineRow) -> Iterator[str]:
    if not row.prompt:
        yield "prompt: expected at least one token id, got none"


def _asked(row: EngineRow) -> Iterator[str]:
    options, most = row.options, POSITIONS - len(row.prompt)
    biased, most_biased = tuple(token for token, _ in options.logit_bias), f"-{ENGINE_PENALTY} to {ENGINE_PENALTY}"
    named = [(name, getattr(options, name)) for name in ("eos_token_ids", "allowed_ids")] + [("logit_bias", biased)]
    for name in ("stop_sequences", "bad_words"):
        named += [(f"{name}[{number}]", ids) for number, ids in enumerate(getattr(options, name))]
    named += [("grammar", ids) for _, ids, _ in options.grammar]
    for name, ids in named:
        if said := complaint(name, ids, Tokens):
            yield said
    for _, bias in options.logit_bias:
        if abs(bias) > ENGINE_PENALTY:
            yield f"logit_bias: expected numbers from {most_biased}, got {bias!r}"
    for name, least, greatest in (("max_new_tokens", 1, most), ("min_new_tokens", 0, most), ("arrival", 0, 4096)):
        yield from within(name, [getattr(options, name)], least, greatest)
    for name, off in PENALTIES.items():
        span = "above 0 and up to" if off else f"from -{ENGINE_PENALTY} to"  # a factor, or a term
        if abs(penalty := getattr(options, name)) > ENGINE_PENALTY:  # `RowOptions` has seen that it is a number
            yield f"{name}: expected a number {span} {ENGINE_PENALTY}, got {penalty!r}"


@dataclass(frozen=True)
class EngineRow:
    """A prompt and what is asked for it; ``options`` are those of `eqcheck.contract.decoders.RowOptions`.

    Where drafts are dictated, ``accepts[round]`` says how many of a round's draft tokens agree with the target, or is
    `SILENT` where the round has none; in a round it does not name, none agrees. The first new token comes from the
    prompt's own forward, so rounds count from the second.
    """

    prompt: Tokens
    options: RowOptions
    accepts: Annotated[tuple[Accepted, ...], Meta(extra={"is": "a list of counts"})] = ()

    def __post_init__(self) -> None:
        check(self, (_prompt, _asked))

    def to_dict(self) -> dict[str, Any]:
        """Plain data, without what is at its default; the options stand beside the prompt."""
        accepts = {"accepts": list(self.accepts)} if self.accepts else {}
        return {"prompt": list(self.prompt), **plain(self.options, None), **accepts}

    @classmethod
    def from_dict(cls, data: Any, place: str) -> EngineRow:
        """The inverse of `to_dict`; the message of a `CaseError` begins with ``place``."""
        if not isinstance(data, Mapping):
            raise CaseError(f"{place}: expected an object, got {type(data).__name__}")
        own = {name: value for name, value in data.items() if name not in _OPTIONS}
        options = {name: value for name, value in data.items() if name in _OPTIONS}
        return read(
            cls, {**own, "options": read(RowOptions, options, f"{place}: ", f"{place}.")}, f"{place}: ", f"{place}."
        )


def answered_together(rows: Iterable[EngineRow]) -> tuple[EngineRow, ...]:
    """The rows, where ``n`` says how many of them side by side are answers to one request.

    Rows may have been left out or changed since they were one request; then ``n`` is lower.

    >>> row = EngineRow((1, 2), RowOptions(4, n=3))
    >>> [one.options.n for one in answered_together([row, row, EngineRow((1,), row.options)])]
    [2, 2, 1]
    """
    told = list[EngineRow]()
    for _, alike in groupby(rows, key=lambda row: (row.prompt, row.options)):
        left = list(alike)
        while left:
            count = min(left[0].options.n, len(left))
            told += (replace(row, options=replace(row.options, n=count)) for row in left[:count])
            left = left[count:]
    return tuple(told)


_OPTIONS = tuple(field.name for field in fields(RowOptions))


def _size(case: EngineCase) -> Iterator[str]:
    if not case.rows:
        yield "rows: expected at least one, got none"
    tokens = sum(len(row.prompt) + row.options.max_new_tokens for row in case.rows)
    if tokens > ENGINE_TOKENS:
        yield f"rows: expected at most {ENGINE_TOKENS} tokens in all, new ones included, got {tokens}"


def _drafting(case: EngineCase) -> Iterator[str]:
    yield from among("drafting", case.drafting, DRAFTING)


@dataclass(frozen=True)
class EngineCase(AnyCase):
    """One test input for an engine. ``checkpoint`` names the pair of models, by their weights.

    ``token_budget``, ``kv_blocks`` and ``prefix_caching`` are the engine's own defaults where they are None.
    ``switch`` is one of its `eqcheck.contract.decoders.Hooks.switches`.

        >>> case = EngineCase((EngineRow((1, 2), RowOptions(4)),), num_draft_tokens=3)
        >>> EngineCase.from_dict(case.to_dict()) == case
        True
    """

    format: ClassVar[str] = "eqcheck-engine-case/1"
    lane: ClassVar[str] = "engine"
    family: ClassVar[str] = LLAMA
    before: ClassVar[tuple[EngineCase, ...]] = ()
    pad_token_id: ClassVar[int] = PAD
    padding_side: ClassVar[str] = "left"
    omitted = None
    nested = ("rows", EngineRow.from_dict)
    rules: ClassVar[tuple[Rule, ...]] = (_size, _drafting)
    rows: Annotated[tuple[EngineRow, ...], Meta(max_length=ENGINE_ROWS)]
    num_draft_tokens: Annotated[int, Meta(ge=1, le=MOST_DRAFT_TOKENS)] = 1
    drafting: str = "model"
    token_budget: Blocks | None = None
    kv_blocks: Blocks | None = None
    prefix_caching: Annotated[bool | None, Meta(extra={"is": "true, false or null"})] = None
    checkpoint: str = ""
    switch: Annotated[str | None, Meta(extra={"is": "the name of a switch of the engine, or null"})] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if any(row.options.n > 1 for row in self.rows):
            object.__setattr__(self, "rows", answered_together(self.rows))

    @property
    def prompts(self) -> tuple[tuple[int, ...], ...]:
        return tuple(row.prompt for row in self.rows)

    @property
    def options(self) -> tuple[RowOptions, ...]:
        return tuple(row.options for row in self.rows)

    @property
    def max_new_tokens(self) -> int:
        """The first row's limit, for a decoder that knows no options of rows."""
        return self.rows[0].options.max_new_tokens

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """The first row's, for a decoder that knows no options of rows."""
        return self.rows[0].options.eos_token_ids

    def with_options(self: Self, options: Iterable[RowOptions]) -> Self:
        """The case with other options of its rows."""
        rows = zip(self.rows, options, strict=True)
        return replace(self, rows=tuple(replace(row, options=each) for row, each in rows))

    def of(self: Self, numbers: Iterable[int]) -> Self:
        """The case with these of its rows, in this order."""
        return replace(self, rows=tuple(self.rows[number] for number in numbers))

    def after(self: Self, earlier: Iterable[EngineCase], arrivals: bool) -> Self:
        """The case with the rows of earlier cases in it; they have ended when its own rows arrive, if ``arrivals``.

        A row may take a step for each new token, and one for each token of its prompt where a budget is small.
        """
        cases: list[EngineCase] = [*earlier, self]
        rows, start = list[EngineRow](), 0
        for case in cases:
            moved = [replace(row.options, arrival=start + row.options.arrival) for row in case.rows]
            rows += (case.with_options(moved) if arrivals else case).rows
            prefill = sum(len(row.prompt) for row in case.rows) if case.token_budget else len(case.rows)
            start = max(one.arrival + one.max_new_tokens for one in moved) + prefill
        return replace(self, rows=tuple(rows))

    def meeting(self: Self, requires: tuple[str, ...]) -> Self:
        """The case with its rows changed as little as `eqcheck.contract.requirements` need."""
        prompts = prompts_meeting(requires, self.prompts, PAD, VOCAB_SIZE)
        options = options_meeting(requires, prompts, self.options[: len(prompts)])
        rows = zip(self.rows, prompts, options, strict=False)
        return replace(self, rows=tuple(EngineRow(prompt, each, row.accepts) for row, prompt, each in rows))


def at_the_end(case: EngineCase) -> bool:
    """Return whether a row ends so near to the model's last position that not all draft tokens have room."""
    lengths = [len(row.prompt) + row.options.max_new_tokens for row in case.rows]
    return max(lengths) >= POSITIONS - case.num_draft_tokens
