"""llama.cpp's server with parallel slots, as the wheel of xllamacpp holds it: a draft model, or n-grams of the row.

The checkpoint is written as GGUF in float32, without a token that ends a row for everybody: an EOS of a row is a stop
string, for every token has a text of its own. Each request gets a server of its own, which takes 20 ms: nothing is left
from the one before. It has four slots that share one KV cache, as by default; from 32 rows on 16, each with its own.
More rows wait for a slot, and find there what another row left. The rows are sent at the same time, and one that
arrives late a few milliseconds later: so which rows share a step can differ when a case is decoded again.
"""

import json
import os
import tempfile
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import eqcheck
from eqcheck.contract.decoders import Request, RowOptions

_SLOTS, _MANY_ROWS, _MANY_SLOTS = 4, 32, 16
_SLOT_TOKENS = 1024
_LATE_S = 0.003  # per step that a row is late
_TIMEOUT_S = 120

_LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_OTHERS = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def export(folder: Path, made: Path) -> None:
    """A checkpoint as GGUF."""
    import gguf
    import numpy
    from safetensors.numpy import load_file

    config = json.loads((folder / "config.json").read_text())
    writer = gguf.GGUFWriter(made, "llama")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("rwkv")  # the one without special tokens
    writer.add_token_list([text(token).encode() for token in range(config["vocab_size"])])
    for name, weight in load_file(folder / "model.safetensors").items():
        owner = name.removesuffix(".weight")
        if owner not in _OTHERS:
            layer, part = owner.removeprefix("model.layers.").split(".", 1)
            owner = f"blk.{layer}.{_LAYER[part]}"
            if part.endswith(("q_proj", "k_proj")):  # rotated pairs lie side by side there
                halves = weight.reshape(-1, 2, config["head_dim"] // 2, weight.shape[1])
                weight = numpy.ascontiguousarray(halves.swapaxes(1, 2).reshape(weight.shape))
        writer.add_tensor(f"{_OTHERS.get(owner, owner)}.weight", weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def text(token: int) -> str:
    """A token's text, which stands in no other's."""
    return f"[{token}]"


def parameters(target: Path, draft: Path, request: Request) -> Any:
    """The server's settings; everything is computed in float32."""
    import xllamacpp

    many = len(request.prompts) >= _MANY_ROWS
    slots = _MANY_SLOTS if many else _SLOTS
    exact, kinds = xllamacpp.ggml_type.GGML_TYPE_F32, xllamacpp.common_speculative_type
    params = xllamacpp.CommonParams()
    params.model.path = str(target)
    params.n_parallel, params.n_ctx, params.kv_unified = slots, slots * _SLOT_TOKENS, not many
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
        "stop": [text(token) for token in row.eos_token_ids],
        "return_tokens": True,
        "samplers": ["penalties", "temperature"],
        "temperature": 0.0,
        "repeat_penalty": row.repetition_penalty,
        "repeat_last_n": _SLOT_TOKENS,
    }
    if request.prefix_caching is not None:
        body["cache_prompt"] = request.prefix_caching
    return body


@eqcheck.decoder(
    name="llama_cpp",
    checkpoints=True,
    environment="llama_cpp",
    dtype="float32",
    capabilities=(
        "row-limits",
        "row-eos",
        "repetition-penalty",
        "many-rows",
        "arrivals",
        "token-budget",
        "prefix-caching",
        "ngram",
    ),
    origin="https://github.com/ggml-org/llama.cpp",
)
class LlamaServer:
    def open(self) -> None:
        os.environ["GGML_NO_BACKTRACE"] = "1"  # or a debugger is called when the engine aborts
        import xllamacpp

        self.version = f"xllamacpp {xllamacpp.__version__}"
        self.folder = tempfile.TemporaryDirectory()
        self.models: dict[str, Path] = {}

    def close(self) -> None:
        self.folder.cleanup()

    def __call__(self, target: str, draft: str, request: Request) -> list[list[int]]:
        import xllamacpp

        server = xllamacpp.Server(parameters(self._exported(target), self._exported(draft), request))
        url = server.listening_address
        bodies = [asked(prompt, row, request) for prompt, row in zip(request.prompts, request.rows, strict=True)]
        late = [row.arrival * _LATE_S for row in request.rows]
        with ThreadPoolExecutor(len(bodies)) as pool:
            answers = list(pool.map(partial(_complete, url, time.monotonic()), bodies, late))
        timings = [answer["timings"] for answer in answers]
        last = max(answer["finished"] for answer in answers)
        self.observed = {
            "drafted": sum(one.get("draft_n") or 0 for one in timings),
            "accepted": sum(one.get("draft_n_accepted") or 0 for one in timings),
            "prefix_hits": sum(one.get("cache_n") or 0 for one in timings),
            "late_rows": sum(0 < wait < last for wait in late),
        }
        return [answer["tokens"] for answer in answers]

    def _exported(self, folder: str) -> Path:
        if folder not in self.models:
            made = Path(self.folder.name) / f"{len(self.models)}.gguf"
            export(Path(folder), made)
            self.models[folder] = made
        return self.models[folder]


def _complete(url: str, began: float, body: dict[str, Any], late: float) -> dict[str, Any]:
    """The server's answer for a row."""
    time.sleep(late)
    request = urllib.request.Request(
        f"{url}/completion", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
            found: dict[str, Any] = json.load(answer)
    except urllib.error.HTTPError as error:
        raise RuntimeError(f"{error.code} {error.read().decode(errors='replace')[:500]}") from error
    return found | {"finished": time.monotonic() - began}
