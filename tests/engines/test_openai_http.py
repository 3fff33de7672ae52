"""The HTTP adapter against a server that answers as an OpenAI-compatible one does, right and wrong."""

from __future__ import annotations

import importlib
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from eqcheck.checkpoints import built
from eqcheck.contract import registry
from eqcheck.contract.decoders import RowOptions
from eqcheck.contract.errors import Unsupported, UsageError
from eqcheck.core.case.engine import EngineCase, EngineRow
from eqcheck.engines.checkpoints.continuations import FunctionTruth

CASE = EngineCase((EngineRow((1, 2, 3), RowOptions(6)), EngineRow((9,), RowOptions(4))))


def _ids(text: str) -> tuple[int, ...]:
    """The tokens of a text of a built checkpoint."""
    return tuple(int(one) for one in text[1:-1].split("]["))


@contextmanager
def serving(
    *,
    token_ids: bool = True,
    stops: bool = True,
    cuts: bool = True,
    keeps: bool = True,
    error: int = 0,
    heard: list[Any] | None = None,
    name: str = "full",
) -> Iterator[str]:
    truth = FunctionTruth(built(name).function)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._send({"data": [{"id": "tiny", "owned_by": "somebody"}]})

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if error:
                self._send({"error": "no room"}, error)
                return
            eos = tuple(asked.get("stop_token_ids", ())) if stops else ()
            options = RowOptions(
                asked["max_tokens"],
                eos,
                asked.get("min_tokens", 0),
                asked.get("repetition_penalty", 1.0),
                asked.get("presence_penalty", 0.0),
                stop_sequences=tuple(_ids(stop) for stop in asked.get("stop", ())),
                frequency_penalty=asked.get("frequency_penalty", 0.0),
                logit_bias=tuple((int(token), bias) for token, bias in asked.get("logit_bias", {}).items()),
            )
            tokens = truth.row(EngineRow(tuple(asked["prompt"]), options))
            matched = options.stops_of(tokens)
            if matched and not keeps:
                tokens = tokens[: -len(matched[0])]
            if asked["temperature"] and not (cuts and asked.get("top_k") == 1):
                tokens = tokens[::-1]  # whatever was drawn
            if heard is not None:
                heard.append(asked)
            choice: dict[str, Any] = {"text": "?", "logprobs": {"tokens": [f"token_id:{token}" for token in tokens]}}
            if not token_ids:
                choice = {"text": "?", "logprobs": {"tokens": ["a"] * len(tokens)}}
            choice["finish_reason"] = "stop" if matched else "length"
            choice["stop_reason"] = "".join(f"[{token}]" for token in matched[0]) if matched else None
            usage = {"prompt_tokens": len(asked["prompt"]), "completion_tokens": len(tokens)}
            self._send({"choices": [choice], "usage": usage})

        def _send(self, data: Any, status: int = 200) -> None:
            body = json.dumps(data).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        request_queue_size = 128  # rows arrive at once; with the usual 5 a busy machine resets some

    server = Server(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    finally:
        server.shutdown()
        server.server_close()


def _completions(case: EngineCase) -> Any:
    with registry.load("openai_http").running() as generate:
        return generate("", "", case.request())


def _decode(case: EngineCase) -> Any:
    return [list(row.tokens) for row in _completions(case)]


def test_rows_come_back_as_the_server_emits_them(monkeypatch: pytest.MonkeyPatch) -> None:
    truth = FunctionTruth(built("full").function)
    rows = (
        EngineRow((1, 2, 3), RowOptions(8, (truth.row(CASE.rows[0])[3],), 2)),
        EngineRow((9,), RowOptions(5, (), 0, 1.5, 0.5)),
    )
    with serving() as url:
        monkeypatch.setenv("EQCHECK_SPECULATIVE_URL", url)
        assert _decode(EngineCase(rows)) == [truth.row(row) for row in rows]


def test_what_a_server_cannot_do_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    ending = EngineCase((EngineRow((1, 2, 3), RowOptions(6, (5,))),))
    with serving(token_ids=False) as url:
        monkeypatch.setenv("EQCHECK_SPECULATIVE_URL", url)
        with pytest.raises(Unsupported, match="without token ids"):
            _decode(CASE)
    with serving(stops=False) as url:
        monkeypatch.setenv("EQCHECK_SPECULATIVE_URL", url)
        with pytest.raises(Unsupported, match="stop_token_ids"):
            _decode(ending)
        plain = EngineCase(CASE.rows, drafting="none")
        with pytest.raises(Unsupported, match="EQCHECK_PLAIN_URL"):
            _decode(plain)


def test_ends_come_back_as_the_server_tells_them(monkeypatch: pytest.MonkeyPatch) -> None:
    emitted = tuple(FunctionTruth(built("full").function).row(CASE.rows[0]))
    asked = RowOptions(6, stop_sequences=(emitted[2:4], (7, 7)))
    case = EngineCase((EngineRow((1, 2, 3), asked), EngineRow((9,), RowOptions(4))))
    with serving() as url:
        monkeypatch.setenv("EQCHECK_SPECULATIVE_URL", url)
        stopped, plain = _completions(case)
    assert (stopped.tokens, stopped.finish_reason, stopped.stop) == (list(emitted[:4]), "stop", emitted[2:4])
    assert stopped.usage == {"prompt_tokens": 3, "completion_tokens": 4}
    assert (plain.finish_reason, plain.stop) == ("length", None)
    with serving(keeps=False) as url:
        monkeypatch.setenv("EQCHECK_SPECULATIVE_URL", url)
        with pytest.raises(Unsupported, match="does not return the tokens of a stop"):
            _completions(case)


def test_sampling_is_asked_for_as_the_interface_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[Any] = []
    rows = (EngineRow((1,), RowOptions(4)), EngineRow((2,), RowOptions(4, temperature=0.7, top_p=0.9, seed=5)))
    with serving(heard=heard) as url:
        monkeypatch.setenv("EQCHECK_SPECULATIVE_URL", url)
        _decode(EngineCase(rows))
    greedy, sampled = sorted(heard[-2:], key=lambda asked: asked["prompt"])
    assert greedy["temperature"] == 0
    assert not {"top_p", "top_k", "seed"} & set(greedy)
    assert (sampled["temperature"], sampled["top_p"], sampled["seed"]) == (0.7, 0.9, 5)


def test_a_server_that_passes_over_top_k_is_not_asked_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    case = EngineCase((EngineRow((2,), RowOptions(4, temperature=0.7, top_k=3)),))
    with serving(cuts=False) as url:
        monkeypatch.setenv("EQCHECK_SPECULATIVE_URL", url)
        with pytest.raises(Unsupported, match="top_k"):
            _decode(case)
    heard: list[Any] = []
    with serving(heard=heard) as url:
        monkeypatch.setenv("EQCHECK_SPECULATIVE_URL", url)
        _decode(case)
    assert heard[-1]["top_k"] == 3


def test_an_error_of_the_server_is_told_with_its_text(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(error=503) as url:
        monkeypatch.setenv("EQCHECK_SPECULATIVE_URL", url)
        with pytest.raises(RuntimeError, match=r"503.*no room"):
            _decode(CASE)


def test_without_a_url_the_adapter_says_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EQCHECK_SPECULATIVE_URL", raising=False)
    with pytest.raises(ValueError, match="EQCHECK_SPECULATIVE_URL: expected"):
        _decode(CASE)


def test_servers_of_another_checkpoint_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(name="window") as url:
        monkeypatch.setenv("EQCHECK_SPECULATIVE_URL", url)
        with pytest.raises(RuntimeError, match=r"expected a server of the checkpoint full, .* with EQCHECK_CHECKPOINT"):
            _decode(CASE)
        monkeypatch.setenv("EQCHECK_CHECKPOINT", "window")
        truth = FunctionTruth(built("window").function)
        assert _decode(CASE) == [truth.row(row) for row in CASE.rows]


@pytest.fixture
def declared(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """The decoder as the environment declares it."""

    def declare(**variables: str) -> Any:
        for name, value in variables.items():
            monkeypatch.setenv(f"EQCHECK_{name}", value)
        return importlib.reload(importlib.import_module("eqcheck.adapters.openai_http")).OpenAIServers

    yield declare
    monkeypatch.undo()
    declare()


def test_the_environment_names_checkpoint_and_dtype(declared: Callable[..., Any]) -> None:
    usual = declared()
    assert (usual.kinds, usual.dtype, "temperature" in usual.capabilities) == (("full",), "float32", False)
    served = declared(CHECKPOINT="hybrid", DTYPE="bfloat16")
    assert (served.kinds, served.dtype) == (("hybrid",), "bfloat16")
    drawn = declared(CHECKPOINT="random", DTYPE="float32")
    assert (drawn.kinds, "temperature" in drawn.capabilities) == (("llama",), True)
    with pytest.raises(UsageError, match=r"EQCHECK_DTYPE: expected one of .* did you mean 'bfloat16'"):
        declared(CHECKPOINT="full", DTYPE="bf16")
    with pytest.raises(UsageError, match=r"EQCHECK_CHECKPOINT: expected one of .* did you mean 'window'"):
        declared(CHECKPOINT="windo", DTYPE="bfloat16")
