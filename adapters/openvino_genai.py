"""OpenVINO GenAI: its continuous batching pipeline with a draft model, or with prompt lookup.

The checkpoint is exported once, with optimum-intel, into a folder beside it. An older OpenVINO than optimum-intel goes
with takes what a newer one exported, but for the tokenizer. `openvino_genai` computes in float32, the KV cache too. The
pipeline of `openvino_genai_bfloat16` is as it ships: keys and values have 8 bits, and it computes in bfloat16 if the
CPU does; else requests are declined. A request that names no seed is given the seed 0 by the pipeline, as every other
one: so sampled rows without a seed are given a fresh one here.
"""

import os
import shutil
import tempfile
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import eqcheck
from eqcheck.contract.completion import with_and_without
from eqcheck.contract.decoders import Request, RowOptions
from eqcheck.contract.errors import without_drafts
from eqcheck.contract.options import spelled_rules

_PIPELINES = 4  # kept at a time
_SPECIAL = 255  # of the tokenizers of checkpoints


def prepare() -> None:
    """Do nothing: this engine needs no settings before its import."""


def start(target: str, draft: str, request: "Request", **scheduled: Any) -> Any:
    """A pipeline with the request's settings, and others of the scheduler."""
    import openvino_genai

    target, draft = exported(target), exported(draft)
    precise: dict[str, Any] = {"INFERENCE_NUM_THREADS": 1}
    if request.dtype == "float32":
        precise |= {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}
    scheduler = openvino_genai.SchedulerConfig()
    scheduler.num_kv_blocks = request.kv_blocks or 1000
    if request.token_budget:
        scheduler.max_num_batched_tokens = request.token_budget
    if request.prefix_caching is not None:
        scheduler.enable_prefix_caching = request.prefix_caching
    for name, value in scheduled.items():
        setattr(scheduler, name, value)
    properties = dict(precise)
    if request.drafting == "model":
        properties["draft_model"] = openvino_genai.draft_model(draft, "CPU", **precise)
    elif request.drafting == "ngram":
        properties["prompt_lookup"] = True
    return openvino_genai.ContinuousBatchingPipeline(target, scheduler, "CPU", properties)


def shipped_dtype() -> str:
    """The dtype in which a model is computed on this CPU, if nobody asks for another."""
    import openvino

    name = str(openvino.Core().get_property("CPU", "INFERENCE_PRECISION_HINT").get_type_name())
    return {"bf16": "bfloat16", "f16": "float16", "f32": "float32"}.get(name, name)


def exported(folder: str) -> str:
    """The checkpoint for this version of OpenVINO, with the tokenizer that the pipeline asks for; made on first use."""
    import zlib

    import openvino

    def export(made: Path) -> None:
        from optimum.intel import OVModelForCausalLM

        OVModelForCausalLM.from_pretrained(folder, export=True, load_in_8bit=False, compile=False).save_pretrained(made)

    def convert(made: Path) -> None:
        from openvino_tokenizers import convert_tokenizer
        from transformers import AutoTokenizer

        shutil.copytree(model, made, dirs_exist_ok=True)
        tokenizers = convert_tokenizer(AutoTokenizer.from_pretrained(folder), with_detokenizer=True)
        for name, converted in zip(("tokenizer", "detokenizer"), tokenizers, strict=True):
            openvino.save_model(converted, made / f"openvino_{name}.xml")

    weights = zlib.crc32(Path(folder, "model.safetensors").read_bytes())  # other ones may be written there later
    model = once(Path(f"{folder}-openvino-{weights:08x}"), export)
    # An older version crashes on a tokenizer of a newer one.
    return str(once(Path(f"{model}-{openvino.get_version().replace('/', '-')}"), convert))


def once(made: Path, make: Any) -> Path:
    """A folder that is made on first use; another process may make it at the same time."""
    if not made.is_dir():
        temporary = Path(tempfile.mkdtemp(prefix=f".{made.name}.", dir=made.parent))
        try:
            make(temporary)
            os.rename(temporary, made)
        except OSError:
            if not made.is_dir():
                raise
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    return made


def generation_config(row: "RowOptions", request: "Request") -> Any:
    """The options of one row, as the engine takes them."""
    import random

    import openvino_genai

    config = openvino_genai.GenerationConfig()
    config.max_new_tokens = row.max_new_tokens
    config.do_sample = row.temperature > 0
    if config.do_sample:
        config.temperature = row.temperature
        config.top_k = row.top_k or 2**31
        config.top_p = row.top_p
        if row.min_p:
            config.min_p = row.min_p
        config.rng_seed = random.getrandbits(31) if row.seed is None else row.seed
    config.repetition_penalty = row.repetition_penalty
    config.presence_penalty = row.presence_penalty
    config.ignore_eos = not row.eos_token_ids
    # There has to be one. It does not count in a grammar, even where it ends no row: so none is taken that is emitted.
    eos = row.eos_token_ids or (256 if row.grammar else 0,)
    config.eos_token_id, config.stop_token_ids = eos[0], set(eos)
    # The texts of the converted tokenizer have spaces between tokens.
    config.stop_strings = {" ".join(f"[{token}]" for token in stop) for stop in row.stop_sequences}
    config.include_stop_str_in_output = True
    if row.grammar:
        rules = spelled_rules(row, before=" ")  # the spaces between tokens
        config.structured_output_config = openvino_genai.StructuredOutputConfig(grammar=rules)
    if row.eos_token_ids:  # a minimum holds back whatever is an EOS, also where EOS are ignored
        config.min_new_tokens = row.min_new_tokens
    config.logprobs = int(row.logprobs)
    if request.drafting != "none":
        config.num_assistant_tokens = request.num_draft_tokens
    if request.drafting == "ngram":
        config.max_ngram_size = 2
    return config


def ended(reasons: Any) -> dict[str, Any]:
    """Return how a row ended, as the engine tells it: not by which stop, and an older version tells nothing."""
    reason = str(reasons[0]).rpartition(".")[2].lower() if reasons else ""
    return {"finish_reason": reason if reason in ("stop", "length") else None}


def decode(pipeline: Any, request: "Request", observed: dict[str, Any] | None = None) -> list[list[int]]:
    """The new tokens of each row; a row that arrives late is handed over after so many steps."""
    import numpy
    import openvino

    prompts = [openvino.Tensor(numpy.array([prompt], dtype=numpy.int64)) for prompt in request.prompts]
    configs = [generation_config(row, request) for row in request.rows]
    observed = {} if observed is None else observed
    if not any(row.arrival or row.logprobs for row in request.rows):  # with `generate` no log-probability is told
        results = pipeline.generate(prompts, configs)
        metrics = results[0].extended_perf_metrics
        if hasattr(metrics, "get_num_draft_tokens"):  # an older version does not count them
            observed.update(drafted=metrics.get_num_draft_tokens(), accepted=metrics.get_num_accepted_tokens())
        observed["ends"] = [ended(getattr(result, "finish_reasons", ())) for result in results]
        return [list(result.m_generation_ids[0]) for result in results]
    waiting = sorted(range(len(prompts)), key=lambda row: request.rows[row].arrival)
    handles: dict[int, Any] = {}
    step = 0
    while waiting or pipeline.has_non_finished_requests():
        while waiting and (request.rows[waiting[0]].arrival <= step or not pipeline.has_non_finished_requests()):
            row = waiting.pop(0)
            observed["late_rows"] = observed.get("late_rows", 0) + (step > 0)
            handles[row] = pipeline.add_request(row, prompts[row], configs[row])
        pipeline.step()
        step += 1
    if any(str(handle.get_status()).endswith("IGNORED") for handle in handles.values()):
        raise eqcheck.Unsupported("the requests do not fit into its KV blocks together: it drops them, and says so")
    told = [next(iter(handles[row].read_all()), None) for row in range(len(prompts))]  # a row may be left without one
    observed["ends"] = [ended([answer.finish_reason] if answer else ()) for answer in told]
    for options, answer, end in zip(request.rows, told, observed["ends"], strict=True):
        if answer and options.logprobs:
            end["logprobs"] = list(map(float, answer.generated_log_probs))
    return [list(answer.generated_ids) if answer else [] for answer in told]


# Options that no target can be asked about: of a row, and of the scheduler, by the name of a switch.
_OF_ROWS: dict[str, dict[str, Any]] = {
    "top_k_1": {"do_sample": True, "temperature": 1.5, "top_k": 1},
    "top_p_0": {"do_sample": True, "top_p": 1e-6},
    "min_p_1": {"do_sample": True, "min_p": 0.999},
    "temperature_0": {"do_sample": True, "temperature": 1e-4},
    "max_length": {"max_new_tokens": 2**64 - 1},
    "ignore_eos": {"ignore_eos": True},
    "echo": {"echo": True},
    "max_ngram_size": {"max_ngram_size": 4},
    "num_assistant_tokens": {"num_assistant_tokens": 20},
    "assistant_confidence_threshold": {"num_assistant_tokens": 0, "assistant_confidence_threshold": 0.4},
    "stop_strings": {},
    "include_stop_str_in_output": {"include_stop_str_in_output": False},
}
_WITH = {  # other drafting has no such option
    "num_assistant_tokens": ("model", "ngram"),
    "assistant_confidence_threshold": ("model",),
    "max_ngram_size": ("ngram",),
}
_OF_SCHEDULERS: dict[str, dict[str, Any]] = {
    "dynamic_split_fuse": {"dynamic_split_fuse": False},
    "max_num_seqs": {"max_num_seqs": 2},
    "cache_size": {"num_kv_blocks": 0, "cache_size": 1},
}


def _generated(pipeline: Any, request: Request, stops: Sequence[str] = ()) -> list[tuple[list[int], dict[str, Any]]]:
    """The new tokens of rows with a switch, and the end and the score that are told beside them."""
    import numpy
    import openvino

    prompts = [openvino.Tensor(numpy.array([prompt], dtype=numpy.int64)) for prompt in request.prompts]
    configs = [generation_config(row, request) for row in request.rows]
    for prompt, config, stop in zip(request.prompts, configs, stops or [""] * len(configs), strict=True):
        config.stop_strings = {stop} - {""}
        config.max_length = len(prompt) + 7  # counts where there is no limit of new tokens
        switch = request.switch or ""
        if request.drafting in _WITH.get(switch, (request.drafting,)):
            for name, value in _OF_ROWS.get(switch, {}).items():
                setattr(config, name, value)
    results = pipeline.generate(prompts, configs)
    return [
        (list(answer.m_generation_ids[0]), ended(answer.finish_reasons) | {"score": float(answer.m_scores[0])})
        for answer in results
    ]


class Pipelines:
    """OpenVINO GenAI, one pipeline for each setting."""

    switches = (*_OF_ROWS, *_OF_SCHEDULERS)

    script = (prepare, start, exported, once, spelled_rules, generation_config, ended, decode)
    requirements = "openvino-genai, optimum-intel[openvino], torch"

    def open(self) -> None:
        import openvino_genai

        prepare()
        self.version = openvino_genai.get_version()
        self.has_min_p = hasattr(openvino_genai.GenerationConfig, "min_p")
        self.pipelines: OrderedDict[Any, Any] = OrderedDict()

    def close(self) -> None:
        self.pipelines.clear()

    def renew(self) -> None:
        """Drop all pipelines: what is cached, and what is left of a request, is in them."""
        self.pipelines.clear()

    def load(self, target: str, draft: str, request: Request) -> Any:
        """The pipeline with the settings of a request, and its key."""
        if request.dtype != "float32" and (used := shipped_dtype()) != request.dtype:
            raise eqcheck.Unsupported(f"as it ships, the engine computes in {used} on this CPU")
        settings = (
            *(target, draft, request.dtype, request.drafting),
            *(request.token_budget, request.kv_blocks, request.prefix_caching),
            *(scheduled := _OF_SCHEDULERS.get(request.switch or "", {})),
        )
        if settings not in self.pipelines:
            while len(self.pipelines) >= _PIPELINES:
                self.pipelines.popitem(last=False)
            try:
                self.pipelines[settings] = start(target, draft, request, **scheduled)
            except ImportError as error:
                raise eqcheck.Unsupported(f"the checkpoint cannot be exported under this version: {error}") from error
            except (RuntimeError, ValueError) as error:
                raise eqcheck.Unsupported(f"the pipeline does not start: {' '.join(str(error).split())}") from error
        self.pipelines.move_to_end(settings)
        return self.pipelines[settings], settings

    def __call__(self, target: str, draft: str, request: Request) -> list[eqcheck.Completion]:
        if request.switch:
            return self._switched(target, draft, request)
        if any(_SPECIAL in stop for row in request.rows for stop in row.stop_sequences):
            raise eqcheck.Unsupported(
                f"a stop string with the special token {_SPECIAL}: the engine's texts leave it out"
            )
        if any(row.grammar and row.presence_penalty for row in request.rows):
            raise eqcheck.Unsupported("a presence penalty beside a grammar: scores below zero rise by it here")
        if any(row.min_p for row in request.rows) and not self.has_min_p:
            raise eqcheck.Unsupported("min_p: this version does not have it")
        pipeline, settings = self.load(target, draft, request)
        self.observed: dict[str, Any] = {}
        try:
            outputs = decode(pipeline, request, self.observed)
        except Exception:
            self.pipelines.pop(settings)  # it may hold rows that never end
            raise
        completions = []
        for row, tokens, end in zip(request.rows, outputs, self.observed.pop("ends"), strict=True):
            if len(tokens) == row.max_new_tokens and row.ended(tokens):
                end["finish_reason"] = None  # the limit, without drafts too, though a stop ends the row there
            completions.append(eqcheck.Completion(tokens, **end))
        return completions

    def _switched(self, target: str, draft: str, request: Request) -> list[eqcheck.Completion]:
        """Rows with a switch on, with drafts and without."""
        plain, _ = self.load(target, draft, replace(request, drafting="none"))
        stops: list[str] = []
        if "stop" in str(request.switch):  # two tokens that a row emits
            free = _generated(plain, replace(request, drafting="none", switch=None))
            stops = [" ".join(f"[{token}]" for token in tokens[3:5]) for tokens, _ in free]
        with without_drafts(request.switch):
            alone = _generated(plain, replace(request, drafting="none"), stops)
        pipeline, settings = self.load(target, draft, request)
        try:
            told = _generated(pipeline, request, stops)
        except Exception:
            self.pipelines.pop(settings)
            raise
        return with_and_without(told, alone)


_CLAIMS: dict[str, Any] = {
    "environment": "openvino_genai",
    "kinds": ("full", "mistral"),
    "capabilities": (
        "row-limits",
        "row-eos",
        "finish-reason",
        "logprobs",
        "min-new-tokens",
        "repetition-penalty",
        "presence-penalty",
        "grammar",
        "many-rows",
        "arrivals",
        "token-budget",
        "prefix-caching",
        "kv-blocks",
        "ngram",
        "temperature",
        "top-k",
        "top-p",
        "min-p",
        "seeds",
    ),
    "seeds": "repeatable",
}
ORIGIN = "https://github.com/openvinotoolkit/openvino.genai"
OpenVINO = eqcheck.decoder(name="openvino_genai", checkpoints=True, origin=ORIGIN, dtype="float32", **_CLAIMS)(
    Pipelines
)
SERVED = eqcheck.decoder(name="openvino_genai_bfloat16", checkpoints=True, origin=ORIGIN, dtype="bfloat16", **_CLAIMS)(
    Pipelines
)
