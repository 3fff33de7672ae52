"""A server that speaks OpenAI's completions, asked for tokens and, as a referee, for the scores of tokens.

Everything that it answers is taken for untrusted: a wrong type is one line, `ServerError`.
"""

from __future__ import annotations

import json
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from eqcheck.contract.errors import UsageError
from eqcheck.contract.escaping import one_line
from eqcheck.contract.extras import missing
from eqcheck.gate.answers import (
    Scored,
    ServerError,
    Untold,
    as_ids,
    as_list,
    as_number,
    choice_of_native,
    counts_beside,
    counts_of,
    first_law,
    listed,
    place_of,
    tokens_of,
)
from eqcheck.gate.rows import LIKELIEST, PIECE, Completed, Wanted

if TYPE_CHECKING:
    import httpx

    from eqcheck.gate.stored import StoredAnswers

KEY = "EQCHECK_API_KEY"
TIMEOUT_S = 300.0
TRIES = 7  # of a call that is answered by 429 or 5xx, or not at all; the waits double from FIRST_WAIT_S
FIRST_WAIT_S = 0.25
LARGEST = 64 * 2**20  # bytes of an answer
RETRIED = (408, 429, 500, 502, 503, 504)
A = TypeVar("A")
B = TypeVar("B")


class Server:
    """One server. Calls that fail for a while are made again, and counted in ``retried``; ``calls`` counts all.

    Raises `ServerError` where it is down, refuses the key, or serves no model.
    """

    def __init__(self, url: str, role: str) -> None:
        try:
            import httpx
        except ImportError:
            raise missing("httpx", "eqcheck gate") from None
        if not url.startswith(("http://", "https://")):
            raise UsageError(f"--{role}: expected a URL such as http://127.0.0.1:8000/v1, got {url!r:.200}")
        self.url, self.role = url.rstrip("/"), role
        key = os.environ.get(KEY)
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        limits = httpx.Limits(max_connections=512, max_keepalive_connections=128)
        self._client: httpx.Client = httpx.Client(headers=headers, timeout=TIMEOUT_S, limits=limits)
        self._httpx, self._lock = httpx, threading.Lock()
        self.calls = self.retried = 0
        self.answers: Counter[int | str] = Counter()
        self.told: Counter[str] = Counter()  # drafts that stand beside rows, as llama.cpp tells them
        self.seconds, self.model = 0.0, ""
        try:
            served = listed(self._call("GET", "/models"), "data", f"{self.url}/models")
        except ServerError as error:
            hint = "" if self.url.endswith("/v1") or "/models: 404" not in str(error) else f"; try {self.url}/v1"
            raise ServerError(f"{error}{hint}") from None
        if not served or not isinstance(served[0], dict) or not isinstance(served[0].get("id"), str):
            raise ServerError(
                f"{self.url}/models: expected a list of models in 'data', got {one_line(str(served), 200)}"
            )
        self.model = served[0]["id"]
        longest = served[0].get("max_model_len")
        self.longest = longest if isinstance(longest, int) and longest > 0 else None
        self.likeliest = LIKELIEST
        self._scoring, self.native, self._tells = "", False, False
        self.stored: StoredAnswers | None = None

    def each(self, function: Callable[[A], B], items: Sequence[A], at_once: int) -> list[B]:
        """The function of all items, so many at once, in the order of the items."""
        with ThreadPoolExecutor(max(1, min(at_once, len(items)))) as pool:
            return list(pool.map(function, items))

    def complete(self, asked: Wanted) -> Completed:
        """The row's new tokens. Raises `ServerError` where the server returns text without ids."""
        choice = self._generated(asked.native()) if self.native else self._choice(asked.body(self.model))
        if not self.native and tokens_of(choice)[0] is None and not isinstance(asked.prompt, str):
            with suppress(ServerError):  # if it is no SGLang
                choice, self.native = self._generated(asked.native()), True
        tokens, scores = tokens_of(choice)
        prompt = asked.prompt if not isinstance(asked.prompt, str) else as_ids(choice.get("prompt_token_ids"))
        if prompt is None or tokens is None:
            missing = "the prompt's" if tokens is not None else "token"
            if self._tells and prompt is not None:
                return Completed((), None, prompt, untold=True)
            raise Untold(
                f"{self.url}/completions: expected {missing} ids, got text alone; vLLM returns ids (return_token_ids) "
                "from 0.10.2 on, llama.cpp (logprobs) unless a row ends within a character"
            )
        with self._lock:
            self.told += counts_beside(choice)
            self._tells = True
        reason = choice.get("finish_reason")
        return Completed(tokens, reason if isinstance(reason, str) else None, prompt, scores)

    def scored(self, prompt: Sequence[int], tokens: Sequence[int]) -> list[Scored]:
        """Return how the server, as a referee, sees each of these tokens behind the prompt and the tokens before it."""
        if not tokens:
            return []
        if not self._scoring:
            self._scoring = self._way(prompt, tokens)
        return _WAYS[self._scoring](self, prompt, tokens)

    def in_pieces(self, prompt: Sequence[int], tokens: Sequence[int]) -> list[Scored]:
        """The same, `PIECE` tokens at a time; empty where that cannot be asked.

        SGLang takes a prefix from its cache as far as no log-probability is asked of it, and computes the rest alone.
        vLLM computes a whole prompt anew where it scores it, and llama.cpp scores new tokens alone.
        """
        if self._scoring != "generate":
            return []
        parts = [tokens[at : at + PIECE] for at in range(0, len(tokens), PIECE)]
        before = [tokens[:at] for at in range(0, len(tokens), PIECE)]
        pairs = zip(before, parts, strict=True)
        return [place for its, part in pairs for place in _by_generate(self, (*prompt, *its), part)]

    def call(self, asked: Wanted) -> tuple[str, dict[str, Any]]:
        """The address and the body with which a row is asked for."""
        if self.native:
            return self._address("/generate", True), asked.native()
        return self._address("/completions", False), asked.body(self.model)

    @property
    def scoring(self) -> str:
        """The way in which it scores: ``prompt_logprobs``, ``echo``, ``generate``, or ``step``, a token at a time."""
        return self._scoring

    def _way(self, prompt: Sequence[int], tokens: Sequence[int]) -> str:
        said = []
        for name, way in _WAYS.items():
            try:
                way(self, prompt, tokens[:2])
                return name
            except ServerError as error:
                said.append(f"{name}: {error}")
        raise ServerError(
            f"{self.url}: expected a server that scores tokens, by prompt_logprobs, by echo with logprobs, or by "
            f"logprobs of new tokens; {one_line('; '.join(said), 400)}"
        )

    def tokenized(self, text: str) -> tuple[int, ...] | None:
        """The ids of a text, where the server tells them."""
        try:
            answer = self._call("POST", "/tokenize", {"model": self.model, "prompt": text, "content": text}, root=True)
        except ServerError:
            return None
        return as_ids(answer.get("tokens")) if isinstance(answer, dict) else None

    def metrics(self) -> Counter[str]:
        """The server's counts of drafts, draft tokens and accepted ones (of each position), as far as it tells them."""
        try:
            text = str(self._call("GET", "/metrics", root=True))
        except ServerError:
            text = ""
        counts = counts_of(text)
        counts.update(self.told)
        return counts

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _choice(self, body: Mapping[str, Any]) -> dict[str, Any]:
        return self._answered("/completions", body, _first_choice)

    def _generated(self, body: Mapping[str, Any]) -> dict[str, Any]:
        return self._answered("/generate", body, choice_of_native, root=True)

    def _answered(
        self, path: str, body: Mapping[str, Any], read: Callable[[Any, str], dict[str, Any]], *, root: bool = False
    ) -> dict[str, Any]:
        place = self._address(path, root)
        if self.stored is not None and (known := self.stored.take(place, body)) is not None:
            return known
        choice = read(self._call("POST", path, body, root=root), place)
        if self.stored is not None:
            self.stored.put(place, body, choice)
        return choice

    def _address(self, path: str, root: bool) -> str:
        return (self.url.removesuffix("/v1") if root else self.url) + path

    def _call(self, method: str, path: str, body: Mapping[str, Any] | None = None, *, root: bool = False) -> Any:
        """An answer: JSON, or text where it is none. Calls that may yet succeed are made again, with longer waits."""
        url = self._address(path, root)
        for attempt in range(TRIES):
            began = time.monotonic()
            said = bytearray()
            try:
                status: int | str = self._fetch(method, url, body, said)
            except self._httpx.HTTPError as error:
                if isinstance(error, self._httpx.ConnectError) and not self.model:
                    raise ServerError(f"{url}: no server answers: {one_line(str(error), 200)}") from None
                status = type(error).__name__
            except ValueError as error:  # an address that is none
                raise ServerError(f"{url}: {one_line(str(error), 200)}") from None
            with self._lock:
                self.calls, self.seconds = self.calls + 1, self.seconds + time.monotonic() - began
                self.answers[status] += 1
                self.retried += attempt > 0
            if isinstance(status, int) and status not in RETRIED:
                return self._read(status, bytes(said), url)
            if attempt + 1 < TRIES:
                time.sleep(FIRST_WAIT_S * 2**attempt * (0.5 + random.random()))
        raise ServerError(f"{url}: {status} in {TRIES} tries, the last after {FIRST_WAIT_S * 2 ** (TRIES - 2):.0f} s")

    def _fetch(self, method: str, url: str, body: Mapping[str, Any] | None, said: bytearray) -> int:
        """The status of an answer, whose bytes are put into ``said``; one that is too large is never held whole."""
        with self._client.stream(method, url, json=body) as answer:
            for part in answer.iter_bytes():
                said += part
                if len(said) > LARGEST:
                    raise ValueError(f"expected an answer of {LARGEST} bytes at most, got more")
            return int(answer.status_code)

    def _read(self, status: int, said: bytes, url: str) -> Any:
        text = said.decode(errors="replace")
        if status in (401, 403):
            raise ServerError(f"{url}: the server refuses the key ({status}); put it into {KEY}")
        if status >= 400:
            raise ServerError(f"{url}: {status} {one_line(text, 300)}")
        try:
            return json.loads(said)
        except (ValueError, RecursionError):
            if url.endswith("/metrics"):
                return text
            raise ServerError(f"{url}: expected JSON, got {one_line(text, 200)!r}") from None


def _first_choice(answer: Any, place: str) -> dict[str, Any]:
    choices = listed(answer, "choices", place)
    if not choices or not isinstance(choices[0], dict):
        raise ServerError(f"{place}: expected an answer with one of 'choices', got {one_line(str(choices), 200)}")
    return choices[0] | {"timings": answer.get("timings")}


def _by_prompt(server: Server, prompt: Sequence[int], tokens: Sequence[int]) -> list[Scored]:
    """All places from one call, as vLLM scores prompts."""
    place = f"{server.url}/completions (prompt_logprobs)"
    body = Wanted((*prompt, *tokens), 1).body(server.model) | {"prompt_logprobs": server.likeliest}
    told = server._choice(body).get("prompt_logprobs")
    if not isinstance(told, list) or len(told) != len(prompt) + len(tokens):
        raise ServerError(f"{place}: expected {len(prompt) + len(tokens)} places, got {one_line(str(told), 100)}")
    behind = told[len(prompt) :]
    return [
        place_of(token, None, each if isinstance(each, dict) else {}, place)
        for token, each in zip(tokens, behind, strict=True)
    ]


def _by_echo(server: Server, prompt: Sequence[int], tokens: Sequence[int]) -> list[Scored]:
    """All places from one call, as OpenAI's completions echo a prompt."""
    place = f"{server.url}/completions (echo)"
    body = Wanted((*prompt, *tokens), 1).body(server.model) | {"echo": True, "logprobs": server.likeliest}
    told = server._choice(body).get("logprobs")
    told = told if isinstance(told, dict) else {}
    scores, likeliest = as_list(told.get("token_logprobs")), as_list(told.get("top_logprobs"))
    first, last = len(prompt), len(prompt) + len(tokens)
    if len(scores) < last or len(likeliest) < last:
        raise ServerError(f"{place}: expected {last} places or more, got {len(scores)}")
    return [
        place_of(token, as_number(scores[at]), likeliest[at] if isinstance(likeliest[at], dict) else {}, place)
        for token, at in zip(tokens, range(first, last), strict=True)
    ]


def _by_generate(server: Server, prompt: Sequence[int], tokens: Sequence[int]) -> list[Scored]:
    """All places from one call of SGLang's ``/generate``. It tells nothing of the first place that is asked for."""
    place = f"{server.url} (/generate)"
    body = Wanted((*prompt, *tokens), 1).native()
    told = server._generated(body | {"logprob_start_len": len(prompt) - 1, "top_logprobs_num": server.likeliest})
    scores, likeliest = (as_list(told.get(name))[-len(tokens) :] for name in ("prompt_scores", "prompt_likeliest"))
    if len(scores) < len(tokens) or len(likeliest) < len(tokens):
        raise ServerError(f"{place}: expected log-probabilities of {len(tokens)} tokens, got {len(scores)}")
    return [place_of(token, score, its, place) for token, score, its in zip(tokens, scores, likeliest, strict=True)]


def _by_step(server: Server, prompt: Sequence[int], tokens: Sequence[int]) -> list[Scored]:
    """A call for each place, behind the true beginning; a prefix cache makes it cheap.

    A token that is not among the likeliest is taken to lie as deep as the last of them: its gap is at least so much.
    """
    place, places = f"{server.url}/completions (a token at a time)", []
    for at, token in enumerate(tokens):
        body = Wanted((*prompt, *tokens[:at]), 1).body(server.model) | {"logprobs": server.likeliest}
        told = server._choice(body).get("logprobs")
        likeliest = first_law(told if isinstance(told, dict) else {})
        least = min(likeliest.values(), default=None)
        places.append(place_of(token, likeliest.get(token, least), likeliest, place))
    return places


_WAYS: Mapping[str, Callable[[Server, Sequence[int], Sequence[int]], list[Scored]]] = {
    "prompt_logprobs": _by_prompt,
    "echo": _by_echo,
    "generate": _by_generate,
    "step": _by_step,
}
