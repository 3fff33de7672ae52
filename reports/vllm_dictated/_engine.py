"""What the scripts here share, by eqcheck 0.2.0: the checkpoint, and how the engine is driven."""

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
    """What has to be set before vLLM is imported."""
    os.environ.update(
        VLLM_ENABLE_V1_MULTIPROCESSING="0",
        VLLM_CPU_KVCACHE_SPACE="1",
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
        "dtype": "float32",
        "skip_tokenizer_init": True,
        "enforce_eager": True,
        "max_model_len": 1024,
        "max_num_seqs": rows,
        "block_size": kv_block,  # the CPU backend's own 128 is more than most rows have
        "disable_log_stats": False,
    }
    if request.prefix_caching is not None:
        settings["enable_prefix_caching"] = request.prefix_caching
    if request.kv_blocks:  # one row of the greatest length must fit, or the engine does not start
        settings["num_gpu_blocks_override"] = request.kv_blocks
        settings["max_model_len"] = (request.kv_blocks - 1) * kv_block - k - 1
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
    """What the engine asks for draft tokens; ``drafts`` are a request's, ``proposed[row][new tokens]`` what it got."""

    runner: Any = None  # of the engine in this process; it knows which request is where in the batch
    drafts: Any = ()
    proposed: Any = None

    def __init__(self, config: Any) -> None:
        self.k = config.speculative_config.num_speculative_tokens

    def load_model(self, model: Any) -> None:
        """There is none."""

    def propose(self, sampled: Any, lengths: Any, tokens: Any, slot_mappings: Any = None) -> list[list[int]]:
        """Draft tokens for each row of the batch; none for one whose prompt is not yet done."""
        batch, found = self.runner.input_batch, []
        for index, new in enumerate(sampled):
            row = int(batch.req_ids[index].partition("-")[0])
            count = int(lengths[index] - batch.num_prompt_tokens[index])
            found.append(list(self.drafts[row][count : count + self.k]) if new else [])
            self.proposed.setdefault(row, {})[count] = found[-1]
        return found


def introduce(worker: Any) -> None:
    """Tell the proposer of an engine which engine it is in."""
    Dictated.runner = worker.model_runner


def start(target: str, draft: str, request: "Request") -> Any:
    """An engine with the request's settings."""
    from vllm import LLM

    llm = LLM(**settings_of(target, draft, request))
    llm.collective_rpc(introduce)
    return llm


def sampling(row: "RowOptions") -> Any:
    """What one row asks for."""
    from vllm import SamplingParams

    return SamplingParams(
        temperature=row.temperature,
        top_k=row.top_k,
        top_p=row.top_p,
        seed=row.seed,
        max_tokens=row.max_new_tokens,
        min_tokens=row.min_new_tokens,
        stop_token_ids=list(row.eos_token_ids),
        repetition_penalty=row.repetition_penalty,
        presence_penalty=row.presence_penalty,
        detokenize=False,
    )


def decode(llm: Any, request: "Request", observed: dict[str, Any] | None = None) -> list[list[int]]:
    """The new tokens of each row; a row that arrives late is handed over after so many steps."""
    import random

    import torch

    torch.manual_seed(random.getrandbits(48))
    engine, observed = llm.llm_engine, {} if observed is None else observed
    waiting = sorted(range(len(request.prompts)), key=lambda row: request.rows[row].arrival)
    outputs: dict[int, list[int]] = {}
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
            row, tokens = int(result.request_id.partition("-")[0]), list(result.outputs[0].token_ids)
            before = len(outputs.get(row, ()))
            if request.drafting == "dictated" and before:
                rounds[row].append([before, Dictated.proposed[row][before], len(tokens)])
            outputs[row] = tokens
        step += 1
    observed.update(steps=step, rounds=rounds)
    return [outputs[row] for row in range(len(request.prompts))]


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
