"""How mlx-lm's server is driven, for the scripts of `reports/mlx_lm` and `reports/mlx_lm_bfloat16`; by eqcheck 0.3.0."""

import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any


def prepare() -> None:
    """Settings that the engine reads when it is imported."""
    os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")


def start(target: str, draft: str, request: "Request") -> Any:
    """The server's thread, with the request's draft model, or none; the other settings are its command line's."""
    import threading

    from mlx_lm.models.cache import LRUPromptCache
    from mlx_lm.server import ModelProvider, ResponseGenerator

    settings = SimpleNamespace(
        model=target,
        adapter_path=None,
        draft_model=draft if request.drafting == "model" else None,
        num_draft_tokens=3,
        trust_remote_code=False,
        chat_template="",
        use_default_chat_template=False,
        chat_template_args={},
        decode_concurrency=32,
        prompt_concurrency=8,
        prefill_step_size=request.token_budget or 2048,
        prompt_cache_size=10,
        prompt_cache_bytes=None,
        kv_bits=None,
        kv_group_size=64,
        quantized_kv_start=5000,
        pipeline=False,
    )
    provider = ModelProvider(settings)
    provider.load_default()
    provider.tokenizer._eos_token_ids = set()  # a row has its own
    engine = ResponseGenerator(provider, LRUPromptCache(10))

    def stop() -> None:  # or the process never ends
        threading.main_thread().join()
        engine._stop = True

    threading.Thread(target=stop, daemon=True).start()
    return engine


def asked(request: "Request", row: int) -> list[Any]:
    """A row as the server's thread takes it."""
    from mlx_lm import server

    options = request.rows[row]
    stops = [*((token,) for token in options.eos_token_ids), *options.stop_sequences]
    prompt = "".join(f"[{token}]" for token in request.prompts[row])
    return [
        server.CompletionRequest("text", prompt, [], None, None),
        server.GenerationArguments(
            model=server.ModelDescription("default_model", "default_model", None),
            sampling=server.SamplingArguments(0.0, 1.0, 0, 0.0, 0.0, 0.0),
            logits=server.LogitsProcessorArguments(dict(options.logit_bias) or None, 0.0, 20, 0.0, 20, 0.0, 20),
            stop_words=["".join(f"[{token}]" for token in stop) for stop in stops],
            max_tokens=options.max_new_tokens,
            num_draft_tokens=request.num_draft_tokens,
            logprobs=options.logprobs,
            top_logprobs=0,
            seed=None,
            chat_template_kwargs=None,
        ),
    ]


def decode(engine: Any, request: "Request", observed: dict[str, Any] | None = None) -> list[list[int]]:
    """The new tokens of each row; rows share caches, if not each has a server without any."""
    from concurrent.futures import ThreadPoolExecutor

    from mlx_lm.models.cache import LRUPromptCache

    observed = {} if observed is None else observed
    outputs: list[list[int]] = []

    def answer(row: int) -> tuple[list[Any], int]:
        context, responses = engine.generate(*asked(request, row))
        return list(responses), context.prompt_cache_count

    engine.prompt_cache = LRUPromptCache(10)
    rows, hits = range(len(request.prompts)), 0
    if engine.model_provider.draft_model is None and not request.prefix_caching:
        with ThreadPoolExecutor(len(rows)) as pool:
            answers = list(pool.map(answer, rows))
    else:
        answers = []
        for row in rows:
            if not request.prefix_caching:
                engine.prompt_cache = LRUPromptCache(10)
            answers.append(answer(row))
    for responses, count in answers:
        outputs.append([response.token for response in responses])
        hits += max(count, 0)
    observed["prefix_hits"] = hits
    observed["ends"] = [{"finish_reason": responses[-1].finish_reason} for responses, _ in answers]
    for row, (responses, _) in enumerate(answers):
        if request.rows[row].logprobs:
            observed["ends"][row]["logprobs"] = [float(response.logprob) for response in responses]
    return outputs
