"""How vLLM is driven, for the scripts of `reports/vllm` and `reports/vllm_bfloat16`; by eqcheck 0.3.0."""

import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any


def prepare() -> None:
    """Settings that vLLM reads when it is imported."""
    os.environ.update(
        VLLM_ENABLE_V1_MULTIPROCESSING="0",
        TORCHDYNAMO_DISABLE="1",  # each engine compiles the rank of a logged token anew, which takes seconds
        VLLM_CPU_OMP_THREADS_BIND="nobind",
        VLLM_LOGGING_LEVEL="ERROR",
        VLLM_NO_USAGE_STATS="1",
        HF_HUB_OFFLINE="1",
        NUMBA_NUM_THREADS="1",
    )


def architecture(folder: str) -> str:
    """The architecture of a checkpoint, as its configuration has it."""
    from pathlib import Path  # the script of a case has this function alone

    return str(json.loads(Path(folder, "config.json").read_text())["model_type"])


def settings_of(target: str, draft: str, request: "Request") -> dict[str, Any]:
    """The arguments of `vllm.LLM`."""
    k, kv_block, rows = request.num_draft_tokens, 32, 128
    settings: dict[str, Any] = {
        "model": target,
        "dtype": request.dtype,
        "enforce_eager": True,
        "max_model_len": 2048,  # of the checkpoints
        "max_num_seqs": rows,
        "block_size": kv_block,  # the CPU backend's own 128 is more than most rows have
        "kv_cache_memory_bytes": 512 << 20,  # twice what the largest case needs; each engine clears all of it
        "disable_log_stats": False,
    }
    kind = architecture(target)
    if kind == "lfm2":
        settings["compilation_config"] = {"custom_ops": ["-rotary_embedding"]}
        settings["enable_prefix_caching"] = False  # with it, speculation raises in its first step on the CPU
    if request.prefix_caching is not None:
        settings["enable_prefix_caching"] = request.prefix_caching
    if request.kv_blocks:  # one row of the greatest length must fit, or the engine does not start
        settings["num_gpu_blocks_override"] = request.kv_blocks
        spare = 1 if kind == "llama" else 3  # layers with a window or a state have blocks of their own
        settings["max_model_len"] = (request.kv_blocks - spare) * kv_block - k - 1
    if request.token_budget:
        settings["max_num_batched_tokens"] = request.token_budget
        settings["max_num_seqs"] = min(rows, request.token_budget)
    if request.drafting == "dictated":
        proposer = f"{Dictated.__module__}.{Dictated.__name__}"
        settings["speculative_config"] = {"method": "custom_class", "model": proposer, "num_speculative_tokens": k}
    elif request.drafting == "model":
        settings["speculative_config"] = {"method": "draft_model", "model": draft, "num_speculative_tokens": k}
    elif request.drafting == "ngram":
        lookup = {"prompt_lookup_min": 1, "prompt_lookup_max": 2}
        settings["speculative_config"] = {"method": "ngram", "num_speculative_tokens": k, **lookup}
    return settings


class Dictated:
    """The engine's proposer of draft tokens: ``drafts`` are a request's, ``proposed[row][new tokens]`` its answers."""

    runner: Any = None  # of the engine in this process; it knows which request is where in the batch
    drafts: Any = ()
    proposed: Any = None

    def __init__(self, config: Any) -> None:
        self.k = config.speculative_config.num_speculative_tokens

    def load_model(self, model: Any) -> None:
        """There is none."""

    def propose(self, sampled: Any, lengths: Any, tokens: Any, slot_mappings: Any = None) -> list[list[int]]:
        """Draft tokens for each row of the batch; none for one whose prompt is not yet done."""
        batch, drafts = self.runner.input_batch, []
        for index, new in enumerate(sampled):
            row = int(batch.req_ids[index].partition("-")[0])
            count = int(lengths[index] - batch.num_prompt_tokens[index])
            drafts.append(list(self.drafts[row][count : count + self.k]) if new else [])
            self.proposed.setdefault(row, {})[count] = drafts[-1]
        return drafts


def introduce(worker: Any) -> None:
    """Tell the proposer of an engine which engine it is in."""
    Dictated.runner = worker.model_runner


def start(target: str, draft: str, request: "Request", **others: Any) -> Any:
    """An engine with the request's settings, and others."""
    from vllm import LLM

    llm = LLM(**settings_of(target, draft, request) | others)
    llm.get_tokenizer().eos_token = None  # else it is allowed beside a row's EOS ids where a grammar ends
    llm.collective_rpc(introduce)
    return llm


def rules(row: Any, by_text: bool = False) -> str:
    """The grammar of a row as rules of texts, where the text of id 17 is ``[17]``, as xgrammar and llama.cpp read them.

    Where the row may end the rules end, so that engines allow its EOS ids; ``by_text`` they have the texts of these.

    >>> from types import SimpleNamespace
    >>> row = SimpleNamespace(eos_token_ids=(9,), grammar=((0, (4, 5), 1), (1, (6, 9), 0), (1, (), 1)))
    >>> print(rules(row))
    root ::= s0
    s0 ::= ("[4]" | "[5]") s1
    s1 ::= ("[6]") s0 | ""
    >>> print(rules(row, by_text=True).splitlines()[-1])
    s1 ::= ("[6]") s0 | ("[9]") s1
    """
    alternatives: dict[int, list[str]] = {}
    for state, ids, after in row.grammar:
        named = [token for token in ids if token not in row.eos_token_ids] if ids else row.eos_token_ids
        texts = " | ".join(f'"[{token}]"' for token in named)
        said = f"({texts}) s{after if ids else state}" if ids or by_text else '""'
        alternatives.setdefault(state, []).extend([said] if texts else [])
    return "\n".join(["root ::= s0", *(f"s{state} ::= {' | '.join(each)}" for state, each in alternatives.items())])


def sampling(row: "RowOptions", **others: Any) -> Any:
    """The options of one row, as the engine takes them, and others."""
    from vllm import SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    given: dict[str, Any] = {
        "n": row.n,
        "temperature": row.temperature,
        "top_k": row.top_k,
        "top_p": row.top_p,
        "seed": row.seed,
        "max_tokens": row.max_new_tokens,
        "min_tokens": row.min_new_tokens,
        "ignore_eos": True,  # the tokenizer's own
        "stop_token_ids": list(row.eos_token_ids),
        "stop": ["".join(f"[{token}]" for token in stop) for stop in row.stop_sequences],  # the tokenizer's texts
        "include_stop_str_in_output": True,
        "skip_special_tokens": False,
        "repetition_penalty": row.repetition_penalty,
        "presence_penalty": row.presence_penalty,
        "frequency_penalty": row.frequency_penalty,
        "allowed_token_ids": list(row.allowed_ids) or None,
        "detokenize": bool(row.stop_sequences),
        "logprobs": 0 if row.logprobs else None,  # of the token alone
        "prompt_logprobs": 0 if row.prompt_logprobs else None,
    }
    asked = SamplingParams(**given | others)
    if row.grammar:  # where it lets a row end, the engine allows the row's own EOS ids
        asked.structured_outputs = StructuredOutputsParams(grammar=rules(row))
    if row.bad_words:  # as ids; the engine makes them of texts, if it has a tokenizer
        asked._bad_words_token_ids = list(map(list, row.bad_words))
    return asked


def ended(row: "RowOptions", output: Any) -> dict[str, Any]:
    """How a row ended, as the engine tells it."""
    texts = {"".join(f"[{token}]" for token in stop): stop for stop in row.stop_sequences}
    told = {"finish_reason": output.finish_reason, "stop": texts.get(output.stop_reason)}
    if row.logprobs and output.logprobs is not None:
        pairs = zip(output.token_ids, output.logprobs, strict=True)
        told["logprobs"] = [float(place[token].logprob) for token, place in pairs]
    return told


def decode(llm: Any, request: "Request", observed: dict[str, Any] | None = None) -> list[list[int]]:
    """The new tokens of each row; a row that arrives late is handed over after so many steps."""
    import random

    import torch

    torch.manual_seed(random.getrandbits(48))
    engine, observed = llm.llm_engine, {} if observed is None else observed
    first, waiting = 0, list[int]()
    while first < len(request.prompts):  # answers to one request stand side by side
        waiting.append(first)
        first += request.rows[first].n
    waiting.sort(key=lambda row: request.rows[row].arrival)
    outputs: dict[int, list[int]] = {}
    ends: dict[int, dict[str, Any]] = {}
    rounds: list[list[Any]] = [[] for _ in request.prompts]
    if request.drafting == "dictated":
        Dictated.drafts, Dictated.proposed = request.drafts, {}
    step = 0
    while waiting or engine.has_unfinished_requests():
        while waiting and (request.rows[waiting[0]].arrival <= step or not engine.has_unfinished_requests()):
            row = waiting.pop(0)
            observed["late_rows"] = observed.get("late_rows", 0) + (step > 0)
            engine.add_request(str(row), {"prompt_token_ids": request.prompts[row]}, sampling(request.rows[row]))
        for result in engine.step():
            (output,) = result.outputs
            row, tokens = int(result.request_id.partition("-")[0]) + output.index, list(output.token_ids)
            before = len(outputs.get(row, ()))
            if before:
                proposed = Dictated.proposed[row][before] if request.drafting == "dictated" else []
                rounds[row].append([before, proposed, len(tokens)])
            of_prompt = ends.get(row, {}).get("prompt_logprobs")  # told once
            outputs[row], ends[row] = tokens, ended(request.rows[row], output)
            if result.prompt_logprobs:
                places = zip(request.prompts[row], result.prompt_logprobs, strict=True)
                of_prompt = [place and float(place[token].logprob) for token, place in places]
            ends[row]["prompt_logprobs"] = of_prompt
            enough = request.rows[row].cancel_after
            if enough and len(tokens) >= enough and not result.finished:
                engine.abort_request([result.request_id])
        step += 1
    observed.update(steps=step, rounds=rounds, ends=ends)
    return [outputs[row] for row in range(len(request.prompts))]
