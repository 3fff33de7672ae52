"""mlx-lm, what its server runs behind HTTP, on the CPU package of mlx: a draft model, and caches of earlier requests.

With a draft model the server answers one request after the other. Without, it batches. It keeps the caches of the last
ten requests, and a request goes on from the cache of the longest beginning that it shares with an earlier one. Here a
case begins without any. Without prefix caching each of its rows does. A token budget is the server's chunk of a prompt.

A Mistral is computed without its window, so it is not among the kinds. Models whose state cannot be rewound are refused
by the engine as targets of a draft.
"""

import os
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import eqcheck
from eqcheck.contract.completion import with_and_without
from eqcheck.contract.decoders import Request
from eqcheck.contract.errors import without_drafts

ORIGIN = "https://github.com/ml-explore/mlx-lm"
_ENGINES = 4  # kept at a time


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


# Options of rows that no target can be asked about, by the name of a switch.
_OF_ROWS: dict[str, tuple[float, float, int, float, float, float]] = {
    "temperature_0": (1e-4, 1.0, 0, 0.0, 0.0, 0.0),
    "top_p_0": (1.0, 1e-6, 0, 0.0, 0.0, 0.0),
    "top_k_1": (1.0, 1.0, 1, 0.0, 0.0, 0.0),
    "min_p_1": (1.0, 1.0, 0, 1.0, 0.0, 0.0),
    "top_logprobs": (0.0, 1.0, 0, 0.0, 0.0, 0.0),
    "stop_words": (0.0, 1.0, 0, 0.0, 0.0, 0.0),
}


def _answered(engine: Any, request: Request, stops: Sequence[str] = ()) -> list[tuple[list[int], dict[str, Any]]]:
    """The new tokens of rows with a switch, their ends and log-probabilities; the server trims texts elsewhere."""
    from mlx_lm import server
    from mlx_lm.models.cache import LRUPromptCache

    told = list[tuple[list[int], dict[str, Any]]]()
    for row in range(len(request.prompts)):
        engine.prompt_cache = LRUPromptCache(10)
        completion, options = asked(request, row)
        if request.switch in _OF_ROWS:
            options.sampling = server.SamplingArguments(*_OF_ROWS[request.switch])
            options.seed = None
        if request.switch == "top_logprobs":
            options.logprobs, options.top_logprobs = True, 3
        if stops:
            options.stop_words = [stops[row]]
        responses = list(engine.generate(completion, options)[1])
        beside: dict[str, Any] = {
            "finish_reason": responses[-1].finish_reason,
            "logprobs": [float(response.logprob) for response in responses],
            "others": [sorted(float(other["logprob"]) for other in each.top_tokens or ()) for each in responses],
        }
        told.append(([response.token for response in responses], beside))
    return told


class Server:
    switches = tuple(_OF_ROWS)
    script = (prepare, start, asked, decode)
    requirements = "'mlx[cpu]' mlx-lm"

    def open(self) -> None:
        prepare()
        import mlx_lm

        self.version = mlx_lm.__version__
        self.engines: dict[tuple[Any, ...], Any] = {}

    def close(self) -> None:
        self.renew()

    def renew(self) -> None:
        """End the servers: what one keeps between requests, it keeps in itself."""
        while self.engines:
            self.engines.popitem()[1].stop_and_join()

    def load(self, target: str, draft: str, request: Request) -> Any:
        """The server's thread with the settings of a request."""
        key = (target, request.drafting, request.token_budget)
        if key not in self.engines:
            if len(self.engines) == _ENGINES:
                self.engines.pop(next(iter(self.engines))).stop_and_join()
            self.engines[key] = start(target, draft, request)
        return self.engines[key]

    def __call__(self, target: str, draft: str, request: Request) -> list[eqcheck.Completion]:
        if request.switch:
            return self._switched(target, draft, request)
        engine = self.load(target, draft, request)
        self.observed: dict[str, Any] = {}
        try:
            outputs = decode(engine, request, self.observed)
        except ValueError as error:
            if "trimmable" in str(error):
                raise eqcheck.Unsupported(str(error)) from None
            raise
        ends = self.observed.pop("ends")
        return [eqcheck.Completion(tokens, **end) for tokens, end in zip(outputs, ends, strict=True)]

    def _switched(self, target: str, draft: str, request: Request) -> list[eqcheck.Completion]:
        """Rows with a switch on, with drafts and without."""
        plain = replace(request, drafting="none")
        engine, stops = self.load(target, draft, plain), list[str]()
        if request.switch == "stop_words":  # two tokens that a row emits
            stops = ["".join(f"[{token}]" for token in tokens[3:5]) for tokens, _ in _answered(engine, plain)]
        with without_drafts(request.switch):
            alone = _answered(engine, plain, stops)
        told = _answered(self.load(target, draft, request), request, stops)
        return with_and_without(told, alone)


# A hybrid cannot be rolled back, so its drafts are refused; experts in bfloat16 end with "only supports float32".
_CLAIMS: dict[str, Any] = {
    "environment": "mlx_lm",
    "capabilities": (
        "row-limits",
        "row-eos",
        "logit-bias",
        "stop-sequences",
        "finish-reason",
        "logprobs",
        "token-budget",
        "prefix-caching",
    ),
}
in_float32 = eqcheck.decoder(
    name="mlx_lm",
    checkpoints=True,
    origin=ORIGIN,
    dtype="float32",
    kinds=("full", "window", "qwen3", "mla", "moe"),
    **_CLAIMS,
)(Server)
in_bfloat16 = eqcheck.decoder(
    name="mlx_lm_bfloat16",
    checkpoints=True,
    origin=ORIGIN,
    dtype="bfloat16",
    kinds=("full", "window", "qwen3", "mla"),
    **_CLAIMS,
)(Server)
