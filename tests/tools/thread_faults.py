"""Planted faults after public threads, each in two right engines: `BUILDS`, `FAULTS`, and `broken(fault, build)`.

`Slots` has two slots with a time slice, goes row by row, verifies token by token, and carries the grammar's state
along. `Compacted` goes on with the whole batch, verifies whole blocks, finds states and ends again from the text, and
lets one row sit out a step now and then where there are several. In both the first token of a row comes alone, drafts
are made without options, and the parts that a fault may break are methods of `Parts`: each fault is a class of few.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

import eqcheck
from eqcheck.contract.decoders import Request, RowOptions
from eqcheck.core.case.engine import EngineRow
from eqcheck.engines.checkpoints.continuations import FunctionTruth
from eqcheck.engines.checkpoints.dictation import proposal
from eqcheck.engines.checkpoints.folders import checkpoint
from eqcheck.engines.checkpoints.row_judge import truth

Cut = tuple[int, str, tuple[int, ...] | None]  # kept tokens of a block, why the row ends there (or ""), the stop


@dataclass
class Block:
    """A round of a row: its drafts, the agreeing ones and one token more, and how many of these were kept."""

    start: int
    drafts: list[int]
    tokens: list[int]
    kept: int

    @property
    def rejected(self) -> list[int]:
        return self.drafts[len(self.tokens) - 1 :]


@dataclass
class Row:
    """A row, with the drafts of its next round; ``memo`` is for faults."""

    number: int
    prompt: list[int]
    options: RowOptions
    new: list[int] = field(default_factory=list)
    logs: list[float] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)
    drafts: list[int] = field(default_factory=list)
    reason: str = ""
    stop: tuple[int, ...] | None = None
    slot: int = 0
    held: int = 0
    state: int = 0
    memo: dict[str, Any] = field(default_factory=dict)


def following(options: RowOptions, state: int, tokens: Sequence[int]) -> int:
    """The state of the grammar behind these tokens."""
    for token in tokens:
        state = next((to for at, ids, to in options.grammar if at == state and token in ids), state)
    return state


def may_end(options: RowOptions, state: int) -> bool:
    return any(at == state and not ids for at, ids, _ in options.grammar)


def must_end(options: RowOptions, state: int) -> bool:
    return may_end(options, state) and not any(at == state and ids for at, ids, _ in options.grammar)


def log_laws(scores: np.ndarray) -> np.ndarray:
    laws: np.ndarray = torch.from_numpy(scores).log_softmax(-1).numpy()
    return laws


class Parts:
    """What both engines are made of."""

    request: Request
    observed: dict[str, Any]
    rows: list[Row]
    live: list[Row]
    step: int

    def serve(self, name: str) -> None:
        """Load the checkpoint of this name."""
        self.target: Any = truth(name)
        built = checkpoint(name).built
        self.draft: Any = FunctionTruth(built[1].function) if built is not None else self.target

    def __call__(self, target: str, draft: str, request: Request) -> list[eqcheck.Completion]:
        asked = enumerate(zip(request.prompts, request.rows, strict=True))
        self.request, self.live, self.step = request, [], 0
        self.observed = {"drafted": 0, "accepted": 0}
        self.rows = [Row(number, list(prompt), own) for number, (prompt, own) in asked]
        self.begin()
        self.run()
        rounds = [
            [(one, one.drafts if request.drafting == "dictated" else []) for one in row.blocks[1:]] for row in self.rows
        ]
        self.observed["rounds"] = [[[one.start, told, one.start + one.kept] for one, told in each] for each in rounds]
        return [self.told(row) for row in self.rows]

    # Scheduling: what builds call when something happens to a row.
    def begin(self) -> None: ...
    def run(self) -> None:
        raise NotImplementedError

    def joined(self, row: Row) -> None: ...
    def paused(self, row: Row) -> None: ...
    def resumed(self, row: Row) -> None: ...
    def freed(self, row: Row) -> None: ...

    # Drafts.
    def width(self, row: Row) -> int:
        """How many drafts the next round of a row is to have."""
        return self.request.num_draft_tokens if row.new and self.request.drafting != "none" else 0

    def draft_context(self, row: Row) -> list[int]:
        """What the drafter sees."""
        return [*row.prompt, *row.new]

    def proposed(self, row: Row, k: int) -> list[int]:
        """The drafts of the next round."""
        if not k:
            return []
        if self.request.drafting == "dictated":
            return proposal(self.request.drafts[row.number], len(row.new), k)
        text = self.draft_context(row)
        if self.request.drafting == "ngram":
            at = next((at for at in range(len(text) - 2, -1, -1) if text[at] == text[-1]), len(text))
            return text[at + 1 : at + 1 + k]
        return self.guesses(text, k)

    def guesses(self, text: Sequence[int], k: int) -> list[int]:
        """So many tokens as the draft model goes on."""
        drafts = list[int]()
        for _ in range(k):
            drafts.append(int(self.scores(self.draft, [*text, *drafts], 1)[0].argmax()))
        return drafts

    # The target.
    def scores(self, model: Any, text: Sequence[int], count: int) -> np.ndarray:
        """The scores behind the last so many tokens of a text."""
        begun = len(text) - count + 1
        scores = model.together([EngineRow(tuple(text[:begun]), RowOptions(1))], [list(text[begun:])])[0]
        return np.asarray(scores, dtype=np.float64)

    def context(self, row: Row) -> list[int]:
        """What the target sees of a row, before drafts."""
        return [*row.prompt, *row.new]

    def scored(self, row: Row, drafts: Sequence[int]) -> np.ndarray:
        return self.scores(self.target, [*self.context(row), *drafts], len(drafts) + 1)

    # Options.
    def own(self, row: Row) -> RowOptions:
        """The options that change scores."""
        return row.options

    def outputs(self, row: Row, ahead: Sequence[int]) -> list[int]:
        """The new tokens with those of the round that stand before the place."""
        return [*row.new, *ahead]

    def counted(self, row: Row, ahead: Sequence[int]) -> list[int]:
        """What presence and frequency penalties count."""
        return self.outputs(row, ahead)

    def repeated(self, row: Row, ahead: Sequence[int]) -> list[int]:
        """What the repetition penalty counts, beside the prompt."""
        return self.outputs(row, ahead)

    def words(self, row: Row, ahead: Sequence[int]) -> list[int]:
        """Where bad words and n-grams are looked for; these in the prompt, too."""
        return self.outputs(row, ahead)

    def age(self, row: Row, ahead: Sequence[int]) -> int:
        """How many new tokens the minimum sees."""
        return len(self.outputs(row, ahead))

    def state_at(self, row: Row, ahead: Sequence[int]) -> int:
        """The state of the grammar at a place."""
        raise NotImplementedError

    def allowed(self, row: Row, ahead: Sequence[int]) -> set[int] | None:
        """What the grammar allows at a place; None: everything."""
        own = row.options
        if not own.grammar:
            return None
        state = self.state_at(row, ahead)
        named = {token for at, ids, _ in own.grammar if at == state for token in ids} - {*own.eos_token_ids}
        return named | ({*own.eos_token_ids} if may_end(own, state) else set())

    def processed(self, row: Row, scores: np.ndarray, ahead: Sequence[int]) -> np.ndarray:
        """The scores of a place with the row's options."""
        own, out, every = self.own(row), scores.copy(), {*range(len(scores))}
        for token, bias in own.logit_bias:
            out[token] += bias
        for token in {*row.prompt, *self.repeated(row, ahead)}:
            factor = own.repetition_penalty
            out[token] = out[token] / factor if out[token] > 0 else out[token] * factor
        for token, count in Counter(self.counted(row, ahead)).items():
            out[token] -= own.presence_penalty + own.frequency_penalty * count
        new = self.words(row, ahead)
        text, size = [*row.prompt, *new], own.no_repeat_ngram_size
        banned = {word[-1] for word in own.bad_words if tuple(new[len(new) - len(word) + 1 :]) == word[:-1]}
        if size and len(text) >= size:
            tail = text[len(text) - size + 1 :]
            ends = range(size - 1, len(text))
            banned |= {text[end] for end in ends if text[end - size + 1 : end] == tail}
        if self.age(row, ahead) < own.min_new_tokens:
            banned |= {*own.eos_token_ids}
        if own.allowed_ids:
            banned |= every - {*own.allowed_ids}
        if (ruled := self.allowed(row, ahead)) is not None:
            banned |= every - ruled
        out[sorted(banned & every)] = -np.inf
        return out

    # Rounds and ends.
    def chosen(self, row: Row, drafts: Sequence[int], scores: np.ndarray) -> list[int]:
        """The agreeing drafts, and one token more."""
        raise NotImplementedError

    def stop_at(self, row: Row, whole: Sequence[int], end: int) -> tuple[int, ...] | None:
        """The stop sequence that ends there; ``whole`` are the new tokens with all of the block."""
        return next((stop for stop in row.options.stop_sequences if tuple(whole[:end][-len(stop) :]) == stop), None)

    def cut(self, row: Row, block: Sequence[int]) -> Cut:
        raise NotImplementedError

    def noted(
        self, row: Row, drafts: Sequence[int], block: Sequence[int], scores: np.ndarray, kept: int
    ) -> list[float]:
        """The log-probabilities of the kept tokens."""
        return [float(law[token]) for law, token in zip(log_laws(scores), block[:kept], strict=False)]

    def commit(self, row: Row, drafts: list[int], block: list[int], scores: np.ndarray) -> None:
        kept, row.reason, row.stop = self.cut(row, block)
        row.logs += self.noted(row, drafts, block, scores, kept)
        self.observed["drafted"] += len(drafts)
        self.observed["accepted"] += min(len(block) - 1, kept)
        row.blocks.append(Block(len(row.new), drafts, block, kept))
        row.new += block[:kept]
        row.state = following(row.options, row.state, block[:kept])

    # What is told.
    def usage(self, row: Row) -> int:
        return len(row.new)

    def prompt_logs(self, row: Row) -> list[float | None]:
        laws = log_laws(self.scores(self.target, row.prompt, len(row.prompt)))
        return [None, *(float(law[token]) for law, token in zip(laws, row.prompt[1:], strict=False))]

    def told(self, row: Row) -> eqcheck.Completion:
        told: dict[str, Any] = {"logprobs": row.logs} if row.options.logprobs else {}
        if row.options.prompt_logprobs:
            told["prompt_logprobs"] = self.prompt_logs(row)
        if row.reason != "cancelled":
            told |= {"finish_reason": row.reason, "stop": row.stop}
        usage = {"prompt_tokens": len(row.prompt), "completion_tokens": self.usage(row)}
        return eqcheck.Completion(row.new, usage=usage, **told)


class Slots(Parts):
    """Rows wait for one of two slots; a row that held one for three steps makes room for one that waits."""

    size, slice = 2, 3

    def run(self) -> None:
        slots: list[Row | None] = [None] * self.size
        queue = sorted(self.rows, key=lambda row: row.options.arrival)
        while queue or any(slots):
            for at, row in enumerate(slots):
                if row and row.held >= self.slice and any(one.options.arrival <= self.step for one in queue):
                    slots[at], row.held = None, 0
                    self.paused(row)
                    queue.append(row)
                due = next((one for one in queue if one.options.arrival <= self.step), None)
                if due and slots[at] is None:
                    queue.remove(due)
                    slots[at], due.slot = due, at
                    (self.resumed if due.new else self.joined)(due)
            self.live = [row for row in slots if row]
            for row in self.live:
                row.drafts = self.proposed(row, self.width(row))
            for row in self.live:
                scores = self.scored(row, row.drafts)
                self.commit(row, row.drafts, self.chosen(row, row.drafts, scores), scores)
                row.held += 1
                if row.reason:
                    slots[slots.index(row)] = None
                    self.freed(row)
            self.step += 1

    def state_at(self, row: Row, ahead: Sequence[int]) -> int:
        return following(row.options, row.state, ahead)

    def chosen(self, row: Row, drafts: Sequence[int], scores: np.ndarray) -> list[int]:
        block = list[int]()
        for place, score in enumerate(scores):
            block.append(int(self.processed(row, score, block).argmax()))
            if block[-1:] != list(drafts[place : place + 1]):
                break
        return block

    def cut(self, row: Row, block: Sequence[int]) -> Cut:
        own, whole = row.options, [*row.new, *block]
        for kept, token in enumerate(block, 1):
            end = len(row.new) + kept
            stop = self.stop_at(row, whole, end)
            if token in own.eos_token_ids or stop:
                return kept, "stop", None if token in own.eos_token_ids else stop
            if end == own.max_new_tokens:
                return kept, "length", None
            if own.cancel_after is not None and end >= own.cancel_after:
                return kept, "cancelled", None
        return len(block), "", None


class Compacted(Parts):
    """The batch goes on together, and is made smaller when rows end; every third step one of several rows sits out."""

    size = 3

    def run(self) -> None:
        rows, waiting, out = list[Row](), list(self.rows), None
        while rows or waiting:
            for row in [row for row in waiting if row.options.arrival <= self.step][: self.size - len(rows)]:
                waiting.remove(row)
                row.slot = len(rows)
                self.joined(row)
                rows.append(row)
                self.live = rows
            if out and not out.reason:
                self.resumed(out)
            out = rows[self.step // 3 % len(rows)] if len(rows) > 1 and self.step % 3 == 2 else None
            out = out if out and out.new else None
            if out:
                self.paused(out)
            self.live = [row for row in rows if row is not out]
            for row in self.live:
                row.drafts = self.proposed(row, self.width(row))
            drafts = [row.drafts for row in self.live]
            scores = [self.scored(row, row.drafts) for row in self.live]
            blocks = [self.chosen(*each) for each in zip(self.live, drafts, scores, strict=True)]
            for each in zip(self.live, drafts, blocks, scores, strict=True):
                self.commit(*each)
            for row in [row for row in rows if row.reason]:
                self.freed(row)
            rows = [row for row in rows if not row.reason]
            self.step += 1

    def state_at(self, row: Row, ahead: Sequence[int]) -> int:
        return following(row.options, 0, [*row.new, *ahead])

    def chosen(self, row: Row, drafts: Sequence[int], scores: np.ndarray) -> list[int]:
        best = [int(self.processed(row, score, drafts[:place]).argmax()) for place, score in enumerate(scores)]
        same = next((place for place, draft in enumerate(drafts) if draft != best[place]), len(drafts))
        return best[: same + 1]

    def cut(self, row: Row, block: Sequence[int]) -> Cut:
        own, whole, before = row.options, [*row.new, *block], len(row.new)
        ends = range(before + 1, min(len(whole), own.max_new_tokens) + 1)
        eos = next((end for end in ends if whole[end - 1] in own.eos_token_ids), len(whole) + 1)
        stop = next((end for end in ends if self.stop_at(row, whole, end)), len(whole) + 1)
        if min(eos, stop) <= len(whole):
            return min(eos, stop) - before, "stop", None if eos <= stop else self.stop_at(row, whole, stop)
        if len(whole) >= own.max_new_tokens:
            return own.max_new_tokens - before, "length", None
        late = own.cancel_after is not None and len(whole) >= own.cancel_after
        return len(block), "cancelled" if late else "", None


# fmt: off  # stops, ends, usage
class TailOnly(Parts):
    def stop_at(self, row: Row, whole: Sequence[int], end: int) -> tuple[int, ...] | None:
        stop = super().stop_at(row, whole, end)
        longest = max(map(len, row.options.stop_sequences), default=0)
        return stop if stop and end - len(stop) >= len(whole) - longest - 1 else None


class WithinBlock(Parts):
    def stop_at(self, row: Row, whole: Sequence[int], end: int) -> tuple[int, ...] | None:
        stop = super().stop_at(row, whole, end)
        return stop if stop and end - len(stop) >= len(row.new) else None


class CapBeforeStop(Parts):
    def cut(self, row: Row, block: Sequence[int]) -> Cut:
        kept, reason, stop = super().cut(row, block)
        left = row.options.max_new_tokens - len(row.new)
        return (left, "length", None) if stop and len(block) >= left else (kept, reason, stop)


class CapBeforeEos(Parts):
    def cut(self, row: Row, block: Sequence[int]) -> Cut:
        kept, reason, stop = super().cut(row, block)
        left = row.options.max_new_tokens - len(row.new)
        return (left, "length", None) if reason == "stop" and not stop and len(block) >= left else (kept, reason, stop)


class CountsPastEos(Parts):
    def usage(self, row: Row) -> int:
        ended = row.reason == "stop" and row.stop is None
        return row.blocks[-1].start + len(row.blocks[-1].tokens) if ended else super().usage(row)


class CountsPastCap(Parts):
    def usage(self, row: Row) -> int:
        last = row.blocks[-1]
        return last.start + len(last.tokens) if row.reason == "length" else super().usage(row)


class KeepsPastStop(Parts):
    def cut(self, row: Row, block: Sequence[int]) -> Cut:
        kept, reason, stop = super().cut(row, block)
        if stop:
            eos = (at for at, token in enumerate(block, 1) if token in row.options.eos_token_ids)
            kept = min(len(block), row.options.max_new_tokens - len(row.new), next(eos, len(block)))
        return kept, reason, stop


# Penalties and processors.
class LastOfBlock(Parts):
    def counted(self, row: Row, ahead: Sequence[int]) -> list[int]:
        return [row.new[one.start + one.kept - 1] for one in row.blocks]

    repeated = counted


class AgeInSteps(Parts):
    def age(self, row: Row, ahead: Sequence[int]) -> int:
        return len(row.blocks)


class PenaltiesIgnored(Parts):
    def own(self, row: Row) -> RowOptions:
        own = super().own(row)
        off = {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
        return replace(own, **off) if row.drafts else own  # type: ignore[arg-type]


class StaleWords(Parts):
    def words(self, row: Row, ahead: Sequence[int]) -> list[int]:
        return super().words(row, [])


class CountsProposed(Parts):
    def counted(self, row: Row, ahead: Sequence[int]) -> list[int]:
        before = [token for one in row.blocks for token in one.drafts]
        return [*super().counted(row, ahead), *before, *row.drafts]


# Structured output.
class FirstPlaceRuled(Parts):
    def allowed(self, row: Row, ahead: Sequence[int]) -> set[int] | None:
        return None if ahead else super().allowed(row, ahead)


class InvalidDraftUnruled(Parts):
    def allowed(self, row: Row, ahead: Sequence[int]) -> set[int] | None:
        ruled, here = super().allowed(row, ahead), row.drafts[len(ahead) : len(ahead) + 1]
        return ruled if ruled is None or not here or here[0] in ruled else None


class NoRollback(Parts):
    def state_at(self, row: Row, ahead: Sequence[int]) -> int:
        state = 0
        for one in row.blocks:
            tokens = one.tokens[: one.kept]
            if one.rejected and one.kept == len(one.tokens):
                tokens.insert(one.kept - 1, one.rejected[0])
            state = following(row.options, state, tokens)
        return following(row.options, state, ahead)


class BoundaryInBlock(Parts):
    def allowed(self, row: Row, ahead: Sequence[int]) -> set[int] | None:
        own = row.options
        passed = [self.state_at(row, ahead[:count]) for count in range(1, len(ahead) + 1)]
        open_ended = (state == 0 or (may_end(own, state) and not must_end(own, state)) for state in passed)
        return None if any(open_ended) else super().allowed(row, ahead)


class ShiftedMask(Parts):
    def allowed(self, row: Row, ahead: Sequence[int]) -> set[int] | None:
        places = [(one, place) for one in self.live for place in range(len(one.drafts) + 1)]
        source = [(one, place) for one in self.live for place in range(self.request.num_draft_tokens + 1)]
        at = next((at for at, (one, place) in enumerate(places) if one is row and place == len(ahead)), None)
        other, place = (row, len(ahead)) if at is None or self.request.drafting == "none" else source[at]
        if other is row and place == len(ahead):
            return super().allowed(row, ahead)
        return super().allowed(other, other.drafts[:place]) if place <= len(other.drafts) else None


class FinishMissed(Parts):
    def allowed(self, row: Row, ahead: Sequence[int]) -> set[int] | None:
        whole = [*row.new, *ahead]
        counts = range(len(whole) + 1)
        done = next((n for n in counts if must_end(row.options, following(row.options, 0, whole[:n]))), None)
        seen = done is None or (done == len(row.new) and not ahead)
        return super().allowed(row, ahead) if seen else None


# Log-probabilities.
class LogsProcessed(Parts):
    def noted(
        self, row: Row, drafts: Sequence[int], block: Sequence[int], scores: np.ndarray, kept: int
    ) -> list[float]:
        if drafts:
            scores = np.stack([self.processed(row, scores[place], block[:place]) for place in range(kept)])
        return super().noted(row, drafts, block, scores, kept)


class PromptLogsShifted(Parts):
    chunk = 8

    def prompt_logs(self, row: Row) -> list[float | None]:
        logs, shift = super().prompt_logs(row), min(self.request.num_draft_tokens, self.chunk - 1)
        if self.request.drafting == "none" or not row.number or len(logs) <= self.chunk:
            return logs
        return [*logs[: self.chunk], *logs[self.chunk - shift : len(logs) - shift]]


class LogOfRejected(Parts):
    def noted(
        self, row: Row, drafts: Sequence[int], block: Sequence[int], scores: np.ndarray, kept: int
    ) -> list[float]:
        logs, last = super().noted(row, drafts, block, scores, kept), len(block) - 1
        if last < len(drafts) and kept == len(block):
            logs[-1] = float(log_laws(scores)[last][drafts[last]])
        return logs


class LogsZero(Parts):
    def noted(
        self, row: Row, drafts: Sequence[int], block: Sequence[int], scores: np.ndarray, kept: int
    ) -> list[float]:
        return [0.0] * kept if drafts else super().noted(row, drafts, block, scores, kept)


# Acceptance.
class RejectedInLength(Parts):
    def proposed(self, row: Row, k: int) -> list[int]:
        drafts, rejected = super().proposed(row, k), row.blocks[-1].rejected if row.blocks else []
        if self.request.drafting != "model" or len(rejected) < 2 or k < 2:
            return drafts
        text = self.draft_context(row)
        return [drafts[0], *self.guesses([*text[:-1], *rejected, text[-1], drafts[0]], k - 1)]


class HoleAfterFull(Parts):
    def draft_context(self, row: Row) -> list[int]:
        holes = {one.start + len(one.drafts) - 1 for one in row.blocks if one.drafts and not one.rejected}
        if self.request.drafting != "model":
            holes = set()
        return [*row.prompt, *(token for at, token in enumerate(row.new) if at not in holes)]


class PageBoundary(Parts):
    page = 16

    def proposed(self, row: Row, k: int) -> list[int]:
        drafts, text = super().proposed(row, k), self.draft_context(row)
        inside = self.page - len(text) % self.page
        if self.request.drafting != "model" or inside >= k:
            return drafts
        whole = text[: len(text) - len(text) % self.page] or text[:1]
        return [*drafts[:inside], *self.guesses([*whole, *drafts[:inside]], k - inside)]


class SlotZeroOnly(Parts):
    def draft_context(self, row: Row) -> list[int]:
        return row.prompt[:1] if row.slot else super().draft_context(row)


class OthersContext(Parts):
    def joined(self, row: Row) -> None:
        super().joined(row)
        others = [one for one in self.live if one is not row and one.new and not one.reason]
        if others:
            row.memo["prompt"] = others[0].prompt

    def draft_context(self, row: Row) -> list[int]:
        return [*row.memo.get("prompt", row.prompt), *row.new]


# Scheduling.
class EntryLostOnResume(Parts):
    def paused(self, row: Row) -> None:
        super().paused(row)
        row.memo.setdefault("holes", set()).add(len(row.prompt) + len(row.new) - 2)

    def context(self, row: Row) -> list[int]:
        holes = row.memo.get("holes", ())
        return [token for at, token in enumerate(super().context(row)) if at not in holes or not at]


class PlaceholderFed(Parts):
    def resumed(self, row: Row) -> None:
        super().resumed(row)
        row.memo["resumed"] = len(row.new)

    def context(self, row: Row) -> list[int]:
        text = super().context(row)
        fed = row.memo.get("resumed") == len(row.new) and self.request.drafting != "none"
        return [*text[:-1], 0] if fed else text


class ScheduledFewer(Parts):
    def proposed(self, row: Row, k: int) -> list[int]:
        drafts = super().proposed(row, k)
        fewer = drafts[: k // 2] if len(self.live) > 1 else drafts
        self.observed["drafted"] += len(drafts) - len(fewer)
        return fewer


class LateOutput(Parts):
    late: int | None = None

    def begin(self) -> None:
        super().begin()
        self.late = None

    def freed(self, row: Row) -> None:
        super().freed(row)
        self.late = next(iter(row.blocks[-1].tokens[row.blocks[-1].kept :]), self.late)

    def joined(self, row: Row) -> None:
        super().joined(row)
        row.memo["late"], self.late = self.late, None

    def chosen(self, row: Row, drafts: Sequence[int], scores: np.ndarray) -> list[int]:
        late = row.memo.get("late")
        return [late] if late is not None and not row.new else super().chosen(row, drafts, scores)


class LostOnAbort(Parts):
    aborted = -1

    def begin(self) -> None:
        super().begin()
        self.aborted = -1

    def commit(self, row: Row, drafts: list[int], block: list[int], scores: np.ndarray) -> None:
        if self.aborted == self.step and len(block) > 1:
            row.memo.setdefault("lost", []).append((len(self.context(row)), block[0]))
            drafts, block, scores = drafts[1:], block[1:], scores[1:]
        super().commit(row, drafts, block, scores)
        self.aborted = self.step if row.reason == "cancelled" else self.aborted

    def context(self, row: Row) -> list[int]:
        text = super().context(row)
        for at, token in row.memo.get("lost", ()):
            text.insert(at, token)
        return text


class SkippedDraftsZero(Parts):
    longest = 40

    def proposed(self, row: Row, k: int) -> list[int]:
        fits = len(row.prompt) + len(row.new) + k <= self.longest
        return super().proposed(row, k) if fits else [0] * k


class RunnerMisses(Parts):
    def paused(self, row: Row) -> None:
        super().paused(row)
        last = row.blocks[-1]
        row.memo.setdefault("missed", set()).update(range(last.start, last.start + last.kept - 1))

    def outputs(self, row: Row, ahead: Sequence[int]) -> list[int]:
        missed = row.memo.get("missed", ())
        return [token for at, token in enumerate(super().outputs(row, ahead)) if at not in missed]


@dataclass(frozen=True)
class Fault:
    """A fault after a thread: which component is broken, what happens, and the class that breaks it."""

    id: str
    thread: str
    component: str
    about: str
    patch: type[Parts]


_SGLANG, _VLLM = "https://github.com/sgl-project/sglang", "https://github.com/vllm-project/vllm"
_LOST = "Thread not found; "
FAULTS = [
    Fault(
        "sglang-23802",
        f"{_SGLANG}/pull/23802",
        "options",
        "Stops are looked for in the last tokens alone, as many as the longest stop and one: early ones of a "
        "block are missed.",
        TailOnly,
    ),
    Fault(
        "sglang-27637",
        f"{_SGLANG}/pull/27637",
        "options",
        f"{_LOST}a stop sequence that begins before the tokens of a round and ends among them is missed.",
        WithinBlock,
    ),
    Fault(
        "sglang-31599",
        f"{_SGLANG}/issues/31599",
        "options",
        "Where a block reaches the limit, the limit is checked before stop sequences: tokens behind the stop, "
        "reason length.",
        CapBeforeStop,
    ),
    Fault(
        "sglang-33758",
        f"{_SGLANG}/pull/33758",
        "bookkeeping",
        "Where an accepted run reaches the limit, an EOS in it is overruled: [..., EOS, junk] with the reason length.",
        CapBeforeEos,
    ),
    Fault(
        "sglang-39826",
        f"{_SGLANG}/issues/39826",
        "bookkeeping",
        "Usage counts the tokens of the last block behind its EOS.",
        CountsPastEos,
    ),
    Fault(
        "sglang-37450",
        f"{_SGLANG}/pull/37450",
        "bookkeeping",
        "Usage counts the tokens of the last block behind the limit.",
        CountsPastCap,
    ),
    Fault(
        "vllm-47616",
        f"{_VLLM}/pull/47616",
        "bookkeeping",
        "A stop in the middle of a block is found and told, but tokens and logprobs of the block behind it "
        "are returned.",
        KeepsPastStop,
    ),
    Fault(
        "sglang-33643",
        f"{_SGLANG}/pull/33643",
        "options",
        "Penalties get the last token of each round alone: their strength is divided by the length of blocks.",
        LastOfBlock,
    ),
    Fault(
        "sglang-33643-min",
        f"{_SGLANG}/pull/33643",
        "options",
        "min_new_tokens counts steps instead of tokens: EOS stays forbidden for too long.",
        AgeInSteps,
    ),
    Fault(
        "tensorrt-17701",
        "https://github.com/NVIDIA/TensorRT-LLM/pull/17701",
        "options",
        "Rounds with drafts ignore repetition, presence and frequency penalty.",
        PenaltiesIgnored,
    ),
    Fault(
        "vllm-42802",
        f"{_VLLM}/pull/42802",
        "options",
        f"{_LOST}bad words and n-grams do not see the tokens of the current round.",
        StaleWords,
    ),
    Fault(
        "vmlx-357",
        "https://github.com/osaurus-ai/vmlx-swift/issues/357",
        "options",
        "Presence and frequency penalty record every proposed token: rejected ones count, accepted ones twice.",
        CountsProposed,
    ),
    Fault(
        "vllm-9423",
        f"{_VLLM}/issues/9423",
        "options",
        "The grammar's mask is applied to the first place of a round alone.",
        FirstPlaceRuled,
    ),
    Fault(
        "vllm-27969",
        f"{_VLLM}/issues/27969",
        "options",
        "Where the grammar does not allow a draft, the place of this draft has no mask (the thread: a crash there).",
        InvalidDraftUnruled,
    ),
    Fault(
        "vllm-47025",
        f"{_VLLM}/issues/47025",
        "options",
        f"{_LOST}the matcher is rolled back by one token too few: the first rejected draft advances it.",
        NoRollback,
    ),
    Fault(
        "vllm-36138",
        f"{_VLLM}/pull/36138",
        "options",
        "The mask is off behind a boundary that a draft passes in its round; here: state 0, or one in which "
        "the row may end.",
        BoundaryInBlock,
    ),
    Fault(
        "vllm-55822",
        f"{_VLLM}/pull/55822",
        "options",
        f"{_LOST}as #49738: behind a row with fewer drafts than K (a first token has none), masks are those of "
        "places of another row.",
        ShiftedMask,
    ),
    Fault(
        "sglang-21723",
        f"{_SGLANG}/pull/21723",
        "options",
        "That a grammar is over is missed inside a block: no EOS is forced, and the row goes on without a mask.",
        FinishMissed,
    ),
    Fault(
        "vllm-34497",
        f"{_VLLM}/issues/34497",
        "bookkeeping",
        "Logprobs of rounds with drafts are those of scores that options changed (in place, see #30846).",
        LogsProcessed,
    ),
    Fault(
        "vllm-53488",
        f"{_VLLM}/issues/53488",
        "bookkeeping",
        "Prompt logprobs of rows but the first are shifted by K behind the first chunk of the prompt (8 tokens).",
        PromptLogsShifted,
    ),
    Fault(
        "vllm-41335",
        f"{_VLLM}/pull/41335",
        "bookkeeping",
        f"{_LOST}the token in place of a rejected draft is told with the logprob of this draft.",
        LogOfRejected,
    ),
    Fault(
        "llamacpp-27972",
        "https://github.com/ggml-org/llama.cpp/issues/27972",
        "bookkeeping",
        "The logprob of every token of a round with drafts is 0.0.",
        LogsZero,
    ),
    Fault(
        "vllm-26498",
        f"{_VLLM}/pull/26498",
        "draft",
        "Behind a round with two or more rejected drafts, the drafter's lengths count these, from the second draft on.",
        RejectedInLength,
    ),
    Fault(
        "vllm-32030",
        f"{_VLLM}/pull/32030",
        "draft",
        f"{_LOST}the drafter has no entry for the last draft of a round whose drafts were all accepted.",
        HoleAfterFull,
    ),
    Fault(
        "vllm-ascend-14883",
        "https://github.com/vllm-project/vllm-ascend/pull/14883",
        "draft",
        f"{_LOST}drafts that cross a page of 16 tokens are made without the tokens of the page before.",
        PageBoundary,
    ),
    Fault(
        "buun-110",
        "https://github.com/spiritbuun/buun-llama-cpp/pull/110",
        "draft",
        "Slots above 0 draft from a state that was never written.",
        SlotZeroOnly,
    ),
    Fault(
        "sglang-10801",
        f"{_SGLANG}/pull/10801",
        "draft",
        f"{_LOST}the drafter has, for a row that joins beside rows being decoded, the prompt of the first of these.",
        OthersContext,
    ),
    Fault(
        "vllm-37132",
        f"{_VLLM}/pull/37132",
        "cache",
        f"{_LOST}a row that was preempted comes back without the last entry of its cache.",
        EntryLostOnResume,
    ),
    Fault(
        "vllm-40756",
        f"{_VLLM}/issues/40756",
        "cache",
        "A row that was not scheduled for a step is fed the placeholder of its last token (id 0; the thread: a crash).",
        PlaceholderFed,
    ),
    Fault(
        "vllm-51510",
        f"{_VLLM}/issues/51510",
        "draft",
        "With two rows or more half of K is scheduled, but K are drafted: the others are counted and thrown away.",
        ScheduledFewer,
    ),
    Fault(
        "vllm-57053",
        f"{_VLLM}/pull/57053",
        "bookkeeping",
        f"{_LOST}a token behind the end of a row is delivered late, as the first token of the row that joins next.",
        LateOutput,
    ),
    Fault(
        "vllm-47012",
        f"{_VLLM}/pull/47012",
        "bookkeeping",
        f"{_LOST}in the step in which a row is cancelled, rows behind it lose the first token of their block.",
        LostOnAbort,
    ),
    Fault(
        "vllm-52762",
        f"{_VLLM}/pull/52762",
        "draft",
        "Where a row is too long for the drafter (40 tokens) it is skipped, and K tokens 0 are verified as drafts.",
        SkippedDraftsZero,
    ),
    Fault(
        "vllm-20247",
        f"{_VLLM}/issues/20247",
        "options",
        "The runner's output tokens miss all but the last of the block before a preemption; options read them.",
        RunnerMisses,
    ),
]

BUILDS: dict[str, type[Parts]] = {build.__name__: build for build in (Slots, Compacted)}


def broken(fault: Fault, build: type[Parts] | str) -> type[Parts]:
    """The engine of a build with a fault; the build is a class, or its name."""
    base = BUILDS[build] if isinstance(build, str) else build
    return type(f"{base.__name__}_{fault.id}", (fault.patch, base), {})
