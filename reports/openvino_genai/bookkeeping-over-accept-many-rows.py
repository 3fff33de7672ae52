"""openvino_genai: wrong token, found by eqcheck 0.1.0.

openvino_genai 2026.4.1.0-3408-ab01d1771e4. Needs many-rows. Without speculation the engine is right.
bookkeeping/over-accept: a draft token is emitted that the target rejected. draft tokens are emitted that the
target never verified, and its predictions for their places after them; explains 3 of 3 wrong tokens, by
chance with probability 0.01

    python <this file>        # exit code 1: shown, 0: not shown; needs openvino-genai, optimum-intel[openvino], torch
"""

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
    vars(asked).update(options)
    return prompt, asked


ROWS = [
    row([251, 73, 127, 66, 254, 45, 166, 167, 96, 210, 123, 55, 190, 174, 247, 135, 250, 102, 188, 62, 100, 99, 80, 28, 207, 6, 94, 212], 20),
    row([49, 203, 9, 195, 139, 42, 200, 225, 18, 226, 33, 62, 55, 228, 7, 227, 245, 71, 102], 20),
    row([80, 9, 215, 14, 30, 55, 117, 174, 83, 91, 57, 78, 148, 207, 192, 208, 138, 114, 216, 22], 20),
    row([209, 186, 44, 165, 202, 88, 236, 47, 135, 133, 16, 157, 224, 43, 46, 114], 20),
    row([41, 253, 128, 106, 78, 27, 203, 95, 85, 15, 106, 111, 185, 1, 133, 240, 84, 213, 9, 20, 24, 254, 118, 45, 9, 67, 6, 251, 140, 113], 20),
    row([72, 14, 184, 2, 92, 171, 75, 138, 202, 199, 166, 85, 180, 234, 197, 115, 253, 113, 211, 69, 199, 196, 232, 240, 209, 136, 32, 229, 129, 248, 212, 37, 51, 50], 20),
    row([146, 56, 130, 87, 249, 145, 253, 153, 249, 186, 83, 23, 157], 20),
    row([160, 125, 13, 245, 130, 144, 192, 2, 87, 166, 159, 223, 146, 169, 228, 225, 209, 59], 20),
    row([46, 140, 50, 199, 69, 33, 56, 80, 192, 125, 53, 181, 26, 195, 148, 231, 235, 53, 44, 143, 166, 111, 243, 79, 81, 41, 117, 174, 20, 80, 204], 20),
    row([163, 49, 255, 102, 188, 205, 70, 154, 180, 62, 145, 7, 231, 205], 20),
    row([207, 220, 180, 252, 226, 92, 218, 173, 134, 176], 20),
    row([185, 153, 26, 39, 75, 115, 205, 90, 80, 91, 113, 216, 179, 13, 108, 169, 30, 227, 0, 245, 115, 70, 249, 209, 241, 221, 24, 57, 45, 56, 74, 40, 19, 253, 209, 92, 230, 240, 13], 20),
    row([193, 108, 16, 57, 227, 43, 208, 87, 204, 134, 115, 133, 241, 209, 242, 143, 149, 80, 198, 247, 97], 20),
    row([221, 175, 28, 75, 169, 105, 238, 69, 179, 96, 15, 255, 206, 226, 102, 153, 203, 16], 20),
    row([51, 36], 20),
    row([177, 98, 124, 241, 167, 26, 37, 63, 188, 184, 100, 79, 204, 207, 75, 168, 200, 72, 141, 138, 226, 222], 20),
    row([192, 137, 134, 224, 4, 216, 41, 239, 3, 113, 224, 119, 148, 20, 170, 5, 40, 174, 197, 138, 37, 79, 86, 26, 247, 219, 208, 91, 7, 239, 9, 23, 181], 20),
    row([215, 201, 174, 11, 145, 28, 96], 20),
    row([189, 167, 142, 40, 66, 118, 193, 33, 57, 51, 238, 138, 209, 63, 97, 69, 176, 173, 191, 37, 74, 92, 225, 25, 89], 20),
    row([229, 119, 172, 75, 182, 174, 220, 120, 223, 132], 20),
    row([167, 253, 152, 108, 5, 145, 254, 132, 103, 174, 69, 179, 44, 221, 239, 140, 115, 253, 35, 186, 47, 24, 189, 21, 104, 60, 248, 169, 21, 246, 193], 20),
]
SETTINGS = {'num_draft_tokens': 5, 'drafting': 'model', 'token_budget': None, 'kv_blocks': None, 'prefix_caching': None}

# What the target emits for each row, in float64, alone.
EXPECTED = [[149, 139, 51, 166, 109, 188, 172, 28, 105, 108, 131, 55, 83, 126, 2, 62, 27, 227, 41, 212], [197, 254, 25, 188, 212, 27, 119, 98, 0, 251, 239, 65, 250, 38, 17, 202, 241, 139, 182, 134], [98, 83, 254, 0, 201, 37, 201, 54, 135, 47, 237, 109, 12, 219, 105, 84, 182, 201, 126, 251], [168, 89, 70, 33, 50, 41, 41, 180, 172, 196, 50, 0, 128, 90, 145, 69, 237, 9, 141, 31], [238, 65, 241, 35, 130, 49, 37, 189, 105, 20, 203, 62, 201, 65, 83, 154, 110, 27, 159, 127], [219, 223, 237, 222, 187, 19, 37, 41, 116, 12, 92, 14, 140, 133, 255, 248, 242, 190, 55, 152], [244, 239, 255, 107, 251, 101, 8, 23, 149, 20, 41, 80, 139, 180, 185, 36, 101, 193, 63, 222], [250, 194, 126, 135, 126, 255, 25, 109, 11, 241, 209, 218, 49, 88, 202, 108, 84, 200, 240, 64], [223, 154, 56, 143, 161, 64, 188, 16, 240, 114, 32, 221, 243, 33, 222, 250, 177, 37, 52, 116], [255, 254, 19, 37, 184, 48, 126, 19, 37, 35, 41, 80, 194, 89, 27, 41, 185, 13, 98, 27], [137, 5, 87, 41, 113, 159, 41, 141, 41, 55, 255, 119, 164, 41, 241, 49, 143, 49, 222, 208], [156, 250, 15, 121, 198, 136, 65, 33, 201, 150, 180, 188, 122, 242, 181, 47, 135, 19, 2, 222], [156, 122, 250, 201, 178, 201, 60, 185, 130, 255, 205, 49, 243, 254, 251, 62, 55, 105, 91, 49], [241, 182, 198, 213, 62, 41, 41, 41, 5, 139, 16, 252, 142, 213, 239, 116, 39, 130, 124, 37], [69, 48, 57, 109, 64, 31, 211, 241, 228, 39, 134, 156, 141, 222, 101, 170, 251, 228, 35, 63], [220, 249, 130, 188, 17, 188, 180, 80, 2, 153, 166, 188, 131, 247, 188, 47, 114, 41, 19, 244], [66, 219, 241, 177, 68, 68, 228, 201, 126, 37, 188, 152, 141, 122, 17, 155, 165, 238, 56, 165], [46, 143, 9, 126, 221, 251, 86, 183, 199, 234, 35, 2, 143, 76, 3, 188, 164, 188, 111, 114], [116, 234, 197, 130, 114, 147, 241, 61, 21, 141, 101, 30, 41, 32, 139, 203, 219, 185, 34, 56], [108, 21, 128, 114, 130, 91, 228, 221, 3, 116, 19, 83, 157, 186, 130, 19, 65, 111, 201, 168], [251, 197, 166, 23, 46, 37, 183, 220, 207, 209, 250, 126, 2, 183, 27, 41, 244, 2, 95, 98]]

VOCAB_SIZE = 256
POSITIONS = 2048
_SEED, _SPREAD, _NOISE = 1, 0.3, 0.013


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
    import openvino_genai

    config = openvino_genai.GenerationConfig()
    config.max_new_tokens = row.max_new_tokens
    config.do_sample = False
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


def request(drafting=SETTINGS["drafting"]):
    prompts, rows = zip(*ROWS)
    return SimpleNamespace(prompts=list(prompts), rows=list(rows), **{**SETTINGS, "drafting": drafting})


def run(target, draft, asked):
    """Decode in a process of its own."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(decoded, target, draft, asked).result()


def decoded(target, draft, asked):
    prepare()
    return decode(start(target, draft, asked), asked)


def main():
    folder = Path(tempfile.mkdtemp())
    try:
        target, draft = build(folder)
        plain = run(target, draft, request("none"))
        try:
            speculative = run(target, draft, request())
        except Exception as error:
            print(f"without speculation: {plain}")
            print(f"WRONG: {type(error).__name__}: {error}")
            return 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    wrong = [row for row, expected in enumerate(EXPECTED) if speculative[row] != expected]
    for row in wrong:
        print(f"row {row} of {len(EXPECTED)}: WRONG")
        print(f"  expected                        {EXPECTED[row]}")
        print(f"  the engine without speculation  {plain[row]}")
        print(f"  the engine with speculation     {speculative[row]}")
    print(f"{len(wrong)} of {len(EXPECTED)} rows are wrong")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
