"""A case: one test input, as frozen, versioned data."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

from eqcheck.contract.architectures import parsed
from eqcheck.contract.decoder import CACHE_STATES, FAMILIES, PADDING_SIDES, PaddingSide, Request, RowOptions
from eqcheck.contract.errors import CaseError, did_you_mean
from eqcheck.contract.limits import (
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
from eqcheck.explanation.records import Given

# Fields that the format got later: left out where they say nothing, so that cases keep their ids.
_LATER = ("cache_state", "prefill_chunk", "prefix_length", "arrivals", "tree", "paths", "before")


@dataclass(frozen=True)
class Case:
    """One test input: the rows, the limits, and what the draft shall get right.

    ``accepts[row][round]`` dictates how many draft tokens of that round agree with the target; a row or round the
    table does not name agrees on none. ``agreement`` instead lets the draft agree with the target at that
    rate, context by context. Rounds count from the first new token. ``seed`` and ``vocab_size`` select the
    target; ``pad_token_id`` may be ``vocab_size``: a pad that the target never emits.

    ``cache_state`` is one of `eqcheck.contract.decoder.CACHE_STATES`; ``prefill_chunk``, ``prefix_length`` and
    ``arrivals`` are its parameters, and so are ``tree`` (see `eqcheck.contract.decoder.Request`) and ``paths``:
    ``paths[row][round]`` are the ranks among the draft's choices that lead along the target's own tokens, behind which
    no node is right; so a path of zeros is a spine. ``before`` are requests that the same instance of the decoder
    decodes first, at most `MOST_BEFORE`; only the last is judged. The format's version also stands for the definition
    of the target, so a stored case stays what it was.

        >>> case = Case(prompts=((5, 7), (9,)), max_new_tokens=6, num_draft_tokens=3, accepts=((3,), (0, 2)))
        >>> Case.from_dict(case.to_dict()) == case
        True

    Raises `CaseError` for a field of the wrong type or outside its range.
    """

    format: ClassVar[str] = "eqcheck-case/1"
    lane: ClassVar[str] = "transparent"
    checkpoint: ClassVar[str] = ""
    prompts: tuple[tuple[int, ...], ...]
    max_new_tokens: int = 4
    num_draft_tokens: int = 1
    accepts: tuple[tuple[int, ...], ...] = ()
    agreement: float | None = None
    eos_token_ids: tuple[int, ...] = ()
    pad_token_id: int = 0
    padding_side: PaddingSide = "left"
    family: str = "rotary"
    vocab_size: int = 128
    seed: int = 0
    cache_state: str = "empty"
    prefill_chunk: int | None = None
    prefix_length: int = 0
    arrivals: tuple[int, ...] = ()
    tree: tuple[tuple[Nodes, ...], ...] = ()
    paths: tuple[tuple[tuple[int, ...], ...], ...] = ()
    before: tuple[Case, ...] = ()

    def __post_init__(self) -> None:
        _ints("vocab_size", self.vocab_size, 4, MOST_VOCABULARY + 1)
        _ints("seed", self.seed, 0, 2**63)
        _ints("max_new_tokens", self.max_new_tokens, 1, MOST_TOKENS_OF_ROW)
        _ints("num_draft_tokens", self.num_draft_tokens, 1, MOST_DRAFT_TOKENS + 1)
        _ints("pad_token_id", self.pad_token_id, 0, self.vocab_size + 1)
        if not _tuple("prompts", self.prompts, MOST_ROWS, "rows"):
            raise CaseError("prompts: expected at least one row, got none")
        for row, prompt in enumerate(self.prompts):
            if not isinstance(prompt, tuple) or not prompt:
                raise CaseError(f"prompts[{row}]: expected a tuple of at least one token, got {_cut(prompt)}")
            _tuple(
                f"prompts[{row}]",
                prompt,
                MOST_TOKENS_OF_ROW - self.max_new_tokens,
                f"tokens beside {self.max_new_tokens} new ones",
            )
            for token in prompt:
                _ints(f"prompts[{row}]", token, 0, self.vocab_size)
        tokens = self._tokens
        if tokens > MOST_TOKENS:
            raise CaseError(
                f"prompts: expected at most {MOST_TOKENS} tokens in all rows, new ones included, got {tokens}"
            )
        if self._work > MOST_WORK:
            raise CaseError(
                f"prompts, max_new_tokens, num_draft_tokens: expected less together: the tokens of all rows ({tokens}) "
                f"times max_new_tokens times (num_draft_tokens + 1) are {self._work}, and {MOST_WORK} is the most"
            )
        for token in _tuple("eos_token_ids", self.eos_token_ids, MOST_VOCABULARY):
            _ints("eos_token_ids", token, 0, self.vocab_size)
        for row, rounds in enumerate(_tuple("accepts", self.accepts, MOST_ROWS, "rows")):
            for accepted in _tuple(f"accepts[{row}]", rounds, MOST_TOKENS_OF_ROW, "rounds"):
                _ints(f"accepts[{row}]", accepted, 0, self.num_draft_tokens + 1)
        if self.agreement is not None:
            if self.accepts:
                raise CaseError("accepts, agreement: expected one of the two, got both")
            if isinstance(self.agreement, bool) or not isinstance(self.agreement, int | float):
                raise CaseError(f"agreement: expected a number from 0 to 1, got {self.agreement!r}")
            if not 0 <= self.agreement <= 1:
                raise CaseError(f"agreement: expected 0 to 1, got {self.agreement}")
            object.__setattr__(self, "agreement", float(self.agreement))  # 1 and 1.0 are one case, with one id
        _one_of("padding_side", self.padding_side, PADDING_SIDES)
        if not (isinstance(self.family, str) and parsed(self.family)):
            _one_of("family", self.family, FAMILIES)
        _one_of("cache_state", self.cache_state, tuple(CACHE_STATES))
        self._check_state()
        for number, earlier in enumerate(_tuple("before", self.before, MOST_BEFORE, "cases")):
            if not isinstance(earlier, Case):
                raise CaseError(f"before[{number}]: expected a Case, got {_cut(earlier)}")
            if earlier.before:
                raise CaseError(f"before[{number}]: expected a case without earlier ones, got {len(earlier.before)}")
        if (work := sum(earlier._work for earlier in self.before)) > MOST_WORK_BEFORE:
            raise CaseError(f"before: expected less work than {MOST_WORK_BEFORE} in all, got {work}")

    @property
    def alone(self) -> Case:
        """The case without earlier requests."""
        return replace(self, before=()) if self.before else self

    @property
    def _tokens(self) -> int:
        return sum(map(len, self.prompts)) + len(self.prompts) * self.max_new_tokens

    @property
    def _work(self) -> int:
        return self._tokens * self.max_new_tokens * (self.num_draft_tokens + 1)

    def _check_state(self) -> None:
        """The parameters of the cache state: given where it needs them, absent where it does not."""
        for state, name, unset in (
            ("chunked", "prefill_chunk", None),
            ("prefix", "prefix_length", 0),
            ("late-rows", "arrivals", ()),
            ("tree", "tree", ()),
        ):
            if (getattr(self, name) != unset) != (self.cache_state == state):
                what = "a value" if self.cache_state == state else "none"
                raise CaseError(
                    f"{name}: expected {what} for cache_state {self.cache_state!r}, got {getattr(self, name)!r}"
                )
        if self.prefill_chunk is not None:
            _ints("prefill_chunk", self.prefill_chunk, 1, 4096)
        spare = len(self.prompts) * (self.max_new_tokens + 1) * (self.num_draft_tokens + 1)
        if self.cache_state == "preallocated" and spare > MOST_SPARE_SLOTS:
            raise CaseError(
                f"num_draft_tokens: expected fewer for cache_state 'preallocated', or fewer rows or new tokens: "
                f"together they need {spare} spare slots, and {MOST_SPARE_SLOTS} is the most"
            )
        _ints("prefix_length", self.prefix_length, 0, min(map(len, self.prompts)))
        if len({prompt[: self.prefix_length] for prompt in self.prompts}) > 1:
            raise CaseError(f"prefix_length: expected prompts that share their first {self.prefix_length} tokens")
        for arrival in _tuple("arrivals", self.arrivals, MOST_ROWS):
            _ints("arrivals", arrival, 0, 4096)
        if self.arrivals and len(self.arrivals) != len(self.prompts):
            raise CaseError(f"arrivals: expected one per row ({len(self.prompts)}), got {len(self.arrivals)}")
        self._check_tree()

    def _check_tree(self) -> None:
        """Trees that are trees, and paths of ranks; in a case with trees these take the place of ``accepts``."""
        if self.paths and (self.agreement is not None or not self.tree):
            raise CaseError("paths: expected none without `tree` or with `agreement`")
        if self.tree and self.accepts:
            raise CaseError("accepts: expected none with `tree`; `paths` say what of it is accepted")
        for row, rounds in enumerate(_tuple("tree", self.tree, MOST_ROWS, "rows")):
            for number, nodes in enumerate(_tuple(f"tree[{row}]", rounds, MOST_TOKENS_OF_ROW, "rounds")):
                name = f"tree[{row}][{number}]"
                for node in _tuple(name, nodes, MOST_TOKENS_OF_ROW, "nodes"):
                    if not isinstance(node, tuple) or len(node) != 2:
                        raise CaseError(f"{name}: expected nodes of a parent and a rank, got {_cut(node)}")
                    for part in node:
                        _ints(name, part, -(2**31), 2**31)
                if wrong := wrong_with(nodes, self.num_draft_tokens):
                    raise CaseError(f"{name}: {wrong}")
        for row, paths in enumerate(_tuple("paths", self.paths, MOST_ROWS, "rows")):
            for number, path in enumerate(_tuple(f"paths[{row}]", paths, MOST_TOKENS_OF_ROW, "rounds")):
                for rank in _tuple(f"paths[{row}][{number}]", path, MOST_TOKENS_OF_ROW, "ranks"):
                    _ints(f"paths[{row}][{number}]", rank, 0, REJECTED)

    def nodes(self, row: int, number: int) -> Nodes:
        """The tree of a row's round, counted from 0; () where the decoder makes it."""
        return of_round(self.tree[row], number) if row < len(self.tree) else ()

    def request(self) -> Request:
        """What the decoder is asked; a fresh copy each time."""
        return Request(
            prompts=[list(prompt) for prompt in self.prompts],
            max_new_tokens=self.max_new_tokens,
            num_draft_tokens=self.num_draft_tokens,
            eos_token_ids=self.eos_token_ids,
            pad_token_id=self.pad_token_id,
            padding_side=self.padding_side,
            prefill_chunk=self.prefill_chunk,
            prefix_length=self.prefix_length,
            arrivals=self.arrivals,
            tree=self.tree,
            rows=(RowOptions(self.max_new_tokens, self.eos_token_ids),) * len(self.prompts),
        )

    @property
    def axes(self) -> dict[str, str]:
        """Where the case lies on each axis by which violations are told apart; ranges in ascending order sort as text.

        >>> Case(prompts=((1,), (2,)), num_draft_tokens=3).axes["num_draft_tokens"]
        '2-4'
        """
        rows, k = len(self.prompts), self.num_draft_tokens
        return {
            "family": self.family,
            "padding_side": self.padding_side,
            "rows": str(rows) if rows < 3 else "3+",
            "cache_state": self.cache_state,
            "num_draft_tokens": "1" if k == 1 else "2-4" if k < 5 else "5+",
        }

    @property
    def sizes(self) -> dict[str, int]:
        """How large the case is: rows, tokens of the longest prompt, ``max_new_tokens``, K."""
        lengths = [len(prompt) for prompt in self.prompts]
        return {
            "rows": len(lengths),
            "prompt": max(lengths),
            "new_tokens": self.max_new_tokens,
            "draft_tokens": self.num_draft_tokens,
        }

    @property
    def known_ids(self) -> int:
        """How many token ids the models know: the vocabulary, and a pad outside of it."""
        return max(self.vocab_size, self.pad_token_id + 1)

    @property
    def id(self) -> str:
        """Twelve hexadecimal digits that identify the content."""
        return hashlib.sha256(json.dumps(self.to_dict(), sort_keys=True).encode()).hexdigest()[:12]

    def given(self, row: int) -> Given:
        """What a row was asked with, and the rows beside it; the accepted draft tokens where the case dictates them."""
        dictated = self.agreement is None and not self.tree
        rows = (
            Given(
                prompt,
                limit=self.max_new_tokens,
                accepts=(self.accepts[n] if n < len(self.accepts) else ()) if dictated else None,
            )
            for n, prompt in enumerate(self.prompts)
        )
        return Given(self.prompts[row], self.pad_token_id, self.eos_token_ids, self.num_draft_tokens, rows=tuple(rows))

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON; the inverse of `from_dict`."""
        written = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in _LATER}
        written |= {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) != f.default}
        if self.before:
            written["before"] = [earlier.to_dict() for earlier in self.before]
        plain: dict[str, Any] = json.loads(json.dumps({"format": Case.format, **written}))
        return plain

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Case:
        """Read what `to_dict` wrote; `CaseError` says what is missing, unknown or of another version."""
        if not isinstance(data, Mapping):
            raise CaseError(f"case: expected an object, got {type(data).__name__}")
        if data.get("format") != Case.format:
            raise CaseError(
                f"case: expected format {Case.format!r}, got {data.get('format')!r}; "
                "run it with the eqcheck that wrote it"
            )
        names = {f.name for f in fields(cls)}
        for name in data:
            if name not in names | {"format"}:
                raise CaseError(f"case: unknown field {_cut(name)}{did_you_mean(name, names)}")
        if "prompts" not in data:
            raise CaseError("case: field 'prompts' is missing")
        values = {name: _tuples(value) for name, value in data.items() if name not in ("format", "before")}
        if "before" in data:
            values["before"] = _earlier(data["before"])
        try:
            return cls(**values)
        except TypeError as error:
            raise CaseError(f"case: {error}") from error


def _earlier(value: Any) -> tuple[Case, ...]:
    """Earlier requests as `Case.to_dict` wrote them."""
    written = []
    for number, data in enumerate(
        _tuple("before", tuple(value) if isinstance(value, list) else value, MOST_BEFORE, "cases")
    ):
        if isinstance(data, Mapping) and data.get("before"):
            raise CaseError(f"before[{number}]: expected a case without earlier ones")
        try:
            written.append(Case.from_dict(data))
        except CaseError as error:
            raise CaseError(f"before[{number}]: {error}") from error
    return tuple(written)


def _tuples(value: Any) -> Any:
    return tuple(_tuples(one) for one in value) if isinstance(value, list | tuple) else value


def _ints(name: str, value: Any, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise CaseError(f"{name}: expected an integer, got {_cut(value)}")
    if not low <= value < high:
        raise CaseError(f"{name}: expected {low}..{high - 1}, got {value}")


def _tuple(name: str, value: Any, most: int, what: str = "") -> tuple[Any, ...]:
    if not isinstance(value, tuple):
        raise CaseError(f"{name}: expected a tuple (in JSON a list), got {_cut(value)}")
    if len(value) > most:
        raise CaseError(f"{name}: expected at most {f'{most} {what}'.strip()}, got {len(value)}")
    return value


def _cut(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _one_of(name: str, value: Any, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise CaseError(f"{name}: expected one of {allowed}, got {_cut(value)}")
