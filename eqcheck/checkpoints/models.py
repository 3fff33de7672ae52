"""The pair of models that engines load: a tiny Llama with random weights, and a draft that is a noisy copy of it.

Nothing is trained or fetched. The weights are spread widely (untied, standard deviation 0.3), so that greedy output is
varied and depends on the whole context; on the customary 0.02 most faults of positions and masks change no token.
`measure` says by how much, and the tests hold the figures.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from eqcheck.case.engine import POSITIONS, VOCAB_SIZE

_SEED, _SPREAD, _NOISE = 1, 0.3, 0.013


@dataclass(frozen=True)
class Checkpoint:
    """Two folders that `transformers` and engines can load; ``name`` changes with the weights."""

    name: str
    target: Path
    draft: Path

    def models(self, dtype: torch.dtype = torch.float64) -> tuple[Any, Any]:
        """Target and draft as `transformers` models."""
        return _load(self.target, dtype), _load(self.draft, dtype)


@lru_cache(maxsize=8)
def _load(folder: Path, dtype: torch.dtype) -> Any:
    from safetensors.torch import load_file
    from transformers import LlamaConfig, LlamaForCausalLM

    # In eager attention the softmax is taken in float32 whatever the dtype, and a pad that sees nothing is NaN.
    model = LlamaForCausalLM(LlamaConfig.from_pretrained(folder, attn_implementation="sdpa"))
    weights = load_file(folder / "model.safetensors")
    model.load_state_dict({name: weight.to(dtype) for name, weight in weights.items()}, assign=True)
    return model.eval()


@lru_cache(maxsize=1)
def checkpoint() -> Checkpoint:
    """The pair, built on first use and kept in the user's cache folder.

    >>> checkpoint().target.name
    'target'
    """
    pair = target_model(), noisy(target_model())
    name = f"llama-{_digest(*pair)}"
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "eqcheck" / name
    if not folder.is_dir():
        _save(folder)
    return Checkpoint(name, folder / "target", folder / "draft")


def _save(folder: Path) -> None:
    """Write both models; another process may do the same at the same time."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        build(temporary)
        os.rename(temporary, folder)
    except OSError:
        if not folder.is_dir():
            raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def build(folder: Path) -> tuple[str, str]:
    """Write target and draft into a folder; returns where they are."""
    target = target_model()
    for name, model in (("target", target), ("draft", noisy(target))):
        model.save_pretrained(folder / name)
        tokenizer().save(str(folder / name / "tokenizer.json"))
        (folder / name / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    return str(folder / "target"), str(folder / "draft")


def config() -> Any:
    """A tiny Llama."""
    from transformers import LlamaConfig

    return LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=POSITIONS,
        tie_word_embeddings=False,
        initializer_range=_SPREAD,
        bos_token_id=None,
        eos_token_id=None,
    )


def target_model() -> Any:
    """The target: random weights, widely spread."""
    import torch
    from transformers import LlamaForCausalLM

    model = LlamaForCausalLM(config()).float().eval()
    generator = torch.Generator().manual_seed(_SEED)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" not in name:
                parameter.copy_(normal(parameter.shape, _SPREAD, generator))
    return model


def noisy(model: Any) -> Any:
    """The draft: the target with noise on its weights."""
    import torch
    from transformers import LlamaForCausalLM

    draft = LlamaForCausalLM(model.config).float().eval()
    draft.load_state_dict(model.state_dict())
    generator = torch.Generator().manual_seed(_SEED)
    with torch.no_grad():
        for parameter in draft.parameters():
            parameter.add_(normal(parameter.shape, _NOISE, generator))
    return draft


def normal(shape: Any, spread: float, generator: Any) -> Any:
    """Float32 noise of a multiple of 16 numbers: what ``normal_`` draws on x86 with AVX2, on every machine.

    Logarithms, sines and cosines of libraries differ in the last bit, and ``normal_`` itself draws other numbers on a
    CPU without AVX2. Here the Box-Muller transform is written out in additions, products and roots, which round alike
    everywhere; the polynomials are those of Cephes, as torch evaluates them.

    >>> normal((16,), 1.0, torch.Generator().manual_seed(1))[:3].tolist()
    [-1.5255959033966064, -0.7502318024635315, -0.6539809107780457]
    """
    import numpy as np
    import torch

    def fused(a: Any, b: Any, c: Any) -> Any:
        return (a.astype(np.float64) * b + c).astype(np.float32)

    def polynomial(x: Any, *coefficients: float) -> Any:
        first, *others = map(np.float32, coefficients)
        value = np.full_like(x, first)
        for coefficient in others:
            value = fused(value, x, coefficient)
        return value

    number = np.float32
    uniform, angle = torch.rand(shape, generator=generator).numpy().reshape(-1, 2, 8).swapaxes(0, 1)
    x, exponent = np.frexp(number(1) - uniform)
    low = x < number(0.5**0.5)
    exponent = exponent.astype(number) - low
    x = np.where(low, x - number(1) + x, x - number(1))
    log = x * polynomial(
        x, 7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1, -1.6668057665e-1,
        2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1,
    )  # fmt: skip
    square = x * x
    log = fused(log, square, exponent * number(-2.12194440e-4)) - square * number(0.5)
    radius = np.sqrt(number(-2) * (x + log + exponent * number(0.693359375)))

    x = angle * number(2 * np.pi)
    octant = (x * number(4 / np.pi)).astype(np.int32) + 1 & ~1
    for part in (0.78515625, 2.4187564849853515625e-4, 3.77489497744594108e-8):  # together a quarter of pi
        x = fused(octant.astype(number), number(-part), x)
    square = x * x
    sine = fused(polynomial(square, -1.9515295891e-4, 8.3321608736e-3, -1.6666654611e-1) * square, x, x)
    cosine = polynomial(square, 2.443315711809948e-5, -1.388731625493765e-3, 4.166664568298827e-2) * square
    cosine = fused(cosine, square, square * number(-0.5)) + number(1)
    sine, cosine = (np.where(octant & 2, b, a) for a, b in ((sine, cosine), (cosine, sine)))
    sine, cosine = np.where(octant & 4, -sine, sine), np.where(octant + 2 & 4, -cosine, cosine)
    both = np.stack([radius * cosine, radius * sine], 1) * number(spread)
    return torch.from_numpy(both).reshape(shape)


def tokenizer() -> Any:
    """A tokenizer, for engines ask for one even where prompts are token ids; OpenVINO's wants a special token."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())[: VOCAB_SIZE - 2]
    vocabulary = {token: i for i, token in enumerate([*letters, "ab"])}
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=[("a", "b")]))
    made.add_special_tokens(["<end>"])
    return made


def _digest(*pair: Any) -> str:
    digest = hashlib.sha256()
    for model in pair:
        for parameter in model.parameters():
            digest.update(parameter.detach().numpy().tobytes())
    return digest.hexdigest()[:8]


@torch.no_grad()
def measure() -> dict[str, float]:
    """How fit the pair is for finding faults, over 32 random prompts of 12 tokens with 32 new ones.

    ``distinct`` of the 32 new tokens of a row; ``sensitivity``: how often the next token changes when one token of the
    context does, the least over all places; ``agreement``: how often the draft's choice is the target's, and of one row
    the ``least`` and ``most``.
    """
    target, draft = checkpoint().models()
    generator = torch.Generator().manual_seed(7)
    rows, new = 32, 32
    tokens = torch.randint(VOCAB_SIZE, (rows, 12), generator=generator)
    for _ in range(new):
        tokens = torch.cat([tokens, target(tokens).logits[:, -1].argmax(-1, keepdim=True)], 1)
    emitted = tokens[:, -new:]
    after = target(tokens).logits[:, -1].argmax(-1)
    changed = []
    for place in range(tokens.shape[1]):
        other = tokens.clone()
        other[:, place] = (other[:, place] + torch.randint(1, VOCAB_SIZE, (rows,), generator=generator)) % VOCAB_SIZE
        changed.append((target(other).logits[:, -1].argmax(-1) != after).double().mean().item())
    agrees = (draft(tokens).logits[:, -new - 1 : -1].argmax(-1) == emitted).double().mean(1)
    return {
        "distinct": sum(len(set(row.tolist())) for row in emitted) / rows,
        "sensitivity": min(changed),
        "agreement": agrees.mean().item(),
        "least": agrees.min().item(),
        "most": agrees.max().item(),
    }


if __name__ == "__main__":
    print(f"target: {checkpoint().target}\ndraft:  {checkpoint().draft}")
