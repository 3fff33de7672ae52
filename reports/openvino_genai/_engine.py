"""What the scripts here share, by eqcheck 0.1.0: the checkpoint, and how the engine is driven."""

import json
import os
import shutil
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace
from typing import Any


def row(prompt, max_new_tokens, **options):
    """A prompt and what is asked for it."""
    asked = SimpleNamespace(max_new_tokens=max_new_tokens, eos_token_ids=(), min_new_tokens=0, arrival=0)
    asked.repetition_penalty, asked.presence_penalty = 1.0, 0.0
    asked.temperature, asked.top_k, asked.top_p, asked.min_p, asked.seed = 0.0, 0, 1.0, 0.0, None
    vars(asked).update(options)
    return prompt, asked


VOCAB_SIZE, POSITIONS = 256, 2048
_SEED = 1
_SPREAD = 0.3
_NOISE = 0.013


def build(folder: Path) -> tuple[str, str]:
    """Write target and draft into a folder; returns where they are."""
    target = target_model()
    for name, model in (("target", target), ("draft", noisy(target))):
        model.save_pretrained(folder / name)
        tokenizer().save(str(folder / name / "tokenizer.json"))
        (folder / name / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    return str(folder / "target"), str(folder / "draft")


def config() -> Any:
    """A tiny Llama."""
    from transformers import LlamaConfig

    return LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=POSITIONS,
        tie_word_embeddings=False,
        initializer_range=_SPREAD,
        bos_token_id=None,
        eos_token_id=None,
    )


def target_model() -> Any:
    """The target: random weights, widely spread."""
    import torch
    from transformers import LlamaForCausalLM

    model = LlamaForCausalLM(config()).float().eval()
    generator = torch.Generator().manual_seed(_SEED)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" not in name:
                parameter.copy_(normal(parameter.shape, _SPREAD, generator))
    return model


def noisy(model: Any) -> Any:
    """The draft: the target with noise on its weights."""
    import torch
    from transformers import LlamaForCausalLM

    draft = LlamaForCausalLM(model.config).float().eval()
    draft.load_state_dict(model.state_dict())
    generator = torch.Generator().manual_seed(_SEED)
    with torch.no_grad():
        for parameter in draft.parameters():
            parameter.add_(normal(parameter.shape, _NOISE, generator))
    return draft


def normal(shape: Any, spread: float, generator: Any) -> Any:
    """Float32 noise of a multiple of 16 numbers: what ``normal_`` draws on x86 with AVX2, on every machine.

    Logarithms, sines and cosines of libraries differ in the last bit, and ``normal_`` itself draws other numbers on a
    CPU without AVX2. Here the Box-Muller transform is written out in additions, products and roots, which round alike
    everywhere; the polynomials are those of Cephes, as torch evaluates them.

    >>> normal((16,), 1.0, torch.Generator().manual_seed(1))[:3].tolist()
    [-1.5255959033966064, -0.7502318024635315, -0.6539809107780457]
    """
    import numpy as np
    import torch

    def fused(a: Any, b: Any, c: Any) -> Any:
        return (a.astype(np.float64) * b + c).astype(np.float32)

    def polynomial(x: Any, *coefficients: float) -> Any:
        first, *others = map(np.float32, coefficients)
        value = np.full_like(x, first)
        for coefficient in others:
            value = fused(value, x, coefficient)
        return value

    number = np.float32
    uniform, angle = torch.rand(shape, generator=generator).numpy().reshape(-1, 2, 8).swapaxes(0, 1)
    x, exponent = np.frexp(number(1) - uniform)
    low = x < number(0.5**0.5)
    exponent = exponent.astype(number) - low
    x = np.where(low, x - number(1) + x, x - number(1))
    log = x * polynomial(
        x, 7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1, -1.6668057665e-1,
        2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1,
    )  # fmt: skip
    square = x * x
    log = fused(log, square, exponent * number(-2.12194440e-4)) - square * number(0.5)
    radius = np.sqrt(number(-2) * (x + log + exponent * number(0.693359375)))

    x = angle * number(2 * np.pi)
    octant = (x * number(4 / np.pi)).astype(np.int32) + 1 & ~1
    for part in (0.78515625, 2.4187564849853515625e-4, 3.77489497744594108e-8):  # together a quarter of pi
        x = fused(octant.astype(number), number(-part), x)
    square = x * x
    sine = fused(polynomial(square, -1.9515295891e-4, 8.3321608736e-3, -1.6666654611e-1) * square, x, x)
    cosine = polynomial(square, 2.443315711809948e-5, -1.388731625493765e-3, 4.166664568298827e-2) * square
    cosine = fused(cosine, square, square * number(-0.5)) + number(1)
    sine, cosine = (np.where(octant & 2, b, a) for a, b in ((sine, cosine), (cosine, sine)))
    sine, cosine = np.where(octant & 4, -sine, sine), np.where(octant + 2 & 4, -cosine, cosine)
    both = np.stack([radius * cosine, radius * sine], 1) * number(spread)
    return torch.from_numpy(both).reshape(shape)


def tokenizer() -> Any:
    """A tokenizer, for engines ask for one even where prompts are token ids; OpenVINO's wants a special token."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())[: VOCAB_SIZE - 2]
    vocabulary = {token: i for i, token in enumerate([*letters, "ab"])}
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=[("a", "b")]))
    made.add_special_tokens(["<end>"])
    return made


def prepare() -> None:
    """Nothing has to be set before the engine is imported."""


def start(target: str, draft: str, request: "Request") -> Any:
    """A pipeline with the request's settings."""
    import openvino_genai

    target, draft = exported(target), exported(draft)
    precise = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32", "INFERENCE_NUM_THREADS": 1}
    scheduler = openvino_genai.SchedulerConfig()
    scheduler.num_kv_blocks = request.kv_blocks or 1000
    if request.token_budget:
        scheduler.max_num_batched_tokens = request.token_budget
    if request.prefix_caching is not None:
        scheduler.enable_prefix_caching = request.prefix_caching
    properties = dict(precise)
    if request.drafting == "model":
        properties["draft_model"] = openvino_genai.draft_model(draft, "CPU", **precise)
    elif request.drafting == "ngram":
        properties["prompt_lookup"] = True
    return openvino_genai.ContinuousBatchingPipeline(target, scheduler, "CPU", properties)


def exported(folder: str) -> str:
    """The checkpoint for OpenVINO, with the tokenizer that the pipeline asks for; made on first use."""
    made = Path(folder).with_name(f"{Path(folder).name}-openvino")
    if made.is_dir():
        return str(made)
    import openvino
    from openvino_tokenizers import convert_tokenizer
    from optimum.intel import OVModelForCausalLM
    from transformers import AutoTokenizer

    temporary = Path(tempfile.mkdtemp(prefix=f".{made.name}.", dir=made.parent))
    model = OVModelForCausalLM.from_pretrained(folder, export=True, load_in_8bit=False, compile=False)
    model.save_pretrained(temporary)
    tokenizers = convert_tokenizer(AutoTokenizer.from_pretrained(folder), with_detokenizer=True)
    for name, converted in zip(("tokenizer", "detokenizer"), tokenizers, strict=True):
        openvino.save_model(converted, temporary / f"openvino_{name}.xml")
    try:
        os.rename(temporary, made)
    except OSError:  # another process was faster
        shutil.rmtree(temporary)
    return str(made)


def generation_config(row: "RowOptions", request: "Request") -> Any:
    """What one row asks for."""
    import random

    import openvino_genai

    config = openvino_genai.GenerationConfig()
    config.max_new_tokens = row.max_new_tokens
    config.do_sample = row.temperature > 0
    if config.do_sample:
        config.temperature = row.temperature
        config.top_k = row.top_k or 2**31
        config.top_p = row.top_p
        config.min_p = row.min_p
        config.rng_seed = random.getrandbits(31) if row.seed is None else row.seed
    config.repetition_penalty = row.repetition_penalty
    config.presence_penalty = row.presence_penalty
    config.ignore_eos = not row.eos_token_ids
    config.eos_token_id = row.eos_token_ids[0] if row.eos_token_ids else 0
    config.stop_token_ids = set(row.eos_token_ids) or {0}
    if row.eos_token_ids:  # a minimum holds back whatever is an EOS, also where EOS are ignored
        config.min_new_tokens = row.min_new_tokens
    if request.drafting != "none":
        config.num_assistant_tokens = request.num_draft_tokens
    if request.drafting == "ngram":
        config.max_ngram_size = 2
    return config


def decode(pipeline: Any, request: "Request", observed: dict[str, int] | None = None) -> list[list[int]]:
    """The new tokens of each row; a row that arrives late is handed over after so many steps."""
    import numpy
    import openvino

    prompts = [openvino.Tensor(numpy.array([prompt], dtype=numpy.int64)) for prompt in request.prompts]
    configs = [generation_config(row, request) for row in request.rows]
    observed = {} if observed is None else observed
    if not any(row.arrival for row in request.rows):
        results = pipeline.generate(prompts, configs)
        metrics = results[0].extended_perf_metrics
        if metrics is not None:
            observed.update(drafted=metrics.get_num_draft_tokens(), accepted=metrics.get_num_accepted_tokens())
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
    return [list(handles[row].read_all()[0].generated_ids) for row in range(len(prompts))]


def run(target, draft, request):
    """Decode in a process of its own."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(decoded, target, draft, request).result()


def decoded(target, draft, request):
    prepare()
    return decode(start(target, draft, request), request)


def main(rows, settings, expected):
    """Decode with speculation and without, show the wrong rows, and end with the exit code."""
    prompts, options = zip(*rows)
    request = SimpleNamespace(prompts=list(prompts), rows=list(options), **settings)
    folder = Path(tempfile.mkdtemp())
    try:
        target, draft = build(folder)
        plain = run(target, draft, SimpleNamespace(**{**vars(request), "drafting": "none"}))
        try:
            speculative = run(target, draft, request)
        except Exception as error:
            print(f"without speculation: {plain}")
            print(f"WRONG: {type(error).__name__}: {error}")
            sys.exit(1)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    wrong = [number for number, right in enumerate(expected) if speculative[number] != right]
    for number in wrong:
        print(f"row {number} of {len(expected)}: WRONG")
        print(f"  expected                        {expected[number]}")
        print(f"  the engine without speculation  {plain[number]}")
        print(f"  the engine with speculation     {speculative[number]}")
    print(f"{len(wrong)} of {len(expected)} rows are wrong")
    sys.exit(bool(wrong))
