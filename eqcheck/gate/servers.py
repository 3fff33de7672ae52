"""Talk to a server of OpenAI's completions: it returns tokens and, as a referee, scores of tokens.

Everything that it answers is taken for untrusted: a wrong type is one line, `ServerError`.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import random
import re
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

from eqcheck.contract.errors import UsageError, one_line
from eqcheck.contract.extras import missing
from eqcheck.core.explanation.records import many
from eqcheck.gate.compared_rows import (
    LIKELIEST,
    PIECE,
    PROTOCOL,
    Completed,
    Prompt,
    Row,
    Scored,
    ServerError,
    Untold,
    Wanted,
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

if TYPE_CHECKING:
    import httpx


# Answers of servers in a file, so that an interrupted gate, or one with too few requests, continues.
#
# The continued gate makes the same calls in the same order. The bets may go on after any stop: their bound holds
# however long they run.

NAME = "answers.ndjson"


class StoredAnswers:
    """Keep the answers of an unfinished gate. ``finish`` removes them, so that a mended server is asked anew.

    A call that is made several times gets its answers in turn. A torn line is skipped. ``count`` is the number of
    answers found at the start. No file is made before the first answer.
    """

    def __init__(self, folder: Path) -> None:
        self.path, self._lock = folder / NAME, threading.Lock()
        self._known: dict[str, deque[dict[str, Any]]] = {}
        if self.path.is_file():
            with self.path.open(encoding="utf-8", errors="replace") as lines:
                for line in lines:
                    self._read(line)
        self.count = sum(map(len, self._known.values()))
        self._file: IO[str] | None = None

    def _read(self, line: str) -> None:
        try:
            key, answer = json.loads(line)
        except (ValueError, TypeError, RecursionError):
            return
        if isinstance(key, str) and isinstance(answer, dict):
            self._known.setdefault(key, deque()).append(answer)

    def take(self, url: str, body: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the next stored answer to a call."""
        with self._lock:
            known = self._known.get(_key(url, body))
            return known.popleft() if known else None

    def put(self, url: str, body: Mapping[str, Any], answer: Mapping[str, Any]) -> None:
        """Store an answer."""
        with self._lock:
            if self._file is None:
                self._file = self.path.open("a", encoding="utf-8")
                self._file.write("\n" if self._file.tell() else "")  # the last line of an earlier gate may be torn
            self._file.write(f"{json.dumps([_key(url, body), answer])}\n")

    def close(self) -> None:
        """Keep the answers for a later gate."""
        if self._file is not None:
            self._file.close()

    def finish(self) -> None:
        """Remove the answers."""
        self.close()
        self.path.unlink(missing_ok=True)


def _key(url: str, body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps([url, body], sort_keys=True).encode()).hexdigest()[:32]


KEY = "EQCHECK_API_KEY"
TIMEOUT_S, CONNECT_S = 300.0, 10.0
TRIES = 7  # of a call that is answered by 429 or 5xx, or not at all; the waits double from FIRST_WAIT_S
TIMEOUT_TRIES = 2  # each takes TIMEOUT_S: seven would be half an hour of silence
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
        timeout = httpx.Timeout(TIMEOUT_S, connect=CONNECT_S)
        self._client: httpx.Client = httpx.Client(headers=headers, timeout=timeout, limits=limits)
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
                f"{self.url}/models: expected a list of models in 'data', each with an 'id', got "
                f"{one_line(str(served), 200)}; {PROTOCOL}"
            )
        self.model = served[0]["id"]
        longest = served[0].get("max_model_len")
        self.longest = longest if isinstance(longest, int) and longest > 0 else None
        self.likeliest = LIKELIEST
        self._scoring, self.native, self._tells = "", False, False
        self.stored: StoredAnswers | None = None

    def each(self, function: Callable[[A], B], items: Sequence[A], at_once: int) -> list[B]:
        """Return the function's value for each item, in order, so many at once."""
        with ThreadPoolExecutor(max(1, min(at_once, len(items)))) as pool:
            return list(pool.map(function, items))

    def complete(self, asked: Wanted) -> Completed:
        """Return the row's new tokens. Raises `ServerError` where the server returns text without ids."""
        choice = self._generated(asked.native()) if self.native else self._choice(asked.body(self.model))
        if not self.native and tokens_of(choice)[0] is None and not isinstance(asked.prompt, str):
            with suppress(ServerError):  # if it is no SGLang
                choice, self.native = self._generated(asked.native()), True
        tokens, scores = tokens_of(choice)
        prompt = asked.prompt if not isinstance(asked.prompt, str) else as_ids(choice.get("prompt_token_ids"))
        if prompt is None or tokens is None:
            missing = "the prompt's" if tokens is not None else "the new"
            if self._tells and prompt is not None:
                return Completed((), None, prompt, untold=True)
            raise Untold(
                f"{self.url}/completions: expected the ids of {missing} tokens, got text alone; vLLM returns ids "
                f"(return_token_ids) from 0.10.2 on, llama.cpp with logprobs; {PROTOCOL}"
            )
        with self._lock:
            self.told += counts_beside(choice)
            self._tells = True
        reason = choice.get("finish_reason")
        return Completed(tokens, reason if isinstance(reason, str) else None, prompt, scores)

    def scored(self, prompt: Sequence[int], tokens: Sequence[int]) -> list[Scored]:
        """Score each of these tokens after the prompt and the tokens before it, as a referee."""
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
        """Return the address and the body of a request."""
        if self.native:
            return self._address("/generate", True), asked.native()
        return self._address("/completions", False), asked.body(self.model)

    @property
    def scoring(self) -> str:
        """Return how it scores: ``prompt_logprobs``, ``echo``, ``generate``, or ``step``, a token at a time."""
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
            f"--{self.role} {self.url}: expected a server that scores given tokens (prompt_logprobs, echo with "
            f"logprobs, or logprobs of new tokens); {PROTOCOL}. Tried {one_line('; '.join(said), 400)}"
        )

    def tokenized(self, text: str) -> tuple[int, ...] | None:
        """Return the ids of a text, or None if the server cannot tokenize."""
        try:
            answer = self._call("POST", "/tokenize", {"model": self.model, "prompt": text, "content": text}, root=True)
        except ServerError:
            return None
        return as_ids(answer.get("tokens")) if isinstance(answer, dict) else None

    def metrics(self) -> Counter[str]:
        """Return the server's counts of drafts, draft tokens and accepted ones, as far as it has them."""
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
        """Return an answer: JSON, or text where it is none. Retry calls that may yet succeed, with longer waits."""
        url, to = self._address(path, root), _to_what(body)
        # A server that never answered is a wrong address and is not waited for; one that answered before may come back.
        # Waits double and are blurred, so that calls at once do not return at once.
        for attempt in range(TRIES):
            began = time.monotonic()
            said = bytearray()
            failed: Exception | None = None
            status = 0
            try:
                status = self._fetch(method, url, body, said)
            except self._httpx.HTTPError as error:
                failed = error
                if isinstance(error, self._httpx.ConnectError | self._httpx.ConnectTimeout) and not self.model:
                    why = f"no server answers ({self._reason(error)})"
                    raise ServerError(f"--{self.role} {url}: {why}; start it or check host and port") from None
            except (ValueError, self._httpx.InvalidURL) as error:
                raise ServerError(f"--{self.role} {url}: {one_line(str(error), 200)}") from None
            with self._lock:
                self.calls, self.seconds = self.calls + 1, self.seconds + time.monotonic() - began
                self.answers[status or type(failed).__name__] += 1
                self.retried += attempt > 0
            if failed is None and status not in RETRIED:
                return self._read(status, bytes(said), url, to)
            tries = TIMEOUT_TRIES if isinstance(failed, self._httpx.TimeoutException) else TRIES
            if attempt + 1 >= tries:
                break
            time.sleep(FIRST_WAIT_S * 2**attempt * (0.5 + random.random()))
        why = f"{status}{to}{_message(bytes(said))}" if failed is None else self._lasting(failed, to)
        raise ServerError(f"{url}: {why} ({attempt + 1} tries); see the server's log")

    def _lasting(self, error: Exception, to: str) -> str:
        """Say what went wrong on the network, without the names of Python's exceptions."""
        if isinstance(error, self._httpx.ConnectError | self._httpx.ConnectTimeout):
            return f"the server answered before and is gone now ({self._reason(error)})"
        if isinstance(error, self._httpx.TimeoutException):
            return f"no answer within {TIMEOUT_S:.0f} s{to}"
        if isinstance(error, self._httpx.RemoteProtocolError | self._httpx.ReadError | self._httpx.WriteError):
            return f"the server closed the connection without an answer{to}"
        return f"{self._reason(error)}{to}"

    def _reason(self, error: Exception) -> str:
        """Return what the operating system said, without its number."""
        if isinstance(error, self._httpx.ConnectTimeout):
            return f"no connection within {CONNECT_S:.0f} s"
        return re.sub(r"^\[Errno -?\d+\] ", "", one_line(str(error), 200)) or type(error).__name__

    def _fetch(self, method: str, url: str, body: Mapping[str, Any] | None, said: bytearray) -> int:
        """Return the status of an answer and put its bytes into ``said``; a huge answer is never held whole."""
        with self._client.stream(method, url, json=body) as answer:
            for part in answer.iter_bytes():
                said += part
                if len(said) > LARGEST:
                    raise ValueError(f"expected an answer of {LARGEST} bytes at most, got more")
            return int(answer.status_code)

    def _read(self, status: int, said: bytes, url: str, to: str) -> Any:
        if status in (401, 403):
            raise ServerError(f"{url}: the server refuses the key ({status}); put the right one into {KEY}")
        if status >= 400:
            raise ServerError(f"{url}: {status}{to}{_message(said)}")
        if status >= 300:
            raise ServerError(f"{url}: answers with a redirect ({status}); give the final URL")
        try:
            return json.loads(said)
        except (ValueError, RecursionError):
            text = said.decode(errors="replace")
            if url.endswith("/metrics"):
                return text
            got = repr(one_line(text, 200)) if text else "an empty answer"
            raise ServerError(f"{url}: expected JSON{to}, got {got}; is {self.url} an OpenAI-compatible API?") from None


def _to_what(body: Mapping[str, Any] | None) -> str:
    """Say which prompt a request has: it is what a server's developer looks for in the log."""
    prompt = (body or {}).get("prompt", (body or {}).get("input_ids"))
    if prompt is None:
        return ""
    return f" to a prompt of {many(len(prompt), 'character' if isinstance(prompt, str) else 'token')}"


def _message(said: bytes) -> str:
    """Return the message in the body of an error, as OpenAI, vLLM and FastAPI write it, or else the body."""
    text = said.decode(errors="replace")
    try:
        told: Any = json.loads(text)
    except (ValueError, RecursionError):
        told = text
    while isinstance(told, dict):
        told = next((told[key] for key in ("error", "message", "detail") if told.get(key)), None)
    shown = one_line(told if isinstance(told, str) else text, 300)
    return f": {shown}" if shown else ""


def _first_choice(answer: Any, place: str) -> dict[str, Any]:
    choices = listed(answer, "choices", place)
    if not choices or not isinstance(choices[0], dict):
        raise ServerError(f"{place}: expected one of 'choices', got {one_line(str(choices), 200)}; {PROTOCOL}")
    return choices[0] | {"timings": answer.get("timings")}


def _by_prompt(server: Server, prompt: Sequence[int], tokens: Sequence[int]) -> list[Scored]:
    """Score all tokens in one call, as vLLM scores prompts."""
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
    """Score all tokens in one call, as OpenAI's completions echo a prompt."""
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
    """Score all tokens in one call of SGLang's ``/generate``, which leaves out the first place of the range."""
    place = f"{server.url} (/generate)"
    body = Wanted((*prompt, *tokens), 1).native()
    told = server._generated(body | {"logprob_start_len": len(prompt) - 1, "top_logprobs_num": server.likeliest})
    scores, likeliest = (as_list(told.get(name))[-len(tokens) :] for name in ("prompt_scores", "prompt_likeliest"))
    if len(scores) < len(tokens) or len(likeliest) < len(tokens):
        raise ServerError(f"{place}: expected log-probabilities of {len(tokens)} tokens, got {len(scores)}")
    return [place_of(token, score, its, place) for token, score, its in zip(tokens, scores, likeliest, strict=True)]


def _by_step(server: Server, prompt: Sequence[int], tokens: Sequence[int]) -> list[Scored]:
    """Score with a call for each token, after the true beginning; a prefix cache makes it cheap.

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


# Check before a gate that prompts fit, that servers serve one model, and that the plain one does not speculate.

SAMPLE_TEXTS = ("The quick brown fox, 12345.", "def main():\n    return 0")  # tokenizers are compared on these
SAME_MODEL = 8  # prompts whose first token shows whether both serve one model
FOREIGN = 1.0  # nats: so far from the referee no first token of its own model is
DRAFTS = ("num_draft_tokens", "verify_calls")


def fitted(
    prompts: Sequence[Prompt], servers: Sequence[Server], max_tokens: int, at_once: int
) -> tuple[list[Prompt], list[str]]:
    """Return the prompts that fit into all servers, as ids where the plain one tokenizes, and their kinds."""

    def ids(prompt: Prompt) -> Prompt:
        return servers[0].tokenized(prompt) or prompt if isinstance(prompt, str) else prompt

    told = servers[0].each(ids, prompts, at_once)
    most = min((server.longest for server in servers if server.longest is not None), default=None)
    limit = max_tokens + 1  # the referee asks for a token more
    fits = [most is None or isinstance(prompt, str) or len(prompt) + limit <= most for prompt in told]
    kept = list(itertools.compress(told, fits))
    if not kept:
        raise UsageError(
            f"none of {len(told)} prompts fits into the context of {most} tokens with {limit} new ones; lower "
            "--max-tokens or give shorter prompts"
        )
    return kept, [getattr(prompt, "kind", "") for prompt in itertools.compress(prompts, fits)]


def check_models(
    prompts: Sequence[Prompt], plain: Server, others: Sequence[Server], seen: Callable[[Completed], tuple[Scored, ...]]
) -> Completed:
    """Raise `ServerError` where the plain server speculates, or where tokenizers or first tokens show other models.

    ``others``: the speculative server first. Returns an answer of it.
    """
    check_plain(plain)
    for text, other in itertools.product(SAMPLE_TEXTS, others):
        ids = other.tokenized(text), plain.tokenized(text)
        if None not in ids and ids[0] != ids[1]:
            each = f"{text[:40]!r} is {ids[0]} and {ids[1]}"
            raise ServerError(f"{other.url} and {plain.url} have different tokenizers: {each}")
    rows, untold, speculative = list[Row](), None, others[0]
    for asked in (Wanted(prompt, 1) for prompt in prompts[:SAME_MODEL]):
        try:
            answer = speculative.complete(asked)
        except Untold as error:
            untold = error
            continue
        rows.append(Row(0, asked, answer, seen(answer), 1, 0))
    if untold is not None and not rows:
        raise untold
    foreign = sum(row.gap > FOREIGN for row in rows)
    if 2 * foreign > len(rows):
        raise ServerError(
            f"the servers serve different models: of {len(rows)} first tokens of {speculative.url} "
            f"({speculative.model}) {foreign} are far from those of {plain.url} ({plain.model})"
        )
    return rows[0].answer


def check_plain(plain: Server) -> None:
    """Raise `ServerError` where the plain server counts drafts."""
    counts = plain.metrics()
    for name in DRAFTS:
        if counts[name]:
            told = f"{counts[name]} {name.removeprefix('num_').replace('_', ' ')}"
            raise ServerError(f"--plain {plain.url}: it speculates ({told}); start it without a draft")
