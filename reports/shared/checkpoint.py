# A copy, made by eqcheck 0.3.0.
"""The checkpoint that engines load, and how a script runs an engine on it, in one file that needs no eqcheck.

eqcheck builds the checkpoint by this file, and `eqcheck.engines.script` copies it as it is beside the scripts
of an engine, whose functions lie in ``_engine.py`` there. So it imports nothing of eqcheck, and torch only where a
model is made.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace
from typing import Any

VOCAB_SIZE, POSITIONS = 256, 2048  # those of `eqcheck.core.case.engine`
_SEED, _SPREAD, _NOISE = 1, 0.3, 0.013


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

    >>> import torch
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


def row(prompt: list[int], max_new_tokens: int, **options: Any) -> tuple[list[int], Any]:
    """A prompt and what is asked for it."""
    asked = SimpleNamespace(max_new_tokens=max_new_tokens, eos_token_ids=(), min_new_tokens=0, arrival=0)
    asked.stop_sequences, asked.logprobs, asked.prompt_logprobs, asked.cancel_after = (), False, False, None
    asked.no_repeat_ngram_size, asked.n = 0, 1
    asked.repetition_penalty, asked.presence_penalty, asked.frequency_penalty = 1.0, 0.0, 0.0
    asked.logit_bias, asked.bad_words, asked.allowed_ids, asked.grammar = (), (), (), ()
    asked.temperature, asked.top_k, asked.top_p, asked.min_p, asked.seed = 0.0, 0, 1.0, 0.0, None
    vars(asked).update(options)
    return prompt, asked


def request_of(rows: Any, settings: dict[str, Any]) -> Any:
    """The rows of a script as a request to an engine."""
    prompts, options = zip(*rows, strict=True)
    return SimpleNamespace(prompts=list(prompts), rows=list(options), **{"dtype": "float32", **settings})


def unspeculative(request: Any) -> Any:
    """The same request without speculation."""
    return SimpleNamespace(**{**vars(request), "drafting": "none"})


def run(target: str, draft: str, request: Any) -> list[list[int]]:
    """Decode in a process of its own."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(decoded, target, draft, request).result()


def decoded(target: str, draft: str, request: Any) -> list[list[int]]:
    """Start the engine beside this file, and decode."""
    engine = import_module("_engine")
    engine.prepare()
    outputs: list[list[int]] = engine.decode(engine.start(target, draft, request), request)
    return outputs


def main(rows: Any, settings: dict[str, Any], expected: list[list[int]], kind: str = "") -> None:
    """Decode with speculation and without, show the wrong rows, and end with the exit code: 2 where nothing was tried.

    The command line names the folders of target and draft, if there is a ``kind``: that of the built checkpoint, which
    is written before. Else the random checkpoint is made here.
    """
    if kind and len(sys.argv) != 3:
        print(f"name the folders of the checkpoint {kind!r}, as the first lines of {sys.argv[0]} say", file=sys.stderr)
        sys.exit(2)
    request = request_of(rows, settings)
    folder = Path(tempfile.mkdtemp())
    try:
        target, draft = sys.argv[1:3] or build(folder)
        plain = run(target, draft, unspeculative(request))
        try:
            speculative = run(target, draft, request)
        except Exception as error:
            print(f"without speculation: {plain}")
            print(f"WRONG: {type(error).__name__}: {error}")
            print(json.dumps({"raised": True, "wrong_rows": []}))
            sys.exit(1)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    wrong = [number for number, right in enumerate(expected) if speculative[number] != right]
    for number in wrong:
        print(f"row {number} of {len(expected)}: WRONG")
        print(f"  expected                        {expected[number]}")
        print(f"  the engine without speculation  {plain[number]}")
        print(f"  the engine with speculation     {speculative[number]}")
    print(f"{len(wrong)} of {len(expected)} rows are wrong")
    print(json.dumps({"raised": False, "wrong_rows": wrong}))
    sys.exit(bool(wrong))
