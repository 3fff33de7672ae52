"""Right engines with all options of greedy rows: ``python -m option_right [CASES] [--jobs N]`` finds none wrong.

They apply options by code of their own, after the documentation, and none of eqcheck's: scores in NumPy, grammars and
stops token by token. `Rounds` drafts without options and has a round of each row in turn; `Prefilled` takes the first
token alone and drafts with the row's options; `Looking` looks drafts up in the row, and computes few tokens a step.
Where a case dictates drafts, all take these. The exit code is 1 if a case is wrong.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch

import eqcheck
from eqcheck.contract.completion import apart
from eqcheck.contract.decoders import CAPABILITIES, Request, RowOptions
from eqcheck.core.case.engine import EngineCase, EngineRow
from eqcheck.engines.checkpoints import dictation
from eqcheck.engines.checkpoints.continuations import FunctionTruth
from eqcheck.engines.checkpoints.dictation import proposal
from eqcheck.engines.checkpoints.folders import checkpoint
from eqcheck.engines.checkpoints.row_judge import Judge, truth
from eqcheck.engines.construction.function import VOCABULARY
from eqcheck.engines.drawing import EngineCases
from eqcheck.engines.engine_outcome import judged
from eqcheck.selfcheck.faults import in_processes

SAMPLED = {"temperature", "top-k", "top-p", "min-p", "seeds"}
CLAIMS = tuple(name for name in CAPABILITIES if name not in SAMPLED | {"no-drafts", "only-dictated-drafts"})
KINDS = ("full", "window", "hybrid")
EVERY = frozenset(range(VOCABULARY))
_SHARE = 500  # cases of one process


def forbidden(options: RowOptions, text: Sequence[int], new: Sequence[int]) -> set[int]:
    """The tokens that may not come behind ``text``, which ends with the ``new`` tokens."""
    out = {word[-1] for word in options.bad_words if tuple(new[len(new) - len(word) + 1 :]) == word[:-1]}
    size = options.no_repeat_ngram_size
    if size and len(text) >= size:
        tail = tuple(text[len(text) - size + 1 :])
        out |= {text[at + size - 1] for at in range(len(text) - size + 1) if tuple(text[at : at + size - 1]) == tail}
    if len(new) < options.min_new_tokens:
        out |= {*options.eos_token_ids}
    if options.allowed_ids:
        out |= EVERY - {*options.allowed_ids}
    if options.grammar:
        state = 0
        for token in new:
            state = next((to for at, ids, to in options.grammar if at == state and token in ids), state)
        here = [ids for at, ids, _ in options.grammar if at == state]
        named = {token for ids in here for token in ids} - {*options.eos_token_ids}
        out |= EVERY - named - ({*options.eos_token_ids} if () in here else set())
    return out


def best(scores: np.ndarray, options: RowOptions, prompt: Sequence[int], new: Sequence[int]) -> int:
    """The token that comes next."""
    scores, counts = scores.copy(), Counter(new)
    for token, bias in options.logit_bias:
        scores[token] += bias
    for token in {*prompt, *new}:
        factor = options.repetition_penalty
        scores[token] = scores[token] / factor if scores[token] > 0 else scores[token] * factor
    for token, count in counts.items():
        scores[token] -= options.presence_penalty + options.frequency_penalty * count
    scores[sorted(forbidden(options, [*prompt, *new], new) & {*range(len(scores))})] = -np.inf
    return int(scores.argmax())


@dataclass
class Going:
    """A row being decoded."""

    number: int
    prompt: list[int]
    options: RowOptions
    new: list[int] = field(default_factory=list)
    reason: str = ""
    stop: tuple[int, ...] | None = None

    def take(self, token: int) -> None:
        """Go on by a token, and end where the row ends."""
        self.new.append(token)
        own = self.options
        self.stop = next((stop for stop in own.stop_sequences if tuple(self.new[-len(stop) :]) == stop), None)
        if token in own.eos_token_ids or self.stop:
            self.reason, self.stop = "stop", None if token in own.eos_token_ids else self.stop
        elif len(self.new) == own.max_new_tokens:
            self.reason = "length"
        elif own.cancel_after is not None and len(self.new) >= own.cancel_after:
            self.reason = "cancelled"


class Rounds:
    """Drafts know no options; a round of each row in turn."""

    prefilled, asked, looks = False, False, False

    def __call__(self, target: str, draft: str, request: Request) -> list[eqcheck.Completion]:
        self.observed = Counter(drafted=0, accepted=0)
        asked = enumerate(zip(request.prompts, request.rows, strict=True))
        rows = [Going(number, list(prompt), own) for number, (prompt, own) in asked]
        step = 0
        while not all(row.reason for row in rows):
            for row in rows:
                if not row.reason and row.options.arrival <= step:
                    self.round(row, request)
            step += 1
        return [self.completion(row) for row in rows]

    def serve(self, name: str) -> None:
        """Load the checkpoint of this name."""
        self.target, built = truth(name), checkpoint(name).built
        self.draft = FunctionTruth(built[1].function) if built is not None else self.target

    def scores(self, model: Any, text: Sequence[int], count: int) -> np.ndarray:
        """The scores behind the last so many tokens of a text."""
        row = EngineRow(tuple(text[: len(text) - count + 1]), RowOptions(1))
        return np.asarray(model.together([row], [text[len(text) - count + 1 :]])[0], dtype=np.float64)

    def proposed(self, row: Going, k: int, request: Request) -> list[int]:
        text = [*row.prompt, *row.new]
        if request.drafting == "dictated":
            return proposal(request.drafts[row.number], len(row.new), k)
        if self.looks or request.drafting == "ngram":
            at = next((at for at in range(len(text) - 2, -1, -1) if text[at] == text[-1]), len(text))
            return text[at + 1 : at + 1 + k]
        drafts = list[int]()
        options = row.options if self.asked else RowOptions(1)
        for _ in range(k):
            (scores,) = self.scores(self.draft, [*text, *drafts], 1)
            drafts.append(best(scores, options, row.prompt, [*row.new, *drafts]))
        return drafts

    def round(self, row: Going, request: Request) -> None:
        """Draft, verify, keep the drafts that are the target's own tokens, and one token more."""
        free = request.drafting == "none" or (self.prefilled and not row.new)
        drafts = [] if free else self.proposed(row, request.num_draft_tokens, request)
        scores = self.scores(self.target, [*row.prompt, *row.new, *drafts], len(drafts) + 1)
        taken = 0
        for place, score in enumerate(scores):
            token = best(score, row.options, row.prompt, row.new)
            agrees = drafts[place : place + 1] == [token]
            taken += agrees
            row.take(token)
            if row.reason or not agrees:
                break
        self.observed["drafted"] += len(drafts)
        self.observed["accepted"] += taken

    def completion(self, row: Going) -> eqcheck.Completion:
        text, told = [*row.prompt, *row.new], dict[str, Any]()
        scores = torch.from_numpy(self.scores(self.target, text, len(text))).log_softmax(-1)
        logs = [None, *(float(score[token]) for score, token in zip(scores, text[1:], strict=False))]
        if row.options.logprobs:
            told["logprobs"] = logs[len(row.prompt) :]
        if row.options.prompt_logprobs:
            told["prompt_logprobs"] = logs[: len(row.prompt)]
        if row.reason != "cancelled":
            told |= {"finish_reason": row.reason, "stop": row.stop}
        usage = {"prompt_tokens": len(row.prompt), "completion_tokens": len(row.new)}
        return eqcheck.Completion(row.new, usage=usage, **told)


class Prefilled(Rounds):
    """The first token comes alone; drafts know the options."""

    prefilled, asked = True, True


class Looking(Rounds):
    """Drafts are looked up in the row."""

    looks = True


BUILDS = {build.__name__: build for build in (Rounds, Prefilled, Looking)}


def decoded(engine: Any, judge: Judge, case: EngineCase) -> Any:
    """The outcome of a case, as an audit has it."""
    engine.serve(case.checkpoint)
    outputs, told = apart(engine("", "", replace(case.request(), drafts=dictation.drafts(case))))
    return judged(judge, case, {"outputs": outputs, "told": told, "observed": engine.observed})


def counted(build: str, seed: int, cases: int) -> tuple[Counter[str], Counter[str]]:
    """The verdicts of the cases of one seed, and in how many of them each situation was met."""
    torch.set_num_threads(1)
    engine, judge = BUILDS[build](), Judge("float64")
    verdicts, met = Counter[str](), Counter[str]()
    drawn = EngineCases(seed, CLAIMS, kinds=KINDS, varied=True)
    for number in range(cases):
        outcome = decoded(engine, judge, drawn.case(number))
        verdicts[outcome.status] += 1
        met.update(outcome.coverage)
        if outcome.failed:
            print(f"{build}, seed {seed}, case {number}: {outcome.symptom} {outcome.case.to_dict()}", flush=True)
    return verdicts, met


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m option_right", description="Count wrong cases of right engines.")
    parser.add_argument("cases", type=int, nargs="?", default=600)
    parser.add_argument("--jobs", type=int, default=1)
    asked = parser.parse_args()
    began, verdicts, met = time.monotonic(), Counter[str](), Counter[str]()
    shares = [min(_SHARE, asked.cases - start) for start in range(0, asked.cases, _SHARE)]
    work: list[Callable[[], tuple[Counter[str], Counter[str]]]] = [
        partial(counted, [*BUILDS][seed % len(BUILDS)], seed, count) for seed, count in enumerate(shares)
    ]
    for own, situations in in_processes(work, asked.jobs):
        verdicts, met = verdicts + own, met + situations
        print(dict(verdicts), f"{time.monotonic() - began:.0f} s", flush=True)
    for name, count in met.most_common():
        print(f"{name:30} {count}")
    return int(verdicts["violation"] > 0)


if __name__ == "__main__":
    sys.exit(main())
