"""A small engine with continuous batching: rows join and leave a batch, and a draft proposes tokens for each.

Keys and values are kept per row. Each step lays the rows of the batch side by side, padded on the left, feeds each row
its last token and its drafts, and keeps the slots of the accepted ones. `FAULTS` break single steps of this.
"""

from __future__ import annotations

import queue
import random
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from transformers import DynamicCache

FAULTS = {
    "accepts-once-too-often": "every fourth rejection accepts the rejected draft",
    "lossy-acceptance": "a rejected draft is accepted if the target has it second, within 1 nat of its choice",
    "position-not-rolled-back": "the position goes on behind rejected drafts",
    "rejected-draft-kept": "the slot of the first rejected draft stays visible",
    "pads-seen": "the padding of short rows is visible",
    "rows-exchanged": "two rows exchange their keys and values when a row between them leaves",
    "last-token-lost": "the last token of a row that ends within a round is lost",
    "limit-passed": "a row keeps the tokens of its last round behind its limit",
    "stop-passed-over": "a stop within accepted drafts is not seen",
    "wrong-law": "a rejected draft is replaced by a draw from the target, not from what remains of it",
    "greedy-beside-sampled": "a greedy row beside sampled ones is sampled",
}


LOSSY = 1.0  # nats
KEPT = 2**22  # scores of prompts, at most, whose keys and values an engine keeps


@dataclass(frozen=True)
class Asked:
    """What one row wants: tokens, or with ``score`` the log-probabilities of its prompt."""

    prompt: tuple[int, ...]
    max_tokens: int = 16
    temperature: float = 0.0
    seed: int | None = None
    stops: frozenset[int] = frozenset()
    score: bool = False


@dataclass(frozen=True)
class Told:
    """The answer: new tokens, why they ended, and their and the prompt's log-probabilities ``[places, vocabulary]``."""

    tokens: tuple[int, ...]
    finish_reason: str
    of_prompt: torch.Tensor
    of_tokens: torch.Tensor


@dataclass
class Row:
    """A row of the batch. ``slots``: for each model keys and values a layer, ``[heads, slots, width]``."""

    asked: Asked
    future: Future[Told]
    random: random.Random
    committed: list[int]
    slots: dict[str, list[tuple[torch.Tensor, torch.Tensor]]] = field(default_factory=dict)
    shift: int = 0  # positions that were not rolled back
    laws: list[torch.Tensor] = field(default_factory=list)
    of_prompt: torch.Tensor = field(default_factory=lambda: torch.empty(0))
    rejections: int = 0

    @property
    def new(self) -> list[int]:
        return self.committed[len(self.asked.prompt) :]

    def held(self, model: str) -> int:
        return self.slots[model][0][0].shape[1] if model in self.slots else 0


class Kept(NamedTuple):
    """A prompt that was read: keys and values a layer, and the log-probabilities after each token."""

    slots: list[tuple[torch.Tensor, torch.Tensor]]
    laws: torch.Tensor


class Engine:
    """Decodes rows on a thread of its own. ``draft`` None: plain. ``fault``: one of `FAULTS`, or empty.

    ``delay`` seconds pass before a round at random; ``last_first`` takes waiting rows from the end of the queue.
    Prompts are kept, so that a row that begins with one of them reads the rest alone.
    """

    def __init__(
        self,
        target: Any,
        draft: Any = None,
        *,
        fault: str = "",
        max_rows: int = 16,
        num_draft_tokens: int = 4,
        last_first: bool = False,
        delay: float = 0.0,
    ) -> None:
        assert fault in {"", *FAULTS}, fault
        self.models = {"target": target, **({"draft": draft} if draft is not None else {})}
        self.fault, self.max_rows, self.depth = fault, max_rows, num_draft_tokens
        self.last_first, self.delay = last_first, delay
        self.waiting: queue.Queue[Row | None] = queue.Queue()
        self.rows: list[Row] = []
        self.drafted = self.accepted = self.ended = 0
        self._random = random.Random(0)
        self._kept: dict[str, dict[tuple[int, ...], Kept]] = {name: {} for name in self.models}
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def ask(self, asked: Asked) -> Future[Told]:
        """Queue a row; the future has its answer."""
        future: Future[Told] = Future()
        generator = random.Random(asked.seed if asked.seed is not None else self._random.random())
        self.waiting.put(Row(asked, future, generator, list(asked.prompt)))
        return future

    def close(self) -> None:
        """End the thread."""
        self.waiting.put(None)
        self._thread.join()

    @torch.no_grad()
    def _run(self) -> None:
        torch.set_num_threads(1)
        while True:
            if not self._admit():
                return
            if self.delay and self._random.random() < 0.2:
                time.sleep(self._random.random() * self.delay)
            try:
                self._round()
            except Exception as error:
                for row in self.rows:
                    row.future.set_exception(error)
                self.rows = []

    def _admit(self) -> bool:
        """Take waiting rows into the batch and prefill them, one after the other; False when the engine is closed."""
        arrived: list[Row] = []
        while (not arrived and not self.rows) or not self.waiting.empty():
            row = self.waiting.get()
            if row is None:
                return False
            arrived.append(row)
        arrived = arrived[::-1] if self.last_first else arrived
        room = self.max_rows - len(self.rows)
        for row in arrived[room:]:
            self.waiting.put(row)
        for row in arrived[:room]:
            self._prefill(row)
        return True

    def _prefill(self, row: Row) -> None:
        prompt = row.asked.prompt
        for name in self.models:
            read = prompt if row.asked.score and name == "target" else prompt[:-1]
            if read and not (row.asked.score and name == "draft"):
                self._read(name, row, read)
        if row.asked.score:
            row.future.set_result(Told((), "length", row.of_prompt, torch.empty(0)))
        else:
            self.rows.append(row)

    def _read(self, name: str, row: Row, prompt: tuple[int, ...]) -> None:
        """Read a prompt, behind the longest of the kept ones that it begins with."""
        kept, laws = self._kept[name], torch.empty(0)
        known = max((its for its in kept if prompt[: len(its)] == its), key=len, default=())
        if known:
            row.slots[name], laws = list(kept[known].slots), kept[known].laws
        if len(known) < len(prompt):
            logits = self._forward(name, [row], [list(prompt[len(known) :])])[0]
            laws = torch.cat([laws, logits.float().log_softmax(-1)])
        if name == "target":
            row.of_prompt = laws
        if not row.asked.score:
            kept[prompt] = Kept(list(row.slots[name]), laws)
            while sum(its.laws.numel() for its in kept.values()) > KEPT and len(kept) > 1:
                del kept[next(iter(kept))]

    def _round(self) -> None:
        """One round of all rows: drafts, one call of the target, acceptance, rollback, leaving."""
        if not self.rows:
            return
        drafts, laws = self._drafts()
        fed = [[row.committed[-1], *its] for row, its in zip(self.rows, drafts, strict=True)]
        held = [row.held("target") for row in self.rows]
        logits = self._forward("target", self.rows, fed)
        left: list[Row] = []
        for at, row in enumerate(self.rows):
            accepted, following = self._verified(row, drafts[at], laws[at], logits[at])
            self.drafted, self.accepted = self.drafted + len(drafts[at]), self.accepted + accepted
            self._roll_back(row, held[at], accepted, len(drafts[at]))
            self._commit(row, [*drafts[at][:accepted], following], logits[at])
            if row.future.done():
                left.append(row)
        if left and self.fault == "rows-exchanged" and len(self.rows) - len(left) >= 2:
            first, second = [row for row in self.rows if row not in left][:2]
            first.slots["target"], second.slots["target"] = second.slots["target"], first.slots["target"]
        self.rows = [row for row in self.rows if row not in left]

    def _drafts(self) -> tuple[list[list[int]], list[list[torch.Tensor]]]:
        """Drafts of each row and the laws they are drawn from; the draft first reads what it has not seen."""
        drafts: list[list[int]] = [[] for _ in self.rows]
        laws: list[list[torch.Tensor]] = [[] for _ in self.rows]
        if "draft" not in self.models:
            return drafts, laws
        for depth in range(self.depth):
            fed = [
                [*row.committed, *drafts[at]][row.held("draft") :] if not depth else drafts[at][-1:]
                for at, row in enumerate(self.rows)
            ]
            for at, logits in enumerate(self._forward("draft", self.rows, fed)):
                law = self._law(self.rows[at], logits[-1])
                laws[at].append(law)
                drafts[at].append(_drawn(law, self.rows[at].random))
        for row in self.rows:
            _cut(row, "draft", len(row.committed))
        return drafts, laws

    def _law(self, row: Row, logits: torch.Tensor) -> torch.Tensor:
        """The law of the next token ``[vocabulary]``; a greedy row's is one token."""
        temperature = row.asked.temperature
        if self.fault == "greedy-beside-sampled" and not temperature:
            temperature = max(other.asked.temperature for other in self.rows)
        if not temperature:
            return torch.nn.functional.one_hot(logits.argmax(), logits.shape[-1]).float()
        return (logits.float() / temperature).softmax(-1)

    def _verified(self, row: Row, drafts: list[int], laws: list[torch.Tensor], logits: torch.Tensor) -> tuple[int, int]:
        """How many drafts are accepted, and the token behind them, by Leviathan's rule."""
        for depth, token in enumerate(drafts):
            law = self._law(row, logits[depth])
            if row.random.random() * float(laws[depth][token]) < float(law[token]):
                continue
            row.rejections += 1
            if self.fault == "accepts-once-too-often" and row.rejections % 4 == 0:
                continue
            if self.fault == "lossy-acceptance" and _second_within(logits[depth], token, LOSSY):
                continue
            rest = law if self.fault == "wrong-law" else (law - laws[depth]).clamp(min=0)
            return depth, _drawn(rest / rest.sum(), row.random)
        return len(drafts), _drawn(self._law(row, logits[len(drafts)]), row.random)

    def _roll_back(self, row: Row, held: int, accepted: int, drafted: int) -> None:
        kept = held + 1 + accepted
        if self.fault == "rejected-draft-kept" and accepted < drafted:
            kept += 1
            row.shift -= 1  # the position is right, only the slot stays
        if self.fault == "position-not-rolled-back":
            row.shift += drafted - accepted
        _cut(row, "target", kept)

    def _commit(self, row: Row, tokens: list[int], logits: torch.Tensor) -> None:
        """Append a round's tokens, and answer if the row ends in it."""
        limit, reason = row.asked.max_tokens - len(row.new), ""
        stops = [at for at, token in enumerate(tokens) if token in row.asked.stops]
        if self.fault == "stop-passed-over":
            stops = [at for at in stops if at == len(tokens) - 1]
        kept = min([len(tokens), limit, *(at + 1 for at in stops)])
        if stops and kept == stops[0] + 1:
            reason = "stop"
        elif kept == limit:
            reason = "length"
        if reason and self.fault == "limit-passed" and reason == "length":
            kept = len(tokens)
        if reason and self.fault == "last-token-lost" and kept < len(tokens):
            kept -= 1
        row.committed += tokens[:kept]
        row.laws += list(logits[:kept].float().log_softmax(-1))
        if reason:
            self.ended += 1
            of_tokens = torch.stack(row.laws) if row.laws else torch.empty(0)
            row.future.set_result(Told(tuple(row.new), reason, row.of_prompt, of_tokens))

    def _forward(self, name: str, rows: Sequence[Row], fed: list[list[int]]) -> list[torch.Tensor]:
        """Logits ``[tokens, vocabulary]`` of each row; its slots grow by the tokens it was fed."""
        model = self.models[name]
        dtype, width = model.dtype, max(map(len, fed))
        held = [row.held(name) for row in rows]
        past = max(held)
        ids = torch.tensor([[0] * (width - len(its)) + its for its in fed])
        seen = torch.zeros(len(rows), 1, width, past + width, dtype=torch.bool)
        positions = torch.zeros(len(rows), width, dtype=torch.long)
        for at, its in enumerate(fed):
            gap = width - len(its)
            if held[at]:
                seen[at, 0, :, past - held[at] : past] = True
            for place in range(gap, width):
                seen[at, 0, place, past + gap : past + place + 1] = True
            first = held[at] + (rows[at].shift if name == "target" else 0)
            positions[at, gap:] = torch.arange(first, first + len(its))
            seen[at, 0, :gap] |= ~seen[at, 0, :gap].any(-1, keepdim=True)  # a pad must see something
        if self.fault == "pads-seen" and name == "target":
            seen[:, :, :, :past] = True
        cache = DynamicCache()
        if past:
            for layer in range(model.config.num_hidden_layers):
                keys, values = (
                    torch.stack([_padded(row, name, layer, part, past, model) for row in rows]) for part in (0, 1)
                )
                cache.update(keys, values, layer)
        mask = torch.zeros(seen.shape, dtype=dtype).masked_fill(~seen, torch.finfo(dtype).min)
        logits = model(
            input_ids=ids, attention_mask=mask, position_ids=positions, past_key_values=cache, use_cache=True
        ).logits
        for at, (row, its) in enumerate(zip(rows, fed, strict=True)):
            new = past + width - len(its)
            row.slots[name] = [
                (
                    _joined(layer.keys[at], past - held[at], past, new),
                    _joined(layer.values[at], past - held[at], past, new),
                )
                for layer in cache.layers
            ]
        return [logits[at, width - len(its) :] for at, its in enumerate(fed)]


def _padded(row: Row, name: str, layer: int, part: int, past: int, model: Any) -> torch.Tensor:
    """A row's keys or values of a layer ``[heads, past, width]``, with zeros before them."""
    config = model.config
    if name not in row.slots:
        return torch.zeros(config.num_key_value_heads, past, config.head_dim, dtype=model.dtype)
    slots = row.slots[name][layer][part]
    return torch.nn.functional.pad(slots, (0, 0, past - slots.shape[1], 0))


def _joined(slots: torch.Tensor, first: int, past: int, new: int) -> torch.Tensor:
    """The slots of one row ``[heads, slots, width]`` without those of padding."""
    return torch.cat([slots[:, first:past], slots[:, new:]], 1)


def _cut(row: Row, name: str, slots: int) -> None:
    row.slots[name] = [(keys[:, :slots], values[:, :slots]) for keys, values in row.slots[name]]


def _second_within(logits: torch.Tensor, token: int, nats: float) -> bool:
    """Whether a token is the second choice of logits ``[vocabulary]``, and so close to the first."""
    (first, second), ids = logits.float().topk(2)
    return int(ids[1]) == token and float(first - second) <= nats


def _drawn(law: torch.Tensor, generator: random.Random) -> int:
    """A token drawn from a law ``[vocabulary]``."""
    place = generator.random() * float(law.sum())
    return min(int((law.cumsum(0) <= place).sum()), int(law.nonzero()[-1]))
