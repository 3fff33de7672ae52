"""The law of acceptance: every lost draft token of a built draft is seen, and none in a right engine."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch
from served.memory import Row
from served.paged import PagedEngine
from served.ring import RingEngine
from served.score import drawn

from eqcheck.cli import main
from eqcheck.contract.decoders import RowOptions
from eqcheck.core.case.engine import EngineCase, EngineRow
from eqcheck.core.case.sampling import SampledEngineCase
from eqcheck.core.result import losses
from eqcheck.core.result.outcome import DraftsThat, DueBy, DueDrafts, DuePlace
from eqcheck.engines.checkpoints.acceptance import accepted
from eqcheck.engines.checkpoints.folders import checkpoint
from eqcheck.engines.checkpoints.row_judge import Judge
from eqcheck.engines.engine_outcome import judged
from eqcheck.sampling.judge import judged as judge_sampled

CASES = tuple(range(4, 20, 5))  # those of `served` that have a draft model
ALONE = DuePlace(DueBy.BATCH, "1")


def row(number: int) -> DuePlace:
    return DuePlace(DueBy.ROW, str(number))


class Stale:
    """The draft of every row but the first does not see the newest token: it reads another row's length."""

    def drafts(self, row: Row) -> list[int]:
        if not row.number:
            return super().drafts(row)  # type: ignore[misc, no-any-return]
        text, row.text = row.text, [*row.text[:-1], row.text[0]]
        try:
            return super().drafts(row)  # type: ignore[misc, no-any-return]
        finally:
            row.text = text


class Short:
    """The last draft token of a round is thrown away."""

    def drafts(self, row: Row) -> list[int]:
        return super().drafts(row)[:-1]  # type: ignore[misc, no-any-return]


class StalePaged(Stale, PagedEngine): ...


class ShortRing(Short, RingEngine): ...


@lru_cache
def played(engine: Any, kind: str, number: int) -> tuple[EngineCase, list[list[int]], dict[str, Any]]:
    torch.set_num_threads(1)
    case = drawn(number, kind, caching=False)
    made, pair = engine(), checkpoint(case.checkpoint)
    made.open()
    outputs = made(str(pair.target), str(pair.draft), replace(case.request(), dtype="float32", padding_side="right"))
    return case, outputs, made.observed


def lost(engine: Any, kind: str, *told: str) -> dict[DuePlace, tuple[int, int]]:
    """What is due and accepted in some cases, where the engine tells these things only."""
    counts = Counter[DueDrafts]()
    for number in CASES:
        case, outputs, observed = played(engine, kind, number)
        counts.update(accepted(case, outputs, {name: observed[name] for name in told}))
    return losses.due(counts)


@pytest.mark.parametrize("told", ["rounds", "accepted"])
@pytest.mark.parametrize(("engine", "kind"), [(PagedEngine, "window"), (RingEngine, "mistral")])
@pytest.mark.rest
def test_right_engines_lose_nothing(engine: Any, kind: str, told: str) -> None:
    places = lost(engine, kind, told)
    kept, due = losses.total(places)
    assert kept == due > 40
    assert not losses.warnings(places)


@pytest.mark.parametrize("told", ["rounds", "accepted"])
@pytest.mark.rest
def test_a_stale_draft_in_later_slots_is_told_with_its_rows(told: str) -> None:
    places = lost(StalePaged, "window", told)
    kept, due = losses.total(places)
    assert due - kept > 0.1 * due
    (warning,) = losses.warnings(places)
    assert warning.startswith("draft: ")
    if told == "rounds":
        first, second = places[row(0)], places[row(1)]
        assert first[0] == first[1] > 0
        assert second[0] < second[1]


@pytest.mark.rest
def test_a_draft_token_less_in_each_round_is_told_with_its_position() -> None:
    places = lost(ShortRing, "mistral", "rounds")
    ks = {played(ShortRing, "mistral", number)[0].num_draft_tokens for number in CASES}
    lossy = {place for place, (kept, due) in places.items() if place.by is DueBy.POSITION and kept < due}
    assert lossy <= {DuePlace(DueBy.POSITION, str(k)) for k in ks}
    assert lossy


def test_one_percent_is_told_and_less_is_not() -> None:
    (warning,) = losses.warnings({ALONE: (4950, 5000), row(0): (50, 50), row(1): (9, 9)})
    assert ", none in row 0. This costs speed, not output" in warning
    assert not losses.warnings({ALONE: (4951, 5000)})


def test_nothing_is_due_where_the_draft_is_not_known() -> None:
    case, outputs, observed = played(PagedEngine, "window", CASES[0])
    assert accepted(case, outputs, observed)
    for other in (
        replace(case, token_budget=8),
        replace(case, kv_blocks=16),
        replace(case, drafting="ngram"),
        replace(case, checkpoint=checkpoint().name),
        case.with_options([RowOptions(9, repetition_penalty=1.5)] * len(case.rows)),
        case.with_options([RowOptions(9, temperature=1.0)] * len(case.rows)),
    ):
        assert not accepted(other, outputs, observed)
    assert not accepted(case, outputs, {**observed, "preemptions": 1})


@pytest.mark.parametrize("told", [[], [[]], 3, [7] * 9, [[(1, 2)]] * 4])
def test_rounds_of_another_shape_say_nothing(told: Any) -> None:
    case, outputs, _ = played(PagedEngine, "window", CASES[0])
    assert not accepted(case, outputs, {"rounds": told, "accepted_of_rows": told})


def test_wrong_cases_count_for_nothing() -> None:
    case, outputs, observed = played(PagedEngine, "window", CASES[0])
    right = judged(Judge("float32"), case, {"outputs": outputs, "observed": observed})
    assert right.due
    wrong = [[*outputs[0][:-1], (outputs[0][-1] + 1) % 200], *outputs[1:]]
    told = judged(Judge("float32"), case, {"outputs": wrong, "observed": observed})
    assert told.failed
    assert not told.due


def sampled(greedily: bool, proposed: int, cases: int = 12) -> Counter[DueDrafts]:
    """What is due and accepted in sampled rows of an engine that verifies by rejection; it tells its rounds.

    It proposes so many tokens less than K, the draft's likeliest or drawn ones.
    """
    torch.set_num_threads(1)
    torch.manual_seed(5)
    models, counts = checkpoint("full", "float32").models(torch.float32), Counter[DueDrafts]()

    def laws(which: int, text: list[int], temperature: float) -> Any:
        with torch.no_grad():
            return (models[which](torch.tensor([text])).logits[0] / temperature).softmax(-1)

    for number in range(cases):
        options = RowOptions(24, temperature=(0.3, 1.0)[number % 2])
        case = SampledEngineCase(
            (EngineRow((5 + number, 7), options),), num_draft_tokens=3, checkpoint=checkpoint("full").name
        )
        text = [5 + number, 7]
        text.append(int(laws(0, text, options.temperature)[-1].multinomial(1)))
        rounds = []
        while len(text) < 2 + 24:
            before, drafts, chances = len(text), list[int](), list[Any]()
            for _ in range(3 - proposed):
                q = laws(1, [*text, *drafts], options.temperature)[-1]
                q = torch.nn.functional.one_hot(q.argmax(), len(q)).float() if greedily else q
                drafts, chances = [*drafts, int(q.multinomial(1))], [*chances, q]
            for place, p in enumerate(laws(0, [*text, *drafts], options.temperature)[before - 1 :]):
                left = p
                if place < len(drafts):
                    token, q = drafts[place], chances[place]
                    if torch.rand(()) * q[token] < p[token]:
                        text.append(token)
                        continue
                    left = (p - q).clamp(min=0)
                text.append(int(left.multinomial(1)))
                break
            rounds.append([before - 2, [], min(len(text) - 2, 24)])
        outcome = judge_sampled(
            Judge("float32"), "float32", case, {"outputs": [text[2:26]], "observed": {"rounds": [rounds]}}
        )
        assert outcome.status == "equivalent"
        assert "rounds" not in outcome.observed
        counts.update(outcome.due)
    return counts


@pytest.mark.rest
def test_in_sampled_rows_each_greedy_draft_token_of_the_text_is_due() -> None:
    places = losses.due(sampled(greedily=True, proposed=0))
    assert set(places) == {DuePlace(DueBy.SAMPLED)}
    kept, due = losses.total(places)
    assert kept == due > 20


@pytest.mark.rest
def test_a_draft_token_less_shows_in_sampled_rows_too() -> None:
    places = losses.due(sampled(greedily=True, proposed=1))
    kept, due = losses.total(places)
    assert kept < 0.95 * due
    assert len(losses.warnings(places)) == 1


@pytest.mark.rest
def test_of_drawn_drafts_nothing_is_known() -> None:
    counts = sampled(greedily=False, proposed=0)
    assert counts[DueDrafts(DuePlace(DueBy.SAMPLED), DraftsThat.DRAWN)] > 10
    assert losses.due(counts) == {}


LOSING = """
from eqcheck.catalogue import FAULTS

losing = next(fault for fault in FAULTS if fault.component == "draft" and fault.build == "per_row").decoder()
"""
LIMITED = ["--cases", "40", "--no-corpus", "--max-draft-loss"]


@pytest.mark.rest
def test_an_audit_fails_where_more_is_lost_than_may_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(LOSING)
    assert main(["audit", "mine.py:losing", *LIMITED, "99%", "--junit", "99.xml"]) == 0
    assert main(["audit", "mine.py:losing", *LIMITED, "1%", "--junit", "1.xml"]) == 1
    assert "FAILED: " in (printed := capsys.readouterr().out)
    assert "were lost, and --max-draft-loss allows 1.0 %" in " ".join(printed.split())
    assert "--max-draft-loss allows 1.0 %" in next(Path().rglob("report.md")).read_text()
    assert "<failure" not in Path("99.xml").read_text()
    assert "--max-draft-loss allows 1.0 %" in Path("1.xml").read_text().partition("<failure")[2]
    assert main(["audit", "eqspec", *LIMITED, "0%"]) == 0


@pytest.mark.rest
def test_a_limit_that_nothing_is_known_of_is_inconclusive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("plain.py").write_text(
        "from eqcheck.contract.decoders import decoder\n"
        "import torch\n"
        "@decoder(name='plain', padding_sides=('left',))\n"
        "def plain(target, draft, request):\n"
        "    rows = [list(prompt) for prompt in request.prompts]\n"
        "    for row, prompt in zip(rows, request.prompts):\n"
        "        while len(row) < len(prompt) + request.max_new_tokens:\n"
        "            row.append(int(target(input_ids=torch.tensor([row])).logits[0, -1].argmax()))\n"
        "            if row[-1] in request.eos_token_ids:\n"
        "                break\n"
        "    return [row[len(prompt):] for row, prompt in zip(rows, request.prompts)]\n"
    )
    assert main(["audit", "plain.py:plain", *LIMITED, "1%", "--junit", "plain.xml"]) == 2
    said = "--max-draft-loss cannot be checked: the decoder reports no counts of draft tokens"
    assert said in Path("plain.xml").read_text().partition("<error")[2]
    assert said in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("text", ["1", "100%", "x%"])
def test_a_limit_is_a_share(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", "eqspec", "--max-draft-loss", text]) == 4
    assert "expected a share such as 1% or 0.5%" in capsys.readouterr().err
