"""What a real architecture forgives, its family forgives, and what breaks there breaks on the family.

Each engine decodes the same prompts on a tiny random model in float64 and on the `HashLM` of its family; it must be
right on every batch of both or wrong on some of both.
"""

from __future__ import annotations

import ast
import copy
import inspect
import random
import re
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM

import eqcheck
from eqcheck.catalogue import BUILDS, known_good
from eqcheck.contract.cache_names import NAMES, cache_argument, cache_of
from eqcheck.contract.decoders import Request
from eqcheck.contract.family import FAMILIES, FAMILY, KERNEL, WINDOW, named
from eqcheck.transparent.drafting import ScriptedDraft
from eqcheck.transparent.hashlm.model import HashConfig, HashLM
from eqcheck.transparent.oracle import Oracle

MAMBA: dict[str, Any] = {
    "model_type": "mamba2",
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "state_size": 8,
    "num_heads": 8,
    "head_dim": 8,
    "n_groups": 1,
    "chunk_size": 4,
}
VOCAB = 64
BATCHES = 2
SIZES: dict[str, dict[str, Any]] = {
    "rotary": {"model_type": "llama", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2},
    "learned": {"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 4},
    "mask-order": {"model_type": "bloom", "hidden_size": 32, "n_layer": 2, "n_head": 4},
    "slot-distance": {"model_type": "mpt", "d_model": 32, "n_layers": 2, "n_heads": 4},
    "window": {
        "model_type": "mistral",
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_key_value_heads": 2,
        "sliding_window": WINDOW,
    },
    "hybrid-window": {
        "model_type": "gemma3_text",
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "sliding_window": WINDOW,
        "layer_types": ["sliding_attention", "full_attention"],
    },
    "convolution": {**MAMBA, "conv_kernel": KERNEL},
    "recurrent": MAMBA,
}


class Real:
    """A real model that is called as any: arguments it has no use for are dropped, as its own ``generate`` does."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.config = model.config
        self.takes = set(inspect.signature(model.forward).parameters)

    def __call__(self, **given: Any) -> Any:
        cache = cache_of(given)
        given = {name: value for name, value in given.items() if name not in NAMES}
        given |= cache_argument(self.model, cache)
        return self.model(**{name: value for name, value in given.items() if name in self.takes})


@pytest.fixture(autouse=True)
def _masks_that_survive_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep a float64 mask finite in the float32 softmax that these models use, or every padded row becomes NaN."""
    finfo = torch.finfo

    def finite(dtype: torch.dtype) -> Any:
        info = finfo(dtype)
        return types.SimpleNamespace(min=max(info.min, -1e30), max=info.max, eps=info.eps, tiny=info.tiny)

    monkeypatch.setattr(torch, "finfo", finite)


def _real(family: str) -> tuple[Any, Any]:
    """A tiny model with varied output, and a noisy copy that agrees with it now and then."""
    torch.manual_seed(7)
    options = dict(SIZES[family])
    if "num_hidden_layers" in options and family not in ("recurrent", "convolution", "mask-order"):
        options["num_attention_heads"] = 4
    config = transformers.AutoConfig.for_model(
        options.pop("model_type"), vocab_size=VOCAB, initializer_range=0.3, tie_word_embeddings=False, **options
    )
    config._attn_implementation = "eager"
    model = AutoModelForCausalLM.from_config(config).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0.0, 0.3)
    draft = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in draft.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return Real(model), Real(draft)


def _hash(family: str) -> tuple[Any, Any]:
    target = HashLM(HashConfig(vocab_size=VOCAB, seed=3, family=family))
    draft = ScriptedDraft.of(target)
    draft.script(agreement=0.7)
    return target, draft


def _requests() -> list[Request]:
    rng = random.Random(5)
    return [
        Request(
            prompts=[[rng.randrange(1, VOCAB) for _ in range(rng.randint(1, 7))] for _ in range(3)],
            max_new_tokens=10,
            num_draft_tokens=3,
            eos_token_ids=(),
            pad_token_id=0,
            padding_side="left",
        )
        for _ in range(BATCHES)
    ]


def _right(engine: Callable[..., Any], target: Any, draft: Any) -> bool:
    oracle = Oracle(target)
    for request in _requests():
        try:
            outputs = engine(target, draft, request)
        except Exception:
            return False
        if not oracle.check(request.prompts, outputs, max_new_tokens=request.max_new_tokens):
            return False
    return True


@pytest.mark.parametrize("family", SIZES)
@pytest.mark.tiers(quick=0, rest=3)
def test_forgives_what_its_real_architecture_forgives(family: str) -> None:
    if FAMILY[family].stateful and transformers.__version__ < "5":
        pytest.skip("transformers 4 keeps the state of Mamba2 in a class of its own")
    torch.set_num_threads(1)
    real, hashed = {}, {}
    with torch.no_grad():
        for name, build in known_good().items():
            real[name] = _right(build, *_real(family))
            hashed[name] = _right(build, *_hash(family))
    assert real == hashed
    assert all(right for name, right in hashed.items() if family in BUILDS[name].families)


def family_names_compared(source: str) -> list[int]:
    """The lines that compare something with a family's name."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Compare) and not re.search(r"\bkind\b", ast.unparse(node)):  # a mask's kind is window
            constants = (one.value for one in ast.walk(node) if isinstance(one, ast.Constant))
            found += [node.lineno] * any(value in FAMILIES for value in constants)
    return found


@pytest.mark.parametrize("line", ['x == "window"', '"rotary" in names', 'family not in ("learned", "recurrent")'])
def test_a_comparison_with_a_family_is_found(line: str) -> None:
    assert family_names_compared(line) == [1]


@pytest.mark.rest
def test_what_a_family_is_stands_in_its_record_alone() -> None:
    files = Path(eqcheck.__file__).parent.rglob("*.py")
    assert {str(file): lines for file in files if (lines := family_names_compared(file.read_text()))} == {}


def test_a_real_model_that_was_looked_up_is_no_family_that_a_decoder_claims() -> None:
    """Modules that are imported later ask for the names again."""
    before = named(lambda family: True)
    assert FAMILY["rotary@llama"].target is not None
    assert named(lambda family: True) == before
