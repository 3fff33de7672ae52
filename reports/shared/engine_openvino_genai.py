"""How OpenVINO GenAI is driven, for the scripts of `reports/openvino_genai` and `reports/openvino_genai_bfloat16`; by eqcheck 0.3.0."""

import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any


def prepare() -> None:
    """Nothing has to be set before the engine is imported."""


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


def spelled_rules(row: Any, before: str = "") -> str:
    """The same rules a letter at a time, with ``before`` each text: no two alternatives begin alike.

    Of alternatives that begin alike, some versions of xgrammar allow others as well
    (https://github.com/mlc-ai/xgrammar/issues/618).

    >>> from types import SimpleNamespace
    >>> row = SimpleNamespace(eos_token_ids=(9,), grammar=((0, (14, 15), 1), (1, (6, 9), 0), (1, (), 1)))
    >>> print(spelled_rules(row))
    root ::= s0
    s0 ::= "[" ("1" ("4" ("]" s1) | "5" ("]" s1)))
    s1 ::= "[" ("6" ("]" s0) | "9" ("]" s1)) | ""
    """

    def spelled(texts: dict[str, int]) -> str:
        begun: dict[str, dict[str, int]] = {}
        for text, after in texts.items():
            begun.setdefault(text[0], {})[text[1:]] = after
        alike = [(letter, f"s{rest['']}" if "" in rest else f"({spelled(rest)})") for letter, rest in begun.items()]
        return " | ".join(f'"{letter}" {rest}' for letter, rest in alike)

    states: dict[int, dict[str, int]] = {}
    for state, ids, after in row.grammar:
        named = [token for token in ids if token not in row.eos_token_ids] if ids else row.eos_token_ids
        leads = dict.fromkeys((f"{before}[{token}]" for token in named), after if ids else state)
        states.setdefault(state, {}).update(leads)
    # An EOS of the row is a stop token of the matcher: it is allowed for sure where it is text and the rules may end.
    ends = {state for state, ids, _ in row.grammar if not ids and row.eos_token_ids}
    rules = [f"s{state} ::= {spelled(texts)}" + ' | ""' * (state in ends) for state, texts in states.items()]
    return "\n".join(["root ::= s0", *rules])


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
    """How a row ended, as the engine tells it: not by which stop, and an older version tells nothing."""
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
