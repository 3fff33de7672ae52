"""One engine on one workload, timed and verified: throughput, where the time goes, memory."""

from __future__ import annotations

import ctypes
import functools
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks.workload import Job, Workload
from eqcheck.contract.decoders import Decoder, Generate, Request, RowOptions

Rows = list[list[int]]


class Failure(NamedTuple):
    """Why a decoder's speed is not shown: it is ``wrong``, or there was an ``error``."""

    kind: str
    message: str


class Clock:
    """How long the forwards of target and draft took, in seconds, and how many there were.

    Those that are fed more than ``most`` columns count as ``prefill``, where that is given.
    """

    def __init__(self, most: int | None = None) -> None:
        self.most = most
        self.seconds = {"verify": 0.0, "draft": 0.0} | ({"prefill": 0.0} if most else {})
        self.calls = dict.fromkeys(self.seconds, 0)

    @contextmanager
    def watching(self, target: Any, draft: Any) -> Iterator[None]:
        """Time every forward of the two while the block runs."""
        models = {"verify": target, "draft": draft}
        try:
            for name, model in models.items():
                model.forward = self._timed(name, model.forward, model.device)
            yield
        finally:
            for model in models.values():
                vars(model).pop("forward", None)

    def _timed(self, name: str, forward: Callable[..., Any], device: torch.device) -> Callable[..., Any]:
        @functools.wraps(forward)
        def timed(*args: Any, **kwargs: Any) -> Any:
            began = now(device)
            try:
                return forward(*args, **kwargs)
            finally:
                fed = kwargs.get("input_ids", args[0] if args else None)
                wide = self.most is not None and fed is not None and fed.shape[1] > self.most
                self.seconds["prefill" if wide else name] += now(device) - began
                self.calls["prefill" if wide else name] += 1

        return timed


_now: ContextVar[Callable[[], float]] = ContextVar("now", default=time.perf_counter)


def now(device: torch.device) -> float:
    """The time, when all that was asked of the device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return _now.get()()


@contextmanager
def processor_time(device: torch.device) -> Iterator[None]:
    """Count the seconds of this process alone, on one thread, where the processor computes: others do not disturb."""
    if device.type != "cpu":
        yield
        return
    threads, token = torch.get_num_threads(), _now.set(time.process_time)
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        _now.reset(token)


class Timed:
    """An engine at a batch size: a decoder's ``engine`` where it has one, else the decoder batch by batch."""

    def __init__(
        self, decoder: Decoder, generate: Generate, target: Any, draft: Any, k: int, batch: int, **settings: Any
    ) -> None:
        self.generate, self.models, self.k, self.batch = generate, (target, draft), k, batch
        self.committed: list[list[int]] = []  # by prompt, the tokens that each round of an engine gave
        self.engine = (
            None
            if decoder.engine is None
            else decoder.engine(target, draft, num_draft_tokens=k, batch_size=batch, **settings)
        )

    def __call__(self, prompts: Sequence[Job]) -> Rows:
        """New tokens of each prompt. A decoder with one limit per batch goes to the greatest, and rows are cut."""
        outputs: Rows = []
        if self.engine is not None:
            outputs, self.committed = [[] for _ in prompts], [[] for _ in prompts]
            for update in self.engine.stream(one._replace(id=number) for number, one in enumerate(prompts)):
                outputs[update.id] += update.token_ids
                self.committed[update.id].append(len(update.token_ids))
            return outputs
        for start in range(0, len(prompts), self.batch):
            some = prompts[start : start + self.batch]
            limit = max(one.max_new_tokens for one in some)
            alike = (RowOptions(limit),) * len(some)
            request = Request([list(one.token_ids) for one in some], limit, self.k, (), 0, "left", rows=alike)
            with torch.no_grad():
                rows = self.generate(*self.models, request)
            outputs += [row[: one.max_new_tokens] for row, one in zip(rows, some, strict=True)]
        return outputs

    def measure(self, prompts: Sequence[Job], clock: Clock | None = None) -> tuple[dict[str, Any], Rows]:
        """Decode once and say how fast: tokens a second, shares of the time, counts, memory."""
        target, draft = self.models
        clock = clock or Clock()
        memory = Memory(target.device)
        with clock.watching(target, draft):
            began = now(target.device)
            outputs = self(prompts)
            total = now(target.device) - began
        tokens = sum(map(len, outputs))
        found: dict[str, Any] = {
            "tokens": tokens,
            "seconds": round(total, 4),
            "tokens_per_second": round(tokens / total, 2),
            "peak_memory_mb": memory.peak(),
        }
        stats = self.engine.stats if self.engine is not None else None
        moved = stats.seconds if stats else {"realign": 0.0, "group": 0.0}
        shares = {**clock.seconds, "realign": moved["realign"], "group": moved["group"]}
        shares["other"] = total - sum(shares.values())
        found |= {f"{name}_share": round(seconds / total, 4) for name, seconds in shares.items()}
        found |= {f"{name}_calls": count for name, count in clock.calls.items()}
        if stats:
            found |= {
                "tokens_per_verify": round(stats.tokens_per_verify, 3),
                "accepted_share": round(stats.acceptance, 4),
                "grouping_rate": None if stats.grouping_rate is None else round(stats.grouping_rate, 4),
                "realignments": stats.realignments,
                "prefill_calls": stats.prefill_calls,
            }
        else:
            found["realign_share"] = None  # part of "other": only an engine can tell
        return found, outputs


def judged(
    workload: Workload,
    prompts: Sequence[Job],
    make: Callable[[], Any],
    measure: Callable[[Any, Sequence[Job]], tuple[Any, Any]],
) -> Any:
    """What is measured of what ``make`` makes, if that does not fail and its outputs are right; else a `Failure`."""
    try:
        found, outputs = measure(make(), prompts)
    except Exception as error:
        return Failure("error", f"raised {type(error).__name__} ({error})")
    wrong = workload.wrong(outputs, prompts)
    return Failure("wrong", f"emits wrong tokens ({wrong})") if wrong else found


class Memory:
    """The most memory in use beyond what was in use at the start, in MB: of the GPU, or of this process on Linux."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
            self.before = torch.cuda.memory_allocated(device) / 2**20
            return
        try:
            ctypes.CDLL("libc.so.6").malloc_trim(0)
            Path("/proc/self/clear_refs").write_text("5")  # begins the high-water mark anew
        except OSError:
            self.before = float("nan")
        else:
            self.before = _high_water()

    def peak(self) -> float | None:
        if self.device.type == "cuda":
            return round(torch.cuda.max_memory_allocated(self.device) / 2**20 - self.before, 1)
        return None if self.before != self.before else round(_high_water() - self.before, 1)


def _high_water() -> float:
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) / 2**10
