"""Faults after threads of engines, each planted in a small paged engine: `FAULTS`, and a decoder of each name.

`Engine` is right. Its rows hold block tables into a pool of slots; a slot holds the position and the codes of a
token, layer by layer, and attention reads what the slots hold: so a lost block, a stale entry or a shifted position
changes what is read, and goes on through the entries that are computed from it. Layers with a state have one per row,
with a column for each token of a round; a rollback picks a column. Blocks are hashed and shared, long prompts come in
chunks, rows join late, wait and are preempted. `eqcheck audit tests/tools/field_faults.py:right` audits it, and
`python -m field_score` all faults.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import torch

import eqcheck
from eqcheck.contract.decoders import Request, RowOptions
from eqcheck.engines.checkpoints.continuations import AskedRow, FunctionTruth, at_place
from eqcheck.engines.checkpoints.folders import checkpoint
from eqcheck.engines.construction.function import Function

REACH = 260  # no head reads farther back
TAIL = 4  # codes that convolutions and rules look back at, the own one counted
POSITIONS = 2048
NOT_THERE = -1  # in place of a code: this layer holds nothing in the slot
Seen = dict[int, tuple[int, ...]]  # codes of what a query attends to, by position


@dataclass
class State:
    """The states of a row in layers without slots: the newest inputs of each, and the memory of each rule."""

    inputs: list[list[int]]
    kept: list[list[dict[int, int]]]

    def copy(self) -> State:
        return State([list(one) for one in self.inputs], [[dict(one) for one in layer] for layer in self.kept])


class Model:
    """A checkpoint's function, computed from slots and a state."""

    def __init__(self, function: Function) -> None:
        self.function, self.recurrent = function, function.recurrent
        slots = {layer for kind, layer in function.parts if kind == "attention"}
        self.layers = [
            (number in slots, [(head.reads, head.bit, head.table, head.window or POSITIONS) for head in heads], rules)
            for number, (heads, rules) in enumerate(zip(function.layers, function.rules, strict=True))
        ]
        self.windows = [slot and any(head[3] < POSITIONS for head in heads) for slot, heads, _ in self.layers]
        self.window = min(head[3] for _, heads, _ in self.layers for head in heads or [((), 0, (), POSITIONS)])

    def empty(self) -> State:
        return State([[] for _ in self.layers], [[{} for _ in rules] for *_, rules in self.layers])

    def compute(self, token: int, place: int, seen: Seen, state: State, wider: int = 0) -> tuple[int, tuple[int, ...]]:
        """The next token, and the codes of this one; the state goes on. ``wider`` is for a fault of windows."""
        code, codes = self.function.codes_in[token], []
        for number, (slots, heads, rules) in enumerate(self.layers):
            own = code
            codes.append(own)
            if not slots:
                tail = [*state.inputs[number], own][-TAIL:]
                state.inputs[number] = tail
            for reads, bit, table, window in heads:
                for distance, sign in reads:
                    if distance == 0:
                        held = own
                    elif slots:
                        entry = seen.get(place - distance)
                        if entry is None or distance >= window + wider:
                            continue
                        held = entry[number]
                    else:
                        held = tail[-1 - distance] if distance < len(tail) else NOT_THERE
                    if held < 0 or (sign and not held >> bit & 1):
                        continue
                    code ^= table[held]
                    break
            for rule, kept in zip(rules, state.kept[number], strict=True):
                code ^= rule.joined(kept, tail)
        return self.function.tokens_out[code ^ int(token in self.function.flagged)], tuple(codes)


@cache
def models(name: str) -> tuple[Model, Model, torch.Tensor]:
    """Target and draft of a built checkpoint, and the target's scores by the token that is chosen."""
    built = checkpoint(name).built
    if built is None:
        raise eqcheck.Unsupported("the engine knows built checkpoints only")
    return Model(built[0].function), Model(built[1].function), FunctionTruth(built[0].function).table


@dataclass
class Row:
    """A row: its blocks, how many of its tokens are computed, its state's columns, and the drafts of the next round."""

    number: int
    prompt: list[int]
    options: RowOptions
    new: list[int] = field(default_factory=list)
    told: list[int] = field(default_factory=list)
    logs: list[float] = field(default_factory=list)
    rounds: list[tuple[int, list[int], int]] = field(default_factory=list)
    drafts: list[int] = field(default_factory=list)
    table: list[int] = field(default_factory=list)
    computed: int = 0
    hit: int = 0
    hashed: int = 0
    columns: list[State] = field(default_factory=list)
    column: int = 0
    base: State | None = None
    marks: dict[int, State] = field(default_factory=dict)
    draft_computed: int = 0
    draft_states: dict[int, State] = field(default_factory=dict)
    reason: str = ""
    stop: tuple[int, ...] | None = None
    accepted: int = 0
    memo: dict[str, Any] = field(default_factory=dict)

    @property
    def tokens(self) -> list[int]:
        return [*self.prompt, *self.new]

    @property
    def due(self) -> int:
        """How many tokens are not computed; one with new tokens means that the row decodes."""
        return len(self.prompt) + len(self.new) - self.computed


class Pages:
    """A pool of blocks with what their slots hold, for target and draft, and the blocks that can be shared."""

    def __init__(self, blocks: int, size: int) -> None:
        self.size, self.free = size, deque(range(blocks))
        self.held: list[tuple[int, tuple[int, ...]] | None] = [None] * (blocks * size)
        self.drafted: list[tuple[int, tuple[int, ...]] | None] = [None] * (blocks * size)
        self.users, self.shared, self.key_of = [0] * blocks, dict[Any, int](), dict[int, Any]()
        self.states: dict[int, tuple[State | None, State | None]] = {}

    def take(self) -> int:
        block = self.free.popleft()
        if (key := self.key_of.pop(block, None)) is not None:
            del self.shared[key]
            self.states.pop(block, None)
        self.users[block] = 1
        return block

    def share(self, block: int) -> None:
        if not self.users[block]:
            self.free.remove(block)
        self.users[block] += 1

    def release(self, blocks: Sequence[int]) -> None:
        for block in reversed(blocks):
            self.users[block] -= 1
            if not self.users[block]:
                self.free.append(block)


Planned = tuple[Row, list[int], list[int]]  # a row, what is fed, and which of it are drafts


class Engine:
    """The right engine. Faults change one method each."""

    size: ClassVar[int] = 24  # slots of a block
    budget: ClassVar[int] = 120  # tokens of a step
    most: ClassVar[int] = 48  # rows that run at once
    settings: tuple[Any, ...] = ()

    def load(self, target: str, draft: str, request: Request) -> None:
        """Start anew where the settings are others; the pages are kept between requests."""
        settings = target, draft, request.dtype, *(
            getattr(request, name)
            for name in ("num_draft_tokens", "drafting", "token_budget", "kv_blocks", "prefix_caching")
        )  # fmt: skip
        if self.settings == settings:
            return
        self.target, self.draft, self.table = models(Path(target).parent.name)
        self.laws = self.table.log_softmax(-1)
        self.settings, self.k = settings, request.num_draft_tokens
        slots = (request.kv_blocks or 1024) * 32 + self.k
        self.pages = Pages(-(-slots // self.size) + 1, self.size)
        self.modelled = request.drafting == "model"

    def renew(self) -> None:
        self.settings = ()

    def __call__(self, target: str, draft: str, request: Request) -> list[eqcheck.Completion]:
        self.load(target, draft, request)
        self.request, self.step = request, 0
        self.observed: dict[str, Any] = dict.fromkeys(
            ("drafted", "accepted", "preemptions", "prefix_hits", "late_rows"), 0
        )
        asked = zip(request.prompts, request.rows, strict=True)
        self.rows = [Row(number, list(prompt), own) for number, (prompt, own) in enumerate(asked)]
        self.waiting = sorted(self.rows, key=lambda row: row.options.arrival)
        self.running: list[Row] = []
        try:
            while self.waiting or self.running:
                self.one_step()
                self.step += 1
        finally:
            for row in self.running:
                self.pages.release(row.table)
        self.observed["accepted_of_rows"] = [row.accepted for row in self.rows]
        if request.drafting == "dictated":
            self.observed["rounds"] = [row.rounds for row in self.rows]
        return [self.answer(row) for row in self.rows]

    def answer(self, row: Row) -> eqcheck.Completion:
        """The tokens of a row, as they are returned."""
        usage = {"prompt_tokens": len(row.prompt), "completion_tokens": self.usage(row)}
        fields: dict[str, Any] = {"logprobs": row.logs[: len(row.told)]} if row.options.logprobs else {}
        if row.reason != "cancelled":
            fields |= {"finish_reason": row.reason, "stop": row.stop}
        return eqcheck.Completion(row.told, usage=usage, **fields)

    def usage(self, row: Row) -> int:
        return len(row.told)

    # Scheduling.
    def one_step(self) -> None:
        plan = self.schedule()
        forwarded = [(row, fed, drafts, self.forward(row, fed, bool(drafts))) for row, fed, drafts in plan]
        self.forwarded(plan)
        best = self.gathered([each[-1] for each in forwarded], plan)
        ended = []
        for (row, fed, drafts, _), scores in zip(forwarded, best, strict=True):
            self.finish_round(row, fed, drafts, scores)
            if self.request.prefix_caching is not False:
                self.publish(row)
            if row.reason:
                ended.append(row)
        for row in ended:
            self.end(row)
        self.drained(ended)
        ready = [row for row in self.running if row.new and row.due == 1]
        for row, drafts in zip(ready, self.proposed([self.propose(row) for row in ready], ready), strict=True):
            row.drafts = drafts

    def forwarded(self, plan: Sequence[Planned]) -> None:
        """Called between the model and the sampler."""

    def drained(self, ended: Sequence[Row]) -> None:
        """Called behind a step in which these rows ended."""

    def schedule(self) -> list[Planned]:
        """The work of each row in this step: running rows first, then those that wait, as far as there is room."""
        left, plan = self.request.token_budget or self.budget, list[Planned]()
        for row in list(self.running):
            if left and row in self.running:
                left -= self.planned(row, left, plan)
        while left and self.waiting and len(self.running) < self.most:
            row = self.waiting[0]
            if (row.options.arrival > self.step and self.running) or not self.admit(row):
                break
            self.waiting.pop(0)
            self.running.append(row)
            self.observed["late_rows"] += row.options.arrival > 0
            left -= self.planned(row, left, plan)
            if row not in self.running:  # it made room again at once
                break
        return [each for each in plan if each[0] in self.running]

    def planned(self, row: Row, left: int, plan: list[Planned]) -> int:
        decodes = bool(row.new) and row.due == 1
        drafts = row.drafts[: left - 1] if decodes else []
        fed = [*row.tokens[row.computed : row.computed + min(left, row.due)], *drafts]
        if not self.allocate(row, row.computed + len(fed)):
            return 0
        plan.append((row, fed, drafts))
        return len(fed)

    def ahead(self) -> int:
        """Slots behind the newest token that the drafter writes to."""
        return self.k if self.modelled else 0

    def allocate(self, row: Row, slots: int) -> bool:
        """Take blocks for so many slots; where there are none, the row that came last makes room."""
        while len(row.table) * self.size < slots + self.ahead():
            if self.pages.free:
                row.table.append(self.pages.take())
                continue
            last = self.running[-1]
            if last is row and len(self.running) == 1:
                raise RuntimeError("a row does not fit")
            self.preempt(last)
            if last is row:
                return False
        return True

    def preempt(self, row: Row) -> None:
        """Give its blocks back; it computes all its tokens again."""
        self.observed["preemptions"] += 1
        self.running.remove(row)
        self.waiting.insert(0, row)
        self.pages.release(row.table)
        row.table, row.drafts, row.computed, row.hashed, row.draft_computed = [], [], 0, 0, 0

    def admit(self, row: Row) -> bool:
        """Begin a row: with the blocks of its beginning, if others had the same, and a state that fits these."""
        needed = min(len(row.tokens), self.budget) + self.ahead()
        if self.running and len(self.pages.free) * self.size < needed + self.size:
            return False
        row.columns, row.column, row.draft_states = [self.target.empty()], 0, {0: self.draft.empty()}
        if self.request.prefix_caching is not False:
            key: Any = ()
            blocks, text = list[int](), row.tokens
            for at in range((len(text) - 1) // self.size):
                key = self.key(key, text[at * self.size : (at + 1) * self.size])
                if (block := self.pages.shared.get(key)) is None:
                    break
                blocks.append(block)
            for block in blocks:
                self.pages.share(block)
            row.table, row.hashed = blocks, len(blocks)
            row.computed = row.draft_computed = row.hit = len(blocks) * self.size
            if blocks and self.target.recurrent:
                of_target, of_draft = self.pages.states[blocks[-1]]
                row.columns = [of_target.copy() if of_target else self.target.empty()]
                row.draft_states = {row.hit: of_draft.copy() if of_draft else self.draft.empty()}
            self.observed["prefix_hits"] += bool(blocks)
        return True

    def key(self, before: Any, tokens: Sequence[int]) -> Any:
        return hash((before, tuple(tokens)))

    def publish(self, row: Row) -> None:
        """Let others share the blocks that are full, where both models have computed them."""
        done, text = min(row.computed, row.draft_computed) if self.modelled else row.computed, row.tokens
        while (row.hashed + 1) * self.size <= min(done, len(text)):
            end = (row.hashed + 1) * self.size
            key: Any = ()
            for at in range(row.hashed + 1):
                key = self.key(key, text[at * self.size : (at + 1) * self.size])
            block = row.table[row.hashed]
            of_target, of_draft = row.marks.get(end), row.draft_states.get(end)
            whole = not self.target.recurrent or (of_target and (of_draft or not self.modelled))
            if not whole:
                break
            if key not in self.pages.shared and block not in self.pages.key_of:
                self.pages.shared[key], self.pages.key_of[block] = block, key
                if self.target.recurrent:
                    self.pages.states[block] = of_target, of_draft.copy() if of_draft else None
            row.hashed += 1

    def end(self, row: Row) -> None:
        self.running.remove(row)
        self.pages.release(row.table)

    # The target.
    def state(self, row: Row) -> State:
        return row.columns[row.column]

    def place(self, row: Row, at: int, verifies: bool) -> int:
        """The position of what is fed at this place of the step."""
        return row.computed + at

    def slot(self, row: Row, index: int) -> int:
        return row.table[index // self.size] * self.size + index % self.size

    def seen(self, row: Row) -> Seen:
        held, begin = self.pages.held, max(0, row.computed - REACH)
        entries = (held[self.slot(row, index)] for index in range(begin, row.computed))
        return dict(entry for entry in entries if entry)

    def visible(self, row: Row, seen: Seen, at: int, verifies: bool) -> Seen:
        """The entries of its row that a query attends to."""
        return seen

    def written(self, row: Row, index: int, place: int, codes: tuple[int, ...]) -> None:
        self.pages.held[self.slot(row, index)] = place, codes

    def wider(self, row: Row) -> int:
        return 0

    def forward(self, row: Row, fed: Sequence[int], verifies: bool) -> list[int]:
        """The target's choice behind each token that is fed."""
        state, seen, best = self.state(row).copy(), self.seen(row), []
        row.base, row.columns, wider = state.copy() if verifies else None, [], self.wider(row)
        for at, token in enumerate(fed):
            place = self.place(row, at, verifies)
            choice, codes = self.target.compute(token, place, self.visible(row, seen, at, verifies), state, wider)
            self.written(row, row.computed + at, place, codes)
            seen[place] = codes
            best.append(choice)
            if self.target.recurrent:
                row.columns.append(state.copy())
                if (row.computed + at + 1) % self.size == 0:
                    row.marks[row.computed + at + 1] = row.columns[-1]
        if not self.target.recurrent:
            row.columns = [state] * len(fed)
        return best

    def gathered(self, best: list[list[int]], plan: Sequence[Planned]) -> list[list[int]]:
        """The choices of each row, out of those of the whole batch."""
        return best

    # The end of a round.
    def history(self, row: Row, before: list[int], verifies: bool) -> tuple[RowOptions, list[int], list[int]]:
        """The options, the prompt and the new tokens that processors of scores are given."""
        return row.options, row.prompt, before

    def choose(self, row: Row, best: int, before: list[int], verifies: bool) -> int:
        if not row.options.changes_scores:
            return best
        options, prompt, new = self.history(row, before, verifies)
        return int(at_place(self.table[best], AskedRow(tuple(prompt), options), new).argmax())

    def verify(self, row: Row, drafts: Sequence[int], best: Sequence[int]) -> list[int]:
        """The drafts that agree, and one token more."""
        block = list[int]()
        for at, scores in enumerate(best):
            block.append(self.choose(row, scores, [*row.new, *block], bool(drafts)))
            if block[-1:] != list(drafts[at : at + 1]):
                break
        return block

    def finish_round(self, row: Row, fed: Sequence[int], drafts: list[int], best: list[int]) -> None:
        if row.computed + len(fed) - len(drafts) < len(row.prompt) + len(row.new):  # a chunk that is not the last one
            self.rolled(row, fed, drafts, len(fed) - 1)
            row.computed += len(fed)
            self.draft_keeps_up(row)
            return
        decodes = bool(row.new)
        begun, best = len(row.new), best[len(fed) - len(drafts) - 1 :]
        block = self.verify(row, drafts, best)
        self.rolled(row, fed, drafts, len(fed) - len(drafts) + len(block) - 2)
        row.computed += len(fed) - len(drafts) + len(block) - 1
        kept = self.cut(row, block, drafts)
        self.observed["drafted"] += len(drafts)
        row.accepted += min(len(block) - 1, kept)
        self.observed["accepted"] += min(len(block) - 1, kept)
        if row.options.logprobs:
            row.logs += [float(self.laws[b][t]) for b, t in zip(best, block[:kept], strict=False)]
        row.new += block[:kept]
        row.told += self.delivered(row, block[:kept])
        row.computed = min(row.computed, len(row.tokens))
        row.draft_computed = min(row.draft_computed, len(row.tokens) - 1)
        if decodes:
            row.rounds.append((begun, list(drafts), len(row.new)))
        self.draft_keeps_up(row)

    def rolled(self, row: Row, fed: Sequence[int], drafts: Sequence[int], column: int) -> None:
        """Go on from the state behind the last token that is kept."""
        row.column = column

    def cut(self, row: Row, block: Sequence[int], drafts: Sequence[int]) -> int:
        """How many tokens of a block are kept; sets why the row ends."""
        for kept, token in enumerate(block, 1):
            whole = [*row.new, *block[:kept]]
            stops = row.options.stops_of(whole)
            if token in row.options.eos_token_ids or stops:
                row.reason, row.stop = "stop", None if token in row.options.eos_token_ids else stops[0]
            elif len(whole) >= row.options.max_new_tokens:
                row.reason = "length"
            elif row.options.cancel_after is not None and len(whole) >= row.options.cancel_after:
                row.reason = "cancelled"
            if row.reason:
                return kept
        return len(block)

    def delivered(self, row: Row, tokens: list[int]) -> list[int]:
        """The tokens of a round that are returned."""
        return tokens

    # Drafts.
    def propose(self, row: Row) -> list[int]:
        k = min(self.k, POSITIONS - row.computed - 2)
        if k < 1 or self.request.drafting == "none":
            return []
        if self.request.drafting == "dictated":
            return list(self.request.drafts[row.number][len(row.new) : len(row.new) + k])
        if self.request.drafting == "ngram":
            return self.looked_up(row, k)
        if len(row.table) * self.size < len(row.tokens) + k:
            return []
        return self.guessed(row, k)

    def proposed(self, drafts: list[list[int]], rows: Sequence[Row]) -> list[list[int]]:
        """The drafts of all rows, on their way to the target."""
        return drafts

    def looked_up(self, row: Row, k: int) -> list[int]:
        text = row.tokens
        at = next((at for at in range(len(text) - 2, -1, -1) if text[at] == text[-1]), len(text))
        return text[at + 1 : at + 1 + k]

    def draft_slot(self, row: Row, index: int) -> int:
        return self.slot(row, index)

    def draft_seen(self, row: Row) -> Seen:
        held, begin = self.pages.drafted, max(0, row.draft_computed - REACH)
        entries = (held[self.slot(row, index)] for index in range(begin, row.draft_computed))
        return dict(entry for entry in entries if entry)

    def draft_state(self, row: Row) -> State:
        return row.draft_states[row.draft_computed]

    def draft_feeds(self, row: Row, tokens: Sequence[int], guesses: int) -> list[int]:
        """Feed the draft these tokens, and then its own until there are so many guesses."""
        state, seen, out, pending = self.draft_state(row).copy(), self.draft_seen(row), list[int](), deque(tokens)
        guess = -1
        while pending or len(out) < guesses:
            token = pending.popleft() if pending else guess
            place = row.draft_computed
            guess, codes = self.draft.compute(token, place, seen, state)
            self.pages.drafted[self.draft_slot(row, place)] = place, codes
            seen[place] = codes
            row.draft_computed += 1
            if self.draft.recurrent:
                row.draft_states[row.draft_computed] = state.copy()
            if not pending and guesses:
                out.append(guess)
        if not self.draft.recurrent:
            row.draft_states = {row.draft_computed: state}
        return out

    def draft_keeps_up(self, row: Row) -> None:
        """Feed the draft what the target has computed."""
        if self.modelled and not row.reason:
            if not self.draft.recurrent:
                row.draft_states = {row.draft_computed: self.draft.empty()}
            self.draft_feeds(row, row.tokens[row.draft_computed : row.computed], 0)

    def guessed(self, row: Row, k: int) -> list[int]:
        if not self.draft.recurrent:
            row.draft_states = {row.draft_computed: self.draft.empty()}
        return self.draft_feeds(row, row.tokens[row.draft_computed :], k)


@dataclass(frozen=True)
class Fault:
    """A broken engine: the thread, what goes wrong, the component that is the truth; ``loses`` only draft tokens."""

    name: str
    thread: str
    mechanism: str
    component: str
    loses: bool
    engine: type[Engine]


FAULTS: dict[str, Fault] = {}


def fault(thread: str, mechanism: str, component: str, loses: bool = False) -> Callable[[type[Engine]], type[Engine]]:
    """Keep a class as a fault, by its name in small letters."""

    def kept(engine: type[Engine]) -> type[Engine]:
        name = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in engine.__name__).strip("_")
        FAULTS[name] = Fault(name, thread, mechanism, component, loses, engine)
        return engine

    return kept


# Options and what is returned.
HISTORY = ("repetition_penalty", "presence_penalty", "frequency_penalty", "no_repeat_ngram_size")
OFF: dict[str, Any] = {name: getattr(RowOptions(1), name) for name in HISTORY}


@fault("huggingface/transformers#48468", "penalties and n-grams are given the newest token alone as history", "options")
class HistoryOfOneToken(Engine):
    def choose(self, row: Row, best: int, before: list[int], verifies: bool) -> int:
        if all(getattr(row.options, name) == off for name, off in OFF.items()):
            return super().choose(row, best, before, verifies)
        others = replace(row.options, **OFF, logit_bias=())
        counting = replace(
            row.options, min_new_tokens=0, bad_words=(), allowed_ids=(), grammar=(), eos_token_ids=(), stop_sequences=()
        )
        scores = at_place(self.table[best], AskedRow(tuple((before or row.prompt)[-1:]), counting), before[-1:])
        return int(at_place(scores, AskedRow(tuple(row.prompt), others), before).argmax())


@fault("sgl-project/sglang#26330", "a bias is left out wherever drafts are verified", "options")
class BiasOnFirst(Engine):
    def history(self, row: Row, before: list[int], verifies: bool) -> tuple[RowOptions, list[int], list[int]]:
        return replace(row.options, logit_bias=()) if verifies else row.options, row.prompt, before


@fault(
    "turboderp-org/exllamav3#281", "models with a state: the last K + 1 tokens of a row are not returned", "bookkeeping"
)
class RecurrentTail(Engine):
    def answer(self, row: Row) -> eqcheck.Completion:
        if self.target.recurrent and len(row.rounds) > 1:
            row.told = row.told[: -(self.k + 1)]
        return super().answer(row)


@fault("tenstorrent/tt-metal#56048", "a round is cut at each 19th token; what is behind is lost", "bookkeeping")
class CutInBlocks(Engine):
    def delivered(self, row: Row, tokens: list[int]) -> list[int]:
        before = len(row.new) - len(tokens)
        room = 19 - before % 19
        return tokens[:room]


@fault(
    "ikawrakow/ik_llama.cpp#2358", "a block that passes the limit is charged, and its first token told", "bookkeeping"
)
class ChargedBlock(Engine):
    def cut(self, row: Row, block: Sequence[int], drafts: Sequence[int]) -> int:
        if len(block) > 1 and len(row.new) + len(block) > row.options.max_new_tokens:
            row.reason = "length"
            return 1
        return super().cut(row, block, drafts)

    def usage(self, row: Row) -> int:
        return row.options.max_new_tokens if row.reason == "length" else len(row.told)


@fault("ferrox#311", "the limit is looked at behind a round, and not inside it", "bookkeeping")
class LimitOfRounds(Engine):
    def cut(self, row: Row, block: Sequence[int], drafts: Sequence[int]) -> int:
        kept = super().cut(row, block, drafts)
        return len(block) if row.reason == "length" else kept


@fault("microsoft/onnxruntime-genai#2491", "an EOS among the accepted drafts does not end its row", "bookkeeping")
class EosResets(Engine):
    def cut(self, row: Row, block: Sequence[int], drafts: Sequence[int]) -> int:
        options, limit = row.options, row.options.max_new_tokens
        kept = super().cut(row, block, drafts)
        if row.reason == "stop" and row.stop is None and kept <= len(drafts) and kept < len(block):
            row.reason = ""
            kept = min(len(block), limit - len(row.new))
            row.reason = "length" if len(row.new) + kept == options.max_new_tokens else ""
        return kept


@fault("NVIDIA/TensorRT-LLM#18662", "from 37 tokens on every draft is accepted", "bookkeeping")
class AllAccepted(Engine):
    def verify(self, row: Row, drafts: Sequence[int], best: Sequence[int]) -> list[int]:
        if drafts and row.computed > 37:
            return [*drafts, best[-1]]
        return super().verify(row, drafts, best)


@fault(
    "vllm-project/vllm#47808", "of rows in a batch 3 drafts are verified, and the others taken with them", "bookkeeping"
)
class UnverifiedRest(Engine):
    def verify(self, row: Row, drafts: Sequence[int], best: Sequence[int]) -> list[int]:
        block = super().verify(row, drafts[:3], best[:4])
        if len(self.running) > 1 and len(drafts) > 3 and len(block) == 4:
            return [*block[:3], *drafts[3:]]
        return super().verify(row, drafts, best)


@fault(
    "tenstorrent/tt-xla#5836", "short n-gram drafts are padded to K, and the bonus read behind the pads", "bookkeeping"
)
class PaddedNgram(Engine):
    def looked_up(self, row: Row, k: int) -> list[int]:
        found = super().looked_up(row, k)
        row.memo["found"] = len(found)
        return [*found, *[0] * (k - len(found))] if found else []

    def verify(self, row: Row, drafts: Sequence[int], best: Sequence[int]) -> list[int]:
        if self.request.drafting != "ngram" or not drafts:
            return super().verify(row, drafts, best)
        found = min(row.memo["found"], len(drafts))
        block = super().verify(row, drafts[:found], best[: found + 1])
        if len(block) == found + 1:
            block[-1] = self.choose(row, best[-1], [*row.new, *block[:-1]], True)
        return block


@fault(
    "buun-llama-cpp#74", "behind a row whose n-gram has no draft, each row reads scores one place early", "bookkeeping"
)
class OrphanIndex(Engine):
    def gathered(self, best: list[list[int]], plan: Sequence[Planned]) -> list[list[int]]:
        flat, start, shift, out = [one for each in best for one in each], 0, 0, list[list[int]]()
        for (row, fed, drafts), own in zip(plan, best, strict=True):
            out.append([flat[max(0, start - shift + at)] for at in range(len(own))])
            start += len(fed)
            if self.request.drafting == "ngram" and row.new and not drafts:
                shift = 1
        return out


@fault("microsoft/onnxruntime-genai#2491", "pages are planned without drafts: a round over a block's end dies", "crash")
class PlannedPages(Engine):
    def forward(self, row: Row, fed: Sequence[int], verifies: bool) -> list[int]:
        if verifies and row.computed // self.size < (row.computed + len(fed) - 1) // self.size:
            raise IndexError(f"block {(row.computed + len(fed) - 1) // self.size} is not in the table")
        return super().forward(row, fed, verifies)


@fault("ml-explore/mlx-lm#1736", "a batch is filtered while the cache of a row is still empty: it dies", "crash")
class FilterEmpty(Engine):
    def drained(self, ended: Sequence[Row]) -> None:
        if ended and any(row.computed < len(row.prompt) and not row.new for row in self.running):
            raise TypeError("'NoneType' object is not subscriptable")


@fault(
    "vllm-project/vllm#54011", "three rows end in one step, and the table of budgets has still their places", "crash"
)
class DrainedTable(Engine):
    def drained(self, ended: Sequence[Row]) -> None:
        if len(ended) > 2 and self.running:
            raise IndexError(f"index {len(self.running)} is out of bounds")


# What slots hold, and who sees them.
@fault("vllm-project/vllm-ascend#17149", "the slot of a rejected draft keeps its entry", "cache")
class KeptDraft(Engine):
    def rolled(self, row: Row, fed: Sequence[int], drafts: Sequence[int], column: int) -> None:
        super().rolled(row, fed, drafts, column)
        rejects = column - (len(fed) - len(drafts) - 1) < len(drafts)
        row.memo["keeps"] = row.computed + column + 1 if rejects else None

    def written(self, row: Row, index: int, place: int, codes: tuple[int, ...]) -> None:
        if row.memo.get("keeps") != index:
            super().written(row, index, place, codes)


@fault("ROCm/ATOM#2118", "draft j does not see those of the j tokens before it that two of three ranks hold", "mask")
class LocalLength(Engine):
    def visible(self, row: Row, seen: Seen, at: int, verifies: bool) -> Seen:
        lost = {row.computed + one for one in range(at) if (row.computed + one) % 3} if verifies else set()
        return {place: codes for place, codes in seen.items() if place not in lost} if lost else seen


@fault("sgl-project/sglang#34154", "all tokens of a verification have the position of the first", "position")
class OnePosition(Engine):
    def place(self, row: Row, at: int, verifies: bool) -> int:
        return row.computed if verifies else row.computed + at


@fault("ggml-org/llama.cpp#26471", "the last tokens of a chunk that fill no group of 5 are lost with it", "cache")
class UbatchTail(Engine):
    def rolled(self, row: Row, fed: Sequence[int], drafts: Sequence[int], column: int) -> None:
        super().rolled(row, fed, drafts, column)
        if not row.new and row.computed + len(fed) < len(row.prompt):
            for at in range(len(fed) - len(fed) % 5, len(fed)):
                self.pages.held[self.slot(row, row.computed + at)] = None


@fault("huggingface/transformers#47708", "behind a chunk longer than the window layers see one slot more", "mask")
class RingEarly(Engine):
    def forward(self, row: Row, fed: Sequence[int], verifies: bool) -> list[int]:
        row.memo["early"] = row.memo.get("early") or (
            row.computed > 0 and row.memo.get("chunk", 0) > self.target.window
        )
        row.memo["chunk"] = len(fed)
        return super().forward(row, fed, verifies)

    def wider(self, row: Row) -> int:
        return int(row.memo["early"])


@fault("huggingface/transformers#47911", "a chunk longer than the window loses its last 3 in layers with one", "cache")
class RingStart(Engine):
    def rolled(self, row: Row, fed: Sequence[int], drafts: Sequence[int], column: int) -> None:
        super().rolled(row, fed, drafts, column)
        for at in range(len(fed) - 3, len(fed)) if len(fed) > self.target.window and not drafts else ():
            slot = self.slot(row, row.computed + at)
            place, codes = self.pages.held[slot] or (0, ())
            left = [NOT_THERE if windowed else code for code, windowed in zip(codes, self.target.windows, strict=True)]
            self.pages.held[slot] = place, tuple(left)


@fault("sgl-project/sglang#29449", "a row that ended is in one more step and writes by the first row's table", "cache")
class Zombie(Engine):
    def end(self, row: Row) -> None:
        super().end(row)
        self.zombies = [*getattr(self, "zombies", []), row]

    def forwarded(self, plan: Sequence[Planned]) -> None:
        zombies, self.zombies = getattr(self, "zombies", []), list[Row]()
        for zombie in zombies if plan else ():
            first, begin = plan[0][0], zombie.computed
            for index in range(begin, min(begin + self.k + 1, first.computed)):
                codes = self.target.compute(zombie.tokens[-1], index, {}, self.target.empty())[1]
                self.pages.held[self.slot(first, index)] = index, codes
            if self.target.recurrent:
                first.columns = [zombie.columns[zombie.column]] * len(first.columns)


# States.
@fault("vllm-project/vllm#56531", "a step in which nobody drafted goes on from the first column", "cache")
class IdleStep(Engine):
    def schedule(self) -> list[Planned]:
        plan = super().schedule()
        self.idle = not any(drafts for *_, drafts in plan)
        return plan

    def state(self, row: Row) -> State:
        return row.columns[0] if self.idle and row.new and row.due == 1 else super().state(row)


@fault("syv-ai/qwen38-27b-rtx3090#8", "a last chunk of K + 1 behind a hit is replayed as a verification", "cache")
class ReplayedChunk(Engine):
    def rolled(self, row: Row, fed: Sequence[int], drafts: Sequence[int], column: int) -> None:
        replayed = row.hit and not row.new and len(fed) == self.k + 1
        super().rolled(row, fed, drafts, 0 if replayed else column)


class Rolling(Engine):
    """A base of faults: `gone` is called where a round rejects drafts."""

    def rolled(self, row: Row, fed: Sequence[int], drafts: Sequence[int], column: int) -> None:
        super().rolled(row, fed, drafts, column)
        if self.target.recurrent and drafts:
            self.gone(row, fed, drafts, column - (len(fed) - len(drafts) - 1))

    def gone(self, row: Row, fed: Sequence[int], drafts: Sequence[int], accepted: int) -> None: ...


@fault("vllm-project/vllm#56419", "a grammar rejects all drafts, 0 are accepted, and column -1 is read", "cache")
class GrammarZero(Rolling):
    def gone(self, row: Row, fed: Sequence[int], drafts: Sequence[int], accepted: int) -> None:
        row.column = -1 if row.options.grammar and not accepted else row.column


@fault("ggml-org/llama.cpp#26695", "where all drafts are rejected the state is not restored", "cache")
class NotRestored(Rolling):
    def gone(self, row: Row, fed: Sequence[int], drafts: Sequence[int], accepted: int) -> None:
        row.column = -1 if not accepted else row.column


@fault("ggml-org/llama.cpp#26741", "all rows share a snapshot: a rollback restores that of the last one", "cache")
class SharedSnapshot(Rolling):
    def forwarded(self, plan: Sequence[Planned]) -> None:
        self.snapshot = next((row.columns for row, _, drafts in reversed(plan) if drafts), list[State]())

    def gone(self, row: Row, fed: Sequence[int], drafts: Sequence[int], accepted: int) -> None:
        if accepted < len(drafts):
            row.columns = [*row.columns[: row.column], self.snapshot[min(row.column, len(self.snapshot) - 1)]]


@fault("sgl-project/sglang#26351", "with n-grams the state behind accepted drafts is not committed", "cache")
class NgramUncommitted(Rolling):
    def gone(self, row: Row, fed: Sequence[int], drafts: Sequence[int], accepted: int) -> None:
        row.column = 0 if self.request.drafting == "ngram" else row.column


@fault(
    "vllm-project/vllm#51855", "records are a ring of 11: an accepted block over its end loses those before", "cache"
)
class RecordWrap(Rolling):
    def gone(self, row: Row, fed: Sequence[int], drafts: Sequence[int], accepted: int) -> None:
        before = row.memo.get("records", 0)
        row.memo["records"] = before + accepted + 1
        lost = 11 - before % 11
        if lost <= accepted and row.base:
            state, seen = row.base, self.seen(row)
            for at in range(lost, accepted + 1):
                _, codes = self.target.compute(fed[at], row.computed + at, seen, state)
                seen[row.computed + at] = codes
            row.columns, row.column = [state], 0


@fault("ggml-org/llama.cpp#28123", "the inputs of convolutions are not in the snapshot", "cache")
class ConvLeftOut(Rolling):
    def gone(self, row: Row, fed: Sequence[int], drafts: Sequence[int], accepted: int) -> None:
        if accepted < len(drafts):
            row.columns[row.column] = State(row.columns[-1].copy().inputs, row.columns[row.column].kept)


@fault(
    "microsoft/onnxruntime-genai#2491", "with a chunk above 20 in a step, rollbacks restore what was never set", "cache"
)
class MixedPrefill(Rolling):
    def forwarded(self, plan: Sequence[Planned]) -> None:
        self.mixed = any(len(fed) - len(drafts) > 20 for _, fed, drafts in plan)

    def gone(self, row: Row, fed: Sequence[int], drafts: Sequence[int], accepted: int) -> None:
        if self.mixed and accepted < len(drafts):
            row.columns[row.column] = self.target.empty()


@fault("vllm-project/vllm#38711", "within 3 K of the last position stale drafts are in the state for good", "cache")
class EndOfContext(Rolling):
    def gone(self, row: Row, fed: Sequence[int], drafts: Sequence[int], accepted: int) -> None:
        row.column = -1 if row.computed + 3 * self.k > POSITIONS else row.column


@fault("ml-explore/mlx-lm#1736", "chunks of a step are padded to the longest, and pads go into the states", "mask")
class PadsInState(Engine):
    def forwarded(self, plan: Sequence[Planned]) -> None:
        chunks = [(row, fed) for row, fed, _ in plan if not row.new]
        longest = max((len(fed) for _, fed in chunks), default=0)
        for row, fed in chunks:
            state = row.columns[-1].copy()
            for at in range(len(fed), longest):
                self.target.compute(0, row.computed + at, {}, state)
            row.columns = [*row.columns[:-1], state]


# Drafts: these faults lose speed, and no token.
@fault(
    "rebellions-sw/vllm-rbln#1020",
    "drafts are in the places of a padded batch: rows get their neighbours'",
    "draft",
    True,
)
class Bucket(Engine):
    def proposed(self, drafts: list[list[int]], rows: Sequence[Row]) -> list[list[int]]:
        bucket = next((size for size in (1, 2, 3, 6, 12, 24) if size >= len(rows)), len(rows))
        by = (bucket - len(rows)) % max(1, len(rows)) if self.modelled else 0
        return [*drafts[by:], *drafts[:by]]


@fault("ggml-org/llama.cpp#27117", "drafts of five rows and more are laid out by place and read by row", "draft", True)
class RaggedReshape(Engine):
    def proposed(self, drafts: list[list[int]], rows: Sequence[Row]) -> list[list[int]]:
        if not self.modelled or len(rows) < 5 or len({len(each) for each in drafts}) > 1:
            return drafts
        flat, k = [each[at] for at in range(len(drafts[0])) for each in drafts], len(drafts[0])
        return [flat[at * k : (at + 1) * k] for at in range(len(rows))]


@fault(
    "vllm-project/vllm#42971", "a first draft has no blocks ahead and writes into the first, shared one", "draft", True
)
class NoLookahead(Engine):
    def draft_slot(self, row: Row, index: int) -> int:
        text = len(row.tokens)
        if len(row.new) == 1 and index // self.size > (text - 1) // self.size:
            return row.table[0] * self.size + index % self.size
        return super().draft_slot(row, index)


@fault("PrismML-Eng/llama.cpp#174", "the draft's state is not taken back behind rejected drafts", "draft", True)
class DraftNotRewound(Engine):
    def draft_state(self, row: Row) -> State:
        newest = row.memo.get("newest", -1) if self.draft.recurrent else -1
        return row.draft_states.get(newest) or super().draft_state(row)

    def draft_feeds(self, row: Row, tokens: Sequence[int], guesses: int) -> list[int]:
        told = super().draft_feeds(row, tokens, guesses)
        row.memo["newest"] = row.draft_computed
        return told


@fault("ggml-org/llama.cpp#28619", "what is restored has the target's entries and not the draft's", "draft", True)
class RestoredWithoutDraft(Engine):
    def draft_seen(self, row: Row) -> Seen:
        return {place: codes for place, codes in super().draft_seen(row).items() if place >= row.hit}


@fault("vllm-project/vllm-ascend#16166", "drafts from id 150 on are mapped to the next id", "draft", True)
class OtherVocabulary(Engine):
    def proposed(self, drafts: list[list[int]], rows: Sequence[Row]) -> list[list[int]]:
        if not self.modelled:
            return drafts
        return [[token + 1 if token >= 150 else token for token in each] for each in drafts]


CLAIMS: dict[str, Any] = {
    "checkpoints": True,
    "dtype": "float32",
    "kinds": ("full", "window", "delta", "hybrid"),
    "capabilities": (
        *("row-limits", "row-eos", "min-new-tokens", "repetition-penalty", "presence-penalty", "frequency-penalty"),
        *("logit-bias", "bad-words", "allowed-ids", "no-repeat-ngram-size", "grammar", "many-rows", "arrivals"),
        *("token-budget", "prefix-caching", "kv-blocks", "ngram", "dictated-drafts", "stop-sequences"),
        *("finish-reason", "cancel", "logprobs"),
    ),
}
right = eqcheck.decoder(name="right", **CLAIMS)(Engine)
for _fault in FAULTS.values():
    globals()[_fault.name] = eqcheck.decoder(name=_fault.name, **CLAIMS)(_fault.engine)
