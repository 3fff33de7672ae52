"""Hold the oracle against one model: right rows pass however `generate` makes them, and a changed token does not."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from architectures.build import Model, built
from eqcheck.contract.errors import UsageError, one_line
from eqcheck.transparent.oracle import Oracle

PROMPTS = [[5, 9, 2, 44], [7, 3], [3, 3, 8, 1, 60, 21]]
LIMIT = 8
DTYPES = ("float64", "float32", "bfloat16")
_PROCESSORS = ("forced_bos_token_id", "forced_eos_token_id", "suppress_tokens", "begin_suppress_tokens")
Rows = list[list[int]]


@dataclass
class Held:
    """What was found of one model in one dtype; all words are those of the oracle or of the library.

    ``failed``: it cannot be built, or does not generate. ``refused``: the oracle does not judge it. ``unread``: `watch`
    does not. ``right`` has each verdict on right rows, ``changed`` each on a row with one other token, ``truth`` says
    whether the oracle's own row is that of `generate` without a cache.
    """

    model: str
    dtype: str
    failed: str = ""
    refused: str = ""
    unread: str = ""
    right: dict[str, str] = field(default_factory=dict)
    changed: dict[str, str] = field(default_factory=dict)
    truth: bool = False
    note: str = ""

    @property
    def wrong(self) -> list[str]:
        """What must not be: a right row that fails, a changed one that passes, two answers of the oracle."""
        if self.failed or self.refused:
            return []
        passed = ("equivalent", "tie")
        accused = [f"{name}: {status}" for name, status in self.right.items() if status not in passed]
        missed = [f"changed token, {name}: {status}" for name, status in self.changed.items() if status in passed]
        return [*accused, *missed, *(["truth is not what generate gives"] if not self.truth else [])]


def held(model: Model, dtype: str) -> Held:
    """Build a model, generate rows with and without a cache, and ask `check`, `watch` and `truth`."""
    found = Held(model.name, dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            target = built(model, getattr(torch, dtype))
            for name in _PROCESSORS:  # options of a request, that a checkpoint brings along
                setattr(target.generation_config, name, None)
            plain = generated(target, False)
            rows = {"without a cache": plain, "with a cache": _or_none(lambda: generated(target, True))}
        except Exception as error:
            found.failed = said(error)
            return found
        try:
            _judge(found, target, rows)
        except UsageError as error:
            found.refused = one_line(str(error), 300)
        except Exception as error:
            found.right["check"] = said(error)
    return found


def _judge(found: Held, target: Any, rows: dict[str, Rows | None]) -> None:
    plain = rows["without a cache"]
    assert plain is not None
    oracle = Oracle(target)
    for name, its in rows.items():
        if its is not None:
            verdict = oracle.check(PROMPTS, its, max_new_tokens=LIMIT)
            found.right[f"check, {name}"] = verdict.status
            found.note = str(verdict.note.facts["statement"]) if verdict.note else found.note
    truths = [oracle.truth(prompt, max_new_tokens=LIMIT) for prompt in PROMPTS]
    found.truth = truths == plain or bool(Oracle(target).check(PROMPTS, truths, max_new_tokens=LIMIT))
    one_changed = changed(target, plain)
    found.changed["check"] = Oracle(target).check(PROMPTS, one_changed, max_new_tokens=LIMIT).status
    for name, its in rows.items():
        if its is None or found.unread or (name == "without a cache" and found.dtype != "float64"):
            continue
        try:
            made, told, contexts, other = watched(target, name == "with a cache")
            found.right[f"watch, {name}"], found.right[f"watch of contexts, {name}"] = told, contexts
            found.changed[f"watch, {name}"] = other
            assert made == its or found.note, "generate gives another row at the second time"
        except UsageError as error:
            found.unread = one_line(str(error), 300)
        except Exception as error:
            found.right[f"watch, {name}"] = said(error)


def watched(target: Any, cached: bool) -> tuple[Rows, str, str, str]:
    """The rows that the target generates while watched, and the verdicts: with them, without, with one changed."""
    with Oracle(target).watch(PROMPTS, max_new_tokens=LIMIT, pad_token_id=0) as watch:
        made = generated(target, cached)
    watches = [copy.copy(watch) for _ in range(3)]
    watches[0].outputs, watches[2].outputs = made, changed(target, made)
    told, contexts, other = (one.verdict.status for one in watches)
    return made, told, contexts, other


@torch.no_grad()
def generated(target: Any, cached: bool, prompts: Sequence[Sequence[int]] = PROMPTS) -> Rows:
    """What `generate` gives for each row alone."""
    settings = {"max_new_tokens": LIMIT, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    rows = []
    for prompt in prompts:
        ids = torch.tensor([list(prompt)])
        row = target.generate(ids, attention_mask=torch.ones_like(ids), use_cache=cached, **settings)
        rows.append(row[0, len(prompt) :].tolist())
    return rows


@torch.no_grad()
def changed(target: Any, rows: Rows) -> Rows:
    """The rows with the least likely token of all in the middle of the second."""
    at, row = LIMIT // 2, rows[1]
    scores = target(input_ids=torch.tensor([[*PROMPTS[1], *row[:at]]]), use_cache=False).logits[0, -1]
    return [rows[0], [*row[:at], int(scores.argmin()), *row[at + 1 :]], *rows[2:]]


def _or_none(make: Callable[[], Rows]) -> Rows | None:
    """Rows, or None where the model has no cache that works: then there are none to judge."""
    try:
        return make()
    except Exception:
        return None


def said(error: Exception) -> str:
    """An error in one line."""
    return one_line(f"{type(error).__name__}: {error}", 160)
