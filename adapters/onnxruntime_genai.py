"""onnxruntime-genai on the CPU: a draft model beside the target, or n-grams of the row, one row after the other.

The engine has no speculation for batches. Its model builder writes a checkpoint as ONNX. EOS ids are the model's, so
rows with other ids have a model of their own, of the same files, and no id is the pad: the engine takes a pad at the
end of a prompt for none of its tokens. With prefix caching, a greedy row goes on in the generator of an earlier row of
its request with the same options: that one is rewound to what both begin with, and the rest of the prompt is appended.
Its row was left at its limit, where drafts may be pending.

Layers with a window keep all of their cache. In the builder's default they drop what left the window, and then a round
that rejects a draft ends with "Cannot rewind". Kinds that are missing: a Mistral is written without its window, an LFM2
takes no drafts, others have no writer. float16 ends with errors on a CPU; int8 and int4 change what is computed.
"""

import os
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import eqcheck
from eqcheck.contract.decoders import Request


def prepare() -> None:
    """Settings that are read when the engine's builder is imported."""
    os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")


def export(source: str, made: Path) -> dict[str, Any]:
    """A checkpoint as the engine's builder writes it in float32, and what the engine is told of it."""
    import contextlib
    import io
    import json

    from onnxruntime_genai.models.builder import create_model, parse_extra_options

    asked = "", source, str(made), "fp32", "cpu", str(made.parent / "cache")
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        options = parse_extra_options(*asked, ["hf_token=false", "windowed_kv_cache=false"])
        config = options["hf_details"]["hf_config"]
        if config.model_type == "gemma3_text":  # the builder reads what transformers 4 wrote
            rope = config.rope_parameters
            config.rope_local_base_freq = rope["sliding_attention"]["rope_theta"]
            config.rope_parameters = rope["full_attention"]
        if config.eos_token_id is None:
            config.eos_token_id = 0  # the builder wants one; rows have their own
        create_model(*asked, **options)
    told: dict[str, Any] = json.loads((made / "genai_config.json").read_text())
    told["model"]["pad_token_id"] = -1
    told["model"]["decoder"]["session_options"]["intra_op_num_threads"] = 1
    told["model"]["decoder"]["filename"] = f"{made.name}/model.onnx"
    return told


def start(target: str, draft: str, request: "Request") -> Any:
    """The files that the engine loads, those of the draft beside the target's where one is asked for."""
    folder = tempfile.TemporaryDirectory()
    told = export(target, Path(folder.name) / "target")
    if request.drafting == "model":
        told["model"]["draft"] = export(draft, Path(folder.name) / "draft")["model"]["decoder"]
    return SimpleNamespace(folder=folder, told=told, models={})


def model(engine: Any, eos_token_ids: tuple[int, ...]) -> Any:
    """The model with these EOS ids; a hundred are kept. The engine wants an id at least: for none it is the last."""
    import json

    import onnxruntime_genai as og

    told, path = engine.told, Path(engine.folder.name)
    if eos_token_ids not in engine.models:
        if len(engine.models) == 100:
            engine.models.clear()
        told["model"]["eos_token_id"] = list(eos_token_ids) or [told["model"]["vocab_size"] - 1]
        (path / "genai_config.json").write_text(json.dumps(told))
        engine.models[eos_token_ids] = og.Model(str(path))
    return engine.models[eos_token_ids]


def searching(request: "Request", row: int, room: int, vocabulary: int) -> dict[str, Any]:
    """The options of a row, with room for so many tokens. Beside a top-k the engine cuts by top-p exactly."""
    options = request.rows[row]
    search: dict[str, Any] = {"max_length": room, "do_sample": False, "repetition_penalty": options.repetition_penalty}
    if options.min_new_tokens and options.eos_token_ids:
        search["min_length"] = len(request.prompts[row]) + options.min_new_tokens
    if options.temperature:
        search |= {"do_sample": True, "temperature": options.temperature}
        search |= {"top_k": options.top_k or (vocabulary if options.top_p < 1 else 0), "top_p": options.top_p}
        if options.seed is not None:
            search["random_seed"] = options.seed % 2**31
    return search


def decode(engine: Any, request: "Request", observed: dict[str, Any] | None = None) -> list[list[int]]:
    """The new tokens of each row."""
    import numpy as np
    import onnxruntime_genai as og

    observed = {} if observed is None else observed
    outputs: list[list[int]] = []
    held: dict[Any, Any] = {}  # generators of this request, by the options of their rows
    generators, vocabulary = [], engine.told["model"]["vocab_size"]
    told = observed["logprobs"] = [[] for _ in request.prompts]
    longest = max(len(p) + row.max_new_tokens for p, row in zip(request.prompts, request.rows, strict=True))
    for row, (prompt, options) in enumerate(zip(request.prompts, request.rows, strict=True)):
        shares = bool(request.prefix_caching) and not options.temperature
        search = searching(request, row, longest if shares else len(prompt) + options.max_new_tokens, vocabulary)
        key = options.eos_token_ids, tuple(search.items())
        if shares and key in held:
            generator = held[key]
            cached = generator.get_sequence(0)[:-1].tolist()[: len(prompt) - 1]  # the last one was not computed
            common = next((n for n, token in enumerate(cached) if token != prompt[n]), len(cached))
            generator.rewind_to(common)
            observed["prefix_hits"] = observed.get("prefix_hits", 0) + common
        else:
            used, common = model(engine, options.eos_token_ids), 0
            params = og.GeneratorParams(used)
            params.set_search_options(**search)
            if request.drafting != "none":
                ngram = 2 if request.drafting == "ngram" else 0  # a token is looked up
                params.set_speculative_options(max_draft_tokens=request.num_draft_tokens, ngram_size=ngram)
            generator = og.Generator(used, params)
            generators.append(generator)
            if shares:
                held[key] = generator
        generator.append_tokens(np.array(prompt[common:], dtype=np.int32))
        tokens: list[int] = []
        tells = options.logprobs and request.drafting != "ngram"  # beside n-grams the engine has no logits to show
        ends = [[token] for token in options.eos_token_ids]
        while len(tokens) < options.max_new_tokens and tokens[-1:] not in ends:
            if generator.is_done():  # at an id that ends no row
                generator.append_tokens(np.array(tokens[-1:], dtype=np.int32))
            if tells:
                scores = generator.get_logits().reshape(-1).astype(np.float64)
            generator.generate_next_token()
            tokens.append(int(generator.get_next_tokens()[0]))
            if tells:
                told[row].append(float(scores[tokens[-1]] - scores.max() - np.log(np.exp(scores - scores.max()).sum())))
        outputs.append(tokens)
    stats = [generator.get_speculative_stats() for generator in generators]
    observed["drafted"] = sum(one["draft_tokens_proposed"] for one in stats)
    observed["accepted"] = sum(one["draft_tokens_accepted"] for one in stats)
    return outputs


@eqcheck.decoder(
    name="onnxruntime_genai",
    checkpoints=True,
    environment="onnxruntime_genai",
    dtype="float32",
    kinds=("full", "window", "qwen3"),
    origin="https://github.com/microsoft/onnxruntime-genai",
    capabilities=(
        "row-limits",
        "row-eos",
        "min-new-tokens",
        "repetition-penalty",
        "prefix-caching",
        "ngram",
        "logprobs",
        "temperature",
        "top-k",
        "top-p",
        "seeds",
    ),
    seeds="repeatable",
)
class Generators:
    script = (prepare, export, start, model, searching, decode)
    requirements = "onnxruntime-genai onnx onnx-ir torch transformers"

    def open(self) -> None:
        prepare()
        import onnxruntime_genai

        self.version = onnxruntime_genai.__version__
        self.engines: dict[tuple[str, ...], Any] = {}

    def close(self) -> None:
        while self.engines:
            self.engines.popitem()[1].folder.cleanup()

    def renew(self) -> None:
        """Load the models anew; a generator is made for each request."""
        self.close()

    def load(self, target: str, draft: str, request: Request) -> Any:
        """The folder that the engine loads."""
        key = (target, draft, "model") if request.drafting == "model" else (target,)
        if key not in self.engines:
            if len(self.engines) == 4:
                self.close()
            self.engines[key] = start(target, draft, request)
        return self.engines[key]

    def __call__(self, target: str, draft: str, request: Request) -> list[eqcheck.Completion]:
        if request.drafting != "none" and request.num_draft_tokens > 16:
            raise eqcheck.Unsupported("more than 16 draft tokens a round")
        engine = self.load(target, draft, request)
        self.observed: dict[str, Any] = {}
        outputs = decode(engine, request, self.observed)
        told = self.observed.pop("logprobs")
        return [eqcheck.Completion(tokens, logprobs=row or None) for tokens, row in zip(outputs, told, strict=True)]
