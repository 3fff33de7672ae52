"""The installed ``transformers``' continuous batching, ``generate_batch()``: pages, shared beginnings, preemption.

It does not speculate, whatever drafts a request asks for. So an audit says whether its pages can be trusted, and what
assisted generation is compared with is right. A manager is kept for requests with the same settings, as
``persistent_manager=True`` does, and with it the pages that later requests may share. Rows are streamed, so that a late
row joins behind so many tokens of the others. With temperatures each row has processors of its own; a greedy row among
them has a top-k of 1, for the manager either samples or does not.
"""

from __future__ import annotations

import logging
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, GenerationConfig

import eqcheck
from eqcheck.contract.decoders import Request, RowOptions

_PAGE = 32  # tokens, as those of the blocks that a request asks for
_BLOCKS, _TOKENS = 512, 256  # where a request asks for none
_PATIENCE_S = 60.0  # without a token


def start(model: Any, request: Request) -> Any:
    """A manager with the settings of the request, with its thread."""
    from transformers import ContinuousBatchingConfig

    sampled = any(row.temperature for row in request.rows)
    processors = {"do_sample": True, "temperature": 0.9, "top_k": 9, "top_p": 0.9} if sampled else {"do_sample": False}
    sharing = {} if request.prefix_caching is None else {"allow_block_sharing": request.prefix_caching}
    manager = model.init_continuous_batching(
        generation_config=GenerationConfig(**processors, eos_token_id=-1, pad_token_id=0),
        continuous_batching_config=ContinuousBatchingConfig(
            page_size=_PAGE,
            num_blocks=request.kv_blocks or _BLOCKS,
            max_batch_tokens=request.token_budget or _TOKENS,
            per_request_processors=sampled,
            return_logprobs=any(row.logprobs for row in request.rows),
            **sharing,
        ),
    )
    manager.start()
    return manager


def processed(row: RowOptions, vocabulary: int, sampled: bool) -> dict[str, Any]:
    """The arguments of a row's processors."""
    if not sampled:
        return {}
    if not row.temperature:
        return {"temperature": 1.0, "top_k": 1, "top_p": 1.0}
    return {"temperature": float(row.temperature), "top_k": row.top_k or vocabulary, "top_p": float(row.top_p)}


def decode(manager: Any, request: Request, vocabulary: int) -> list[Any]:
    """The engine's answer to each row; a late row is handed over behind so many tokens of the others."""
    sampled = any(row.temperature for row in request.rows)
    waiting = sorted(range(len(request.rows)), key=lambda number: request.rows[number].arrival)
    running: dict[str, int] = {}
    told: dict[int, Any] = {}
    tokens = 0
    while len(told) < len(request.rows):
        while waiting and (request.rows[waiting[0]].arrival <= tokens or not running):
            number = waiting.pop(0)
            row = request.rows[number]
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
        answer = manager.get_result(timeout=_PATIENCE_S)
        if answer is None:
            raise RuntimeError(f"no token in {_PATIENCE_S:.0f} s: {manager.background_thread_status.fatal_error}")
        if answer.error is not None:
            raise RuntimeError(answer.error)
        tokens = max(tokens, len(answer.generated_tokens))
        if answer.is_finished():
            told[running.pop(answer.request_id)] = answer
    return [told[number] for number in range(len(request.rows))]


class Batches:
    """The managers of models."""

    script = (start, processed, decode)
    requirements = "transformers, torch"

    def open(self) -> None:
        self.version = transformers.__version__
        self.models: dict[tuple[str, str], Any] = {}
        self.managers: dict[tuple[Any, ...], Any] = {}
        torch.set_num_threads(1)
        logging.getLogger("ContinuousBatchingLogger").setLevel(logging.CRITICAL)

    def close(self) -> None:
        for manager in self.managers.values():
            manager.stop(block=True, timeout=10)
            manager.destroy()
        self.managers.clear()

    def renew(self) -> None:
        """End the managers: the pages are theirs."""
        self.close()

    def __call__(self, target: str, draft: str, request: Request) -> list[eqcheck.Completion]:
        model = self._model(target, request.dtype)
        sampled, scored = (any(getattr(row, name) for row in request.rows) for name in ("temperature", "logprobs"))
        settings = (target, request.dtype, request.kv_blocks, request.token_budget, request.prefix_caching)
        if (settings, sampled, scored) not in self.managers:
            self.close()  # a model has one manager at a time
            try:
                self.managers[settings, sampled, scored] = start(model, request)
            except ValueError as error:
                raise eqcheck.Unsupported(f"the manager does not start: {error}") from error
        try:
            told = decode(self.managers[settings, sampled, scored], request, model.config.vocab_size)
        except Exception:
            self.close()  # it may hold rows that never end
            raise
        return [
            eqcheck.Completion(answer.generated_tokens, logprobs=answer.logprobs if row.logprobs else None)
            for row, answer in zip(request.rows, told, strict=True)
        ]

    def _model(self, folder: str, dtype: str) -> Any:
        if (folder, dtype) not in self.models:
            self.close()
            self.models[folder, dtype] = AutoModelForCausalLM.from_pretrained(
                folder, dtype=getattr(torch, dtype)
            ).eval()
        return self.models[folder, dtype]


_ORIGIN = "https://github.com/huggingface/transformers"
_CLAIMS: dict[str, Any] = {
    "kinds": ("full", "window", "mistral", "qwen3", "moe", "learned", "opt"),
    "capabilities": (
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
ContinuousBatching = eqcheck.decoder(
    name="transformers_batch", checkpoints=True, origin=_ORIGIN, dtype="float32", **_CLAIMS
)(Batches)
