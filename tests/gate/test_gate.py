"""The gate, over HTTP: right servers pass, faults are named, and a server that cannot be judged is one line."""

from __future__ import annotations

import hashlib
import json
import math
import random
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Condition, Thread
from typing import Any

import pytest
import torch
from gate_servers.engine import Asked, Told
from gate_servers.server import served

from eqcheck.cli import main
from eqcheck.gate.compared_rows import Completed, Row, Scored, Wanted, drawn, read, second_choices
from eqcheck.gate.sentences import text_of
from eqcheck.transparent.truth.rounding_evidence import CROSSES, Exceedances, needed

VOCABULARY = 256
LOSSY = 0.8  # nats
FAST = ("--requests", "96", "--max-tokens", "48", "--concurrency", "1,8")


@lru_cache(maxsize=100_000)
def scores_of(*words: int) -> torch.Tensor:
    digest = hashlib.sha256(repr(words).encode()).digest()
    return torch.randn(VOCABULARY, generator=torch.Generator().manual_seed(int.from_bytes(digest[:6], "big")))


class Toy:
    """Stands in for an engine: its law depends on the last four tokens, with the noise of rounding in each answer."""

    def __init__(self, fault: str = "", noise: float = 0.02, model: int = 0) -> None:
        self.fault, self.noise, self.model = fault, noise, model
        self.drafted, self.accepted = (40, 30) if fault == "speculates" else (0, 0)
        self.speculating = False
        self.random, self.generator = random.Random(model), torch.Generator().manual_seed(model)
        self.decoding, self.came, self.inside = 0, 0, Condition()

    def close(self) -> None:
        """Nothing is held."""

    def law(self, context: list[int]) -> torch.Tensor:
        noise = torch.randn(VOCABULARY, generator=self.generator)
        return (2.5 * scores_of(self.model, *context[-4:]) + self.noise * noise).log_softmax(-1)

    def ask(self, asked: Asked) -> Future[Told]:
        """The answer at once."""
        answer: Future[Told] = Future()
        if asked.score or self.fault != "beside":
            answer.set_result(self.scored(asked) if asked.score else self.decoded(asked))
            return answer
        with self.inside:
            self.decoding, self.came = self.decoding + 1, self.came + 1
            alone, came = self.decoding == 1, self.came
            self.inside.notify_all()
            beside = not alone or self.inside.wait_for(lambda: self.came > came, timeout=0.05)
        answer.set_result(self.decoded(asked, hidden=beside))
        with self.inside:
            self.decoding -= 1
        return answer

    def scored(self, asked: Asked) -> Told:
        whole = list(asked.prompt)
        return Told((), "length", torch.stack([self.law(whole[: at + 1]) for at in range(len(whole))]), torch.empty(0))

    def decoded(self, asked: Asked, hidden: bool = False) -> Told:
        self.drafted += 4 * self.speculating
        context, laws = list(asked.prompt), []
        limit = asked.max_tokens + (2 if self.fault == "limit" else 0)
        for at in range(limit):
            hidden = hidden or self.fault == "hidden"
            seen = [*context[:-2], context[-1]] if hidden and at % 5 == 4 else context
            law = self.law(seen)
            warm = asked.temperature * (2.0 if self.fault == "warm" else 1.0)
            (first, second), (token, other) = (each.tolist() for each in law.topk(2))
            if self.fault == "lossy" and at % 2 and first - second <= LOSSY:
                token = other
            if warm:
                token = self.random.choices(range(VOCABULARY), (law / warm).softmax(-1).tolist())[0]
            context.append(token)
            laws.append(law)
            if token in asked.stops and (self.fault != "stop" or at % 2):
                break
        tokens = tuple(context[len(asked.prompt) :])
        reason = "stop" if tokens[-1] in asked.stops else "length"
        if self.fault == "lost" or (self.fault == "untold-stops" and reason == "stop"):
            tokens, laws, reason = tokens[:-1], laws[:-1], "stop"
        return Told(tokens, reason, torch.empty(0), torch.stack(laws) if laws else torch.empty(0, VOCABULARY))


@contextmanager
def servers(speculative: Toy, plain: Toy | None = None, **options: Any) -> Iterator[tuple[str, ...]]:
    """The arguments that name both servers."""
    speculative.speculating = True
    with ExitStack() as stack:
        urls = [stack.enter_context(served(each, **options)) for each in (speculative, plain or Toy())]  # type: ignore[arg-type]
        yield "--speculative", urls[0], "--plain", urls[1]


def gated(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    code = main(["gate", *words, "--json"])
    return code, json.loads(capsys.readouterr().out)


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The line of a gate that cannot judge."""
    assert main(["gate", *words]) == 4
    out, err = capsys.readouterr()
    lines = [line for line in err.splitlines() if not line.startswith("gate: ")]
    assert len(lines) == 1
    assert not out
    return lines[0]


def test_rows_that_are_exchangeable_never_cross_and_others_do() -> None:
    crossed = []
    for seed in range(200):
        rng, bet = random.Random(seed), Exceedances()
        for _ in range(8):
            bet.compare_with(abs(rng.gauss(0, 1)) for _ in range(10))
            bet.add(abs(rng.gauss(0, 1)) for _ in range(10))
            crossed.append(bet.log_evidence)
    assert max(crossed) < math.log(200 * 50)
    bet = Exceedances([abs(random.Random(1).gauss(0, 1)) for _ in range(160)])
    bet.add([10.0] * 20)
    assert bet.log_evidence > math.log(CROSSES)


def test_the_bound_is_not_loose_by_the_factor_of_two_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the factor the mean of the evidence over right servers is 1 at most, too."""
    monkeypatch.setattr("eqcheck.transparent.truth.rounding_evidence.ROOM", 1.0)
    ends = []
    for seed in range(400):
        rng = random.Random(seed)
        bet = Exceedances(rng.random() for _ in range(20))
        bet.add(rng.random() for _ in range(10))
        ends.append(math.exp(bet.log_evidence))
    assert sum(ends) / len(ends) < 1.3


@pytest.mark.long
def test_right_servers_are_equivalent(capsys: pytest.CaptureFixture[str]) -> None:
    with servers(Toy()) as both:
        code, report = gated(capsys, *both, *FAST)
    assert (code, report["verdict"], report["violations"]) == (0, "equivalent", [])
    assert report["requests"] == 96
    assert 0 < report["noise"]["greatest_gap_of_control"] < report["threshold"] < 1
    assert report["stops_heeded"]


@pytest.mark.parametrize(
    ("fault", "fingerprint"),
    [
        ("hidden", "cache/missing-entry"),
        ("limit", "bookkeeping/over-length"),
        ("stop", "bookkeeping/past-eos"),
    ],
)
@pytest.mark.tiers(quick=0, rest=1)
def test_a_fault_is_told_and_named(capsys: pytest.CaptureFixture[str], fault: str, fingerprint: str) -> None:
    with servers(Toy(fault)) as both:
        code, report = gated(capsys, *both, *FAST)
    assert (code, report["verdict"]) == (1, "violation")
    assert [each["fingerprint"] for each in report["violations"]] == [fingerprint]
    (violation,) = report["violations"]
    assert violation["count"] > 1
    assert {"request", "token_index", "expected", "observed", "gap"} == set(violation["first"])
    assert "curl" in violation
    assert violation["conditions"]


@pytest.mark.rest
def test_lossy_acceptance_is_named_by_ranks_and_a_limit(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Every other token is the second choice where that is near; a cache that lacks a token gives any choice."""
    with servers(Toy("lossy")) as both:
        code, report = gated(capsys, *both, *FAST, "--out", str(tmp_path))
    assert code == 1
    (violation,) = report["violations"]
    assert violation["fingerprint"] == "bookkeeping/over-accept"
    assert violation["cause"]["certainty"] == "Likely cause"
    seconds = violation["second_choices"]
    assert seconds["second"] == seconds["wrong_tokens"] > 50
    said = violation["explanation"]
    assert f"All {seconds['second']} wrong tokens are the plain server's second choice" in said
    assert "lossy or threshold acceptance): those at most 0.8" in said
    assert "by accident is 1 in 10^" in said
    shown = text_of(report, str(tmp_path))
    assert f"Reproduce      python {tmp_path}/over-accept.py" in shown
    with servers(Toy("hidden")) as both:
        _, report = gated(capsys, *both, *FAST)
    (violation,) = report["violations"]
    assert violation["second_choices"]["second"] < violation["second_choices"]["wrong_tokens"]
    assert "second choice" not in violation["explanation"]


def rows_with_gaps(wrong: list[float], places: list[float]) -> list[Row]:
    """Rows of one token: second choices with these gaps that are returned, and first choices with such a second."""
    made = []
    for gap, token in [*((gap, 2) for gap in wrong), *((gap, 1) for gap in places)]:
        scores = {1: -0.1, 2: -0.1 - gap, 3: -30.0, 4: -31.0, 5: -32.0}
        place = Scored(token, scores[token], 1, scores)
        made.append(Row(0, Wanted((7,), 1), Completed((token,), "length", (7,)), (place,), 1, 0))
    return made


def test_second_choices_name_a_threshold_only_with_a_limit() -> None:
    rng = random.Random(0)
    places = [5 * rng.random() for _ in range(600)]
    near, any_ = [0.2 + 0.8 * rng.random() for _ in range(80)], [0.2 + 4.8 * rng.random() for _ in range(80)]
    limited, unlimited = (second_choices(rows_with_gaps(wrong, places), 0.1) for wrong in (near, any_))
    assert limited.all_second
    assert unlimited.all_second
    assert limited.log10_limit < -20
    assert unlimited.log10_limit > -3
    assert limited.log10_chance == pytest.approx(80 * math.log10(0.25))
    assert not second_choices(rows_with_gaps(near[:2], places), 0.1).all_second
    assert not second_choices(rows_with_gaps([], places), 0.1).all_second


@pytest.mark.rest
def test_the_last_screen_has_the_cause_the_reproduction_and_the_verdict(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("eqcheck.core.explanation.layout.within", 80)
    with servers(Toy("lossy")) as both:
        assert main(["gate", *both, *FAST, "--out", str(tmp_path)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80 or all("/" in line for line in lines if len(line) > 80)
    screen = "\n".join(lines[-23:])
    for word in ("Likely cause", "Evidence", "Reproduce", "violation: "):
        assert word in screen
    expected, got, mark = (
        next(line for line in lines if word in line) for word in ("expected  ", "got  ", "^ new token ")
    )
    wrong = next(at for at, pair in enumerate(zip(expected[17:], got[17:], strict=False), 17) if pair[0] != pair[1])
    first = mark.index("^")
    assert first <= wrong < first + mark.count("^")


@pytest.mark.parametrize("temperature", ["0", "0.9"])
@pytest.mark.tiers(quick=0, rest=1)
def test_rows_without_their_last_token_are_told_whatever_their_end_is_called(
    capsys: pytest.CaptureFixture[str], temperature: str
) -> None:
    with servers(Toy("lost")) as both:
        code, report = gated(capsys, *both, *FAST, "--temperature", temperature)
    assert code == 1
    (violation,) = report["violations"]
    assert violation["fingerprint"] == "bookkeeping/premature-stop"
    assert "ends before the others" in violation["explanation"]
    assert violation["smallest"]["at_once"] == 1
    assert violation["first"]["expected"] is None


@pytest.mark.rest
def test_stops_that_are_not_told_are_heeded(capsys: pytest.CaptureFixture[str]) -> None:
    """Two servers that leave out the stop are right; a server that passes over its stops is not."""
    with servers(Toy("untold-stops"), Toy("untold-stops")) as both:
        code, report = gated(capsys, *both, *FAST)
    assert (code, report["stops_heeded"]) == (0, True)
    with servers(Toy("stop"), Toy("untold-stops")) as both:
        code, report = gated(capsys, *both, *FAST)
    assert code == 1
    assert [each["kind"] for each in report["violations"]] == ["past-eos"]


@pytest.mark.parametrize(("fault", "at_once"), [("hidden", 1), ("beside", 2), ("limit", 1), ("lost", 1)])
@pytest.mark.rest
def test_the_smallest_requests_show_a_wrong_row(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, fault: str, at_once: int
) -> None:
    """One that is wrong beside another row alone needs two; the script shows it on the two servers."""
    with servers(Toy(fault)) as both:
        _, report = gated(capsys, *both, *FAST, "--out", str(tmp_path))
        (violation,) = report["violations"]
        smallest = violation["smallest"]
        assert smallest["at_once"] == at_once
        assert smallest["prompt_tokens"] <= 4
        assert smallest["max_tokens"] <= 5
        assert violation["curl"]["speculative"].count("curl") == at_once
        path = tmp_path / f"{violation['kind']}.py"
        assert len(path.read_text().splitlines()) <= 25
        said = subprocess.run([sys.executable, path], capture_output=True, text=True, check=True).stdout
    observed = smallest["observed"]
    assert f"{len(observed)} of {smallest['max_tokens']} tokens" in said
    assert fault in ("limit", "lost") or f"token {smallest['at']} is {observed[smallest['at']]} but" in said


@pytest.mark.long
def test_sampled_rows_are_held_to_the_law(capsys: pytest.CaptureFixture[str]) -> None:
    words = (*FAST, "--temperature", "0.9")
    with servers(Toy()) as both:
        code, report = gated(capsys, *both, *words, "--requests", "12")
    assert (code, report["verdict"], report["sampled"]) == (2, "inconclusive", 9)
    with servers(Toy("warm")) as both:
        code, report = gated(capsys, *both, *words)
    assert code == 1
    assert [each["fingerprint"] for each in report["violations"]] == ["sampling/stray-law"]


@pytest.mark.rest
def test_few_requests_are_inconclusive_and_say_how_many_more(capsys: pytest.CaptureFixture[str]) -> None:
    with servers(Toy()) as both:
        code, report = gated(capsys, *both, "--requests", "8", "--max-tokens", "8")
    assert (code, report["verdict"]) == (2, "inconclusive")
    assert report["lacking"] > 8
    assert needed(0.5) < needed(0.1)


@pytest.mark.long
def test_calls_that_fail_for_a_while_are_no_violation(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eqcheck.gate.servers.FIRST_WAIT_S", 0.001)
    with servers(Toy(), failing=0.1) as both:
        code, report = gated(capsys, *both, *FAST)
    assert code == 0
    assert report["calls"]["speculative"]["retried"] > 5


@pytest.mark.long
def test_a_page_and_a_report_are_written_and_prompts_left_out(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with servers(Toy("hidden")) as both:
        assert main(["gate", *both, *FAST, "--out", str(tmp_path / "gate"), "--redact"]) == 1
    out, _ = capsys.readouterr()
    assert "cache/missing-entry" in out
    assert "curl" not in out
    assert "gate: violation" in (tmp_path / "gate" / "gate.html").read_text()
    assert json.loads((tmp_path / "gate" / "gate.json").read_text())["verdict"] == "violation"


@pytest.mark.long
def test_servers_that_cannot_be_judged_are_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eqcheck.gate.servers.FIRST_WAIT_S", 0.001)
    assert "no server answers" in refused(capsys, "--speculative", "http://127.0.0.1:9/v1", "--plain", "http://x/v1")
    assert "expected a URL" in refused(capsys, "--speculative", "127.0.0.1", "--plain", "http://x/v1")
    with servers(Toy(), Toy(model=1)) as both:
        assert "different models" in refused(capsys, *both)
    with servers(Toy(), Toy("speculates")) as both:
        assert "it speculates (40 draft tokens)" in refused(capsys, *both)
    with servers(Toy(), ids=False) as both:
        assert "text alone" in refused(capsys, *both)
    with servers(Toy(), key="right") as both:
        monkeypatch.setenv("EQCHECK_API_KEY", "secret-of-mine")
        told = refused(capsys, *both)
        assert "refuses the key" in told
        assert "secret-of-mine" not in told
        monkeypatch.setenv("EQCHECK_API_KEY", "right")
        assert main(["gate", *both, *FAST]) == 0


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"{",
        b"[]",
        b'{"data": [{"id": 7}]}',
        b'{"data": [{"id": "m"}], "choices": [{"token_ids": [-1, "\x1b"]}]}',
        b"\xff",
    ],
)
@pytest.mark.tiers(quick=4, rest=2)
def test_hostile_answers_are_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, answer: bytes
) -> None:
    class Hostile(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        do_POST = do_GET  # noqa: N815

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Hostile)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        url = f"http://127.0.0.1:{server.server_address[1]}/v1"
        told = refused(capsys, "--speculative", url, "--plain", url)
        assert "expected" in told
        assert "\x1b" not in told
    finally:
        server.shutdown()
        server.server_close()


def test_prompts_are_texts_or_ids_and_a_bad_line_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.txt").write_text("one\n\ntwo words\n")
    (tmp_path / "b.jsonl").write_text('{"prompt": "x"}\n{"prompt": [1, 2]}\n')
    (tmp_path / "c.jsonl").write_text('{"prompt": "x"}\n{"prompt": [1, -2]}\n')
    assert read(tmp_path / "a.txt") == ["one", "two words"]
    assert read(tmp_path / "b.jsonl") == ["x", (1, 2)]
    both = ("--speculative", "http://127.0.0.1:9/v1", "--plain", "http://127.0.0.1:9/v1")
    assert "c.jsonl:2: prompt: expected" in refused(capsys, *both, "--prompts", str(tmp_path / "c.jsonl"))
    assert "none.txt" in refused(capsys, *both, "--prompts", str(tmp_path / "none.txt"))
    for words in (("--temperature", "3"), ("--concurrency", "0"), ("--concurrency", "a")):
        assert words[0] in refused(capsys, *both, *words)
    assert len({len(str(prompt)) for prompt in drawn(64, 1)}) > 20
