"""mistral.rs, as its Python package for the CPU has it: a batch of streamed requests, and caches of earlier ones.

It does not speculate here: its drafts (MTP, DFlash) need paged attention, which the engine refuses on a CPU. A call
that is not streamed holds the runner until it is answered, so rows of a batch are streams. A stream has texts and no
token ids, so the checkpoint gets a tokenizer in which every token is one word. The engine leaves out the text of what
ended a row. Here these texts begin a letter later each, for letters that are left tell which one it was.

A Llama is served as a Mistral without a window, which computes the same: the engine's Llama takes the size of a head
to be that of the model by the number of heads. A file that says how to sample by default is left out: with
``"do_sample": false`` in it the engine ignores a request's temperature. Rows are batched where they have equally many
tokens. One that is late arrives behind so many tokens of the others, or a few more.
"""

from __future__ import annotations

import os
from typing import Any

import eqcheck
from eqcheck.contract.decoders import Request

ORIGIN = "https://github.com/EricLBuehler/mistral.rs"
MARKS = 8  # letters before the number of a token: so many texts that end a row can be told apart


def prepare() -> None:
    """One thread; settings that the engine reads when it is loaded."""
    os.environ.update(RAYON_NUM_THREADS="1", HF_HUB_OFFLINE="1", RUST_LOG="off", RUST_BACKTRACE="0")


def text(tokens: Any) -> str:
    """The text of tokens."""
    return "".join(f"{'[' * 8}{token}]" for token in tokens)


def write(target: str, folder: str) -> dict[str, Any]:
    """The checkpoint as the engine reads it; returns its configuration."""
    import json
    from pathlib import Path

    config: dict[str, Any] = json.loads((Path(target) / "config.json").read_text())
    config.setdefault("rope_theta", (config.get("rope_parameters") or {}).get("rope_theta"))
    if config["model_type"] == "llama":
        config |= {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": None}
    elif config["model_type"].startswith("qwen3"):  # what the engine wants to read besides
        config |= {"use_sliding_window": False, "max_window_layers": config["num_hidden_layers"]}
    tokenizer = {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": {
            "type": "Split",
            "pattern": {"Regex": r"\[{8}\d+\]|."},  # a part of a word is several words, not the unknown one
            "behavior": "Isolated",
            "invert": False,
        },
        "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]},
        "model": {
            "type": "WordLevel",
            "vocab": {text([token]): token for token in range(config["vocab_size"])},
            "unk_token": text([0]),
        },
    }
    files = {
        "config.json": config,
        "tokenizer.json": tokenizer,
        "tokenizer_config.json": {"chat_template": "{{ messages[0]['content'] }}"},
    }
    for name, held in files.items():
        (Path(folder) / name).write_text(json.dumps(held))
    (Path(folder) / "model.safetensors").symlink_to(Path(target).absolute() / "model.safetensors")
    return config


def start(target: str, draft: str, request: Request) -> Any:
    """The engine with the settings of the request; its other settings are its defaults."""
    import tempfile

    import mistralrs

    with tempfile.TemporaryDirectory() as folder:
        config = write(target, folder)
        of_images = config["model_type"].startswith("gemma3")  # to the engine, which has no other Gemma 3
        which = mistralrs.Which.MultimodalPlain if of_images else mistralrs.Which.Plain
        dtypes = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}
        return mistralrs.Runner(
            which(folder, dtype=getattr(mistralrs.ModelDType, dtypes[request.dtype])),
            prefix_cache_n=0 if request.prefix_caching is False else 16,
        )


def ends(row: Any) -> list[tuple[int, ...]]:
    """The tokens that end a row, in the order of their texts."""
    return list(dict.fromkeys([*((token,) for token in row.eos_token_ids), *map(tuple, row.stop_sequences)]))


def asked(prompt: list[int], row: Any) -> Any:
    """A row as the engine takes it. A top-k that cuts nothing has to be named: else there is a default."""
    import mistralrs

    sampling: dict[str, Any] = {"temperature": 0.0}
    if row.temperature:
        sampling = {"temperature": row.temperature, "top_p": row.top_p, "min_p": row.min_p}
        sampling["top_k"] = row.top_k or None
    penalties = {
        name: getattr(row, name)
        for name, off in (("repetition_penalty", 1.0), ("presence_penalty", 0.0), ("frequency_penalty", 0.0))
        if getattr(row, name) != off
    }
    return mistralrs.ChatCompletionRequest(
        messages=text(prompt),
        model="default",
        stream=True,
        ignore_eos=True,
        max_tokens=row.max_new_tokens,
        stop_seqs=[text(end)[number:] for number, end in enumerate(ends(row))] or None,
        logit_bias=dict(row.logit_bias) or None,
        logprobs=row.logprobs,
        **sampling,
        **penalties,
    )


def decode(engine: Any, request: Request, observed: dict[str, Any] | None = None) -> list[list[int]]:
    """The new tokens of each row; a late row is sent behind so many tokens of the others."""
    import re

    waiting = sorted(range(len(request.rows)), key=lambda number: request.rows[number].arrival)
    running, told, late = dict[int, Any](), [list[Any]() for _ in request.rows], 0
    while waiting or running:
        ahead = max(map(len, told))
        while waiting and (request.rows[waiting[0]].arrival <= ahead or not running):
            number = waiting.pop(0)
            late += ahead > 0
            running[number] = engine.send_chat_completion_request(asked(request.prompts[number], request.rows[number]))
        for number, stream in [*running.items()]:
            heard = sum((choice.delta.content or "").count("]") for each in told[number] for choice in each.choices)
            chunk = None if heard >= (request.rows[number].cancel_after or heard + 1) else next(stream, None)
            if chunk is None:
                del running[number]  # the engine cancels a row that nobody reads
            else:
                told[number].append(chunk)
    outputs, beside = list[list[int]](), list[dict[str, Any]]()
    for row, chunks in zip(request.rows, told, strict=True):
        choices = [choice for chunk in chunks for choice in chunk.choices]
        said = "".join(choice.delta.content or "" for choice in choices)
        tokens = [int(token) for token in re.findall(r"\[(\d+)\]", said)]
        reason = choices[-1].finish_reason if choices else None
        usage = chunks[-1].usage if chunks else None
        scores = [choice.logprobs.logprob for choice in choices if choice.logprobs]
        ended = ends(row)[len(said) - len(said.rstrip("["))] if reason == "stop" else ()
        outputs.append([*tokens, *ended])
        beside.append(
            {
                "finish_reason": reason if reason in ("stop", "length") else None,
                "stop": ended if ended in row.stop_sequences and ended[0] not in row.eos_token_ids else None,
                "usage": usage and {"prompt_tokens": usage.prompt_tokens, "completion_tokens": usage.completion_tokens},
                # Log-probabilities of what is left out are not told, nor of a text that was held back.
                "logprobs": scores if row.logprobs and len(scores) == len(outputs[-1]) else None,
            }
        )
    if observed is not None:
        observed.update(late_rows=late, beside=beside)
    return outputs


class Runner:
    """One engine at a time, for the settings of a request."""

    script = (prepare, text, write, start, ends, asked, decode)
    requirements = "mistralrs"

    def open(self) -> None:
        prepare()
        from importlib.metadata import version

        self.version = version("mistralrs")
        self.settings: tuple[Any, ...] = ()
        self.engine: Any = None

    def close(self) -> None:
        self.renew()

    def renew(self) -> None:
        """End the engine: the caches are its own."""
        self.engine = None

    def load(self, target: str, draft: str, request: Request) -> Any:
        """The engine with the settings of a request."""
        settings = (target, request.dtype, request.prefix_caching)
        if self.engine is None or self.settings != settings:
            self.renew()
            self.engine, self.settings = start(target, draft, request), settings
        return self.engine

    def __call__(self, target: str, draft: str, request: Request) -> list[eqcheck.Completion]:
        for row in request.rows:
            if row.repetition_penalty != 1 and (row.presence_penalty or row.frequency_penalty or row.logit_bias):
                raise eqcheck.Unsupported("the engine divides by a repetition penalty after the other penalties")
            if len(ends(row)) > MARKS:
                raise eqcheck.Unsupported(f"more than {MARKS} texts end a row")
        engine = self.load(target, draft, request)
        self.observed: dict[str, Any] = {}
        try:
            outputs = decode(engine, request, self.observed)
        except Exception:
            self.renew()  # it may hold rows that never end
            raise
        beside = self.observed.pop("beside")
        return [eqcheck.Completion(tokens, **told) for tokens, told in zip(outputs, beside, strict=True)]


_CLAIMS: dict[str, Any] = {
    "environment": "mistralrs",
    "kinds": ("full", "window", "mistral", "qwen3", "moe", "hybrid", "delta"),
    "capabilities": (
        "no-drafts",
        "row-limits",
        "row-eos",
        "repetition-penalty",
        "presence-penalty",
        "frequency-penalty",
        "logit-bias",
        "stop-sequences",
        "finish-reason",
        "logprobs",
        "many-rows",
        "arrivals",
        "cancel",
        "prefix-caching",
    ),
}
# In float32 as well the engine multiplies the matrices of attention in float16 on a CPU (`MatMul` in its crate of
# quantization): sampled rows, which are drawn from random weights there, would be judged more narrowly than it rounds.
_SAMPLED = ("temperature", "top-k", "top-p", "min-p")
in_float32 = eqcheck.decoder(name="mistralrs", checkpoints=True, origin=ORIGIN, dtype="float32", **_CLAIMS)(Runner)
in_bfloat16 = eqcheck.decoder(
    name="mistralrs_bfloat16",
    checkpoints=True,
    origin=ORIGIN,
    dtype="bfloat16",
    **{**_CLAIMS, "capabilities": (*_CLAIMS["capabilities"], *_SAMPLED)},
)(Runner)
