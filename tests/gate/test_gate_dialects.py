"""The gate on servers that answer otherwise than vLLM: SGLang's own calls, and counts of drafts in several forms."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
from test_gate_bad_servers import SMALL, VOCABULARY, Body, Toy, best, gate, serving, wrong

from eqcheck.cli import main
from eqcheck.gate.compared_rows import PIECE, Wanted
from eqcheck.gate.sentences import text_of
from eqcheck.gate.servers import Server

LARGE = ("--requests", "96", "--max-tokens", "32", "--json")


class SGLang(Toy):
    """SGLang 0.5.23 in the parts that a gate asks, read from its source. ``old``: one whose completions tell no ids.

    Its completions name tokens by their texts, in echoes too, and refuse a ``top_k`` of 0.
    """

    def __init__(self, *, old: bool = False, **options: Any) -> None:
        super().__init__(**options)
        self.old = old
        self.generated = 0

    def answer(self, path: str, asked: Body) -> tuple[int, Any]:
        if path == "/generate":
            return 200, self.generate(asked)
        if asked.get("top_k", -1) == 0:
            return 400, {"message": "top_k must be -1 (disable) or at least 1, got 0."}
        status, made = super().answer(path, asked)
        if path != "/v1/completions" or status != 200:
            return status, made
        (choice,) = made["choices"]
        choice.pop("prompt_logprobs", None)
        if self.old:
            del choice["token_ids"], choice["prompt_token_ids"]
        told = choice["logprobs"]
        if asked.get("echo"):
            told["token_logprobs"] = [None, *[-1.0] * (len(asked["prompt"]) - 1), *told["token_logprobs"]]
            told["top_logprobs"] = [None, *[{}] * (len(asked["prompt"]) - 1), *told["top_logprobs"]]
        told["tokens"] = ["text"] * len(told["token_logprobs"])
        told["top_logprobs"] = [
            dict.fromkeys(["text"], max((each or {0: 0.0}).values())) for each in told["top_logprobs"]
        ]
        return status, made

    def generate(self, asked: Body) -> Body:
        self.generated += 1
        options = asked["sampling_params"]
        assert options.get("top_k", -1) != 0
        as_completion = {"max_tokens": options["max_new_tokens"], "stop_token_ids": options.get("stop_token_ids", [])}
        scored = "logprob_start_len" in asked
        made = self.completion(asked["input_ids"], as_completion | {"prompt_logprobs": scored})
        made = self.twist(as_completion | {"prompt_logprobs": scored}, made) if self.twist else made
        (choice,) = made["choices"]
        ids, tokens = asked["input_ids"], choice["token_ids"]
        told = {"finish_reason": {"type": choice["finish_reason"]}, "prompt_tokens": len(ids)}
        told |= self.scores("output", ids, tokens, range(len(ids), len(ids) + len(tokens)))
        if scored:
            first = asked["logprob_start_len"]
            its = self.scores("input", ids, [], range(first, len(ids)))
            its["input_token_logprobs"][0][0], its["input_top_logprobs"][0] = None, None
            told |= its
        return {"text": "?", "output_ids": tokens, "meta_info": told}

    def scores(self, side: str, ids: list[int], tokens: list[int], places: range) -> Body:
        whole = [*ids, *tokens]
        laws = [self.law(whole[:at]) if at else self.law([0]) for at in places]
        pairs = list(zip(laws, places, strict=True))
        return {
            f"{side}_token_logprobs": [[law[whole[at]], whole[at], None] for law, at in pairs],
            f"{side}_top_logprobs": [[[law[one], one, None] for one in best(law)] for law, _ in pairs],
        }


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.tiers(quick=0, rest=1)
def test_sglang_is_judged_by_its_own_calls(old: bool, capsys: pytest.CaptureFixture[str]) -> None:
    assert gate(SGLang(old=old), plain := SGLang(old=old), *LARGE) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["plain"]["scoring"] == "generate"
    assert report["stops_heeded"]
    assert plain.generated > 96
    assert gate(SGLang(old=old, twist=wrong), SGLang(old=old), *LARGE) == 1
    (violation,) = json.loads(capsys.readouterr().out)["violations"]
    assert violation["first"]["gap"] > 0
    assert ("/generate" in violation["curl"]["speculative"]) == old


def test_rows_are_scored_some_tokens_at_a_time_where_that_can_be_asked() -> None:
    tokens = tuple(range(1, 13))
    with serving(SGLang()) as native, serving(Toy()) as other:
        server, whole = Server(native, "plain"), Server(other, "plain")
        places = server.scored((1, 2, 3), tokens)
        assert server.in_pieces((1, 2, 3), tokens) == places
        assert whole.scored((1, 2, 3), tokens)
        assert whole.in_pieces((1, 2, 3), tokens) == []


@pytest.mark.parametrize(("off", "counted"), [(0.0, True), (0.05, True), (3.0, False)])
@pytest.mark.tiers(quick=0, rest=1)
def test_a_cache_that_rounds_is_noise_and_a_broken_one_is_none(
    off: float, counted: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """Calls of `PIECE` tokens or fewer behind a row's begin lower the likeliest score, as if the cache was wrong."""

    class Shifted(SGLang):
        def scores(self, side: str, ids: list[int], tokens: list[int], places: range) -> Body:
            made = super().scores(side, ids, tokens, places)
            if side == "input" and 1 < len(places) <= PIECE + 1:
                for each in made["input_top_logprobs"]:
                    each[0][0] -= off
            return made

    gate(SGLang(), Shifted(), *LARGE)
    report = json.loads(capsys.readouterr().out)
    assert report["noise"]["greatest_change_in_pieces"] == pytest.approx(off, abs=1e-3)
    assert report["noise"]["cache_broken"] == (not counted)
    assert report["noise"]["greatest_change_of_a_score"] == pytest.approx(off if counted else 0.0, abs=1e-3)
    assert ("its cache may be wrong" in " ".join(text_of(report).split())) != counted
    assert gate(SGLang(twist=wrong), Shifted(), *LARGE) == 1


def test_a_row_is_asked_of_sglang_without_cuts() -> None:
    with serving(SGLang(old=True)) as url:
        server = Server(url, "plain")
        wanted = Wanted((1, 2, 3), 4, temperature=0.8, seed=5, stops=(7,))
        assert len(server.complete(wanted).tokens) <= 4
        address, body = server.call(wanted)
        assert address.endswith("/generate")
        assert body["sampling_params"]["top_k"] == -1
        assert body["sampling_params"]["stop_token_ids"] == [7]


METRICS = """# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts.
vllm:spec_decode_num_drafts_total{{engine="0"}} {0}.0
vllm:spec_decode_num_draft_tokens_total{{engine="0"}} {1}.0
vllm:spec_decode_num_accepted_tokens_total{{engine="0"}} {2}.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="0",position="0"}} {3}.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="0",position="1"}} {4}.0
"""


class Counting(Toy):
    """Its metrics count four draft tokens a round from the first call on, as vLLM does."""

    def answer(self, path: str, asked: Body) -> tuple[int, Any]:
        made = super().answer(path, asked)
        self.metrics = METRICS.format(*(each * self.calls for each in (2, 8, 3, 2, 1)))
        return made


def test_acceptance_is_told_by_position(capsys: pytest.CaptureFixture[str]) -> None:
    speculative = Counting()
    speculative.metrics = METRICS.format(*[0] * 5)
    gate(speculative, Toy(), *SMALL)
    assert "38% of draft tokens accepted (by draft position: 100%, 50%)" in " ".join(capsys.readouterr().out.split())


def test_drafts_that_stand_beside_a_row_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    beside: Body = {"timings": {"draft_n": 40, "draft_n_accepted": 10}}
    gate(Toy(twist=lambda asked, made: made | beside), Toy(), *SMALL)
    assert "25% of draft tokens accepted" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("name", ["vllm:spec_decode_num_draft_tokens_total", "sglang:spec_verify_calls_total"])
def test_a_plain_server_that_speculates_is_refused(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    plain = Toy()
    plain.metrics = f'{name}{{model="toy"}} 12.0'
    assert gate(Toy(), plain) == 4
    assert re.search(r"it speculates \(12 (draft tokens|verify calls)\)", capsys.readouterr().err)


def test_a_plain_server_that_is_seen_to_speculate_only_by_its_rows_is_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    told: Body = {"timings": {"draft_n": 4, "draft_n_accepted": 1}}
    assert gate(Toy(), Toy(twist=lambda asked, made: made | told)) == 4
    assert "it speculates" in capsys.readouterr().err


class Drawing(Toy):
    """A server that takes the second choice in some places, ``at_random`` or by a rule of the length."""

    def __init__(self, at_random: bool) -> None:
        super().__init__()
        self.at_random, self.rng = at_random, random.Random(0)

    def law(self, ids: list[int]) -> tuple[float, ...]:
        law = super().law(ids)
        rng = self.rng if self.at_random else random.Random(len(ids))
        if len(ids) % 3 == 0 and rng.random() < 0.2:  # never two in a row
            first, second = best(law)[:2]
            law = tuple({first: law[second], second: law[first]}.get(token, score) for token, score in enumerate(law))
        return law


@pytest.mark.parametrize(("at_random", "kind"), [(True, "unattributed"), (False, "wrong-correction")])
@pytest.mark.tiers(quick=0, rest=1)
def test_a_choice_that_changes_is_not_said_to_be_drawn(
    at_random: bool, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert gate(Drawing(at_random), Toy(), *LARGE) == 1
    (violation,) = json.loads(capsys.readouterr().out)["violations"]
    assert violation["kind"] == kind
    assert ("the same wrong token each time" in violation["explanation"]) == at_random


@pytest.mark.rest
def test_evidence_that_does_not_decide_is_no_equivalence(capsys: pytest.CaptureFixture[str]) -> None:
    def twisted(asked: Body, made: Body) -> Body:
        """Of twenty prompts one ends with a wrong token."""
        tokens = made["choices"][0]["token_ids"]
        if not asked.get("prompt_logprobs") and random.Random(str(asked["prompt"])).random() < 0.05:
            tokens[-1] = (tokens[-1] + 1) % VOCABULARY
        return made

    code = gate(Toy(twist=twisted), Toy(), "--requests", "96", "--max-tokens", "32")
    said = " ".join(capsys.readouterr().out.split())
    assert code == 2
    assert "192 greedy, " in said
    assert "Twice as many as requested, because the evidence was above 100." in said
    assert "so much evidence comes from one correct server in a hundred at most" in said
    assert re.search(r"about \d+ more requests? would decide \(--requests \d+\)", said)


@pytest.mark.rest
def test_a_server_that_counts_no_draft_is_not_equivalent(capsys: pytest.CaptureFixture[str]) -> None:
    speculative = Toy()
    speculative.metrics = METRICS.format(*[0] * 5)
    assert gate(speculative, Toy(), "--requests", "96", "--max-tokens", "32") == 2
    assert "counted no draft token" in capsys.readouterr().out


def test_outputs_and_addresses_are_checked_before_anything_is_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    with serving(Toy()) as one, serving(Toy()) as other:
        for words in (
            ("--plain", one),
            ("--plain", other, "--out", str(tmp_path / "file")),
            ("--plain", other, "--junit", str(tmp_path / "no" / "x.xml")),
            ("--plain", other.removesuffix("/v1")),
        ):
            assert main(["gate", "--speculative", one, *words]) == 4
    said = capsys.readouterr().err
    assert said.count("eqcheck: ") == 4
    assert "/v1 twice" in said
    assert f"try {other}" in said


@pytest.mark.rest
def test_a_row_that_is_told_as_text_alone_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    """As llama.cpp does where a row ends within a character; the same of a place that is scored."""
    seen = [0]

    def torn(asked: Body, made: Body) -> Body:
        seen[0] += 1
        if seen[0] % 9 == 0:
            choice = made["choices"][0]
            choice |= {"logprobs": None, "token_ids": None, "prompt_logprobs": None}
        return made

    words = ("--requests", "96", "--max-tokens", "32")
    with serving(Toy(twist=torn)) as one, serving(Toy()) as other:
        assert main(["gate", "--speculative", one, "--plain", other, *words]) in (0, 2)
    said = " ".join(capsys.readouterr().out.split())
    assert re.search(r"\d+ requests? left out: a server did not return all ids or scores", said)


@pytest.mark.rest
def test_a_budget_that_ends_a_gate_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(Toy()) as one, serving(Toy()) as other:
        words = ("--requests", "4000", "--max-tokens", "4", "--concurrency", "1", "--budget", "2s")
        assert main(["gate", "--speculative", one, "--plain", other, *words]) == 2
    assert "the time was over (--budget)" in " ".join(capsys.readouterr().out.split())
