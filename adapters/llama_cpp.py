"""llama.cpp's server with parallel slots, as the wheel of xllamacpp holds it: a draft model, or n-grams of the row.

The checkpoint is written as GGUF as the engine's converter does, without a token that ends a row for everybody: an EOS
of a row is a stop string, for every token has a text of its own, and a stop sequence is one of several. In float16 and
bfloat16 the matrices are stored so, and the cache (float16) and attention (flash) are the engine's default; norms and
sums are in float32 there. Each request gets a server of its own, which takes 20 ms: nothing is left from the one
before. It has four slots that share one KV cache, as by default; from 32 rows on 16, each with its own. More rows wait
for a slot, and find there what another row left. The rows are sent at the same time, and one that arrives late a few
milliseconds later: so which rows share a step can differ when a case is decoded again. With prefix caching, rows of
which none is late go through one slot in turn.
"""

import json
import os
import random
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

import eqcheck
from eqcheck.contract.completion import with_and_without
from eqcheck.contract.decoders import Request, RowOptions
from eqcheck.contract.errors import without_drafts
from eqcheck.contract.options import rules

ORIGIN = "https://github.com/ggml-org/llama.cpp"
_SLOTS, _MANY_ROWS, _MANY_SLOTS = 4, 32, 16
_FEW_SLOTS = 2  # where caches of beginnings are kept: more rows find there what another left; one, if none is late
_SLOT_TOKENS = 1024
_LATE_S = 0.003  # per step that a row is late
_TIMEOUT_S = 120

# Architectures as GGUF names them. A Mistral is a Llama there, so its window is ignored: it is missing.
_ARCHITECTURES = {
    "llama": "llama",
    "qwen3": "qwen3",
    "qwen3_moe": "qwen3moe",
    "gpt2": "gpt2",
    "gemma3_text": "gemma3",
    "lfm2": "lfm2",
    "gemma2": "gemma2",
    "gpt_oss": "gpt-oss",
    "deepseek_v3": "deepseek2",
    "qwen3_5_text": "qwen35",
}
_CONSTANTS = 2  # of a built checkpoint, in its first features
_EXPERTS = {"up": "ffn_up_exps", "gate": "ffn_gate_exps", "down": "ffn_down_exps"}


def export(folder: Path, made: Path, dtype: str = "float32") -> None:
    """A checkpoint as GGUF, as the engine's own converter writes it, with matrices in ``dtype``."""
    import gguf

    config = json.loads((folder / "config.json").read_text())
    if config["model_type"] not in _ARCHITECTURES:
        raise eqcheck.Unsupported(f"{config['model_type']}: the engine has no model that computes the same")
    architecture = _ARCHITECTURES[config["model_type"]]
    writer = gguf.GGUFWriter(made, architecture)
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("rwkv")  # the one without special tokens
    writer.add_token_list([text(token).encode() for token in range(config["vocab_size"])])
    _describe(writer, config)
    kind = {name: number for number, name in gguf.MODEL_ARCH_NAMES.items()}[architecture]
    layers = config.get("num_hidden_layers") or config["n_layer"]
    names = gguf.get_tensor_name_map(kind, layers)
    for name, weight in _tensors(folder, config):
        wide = weight.ndim == 1 or any(part in name for part in ("conv.conv", "conv1d", "wpe", "router", "_exps.bias"))
        narrow = "float32" if wide else dtype
        stored = getattr(gguf.GGMLQuantizationType, {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}[narrow])
        mapped = names.get_name(name, (".weight", ".bias")) or name
        writer.add_tensor(mapped, gguf.quants.quantize(weight, stored), raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _describe(writer: Any, config: dict[str, Any]) -> None:
    """The sizes of a model."""
    heads = config.get("num_attention_heads") or config["n_head"]
    hidden = config.get("hidden_size") or config["n_embd"]
    writer.add_context_length(config.get("max_position_embeddings") or config["n_positions"])
    writer.add_embedding_length(hidden)
    writer.add_feed_forward_length(config.get("intermediate_size") or config["n_inner"])
    writer.add_block_count(config.get("num_hidden_layers") or config["n_layer"])
    writer.add_head_count(heads)
    if config["model_type"] == "gpt2":
        writer.add_layer_norm_eps(config["layer_norm_epsilon"])
        return
    attends = [kind != "conv" for kind in config.get("layer_types", ())]
    groups = config["num_key_value_heads"]
    groups = 1 if config["model_type"] == "deepseek_v3" else groups
    writer.add_head_count_kv([groups * one for one in attends] if not all(attends) else groups)
    size = config.get("head_dim") or hidden // heads
    if config["model_type"] == "deepseek_v3":
        _describe_compressed(writer, config)
    else:
        writer.add_key_length(size)
        writer.add_value_length(size)
        writer.add_rope_dimension_count(int(size * config.get("partial_rotary_factor", 1)))
    writer.add_rope_freq_base(config.get("rope_theta") or config["rope_parameters"]["rope_theta"])
    writer.add_layer_norm_rms_eps(config.get("rms_norm_eps") or config["norm_eps"])
    if config["model_type"] == "gemma3_text":
        writer.add_sliding_window(config["sliding_window"])
        writer.add_sliding_window_pattern(config["sliding_window_pattern"])
        writer.add_rope_freq_base_swa(config["rope_local_base_freq"])
    elif config["model_type"] == "lfm2":
        writer.add_shortconv_l_cache(config["conv_L_cache"])
    elif config["model_type"] in ("qwen3_moe", "gpt_oss"):
        writer.add_expert_count(config.get("num_experts") or config["num_local_experts"])
        writer.add_expert_used_count(config["num_experts_per_tok"])
        writer.add_expert_feed_forward_length(config.get("moe_intermediate_size") or config["intermediate_size"])
    elif config["model_type"] == "gemma2":
        writer.add_attn_logit_softcapping(config["attn_logit_softcapping"])
        writer.add_final_logit_softcapping(config["final_logit_softcapping"])
    elif config["model_type"] == "qwen3_5_text":
        writer.add_rope_dimension_sections([*config["rope_parameters"]["mrope_section"], 0])
        writer.add_ssm_conv_kernel(config["linear_conv_kernel_dim"])
        writer.add_ssm_state_size(config["linear_key_head_dim"])
        writer.add_ssm_group_count(config["linear_num_key_heads"])
        writer.add_ssm_time_step_rank(config["linear_num_value_heads"])
        writer.add_ssm_inner_size(config["linear_value_head_dim"] * config["linear_num_value_heads"])
        writer.add_full_attention_interval(config["full_attention_interval"])
    if config["model_type"] in ("gemma2", "gpt_oss"):
        writer.add_sliding_window(config["sliding_window"])


def _describe_compressed(writer: Any, config: dict[str, Any]) -> None:
    """The sizes of compressed keys and values: one head of them, which is the latent vector."""
    rotary, rank = config["qk_rope_head_dim"], config["kv_lora_rank"]
    writer.add_key_length(rank + rotary)
    writer.add_value_length(rank)
    writer.add_key_length_mla(config["qk_nope_head_dim"] + rotary)
    writer.add_value_length_mla(config["v_head_dim"])
    writer.add_kv_lora_rank(rank)
    writer.add_q_lora_rank(_CONSTANTS)
    writer.add_rope_dimension_count(rotary)
    writer.add_leading_dense_block_count(config["first_k_dense_replace"])
    writer.add_expert_count(config["n_routed_experts"])
    writer.add_expert_used_count(config["num_experts_per_tok"])
    writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    writer.add_expert_shared_count(config["n_shared_experts"])
    writer.add_expert_weights_scale(config["routed_scaling_factor"])


def _tensors(folder: Path, config: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """The weights as the engine multiplies by them, in float32, by the names of the checkpoint."""
    import numpy

    experts: dict[str, list[Any]] = {}
    for name, weight in read(folder / "model.safetensors"):
        if config["model_type"] == "llama" and name.endswith(("q_proj.weight", "k_proj.weight")):
            halves = weight.reshape(-1, 2, config["head_dim"] // 2, weight.shape[1])  # pairs lie side by side there
            weight = halves.swapaxes(1, 2).reshape(weight.shape)
        elif config["model_type"] in ("gemma2", "gemma3_text") and name.endswith("norm.weight"):
            weight = weight + 1
        elif config["model_type"] in _OTHERWISE:
            for one, part in _OTHERWISE[config["model_type"]](name, weight, config):
                yield one, numpy.ascontiguousarray(part)
            continue
        elif name.endswith("conv.conv.weight"):
            weight = weight.squeeze(1)
        elif config["model_type"] == "gpt2" and name.endswith(("c_attn.weight", "c_fc.weight", "c_proj.weight")):
            weight = weight.T
        elif ".experts." in name:
            layer, _, rest = name.partition(".experts.")
            number, _, part = rest.partition(".")
            held = experts.setdefault(f"{layer}.experts.{part}", [])
            held.append((int(number), weight))
            if len(held) < config["num_experts"]:
                continue
            name, weight = f"{layer}.experts.{part}", numpy.stack([w for _, w in sorted(held, key=itemgetter(0))])
        yield name, numpy.ascontiguousarray(weight)


Tensors = Iterator[tuple[str, Any]]


def _of_gpt_oss(name: str, weight: Any, config: dict[str, Any]) -> Tensors:
    """Experts apart: gates and ups take turns. Sinks are called a weight."""
    layer = name.split(".")[2] if ".layers." in name else ""
    if "gate_up_proj" in name:
        matrix = weight if name.endswith("bias") else weight.swapaxes(1, 2)
        kind = "bias" if name.endswith("bias") else "weight"
        for first, part in enumerate(("gate", "up")):
            yield f"blk.{layer}.{_EXPERTS[part]}.{kind}", matrix[:, first::2]
    elif "experts.down_proj" in name:
        kind = "bias" if name.endswith("bias") else "weight"
        yield f"blk.{layer}.{_EXPERTS['down']}.{kind}", weight if kind == "bias" else weight.swapaxes(1, 2)
    elif name.endswith("sinks"):
        yield f"blk.{layer}.attn_sinks.weight", weight
    elif ".router." in name:
        yield f"blk.{layer}.ffn_gate_inp.{name.rpartition('.')[2]}", weight
    elif "post_attention_layernorm" in name:
        yield f"blk.{layer}.post_attention_norm.weight", weight
    else:
        yield name, weight


def _of_deepseek(name: str, weight: Any, config: dict[str, Any]) -> Tensors:
    """The matrix that makes keys of the latent vector is transposed, and apart from that which makes values.

    The engine has no such model of three layers without a latent vector of queries. Queries are made of two constants,
    which are 1: these are that vector, whose norm keeps them.
    """
    import numpy

    if name.endswith("q_proj.weight"):
        yield name.replace("q_proj", "q_a_proj"), numpy.eye(_CONSTANTS, weight.shape[1], dtype="<f4")
        yield name.replace("q_proj", "q_a_layernorm"), numpy.ones(_CONSTANTS, "<f4")
        yield name.replace("q_proj", "q_b_proj"), weight[:, :_CONSTANTS]
        return
    if not name.endswith("kv_b_proj.weight"):
        yield name, weight
        return
    still, heads = config["qk_nope_head_dim"], config["num_attention_heads"]
    both = weight.reshape(heads, still + config["v_head_dim"], -1)
    yield name.replace("kv_b_proj", "k_b_proj"), both[:, :still].swapaxes(1, 2)
    yield name.replace("kv_b_proj", "v_b_proj"), both[:, still:]


def _of_qwen35(name: str, weight: Any, config: dict[str, Any]) -> Tensors:
    """Norms plus one, but for that of a rule; rules of one key head lie apart: the engine repeats key heads in turn."""
    import numpy

    keys, values = config["linear_num_key_heads"], config["linear_num_value_heads"]
    width, key_width = config["linear_value_head_dim"], config["linear_key_head_dim"] * keys * 2

    def turned(rows: Any, size: int) -> Any:
        parted = rows.reshape(keys, values // keys, size, *rows.shape[1:])
        return parted.swapaxes(0, 1).reshape(rows.shape)

    last = name.partition("linear_attn.")[2]
    if last in ("in_proj_qkv.weight", "conv1d.weight"):
        weight = weight.squeeze(1) if last == "conv1d.weight" else weight
        weight = numpy.concatenate([weight[:key_width], turned(weight[key_width:], width)])
    elif last == "in_proj_z.weight":
        weight = turned(weight, width)
    elif last in ("in_proj_a.weight", "in_proj_b.weight", "dt_bias", "A_log"):
        weight = turned(weight, 1)
        weight = -numpy.exp(weight) if last == "A_log" else weight
    elif last == "out_proj.weight":
        weight = turned(weight.T, width).T
    elif name.endswith("norm.weight") and not last:
        weight = weight + 1
    yield name.replace("dt_bias", "dt_proj.bias"), weight


_OTHERWISE = {"gpt_oss": _of_gpt_oss, "deepseek_v3": _of_deepseek, "qwen3_5_text": _of_qwen35}


def read(file: Path) -> Iterator[tuple[str, Any]]:
    """The tensors of a safetensors file in float32; numpy has no bfloat16."""
    import numpy

    data = file.read_bytes()
    begin = 8 + int.from_bytes(data[:8], "little")
    for name, held in json.loads(data[8:begin]).items():
        if name == "__metadata__":
            continue
        first, end = (begin + offset for offset in held["data_offsets"])
        stored = numpy.frombuffer(data[first:end], {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}[held["dtype"]])
        if held["dtype"] == "BF16":
            stored = (stored.astype("<u4") << 16).view("<f4")
        yield name, stored.astype("<f4").reshape(held["shape"])


def text(token: int) -> str:
    """A token's text, which stands in no other's."""
    return f"[{token}]"


def parameters(target: Path, draft: Path, request: Request) -> Any:
    """The server's settings. In float32 all is computed as that; else cache and attention are the engine's default."""
    import xllamacpp

    many = len(request.prompts) >= _MANY_ROWS
    few = _FEW_SLOTS if any(row.arrival for row in request.rows) else 1
    slots = _MANY_SLOTS if many else few if request.prefix_caching else _SLOTS
    slots = max(slots, *(row.n for row in request.rows))  # answers to one request run at the same time
    kinds = xllamacpp.common_speculative_type
    exact = xllamacpp.ggml_type.GGML_TYPE_F32
    params = xllamacpp.CommonParams()
    params.model.path = str(target)
    params.n_parallel, params.kv_unified = slots, not many
    params.n_ctx = max(slots, _FEW_SLOTS) * _SLOT_TOKENS
    if request.dtype == "float32":
        params.cache_type_k = params.cache_type_v = exact
        params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    params.warmup = params.fit_params = False
    params.verbosity = -1
    params.n_threads_http = slots + 2
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    if request.token_budget:
        params.n_batch = params.n_ubatch = request.token_budget
    drafting = params.speculative.draft
    drafting.n_max, drafting.n_min, drafting.p_min = request.num_draft_tokens, 0, 0.0
    if request.drafting == "model":
        drafting.mparams.path = str(draft)
        if request.dtype == "float32":
            drafting.cache_type_k = drafting.cache_type_v = exact
        drafting.cpuparams.n_threads = drafting.cpuparams_batch.n_threads = 1
        params.speculative.types = [kinds.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE]
    elif request.drafting == "ngram":
        lookup = params.speculative.ngram_simple
        lookup.size_n, lookup.size_m, lookup.min_hits = 1, request.num_draft_tokens, 1
        params.speculative.types = [kinds.COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE]
    return params


def asked(prompt: list[int], row: RowOptions, request: Request) -> dict[str, Any]:
    """The options of one row, as the engine takes them."""
    body: dict[str, Any] = {
        "prompt": prompt,
        "n_predict": row.max_new_tokens,
        "stop": [*map(text, row.eos_token_ids), *("".join(map(text, stop)) for stop in row.stop_sequences)],
        "return_tokens": True,
        "n_cmpl": row.n,
        "samplers": ["penalties", "temperature", "top_k", "top_p", "min_p"],
        "temperature": row.temperature,
        "top_k": row.top_k,
        "top_p": row.top_p,
        "min_p": row.min_p,
        "seed": random.getrandbits(31) if row.seed is None else row.seed,
        "repeat_penalty": row.repetition_penalty,
        "repeat_last_n": _SLOT_TOKENS,
    }
    if row.logprobs:
        body["n_probs"] = 1
    if row.logit_bias:
        body["logit_bias"] = [list(pair) for pair in row.logit_bias]
    if row.grammar:
        body["grammar"] = rules(row, by_text=True)
    if request.prefix_caching is not None:
        body["cache_prompt"] = request.prefix_caching
    body |= _OF_REQUESTS.get(request.switch or "", {})
    return {name: value for name, value in body.items() if value is not None}


def completed(row: RowOptions, answer: dict[str, Any]) -> eqcheck.Completion:
    """A row with its end and its counts, as the server tells them."""
    word = answer["stopping_word"] if answer["stop_type"] == "word" else None
    probabilities = [place["logprob"] for place in answer.get("completion_probabilities", ())]
    return eqcheck.Completion(
        answer["tokens"],
        {"word": "stop", "limit": "length"}.get(answer["stop_type"]),
        next((stop for stop in row.stop_sequences if "".join(map(text, stop)) == word), None),
        logprobs=probabilities if row.logprobs and not word else None,  # those of a stop's tokens are left out
        usage={"prompt_tokens": answer["tokens_evaluated"], "completion_tokens": answer["tokens_predicted"]},
    )


# Fields of a request, and of the server's settings, that no target can be asked about, by the name of a switch.
_OF_REQUESTS: dict[str, dict[str, Any]] = {
    "top_k_1": {"temperature": 1.5, "top_k": 1},
    "top_p_0": {"temperature": 1.0, "top_p": 1e-6},
    "min_p_1": {"temperature": 1.0, "min_p": 1.0},
    "temperature_0": {"temperature": 1e-4},
    "typical_p_0": {"temperature": 1.0, "typical_p": 1e-6, "samplers": ["typ_p", "temperature"]},
    "dynatemp_range": {"temperature": 1e-4, "dynatemp_range": 5e-5},
    "mirostat": {"temperature": 1e-4, "mirostat": 2},
    "all_samplers": {"temperature": 1.0, "top_k": 1, "samplers": None},
    "stream": {"stream": True},
    "speculative.n_max": {"speculative.n_max": 2},
    "speculative.p_min": {"speculative.p_min": 0.9},
}
_OF_SERVERS: dict[str, dict[str, Any]] = {
    "swa_full": {"swa_full": True},
    "cont_batching": {"cont_batching": False},
    "n_cache_reuse": {"n_cache_reuse": 2},
    "cache_ram_mib": {"cache_ram_mib": 0},
    "n_ctx_checkpoints": {"n_ctx_checkpoints": 0},
    "checkpoint_min_step": {"checkpoint_min_step": 0},
    "n_parallel": {"n_parallel": 1},
    "kv_unified": {"kv_unified": False},
    "sampling.backend_sampling": {"sampling.backend_sampling": True},
    "speculative.draft.n_min": {"speculative.draft.n_min": 2},
    "speculative.draft.p_min": {"speculative.draft.p_min": 0.9},
    "speculative.draft.backend_sampling": {"speculative.draft.backend_sampling": False},
    "flash_attn_type": {"flash_attn_type": "LLAMA_FLASH_ATTN_TYPE_ENABLED"},
}
_DRAFTERS = ("ngram_cache", "ngram_map_k", "ngram_map_k4v")


def switched(params: Any, switch: str) -> None:
    """Turn a switch of the server's settings on."""
    import xllamacpp

    for name, value in _OF_SERVERS.get(switch, {}).items():
        *holders, last = name.split(".")
        holder = params
        for each in holders:
            holder = getattr(holder, each)
        setattr(holder, last, getattr(xllamacpp.llama_flash_attn_type, value) if isinstance(value, str) else value)
    types, drafter = list(params.speculative.types), switch.removesuffix("_and_draft")
    if types and drafter in _DRAFTERS:
        kind = getattr(xllamacpp.common_speculative_type, f"COMMON_SPECULATIVE_TYPE_{drafter.upper()}")
        params.speculative.types = [kind, *types] if switch != drafter else [kind]
        for lookup in (params.speculative.ngram_map_k, params.speculative.ngram_map_k4v):
            lookup.size_n, lookup.size_m = 1, 4


class LlamaServer:
    switches = (*_OF_REQUESTS, *_OF_SERVERS, *_DRAFTERS, *(f"{name}_and_draft" for name in _DRAFTERS))

    def open(self) -> None:
        os.environ["GGML_NO_BACKTRACE"] = "1"  # or a debugger is called when the engine aborts
        import xllamacpp

        self.version = f"xllamacpp {xllamacpp.__version__}"
        self.folder = tempfile.TemporaryDirectory()
        self.models: dict[tuple[str, str], Path] = {}

    def close(self) -> None:
        self.folder.cleanup()

    def renew(self) -> None:
        """Nothing to do: each request has a server of its own."""

    def load(self, target: str, draft: str, request: Request) -> tuple[Path, Path]:
        """Target and draft as GGUF."""
        return self._exported(target, request.dtype), self._exported(draft, request.dtype)

    def __call__(self, target: str, draft: str, request: Request) -> list[eqcheck.Completion]:
        if not request.switch:
            return self._answered(target, draft, request)
        with without_drafts(request.switch):
            plain = self._answered(target, draft, replace(request, drafting="none"))
        several = self._answered(target, draft, request), plain
        told, alone = (
            [(row.tokens, {"finish_reason": row.finish_reason, "usage": row.usage}) for row in rows] for rows in several
        )
        return with_and_without(told, alone)

    def _answered(self, target: str, draft: str, request: Request) -> list[eqcheck.Completion]:
        import xllamacpp

        params = parameters(*self.load(target, draft, request), request)
        longest = max(len(p) + row.max_new_tokens for p, row in zip(request.prompts, request.rows, strict=True))
        if longest + request.num_draft_tokens >= (params.n_ctx if params.kv_unified else _SLOT_TOKENS):
            raise eqcheck.Unsupported("a row of more tokens than the server's context has room for")
        switched(params, request.switch or "")
        server = xllamacpp.Server(params)
        url = server.listening_address
        firsts, row = list[int](), 0
        while row < len(request.prompts):  # answers to one request stand side by side
            firsts.append(row)
            row += request.rows[row].n
        bodies = [asked(request.prompts[first], request.rows[first], request) for first in firsts]
        late = [request.rows[first].arrival * _LATE_S for first in firsts]
        in_turn = request.prefix_caching and not any(late)  # so a wrong row is wrong each time
        with ThreadPoolExecutor(1 if in_turn else len(bodies)) as pool:
            told = list(pool.map(partial(_complete, url, time.monotonic()), bodies, late))
        answers = [answer for several in told for answer in several]
        timings = [answer["timings"] for answer in answers]
        last = max(answer["finished"] for answer in answers)
        self.observed = {
            "drafted": sum(one.get("draft_n") or 0 for one in timings),
            "accepted": sum(one.get("draft_n_accepted") or 0 for one in timings),
            "accepted_of_rows": [one.get("draft_n_accepted") or 0 for one in timings],
            "prefix_hits": sum(one.get("cache_n") or 0 for one in timings),
            "late_rows": sum(0 < wait < last for wait in late),
        }
        return [completed(*pair) for pair in zip(request.rows, answers, strict=True)]

    def _exported(self, folder: str, dtype: str) -> Path:
        if (folder, dtype) not in self.models:
            made = Path(self.folder.name) / f"{len(self.models)}.gguf"
            export(Path(folder), made, dtype)
            self.models[folder, dtype] = made
        return self.models[folder, dtype]


def _joined(lines: Iterable[bytes]) -> dict[str, Any]:
    """The answer that comes in parts: the last of them, with the tokens of all."""
    parts = [json.loads(line.removeprefix(b"data: ")) for line in lines if line.startswith(b"data: {")]
    last: dict[str, Any] = parts[-1]
    return last | {"tokens": [token for part in parts for token in part["tokens"]]}


def _complete(url: str, began: float, body: dict[str, Any], late: float) -> list[dict[str, Any]]:
    """The server's answers to a request."""
    time.sleep(late)
    request = urllib.request.Request(
        f"{url}/completion", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
            found = _joined(answer) if body.get("stream") else json.load(answer)
    except urllib.error.HTTPError as error:
        raise RuntimeError(f"{error.code} {error.read().decode(errors='replace')[:500]}") from error
    several: list[dict[str, Any]] = found if isinstance(found, list) else [found]
    return [one | {"finished": time.monotonic() - began} for one in sorted(several, key=itemgetter("index"))]


_CLAIMS: dict[str, Any] = {
    "environment": "llama_cpp",
    "kinds": ("full", "window", "hybrid", "qwen3", "moe", "learned", "delta", "mla", "softcap", "sinks"),
    "capabilities": (
        "row-limits",
        "row-eos",
        "stop-sequences",
        "finish-reason",
        "logprobs",
        "repetition-penalty",
        "logit-bias",
        "grammar",
        "many-rows",
        "arrivals",
        "n",
        "token-budget",
        "prefix-caching",
        "ngram",
        "temperature",
        "top-k",
        "top-p",
        "min-p",
        "seeds",
    ),
    "seeds": "repeatable",
}
in_float32 = eqcheck.decoder(name="llama_cpp", checkpoints=True, origin=ORIGIN, dtype="float32", **_CLAIMS)(LlamaServer)
in_float16 = eqcheck.decoder(name="llama_cpp_float16", checkpoints=True, origin=ORIGIN, dtype="float16", **_CLAIMS)(
    LlamaServer
)
in_bfloat16 = eqcheck.decoder(name="llama_cpp_bfloat16", checkpoints=True, origin=ORIGIN, dtype="bfloat16", **_CLAIMS)(
    LlamaServer
)
