"""A tap inside vLLM on the CPU: what each query of the target saw, by the bytes of its cache, and whether it was right.

Every key and value that goes into the paged cache is remembered bit for bit, with the text it was computed from: the
tokens up to its own. When attention runs, the slots that a query sees follow from block table and sequence length; what
lies in a slot names its writes, whatever was moved, freed, shared or overwritten in between. A query at position p is
right if it sees p + 1 different slots, and slot j holds, in every layer, a write whose text is the query's own up to j.
So an entry that another request wrote is right where the texts are equal, as with prefix caching.

In the engine's own process, ``with tapped() as tap`` is enough. As a plug-in of vLLM (entry point group
``vllm.general_plugins``, function `plug_in`) it works in whatever process the engine runs: it writes a line of JSON for
each step to the file that ``EQCHECK_VLLM_TAP`` names, and does nothing if that is not set. It needs nothing of
eqcheck. It does not see the draft model, what a kernel does with what it is given, or layers with a sliding window.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

DRAFT = "draft_model"  # begins the names of the draft's layers


@dataclass(frozen=True)
class Write:
    """An entry: written in ``step`` for a request, computed from ``text``, which ends with its own token."""

    step: int
    request: str
    text: tuple[int, ...]

    @property
    def position(self) -> int:
        return len(self.text) - 1


@dataclass(frozen=True)
class Seen:
    """A slot that a query sees in one layer, and the writes that its bytes are; none where nobody wrote them."""

    slot: int
    writes: tuple[Write, ...]


@dataclass(frozen=True)
class Query:
    """A query of a step in one layer: the request, its text, and what it sees, from logical slot 0 on."""

    request: str
    layer: str
    text: tuple[int, ...]
    seen: tuple[Seen, ...]

    def fault(self) -> tuple[str, str] | None:
        """The first thing that is wrong with what it sees: its kind as eqcheck names it, and what it is.

        >>> one, other = Write(0, "0", (7,)), Write(0, "0", (7, 9))
        >>> Query("0", "l", (7, 8), (Seen(4, (one,)), Seen(5, (other,)))).fault()
        ('cache/stale-entry', 'slot 1 holds another text: of request 0, position 1, token 9')
        """
        if len(self.seen) != len(self.text):
            kind = "mask/future-visible" if len(self.seen) > len(self.text) else "mask/token-hidden"
            return kind, f"{len(self.seen)} slots are seen at position {len(self.text) - 1}"
        if len({slot.slot for slot in self.seen}) < len(self.seen):
            return "cache/duplicate-entry", "a slot is seen twice"
        for place, slot in enumerate(self.seen):
            if not slot.writes:
                return "cache/missing-entry", f"slot {place} holds nothing that was written"
            if not any(write.text == self.text[: place + 1] for write in slot.writes):
                return self._other(place, slot.writes[-1])
        return None

    def _other(self, place: int, write: Write) -> tuple[str, str]:
        whose = f"of request {write.request}, position {write.position}, token {write.text[-1]}"
        if write.request != self.request:
            return "cache/wrong-row", f"slot {place} holds another request's text: {whose}"
        if write.position != place:
            return "cache/misaligned", f"slot {place} holds another position: {whose}"
        return "cache/stale-entry", f"slot {place} holds another text: {whose}"


@dataclass
class Step:
    """One forward of the target: its queries, of all layers."""

    number: int
    queries: list[Query] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Plain data; of each query, what is wrong with it."""
        queries = [
            {
                **asdict(query),
                "seen": [[one.slot, *map(asdict, one.writes)] for one in query.seen],
                "fault": query.fault(),
            }
            for query in self.queries
        ]
        return {"step": self.number, "queries": queries}


class Tap:
    """The writes since it began, by layer and bytes, and the steps that were seen."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.writes: dict[tuple[str, bytes], list[Write]] = {}
        self.runner: Any = None
        self.number = 0
        self.file: Any = None

    def forget(self) -> None:
        """Begin anew; only while no request runs and no prefix is kept."""
        self.steps, self.writes, self.number = [], {}, 0

    def begin(self, runner: Any) -> None:
        """A step begins."""
        self.end()
        self.runner, self.number = runner, self.number + 1
        self.steps.append(Step(self.number))

    def end(self) -> None:
        """Hand the last step to the file, if there is one, and keep no more of it."""
        if self.file is not None and self.steps:
            for step in self.steps:
                self.file.write(json.dumps(step.to_dict()) + "\n")
            self.file.flush()
            self.steps = []

    def attend(self, layer: str, keys: Any, values: Any, cache: Any, metadata: Any) -> None:
        """A layer's attention over the paged cache, in which its new keys and values lie already."""
        if self.runner is None or layer.startswith(DRAFT) or metadata is None:
            return
        batch, ids = self.runner.input_batch, self.runner.input_ids.gpu.tolist()
        bounds, lengths = metadata.query_start_loc.tolist(), metadata.seq_lens.tolist()
        rows = []
        for row, request in enumerate(batch.req_ids[: len(lengths)]):
            first, last = bounds[row], bounds[row + 1]
            start = int(batch.num_computed_tokens_cpu[row])  # the scheduler's word, not the metadata's
            before = batch.token_ids_cpu[row, :start].tolist()
            texts = [(*before, *ids[first : index + 1]) for index in range(first, last)]
            for entry, text in zip(_bytes(keys[first:last], values[first:last]), texts, strict=True):
                self.writes.setdefault((layer, entry), []).append(Write(self.number, request, tuple(text)))
            rows.append((request, texts, lengths[row]))
        for row, (request, texts, length) in enumerate(rows):
            slots = _slots(metadata.block_table[row].tolist(), length, cache.shape[2])
            held = [
                Seen(slot, tuple(self.writes.get((layer, entry), ())))
                for slot, entry in zip(slots, _held(cache, slots), strict=True)
            ]
            for number, text in enumerate(texts):
                visible = held[: length - len(texts) + number + 1]
                self.steps[-1].queries.append(Query(request, layer, tuple(text), tuple(visible)))

    @property
    def queries(self) -> int:
        """Return how many queries were read, of all layers."""
        return sum(len(step.queries) for step in self.steps)

    def faults(self) -> list[tuple[str, str]]:
        """The faults, by kind, in the order in which they were seen; the first is the cause of the others."""
        return [
            (
                fault[0],
                f"step {step.number}, request {query.request}, position {len(query.text) - 1}, {query.layer}: "
                f"{fault[1]}",
            )
            for step in self.steps
            for query in step.queries
            if (fault := query.fault())
        ]


def _slots(blocks: list[int], length: int, size: int) -> list[int]:
    """The physical slots of so many logical ones."""
    return [blocks[place // size] * size + place % size for place in range(length)]


def _held(cache: Any, slots: list[int]) -> list[bytes]:
    """The contents of slots; a block holds its keys by channel, its values by slot."""
    import torch

    blocks, heads, size, width = cache.shape
    both = cache.view(blocks, heads, 2, size * width // 2)
    keys = both[:, :, 0].view(blocks, heads, width // 2, size)
    values = both[:, :, 1].view(blocks, heads, size, width // 2)
    block, place = torch.tensor(slots) // size, torch.tensor(slots) % size
    return _bytes(keys[block, :, :, place], values[block, :, place])


def _bytes(keys: Any, values: Any) -> list[bytes]:
    """Keys and values ``[entries, heads, head size]``, bit for bit."""
    import torch

    entries = torch.stack([keys, values], 1).contiguous().view(torch.uint8).numpy()
    return [entry.tobytes() for entry in entries]


@contextmanager
def tapped() -> Iterator[Tap]:
    """A tap on the attention of the CPU, taken out again at the end."""
    tap = Tap()
    undo = install(tap)
    try:
        yield tap
    finally:
        undo()


def install(tap: Tap) -> Any:
    """Wrap the engine's methods; returns what puts them back."""
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackendImpl
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    attend, execute = CPUAttentionBackendImpl.forward, GPUModelRunner.execute_model

    def forward(
        self: Any, layer: Any, query: Any, key: Any, value: Any, kv_cache: Any, metadata: Any, **rest: Any
    ) -> Any:
        tap.attend(layer.layer_name, key, value, kv_cache, metadata)
        return attend(self, layer, query, key, value, kv_cache, metadata, **rest)

    def execute_model(self: Any, scheduled: Any, *rest: Any, **options: Any) -> Any:
        if scheduled.total_num_scheduled_tokens:
            tap.begin(self)
        return execute(self, scheduled, *rest, **options)

    def undo() -> None:
        CPUAttentionBackendImpl.forward, GPUModelRunner.execute_model = attend, execute
        tap.end()

    CPUAttentionBackendImpl.forward, GPUModelRunner.execute_model = forward, execute_model
    return undo


def plug_in() -> None:
    """The entry point that vLLM calls in each of its processes."""
    path = os.environ.get("EQCHECK_VLLM_TAP")
    if path:
        import atexit

        tap = Tap()
        tap.file = open(path, "a", encoding="utf-8")  # noqa: SIM115 - as long as the process
        atexit.register(install(tap))
