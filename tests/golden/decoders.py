"""Decoders that are no part of the catalogue: one answers from a table, the others fail in a way of their own."""

from __future__ import annotations

import json
import time
from functools import cache
from pathlib import Path
from typing import Any

import eqcheck

TABLE = Path(__file__).with_name("cases") / "checkpoint.json"
CAPABILITIES = (
    *("row-limits", "row-eos", "min-new-tokens", "repetition-penalty", "presence-penalty", "many-rows"),
    *("arrivals", "token-budget", "prefix-caching", "kv-blocks", "ngram"),
)


@cache
def _answers() -> dict[str, Any]:
    """What is stored for each request, by its prompts."""
    entries = json.loads(TABLE.read_text()).values()
    return {str([row["prompt"] for row in one["case"]["rows"]]): one["answer"] for one in entries}


@eqcheck.decoder(name="stored", checkpoints=True, capabilities=CAPABILITIES, version="1.0")
class Stored:
    """Answers each request as it is stored; what is no list of rows is a word on how to fail."""

    observed: dict[str, Any]

    def __call__(self, target: str, draft: str, request: eqcheck.Request) -> Any:
        answer = _answers()[str(request.prompts)]
        if answer == "raise":
            raise KeyError("no such layer")
        if answer == "decline":
            raise eqcheck.Unsupported("prompts of more than 7 tokens")
        self.observed = answer.get("observed", {})
        return answer["outputs"]


def _right(target: Any, request: eqcheck.Request) -> list[list[int]]:
    limits: Any = {"max_new_tokens": request.max_new_tokens, "eos_token_ids": request.eos_token_ids}
    return [eqcheck.Oracle(target).truth(prompt, **limits) for prompt in request.prompts]


BOTH: Any = ("left", "right")


@eqcheck.decoder(name="right", padding_sides=BOTH, version="1.0", note="It asks the target, token by token.")
def right(target: Any, draft: Any, request: eqcheck.Request) -> Any:
    """What the target alone emits."""
    return _right(target, request)


@eqcheck.decoder(name="short", known={"bookkeeping/past-eos": "https://example.org/1"})
def short(target: Any, draft: Any, request: eqcheck.Request) -> Any:
    """Each row lacks its last token; a fault that does not occur is declared as known."""
    return [row[:-1] for row in _right(target, request)]


@eqcheck.decoder(name="raises")
def raises(target: Any, draft: Any, request: eqcheck.Request) -> Any:
    """An exception for each request of several rows."""
    if len(request.prompts) > 1:
        raise KeyError("no such layer")
    return _right(target, request)


@eqcheck.decoder(name="hangs")
def hangs(target: Any, draft: Any, request: eqcheck.Request) -> Any:
    """No end."""
    time.sleep(600)


@eqcheck.decoder(name="declines", requires=("one-eos",))
def declines(target: Any, draft: Any, request: eqcheck.Request) -> Any:
    """Requests of several rows are declined."""
    if len(request.prompts) > 1:
        raise eqcheck.Unsupported("one row at a time")
    return _right(target, request)


@eqcheck.decoder(name="text")
def text(target: Any, draft: Any, request: eqcheck.Request) -> Any:
    """Rows are texts, not lists of ids."""
    return [" ".join(map(str, row)) for row in _right(target, request)]


@eqcheck.decoder(name="stray")
def stray(target: Any, draft: Any, request: eqcheck.Request) -> Any:
    """The second new token is another one, for no reason that anything seen could show."""
    rows = _right(target, request)
    return [[*row[:1], (row[1] * 7 + 5) % target.config.vocab_size, *row[2:]] if row[1:] else row for row in rows]


_before: dict[str, Any] = {}


@eqcheck.decoder(name="last_eos")
def last_eos(target: Any, draft: Any, request: eqcheck.Request) -> Any:
    """The EOS ids of the request before end rows, too."""
    ends = {*request.eos_token_ids, *_before.get("eos", ())}
    _before["eos"] = request.eos_token_ids
    rows = _right(target, request)
    return [row[: next((at + 1 for at, token in enumerate(row) if token in ends), len(row))] for row in rows]


@eqcheck.decoder(name="cut_later")
def cut_later(target: Any, draft: Any, request: eqcheck.Request) -> Any:
    """After a request of several rows one of a single row lacks its last token."""
    several, _before["several"] = _before.get("several", False), len(request.prompts) > 1
    rows = _right(target, request)
    return [row[:-1] for row in rows] if several and len(rows) == 1 else rows
