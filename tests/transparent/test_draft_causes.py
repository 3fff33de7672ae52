"""Why a draft loses tokens is read from its calls: each fault has a cause of its own, and right drafts have none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from drafting import RIGHT, DraftReadOneEarly, DraftSeesNoPrompt
from transformers import DynamicCache

from eqcheck.audit.loop import audit
from eqcheck.catalogue import BUILDS, FAULTS, Fault
from eqcheck.catalogue.engines.engine import HIDDEN, RoundEngine, Rows, logits_of
from eqcheck.catalogue.engines.rows import PerRow
from eqcheck.cli.replaying import replay
from eqcheck.contract.decoders import Decoder, Request
from eqcheck.core.case.record import Case
from eqcheck.core.explanation.records import Explanation
from eqcheck.core.explanation.text import render
from eqcheck.core.result.findings import Audit, Options
from eqcheck.core.result.tally import Tally
from eqcheck.report.build import report_of, write
from eqcheck.report.markdown import to_markdown
from eqcheck.report.schema import from_builtins, to_builtins
from eqcheck.report.terminal import summary
from eqcheck.transparent.attribution.draft_causes import causes_of, explained
from eqcheck.transparent.attribution.lost_drafts import by_cause, draft_warnings
from eqcheck.transparent.coverage import try_case
from eqcheck.transparent.decoding import run
from eqcheck.transparent.search import Source


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


class TokenByToken(PerRow):
    """The draft is fed its prompt whole, and then one token a call, under a mask of its own."""

    hides_itself = False  # a query does not see its own token
    lacks_last = (
        False  # after all draft tokens are accepted, the last of them is never fed, and all behind it follow on
    )
    window: int | None = None  # the newest tokens that a query sees
    uncached = False

    def begin(self) -> None:
        super().begin()
        self.drafter = [DynamicCache() for _ in self.rows]
        self.fed = [0] * len(self.rows)
        self.lacking = [0] * len(self.rows)

    def draft_logits(self, i: int, block: list[int], decodes: bool) -> torch.Tensor:
        first = self.fed[i]
        keys, queries = torch.arange(first + len(block))[None], torch.arange(first, first + len(block))[:, None]
        visible = keys < queries if self.hides_itself and decodes else keys <= queries
        visible &= keys > queries - (self.window or len(keys[0]) + 1)
        mask = torch.zeros(visible.shape, dtype=torch.float64).masked_fill(~visible, HIDDEN)[None, None]
        self.fed[i] += len(block)
        return logits_of(self.draft, torch.tensor([block]), mask, queries.T, self.drafter[i])[0]

    def propose(self, budget: list[int]) -> Rows:  # type: ignore[override]
        return [self.drafted(i, count) for i, count in zip(self.active, budget, strict=True)]

    def drafted(self, i: int, count: int) -> list[int]:
        if not count:
            return []
        behind = self.drafted_on(i, self.rows[i][self.fed[i] + self.lacking[i] :])
        blocks = [[token] for token in behind] if self.fed[i] else [behind]
        decodes = bool(self.fed[i])
        for block in blocks:
            logits = self.draft_logits(i, block, decodes)
        proposed = [int(logits[-1].argmax())]
        while len(proposed) < count:
            proposed.append(int(self.draft_logits(i, proposed[-1:], True)[-1].argmax()))
        return proposed

    def after(self, going: Any, lengths: Any) -> None:
        super().after(going, lengths)
        for i, length in zip(self.active, lengths, strict=True):
            due = length - self.lacking[i]
            if self.lacks_last and self.fed[i] == due - 1:
                self.lacking[i] += 1
            if self.fed[i] > due:
                self.drafter[i].crop(due - self.fed[i])
                self.fed[i] = due


class HiddenFromItself(TokenByToken):
    hides_itself = True


class LacksLast(TokenByToken):
    lacks_last = True


class Both(TokenByToken):
    hides_itself = lacks_last = True


class Windowed(TokenByToken):
    window = 4


class NewestAlone(TokenByToken):
    """A draft without memory: it sees the newest token."""

    window = 1


class OtherFunction(TokenByToken):
    """A draft that is another function than the target: it proposes at random what it has seen rightly."""

    def drafted(self, i: int, count: int) -> list[int]:
        return [(token * 7 + 3) % 128 for token in super().drafted(i, count)]


class BonusLate(TokenByToken):
    """The draft is fed what was accepted only when it drafts again, all of it in one call."""

    def drafted(self, i: int, count: int) -> list[int]:
        if not count:
            return []
        logits = self.draft_logits(i, self.rows[i][self.fed[i] :], False)
        proposed = [int(logits[-1].argmax())]
        while len(proposed) < count:
            proposed.append(int(self.draft_logits(i, proposed[-1:], True)[-1].argmax()))
        return proposed


def of_engine(engine: type[RoundEngine]) -> Any:
    def generate(target: Any, draft: Any, request: Request) -> Rows:
        rows: Rows = engine(target, draft, request).decode()
        return rows

    return generate


def drawn(families: tuple[str, ...] = ("rotary", "learned"), count: int = 30) -> list[Case]:
    return Source(8, families, ("left",), ("empty",)).chunk(0, count)


def told(engine: type[RoundEngine], cases: list[Case]) -> tuple[dict[str, int], list[str]]:
    """The draft tokens lost by cause as they are told, and the warnings."""
    outcomes = [try_case(of_engine(engine), case, None) for case in cases]
    assert not any(outcome.failed for outcome in outcomes)
    tally = Tally.of(outcomes, [], lambda case: True)
    causes = {name.partition(":")[2]: count for name, count in by_cause(tally.losses, tally.lost).items()}
    return causes, [warning.partition(":")[0] for warning in draft_warnings(tally.losses)]


HIDES, LACKS = "mask/token-hidden", "cache/missing-entry"


@pytest.mark.parametrize(
    ("engine", "causes"),
    [
        (TokenByToken, set()),
        (BonusLate, set()),
        (Windowed, set()),
        (NewestAlone, set()),
        (HiddenFromItself, {HIDES}),
        (LacksLast, {LACKS}),
        (Both, {HIDES, LACKS}),
        (DraftSeesNoPrompt, {LACKS}),
        (DraftReadOneEarly, {"given-another"}),
    ],
)
@pytest.mark.rest
def test_each_fault_has_its_own_cause(engine: type[RoundEngine], causes: set[str]) -> None:
    found, warnings = told(engine, drawn())
    assert found.keys() == causes
    assert warnings[:1] == ["draft/desync"] * bool(causes or engine in (Windowed, NewestAlone))


@pytest.mark.parametrize("engine", RIGHT, ids=lambda engine: engine.__name__)
@pytest.mark.tiers(quick=3, rest=16)
def test_right_engines_of_unusual_build_have_no_cause(engine: type[RoundEngine]) -> None:
    assert told(engine, drawn(count=8)) == ({}, [])


# What each planted fault of a draft is read as, by the beginning of its name.
READ_AS = {
    "D1-": LACKS,
    "D2-": LACKS,
    "D3-": "cache/stale-entry",
    "D4-": "cache/wrong-row",
    "D5-": LACKS,
    "D6-": "fed-another",
    "D7-": "given-another",
    "D8-": "position/query-position",
    "D9-": "cache/wrong-row",
    "D10-": "fed-another",
    "D11-": "given-another",
    "D12-": "given-another",
    "D13-": "given-another",
    "D40-": "given-another",
    "M2-": "mask/pad-visible",
    "X8-": "cache/wrong-row",
}
PLANTED = [
    fault for fault in FAULTS if fault.fingerprint == "draft/desync" and "tree" not in BUILDS[fault.build].cache_states
]


@pytest.mark.parametrize("fault", PLANTED, ids=lambda fault: fault.id)
@pytest.mark.tiers(quick=2, rest=8)
def test_planted_faults_are_read_by_kind(fault: Fault) -> None:
    expected = next(cause for begin, cause in READ_AS.items() if fault.id.startswith(begin))
    cases = Source(8, fault.families, ("left",), fault.cache_states).chunk(0, 24)
    tokens, _ = told(fault.engine(), cases)
    assert tokens[expected] >= 0.95 * sum(tokens.values()) > 0, tokens


LOSES = Case(((10,),), max_new_tokens=4, num_draft_tokens=1, accepts=((1, 1),))


def test_the_first_wrong_draft_call_is_shown() -> None:
    e = explained(run(of_engine(LacksLast), LOSES))
    assert e is not None
    assert (e.fingerprint, e.query and e.query.logical_position) == (f"draft/desync:{LACKS}", 2)
    text = render(e)
    assert "Draft call 3 (round 2) feeds token 104." in text
    assert "Position 1 of the row is not among what the call reads (never fed to the draft)." in text
    assert "the output is correct" in text
    assert "target call" not in text.lower()
    assert explained(run(of_engine(TokenByToken), LOSES)) is None


def test_one_query_with_two_faults_has_the_cause_that_comes_first() -> None:
    """Where a query is hidden from itself and an entry is missing, too, it is the cache's, as for the target."""
    cases = {engine: explained(run(of_engine(engine), LOSES)) for engine in (HiddenFromItself, LacksLast, Both)}
    found = [e and e.subject for e in cases.values()]
    assert found == [HIDES, LACKS, LACKS]


@pytest.mark.parametrize("name", ["T12-full-acceptance-is-none.realigned", "T13-bonus-dropped.realigned"])
def test_an_answer_that_is_asked_again_is_named(name: str) -> None:
    case = Case(((5, 7, 11),), max_new_tokens=8, num_draft_tokens=3, agreement=1.0)
    e = explained(run(of_engine(next(fault for fault in FAULTS if fault.id == name).engine()), case))
    assert e is not None
    assert e.fingerprint == "draft/lost-bonus"
    assert "in target call 4 were accepted, and the call predicted new token 3, 79; it is verified again" in e.detail


def test_a_window_has_the_same_size_everywhere() -> None:
    case = Case(((10, 11, 12),), max_new_tokens=9, num_draft_tokens=2, agreement=1.0)
    assert {cause.window for cause in causes_of(run(of_engine(Windowed), case))} == {4}


def test_rows_that_begin_alike_keep_their_own_drafts() -> None:
    """A prompt is the beginning of another: what is drafted behind it is not taken for the other row's."""
    case = Case(((58, 23, 85, 68, 83, 110), (58, 23), (56, 67)), max_new_tokens=8, num_draft_tokens=2, agreement=0.9)
    for family in ("rotary", "learned"):
        causes = causes_of(run(of_engine(LacksLast), Case(**{**vars(case), "family": family})))
        assert {cause.fingerprint for cause in causes} <= {f"draft/desync:{LACKS}"}


def _decoder(tmp_path: Path, engine: str) -> Decoder:
    from eqcheck.contract.registry import load

    here = Path(__file__).parent
    (tmp_path / "mine.py").write_text(
        f"import sys\nsys.path[:0] = [{str(here)!r}]\nimport eqcheck\nfrom test_draft_causes import {engine}\n\n\n"
        '@eqcheck.decoder(name="mine", families=("rotary", "learned"), cache_states=("empty",))\n'
        f"def generate(target, draft, request):\n    return {engine}(target, draft, request).decode()\n"
    )
    return load(f"{tmp_path}/mine.py")


def _audited(tmp_path: Path, engine: str) -> Audit:
    return audit(_decoder(tmp_path, engine), Options(cases=60))


@pytest.mark.rest
def test_an_audit_minimises_stores_and_reports_each_cause(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    result = _audited(tmp_path, "Both")
    assert result.verdict == "equivalent"
    assert not result.failing()
    slow = {finding.explanation.subject: finding for finding in result.of("slow")}
    assert slow.keys() == {HIDES, LACKS}
    assert all(finding.minimised and finding.case.prompts == ((10,),) for finding in slow.values())
    assert slow[HIDES].tokens[0] > slow[LACKS].tokens[0] > 1
    report = write(result, tmp_path / "out")
    assert from_builtins(to_builtins(report)) == report
    page, markdown = (tmp_path / "out" / name for name in ("report.html", "report.md"))
    for text in (summary([report], [str(tmp_path)]), markdown.read_text(), page.read_text()):
        for name in (HIDES, LACKS):
            assert f"draft/desync:{name}" in text
    monkeypatch.chdir(tmp_path)
    for file, code in ((f"draft-desync-{name.replace('/', '-')}", 0) for name in slow):
        assert replay(tmp_path / "out" / "slow" / f"{file}.json", "mine.py") == code
        said = capsys.readouterr().out
        assert said.startswith("SLOW: mine loses draft tokens on this case; its output is correct")
        assert "Draft call" in said


@pytest.mark.rest
def test_an_audit_of_a_right_draft_says_nothing(tmp_path: Path) -> None:
    for engine in ("TokenByToken", "Windowed"):
        result = _audited(tmp_path, engine)
        assert not result.of("slow")
        assert not any("draft" in warning for warning in result.warnings)
        assert "SLOW" not in to_markdown(report_of(result, tmp_path))


def test_reports_from_before_are_read() -> None:
    for file in sorted((Path(__file__).parents[1] / "old" / "audits").glob("*/report.json")):
        data = json.loads(file.read_text())
        if data["format"] == "eqcheck-report/2":
            assert from_builtins(data).slow == ()


def test_an_explanation_of_a_draft_is_named_after_what_is_wrong() -> None:
    e = Explanation("draft", "desync", subject="given-another")
    assert render(e).startswith("draft/desync:given-another: the target is given another token than the draft proposed")
