"""A case for an engine that loads a checkpoint: its rows with their options, and how the engine is to be set up."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, ClassVar, TypeVar

from eqcheck.contract.decoder import DRAFTING, Request, RowOptions
from eqcheck.contract.errors import CaseError, did_you_mean
from eqcheck.contract.family import LLAMA
from eqcheck.contract.limits import ENGINE_PENALTY, ENGINE_ROWS, ENGINE_TOKENS
from eqcheck.contract.requirements import options_meeting, prompts_meeting

VOCAB_SIZE, POSITIONS = 256, 2048  # of the checkpoints
PAD = 0
MOST_DRAFT_TOKENS = 64
Self = TypeVar("Self", bound="EngineCase")


@dataclass(frozen=True)
class EngineRow:
    """A prompt and what is asked for it; ``options`` are those of `eqcheck.contract.decoder.RowOptions`.

    Where drafts are dictated, ``accepts[round]`` says how many of a round's draft tokens agree with the target; in a
    round it does not name, none does. The first new token comes from the prompt's own forward, so rounds count from the
    second.
    """

    prompt: tuple[int, ...]
    options: RowOptions
    accepts: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        options = self.options
        for name, tokens in (("prompt", self.prompt), ("eos_token_ids", options.eos_token_ids)):
            if not all(type(token) is int and 0 <= token < VOCAB_SIZE for token in tokens):
                raise CaseError(f"{name}: expected token ids below {VOCAB_SIZE}, got {tokens!r}")
        if not self.prompt:
            raise CaseError("prompt: expected at least one token id, got none")
        for accepted in self.accepts:
            whole("accepts", accepted, 0, MOST_DRAFT_TOKENS)
        most = POSITIONS - len(self.prompt)
        for name, least, greatest in (("max_new_tokens", 1, most), ("min_new_tokens", 0, most), ("arrival", 0, 4096)):
            whole(name, getattr(options, name), least, greatest)
        for name, least in (("repetition_penalty", 0), ("presence_penalty", -ENGINE_PENALTY)):
            penalty = getattr(options, name)
            number = type(penalty) in (int, float) and math.isfinite(penalty)
            if not number or not least <= penalty <= ENGINE_PENALTY or (name == "repetition_penalty" and penalty == 0):
                span = f"from {least} to" if least else "above 0 and up to"
                raise CaseError(f"{name}: expected a number {span} {ENGINE_PENALTY}, got {penalty!r}")

    def to_dict(self) -> dict[str, Any]:
        """Plain data, without what is at its default."""
        accepts = {"accepts": list(self.accepts)} if self.accepts else {}
        return {"prompt": list(self.prompt), **_set(self.options), **accepts}


@dataclass(frozen=True)
class EngineCase:
    """One test input for an engine. ``checkpoint`` names the pair of models, by their weights.

    ``token_budget``, ``kv_blocks`` and ``prefix_caching`` are the engine's own defaults where they are None.

        >>> case = EngineCase((EngineRow((1, 2), RowOptions(4)),), num_draft_tokens=3)
        >>> EngineCase.from_dict(case.to_dict()) == case
        True
    """

    format: ClassVar[str] = "eqcheck-engine-case/1"
    lane: ClassVar[str] = "checkpoint"
    family: ClassVar[str] = LLAMA
    before: ClassVar[tuple[EngineCase, ...]] = ()
    rows: tuple[EngineRow, ...]
    num_draft_tokens: int = 1
    drafting: str = "model"
    token_budget: int | None = None
    kv_blocks: int | None = None
    prefix_caching: bool | None = None
    checkpoint: str = ""

    def __post_init__(self) -> None:
        if not self.rows:
            raise CaseError("rows: expected at least one, got none")
        if len(self.rows) > ENGINE_ROWS:
            raise CaseError(f"rows: expected at most {ENGINE_ROWS}, got {len(self.rows)}")
        tokens = sum(len(row.prompt) + row.options.max_new_tokens for row in self.rows)
        if tokens > ENGINE_TOKENS:
            raise CaseError(f"rows: expected at most {ENGINE_TOKENS} tokens in all, new ones included, got {tokens}")
        if self.prefix_caching not in (True, False, None):
            raise CaseError(f"prefix_caching: expected true, false or null, got {self.prefix_caching!r}")
        if not isinstance(self.checkpoint, str):
            raise CaseError(f"checkpoint: expected text, got {self.checkpoint!r}")
        whole("num_draft_tokens", self.num_draft_tokens, 1, MOST_DRAFT_TOKENS)
        for name in ("token_budget", "kv_blocks"):
            if getattr(self, name) is not None:
                whole(name, getattr(self, name), 1, 10**6)
        if self.drafting not in DRAFTING:
            raise CaseError(f"drafting: expected one of {DRAFTING}, got {self.drafting!r}")

    @property
    def alone(self) -> EngineCase:
        """The case without earlier requests: it has none."""
        return self

    def request(self) -> Request:
        """What the decoder is asked; those that know no options per row find the first row's in the request."""
        first = self.rows[0].options
        return Request(
            prompts=[list(row.prompt) for row in self.rows],
            max_new_tokens=first.max_new_tokens,
            num_draft_tokens=self.num_draft_tokens,
            eos_token_ids=first.eos_token_ids,
            pad_token_id=PAD,
            padding_side="left",
            rows=tuple(row.options for row in self.rows),
            drafting=self.drafting,
            token_budget=self.token_budget,
            kv_blocks=self.kv_blocks,
            prefix_caching=self.prefix_caching,
        )

    def meeting(self: Self, requires: tuple[str, ...]) -> Self:
        """The case with its rows changed as little as `eqcheck.contract.requirements` need."""
        prompts = prompts_meeting(requires, [row.prompt for row in self.rows], PAD, VOCAB_SIZE)
        options = options_meeting(requires, prompts, [row.options for row in self.rows[: len(prompts)]])
        rows = zip(self.rows, prompts, options, strict=False)
        return replace(self, rows=tuple(EngineRow(prompt, one, row.accepts) for row, prompt, one in rows))

    @property
    def id(self) -> str:
        """Twelve hexadecimal digits that identify the content."""
        return hashlib.sha256(json.dumps(self.to_dict(), sort_keys=True).encode()).hexdigest()[:12]

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON, without what is at its default; the inverse of `from_dict`."""
        return {"format": self.format, **_set(self), "rows": [row.to_dict() for row in self.rows]}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> EngineCase:
        """Read what `to_dict` wrote; `CaseError` says what is missing, unknown or of another version."""
        if data.get("format") != cls.format:
            raise CaseError(f"case: expected format {cls.format!r}, got {data.get('format')!r}")
        values = {name: value for name, value in data.items() if name != "format"}
        _known(values, {field.name for field in fields(cls)}, "case")
        rows = values.get("rows")
        if not isinstance(rows, list) or not all(isinstance(row, dict) and "prompt" in row for row in rows):
            raise CaseError("rows: expected a list of objects, each with a prompt")
        try:
            return cls(**{**values, "rows": tuple(_row(number, row) for number, row in enumerate(rows))})
        except TypeError as error:
            raise CaseError(f"case: {error}") from error


def _row(number: int, data: Mapping[str, Any]) -> EngineRow:
    options = {name: value for name, value in data.items() if name != "prompt"}
    _known(options, {"accepts", *(field.name for field in fields(RowOptions))}, f"rows[{number}]")
    lists = {"prompt": data["prompt"]} | {name: options.pop(name, ()) for name in ("eos_token_ids", "accepts")}
    for name, value in lists.items():
        if not isinstance(value, list | tuple):
            what = "counts" if name == "accepts" else "token ids"
            raise CaseError(f"rows[{number}].{name}: expected a list of {what}, got {value!r}")
    prompt, eos, accepts = map(tuple, lists.values())
    try:
        return EngineRow(prompt, RowOptions(eos_token_ids=eos, **options), accepts)
    except (CaseError, TypeError) as error:
        raise CaseError(f"rows[{number}].{error}") from error


def whole(name: str, number: Any, least: int, most: int) -> None:
    """`CaseError` where a field is no whole number from ``least`` to ``most``."""
    if type(number) is not int or not least <= number <= most:
        raise CaseError(f"{name}: expected a whole number from {least} to {most}, got {number!r}")


def _known(values: Mapping[str, Any], names: set[str], what: str) -> None:
    for name in values:
        if name not in names:
            raise CaseError(f"{what}: unknown field {name!r}{did_you_mean(name, names)}")


def _set(record: Any) -> dict[str, Any]:
    defaults = {field.name: field.default for field in fields(record)}
    return {name: value for name, value in asdict(record).items() if value != defaults[name]}
