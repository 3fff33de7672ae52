"""Tiny real models from a configuration and a seed, whose answers are as well spread as those of a trained one.

Random weights of the usual size make models that emit one token for ever and hardly look at their context. So weights
are large and embeddings small, which makes attention sharp, and the head is centred: the direction that all hidden
states share is taken out of it, and its rows are of one length. `margins` measures the result.
"""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch

from eqcheck.contract.architectures import ARCHITECTURES, BUILT, is_class, is_folder
from eqcheck.contract.errors import UsageError, one_line
from eqcheck.contract.family import WINDOW
from eqcheck.engines.construction.folder import built
from eqcheck.engines.construction.function import CODES, VOCABULARY, Function, shuffled
from eqcheck.transparent.real.loading import checkpoint, class_of, config_of

# Built checkpoints as targets: they are known by their weights, and their function is the truth, in every dtype.
#
# A built checkpoint that is rounded to another dtype computes the same function, so weights are compared up to
# rounding.

_ROUNDING = 2.0**-7  # of a number in bfloat16, rounded twice


@lru_cache(maxsize=4)
def loaded(name: str, dtype: torch.dtype = torch.float32) -> Any:
    """The target of `BUILT` with this name, as a model of transformers."""
    import transformers

    if not hasattr(transformers, BUILT[name].model):
        raise UsageError(f"--target {name}: transformers {transformers.__version__} has no {BUILT[name].model}")
    with tempfile.TemporaryDirectory() as folder:
        built(BUILT[name].built).save(folder)
        return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, local_files_only=True).eval()


@torch.no_grad()
def recognised(model: Any) -> str:
    """The name in `BUILT` of the checkpoint that has the weights of a model; empty where there is none.

    >>> recognised(loaded("full", torch.bfloat16)), recognised(torch.nn.Linear(1, 1))
    ('full', '')
    """
    size = getattr(getattr(model, "config", None), "vocab_size", None)
    names = [name for name, known in BUILT.items() if known.model == type(model).__name__ and size == VOCABULARY]
    return next((name for name in names if _alike(model.state_dict(), loaded(name).state_dict())), "")


def _alike(weights: dict[str, Any], known: dict[str, Any]) -> bool:
    """Return whether these are the known weights, which may have been rounded."""
    return weights.keys() == known.keys() and all(
        weight.shape == known[name].shape
        and torch.allclose(weight.detach().cpu().float(), known[name], rtol=_ROUNDING, atol=0.0)
        for name, weight in weights.items()
    )


def in_folder(folder: str) -> tuple[str, str]:
    """The name in `BUILT` of the checkpoint in a folder, and the dtype in which it is saved; empty where none is."""
    from transformers import AutoModelForCausalLM

    from eqcheck.transparent.real.loading import config_of

    config = config_of(folder)
    classes = getattr(config, "architectures", None) or ()
    if getattr(config, "vocab_size", None) != VOCABULARY or not any(one.model in classes for one in BUILT.values()):
        return "", ""
    try:
        model = AutoModelForCausalLM.from_pretrained(
            folder, dtype="auto", local_files_only=True, use_safetensors=True, trust_remote_code=False
        )
    except Exception:  # it is loaded again as any other folder is, which says what is wrong with it
        return "", ""
    return recognised(model), str(model.dtype).removeprefix("torch.")


@lru_cache(maxsize=8)
def function_of(name: str) -> Function:
    """The function of the target of `BUILT` with this name."""
    return built(BUILT[name].built).function


def emitted(name: str, prompts: Sequence[tuple[int, ...]], count: int, seed: int = 0) -> list[list[int]]:
    """Return ``count`` tokens after each prompt, as the target of `BUILT` with this name and seed generates them."""
    new = renamed(CODES, seed)
    old = {name: token for token, name in enumerate(new)}
    texts = [[old.get(token, token) for token in prompt] for prompt in prompts]
    return [[new[token] for token in function_of(name).emitted(text, count)] for text in texts]


@lru_cache(maxsize=16)
def renamed(count: int, seed: int) -> tuple[int, ...]:
    """Return the ids below ``count`` in the order in which a seed exchanges them; as they are for the seed 0.

    Weights that were written or trained once have no seed. With other ids for the same tokens a checkpoint computes
    another function by the same numbers, so it stays exact, and what it writes to a cache for an id is another's.

    >>> renamed(4, 0), sorted(renamed(4, 1)) == [0, 1, 2, 3], renamed(256, 1) == renamed(256, 2)
    ((0, 1, 2, 3), True, False)
    """
    return shuffled(count, "renamed", seed) if seed else tuple(range(count))


VOCAB_SIZE = 128  # ids that are emitted; one more is a pad that never is
POSITIONS = 4096
_WEIGHTS, _EMBEDDINGS = 0.45, 0.09
_FORGETS = -2.0  # the logarithm of a rate
_LOOP, _TRIES = 8, 50
_OF_DRAFT = 1000  # added to the seed of a target
_SAMPLED = 64  # contexts from which the common direction is taken

_SIZES = {
    "vocab_size": VOCAB_SIZE + 1,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": POSITIONS,
    "pad_token_id": VOCAB_SIZE,
    "bos_token_id": None,
    "eos_token_id": None,
    "tie_word_embeddings": False,
}
_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2, "experts_implementation": "eager"}
_NO = object()  # leaves a name out
# The options that an architecture names otherwise, or has beside those.
_OWN: dict[str, dict[str, Any]] = {
    "gpt2": {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": POSITIONS, "n_inner": 96},
    "neox": {"rotary_pct": 0.5},
    "mistral": {"sliding_window": WINDOW},
    "mixtral": {**_EXPERTS, "sliding_window": None},
    "phi3": {"sliding_window": None},
    "gemma2": {"num_hidden_layers": 4, "sliding_window": WINDOW, "query_pre_attn_scalar": 16},
    "gpt_oss": {**_EXPERTS, "num_hidden_layers": 4, "sliding_window": WINDOW},
    "deepseek_v3": {
        "num_key_value_heads": 4,
        "head_dim": 8,
        "q_lora_rank": 32,
        "kv_lora_rank": 32,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 8,
        "v_head_dim": 16,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "n_shared_experts": 1,
        "n_group": 1,
        "topk_group": 1,
        "first_k_dense_replace": 1,
        "moe_intermediate_size": 48,
        "experts_implementation": "eager",
    },
    "falcon": {
        "new_decoder_architecture": False,
        "multi_query": True,
        "parallel_attn": True,
        "alibi": False,
        "head_dim": _NO,
    },
    "bloom": {"n_layer": 2, "n_head": 4},
    "mamba2": {"num_heads": 8, "head_dim": 16, "state_size": 16, "n_groups": 1, "chunk_size": 8},
}


def model_of(architecture: str, dtype: str, seed: int) -> Any:
    """The model of an architecture for a seed, in evaluation mode; of a checkpoint with its ids exchanged by the seed.

    Raises `UsageError` where transformers does not have it, or what the user named cannot be built.
    """
    if not _has_weights(architecture):
        return _model(architecture, dtype, seed)
    model = _model(architecture, dtype, None)
    return _renamed(architecture, dtype, seed) if seed else model


def draft_of(architecture: str, dtype: str, seed: int) -> Any:
    """A model like `model_of`'s with weights of its own, so that nothing in a cache of one model is of the other."""
    return _model(architecture, dtype, _OF_DRAFT + seed)


def _has_weights(architecture: str) -> bool:
    return is_folder(architecture) or architecture in BUILT


@lru_cache(maxsize=24)
def _model(architecture: str, dtype: str, seed: int | None) -> Any:
    if seed is None:
        known = loaded(architecture) if architecture in BUILT else checkpoint(architecture, VOCAB_SIZE)
        model = copy.deepcopy(known)
    else:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = _beside(loaded(architecture)) if architecture in BUILT else _built(architecture)
    model = model.to(getattr(torch, dtype)).eval()
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    return model


@lru_cache(maxsize=8)
@torch.no_grad()
def _renamed(architecture: str, dtype: str, seed: int) -> Any:
    """A checkpoint whose tokens have other ids: the rows of its tables change places, and nothing else does."""
    model = copy.deepcopy(_model(architecture, dtype, None))
    new = torch.tensor(renamed(CODES if architecture in BUILT else VOCAB_SIZE, seed))
    head = model.get_output_embeddings()
    tables = [model.get_input_embeddings().weight, head.weight, getattr(head, "bias", None)]
    for table in {id(table): table for table in tables if table is not None}.values():  # one where they are tied
        table[new] = table[: len(new)].clone()
    return model


def _built(architecture: str) -> Any:
    options = {**_SIZES, **_OWN.get(architecture, {})}
    options = {name: value for name, value in options.items() if value is not _NO}
    experts = options.pop("experts_implementation", None)
    try:
        if is_folder(architecture):
            model = _like_checkpoint(architecture)
        else:
            model_class = class_of(architecture) if is_class(architecture) else _of_the_library(architecture)
            config = model_class.config_class(**_said(model_class.config_class, options))
            if experts:
                config._experts_implementation = experts
            model = model_class(config)
        size = len(model.get_input_embeddings().weight)
        if size <= VOCAB_SIZE:
            raise UsageError(
                f"--target {architecture}: expected a vocabulary of more than {VOCAB_SIZE} ids, got {size}"
            )
        _spread(model)
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(
            f"--target {architecture}: it cannot be built in float64, in which the truth is: "
            f"{type(error).__name__}: {one_line(str(error))}"
        ) from error
    return model


@torch.no_grad()
def _beside(target: Any) -> Any:
    """A draft for a built target: random weights, with which it never emits a special id."""
    model = type(target)(copy.deepcopy(target.config))
    for name, parameter in model.named_parameters():
        if parameter.dim() >= 2:
            torch.nn.init.normal_(parameter, std=_EMBEDDINGS if _is_table(model, name) else _WEIGHTS)
    head = model.get_output_embeddings()
    head.weight = torch.nn.Parameter(head.weight.clone())  # it may be the table of the embeddings
    head.weight[CODES:] = 0.0
    return model


def _said(kind: Any, options: dict[str, Any]) -> dict[str, Any]:
    """The options that configurations of a kind have: a real checkpoint does not say what its model does not read.

    An engine takes the number of heads that it caches from the configuration. GPT-2 has no ``num_key_value_heads``.
    """
    usual = kind()
    return {name: value for name, value in options.items() if hasattr(usual, name)}


def _like_checkpoint(folder: str) -> Any:
    from transformers import AutoModelForCausalLM

    config = config_of(folder)
    config.vocab_size, config.pad_token_id = VOCAB_SIZE + 1, VOCAB_SIZE
    return AutoModelForCausalLM.from_config(config, trust_remote_code=False)


def _of_the_library(architecture: str) -> Any:
    import transformers

    name = ARCHITECTURES[architecture].model
    found = getattr(transformers, name, None)
    if found is None:
        raise UsageError(f"--target {architecture}: transformers {transformers.__version__} has no {name}")
    return found


@torch.no_grad()
def _spread(model: Any) -> None:
    embeddings, head = model.get_input_embeddings(), model.get_output_embeddings()
    for name, parameter in model.named_parameters():
        if name.endswith("A_log"):  # a state that forgets slowly
            parameter.fill_(_FORGETS)
        if parameter.dim() < 2:
            continue
        torch.nn.init.normal_(parameter, std=_EMBEDDINGS if _is_table(model, name) else _WEIGHTS)
    embeddings.weight[VOCAB_SIZE:] = torch.randn(len(embeddings.weight) - VOCAB_SIZE, embeddings.weight.shape[1]) * 0.09
    model.double().eval()
    contexts = torch.randint(0, VOCAB_SIZE, (_SAMPLED, 12))
    states = model.base_model(input_ids=contexts, attention_mask=torch.ones_like(contexts)).last_hidden_state
    common = states.flatten(0, 1).mean(0)
    common = common / common.norm()
    weight = head.weight - (head.weight @ common)[:, None] * common
    weight /= weight.norm(dim=1, keepdim=True)
    weight[VOCAB_SIZE:] = 0.0  # of so many other scores one is always above zero
    head.weight.copy_(weight)
    _unloop(model)


def _unloop(model: Any) -> None:
    """Exchange rows of the head until no token is answered with itself for ever: rows of one id hide faults."""
    head, ids = model.get_output_embeddings(), torch.arange(VOCAB_SIZE)
    fed = ids[:, None].expand(-1, _LOOP)
    for _ in range(_TRIES):
        answers = model(input_ids=fed, attention_mask=torch.ones_like(fed)).logits[:, -1].argmax(-1)
        looping = ids[answers == ids].tolist()
        if not looping:
            return
        for token in looping:
            other = int(torch.randint(0, VOCAB_SIZE, ()))
            head.weight[[token, other]] = head.weight[[other, token]]


def _is_table(model: Any, name: str) -> bool:
    module = model.get_submodule(name.rpartition(".")[0])
    return isinstance(module, torch.nn.Embedding)


def margins(architecture: str, seed: int = 0, contexts: int = 256) -> tuple[int, float]:
    """Return how many tokens a model emits after so many random contexts, and the least lead of one over the next, in
    logits.

    >>> tokens, least = margins("llama", contexts=64)
    >>> tokens > 32 and least > 1e-4
    True
    """
    model = model_of(architecture, "float64", seed)
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, VOCAB_SIZE, (contexts, 10), generator=generator)
    with torch.no_grad():
        scores = model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[:, -1]
    best = scores.topk(2).values
    return len(scores.argmax(-1).unique()), float((best[:, 0] - best[:, 1]).min())
