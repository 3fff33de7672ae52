"""A gate that is told a server of the draft: wrong laws show sooner, and rejected drafts are seen."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from gate_servers.engine import Asked, Told
from gate_servers.server import served
from test_gate import FAST, Toy, gated, refused, scores_of, servers

from eqcheck.cli import main

NUM_DRAFT_TOKENS = 3
SAMPLED = ("--temperature", "0.9", "--max-tokens", "96", "--concurrency", "1,8")


class Draft(Toy):
    """Mostly of the target's mind."""

    def law(self, context: list[int]) -> torch.Tensor:
        other = scores_of(7, *context[-2:])
        noise = torch.randn(len(other), generator=self.generator)
        return (2.5 * (scores_of(0, *context[-4:]) + 0.35 * other) + self.noise * noise).log_softmax(-1)


class Speculating(Toy):
    """Decodes a row round by round, with drafts of `Draft`. Faults:

    ``accepts``: each third rejected draft of a row is accepted. ``accepts-at-times``: of all rows. ``forgets``: behind
    every second rejection a token is hidden. ``law``: corrections are drawn from the target's law.
    """

    def __init__(self, fault: str = "") -> None:
        super().__init__(fault)
        self.draft, self.rejected = Draft(), 0

    def decoded(self, asked: Asked, hidden: bool = False) -> Told:
        self.drafted += 4 * self.speculating
        context, laws, round_ = list(asked.prompt), list[torch.Tensor](), 0
        self.rejected *= self.fault == "accepts-at-times"
        forgetting = False
        while len(laws) < asked.max_tokens:
            law = self.law([*context[:-2], context[-1]] if forgetting else context)
            forgetting = False
            p = self.chances(law, asked.temperature)
            q = self.chances(self.draft.law(context), asked.temperature)
            token = self.drawn(q)
            if round_ == NUM_DRAFT_TOKENS:
                token, round_ = self.drawn(p), 0
            elif self.random.random() * float(q[token]) < float(p[token]):
                round_ += 1
            else:
                self.rejected, round_ = self.rejected + 1, 0
                if not (self.fault.startswith("accepts") and self.rejected % 3 == 0):
                    token = self.drawn(p if self.fault == "law" else (p - q).clamp(min=0))
                forgetting = self.fault == "forgets" and self.rejected % 2 == 0
            context.append(token)
            laws.append(law)
            if token in asked.stops:
                break
        tokens = tuple(context[len(asked.prompt) :])
        return Told(tokens, "stop" if tokens[-1] in asked.stops else "length", torch.empty(0), torch.stack(laws))

    def chances(self, law: torch.Tensor, temperature: float) -> torch.Tensor:
        if not temperature:
            return torch.nn.functional.one_hot(law.argmax(), len(law)).float()
        return (law / temperature).softmax(-1)

    def drawn(self, law: torch.Tensor) -> int:
        return self.random.choices(range(len(law)), law.tolist())[0]


@contextmanager
def with_draft(speculative: Toy) -> Iterator[tuple[str, ...]]:
    with servers(speculative) as both, served(Draft()) as draft:  # type: ignore[arg-type]
        yield (*both, "--draft", draft)


@pytest.mark.rest
def test_a_right_server_is_equivalent_beside_its_draft(capsys: pytest.CaptureFixture[str]) -> None:
    with with_draft(Speculating()) as all_:
        code, report = gated(capsys, *all_, *FAST)
        assert (code, report["verdict"], report["draft"]) == (0, "equivalent", all_[-1])
        assert report["calls"]["draft"]["calls"] > 96


@pytest.mark.parametrize(
    ("fault", "known", "kind"),
    [
        ("accepts", True, "over-accept"),
        ("accepts", False, "wrong-correction"),
        ("accepts-at-times", True, "over-accept"),
        ("accepts-at-times", False, "unattributed"),
    ],
)
@pytest.mark.tiers(quick=0, rest=3)
def test_a_draft_that_is_accepted_once_too_often_is_named(
    capsys: pytest.CaptureFixture[str], fault: str, known: bool, kind: str
) -> None:
    with with_draft(Speculating(fault)) as all_:
        code, report = gated(capsys, *(all_ if known else all_[:-2]), *FAST)
    assert code == 1
    (violation,) = report["violations"]
    assert violation["kind"] == kind
    assert ("the draft's own choice" in violation["explanation"]) is known
    assert known or "servers do not tell their drafts" in violation["explanation"] or kind == "unattributed"


class ServesDraft(Toy):
    """It serves the draft model itself."""

    def law(self, context: list[int]) -> torch.Tensor:
        return Draft.law(self, context)  # type: ignore[arg-type]


@pytest.mark.rest
def test_a_server_of_the_draft_itself_is_not_said_to_accept_too_much(capsys: pytest.CaptureFixture[str]) -> None:
    with with_draft(ServesDraft()) as all_:
        code, report = gated(capsys, *all_, *FAST)
    assert code == 1
    (violation,) = report["violations"]
    assert violation["kind"] == "unattributed"
    assert "the server may serve the draft model, or accept every draft" in violation["explanation"]


@pytest.mark.rest
def test_where_a_token_is_wrong_is_told_by_the_distance_to_the_last_rejected_draft(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with with_draft(Speculating("forgets")) as all_:
        code, report = gated(capsys, *all_, *FAST)
    assert code == 1
    (violation,) = report["violations"]
    counts = violation["conditions"]["tokens since the last rejected draft"]
    assert counts["1"][0] >= 0.8 * violation["count"]  # noise may move a choice of the draft
    assert sum(wrong for wrong, _ in counts.values()) == violation["count"]
    assert sum(tokens for _, tokens in counts.values()) > violation["count"]
    if counts["1"][0] == violation["count"]:
        assert "Wrong only with 1 token after the last rejected draft" in violation["explanation"]
    assert violation["kind"] != "over-accept"


@pytest.mark.rest
def test_corrections_from_the_law_of_the_target_show_where_the_draft_is_known(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with with_draft(Speculating("law")) as all_:
        code, report = gated(capsys, *all_, *SAMPLED, "--requests", "128")
    assert code == 1
    assert [each["fingerprint"] for each in report["violations"]] == ["sampling/stray-law"]
    said = report["violations"][0]["explanation"]
    assert "Most of the evidence comes from tokens" in said  # which bet earns most is a matter of luck


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.tiers(quick=0, rest=1)
def test_equivalent_says_which_laws_would_have_been_seen(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    for place in (
        "gate.bets",
        "gate.comparison",
        "transparent.truth.rounding_evidence",
    ):  # fewer rows do for a bound that is looser
        monkeypatch.setattr(f"eqcheck.{place}.CROSSES", 20.0)
    with with_draft(Speculating()) as all_:
        assert main(["gate", *(all_ if known else all_[:-2]), *SAMPLED, "--requests", "56"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert ("and so would corrections drawn from the target's distribution" in said) is known
    assert ("may need more requests, or --draft URL" in said) is not known


def test_a_draft_that_does_not_answer_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with servers(Speculating()) as both:
        assert "http://127.0.0.1:9/v1" in refused(capsys, *both, "--draft", "http://127.0.0.1:9/v1")
        assert "--draft: expected a URL" in refused(capsys, *both, "--draft", "folder")
        assert "expected different servers" in refused(capsys, *both, "--draft", both[-1] + "/")
