"""Drafts of four sizes, distilled from the pair's target, each kept at four points of its training.

The law of `benchmarks.law` is fitted to them. All four learn in one loop, from the same text and the same answers of
the target, at a constant learning rate: so a checkpoint is what a shorter training would have ended with.
``python -m benchmarks.sizes FOLDER`` trains them; ``python -m benchmarks --law --drafts FOLDER`` measures them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.nn.functional import kl_div, log_softmax
from transformers import LlamaForCausalLM

from benchmarks.pair import CONTEXT, load
from benchmarks.pair.train import BATCH, WARM_UP, blocks, corpus, llama
from eqcheck.contract.errors import UsageError

RATE = 2e-3
SEED = 0
SHAPES = {  # width and layers; the third has the shape of the shipped draft
    name: {
        "hidden_size": width,
        "intermediate_size": 5 * width // 2,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
    }
    for name, width, layers in (("64x1", 64, 1), ("96x2", 96, 2), ("128x2", 128, 2), ("192x2", 192, 2))
}
STEPS = (128, 256, 512, 1024)  # of 4,096 tokens each: half a million tokens to four


class Checkpoint(NamedTuple):
    """A draft after ``tokens`` of training; it is trained further after the next one was taken."""

    size: str
    parameters: int
    tokens: int
    draft: Any


def drafts(target: Any, steps: tuple[int, ...] = STEPS) -> Iterator[list[Checkpoint]]:
    """The drafts of all sizes after each of so many ``steps`` of training."""
    torch.manual_seed(SEED)
    text = corpus()[0]
    students = {name: llama(shape) for name, shape in SHAPES.items()}
    groups = [{"params": student.parameters()} for student in students.values()]
    optimizer = torch.optim.AdamW(groups, lr=RATE, betas=(0.9, 0.95), weight_decay=0.1)
    for step, ids in enumerate(blocks(text, torch.Generator().manual_seed(SEED)), start=1):
        for group in optimizer.param_groups:
            group["lr"] = RATE * min(1.0, step / WARM_UP)
        with torch.no_grad():
            truth = log_softmax(target(ids).logits.flatten(0, 1), -1)
        optimizer.zero_grad()
        for student in students.values():
            proposed = log_softmax(student.train()(ids).logits.flatten(0, 1), -1)
            kl_div(proposed, truth, reduction="batchmean", log_target=True).backward()  # type: ignore[no-untyped-call]
        for group in groups:
            torch.nn.utils.clip_grad_norm_(group["params"], 1.0)
        optimizer.step()
        if step in steps:
            yield [
                Checkpoint(name, student.num_parameters(), step * BATCH * CONTEXT, student.eval())
                for name, student in students.items()
            ]
        if step == max(steps):
            return


def save(drafts_of: Iterator[list[Checkpoint]], folder: Path) -> None:
    """Write checkpoints as they come, each into a folder of its own."""
    for checkpoints in drafts_of:
        for one in checkpoints:
            one.draft.save_pretrained(folder / f"{one.size}-{one.tokens}")
            print(f"{one.size}: {one.parameters:,} parameters, {one.tokens:,} tokens", flush=True)


def saved(folder: Path) -> Iterator[Checkpoint]:
    """What `save` wrote; `UsageError` where there is nothing."""
    names = sorted(path.parent.name for path in folder.glob("*-*/config.json"))
    if not names:
        raise UsageError(f"{folder}: no drafts there; `python -m benchmarks.sizes {folder}` trains them")
    for name in names:
        size, _, tokens = name.rpartition("-")
        draft = LlamaForCausalLM.from_pretrained(folder / name).eval()
        yield Checkpoint(size, draft.num_parameters(), int(tokens), draft)


if __name__ == "__main__":
    save(drafts(load().target), Path(sys.argv[1]))
