"""A Medusa-type and a Clover-type head for a small Llama, with the target's own token embedding as their last layer.

Both read the target's last hidden state, behind its final normalisation, which ``transformers`` hands out.

`Medusa` (arXiv 2401.10774): one residual block a head, all heads at once, none knows what the others propose.

`Clover` (arXiv 2405.00263) has three parts more. The *augmenting block* is a layer of a transformer with a cache of
its own, which looks once more at the states of all accepted tokens; it has attention and no MLP here, which the paper
finds to matter least. The *attention decoder* joins the state with the
token before, by which a step knows what was proposed (*regressive connection*). With one key there is nothing for a
softmax to choose from, so the similarity of query and key is a gate on the value.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch.nn import Identity, Linear, Module, ModuleList
from torch.nn.functional import cosine_similarity, normalize, silu
from transformers import LlamaConfig, LlamaModel

from eqcheck import Unsupported

HERE = Path(__file__).parent
HEADS = 4
ATTENTION_HEADS = 4


class Residual(Module):
    """``h + SiLU(A h + b)``, which is ``h`` before training."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.linear = Linear(size, size)
        torch.nn.init.zeros_(self.linear.weight)
        torch.nn.init.zeros_(self.linear.bias)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = states + silu(self.linear(states))
        return out


class Medusa(Module):
    """Head ``i`` proposes the token ``i + 1`` places behind the one that the state predicts."""

    shape = "column"
    most_draft_tokens = HEADS

    def __init__(self, embedding: torch.Tensor) -> None:
        super().__init__()
        self.vocab_size, self.hidden_size = embedding.shape
        self.register_buffer("embedding", embedding, persistent=False)
        self.heads = ModuleList(Residual(self.hidden_size) for _ in range(HEADS))

    def column(self, hidden: torch.Tensor, num_draft_tokens: int) -> torch.Tensor:
        """Logits ``[..., num_draft_tokens, vocab]`` from states ``[..., size]``."""
        return torch.stack([head(hidden) @ self.embedding.T for head in self.heads[:num_draft_tokens]], dim=-2)

    def propose(self, hidden: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """Logits of all heads at every position, ``[rows, positions, HEADS, vocab]``, as training needs them."""
        return self.column(hidden, HEADS)


class Nothing(Module):
    """Replace an MLP by nothing."""

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(states)


class Block(Module):
    """The attention of a Llama's layer over states in place of embeddings, with the interface of a causal LM."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        shape = {**config.to_dict(), "num_hidden_layers": 1, "vocab_size": 1, "pad_token_id": None, "layer_types": None}
        self.model = LlamaModel(LlamaConfig(**shape))
        self.config = self.model.config
        (layer,) = self.model.layers
        layer.mlp, layer.post_attention_layernorm = Nothing(), Identity()

    @property
    def device(self) -> torch.device:
        device: torch.device = self.model.device
        return device

    @property
    def dtype(self) -> torch.dtype:
        dtype: torch.dtype = self.model.dtype
        return dtype

    def forward(self, hidden_states: torch.Tensor, **given: Any) -> Any:
        return self.model(inputs_embeds=hidden_states, **given)


class Clover(Module):
    """A head whose steps know the token before them, and whose states are looked at once more."""

    shape = "accepted"
    most_draft_tokens = HEADS
    directions: torch.Tensor

    def __init__(self, embedding: torch.Tensor, config: LlamaConfig) -> None:
        super().__init__()
        self.vocab_size, self.hidden_size = embedding.shape
        self.register_buffer("embedding", embedding, persistent=False)
        self.register_buffer("directions", normalize(embedding, dim=-1), persistent=False)
        self.accepted = Block(config)
        self.query, self.key, self.value = (Linear(self.hidden_size, self.hidden_size, bias=False) for _ in range(3))
        for layer in (self.query, self.key):
            torch.nn.init.eye_(layer.weight)
            layer.weight.data += 0.01 * torch.randn_like(layer.weight)
        torch.nn.init.zeros_(self.value.weight)
        self.heads = ModuleList(Residual(self.hidden_size) for _ in range(HEADS))

    def step(self, state: torch.Tensor, token: torch.Tensor, place: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits ``[..., vocab]`` of the token behind ``token``, and the next state, from one ``[..., size]``."""
        before = self.directions[token]
        query, key, value = (
            part.unflatten(-1, (ATTENTION_HEADS, -1))
            for part in (self.query(normalize(state, dim=-1)), self.key(before), self.value(before))
        )
        gate = cosine_similarity(query, key, dim=-1)[..., None]
        state = state + (gate * value).flatten(-2)
        return self.heads[place](state) @ self.embedding.T, state

    def propose(self, hidden: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """Propose like `Medusa.propose`; step ``i`` gets the token of the text ``i + 1`` places after the state."""
        state, scores = self.accepted(hidden, use_cache=False).last_hidden_state, []
        for place in range(HEADS):
            logits, state = self.step(state, tokens.roll(-1 - place, dims=1), place)
            scores.append(logits)
        return torch.stack(scores, dim=-2)


def untrained(target: Any, seed: int = 0) -> Mapping[str, Any]:
    """Heads for a Llama as they are before training; Clover's block begins as a copy of the target's last one."""
    embedding = target.get_output_embeddings().weight.detach().clone()
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        clover = Clover(embedding, target.config)
    last = target.model.layers[-1].state_dict()
    layer = clover.accepted.model.layers[0]
    layer.load_state_dict({name: last[name] for name in layer.state_dict()})
    return {"medusa": Medusa(embedding).to(target.dtype), "clover": clover.to(target.dtype)}


def save(name: str, head: Module) -> None:
    """Write a head's weights beside this module, in half precision."""
    weights = {key: value.half().contiguous() for key, value in head.state_dict().items()}
    save_file(weights, HERE / f"{name}.safetensors")


def load(name: str, target: Any) -> Any:
    """The trained head ``medusa`` or ``clover`` for the target of `benchmarks.pair`, in the target's dtype.

    `Unsupported` where it was not trained here.
    """
    head, file = untrained(target)[name], HERE / f"{name}.safetensors"
    if not file.is_file():
        raise Unsupported(f"{file.name} is not there; `python -m benchmarks.heads.train` trains it in a clone")
    head.load_state_dict(load_file(file))
    return head.eval()
