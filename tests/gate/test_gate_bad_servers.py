"""The gate against servers that are down, torn, hostile or of another model: one line each, and never a violation."""

from __future__ import annotations

import json
import math
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from eqcheck.cli import main
from eqcheck.gate.compared_rows import ServerError, Wanted
from eqcheck.gate.servers import Server

Body: TypeAlias = "dict[str, Any]"
VOCABULARY, CONTEXT = 40, 300
DROPPED, SILENT = 0, 1  # in place of a status: the connection is closed at once, or after a while
SMALL = ("--requests", "24", "--max-tokens", "12", "--concurrency", "1,4")
LONGER = ("--requests", "96", "--json")  # behind the former


@cache
def law(model: int, last: tuple[int, ...]) -> tuple[float, ...]:
    rng = random.Random(f"{model} {last}")
    scores = [4 * rng.random() for _ in range(VOCABULARY)]
    total = math.log(sum(map(math.exp, scores)))
    return tuple(score - total for score in scores)


@cache
def best(law: tuple[float, ...]) -> list[int]:
    return sorted(range(VOCABULARY), key=lambda one: -law[one])[:5]


class Toy:
    """A server of a toy model: the law of the next token is drawn by the last two tokens. ``twist`` changes answers."""

    def __init__(
        self, *, model: int = 0, key: str = "", failing: int = 0, twist: Callable[[Body, Body], Any] | None = None
    ) -> None:
        self.model, self.key, self.failing, self.twist = model, key, failing, twist
        self.calls = 0
        self.metrics = ""
        self.heard: list[str] = []

    def law(self, ids: list[int]) -> tuple[float, ...]:
        return law(self.model, tuple(ids[-2:]))

    def answer(self, path: str, asked: Body) -> tuple[int, Any]:
        self.calls += 1
        if self.failing and self.calls % self.failing == 0:
            return (429, 500)[self.calls % 2], {"error": "busy"}
        if path == "/tokenize":
            return 200, {"tokens": [ord(letter) % VOCABULARY for letter in asked["prompt"]]}
        if path != "/v1/completions":
            return 404, {"error": "no such path"}
        prompt = asked["prompt"]
        ids = [ord(letter) % VOCABULARY for letter in prompt] if isinstance(prompt, str) else list(prompt)
        if len(ids) + asked["max_tokens"] > CONTEXT:
            return 400, {"error": f"the context holds {CONTEXT} tokens"}
        made = self.completion(ids, asked)
        return 200, self.twist(asked, made) if self.twist else made

    def completion(self, ids: list[int], asked: Body) -> Body:
        tokens: list[int] = []
        laws: list[tuple[float, ...]] = []
        for _ in range(asked["max_tokens"]):
            laws.append(self.law(ids + tokens))
            tokens.append(best(laws[-1])[0])
            if tokens[-1] in asked.get("stop_token_ids", ()):
                break
        ended = bool(tokens) and tokens[-1] in asked.get("stop_token_ids", ())
        choice: Body = {"text": "?" * len(tokens), "finish_reason": "stop" if ended else "length"}
        choice |= {"token_ids": tokens, "prompt_token_ids": ids}
        choice["logprobs"] = {
            "tokens": [f"token_id:{token}" for token in tokens],
            "token_logprobs": [law[token] for law, token in zip(laws, tokens, strict=True)],
            "top_logprobs": [self.top(law, token, "token_id:") for law, token in zip(laws, tokens, strict=True)],
        }
        if asked.get("prompt_logprobs"):
            places = [(self.law(ids[:at]), ids[at]) for at in range(1, len(ids))]
            choice["prompt_logprobs"] = [None] + [
                {name: {"logprob": value} for name, value in self.top(law, token, "").items()} for law, token in places
            ]
        return {"choices": [choice]}

    def top(self, law: tuple[float, ...], token: int, prefix: str) -> dict[str, float]:
        return {f"{prefix}{one}": law[one] for one in [*best(law), token]}


@contextmanager
def serving(toy: Toy) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            served = {"data": [{"id": f"toy {toy.model}", "max_model_len": CONTEXT}]}
            if self.path == "/metrics" and toy.metrics:
                return self._send(200, toy.metrics.encode())
            return self._send(*((200, served) if self.path == "/v1/models" else (404, {})))

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            toy.heard.append(self.headers.get("Authorization", ""))
            if toy.key and toy.heard[-1] != f"Bearer {toy.key}":
                self._send(401, {"error": "no"})
            else:
                self._send(*toy.answer(self.path, json.loads(body)))

        def _send(self, status: int, data: Any) -> None:
            if status == SILENT:
                time.sleep(1)
            if status in (DROPPED, SILENT):
                self.close_connection = True
                return
            sent = data if isinstance(data, bytes) else json.dumps(data).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(sent)))
            self.end_headers()
            self.wfile.write(sent)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    finally:
        server.shutdown()
        server.server_close()


def gate(speculative: Toy, plain: Toy, *options: str) -> int:
    with serving(speculative) as one, serving(plain) as other:
        return main(["gate", "--speculative", one, "--plain", other, *SMALL, *options])


def with_choice(**changes: Any) -> Callable[[Body, Body], Any]:
    """Each answer's choice with other values."""
    return lambda asked, made: {"choices": [made["choices"][0] | changes]}


def wrong(asked: Body, made: Body) -> Body:
    """Every seventh token of a row is the id behind the right one; scores are left as they are."""
    if asked.get("prompt_logprobs"):
        return made
    tokens = made["choices"][0]["token_ids"]
    tokens[6::7] = [(token + 1) % VOCABULARY for token in tokens[6::7]]
    return made


@pytest.mark.long
def test_two_right_servers_and_a_wrong_one(capsys: pytest.CaptureFixture[str]) -> None:
    more = ("--requests", "96", "--max-tokens", "32", "--json")
    assert gate(Toy(), Toy(), *more) == 0
    assert json.loads(capsys.readouterr().out)["violations"] == []
    assert gate(Toy(twist=wrong), Toy(), *more) == 1
    (violation,) = json.loads(capsys.readouterr().out)["violations"]
    assert violation["first"]["token_index"] in range(6, 32, 7)
    assert violation["first"]["gap"] > 0


def test_too_few_tokens_say_how_many_more_would_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert gate(Toy(), Toy(), "--requests", "8") == 2
    assert "more" in capsys.readouterr().out


@pytest.mark.long
def test_calls_that_fail_for_a_while_are_made_again(capsys: pytest.CaptureFixture[str]) -> None:
    assert gate(Toy(failing=10), Toy(failing=10), "--requests", "96", "--max-tokens", "32") == 0
    assert "again" in capsys.readouterr().out


@pytest.mark.long
def test_a_refused_key_is_told_and_no_key_is_ever_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EQCHECK_API_KEY", "wrong-secret")
    assert gate(Toy(key="right"), Toy(key="right")) == 4
    said = capsys.readouterr()
    assert "EQCHECK_API_KEY" in said.err
    monkeypatch.setenv("EQCHECK_API_KEY", "right-secret")
    toys = Toy(key="right-secret", twist=wrong), Toy(key="right-secret")
    assert gate(*toys, "--requests", "96", "--max-tokens", "32", "--out", str(tmp_path)) == 1
    later = capsys.readouterr()
    written = [path.read_text() for path in tmp_path.rglob("*") if path.is_file()]
    assert written
    assert not any("secret" in text for text in (said.out, said.err, later.out, later.err, *written))


@pytest.mark.long
def test_prompts_are_left_out_of_a_redacted_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ids = [37, 3, 31, 5, 29, 7]
    (tmp_path / "mine.jsonl").write_text(f'{{"prompt": {ids}}}\n' * 3)
    options = (
        "--requests",
        "96",
        "--max-tokens",
        "32",
        "--prompts",
        str(tmp_path / "mine.jsonl"),
        "--out",
        str(tmp_path / "out"),
    )
    shown = f'"prompt": [{ids[0]}'  # the rest is cut where the smallest request is searched
    for redact in ((), ("--redact",)):
        assert gate(Toy(twist=wrong), Toy(), *options, *redact) == 1
        said = [capsys.readouterr().out, *(path.read_text() for path in (tmp_path / "out").iterdir())]
        assert any(shown in text.replace("\\", "") for text in said) == (not redact)


def nested(asked: Body, made: Body) -> bytes:
    return b'{"choices": ' + b"[" * 200_000


TWISTS: dict[str, Callable[[Body, Body], Any]] = {
    "text alone": with_choice(token_ids=None, prompt_token_ids=None, logprobs=None),
    "no choices": lambda asked, made: {"choices": []},
    "a list": lambda asked, made: [1, 2],
    "not JSON": lambda asked, made: b"<html>",
    "nested": nested,
    "ids as text": with_choice(token_ids=["a"], logprobs={"tokens": 7, "token_logprobs": 8, "top_logprobs": 9}),
    "huge ids": with_choice(token_ids=[2**70], logprobs=None),
    "no scores": with_choice(logprobs=None, prompt_logprobs=None),
    "scores of wrong types": with_choice(
        logprobs={"tokens": [[]], "top_logprobs": "x"}, prompt_logprobs=[1, {}, "x"] * 40
    ),
    "scores that are no numbers": with_choice(prompt_logprobs=[{"1": {"logprob": float("nan")}}] * 20, logprobs=None),
}


@pytest.mark.parametrize("twist", TWISTS)
@pytest.mark.parametrize("side", ["speculative", "plain"])
@pytest.mark.tiers(quick=2, rest=4)
def test_a_hostile_answer_is_one_line(twist: str, side: str, capsys: pytest.CaptureFixture[str]) -> None:
    bad, good = Toy(twist=TWISTS[twist]), Toy()
    code = gate(bad, good) if side == "speculative" else gate(good, bad)
    said = capsys.readouterr()
    assert "Traceback" not in said.err
    if side == "speculative" and "scores" in twist:  # nobody asks it for scores
        assert code in (0, 2, 4)
        return
    assert code in (4, 5), said.out
    (line,) = (line for line in said.err.splitlines() if line.startswith("eqcheck: "))
    assert "http://127.0.0.1" in line


class Broken(Toy):
    """A server whose completions are answered by a status and a body that do not help."""

    def __init__(self, status: int, body: bytes = b"") -> None:
        super().__init__()
        self.status, self.body = status, body

    def answer(self, path: str, asked: Body) -> tuple[int, Any]:
        return (self.status, self.body) if path == "/v1/completions" else super().answer(path, asked)


BROKEN = {
    "dropped": (DROPPED, b"", "closed the connection without an answer to a prompt of 3 tokens (7 tries); see the"),
    "silent": (SILENT, b"", "no answer within 0 s to a prompt of 3 tokens (2 tries); see the server's log"),
    "vLLM's 400": (400, b'{"object": "error", "message": "max_tokens is bad"}', "400 to a prompt of 3 tokens: max_t"),
    "OpenAI's 404": (404, b'{"error": {"message": "no model m"}}', "404 to a prompt of 3 tokens: no model m"),
    "FastAPI's 422": (422, b'{"detail": "prompt: a string"}', "422 to a prompt of 3 tokens: prompt: a string"),
    "text of a 400": (400, b"no such field", "400 to a prompt of 3 tokens: no such field"),
    "500": (500, b'{"error": "out of memory"}', "500 to a prompt of 3 tokens: out of memory (7 tries); see the server"),
    "503 alone": (503, b"", "503 to a prompt of 3 tokens (7 tries); see the server's log"),
    "redirect": (307, b"", "answers with a redirect (307); give the final URL"),
    "page": (200, b"<html>", "expected JSON to a prompt of 3 tokens, got '<html>'; is http://127.0.0.1"),
    "nothing": (200, b"", "expected JSON to a prompt of 3 tokens, got an empty answer"),
    "no choices": (200, b'{"id": 7}', "a list 'choices', got {'id': 7}; docs/gate.md lists what a server must answer"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_an_error_of_the_network_says_what_happened_and_what_to_do(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line, without the name of an exception; and no file of answers, for there was none."""
    monkeypatch.setattr("eqcheck.gate.servers.FIRST_WAIT_S", 0.001)
    monkeypatch.setattr("eqcheck.gate.servers.TIMEOUT_S", 0.3)
    status, body, expected = BROKEN[name]
    (tmp_path / "one.jsonl").write_text('{"prompt": [1, 2, 3]}\n')
    with serving(Broken(status, body)) as one, serving(Toy()) as other:
        words = ["--speculative", one, "--plain", other, "--prompts", str(tmp_path / "one.jsonl")]
        assert main(["gate", *words, "--out", str(tmp_path / "out")]) == 4
    (line,) = capsys.readouterr().err.splitlines()
    assert expected in line
    assert f"{one}/completions" in line
    assert not any(word in line for word in ("Error", "Errno", "Traceback"))
    assert not (tmp_path / "out" / "answers.ndjson").exists()


def test_a_server_that_stops_while_the_gate_runs_is_told_from_one_that_never_ran(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("eqcheck.gate.servers.FIRST_WAIT_S", 0.001)
    with serving(Toy()) as url:
        server = Server(url, "plain")
    with pytest.raises(ServerError, match=r"the server answered before and is gone now \(Connection refused\)"):
        server.complete(Wanted((1, 2, 3), 1))
    with pytest.raises(ServerError, match=r"--plain .* no server answers \(Connection refused\); start it"):
        Server(url, "plain")
    server.close()


@pytest.mark.rest
def test_a_baseline_is_an_earlier_gate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert gate(Toy(), Toy(), "--out", str(tmp_path)) == 2
    assert gate(Toy(), Toy(), "--baseline", str(tmp_path / "gate.json")) == 2
    assert "Baseline: inconclusive then, inconclusive now" in capsys.readouterr().out
    (tmp_path / "other.json").write_text("[" * 100_000)
    assert gate(Toy(), Toy(), "--baseline", str(tmp_path / "other.json")) == 4
    assert "--baseline" in capsys.readouterr().err


def test_a_huge_answer_is_never_held_whole(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("eqcheck.gate.servers.LARGEST", 100_000)
    assert gate(Toy(), Toy(twist=lambda asked, made: b" " * 30_000_000)) == 4
    assert "expected an answer of 100000 bytes at most" in capsys.readouterr().err


@pytest.mark.rest
def test_a_gate_that_was_broken_off_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole, toy, plain = Toy(), Toy(), Toy()
    gate(whole, Toy())
    plain.twist = lambda asked, made: made if plain.calls < 60 else b"torn"
    with serving(toy) as one, serving(plain) as other:
        words = ["gate", "--speculative", one, "--plain", other, *SMALL, "--out", str(tmp_path)]
        assert main(words) == 4
        with (tmp_path / "answers.ndjson").open("a") as stored:
            stored.write('["torn')
        plain.twist = None
        assert main(words) == 2
    assert json.loads((tmp_path / "gate.json").read_text())["requests"] == 24
    assert toy.calls <= whole.calls + 2  # texts are turned into ids twice


@pytest.mark.rest
def test_a_gate_with_more_requests_goes_on_from_one_with_too_few(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, toy = Toy(), Toy()
    assert gate(whole, Toy(), *LONGER) == 0
    evidence = json.loads(capsys.readouterr().out)["evidence"]
    with serving(toy) as one, serving(Toy()) as other:
        words = ["gate", "--speculative", one, "--plain", other, *SMALL, "--out", str(tmp_path)]
        assert main(words) == 2
        assert f"continues from {tmp_path}/answers.ndjson" in capsys.readouterr().err
        asked = toy.calls
        assert main([*words, *LONGER]) == 0
        out, said = capsys.readouterr()
    assert "answers of an earlier gate" in said
    assert json.loads(out)["evidence"] == evidence
    assert asked + 20 < toy.calls <= whole.calls + 4  # texts are turned into ids anew
    assert not (tmp_path / "answers.ndjson").exists()


def test_two_models_are_told_before_anything_else(capsys: pytest.CaptureFixture[str]) -> None:
    assert gate(Toy(model=1), Toy(model=2)) == 4
    assert "different models" in capsys.readouterr().err


def test_a_prompt_longer_than_the_context_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "long.txt").write_text("ab" * CONTEXT + "\n")
    assert gate(Toy(), Toy(), "--prompts", str(tmp_path / "long.txt")) == 4
    assert "context" in capsys.readouterr().err


def test_a_server_that_is_down_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(Toy()) as url:
        assert main(["gate", "--speculative", "http://127.0.0.1:9/v1", "--plain", url]) in (4, 5)
    assert "127.0.0.1:9" in capsys.readouterr().err
