"""The installed ``transformers``' continuous batching, ``generate_batch()``: pages, shared beginnings, preemption.

It does not speculate. A manager is kept for requests with the same settings, as
``persistent_manager=True`` does, and with it the pages that later requests may share. Rows are streamed, so that a late
row joins behind so many tokens of the others. With temperatures each row has processors of its own; a greedy row among
them has a top-k of 1, for a manager either samples or does not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
import transformers
from transformers import AutoModelForCausalLM

import eqcheck
from eqcheck.contract.completion import with_and_without
from eqcheck.contract.decoders import Request, RowOptions


def prepare() -> None:
    """One thread; the engine's own words go nowhere."""
    import logging

    torch.set_num_threads(1)
    logging.getLogger("ContinuousBatchingLogger").setLevel(logging.CRITICAL)


def switched(switch: str | None) -> dict[str, Any]:
    """The processors of a switch: they are those of all requests of a manager, and not of a row.

    With ``bad_words_ids`` and ``begin_suppress_tokens`` a manager does not start: each raises (5.24).
    """
    every: dict[str, dict[str, Any]] = {
        "repetition_penalty": {"repetition_penalty": 1.7},
        "no_repeat_ngram_size": {"no_repeat_ngram_size": 1},
        "sequence_bias": {"sequence_bias": [[[token], 9.0] for token in range(0, 256, 3)]},
        "suppress_tokens": {"suppress_tokens": list(range(0, 256, 2))},
        "renormalize_logits": {"renormalize_logits": True, "suppress_tokens": list(range(3, 256, 4))},
    }
    return every[switch] if switch else {}


def start(target: str, draft: str, request: Request) -> Any:
    """A manager with the settings of the request, with its thread. Blocks have 32 tokens."""
    import torch
    from transformers import AutoModelForCausalLM, ContinuousBatchingConfig, GenerationConfig

    sampled = any(row.temperature for row in request.rows)
    processors = {"do_sample": True, "temperature": 0.9, "top_k": 9, "top_p": 0.9} if sampled else {"do_sample": False}
    sharing = {} if request.prefix_caching is None else {"allow_block_sharing": request.prefix_caching}
    model = AutoModelForCausalLM.from_pretrained(target, dtype=getattr(torch, request.dtype)).eval()
    processors |= switched(request.switch)
    manager = model.init_continuous_batching(
        generation_config=GenerationConfig(**processors, eos_token_id=-1, pad_token_id=0),
        continuous_batching_config=ContinuousBatchingConfig(
            page_size=32,
            num_blocks=request.kv_blocks or 512,
            max_batch_tokens=request.token_budget or 256,
            per_request_processors=sampled,
            return_logprobs=any(row.logprobs for row in request.rows),
            **sharing,
        ),
    )
    manager.start()
    return manager


def processed(row: RowOptions, vocabulary: int, sampled: bool) -> dict[str, Any]:
    """The arguments of a row's processors. A top-k of 0 would be taken for 1 (5.23)."""
    if not sampled:
        return {}
    if not row.temperature:
        return {"temperature": 1.0, "top_k": 1, "top_p": 1.0}
    return {"temperature": float(row.temperature), "top_k": row.top_k or vocabulary, "top_p": float(row.top_p)}


def decode(manager: Any, request: Request, observed: dict[str, Any] | None = None) -> list[list[int]]:
    """The new tokens of each row; a late row is handed over behind so many tokens of the others."""
    sampled, vocabulary = any(row.temperature for row in request.rows), manager.model.config.vocab_size
    waiting = sorted(range(len(request.rows)), key=lambda number: request.rows[number].arrival)
    running, told, tokens, late = dict[str, int](), dict[int, Any](), 0, 0
    while len(told) < len(request.rows):
        while waiting and (request.rows[waiting[0]].arrival <= tokens or not running):
            number = waiting.pop(0)
            row, late = request.rows[number], late + (tokens > 0)
            name = manager.add_request(
                request.prompts[number],
                max_new_tokens=row.max_new_tokens,
                streaming=True,
                eos_token_id=list(row.eos_token_ids) or -1,
                **processed(row, vocabulary, sampled),
            )
            if name is None:
                raise RuntimeError("the manager takes no request")
            running[name] = number
        answer = manager.get_result(timeout=60)
        if answer is None:
            raise RuntimeError(f"no token in 60 s: {manager.background_thread_status.fatal_error}")
        if answer.error is not None:
            raise RuntimeError(answer.error)
        tokens = max(tokens, len(answer.generated_tokens))
        if answer.is_finished():
            told[running.pop(answer.request_id)] = answer
    answers = [told[number] for number in range(len(request.rows))]
    if observed is not None:
        observed.update(late_rows=late, logprobs=[answer.logprobs for answer in answers])
    return [answer.generated_tokens for answer in answers]


def counted(counts: Counter[str], name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    """The method, which counts the calls that return more than nothing."""

    def call(*words: Any, **named: Any) -> Any:
        told = method(*words, **named)
        counts[name] += bool(told)
        return told

    return call


class ContinuousBatching:
    """One manager at a time, for the settings of a request."""

    switches = (
        "repetition_penalty",
        "no_repeat_ngram_size",
        "sequence_bias",
        "suppress_tokens",
        "renormalize_logits",
    )
    script = (prepare, switched, start, processed, decode)
    requirements = "transformers, torch"

    def open(self) -> None:
        from transformers.generation.continuous_batching.cache import PagedAttentionCache
        from transformers.generation.continuous_batching.offloading_manager import OffloadingManager

        prepare()
        self.version = transformers.__version__
        self.settings: tuple[Any, ...] = ()
        self.manager: Any = None
        self.plain: tuple[tuple[str, ...], Any] = ((), None)  # a model of its own: a manager changes its attention
        self.counts: Counter[str] = Counter()
        self.patches = [
            mock.patch.object(owner, method, counted(self.counts, name, getattr(owner, method)))
            for owner, method, name in (
                (PagedAttentionCache, "search_prefix_match", "prefix_hits"),
                (OffloadingManager, "offload_requests", "preemptions"),
            )
        ]
        for patch in self.patches:
            patch.start()

    def close(self) -> None:
        self.renew()
        for patch in self.patches:
            patch.stop()

    def renew(self) -> None:
        """End the manager: the pages are its own."""
        if self.manager is not None:
            self.manager.stop(block=True, timeout=10)
            self.manager.destroy()
        self.manager = None

    def load(self, target: str, draft: str, request: Request) -> Any:
        """The manager."""
        settings: tuple[Any, ...] = (
            *(target, request.dtype, request.kv_blocks, request.token_budget, request.prefix_caching, request.switch),
            *(any(getattr(row, name) for row in request.rows) for name in ("temperature", "logprobs")),
        )
        if self.manager is None or self.settings != settings:
            self.renew()
            try:
                self.manager, self.settings = start(target, draft, request), settings
            except ValueError as error:
                raise eqcheck.Unsupported(f"the manager does not start: {error}") from error
        return self.manager

    def __call__(self, target: str, draft: str, request: Request) -> list[eqcheck.Completion]:
        manager = self.load(target, draft, request)
        self.counts.clear()
        observed: dict[str, Any] = {}
        try:
            outputs = decode(manager, request, observed)
        except Exception:
            self.renew()  # it may hold rows that never end
            raise
        scores = observed.pop("logprobs")
        self.observed = {**observed, **self.counts}
        if request.switch:
            alone = [self._alone(target, request, number) for number in range(len(outputs))]
            return with_and_without([(tokens, {}) for tokens in outputs], alone)
        rows = zip(outputs, scores, request.rows, strict=True)
        return [eqcheck.Completion(tokens, logprobs=told if row.logprobs else None) for tokens, told, row in rows]

    @torch.no_grad()
    def _alone(self, target: str, request: Request, number: int) -> tuple[list[int], dict[str, Any]]:
        """Decode one row by ``generate()`` with the same switch."""
        key, row = (target, request.dtype), request.rows[number]
        if self.plain[0] != key:
            self.plain = key, AutoModelForCausalLM.from_pretrained(target, dtype=getattr(torch, request.dtype)).eval()
        prompt = torch.tensor([request.prompts[number]])
        output = self.plain[1].generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            do_sample=False,
            max_new_tokens=row.max_new_tokens,
            eos_token_id=list(row.eos_token_ids) or None,
            pad_token_id=request.pad_token_id,
            return_dict_in_generate=True,
            output_scores=True,
            **switched(request.switch),
        )
        best = [scores.topk(2).values[0] for scores in output.scores]
        return output.sequences[0, prompt.shape[1] :].tolist(), {"margins": [float(a - b) for a, b in best]}


_ORIGIN = "https://github.com/huggingface/transformers"
_CLAIMS: dict[str, Any] = {
    "kinds": ("full", "window", "mistral", "qwen3", "moe", "learned", "opt", "sinks"),
    "capabilities": (
        "no-drafts",
        "row-limits",
        "row-eos",
        "logprobs",
        "many-rows",
        "arrivals",
        "token-budget",
        "prefix-caching",
        "kv-blocks",
        "temperature",
        "top-k",
        "top-p",
    ),
}
in_float32 = eqcheck.decoder(name="transformers_batch", checkpoints=True, origin=_ORIGIN, dtype="float32", **_CLAIMS)(
    ContinuousBatching
)
