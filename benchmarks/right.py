"""Right decoders of seven builds on each built checkpoint: in less than float32 each token is to be the function's.

    python -m benchmarks.right [--tokens 1000000] [--dtypes bfloat16 float16] [--device cuda]
                              [--builds batch blocks] [NAME ...]

Builds, by how a text reaches the model: ``alone`` (a row, a token a call), ``batch`` (16 rows at once), ``blocks`` (16
rows, K + 1 tokens a call, behind a cache), ``left`` and ``right`` (16 rows of other lengths, padded there), ``rolled
back`` (blocks whose second half is wrong, and is taken back before it is fed again), ``paged`` (blocks whose keys and
values lie in pages by hand, for models that only have these). A JSON line is printed for each.
"""

from __future__ import annotations

import argparse
import copy
import json
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from transformers import AutoModelForCausalLM, Cache
from transformers.cache_utils import DynamicLayer

from eqcheck.checkpoints import NAMES, built
from eqcheck.contract.cache_names import cache_argument, cache_of
from eqcheck.engines.construction.function import VOCABULARY, Function

ROWS, LENGTH, K, ALONE, PAGE = 16, 200, 4, 60, 16
PAGED = ("full", "qwen3", "moe", "learned", "opt", "mla")  # whose cache has one slot for each token


def texts(rng: random.Random, rows: int, length: int) -> Any:
    return torch.tensor([[rng.randrange(VOCABULARY) for _ in range(length)] for _ in range(rows)])


def best(output: Any) -> Any:
    return output.logits.argmax(-1)


def alone(model: Any, rng: random.Random) -> tuple[Any, Any]:
    ids = texts(rng, 1, ALONE)
    cache, told = None, []
    for at in range(ALONE):
        output = model(input_ids=ids[:, at : at + 1], use_cache=True, **cache_argument(model, cache))
        cache = cache_of(output)
        told.append(best(output))
    return ids, torch.cat(told, 1)


def batch(model: Any, rng: random.Random) -> tuple[Any, Any]:
    ids = texts(rng, ROWS, LENGTH)
    return ids, best(model(input_ids=ids, use_cache=False))


def blocks(model: Any, rng: random.Random) -> tuple[Any, Any]:
    ids = texts(rng, ROWS, LENGTH)
    cache, told = None, []
    for at in range(0, LENGTH, K + 1):
        output = model(input_ids=ids[:, at : at + K + 1], use_cache=True, **cache_argument(model, cache))
        cache = cache_of(output)
        told.append(best(output))
    return ids, torch.cat(told, 1)


def rolled_back(model: Any, rng: random.Random) -> tuple[Any, Any]:
    """States have no slots to crop, so the cache is copied before each block."""
    ids = texts(rng, ROWS, LENGTH // 4)
    cache, told = None, []
    for at in range(0, LENGTH // 4, K + 1):
        kept: Any = copy.deepcopy(cache)
        wrong = ids[:, at : at + K + 1].clone()
        wrong[:, K // 2 :] = (wrong[:, K // 2 :] + 1) % VOCABULARY
        model(input_ids=wrong, use_cache=True, **cache_argument(model, cache))
        output = model(input_ids=ids[:, at : at + K + 1], use_cache=True, **cache_argument(model, kept))
        cache = cache_of(output)
        told.append(best(output))
    return ids, torch.cat(told, 1)


class Pages(DynamicLayer):  # type: ignore[misc]
    """Keys and values in pages of 16 slots of a pool, in an order of their own, gathered by a table for each call."""

    def update(self, key_states: Any, value_states: Any, *args: Any, **options: Any) -> tuple[Any, Any]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            self.slots = torch.randperm(-(-LENGTH // PAGE))[:, None].mul(PAGE).add(torch.arange(PAGE)).flatten()
            self.keys, self.values = (
                states.new_zeros(*states.shape[:2], len(self.slots), states.shape[-1])
                for states in (key_states, value_states)
            )
            self.used = 0
        fed, self.used = slice(self.used, self.used + key_states.shape[2]), self.used + key_states.shape[2]
        self.keys[:, :, self.slots[fed]], self.values[:, :, self.slots[fed]] = key_states, value_states
        seen = self.slots[: self.used]
        return self.keys[:, :, seen], self.values[:, :, seen]

    def get_seq_length(self) -> int:
        return self.used if self.is_initialized else 0


def paged(model: Any, rng: random.Random) -> tuple[Any, Any]:
    ids, told = texts(rng, ROWS, LENGTH), []
    cache = Cache(layers=[Pages() for _ in range(model.config.num_hidden_layers)])
    for at in range(0, LENGTH, K + 1):
        told.append(best(model(input_ids=ids[:, at : at + K + 1], use_cache=True, **cache_argument(model, cache))))
    return ids, torch.cat(told, 1)


def padded(model: Any, rng: random.Random, left: bool) -> tuple[Any, Any]:
    """Rows are scored where they are not padded."""
    ids = texts(rng, ROWS, LENGTH)
    lengths = torch.tensor([rng.randint(LENGTH // 2, LENGTH) for _ in range(ROWS)])
    places = torch.arange(LENGTH).expand(ROWS, -1)
    real = places >= (LENGTH - lengths)[:, None] if left else places < lengths[:, None]
    positions = (real.long().cumsum(-1) - 1).clamp(min=0)
    told = best(model(input_ids=ids, attention_mask=real.long(), position_ids=positions, use_cache=False))
    return [row[kept] for row, kept in zip(ids, real, strict=True)], [
        row[kept] for row, kept in zip(told, real, strict=True)
    ]


BUILDS: dict[str, Callable[[Any, random.Random], tuple[Any, Any]]] = {
    "alone": alone,
    "batch": batch,
    "blocks": blocks,
    "left": lambda model, rng: padded(model, rng, left=True),
    "right": lambda model, rng: padded(model, rng, left=False),
    "rolled back": rolled_back,
    "paged": paged,
}


def counted(function: Function, model: Any, build: str, tokens: int) -> dict[str, Any]:
    """How many tokens were told, and how many of them were wrong."""
    rng, seen, wrong, begun = random.Random(f"right {build}"), 0, 0, time.perf_counter()
    while seen < tokens:
        with torch.no_grad():
            ids, told = BUILDS[build](model, rng)
        for row, answers in zip(ids, told, strict=True):
            right = function.choices(row.tolist())
            wrong += sum(a != b for a, b in zip(answers.tolist(), right, strict=True))
            seen += len(right)
    return {"tokens": seen, "wrong": wrong, "seconds": round(time.perf_counter() - begun, 1)}


def main() -> None:
    """Count, and print a JSON line for each checkpoint, dtype and build."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.right", description=__doc__)
    parser.add_argument("names", nargs="*", default=NAMES)
    parser.add_argument("--tokens", type=int, default=1_000_000, help="for each checkpoint and dtype")
    parser.add_argument("--dtypes", nargs="+", default=["bfloat16"])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--builds", nargs="+", choices=BUILDS, default=list(BUILDS))
    given = parser.parse_args()
    torch.set_num_threads(1)
    for line in lines(given):
        print(json.dumps(line), flush=True)


def lines(given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    slow = {"alone": given.tokens // 100, "rolled back": given.tokens // 10}
    for name in given.names:
        builds = [build for build in BUILDS if build != "paged" or name in PAGED]
        fast = (given.tokens - sum(slow.values())) // (len(builds) - len(slow)) + 1
        with tempfile.TemporaryDirectory() as folder:
            built(name).save(folder)
            for dtype in given.dtypes:
                model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()
                for build in (build for build in builds if build in given.builds):
                    with torch.device(given.device):  # of the texts
                        counts = counted(built(name).function, model.to(given.device), build, slow.get(build, fast))
                    yield {"checkpoint": name, "dtype": dtype, "device": given.device, "build": build, **counts}


if __name__ == "__main__":
    main()
