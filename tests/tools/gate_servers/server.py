"""vLLM's completions over HTTP for the small engine: token ids in and out, log-probabilities of prompts and tokens."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks import pair
from gate_servers.engine import Asked, Engine, Told

NAME = "pair"
DRAFT_STEPS = 6  # a draft of a model has weights of so many steps on each side of 0


class Text:
    """The texts of a folder's tokenizer, as `benchmarks.pair` has them."""

    def __init__(self, folder: str) -> None:
        self._tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        self.END = int(self._tokenizer.eos_token_id)

    def encode(self, text: str) -> list[int]:
        """The ids of a text."""
        return list(self._tokenizer(text)["input_ids"])

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids."""
        return str(self._tokenizer.decode(ids))


def weights(dtype: str, folder: str = "") -> pair.Pair:
    """The trained pair in a dtype, or with weights rounded to ``int8`` a row and computed in bfloat16.

    Of a model in a folder the draft is the same model with much coarser weights.
    """
    kind = torch.bfloat16 if dtype == "int8" else getattr(torch, dtype)
    if folder:
        loaded = pair.Pair(*(AutoModelForCausalLM.from_pretrained(folder, dtype=kind).eval() for _ in range(2)))
        _round(loaded.draft, DRAFT_STEPS)
    else:
        loaded = pair.load(kind)
    for model in loaded if dtype == "int8" else ():
        _round(model, 127)
    return loaded


def _round(model: Any, steps: int) -> None:
    for name, its in model.named_parameters():
        if its.ndim == 2 and "embed" not in name:
            step = its.data.float().abs().amax(-1, keepdim=True) / steps
            its.data = ((its.data.float() / step).round() * step).to(its.dtype)


@contextmanager
def served(
    engine: Engine, *, failing: float = 0.0, key: str = "", ids: bool = True, words: Any = pair
) -> Iterator[str]:
    """Serve an engine on a free port of this machine: its base URL, ``http://127.0.0.1:PORT/v1``.

    ``failing``: the share of calls that are answered by 429 or 500. ``key``: asked for. ``ids`` False: text only.
    ``words``: encodes and decodes texts.
    """
    server = Server(engine, failing=failing, key=key, ids=ids, words=words)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    finally:
        server.shutdown()
        server.server_close()
        engine.close()


class Server(ThreadingHTTPServer):
    """The HTTP server of an engine."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(
        self,
        engine: Engine,
        port: int = 0,
        *,
        failing: float = 0.0,
        key: str = "",
        ids: bool = True,
        words: Any = pair,
    ) -> None:
        super().__init__(("127.0.0.1", port), Answer)
        self.words = words
        self.engine, self.failing, self.key, self.ids, self.calls = engine, failing, key, ids, 0

    @property
    def fails(self) -> bool:
        """Whether this call is one of the failing share."""
        self.calls += 1
        return math.floor(self.calls * self.failing) > math.floor((self.calls - 1) * self.failing)


class Answer(BaseHTTPRequestHandler):
    """One call."""

    server: Server
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        if self.path == "/v1/models":
            self._answer(200, {"object": "list", "data": [{"id": NAME, "owned_by": "eqcheck", "max_model_len": 512}]})
        elif self.path == "/metrics":
            engine = self.server.engine
            counts = {"num_draft_tokens": engine.drafted, "num_accepted_tokens": engine.accepted}
            lines = [f'vllm:spec_decode_{name}_total{{model_name="{NAME}"}} {count}' for name, count in counts.items()]
            self._answer(200, "\n".join(lines) + "\n")
        else:
            self._answer(404, {"error": {"message": f"no {self.path}"}})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.server.key and self.headers.get("Authorization") != f"Bearer {self.server.key}":
            return self._answer(401, {"error": {"message": "Unauthorized"}})
        if self.server.fails:
            return self._answer(429 if self.server.calls % 2 else 500, {"error": {"message": "busy"}})
        try:
            asked = json.loads(body)
        except ValueError as error:
            return self._answer(400, {"error": {"message": str(error)}})
        if self.path == "/tokenize":
            ids = self.server.words.encode(asked["prompt"])
            return self._answer(200, {"tokens": ids, "count": len(ids), "max_model_len": 512})
        if self.path == "/detokenize":
            return self._answer(200, {"prompt": self.server.words.decode(asked["tokens"])})
        if self.path != "/v1/completions":
            return self._answer(404, {"error": {"message": f"no {self.path}"}})
        status, answer = self._complete(asked)
        return self._answer(status, answer)

    def _complete(self, asked: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        prompt = asked["prompt"]
        prompts = prompt if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int) else [prompt]
        words = self.server.words
        rows = [words.encode(row) if isinstance(row, str) else list(row) for row in prompts]
        limit = asked.get("max_tokens", 16)
        if not all(rows) or any(len(row) + limit > 512 for row in rows):
            longest = max(map(len, rows))
            return 400, {"error": {"message": f"a context of 512 tokens, {longest} of the prompt and {limit} asked"}}
        scored = asked.get("prompt_logprobs") is not None or (asked.get("echo") and asked.get("logprobs") is not None)
        stops = frozenset(asked.get("stop_token_ids") or ()) | (frozenset() if asked.get("ignore_eos") else {words.END})
        if scored:
            laws = [self.server.engine.ask(Asked(tuple(row), score=True)).result().of_prompt for row in rows]
        told = [Told((), "length", torch.empty(0), torch.empty(0))] * len(rows)
        if (
            scored and limit == 1 and not asked.get("temperature", 1.0)
        ):  # the laws of the prompt tell the token behind it
            told = [Told((int(law[-1].argmax()),), "length", torch.empty(0), law[-1:]) for law in laws]
        elif limit:
            temperature, seed = asked.get("temperature", 1.0), asked.get("seed")
            futures = [self.server.engine.ask(Asked(tuple(row), limit, temperature, seed, stops)) for row in rows]
            told = [future.result() for future in futures]
        choices = [self._choice(asked, at, row, told[at], laws[at] if scored else None) for at, row in enumerate(rows)]
        usage = {"prompt_tokens": sum(map(len, rows)), "completion_tokens": sum(len(its.tokens) for its in told)}
        return 200, {"object": "text_completion", "model": NAME, "choices": choices, "usage": usage}

    def _choice(
        self, asked: dict[str, Any], at: int, row: list[int], told: Told, scored: torch.Tensor | None
    ) -> dict[str, Any]:
        """One row of an answer, in the shape of vLLM's; ``scored`` are the laws after each token of the prompt."""
        echo, top = bool(asked.get("echo")), asked.get("logprobs")
        tokens = [*(row if echo else ()), *told.tokens]
        choice: dict[str, Any] = {
            "index": at,
            "text": self.server.words.decode(tokens),
            "finish_reason": told.finish_reason,
        }
        choice["logprobs"] = None
        if not self.server.ids:
            return choice
        if asked.get("return_token_ids"):
            choice |= {"token_ids": list(told.tokens), "prompt_token_ids": row}
        if top is not None:
            laws = [*((None, *scored[:-1]) if echo and scored is not None else ()), *told.of_tokens]
            choice["logprobs"] = {
                "tokens": [f"token_id:{token}" for token in tokens],
                "token_logprobs": [
                    None if law is None else float(law[token]) for token, law in zip(tokens, laws, strict=True)
                ],
                "top_logprobs": [
                    None if law is None else _top(law, token, top, "token_id:")
                    for token, law in zip(tokens, laws, strict=True)
                ],
                "text_offset": list(range(len(tokens))),
            }
        if asked.get("prompt_logprobs") is not None and scored is not None:
            count = asked["prompt_logprobs"]
            choice["prompt_logprobs"] = [None] + [
                {
                    key: {"logprob": value, "rank": int((law > value).sum()) + 1, "decoded_token": chr(int(key))}
                    for key, value in _top(law, token, count, "").items()
                }
                for token, law in zip(row[1:], scored, strict=False)
            ]
        return choice

    def _answer(self, status: int, answer: dict[str, Any] | str) -> None:
        data = (answer if isinstance(answer, str) else json.dumps(answer)).encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/plain" if isinstance(answer, str) else "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def _top(law: torch.Tensor, token: int, count: int, prefix: str) -> dict[str, float]:
    """The ``count`` likeliest tokens and the token itself, with their log-probabilities."""
    ids = law.topk(count).indices.tolist() if count else []
    return {f"{prefix}{each}": float(law[each]) for each in dict.fromkeys([token, *ids])}
