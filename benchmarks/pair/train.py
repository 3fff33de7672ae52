"""Train the small real pair on the standard library's own sources: ``python -m benchmarks.pair.train``.

Byte-level Llamas: the target learns to predict the next byte, the draft to predict what the target predicts
(knowledge distillation, arXiv 1503.02531), in one loop. One file in twenty is held out, by the hash of its name.
"""

from __future__ import annotations

import hashlib
import json
import platform
import sysconfig
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from torch.nn.functional import cross_entropy, kl_div, log_softmax
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.pair import BYTES, CONTEXT, END

HERE = Path(__file__).parent
SEED = 0
STEPS = 2400
BATCH = 8
PEAK_RATE = 3e-3
WARM_UP = 100
SHAPES = {
    "target": {"hidden_size": 192, "intermediate_size": 512, "num_hidden_layers": 8, "num_attention_heads": 4},
    "draft": {"hidden_size": 128, "intermediate_size": 320, "num_hidden_layers": 2, "num_attention_heads": 4},
}


def corpus() -> tuple[torch.Tensor, torch.Tensor]:
    """The bytes of the standard library's modules, int64: to train on, and held out; ``END`` closes each file."""
    library = Path(sysconfig.get_paths()["stdlib"])
    parts: dict[bool, list[bytes]] = {False: [], True: []}
    for path in sorted(library.rglob("*.py")):
        name = path.relative_to(library)
        if not {"site-packages", "dist-packages", "test", "tests", "idle_test"} & set(name.parts):
            held_out = hashlib.sha256(name.as_posix().encode()).digest()[0] % 20 == 0
            parts[held_out].append(path.read_bytes().replace(bytes([END]), b"") + bytes([END]))
    training, held = (torch.frombuffer(bytearray(b"".join(parts[side])), dtype=torch.uint8) for side in (False, True))
    return training.long(), held.long()


def model(name: str) -> Any:
    """The target or the draft with its initial weights."""
    return llama(SHAPES[name])


def llama(shape: Mapping[str, int]) -> Any:
    """A byte-level Llama of this shape with its initial weights."""
    config = LlamaConfig(
        vocab_size=BYTES,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=END,
        pad_token_id=END,
        **shape,
    )
    return LlamaForCausalLM(config)


def blocks(data: torch.Tensor, generator: torch.Generator) -> Iterator[torch.Tensor]:
    """Batches ``[BATCH, CONTEXT]`` from random places, without end."""
    while True:
        starts = torch.randint(len(data) - CONTEXT, (BATCH,), generator=generator)
        yield torch.stack([data[start : start + CONTEXT] for start in starts.tolist()])


@torch.no_grad()
def held_out_loss(target: Any, draft: Any, data: torch.Tensor) -> dict[str, float]:
    """Nats per byte of both, and how often their first choices agree, on the first 64 kB held out."""
    ids = data[: 128 * CONTEXT].view(-1, BATCH, CONTEXT)
    losses: dict[str, list[torch.Tensor]] = {"target": [], "draft": [], "agreement": []}
    for batch in ids:
        logits = {"target": target(batch).logits[:, :-1], "draft": draft(batch).logits[:, :-1]}
        for name, its in logits.items():
            losses[name].append(cross_entropy(its.flatten(0, 1), batch[:, 1:].flatten()))
        losses["agreement"].append((logits["target"].argmax(-1) == logits["draft"].argmax(-1)).float().mean())
    return {name: round(torch.stack(values).mean().item(), 4) for name, values in losses.items()}


def train() -> None:
    """Train both, the learning rate falling linearly to zero, and write the models and the loss curve."""
    torch.manual_seed(SEED)
    training, held = corpus()
    target, draft = model("target"), model("draft")
    groups = [{"params": target.parameters()}, {"params": draft.parameters()}]
    optimizer = torch.optim.AdamW(groups, lr=PEAK_RATE, betas=(0.9, 0.95), weight_decay=0.1)
    curve: list[dict[str, float]] = []
    for step, ids in enumerate(blocks(training, torch.Generator().manual_seed(SEED))):
        if step % 200 == 0 or step == STEPS:
            curve.append({"step": step, **held_out_loss(target, draft, held)})
            print(curve[-1], flush=True)
        if step == STEPS:
            break
        for group in optimizer.param_groups:
            group["lr"] = PEAK_RATE * min(1.0, (step + 1) / WARM_UP) * (1 - step / STEPS)
        logits = target(ids).logits[:, :-1].flatten(0, 1)
        loss = cross_entropy(logits, ids[:, 1:].flatten())
        truth = log_softmax(logits.detach(), -1)
        proposed = log_softmax(draft(ids).logits[:, :-1].flatten(0, 1), -1)
        optimizer.zero_grad()
        total = loss + kl_div(proposed, truth, reduction="batchmean", log_target=True)
        total.backward()  # type: ignore[no-untyped-call]
        for group in groups:
            torch.nn.utils.clip_grad_norm_(group["params"], 1.0)
        optimizer.step()
    for name, trained in (("target", target), ("draft", draft)):
        trained.half().save_pretrained(HERE / name)
    made_with = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "training_bytes": len(training),
        "held_out_bytes": len(held),
        "seed": SEED,
        "steps": STEPS,
        "batch": BATCH,
        "context": CONTEXT,
        "peak_rate": PEAK_RATE,
        "parameters": {"target": target.num_parameters(), "draft": draft.num_parameters()},
    }
    (HERE / "training.json").write_text(json.dumps({**made_with, "curve": curve}, indent=1) + "\n")


if __name__ == "__main__":
    train()
