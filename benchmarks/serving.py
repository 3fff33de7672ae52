"""What rounding and faults do to the built checkpoints: writes `docs/serving-table.md`. Needs a few minutes.

    python -m benchmarks.serving [NAME ...]

Each checkpoint reads random tokens in several dtypes, and in bfloat16 with keys and values, or weights, rounded to
float8. Then faults are put into its context. With names, only their lines are measured, and printed.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, DynamicCache

from eqcheck.contract.cache_names import cache_argument
from eqcheck.engines.checkpoints.continuations import FunctionTruth
from eqcheck.engines.construction.folder import built
from eqcheck.engines.construction.function import CODES
from eqcheck.engines.construction.layouts import LAYOUTS

Tensor = torch.Tensor
PAGE = Path(__file__).parents[1] / "docs" / "serving-table.md"
ROWS, LENGTH = 50, 400  # 20,000 tokens a setting
BATCH = 10
BEGIN, AFTER = 280, 32  # where a fault begins, and the tokens that are read behind it
NEAR = 64  # distances at which a slot is hidden from a single query
SETTINGS = {
    "float64": (torch.float64, None, None),
    "float16": (torch.float16, None, None),
    "bfloat16": (torch.bfloat16, None, None),
    "e4m3 keys, values": (torch.bfloat16, torch.float8_e4m3fn, None),
    "e5m2 keys, values": (torch.bfloat16, torch.float8_e5m2, None),
    "e4m3 weights": (torch.bfloat16, None, 1.0),
    "e4m3 weights, scaled": (torch.bfloat16, None, 448.0),
}


class RoundedCache(DynamicCache):  # type: ignore[misc]
    """A cache that holds keys and values in another dtype."""

    def __init__(self, config: Any, dtype: torch.dtype) -> None:
        super().__init__(config=config)
        self.dtype = dtype

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **options: Any) -> Any:
        keys, values = (states.to(self.dtype).to(states.dtype) for states in (key_states, value_states))
        return super().update(keys, values, *args, **options)


@cache
def folder(name: str) -> str:
    """A folder with the checkpoint."""
    path = tempfile.mkdtemp()
    built(name).save(path)
    return path


def loaded(name: str, dtype: torch.dtype, largest: float | None = None) -> Any:
    """The model. With ``largest`` its matrices are rounded to e4m3: as they are if it is 1, else scaled up to it."""
    options = {"experts_implementation": "eager"} if name == "moe" else {}
    model: Any = AutoModelForCausalLM.from_pretrained(folder(name), dtype=dtype, **options).eval()
    if name == "learned":  # its matrices are `[in, out]`, which takes thirty times as long in float16 on a CPU
        for layer in model.transformer.h:
            for part in (layer.attn.c_attn, layer.attn.c_proj, layer.mlp.c_fc, layer.mlp.c_proj):
                part.weight.data = part.weight.data.T.contiguous().T
    tables = [module for module in model.modules() if isinstance(module, torch.nn.Embedding)]
    kept = {id(table.weight) for table in (*tables, model.lm_head)}
    for weight in model.parameters():
        if largest is not None and weight.dim() >= 2 and id(weight) not in kept:
            scale = 1.0 if largest == 1 else float(weight.abs().max()) / largest
            weight.data = ((weight.data.float() / scale).to(torch.float8_e4m3fn).float() * scale).to(dtype)
    return model


def texts(rows: int, length: int, seed: str) -> Tensor:
    """Rows of random tokens."""
    source = random.Random(seed)
    return torch.tensor([[source.randrange(CODES) for _ in range(length)] for _ in range(rows)])


@torch.inference_mode()
def rounding(name: str, setting: str) -> dict[str, float]:
    """How many of the tokens differ from the function's, the least margin, and how far a score is off at most."""
    dtype, stored, largest = SETTINGS[setting]
    model, truth = loaded(name, dtype, largest), FunctionTruth(built(name).function)
    codes = torch.tensor(truth.function.tokens_out)
    changed, margin, noise = 0, float("inf"), 0.0
    rows = ROWS // 5 if dtype == torch.float64 else ROWS
    for ids in texts(rows, LENGTH, "rounding").view(-1, BATCH, LENGTH):
        options = {"use_cache": True, **cache_argument(model, RoundedCache(model.config, stored))} if stored else {}
        scores = model(ids, **options).logits.double()
        right = torch.tensor([truth.function.choices(row) for row in ids.tolist()])
        chosen = scores.gather(-1, right[..., None])[..., 0]
        apart = chosen - scores.scatter(-1, right[..., None], -float("inf")).amax(-1)
        changed, margin = changed + int((apart <= 0).sum()), min(margin, float(apart.min()))
        noise = max(noise, float((scores - truth.table[right])[..., codes].abs().max()))
    return {"changed": changed, "margin": margin, "noise": noise}


Fault = Callable[[Tensor, random.Random], dict[str, Any]]


def shifted(ids: Tensor, source: random.Random) -> dict[str, Any]:
    """Positions are one too great from a token on."""
    places = torch.arange(ids.shape[1])
    return {"input_ids": ids, "position_ids": (places + (places >= BEGIN)).expand_as(ids)}


def hidden(ids: Tensor, source: random.Random) -> dict[str, Any]:
    """No later query sees a token."""
    seen = torch.ones_like(ids)
    seen[:, BEGIN - 1] = 0
    return {"input_ids": ids, "attention_mask": seen, "position_ids": torch.arange(ids.shape[1]).expand_as(ids)}


def rejected(ids: Tensor, source: random.Random) -> dict[str, Any]:
    """A rejected draft stays in the context, at the position of the token that is there instead."""
    places = torch.arange(ids.shape[1])
    draft = (ids[:, BEGIN, None] + source.randrange(1, CODES)) % CODES
    return {
        "input_ids": torch.cat([ids[:, :BEGIN], draft, ids[:, BEGIN:]], 1),
        "position_ids": torch.cat([places[: BEGIN + 1], places[BEGIN:]]).expand(len(ids), -1),
    }


def foreign(ids: Tensor, source: random.Random) -> dict[str, Any]:
    """An entry of the context is that of another token."""
    ids = ids.clone()
    ids[:, BEGIN - 1] = (ids[:, BEGIN - 1] + source.randrange(1, CODES)) % CODES
    return {"input_ids": ids, "position_ids": torch.arange(ids.shape[1]).expand_as(ids)}


def blind(ids: Tensor, source: random.Random, distance: int) -> dict[str, Any]:
    """A single query does not see the slot at a distance."""
    length = ids.shape[1]
    seen = torch.ones(length, length).tril()
    seen[BEGIN, BEGIN - distance] = 0
    mask = torch.where(seen > 0, 0.0, -1e30).bfloat16().expand(len(ids), 1, length, length)
    return {"input_ids": ids, "attention_mask": mask, "position_ids": torch.arange(length).expand_as(ids)}


FAULTS: dict[str, Fault] = {
    "positions + 1": shifted,
    "a token hidden": hidden,
    "a rejected draft seen": rejected,
    "an entry of another token": foreign,
}


@torch.inference_mode()
def told(model: Any, name: str, fault: Fault, rows: int, seed: str) -> Tensor:
    """``[rows, AFTER]``: whether the token is another than the function's, from the fault on."""
    ids = texts(rows, BEGIN + AFTER, seed)
    right = torch.tensor([built(name).function.choices(row) for row in ids.tolist()])
    chosen: Tensor = model(**fault(ids, random.Random(seed))).logits.argmax(-1)
    return chosen[:, -AFTER:] != right[:, -AFTER:]


def sensitivity(name: str, setting: str) -> dict[str, tuple[float, float]]:
    """By fault, the share of tokens that change, and of rows that differ within 8 tokens.

    A slot that a single query does not see changes few tokens but the next, so the share is that of the next tokens.
    """
    model = loaded(name, torch.bfloat16)
    shares = {}
    for label, fault in FAULTS.items():
        other = torch.cat([told(model, name, fault, BATCH, f"{label} {part}") for part in range(4)])
        shares[label] = (float(other.double().mean()), float(other[:, :8].any(1).double().mean()))
    heads = [head for layer in built(name).function.layers for head in layer]
    if any(head.window for head in heads) or len(set(map(len, built(name).function.layers))) > 1:
        return shares
    once = [told(model, name, partial(blind, distance=1 + n), 2, f"blind {n}") for n in range(NEAR)]
    other = torch.cat(once)
    shares["a slot hidden once"] = (float(other[:, 0].double().mean()), float(other[:, :8].any(1).double().mean()))
    return shares


def measured(job: tuple[str, str]) -> Any:
    """A cell of the table: of rounding, or of all faults."""
    torch.set_num_threads(1)
    name, setting = job
    return sensitivity(name, setting) if setting == "faults" else rounding(name, setting)


def table(heads: list[str], lines: list[list[str]]) -> str:
    """A table of Markdown."""
    return "\n".join("| " + " | ".join(line) + " |" for line in (heads, ["---"] * len(heads), *lines)) + "\n"


def page(names: list[str], cells: dict[tuple[str, str], Any]) -> str:
    """The page."""

    def margin(cell: dict[str, float]) -> str:
        lost = f" ({int(cell['changed'])} wrong)" if cell["changed"] else ""
        return f"{cell['margin']:.2f}{lost}"

    def shares(cell: dict[str, tuple[float, float]], label: str) -> str:
        return f"{cell[label][0]:.0%}, {cell[label][1]:.0%}" if label in cell else "-"

    settings, faults = list(SETTINGS), [*FAULTS, "a slot hidden once"]
    margins = [[f"`{name}`", *(margin(cells[name, setting]) for setting in settings)] for name in names]
    noises = [[f"`{name}`", *(f"{cells[name, setting]['noise']:.2g}" for setting in settings)] for name in names]
    lines = [[f"`{name}`", *(shares(cells[name, "faults"], label) for label in faults)] for name in names]
    return f"""# Built checkpoints in numbers

`python -m benchmarks.serving` writes this page. `eqcheck checkpoint list` says what each checkpoint is.

## Margins

The least margin of the right token over {ROWS * LENGTH:,} random tokens (a fifth of them in float64); in exact
arithmetic it is 1. Where tokens were wrong, their number stands beside it: do not judge an engine with this checkpoint
in that setting.

Keys and values are rounded to float8 as they enter the cache, the model computes in bfloat16. Weights are rounded to
float8 (e4m3) as they are, or scaled so that the greatest of a matrix is the greatest number of e4m3.

{table(["checkpoint", *settings], margins)}
## Noise

The farthest that the score of a token was from the exact one. Zero means that also the law of a sampled token is exact.

{table(["checkpoint", *settings], noises)}
## Faults

In bfloat16: the share of the next {AFTER} tokens that change, and the share of rows that differ within 8 tokens. For a
slot hidden once, at distances 1 to {NEAR}, the first number is the share of the query's own tokens that change.

{table(["checkpoint", *faults], lines)}"""


def main(names: list[str]) -> None:
    chosen = names or list(LAYOUTS)
    jobs = [(name, setting) for name in chosen for setting in (*SETTINGS, "faults")]
    with ProcessPoolExecutor(min(os.cpu_count() or 1, 8)) as pool:
        cells = dict(zip(jobs, pool.map(measured, jobs), strict=True))
    text = page(chosen, cells)
    if names:
        print(text)
    else:
        PAGE.write_text(text)


if __name__ == "__main__":
    main(sys.argv[1:])
