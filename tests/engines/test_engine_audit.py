"""The audit of an engine: what it draws, confirms, keeps and counts."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from as_data import write
from clock import CHECKPOINT, Clock
from test_blackbox import ENGINE

from eqcheck.audit.loop import Campaign, audit
from eqcheck.audit.time_budget import Pace
from eqcheck.audit.workers.worker import ProcessWorker
from eqcheck.contract import registry
from eqcheck.contract.decoders import RowOptions
from eqcheck.core.case.engine import EngineCase, EngineRow
from eqcheck.core.explanation.records import Explanation
from eqcheck.core.result.findings import Finding, Options
from eqcheck.core.result.outcome import CaseLog
from eqcheck.engines.checkpoints.folders import checkpoint
from eqcheck.engines.checkpoints.row_judge import RowJudgement
from eqcheck.engines.engine_outcome import EngineOutcome, left_behind
from eqcheck.engines.investigate import Investigation
from eqcheck.engines.lane import UNSTEADY, EngineLane


@pytest.mark.long
def test_an_ordinary_decoder_is_audited_in_a_worker_by_its_tokens() -> None:
    """A wrong one is audited in `tests/cli/test_cli.py`."""
    torch.set_num_threads(1)
    found = audit(registry.load("eqspec"), Options(cases=2, python=sys.executable))
    assert found.verdict == "equivalent"
    assert len(found.outcomes) == 2 * 2, "by its greedy and by its sampled tokens"
    assert not found.doubtful


@pytest.mark.rest
def test_a_hanging_engine_ends_the_audit_not_the_auditor(tmp_path: Path) -> None:
    (tmp_path / "hangs.py").write_text(ENGINE.replace("if token == 3", "if True"))
    found = audit(registry.load(str(tmp_path / "hangs.py")), Options(cases=50, case_timeout=0.5, python=sys.executable))
    assert len(found.outcomes) == 3
    assert [finding.fingerprint for finding in found.violations] == ["crash/hang"]
    assert any("stopped after 3 cases took more than" in warning for warning in found.warnings)


def slow_by(seconds: float, patched: pytest.MonkeyPatch) -> None:
    """Have each case take so many seconds of a clock that does not depend on the machine."""
    Clock().put(patched, CHECKPOINT).charge(patched, ProcessWorker, "decode", seconds)


def test_time_that_nothing_had_to_be_settled_in_is_drawn_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "quick.py").write_text(ENGINE.replace("if token == ", "if token == 1000 + "))
    rounds: list[int] = []
    slow_by(0.1, monkeypatch)
    monkeypatch.setattr(Campaign, "settle", lambda self, first: rounds.append(len(self.result.outcomes)))
    found = audit(registry.load(str(tmp_path / "quick.py")), Options(cases=None, budget=5.0, python=sys.executable))
    assert len(set(rounds)) > 1
    assert rounds == sorted(rounds)
    assert rounds[-1] == len(found.outcomes)
    assert len({outcome.case.id for outcome in found.outcomes}) == len(found.outcomes)


def moody(folder: Path, also: str = "") -> Path:
    """An engine that is wrong in another way in each process."""
    body = "return [[(os.getpid() + prompt[0]) % 256 for _ in range(row.max_new_tokens)]"
    body += " for prompt, row in zip(request.prompts, request.rows)]"
    (folder / "moody.py").write_text(ENGINE.partition("        token =")[0] + f"{also}        {body}\n")
    return folder / "moody.py"


@pytest.mark.rest
def test_an_engine_that_fails_once_is_inconclusive(tmp_path: Path) -> None:
    """Its first process is wrong, and later ones decline."""
    also = f"        first = __import__('pathlib').Path({str(tmp_path / 'first')!r})\n"
    also += "        first.exists() or first.write_text(str(os.getpid()))\n"
    also += "        if first.read_text() != str(os.getpid()):\n            raise eqcheck.Unsupported\n"
    found = audit(registry.load(str(moody(tmp_path, also))), Options(cases=3, python=sys.executable))
    assert (found.verdict, found.violations) == ("inconclusive", [])
    assert sum(finding.count for finding in found.doubtful) == 3


@pytest.mark.rest
def test_an_engine_that_fails_each_time_in_another_way_is_in_violation(tmp_path: Path) -> None:
    found = audit(registry.load(str(moody(tmp_path))), Options(cases=3, python=sys.executable))
    assert found.verdict == "violation"
    assert not found.doubtful
    assert {finding.explanation.detail for finding in found.violations} == {UNSTEADY}
    assert sum(finding.count for finding in found.violations) == 3


@pytest.mark.parametrize(
    ("failure", "said"),
    [(None, "wrong too"), (Explanation("crash", "exception", detail="KeyError"), "")],
    ids=["the same fault", "another fault"],
)
def test_the_fault_is_not_the_speculations_if_it_is_the_same_without(
    failure: Explanation | None, said: str, tmp_path: Path
) -> None:
    (tmp_path / "engine.py").write_text(ENGINE)
    case = EngineCase((EngineRow((8, 8), RowOptions(1)),))
    wrong = EngineOutcome(case, "violation", outputs=((8,),), rows=(RowJudgement(0, (8,), 0, 7),))
    plain = wrong if failure is None else EngineOutcome(case, "violation", explanation=failure)
    engine = registry.load(str(tmp_path / "engine.py"))
    looking = Investigation(engine, lambda case: plain if case.drafting == "none" else wrong, lambda outcome: True)
    found = looking.finding(wrong, None, lambda: 60.0)
    assert (found.plain, found.explanation.kind) == (said, "unattributed")


@pytest.mark.long
def test_an_engine_may_decline_and_require(tmp_path: Path) -> None:
    code = ENGINE.replace("if token == 6", "if token % 2").replace(
        'dtype="float32"', 'dtype="float32", requires=("batch-1",)'
    )
    code = code.replace('Unsupported("six is too much")', "Unsupported")
    body = code.replace("[[prompt[-1]] for prompt in request.prompts]", "[[1]] * len(request.prompts)")
    (tmp_path / "picky.py").write_text(body)
    found = audit(registry.load(str(tmp_path / "picky.py")), Options(cases=12, python=sys.executable))
    assert {len(outcome.case.rows) for outcome in found.outcomes} == {1}
    declined = [outcome for outcome in found.outcomes if outcome.case.rows[0].prompt[0] % 2]
    assert 0 < len(declined) < 12
    assert len(found.claimed) == 12 - len(declined)
    report = write(found, tmp_path / "report")
    assert report["declined"] == {"no reason given": len(declined)}
    assert report["cases"]["skipped"] == len(declined)
    assert "no reason given" in (tmp_path / "report" / "report.md").read_text()
    assert any("batch-1" in warning for warning in found.warnings)


def test_what_broke_an_engine_is_kept_and_decoded_first_by_its_next_audit(tmp_path: Path) -> None:
    (tmp_path / "raises.py").write_text(ENGINE.replace("if token == 4", "if True"))
    decoder = registry.load(str(tmp_path / "raises.py"))
    options = Options(cases=2, corpus=tmp_path / "corpus", python=sys.executable)
    first = audit(decoder, options)
    assert [finding.fingerprint for finding in first.violations] == ["crash/exception:KeyError"]
    assert first.replayed == []
    second = audit(decoder, options)
    assert [outcome.case for outcome in second.replayed] == [first.violations[0].case]
    assert (second.violations[0].count, second.violations[0].stored) == (2, True)


def test_time_that_another_lane_left_is_used_for_cases_that_wait(tmp_path: Path) -> None:
    (tmp_path / "engine.py").write_text(ENGINE)
    case = EngineCase((EngineRow((8, 8), RowOptions(1)),), checkpoint=checkpoint("full").name)
    engine = registry.load(str(tmp_path / "engine.py"))
    campaign = Campaign(EngineLane(engine, Options(budget=60.0, python=sys.executable)), lambda event: None)
    with campaign.lane.drawing():
        campaign.gather(campaign.lane.running.try_case(case))
    campaign.seek_more(time.monotonic() + 1.0)
    assert (len(campaign.pending), campaign.result.findings) == (1, [])
    campaign.seek_more(time.monotonic() + 60.0)
    assert (campaign.pending, len(campaign.result.findings)) == ({}, 1)


def test_findings_of_one_look_and_need_are_one_and_the_explained_one_stands(tmp_path: Path) -> None:
    (tmp_path / "engine.py").write_text(ENGINE)
    engine = registry.load(str(tmp_path / "engine.py"))
    case = EngineCase((EngineRow((8, 8), RowOptions(1)),))
    campaign = Campaign(EngineLane(engine, Options(python=sys.executable)), lambda event: None)
    outcome = EngineOutcome(case, "violation", outputs=((8,),), rows=(RowJudgement(0, (8,), 0, 7),))
    for component in ("unattributed", "position", "position", "mask"):
        kind = {"unattributed": "unattributed", "position": "query-position", "mask": "window"}[component]
        campaign.add(Finding(outcome, Explanation(component, kind), seen=(outcome.symptom,)), [outcome])
    found = [(finding.fingerprint, finding.count) for finding in campaign.result.findings]
    assert found == [("position/query-position", 3), ("mask/window", 1)], "two causes are two findings"


def test_a_case_made_small_must_still_fail_in_a_new_process(tmp_path: Path) -> None:
    body = """
        self.count = getattr(self, "count", 0) + 1
        if len(request.prompts) > 1 or self.count > 4:
            raise KeyError("state")
        return [[1] * row.max_new_tokens for row in request.rows]
"""
    (tmp_path / "stateful.py").write_text(ENGINE.partition("        token =")[0] + body)
    found = audit(registry.load(str(tmp_path / "stateful.py")), Options(cases=6, python=sys.executable))
    crash = next(one for one in found.violations if one.fingerprint.startswith("crash/exception:KeyError"))
    assert len(crash.case.rows) > 1
    assert not crash.minimised


def test_a_token_that_is_none_is_one_failure_wherever_it_stands(tmp_path: Path) -> None:
    body = "        return [[-1] * row.max_new_tokens for row in request.rows][::-1]"
    wrong = "        return [[1] * (row.max_new_tokens - 1) + [-1] for row in request.rows]"
    for name, text in (("first", body), ("last", wrong)):
        (tmp_path / f"{name}.py").write_text(ENGINE.partition("        token =")[0] + text + "\n")
        found = audit(registry.load(str(tmp_path / f"{name}.py")), Options(cases=4, python=sys.executable))
        assert [finding.fingerprint for finding in found.violations] == ["crash/invalid-output:outputs"]
        assert found.violations[0].count == 4


@pytest.mark.rest
def test_with_little_time_failing_cases_are_still_settled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow_by(0.1, monkeypatch)
    body = """        if len(request.prompts) > 1:
            raise KeyError("rows")
        return [[1] * row.max_new_tokens for row in request.rows]
"""
    (tmp_path / "raises.py").write_text(ENGINE.partition("        token =")[0] + body)
    found = audit(registry.load(str(tmp_path / "raises.py")), Options(cases=None, budget=6.0, python=sys.executable))
    failing = sum(outcome.status == "violation" for outcome in found.outcomes)
    crash = next(one for one in found.violations if one.fingerprint.startswith("crash/exception:KeyError"))
    assert failing > len(found.outcomes) / 3
    assert crash.count > 1
    assert sum(one.count for one in found.findings) + found.unsettled == failing


def test_a_search_that_takes_all_the_time_leaves_a_finding_without_a_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 111 of 263 cases wrong an audit said that it was inconclusive, and kept no case."""

    def searched(outcome: Any) -> None:
        time.sleep(4.0)

    monkeypatch.setattr("eqcheck.engines.lane.abduced", searched)
    body = "        return [[1] * row.max_new_tokens for row in request.rows]"
    (tmp_path / "ones.py").write_text(ENGINE.partition("        token =")[0] + body + "\n")
    found = audit(registry.load(str(tmp_path / "ones.py")), Options(cases=None, budget=4.0, python=sys.executable))
    assert found.verdict == "violation"
    assert sum(one.count for one in found.violations) >= 1


SCRIPTED = """
import eqcheck

def prepare():
    pass

def start(target, draft, request):
    import torch
    from transformers import AutoModelForCausalLM
    return AutoModelForCausalLM.from_pretrained(target, dtype=torch.float64)

def decode(model, request, observed=None):
    import torch
    texts, rows = [list(prompt) for prompt in request.prompts], [[] for _ in request.prompts]
    for count in range(max(asked.max_new_tokens for asked in request.rows)):
        width = max(map(len, texts))
        ids = torch.tensor([text + [0] * (width - len(text)) for text in texts])
        with torch.no_grad():
            best = model(ids).logits.argmax(-1)
        for number, (text, row, asked) in enumerate(zip(texts, rows, request.rows)):
            if count < asked.max_new_tokens and not set(row) & set(asked.eos_token_ids):
                row.append(int(best[number, len(text) - 1]))
                text.append(row[-1])
    return rows if request.drafting == "none" else [[*row[:-1], -1] for row in rows]

@eqcheck.decoder(name="scripted", checkpoints=True, dtype="float64")
class Scripted:
    script = (prepare, start, decode)
    requirements = "transformers"
    def __call__(self, target, draft, request):
        return decode(start(target, draft, request), request)
"""


@pytest.mark.long
def test_a_script_is_handed_out_if_it_fails_and_missed_if_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eqcheck.engines.investigate.MINIMISE_S", 2.0)
    (tmp_path / "scripted.py").write_text(SCRIPTED)
    found = audit(registry.load(str(tmp_path / "scripted.py")), Options(cases=1, python=sys.executable))
    (violation,) = write(found, tmp_path / "report")["violations"]
    text = Path(violation["conditions"][0]["script"]).read_text()
    assert "crash/invalid-output" in text
    assert not any("no script without eqcheck" in warning for warning in found.warnings)
    untold = subprocess.run([sys.executable, violation["conditions"][0]["script"]], capture_output=True, text=True)
    assert (untold.returncode, untold.stderr.split(",")[0]) == (2, "name the folders of the checkpoint 'full'")
    monkeypatch.setattr("eqcheck.engines.script.inspect.getsource", lambda part: "def main():\n    pass\n")
    found = audit(registry.load(str(tmp_path / "scripted.py")), Options(cases=1))
    assert write(found, tmp_path / "report")["violations"][0]["conditions"][0]["script"] is None
    assert not list((tmp_path / "report").glob("*.py"))
    assert any("no script without eqcheck" in warning for warning in found.warnings)


def test_a_slow_case_is_no_hang(tmp_path: Path) -> None:
    slow = ENGINE.replace("if token == 3", "if True").replace("time.sleep(600)", "time.sleep(0.7)", 1)
    (tmp_path / "slow.py").write_text(slow)
    result = audit(registry.load(str(tmp_path / "slow.py")), Options(cases=1, case_timeout=0.5, python=sys.executable))
    assert [outcome.symptom for outcome in result.outcomes] == ["crash/hang"]
    assert not result.violations
    assert result.verdict == "inconclusive"


@pytest.mark.parametrize(("since", "waiting", "late"), [(60, 5, False), (80, 5, True), (80, 0, False), (95, 0, True)])
def test_time_is_kept_for_counting_cases_with_the_findings_there_are(since: int, waiting: int, late: bool) -> None:
    """Of 90 seconds, 15 are kept for five cases that take one second each to decode, as far as there are so many."""
    result = SimpleNamespace(drawing_s=20.0, outcomes=[0] * 20)
    lane: Any = SimpleNamespace(conditional=True, budget=100.0, begun=time.monotonic() - since, result=result)
    pace = Pace(lane)
    assert pace.late(waiting) == late
    assert (pace.left(1, waiting) < 0) == late


HAUNTED = """
    served = ()

    def __call__(self, target, draft, request):
        from eqcheck.core.case.engine import EngineRow
        from eqcheck.engines.checkpoints.row_judge import truth
        outputs, ended = [], []
        for prompt, asked in zip(request.prompts, request.rows):
            gone = [*self.served, *(first for first, end in ended if end < asked.arrival)]
            row = truth(target.split("/")[-2]).row(EngineRow(tuple(prompt), asked))
            outputs.append([1] * len(row) if prompt[0] % 32 in gone else row)
            ended.append((prompt[0] % 32, asked.arrival + asked.max_new_tokens))
        self.served += tuple(first for first, _ in ended)
        return outputs
"""


@pytest.mark.long
def test_a_case_that_is_wrong_behind_earlier_ones_is_shown_together_with_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine keeps something of rows that have ended: alone, each drawn case is right."""
    monkeypatch.setattr("eqcheck.engines.investigate.MINIMISE_S", 7.0)
    monkeypatch.setattr("eqcheck.engines.investigate.EXPLAIN_S", 0.0)
    text = ENGINE.partition("    def ")[0].replace('dtype="float32"', 'dtype="float32", capabilities=("arrivals",)')
    (tmp_path / "haunted.py").write_text(text + HAUNTED)
    found = audit(registry.load(str(tmp_path / "haunted.py")), Options(cases=4, python=sys.executable))
    assert (found.verdict, found.doubtful) == ("violation", [])
    (finding,) = found.violations
    assert finding.count == sum(outcome.failed for outcome in found.outcomes) > 1
    assert (finding.seen, finding.fingerprint) == (("wrong token",), "state/leaks-from-earlier-request")
    assert re.match(r"with another prompt in rows? .+; it arrived \d+ steps? after", finding.explanation.detail)
    wrong = finding.case.rows[finding.explanation.row]
    gone = [
        row for row in finding.case.rows if row.options.arrival + row.options.max_new_tokens < wrong.options.arrival
    ]
    assert wrong.prompt[0] % 32 in {row.prompt[0] % 32 for row in gone}


def test_rows_of_earlier_cases_end_before_those_of_a_later_one_arrive() -> None:
    early = EngineCase((EngineRow((1, 2), RowOptions(4, arrival=3)), EngineRow((3,), RowOptions(2))))
    late = EngineCase((EngineRow((5,), RowOptions(6, arrival=1)),))
    joined = late.after([early], arrivals=True)
    assert [(row.prompt, row.options.arrival) for row in joined.rows] == [((1, 2), 3), ((3,), 0), ((5,), 3 + 4 + 2 + 1)]
    assert late.after([early], arrivals=False).rows == early.rows + late.rows


@pytest.mark.parametrize(
    ("arrival", "emitted", "said"),
    [
        (20, (9,), "with another prompt in row 0 this row returns other tokens; it arrived 16 steps after their"),
        (20, (8,), ""),
        (5, (9,), ""),
    ],
    ids=["by its prompt", "by its place", "it may not have ended"],
)
def test_a_row_that_had_ended_is_named_if_its_prompt_changes_a_later_row(
    arrival: int, emitted: tuple[int, ...], said: str
) -> None:
    case = EngineCase((EngineRow((1,), RowOptions(4)), EngineRow((2,), RowOptions(1, arrival=arrival))))
    outputs = ((1, 1, 1, 1), (8,))
    wrong = EngineOutcome(case, "violation", outputs=outputs, rows=(RowJudgement(1, (8,), 0, 7),))
    statement = left_behind(wrong, lambda other: replace(wrong, case=other, outputs=(outputs[0], emitted)))
    assert statement.detail.startswith(said)
    assert bool(statement.detail) == bool(said)


def test_after_a_doubt_the_case_with_the_least_before_it_comes_first(tmp_path: Path) -> None:
    (tmp_path / "engine.py").write_text(ENGINE)
    lane = EngineLane(registry.load(str(tmp_path / "engine.py")), Options(cases=1))
    row = EngineRow((8, 8), RowOptions(1))
    log: list[Any] = [EngineCase((row,)), EngineCase((row,), num_draft_tokens=5), EngineCase((row,))]
    small = EngineOutcome(EngineCase((row,)), "violation", history=CaseLog(log, 3))
    large = EngineOutcome(EngineCase((row, row)), "violation", history=CaseLog(log, 2))
    assert lane.rank(small) < lane.rank(large)
    lane.doubted = True
    assert (lane.rank(small)[0], lane.rank(large)[0]) == (2, 1)
