"""Tiny checkpoints for the head methods of engines: ``python checkpoints.py FOLDER``.

A target follows a cycle of its tokens, as far as its layers, which are random, do not lead it elsewhere. The tokens'
embeddings are orthonormal. So the weights of a head that knows the cycle can be written down: no training is needed,
and a head's first token is accepted about as often as the target keeps to the cycle.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

SIZE = 64  # of the vocabulary, and of the hidden states
LAYERS = 10  # OpenVINO takes the states of layers 2, 5 and 7, and wants so many
STEPS = 3  # tokens that a head proposes, where it is not fixed by the method
SPREAD = 0.045  # of the layers' weights: how far they lead away from the cycle
SHAPE = {
    "vocab_size": SIZE,
    "hidden_size": SIZE,
    "intermediate_size": 96,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
}
GENERATOR = torch.Generator()


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=GENERATOR)


def cycle() -> torch.Tensor:
    """What follows each token."""
    order = torch.randperm(SIZE, generator=GENERATOR)
    follows = torch.empty(SIZE, dtype=torch.long)
    follows[order] = order.roll(-1)
    return follows


class Family:
    """A target, and the weights of heads for it."""

    def __init__(self, architecture: str) -> None:
        GENERATOR.manual_seed(1)
        self.follows = cycle()
        self.embedding = torch.linalg.qr(drawn(SIZE, SIZE))[0].contiguous()
        if architecture == "llama":
            self.model = LlamaForCausalLM(LlamaConfig(num_hidden_layers=LAYERS, **SHAPE))
        else:
            self.model = Qwen2ForCausalLM(Qwen2Config(num_hidden_layers=LAYERS, **SHAPE))
        with torch.no_grad():
            for name, weight in self.model.named_parameters():
                if "norm" not in name:
                    weight.copy_(SPREAD * drawn(*weight.shape))
            self.model.model.embed_tokens.weight.copy_(self.embedding)
            self.model.lm_head.weight.copy_(self.behind(1))

    def behind(self, steps: int) -> torch.Tensor:
        """The last layer that answers, for a token's embedding, the token so many steps along the cycle."""
        weight, to = torch.empty(SIZE, SIZE), torch.arange(SIZE)
        for _ in range(steps):
            to = self.follows[to]
        weight[to] = self.embedding
        return weight

    def layer(self, width: int = SIZE) -> dict[str, torch.Tensor]:
        """A layer of a Llama that passes on what it is given, all but so."""
        shapes = {
            "self_attn.q_proj": (SIZE, width),
            "self_attn.k_proj": (SIZE, width),
            "self_attn.v_proj": (SIZE, width),
            "self_attn.o_proj": (SIZE, SIZE),
            "mlp.gate_proj": (96, SIZE),
            "mlp.up_proj": (96, SIZE),
            "mlp.down_proj": (SIZE, 96),
        }
        weights = {f"{name}.weight": SPREAD / 5 * drawn(*shape) for name, shape in shapes.items()}
        return weights | {
            f"{name}.weight": torch.ones(SIZE) for name in ("input_layernorm", "post_attention_layernorm")
        }


def eagle(family: Family) -> tuple[dict[str, object], dict[str, torch.Tensor]]:
    """The layer gets the embedding of the next token; the target's own last layer answers."""
    weights = {
        f"layers.0.{name}": weight for name, weight in family.layer().items() if name != "input_layernorm.weight"
    }
    weights["fc.weight"] = torch.cat([torch.eye(SIZE), torch.zeros(SIZE, SIZE)], dim=1)
    return {"architectures": ["EagleLlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 1, **SHAPE}, weights


def eagle3(family: Family) -> tuple[dict[str, object], dict[str, torch.Tensor]]:
    """Each position attends to itself alone, for keys are embeddings, and answers one step along from its own token.

    It proposes 60 of the 64 tokens: ``d2t`` is what is added to its own number of a token.
    """
    own = torch.randperm(SIZE, generator=GENERATOR)[: SIZE * 15 // 16].sort().values
    weights = {f"midlayer.{name}": weight for name, weight in family.layer(2 * SIZE).items()}
    of_token = torch.cat([torch.eye(SIZE), torch.zeros(SIZE, SIZE)], dim=1)  # the embedding comes before the state
    weights |= {f"midlayer.self_attn.{name}_proj.weight": of_token for name in "qkv"}
    weights["midlayer.self_attn.o_proj.weight"] = torch.eye(SIZE)
    weights |= {
        "midlayer.hidden_norm.weight": torch.ones(SIZE),
        "norm.weight": torch.ones(SIZE),
        "fc.weight": torch.cat([torch.eye(SIZE) / 3] * 3, dim=1),
        "lm_head.weight": family.behind(1)[own],
        "embed_tokens.weight": family.embedding,
        "d2t": own - torch.arange(len(own)),
        "t2d": torch.zeros(SIZE, dtype=torch.bool).index_fill(0, own, True),
    }
    config = {"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "draft_vocab_size": len(own)}
    return config | {"num_hidden_layers": 1, "pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0, **SHAPE}, weights


def medusa(family: Family) -> tuple[dict[str, object], dict[str, torch.Tensor]]:
    """Head ``i`` answers ``i + 2`` steps along."""
    weights = {f"blocks.{i}.layers.0.weight": torch.zeros(SIZE, SIZE) for i in range(STEPS)}
    weights |= {f"lm_heads.{i}.weight": family.behind(i + 2) for i in range(STEPS)}
    config = {"architectures": ["MedusaModel"], "model_type": "medusa", "num_heads": STEPS, "num_hidden_layers": 1}
    return config | {"hidden_size": SIZE, "vocab_size": SIZE}, weights


def mlp_speculator(family: Family) -> tuple[dict[str, object], dict[str, torch.Tensor]]:
    """Each step answers one step along from its token, by least squares on what the activation gives for it."""
    normed = family.embedding * SIZE**0.5
    found = torch.nn.functional.gelu(normed).double()
    answers = torch.eye(SIZE).double()[family.follows]
    head = torch.linalg.lstsq(found, answers).solution.T.float().contiguous()
    weights = {}
    for step in range(STEPS):
        weights[f"speculator.emb.{step}.weight"] = family.embedding
        weights[f"speculator.proj.{step}.weight"] = torch.zeros(SIZE, SIZE)
        weights[f"speculator.head.{step}.weight"] = head
        weights[f"speculator.ln.{step}.weight"] = torch.ones(SIZE)
        weights[f"speculator.ln.{step}.bias"] = torch.zeros(SIZE)
    config = {"architectures": ["MLPSpeculatorPreTrainedModel"], "model_type": "mlp_speculator", "vocab_size": SIZE}
    return config | {
        "emb_dim": SIZE,
        "inner_dim": SIZE,
        "n_predict": STEPS,
        "top_k_tokens_per_head": [1] * STEPS,
    }, weights


def write(folder: Path, config: dict[str, object], weights: dict[str, torch.Tensor]) -> None:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"dtype": "float32", **config}))
    save_file(
        {name: weight.detach().clone().contiguous() for name, weight in weights.items()}, folder / "model.safetensors"
    )
    tokens = {"<unk>": 0} | {f"t{i}": i for i in range(1, SIZE)}
    Tokenizer(models.WordLevel(tokens, unk_token="<unk>")).save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        '{"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "<unk>"}'
    )


def build(folder: Path) -> None:
    """``target`` and its heads, and ``mtp``, a MiMo, which has its head in itself; ``mtp-truth`` is it as a Qwen2."""
    family = Family("llama")
    config = json.loads(family.model.config.to_json_string(use_diff=False)) | {"architectures": ["LlamaForCausalLM"]}
    write(folder / "target", config, family.model.state_dict())
    for make in (eagle, eagle3, medusa, mlp_speculator):
        write(folder / make.__name__, *make(family))
    qwen = Family("qwen2")
    weights, config = qwen.model.state_dict(), json.loads(qwen.model.config.to_json_string(use_diff=False))
    write(folder / "mtp-truth", config | {"architectures": ["Qwen2ForCausalLM"]}, weights)
    head = {f"model.mtp_layers.0.{name}": weight for name, weight in qwen.layer().items()}
    head |= {f"model.mtp_layers.0.self_attn.{name}_proj.bias": torch.zeros(SIZE) for name in "qkv"}
    norms = ("token_layernorm", "hidden_layernorm", "final_layernorm")
    head |= {f"model.mtp_layers.0.{name}.weight": torch.ones(SIZE) for name in norms}
    head["model.mtp_layers.0.input_proj.weight"] = torch.cat([torch.zeros(SIZE, SIZE), torch.eye(SIZE)], dim=1)
    config |= {"architectures": ["MiMoForCausalLM"], "num_nextn_predict_layers": 1}
    write(folder / "mtp", config, weights | head)


if __name__ == "__main__":
    build(Path(sys.argv[1]))
