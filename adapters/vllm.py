"""vLLM, its V1 engine on the CPU: speculation with a draft model, by n-grams, or with drafts that the request dictates.

An engine's settings are fixed when it starts, and one process cannot start several reliably. So vLLM is imported once,
and every engine runs in a fork of the process that did: it is there in three seconds instead of twenty. It computes in
the dtype that the request names: `vllm` in float32, `vllm_bfloat16` in the dtype that is served by default. An engine
seeds its generator with 0 when it starts: so that generator is given a fresh seed before each request here. Speculation
with min-p or a logit bias is refused by the engine. Where ``EQCHECK_TAP`` is set, a tap reads what the target's queries
see.

Rotary positions of an LFM2 are left to torch here. Its queries have three dimensions, and the kernel of the CPU in
0.32.0 takes the wrong one of them for that of tokens: with it, plain decoding is wrong as well.
"""

import ctypes
import gc
import json
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import traceback
from collections import OrderedDict
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import eqcheck
from eqcheck.contract.completion import with_and_without
from eqcheck.contract.decoders import Request, RowOptions
from eqcheck.contract.errors import without_drafts
from eqcheck.contract.options import rules

_ENGINES = 4  # kept at a time


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


def architecture(folder: str) -> str:
    """The architecture of a checkpoint, as its configuration has it."""
    from pathlib import Path  # the script of a case has this function alone

    return str(json.loads(Path(folder, "config.json").read_text())["model_type"])


def start(target: str, draft: str, request: "Request", **others: Any) -> Any:
    """An engine with the request's settings, and others."""
    from vllm import LLM

    llm = LLM(**settings_of(target, draft, request) | others)
    llm.get_tokenizer().eos_token = None  # else it is allowed beside a row's EOS ids where a grammar ends
    llm.collective_rpc(introduce)
    return llm


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
            own = list(self.drafts[row][count : count + self.k]) if new else []
            drafts.append(own[: own.index(-1)] if -1 in own else own)
            self.proposed.setdefault(row, {})[count] = drafts[-1]
        return drafts


def introduce(worker: Any) -> None:
    """Tell the proposer of an engine which engine it is in."""
    Dictated.runner = worker.model_runner


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
    """Return how a row ended, as the engine tells it."""
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


_CERTAIN = {"temperature": 1.0, "top_k": 1}
# Options that no target can be asked about: of rows, and of an engine, by the name of a switch.
_OF_ROWS: dict[str, dict[str, Any]] = {
    "top_k_1": _CERTAIN,
    "top_p_0": {"temperature": 1.0, "top_p": 1e-6},
    "temperature_0": {"temperature": 1e-2},
    "logprobs": {"logprobs": 5},
    "prompt_logprobs": {"prompt_logprobs": 5},
    "flat_logprobs": {"logprobs": 1, "flat_logprobs": True},
    "logprob_token_ids": {"logprob_token_ids": [1, 2, 3]},
    "output_kind": {"output_kind": "DELTA"},
    "stream_interval": {"output_kind": "DELTA", "stream_interval": 3},
    "stop": {},
    "include_stop_str_in_output": {"include_stop_str_in_output": False},
    "min_tokens": {"min_tokens": 7},
}
_OF_ENGINES: dict[str, dict[str, Any]] = {
    "rejection_sample_method": {"speculative_config": {"rejection_sample_method": "block"}},
    "draft_sample_method": {"speculative_config": {"draft_sample_method": "probabilistic"}},
    "num_speculative_tokens_per_batch_size": {
        "speculative_config": {"num_speculative_tokens_per_batch_size": [(1, 1, 3), (2, 128, 1)]}
    },
    "max_num_seqs": {"max_num_seqs": 2},
    "enable_chunked_prefill": {"enable_chunked_prefill": False},
    "async_scheduling": {"async_scheduling": True},
    "enable_lora": {"enable_lora": True, "max_lora_rank": 8},
    "thinking_token_budget": {},  # thoughts begin at a token that a row emits
}


def _others(target: str, draft: str, request: Request) -> dict[str, Any]:
    """The settings of an engine that a switch changes; those of speculation where there is some."""
    given = dict(_OF_ENGINES.get(request.switch or "", {}))
    if changed := given.pop("speculative_config", None):
        own = settings_of(target, draft, request).get("speculative_config")
        given |= {"speculative_config": own | changed} if own else {}
    return given


@cache
def lora(target: str) -> Any:
    """An adapter of low rank that changes the values of every layer with attention."""
    import torch
    from safetensors import safe_open
    from safetensors.torch import save_file
    from vllm.lora.request import LoRARequest

    folder, draws = Path(tempfile.mkdtemp()), torch.Generator().manual_seed(0)
    weights = {}
    with safe_open(Path(target, "model.safetensors"), "pt") as stored:
        for name in stored.keys():  # noqa: SIM118 - it is no dictionary
            if name.endswith("v_proj.weight"):
                rows, columns = stored.get_slice(name).get_shape()
                layer = f"base_model.model.{name.removesuffix('.weight')}"
                weights[f"{layer}.lora_A.weight"] = torch.randn(8, columns, generator=draws)
                weights[f"{layer}.lora_B.weight"] = torch.randn(rows, 8, generator=draws)
    save_file(weights, folder / "adapter_model.safetensors")
    settings = {"peft_type": "LORA", "r": 8, "lora_alpha": 16, "target_modules": ["v_proj"], "bias": "none"}
    Path(folder, "adapter_config.json").write_text(json.dumps(settings))
    return LoRARequest("lora", 1, str(folder))


def _answered(llm: Any, request: Request) -> list[tuple[list[int], dict[str, Any]]]:
    """The new tokens of rows with a switch, and their ends, texts and log-probabilities.

    Which of several equally likely tokens are told is open: so only the numbers are taken.
    """
    import torch
    from vllm.sampling_params import RequestOutputKind

    torch.manual_seed(random.getrandbits(48))
    given = dict(_OF_ROWS.get(str(request.switch), {}))
    if "output_kind" in given:
        given["output_kind"] = RequestOutputKind[given["output_kind"]]
    for number, (prompt, row) in enumerate(zip(request.prompts, request.rows, strict=True)):
        more: dict[str, Any] = {}
        if request.switch == "thinking_token_budget":
            given["thinking_token_budget"] = number % 4
        if request.switch == "enable_lora" and number % 2 == 0:
            more["lora_request"] = lora(llm.model_config.model)
        llm.llm_engine.add_request(str(number), {"prompt_token_ids": prompt}, sampling(row, **given), **more)
    rows: list[list[int]] = [[] for _ in request.prompts]
    beside: list[dict[str, Any]] = [{"text": "", "logprobs": []} for _ in request.prompts]
    while llm.llm_engine.has_unfinished_requests():
        for result in llm.llm_engine.step():
            number, (output,) = int(result.request_id.partition("-")[0]), result.outputs
            told = [
                _numbers(token, place) for token, place in zip(output.token_ids, output.logprobs or (), strict=False)
            ]
            if "output_kind" not in given:
                rows[number], beside[number] = [], {"text": "", "logprobs": []}
            rows[number] += output.token_ids
            beside[number]["text"] += output.text
            beside[number]["logprobs"] += told
            beside[number] |= {"finish_reason": output.finish_reason, "stop_reason": output.stop_reason}
            if result.prompt_logprobs:
                places = zip(request.prompts[number], result.prompt_logprobs, strict=True)
                beside[number]["prompt_logprobs"] = [_numbers(token, place) for token, place in places if place]
    return list(zip(rows, beside, strict=True))


def _numbers(token: int, place: Any) -> list[float]:
    """The log-probability of a token, then those of all tokens told in its place, by their size."""
    return [float(place[token].logprob), *sorted((float(other.logprob) for other in place.values()), reverse=True)]


class Engines:
    """vLLM, one engine for each setting."""

    switches = (*_OF_ROWS, *_OF_ENGINES)

    script = (prepare, architecture, settings_of, Dictated, introduce, start, rules, sampling, ended, decode)
    requirements = "vllm-cpu"

    def open(self) -> None:
        prepare()
        import vllm
        import vllm.entrypoints.llm  # what an engine imports when it starts
        import vllm.model_executor.models.gemma3
        import vllm.model_executor.models.lfm2
        import vllm.model_executor.models.llama
        import vllm.model_executor.models.mistral
        import vllm.v1.engine.llm_engine
        import vllm.v1.structured_output.backend_xgrammar
        import vllm.v1.worker.cpu_model_runner
        import vllm.v1.worker.cpu_worker

        gc.collect()
        gc.freeze()  # or every engine goes through all of that seven times when it starts
        self.version = vllm.__version__
        self.engines: OrderedDict[str, _Engine] = OrderedDict()

    def close(self) -> None:
        for engine in self.engines.values():
            engine.stop()

    def renew(self) -> None:
        """Stop all engines: each runs in a fork, and this process decodes nothing itself."""
        self.close()
        self.engines.clear()

    def load(self, target: str, draft: str, request: Request, **more: Any) -> str:
        """Start the engine for a request, if there is none: its settings."""
        others = _others(target, draft, request) | more
        key = repr(settings_of(target, draft, request) | others)
        if key not in self.engines:
            while len(self.engines) >= _ENGINES:
                self.engines.popitem(last=False)[1].stop()
            self.engines[key] = _Engine((target, draft, request), others)
            try:
                self.engines[key].started()
            except Exception:
                self.engines.pop(key).stop()
                raise
        self.engines.move_to_end(key)
        return key

    def __call__(self, target: str, draft: str, request: Request) -> list[eqcheck.Completion]:
        settings = settings_of(target, draft, request)
        longest = max(
            len(prompt) + row.max_new_tokens for prompt, row in zip(request.prompts, request.rows, strict=True)
        )
        if longest > settings["max_model_len"]:
            raise eqcheck.Unsupported(
                f"a row of more tokens than the {settings['max_model_len']} that an engine may have"
            )
        if request.prefix_caching and request.drafting != "none" and architecture(target) == "lfm2":
            raise eqcheck.Unsupported("on the CPU an LFM2 with drafts and prefix caching ends in its first step")
        if request.switch:
            return self._switched(target, draft, request)
        outputs, self.observed = self._decoded(target, draft, request)
        ends = self.observed.pop("ends")
        return [eqcheck.Completion(tokens, **ends[row]) for row, tokens in enumerate(outputs)]

    def _decoded(self, target: str, draft: str, request: Request, **more: Any) -> tuple[list[Any], dict[str, Any]]:
        key = self.load(target, draft, request, **more)
        try:
            return self.engines[key].decode(request)
        except Exception:
            self.engines.pop(key).stop()
            raise

    def _switched(self, target: str, draft: str, request: Request) -> list[eqcheck.Completion]:
        """Rows with a switch on, with drafts and without."""
        plain = replace(request, drafting="none")
        if request.switch in ("stop", "include_stop_str_in_output", "min_tokens"):  # at two tokens that a row emits
            free, _ = self._decoded(target, draft, replace(plain, switch=None))
            stops = [(tuple(tokens[2:3]), tuple(tokens[8:10])) for tokens in free]
            rows = zip(request.rows, stops, strict=True)
            asked = tuple(replace(row, stop_sequences=tuple(filter(None, stop))) for row, stop in rows)
            request, plain = (replace(each, rows=asked) for each in (request, plain))
        more: dict[str, Any] = {}
        if request.switch == "thinking_token_budget":
            free, _ = self._decoded(target, draft, replace(plain, switch=None))
            begin, *end = [*free[0][1:2], 3, 4, 5][:3]
            said = {"reasoning_start_str": f"[{begin}]", "reasoning_end_str": "".join(f"[{token}]" for token in end)}
            more["reasoning_config"] = said
        with without_drafts(request.switch):
            alone, _ = self._decoded(target, draft, plain, **more)
        told, self.observed = self._decoded(target, draft, request, **more)
        return with_and_without(told, alone)


class _Engine:
    """An engine in a fork of this process."""

    def __init__(self, arguments: tuple[Any, ...], others: dict[str, Any]) -> None:
        context: Any = multiprocessing.get_context("fork")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(arguments, others, theirs, self.pipe))
        self.process.start()
        theirs.close()

    def started(self) -> None:
        """Wait until the engine has started."""
        if failure := self._answer()[1]:
            raise eqcheck.Unsupported(f"the engine does not start: {failure.splitlines()[0]}")

    def decode(self, request: Request) -> tuple[list[list[int]], dict[str, Any]]:
        with suppress(OSError):  # of an engine that is gone, as reading tells
            self.pipe.send((request, random.getrandbits(48)))
        answer, failure = self._answer()
        if failure is not None:
            raise RuntimeError(failure)
        outputs, observed = answer
        return outputs, observed

    def _answer(self) -> Any:
        try:
            return self.pipe.recv()
        except (EOFError, OSError):
            self.process.join(5)
            raise RuntimeError(f"the engine's process ended with exit code {self.process.exitcode}") from None

    def stop(self) -> None:
        self.pipe.close()
        self.process.kill()
        self.process.join()


def _serve(arguments: tuple[Any, ...], others: dict[str, Any], pipe: Any, theirs: Any) -> None:
    """Answer requests until the pipe ends; on Linux the process also ends with its parent."""
    theirs.close()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    try:
        with _tap() as tap:
            llm = start(*arguments, **others)
            pipe.send((None, None))
            while True:
                request, entropy = pipe.recv()
                random.seed(entropy)
                before = _counters(llm)
                observed: dict[str, Any] = {}
                if tap:
                    tap.forget()
                outputs = _answered(llm, request) if request.switch else decode(llm, request, observed)
                observed |= {name: count - before.get(name, 0) for name, count in _counters(llm).items()}
                if tap:
                    observed |= {"contexts": tap.queries, "wrong_context": next(iter(tap.faults()), None)}
                llm.reset_prefix_cache()
                pipe.send(((outputs, observed), None))
    except EOFError:
        return
    except Exception as error:
        pipe.send((None, f"{type(error).__name__}: {error}\n{traceback.format_exc()}"))


def _tap() -> AbstractContextManager[Any]:
    """A tap inside the engine, where one is asked for."""
    if not os.environ.get("EQCHECK_TAP"):
        return nullcontext()
    found: AbstractContextManager[Any] = import_module("eqcheck.adapters.taps.vllm_tap").tapped()
    return found


def _counters(llm: Any) -> dict[str, int]:
    """The counters of the engine since it started."""
    names = {
        "vllm:spec_decode_num_draft_tokens": "drafted",
        "vllm:spec_decode_num_accepted_tokens": "accepted",
        "vllm:num_preemptions": "preemptions",
        "vllm:prefix_cache_hits": "prefix_hits",
    }
    return {names[metric.name]: metric.value for metric in llm.get_metrics() if metric.name in names}


_CLAIMS: dict[str, Any] = {
    "environment": "vllm",
    "kinds": ("full", "window", "mistral", "hybrid"),
    "capabilities": (
        "row-limits",
        "row-eos",
        "stop-sequences",
        "finish-reason",
        "logprobs",
        "prompt-logprobs",
        "cancel",
        "n",
        "min-new-tokens",
        "repetition-penalty",
        "presence-penalty",
        "frequency-penalty",
        "bad-words",
        "allowed-ids",
        "grammar",
        "many-rows",
        "arrivals",
        "token-budget",
        "prefix-caching",
        "kv-blocks",
        "ngram",
        "dictated-drafts",
        "silent-rounds",
        "temperature",
        "top-k",
        "top-p",
        "seeds",
    ),
    "requires": ("sampled-n",),  # the engine refuses several greedy answers
    "seeds": "repeatable",
    "option_order": ("temperature", "min-p", "top-k", "top-p"),
}
ORIGIN = "https://github.com/vllm-project/vllm"
VLLM = eqcheck.decoder(name="vllm", checkpoints=True, origin=ORIGIN, dtype="float32", **_CLAIMS)(Engines)
SERVED = eqcheck.decoder(name="vllm_bfloat16", checkpoints=True, origin=ORIGIN, dtype="bfloat16", **_CLAIMS)(Engines)
