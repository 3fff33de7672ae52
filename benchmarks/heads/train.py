"""Train the heads for the shipped pair's target: ``python -m benchmarks.heads.train``.

The text, its split and the seed are those of `benchmarks.pair.train`, and so is the aim: to predict what the target
predicts. The target is frozen, and both heads learn from the same states of it. `measure` says what comes of it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import torch
from eqcheck.reference_impls.drafters.trained import HEADS, HERE, save, untrained
from torch.nn.functional import kl_div, log_softmax

from benchmarks import pair
from benchmarks.pair.train import SEED, blocks, corpus

STEPS = 1200
ROWS = 2  # of each batch of the pair's; heads this small learn more from more steps than from larger ones
PEAK_RATE = 2e-3
WARM_UP = 20
LATER = 0.8  # a head counts so much of the one before it


def loss_of(head: Any, hidden: torch.Tensor, tokens: torch.Tensor, law: torch.Tensor) -> torch.Tensor:
    """What the head's logits differ from the target's own, which stand one column further for each place."""
    logits, total = head.propose(hidden, tokens), torch.zeros(())
    for place in range(HEADS):
        ahead = place + 1
        said = log_softmax(logits[:, :-ahead, place], -1).flatten(0, 1)
        total = total + LATER**place * kl_div(
            said, law[:, ahead:].flatten(0, 1), reduction="batchmean", log_target=True
        )
    return total


def train(steps: int = STEPS) -> None:
    """Train both heads and write them, with their losses."""
    training, _ = corpus()
    target = pair.load().target.requires_grad_(False)
    heads = untrained(target, SEED)
    curve: list[dict[str, float]] = []
    optimizers = {
        name: torch.optim.AdamW(head.parameters(), lr=PEAK_RATE, betas=(0.9, 0.95)) for name, head in heads.items()
    }
    texts: Iterable[torch.Tensor] = blocks(training, torch.Generator().manual_seed(SEED))
    for step, batch in zip(range(steps), texts, strict=False):
        ids = batch[:ROWS]
        with torch.no_grad():
            output = target(ids, output_hidden_states=True)
            law = log_softmax(output.logits, -1)
        losses = {}
        for name, head in heads.items():
            loss = loss_of(head, output.hidden_states[-1], ids, law)
            for group in optimizers[name].param_groups:
                group["lr"] = PEAK_RATE * min(1.0, (step + 1) / WARM_UP) * (1 - step / steps)
            optimizers[name].zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(head.parameters(), 1.0)
            optimizers[name].step()
            losses[name] = round(loss.item(), 4)
        if step % 10 == 0 or step == steps - 1:
            curve.append({"step": step, **losses})
            print(curve[-1], flush=True)
    for name, head in heads.items():
        save(name, head)
    made = {
        "torch": torch.__version__,
        "seed": SEED,
        "steps": steps,
        "rows": ROWS,
        "tokens": steps * ROWS * pair.CONTEXT,
        "peak_rate": PEAK_RATE,
        "parameters": {name: sum(one.numel() for one in head.parameters()) for name, head in heads.items()},
    }
    (HERE / "training.json").write_text(json.dumps({**made, "curve": curve}, indent=1) + "\n")


if __name__ == "__main__":
    train()
