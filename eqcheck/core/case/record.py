"""Define a case: one test input, as frozen, versioned data."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from itertools import zip_longest
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar

from msgspec import Meta

from eqcheck.contract.architectures import parsed
from eqcheck.contract.decoders import CACHE_STATES, FAMILIES, PaddingSide, Request, RowOptions
from eqcheck.contract.errors import CaseError
from eqcheck.contract.fields import Reader, Rule, among, check, plain, read, shown, within
from eqcheck.contract.options import options_of
from eqcheck.contract.profiles import (
    MOST_BEFORE,
    MOST_DRAFT_TOKENS,
    MOST_ROWS,
    MOST_SPARE_SLOTS,
    MOST_TOKENS,
    MOST_TOKENS_OF_ROW,
    MOST_VOCABULARY,
    MOST_WORK,
    MOST_WORK_BEFORE,
)
from eqcheck.contract.trees import REJECTED, Nodes, of_round, wrong_with
from eqcheck.core.explanation.records import Given

Self = TypeVar("Self", bound="AnyCase")
T = TypeVar("T")
Prompt = Annotated[tuple[int, ...], Meta(min_length=1, extra={"is": "a tuple of at least one token"})]
OfRounds = Annotated[tuple[T, ...], Meta(max_length=MOST_TOKENS_OF_ROW, extra={"of": " rounds"})]
OfRows = Annotated[tuple[T, ...], Meta(max_length=MOST_ROWS, extra={"of": " rows"})]
Prompts = OfRows[Prompt]
Vocabulary = Annotated[int, Meta(ge=4, le=MOST_VOCABULARY)]


class AnyCase:
    """Read, write and check a case of any lane, and turn it into a request.

    ``omitted`` are the fields (None: all) that are left out of files at their defaults; ``rules`` check fields
    together; ``nested`` is the field whose items are records, with the reader for them.
    """

    format: ClassVar[str]
    lane: ClassVar[str]
    omitted: ClassVar[Collection[str] | None] = ()
    rules: ClassVar[tuple[Rule, ...]] = ()
    nested: ClassVar[tuple[str, Reader] | None] = None

    if TYPE_CHECKING:  # fields of some, properties of others

        @property
        def prompts(self) -> tuple[tuple[int, ...], ...]: ...
        @property
        def options(self) -> tuple[RowOptions, ...]:
            """Return the options of each row."""

        @property
        def family(self) -> str: ...
        @property
        def checkpoint(self) -> str: ...
        @property
        def before(self: Self) -> tuple[Self, ...]: ...

    def __post_init__(self) -> None:
        check(self, self.rules)

    @property
    def alone(self: Self) -> Self:
        """Return the case without earlier requests."""
        return self

    @property
    def id(self) -> str:
        """Return twelve hexadecimal digits that identify the content."""
        return hashlib.sha256(json.dumps(self.to_dict(), sort_keys=True).encode()).hexdigest()[:12]

    def request(self) -> Request:
        """Return the request to a decoder, a fresh copy each time."""
        shared = {name: getattr(self, name) for name in _OF_REQUEST if hasattr(self, name)}
        return Request(prompts=[list(prompt) for prompt in self.prompts], rows=self.options, **shared)

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain data for JSON; the inverse of `from_dict`."""
        return {"format": self.format, **plain(self, self.omitted)}

    @classmethod
    def from_dict(cls: type[Self], data: Any, place: str = "") -> Self:
        """Read plain data, as `to_dict` makes it; raise `CaseError` for missing, unknown or newer fields.

        Its message begins with ``place``, for example a file name.
        """
        what = f"{place}case: "
        if isinstance(data, Mapping):
            if data.get("format") != cls.format:
                expected = f"expected format {cls.format!r}, got {shown(data.get('format'))}"
                raise CaseError(f"{what}{expected}; run it with the eqcheck that wrote it")
            data = {name: value for name, value in data.items() if name != "format"}
        return read(cls, data, what, place, cls.nested)


_OF_REQUEST = tuple(field.name for field in fields(Request) if field.name not in ("prompts", "rows"))


def _rows(case: Case) -> Iterator[str]:
    if not case.prompts:
        yield "prompts: expected at least one row, got none"
    most = MOST_TOKENS_OF_ROW - case.max_new_tokens
    for row, prompt in enumerate(case.prompts):
        if len(prompt) > most:
            beside = f"tokens beside {case.max_new_tokens} new ones"
            yield f"prompts[{row}]: expected at most {most} {beside}, got {len(prompt)}"


def _work(case: Case) -> Iterator[str]:
    tokens, work = case.tokens, case.work
    if tokens > MOST_TOKENS:
        yield f"prompts: expected at most {MOST_TOKENS} tokens in all rows, new ones included, got {tokens}"
    if work > MOST_WORK:
        yield (
            f"prompts, max_new_tokens, num_draft_tokens: expected less together: the tokens of all rows ({tokens}) "
            f"times max_new_tokens times (num_draft_tokens + 1) are {work}, and {MOST_WORK} is the most"
        )


def _vocabulary(case: Case) -> Iterator[str]:
    yield from within("pad_token_id", [case.pad_token_id], 0, case.vocab_size)
    for row, prompt in enumerate(case.prompts):
        yield from within(f"prompts[{row}]", prompt, 0, case.vocab_size - 1)
    yield from within("eos_token_ids", case.eos_token_ids, 0, case.vocab_size - 1)


def _accepted(case: Case) -> Iterator[str]:
    for row, rounds in enumerate(case.accepts):
        yield from within(f"accepts[{row}]", rounds, 0, case.num_draft_tokens)
    if case.agreement is not None and case.accepts:
        yield "accepts, agreement: expected one of the two, got both"


def _names(case: Case) -> Iterator[str]:
    if not parsed(case.family):
        yield from among("family", case.family, FAMILIES)
    yield from among("cache_state", case.cache_state, tuple(CACHE_STATES))


def _state(case: Case) -> Iterator[str]:
    """The parameters of the cache state: given where it needs them, absent where it does not."""
    for state, name, unset in (
        ("chunked", "prefill_chunk", None),
        ("prefix", "prefix_length", 0),
        ("late-rows", "arrivals", ()),
        ("tree", "tree", ()),
    ):
        value, needed = getattr(case, name), case.cache_state == state
        if (value != unset) != needed:
            expected = f"expected {'a value' if needed else 'none'} for cache_state {case.cache_state!r}"
            yield f"{name}: {expected}, got {value!r}"
    spare = len(case.prompts) * (case.max_new_tokens + 1) * (case.num_draft_tokens + 1)
    if case.cache_state == "preallocated" and spare > MOST_SPARE_SLOTS:
        yield (
            f"num_draft_tokens: expected fewer for cache_state 'preallocated', or fewer rows or new tokens: "
            f"together they need {spare} spare slots, and {MOST_SPARE_SLOTS} is the most"
        )
    yield from within("prefix_length", [case.prefix_length], 0, min(map(len, case.prompts)) - 1)
    if len({prompt[: case.prefix_length] for prompt in case.prompts}) > 1:
        yield f"prefix_length: expected prompts that share their first {case.prefix_length} tokens"
    if case.arrivals and len(case.arrivals) != len(case.prompts):
        yield f"arrivals: expected one per row ({len(case.prompts)}), got {len(case.arrivals)}"


def _stops(case: Case) -> Iterator[str]:
    for name, held in (("stop_sequences", case.stop_sequences), ("cancel_after", case.cancel_after)):
        if held and len(held) != len(case.prompts):
            yield f"{name}: expected those of {len(case.prompts)} rows, got {len(held)}"
    for row, stops in enumerate(case.stop_sequences):
        for stop in stops:
            yield from within(f"stop_sequences[{row}]", stop, 0, case.vocab_size - 1)


def _trees(case: Case) -> Iterator[str]:
    """Trees that are trees; in a case with trees, paths take the place of ``accepts``."""
    if case.paths and (case.agreement is not None or not case.tree):
        yield "paths: expected none without `tree` or with `agreement`"
    if case.tree and case.accepts:
        yield "accepts: expected none with `tree`; `paths` say what of it is accepted"
    for row, rounds in enumerate(case.tree):
        for number, nodes in enumerate(rounds):
            if wrong := wrong_with(nodes, case.num_draft_tokens):
                yield f"tree[{row}][{number}]: {wrong}"


def _earlier(case: Case) -> Iterator[str]:
    for number, earlier in enumerate(case.before):
        if earlier.before:
            yield f"before[{number}]: expected a case without earlier ones, got {len(earlier.before)}"
    if (work := sum(earlier.work for earlier in case.before)) > MOST_WORK_BEFORE:
        yield f"before: expected less work than {MOST_WORK_BEFORE} in all, got {work}"


Node = Annotated[tuple[int, int], Meta(extra={"is": "nodes of a parent and a rank"})]
Tree = Annotated[tuple[Node, ...], Meta(max_length=MOST_TOKENS_OF_ROW, extra={"of": " nodes"})]
Rank = Annotated[int, Meta(ge=0, le=REJECTED - 1)]
Path = Annotated[tuple[Rank, ...], Meta(max_length=MOST_TOKENS_OF_ROW, extra={"of": " ranks"})]
Arrival = Annotated[int, Meta(ge=0, le=4095)]


@dataclass(frozen=True)
class Case(AnyCase):
    """Hold one test input: the rows, the limits, and which draft tokens are right.

    - ``accepts[row][round]``: the number of draft tokens of that round that agree with the target (missing: 0). Rounds
      count from the first new token. ``agreement`` instead makes the draft agree at that rate, context by context.
    - ``seed``, ``vocab_size``: select the target; ``draft_seed`` the draft's weights, where they are of another seed
      (what it proposes is the target's all the same). ``pad_token_id`` can be ``vocab_size``, which the target never
      generates.
    - ``cache_state``: one of `eqcheck.contract.decoders.CACHE_STATES`. ``prefill_chunk``, ``prefix_length``,
      ``arrivals`` and ``tree`` are its parameters, as in `eqcheck.Request`. ``paths[row][round]``: the ranks among the
      draft's choices along the target's own tokens; no node after them is right, and zeros mean the first choices.
    - ``before``: requests that the same decoder decodes first, at most `MOST_BEFORE`; only the last one is judged.
    - ``stop_sequences``: those of each row. ``cancel_after``: a count of new tokens per row, or 0.
    - ``logprobs``: return log-probabilities; the target's scores then differ from context to context (`uneven`).

    The version in the format also fixes the definition of the target, so a stored case keeps its meaning.

        >>> case = Case(prompts=((5, 7), (9,)), max_new_tokens=6, num_draft_tokens=3, accepts=((3,), (0, 2)))
        >>> Case.from_dict(case.to_dict()) == case
        True

    Raises `CaseError` for a field of the wrong type or outside its range.
    """

    format: ClassVar[str] = "eqcheck-case/1"
    lane: ClassVar[str] = "transparent"
    checkpoint: ClassVar[str] = ""
    # Fields that the format got later: where they say nothing they are left out, so that cases keep their ids.
    omitted = (
        "cache_state",
        "prefill_chunk",
        "prefix_length",
        "arrivals",
        "tree",
        "paths",
        "before",
        "stop_sequences",
        "logprobs",
        "cancel_after",
        "draft_seed",
    )
    nested = ("before", lambda data, place: Case.from_dict(data, f"{place}: "))
    rules = (_rows, _work, _vocabulary, _accepted, _names, _state, _stops, _trees, _earlier)
    prompts: Prompts
    max_new_tokens: Annotated[int, Meta(ge=1, le=MOST_TOKENS_OF_ROW - 1)] = 4
    num_draft_tokens: Annotated[int, Meta(ge=1, le=MOST_DRAFT_TOKENS)] = 1
    accepts: OfRows[OfRounds[int]] = ()
    agreement: Annotated[float, Meta(ge=0, le=1)] | None = None
    eos_token_ids: Annotated[tuple[int, ...], Meta(max_length=MOST_VOCABULARY)] = ()
    pad_token_id: int = 0
    padding_side: PaddingSide = "left"
    family: str = "rotary"
    vocab_size: Vocabulary = 128
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] = 0
    cache_state: str = "empty"
    prefill_chunk: Annotated[int, Meta(ge=1, le=4095)] | None = None
    prefix_length: int = 0
    arrivals: Annotated[tuple[Arrival, ...], Meta(max_length=MOST_ROWS)] = ()
    tree: OfRows[OfRounds[Tree]] = ()
    paths: OfRows[OfRounds[Path]] = ()
    before: Annotated[tuple[Case, ...], Meta(max_length=MOST_BEFORE, extra={"of": " cases"})] = ()
    stop_sequences: OfRows[tuple[Prompt, ...]] = ()
    logprobs: bool = False
    cancel_after: Annotated[tuple[Annotated[int, Meta(ge=0, le=4095)], ...], Meta(max_length=MOST_ROWS)] = ()
    draft_seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.agreement is not None:
            object.__setattr__(self, "agreement", float(self.agreement))  # 1 and 1.0 are one case, with one id

    @property
    def options(self) -> tuple[RowOptions, ...]:
        plain = RowOptions(self.max_new_tokens, self.eos_token_ids, logprobs=self.logprobs)
        if not (self.stop_sequences or self.cancel_after):
            return (plain,) * len(self.prompts)
        own = zip_longest(self.prompts, self.stop_sequences, self.cancel_after)
        return tuple(replace(plain, stop_sequences=s or (), cancel_after=n or None) for _, s, n in own)

    @property
    def alone(self) -> Case:
        """Return the case without earlier requests."""
        return replace(self, before=()) if self.before else self

    @property
    def weights(self) -> tuple[str, int, int, int]:
        """Return what selects the weights of target and draft."""
        return self.family, self.vocab_size, self.seed, self.seed if self.draft_seed is None else self.draft_seed

    @property
    def uneven(self) -> bool:
        """Return whether the target's scores are flat and differ from context to context, and are not the draft's.

        By ranks alone the likeliest token of a target leads so far that a decoder which compares probabilities, where
        greedy decoding compares tokens, chooses rightly all the same.
        """
        return self.logprobs or self.agreement is not None

    @property
    def unchanging(self) -> Case:
        """Return the case with its earlier requests under its own weights."""
        names = ("family", "vocab_size", "seed", "draft_seed")
        own = {name: getattr(self, name) for name in names}
        return replace(self, before=tuple(replace(earlier, **own) for earlier in self.before))

    @property
    def tokens(self) -> int:
        """Count the tokens of all rows, new ones included."""
        return sum(map(len, self.prompts)) + len(self.prompts) * self.max_new_tokens

    @property
    def work(self) -> int:
        """Multiply the tokens of all rows by the calls of target and draft if nothing is accepted."""
        return self.tokens * self.max_new_tokens * (self.num_draft_tokens + 1)

    def nodes(self, row: int, number: int) -> Nodes:
        """Return the tree of a row's round, counted from 0; () if the decoder makes it."""
        return of_round(self.tree[row], number) if row < len(self.tree) else ()

    @property
    def axes(self) -> dict[str, str]:
        """Return the value of the case on each axis of a report; ranges in ascending order sort as text.

        >>> Case(prompts=((1,), (2,)), num_draft_tokens=3).axes["num_draft_tokens"]
        '3'
        """
        rows, k = len(self.prompts), self.num_draft_tokens
        return {
            "family": self.family,
            "padding_side": self.padding_side,
            "rows": str(rows) if rows < 3 else "3+",
            "cache_state": self.cache_state,
            "num_draft_tokens": str(k) if k < 5 else "5+",
        }

    @property
    def sizes(self) -> dict[str, int]:
        """Return the size of the case: rows, tokens of the longest prompt, ``max_new_tokens``, K."""
        lengths = [len(prompt) for prompt in self.prompts]
        return {
            "rows": len(lengths),
            "prompt": max(lengths),
            "new_tokens": self.max_new_tokens,
            "draft_tokens": self.num_draft_tokens,
        }

    @property
    def known_ids(self) -> int:
        """Return how many token ids the models know: the vocabulary, and a pad outside of it."""
        return max(self.vocab_size, self.pad_token_id + 1)

    def given(self, row: int) -> Given:
        """A row as it was asked, and the rows beside it; the accepted draft tokens where the case dictates them."""
        nothing, dictated = (None,) * len(self.prompts), self.agreement is None
        empty = ((),) * len(self.prompts)
        told = zip(
            self.prompts,
            self.options,
            (*self.accepts, *empty) if dictated and not self.tree else nothing,
            (*self.tree, *empty) if self.tree else nothing,
            (*self.paths, *empty) if dictated and self.tree else nothing,
            strict=False,
        )
        rows = (
            Given(
                prompt,
                limit=self.max_new_tokens,
                accepts=accepted,
                sampling=options_of(options),
                trees=trees,
                paths=paths,
            )
            for prompt, options, accepted, trees, paths in told
        )
        return Given(self.prompts[row], self.pad_token_id, self.eos_token_ids, self.num_draft_tokens, rows=tuple(rows))
