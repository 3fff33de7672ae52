"""A decoder may decline a case: it is passed over, counted and shown everywhere, and never a violation."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from as_data import to_dict

import eqcheck
from eqcheck import cli
from eqcheck.audit.loop import audit
from eqcheck.audit.time_budget import DECLINED
from eqcheck.audit.workers.fork import ForkWorker
from eqcheck.audit.workers.worker import Limits
from eqcheck.catalogue import known_good
from eqcheck.contract import registry
from eqcheck.contract.decoders import REQUIREMENTS, Decoder, Request, decoder
from eqcheck.contract.errors import UsageError
from eqcheck.contract.requirements import unmet
from eqcheck.core.case.record import Case
from eqcheck.core.result.findings import Audit, Options
from eqcheck.transparent.coverage import try_case
from eqcheck.transparent.decoding import run
from eqcheck.transparent.oracle import judge

serving = importlib.import_module("eqcheck.reference_impls.serving")
pytest_plugins = ["pytester"]

Rows = list[list[int]]
one_row: Callable[[Any, Any, Request], Rows] = known_good()["one_row"]
ONE, TWO = Case(prompts=((1, 2),)), Case(prompts=((1, 2), (3,)))
DECODERS = """
import eqcheck

def right(target, request):
    limits = {"max_new_tokens": request.max_new_tokens, "eos_token_ids": request.eos_token_ids}
    return [eqcheck.Oracle(target).truth(prompt, **limits) for prompt in request.prompts]

@eqcheck.decoder(name="alone")
def alone(target, draft, request):
    if len(request.prompts) > 1:
        raise eqcheck.Unsupported("one row at a time")
    return right(target, request)

@eqcheck.decoder(name="alone-and-wrong")
def alone_and_wrong(target, draft, request):
    return [row[:-1] for row in alone(target, draft, request)]

@eqcheck.decoder(name="never")
def never(target, draft, request):
    raise eqcheck.Unsupported("no GPU was found")

@eqcheck.decoder(name="unready")
class Unready:
    def open(self):
        raise eqcheck.Unsupported("no GPU was found")

    def __call__(self, target, draft, request):
        return right(target, request)

@eqcheck.decoder(name="declared", requires=("batch-1", "equal-lengths"))
def declared(target, draft, request):
    return alone(target, draft, request)

@eqcheck.decoder(name="rectangles", padding_sides=("left", "right"), requires=("equal-lengths", "no-eos"))
def rectangles(target, draft, request):
    if len({len(prompt) for prompt in request.prompts}) > 1 or request.eos_token_ids:
        raise RuntimeError("a rectangle is needed")
    return right(target, request)
"""


def alone(target: Any, draft: Any, request: Request) -> Rows:
    if len(request.prompts) > 1:
        raise eqcheck.Unsupported("one row at a time")
    return one_row(target, draft, request)


def made(function: Any, **claims: Any) -> Decoder:
    return decoder(name="mine", **claims)(function)


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    torch.set_num_threads(1)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(DECODERS)
    return tmp_path


def declines(cases: Any) -> int:
    return sum(len(outcome.case.prompts) > 1 for outcome in cases)


def test_it_is_one_concept() -> None:
    assert serving.Unsupported is eqcheck.Unsupported
    assert issubclass(eqcheck.Unsupported, eqcheck.EqcheckError)
    assert issubclass(eqcheck.Unsupported, ValueError)


def test_a_run_that_is_declined_has_no_verdict() -> None:
    done = run(alone, TWO)
    assert (done.outputs, done.failure, done.declined) == (None, None, "one row at a time")
    verdict = judge(done)
    assert (verdict.status, bool(verdict), verdict.explanation) == ("skipped", False, None)
    assert verdict.explain() == "declined: one row at a time"
    assert run(alone, ONE).declined == ""


def test_a_reason_is_one_line_that_can_be_shown() -> None:
    def odd(target: Any, draft: Any, request: Request) -> Rows:
        raise eqcheck.Unsupported("no\x1b[31m GPU\nsecond line")

    def silent(target: Any, draft: Any, request: Request) -> Rows:
        raise eqcheck.Unsupported

    assert run(odd, ONE).declined == "no?[31m GPU"
    assert run(silent, ONE).declined == "no reason given"


def test_an_audit_passes_over_what_is_declined(tmp_path: Path) -> None:
    result = audit(made(alone), Options(cases=60))
    declined = declines(result.outcomes)
    assert 20 < declined < 60
    assert (result.verdict, result.violations, len(result.claimed)) == ("equivalent", [], 60 - declined)
    report = to_dict(result, tmp_path)
    assert report["cases"] == {
        "run": 60 - declined,
        "equivalent": 60 - declined,
        "tie": 0,
        "violation": 0,
        "inconclusive": 0,
        "skipped": declined,
    }
    assert report["declined"] == {"one row at a time": declined}
    assert report["equivalence"] == {"exact_match": 1.0, "prefix_match": 1.0}
    assert sum(entry["cases"] for entry in report["matrix"].values()) == 60 - declined
    assert sum(entry["declined"] for entry in report["matrix"].values()) == declined
    assert "several_rows" not in report["coverage"]
    assert "ragged_prompts" not in report["coverage"]


def vacuous(result: Audit) -> list[str]:
    return [warning for warning in result.warnings if warning.startswith("VACUOUS: ") and "declined" in warning]


def test_a_decoder_that_declines_all_is_not_asked_for_ever() -> None:
    def never(target: Any, draft: Any, request: Request) -> Rows:
        raise eqcheck.Unsupported("this device computes in float32")

    result = audit(made(never), Options(cases=None, budget=60.0))
    assert (len(result.outcomes), result.verdict) == (DECLINED, "inconclusive")
    assert any("this device computes in float32" in warning for warning in vacuous(result))


def test_too_many_declined_is_vacuous() -> None:
    result = audit(made(alone), Options(cases=60))
    (warning,) = (warning for warning in vacuous(result) if "requires=" in warning)
    assert f"{declines(result.outcomes)} of 60 cases were declined" in warning
    assert "'one row at a time'" in warning

    def rarely(target: Any, draft: Any, request: Request) -> Rows:
        if request.num_draft_tokens == 4:
            raise eqcheck.Unsupported("four draft tokens are too many")
        return one_row(target, draft, request)

    result = audit(made(rarely), Options(cases=60))
    assert any(outcome.status == "skipped" for outcome in result.outcomes)
    assert vacuous(result) == []


@pytest.mark.parametrize(
    ("what", "claims"),
    [
        ("family learned", {"families": ("rotary", "learned")}),
        ("padding side right", {"padding_sides": ("left", "right")}),
        ("cache state prefix", {"cache_states": ("empty", "prefix")}),
    ],
)
@pytest.mark.tiers(quick=2, rest=1)
def test_a_claim_of_which_all_is_declined_is_vacuous(what: str, claims: Any) -> None:
    def picky(target: Any, draft: Any, request: Request) -> Rows:
        if target.config.family == "learned" and "families" in claims:
            raise eqcheck.Unsupported("no learned positions")
        if request.padding_side == "right" and "padding_sides" in claims:
            raise eqcheck.Unsupported("no right padding")
        if request.prefix_length:
            raise eqcheck.Unsupported("no prefix")
        return one_row(target, draft, request)

    narrow = {"families": ("rotary",), "cache_states": ("empty",)}
    result = audit(made(picky, **{**narrow, **claims}), Options(cases=60))
    assert result.verdict == "equivalent"
    assert any(f"cases of {what} were declined" in warning for warning in vacuous(result))
    assert len(vacuous(result)) <= 2


def test_all_declined_is_nothing_tested(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("never", "Unready"):
        assert cli.main(["audit", "--adapter", f"mine.py:{name}", "--cases", "8", "--out", f"out-{name}"]) == 5
        shown = capsys.readouterr().out
        assert "8 of 8 cases were declined: no GPU was found (8)" in shown
        (path,) = Path(f"out-{name}").glob("*/report.json")
        report = json.loads(path.read_text())
        assert (report["cases"]["run"], report["cases"]["skipped"], report["violations"]) == (0, 8, [])
        assert "no GPU was found" in path.with_name("report.md").read_text()


def test_a_violation_among_declined_cases_is_found_and_replayed(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["audit", "--adapter", "mine.py:alone_and_wrong", "--cases", "40", "--isolate"]
    assert cli.main(words) == 1
    (report,) = (json.loads(path.read_text()) for path in work.glob("reports/*/report.json"))
    assert [violation["fingerprint"] for violation in report["violations"]] == ["bookkeeping/premature-stop"]
    assert report["cases"]["skipped"] > 0
    assert report["cases"]["violation"] == report["cases"]["run"]
    capsys.readouterr()
    bare = work / "case.json"
    bare.write_text(json.dumps(TWO.to_dict()))
    for more in ([], ["--isolate"]):
        assert cli.main(["replay", str(bare), "--adapter", "mine.py:alone", *more]) == 5
        assert "DECLINED: alone: one row at a time" in capsys.readouterr().out
    assert cli.main(["replay", str(bare), "--adapter", "mine.py:declared"]) == 5
    assert "DECLINED: declared: it requires batch-1, equal-lengths" in capsys.readouterr().out


@pytest.mark.rest
def test_a_stored_case_that_is_declined_now_is_kept(work: Path) -> None:
    wrong = (
        DECODERS
        + """
@eqcheck.decoder(name="alone")
def short(target, draft, request):
    return [row[:-1] for row in right(target, request)]
"""
    )
    (work / "before.py").write_text(wrong)
    assert cli.main(["audit", "--adapter", "before.py:short", "--cases", "15"]) == 1
    stored = list((work / ".eqcheck").rglob("*.json"))
    assert stored
    (work / "now.py").write_text(DECODERS.replace('"never"', '"alone"'))
    assert cli.main(["audit", "--adapter", "now.py:never", "--cases", "15"]) == 5
    assert list((work / ".eqcheck").rglob("*.json")) == stored


def test_isolated(work: Path) -> None:
    with ForkWorker(f"{work / 'mine.py'}:alone", Limits(20.0), try_case) as worker:
        outcome = worker.try_case(TWO)
        assert (outcome.status, outcome.declined, outcome.fingerprint) == ("skipped", "one row at a time", None)
        assert worker.try_case(ONE).status == "equivalent"
    plain = audit(registry.load("mine.py:alone"), Options(cases=20))
    isolated = audit(registry.load("mine.py:alone"), Options(cases=20, isolate=True, jobs=2))
    assert isolated.outcomes == plain.outcomes


def test_assert_equivalent_says_so() -> None:
    from hypothesis import Phase, given, settings
    from hypothesis.errors import HypothesisException
    from hypothesis.strategies import sampled_from

    eqcheck.assert_equivalent(made(alone), ONE)
    with pytest.raises(eqcheck.Unsupported, match="one row at a time"):
        eqcheck.assert_equivalent(made(alone), TWO)
    with pytest.raises(eqcheck.Unsupported, match="requires batch-1"):
        eqcheck.assert_equivalent(made(one_row, requires=("batch-1",)), TWO)

    def over(cases: Any) -> Any:
        @settings(max_examples=20, phases=[Phase.generate], database=None, derandomize=True)
        @given(cases)
        def check(case: Case) -> None:
            eqcheck.assert_equivalent(made(alone), case)
            seen.append(case)

        return check

    seen: list[Case] = []
    single = [Case(prompts=((token, 2),)) for token in range(1, 9)]
    paired = [Case(prompts=((token, 2), (3,))) for token in range(1, 9)]
    over(sampled_from([*single, *paired]))()  # drawn beforehand, since Hypothesis refuses slow draws on a busy machine
    assert seen
    assert all(len(case.prompts) == 1 for case in seen)
    with pytest.raises(HypothesisException):  # nothing was tested, which is no success
        over(sampled_from(paired))()


@pytest.mark.parametrize("name", REQUIREMENTS)
@pytest.mark.tiers(quick=1, rest=5)
def test_what_is_required_is_drawn_and_said(name: str, tmp_path: Path) -> None:
    def strict(target: Any, draft: Any, request: Request) -> Rows:
        assert unmet(request, (name,)) == []
        return one_row(target, draft, request)

    result = audit(made(strict, requires=(name,)), Options(cases=30))
    assert (result.verdict, result.tally.declined) == ("equivalent", {})
    report = to_dict(result, tmp_path)
    assert report["requires"] == [name]
    assert any("requires=" in warning and REQUIREMENTS[name] in warning for warning in result.warnings)
    # Greedy rows are alike, with an answer each; `tests/core/test_requirements.py` samples.
    if name not in ("one-temperature", "one-sampling", "sampled-n"):
        assert audit(made(strict), Options(cases=30)).verdict == "violation"


def test_a_precondition_that_does_not_exist() -> None:
    with pytest.raises(UsageError, match=r"requires: expected some of .*got 'batch1'; did you mean 'batch-1'\?"):
        made(one_row, requires=("batch1",))
    with pytest.raises(UsageError, match="requires: expected a tuple"):
        made(one_row, requires="batch-1")
    assert made(one_row).requires == ()


def laws(pytester: pytest.Pytester, name: str, *more: str) -> pytest.RunResult:
    path = pytester.makepyfile(mine=DECODERS)
    words = (f"--adapter={path}:{name}", "--eqcheck-cases=20", "-p", "no:cacheprovider", *more)
    return pytester.runpytest_subprocess(*words) if more else pytester.runpytest_inprocess(*words)


SEVERAL = ("test_batch_mates", "test_row_permutation", "test_padding")


@pytest.mark.rest
def test_laws_pass_over_what_is_declined(pytester: pytest.Pytester) -> None:
    result = laws(pytester, "alone")
    result.assert_outcomes(passed=8, skipped=7)
    for law in SEVERAL:
        result.stdout.fnmatch_lines(
            [f"{law}*: skipped: no case with * was decoded; * cases passed over: one row at a time (*"]
        )
    result.stdout.fnmatch_lines(["test_solo_equivalence* of * cases passed over: one row at a time (*"])


@pytest.mark.long
def test_laws_keep_to_what_is_required(pytester: pytest.Pytester) -> None:
    result = laws(pytester, "declared")
    result.assert_outcomes(passed=8, skipped=7)
    result.stdout.fnmatch_lines(
        ["test_padding*: skipped: no case with padding was decoded; * it requires batch-1, equal-lengths (*"]
    )
    result = laws(pytester, "rectangles")
    result.assert_outcomes(passed=8, skipped=6)
    result.stdout.fnmatch_lines(["test_eos_placement*: skipped: no case with an EOS id *: it requires no-eos (*"])


@pytest.mark.long
def test_laws_say_what_they_passed_over_in_several_processes(pytester: pytest.Pytester) -> None:
    result = laws(pytester, "declared", "-n", "1", "-k", "padding")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["test_padding*: skipped: no case with padding was decoded; *"])


@pytest.mark.long
def test_laws_test_nothing_where_all_is_declined(pytester: pytest.Pytester) -> None:
    result = laws(pytester, "never")
    result.assert_outcomes(skipped=14)
    result.stdout.fnmatch_lines(["test_determinism*: skipped: *: no GPU was found (*"])
    assert result.ret == 5


@pytest.mark.rest
def test_laws_fail_all_the_same(pytester: pytest.Pytester) -> None:
    # One fault fails once: the laws that fail by it, too, say so and are skipped.
    laws(pytester, "alone_and_wrong").assert_outcomes(failed=1, passed=1, skipped=13)


def test_a_users_own_test_is_skipped(pytester: pytest.Pytester) -> None:
    path = pytester.makepyfile(mine=DECODERS)
    own = pytester.makepyfile(
        test_own="""
        import eqcheck

        def test_one(decoder):
            eqcheck.assert_equivalent(decoder, eqcheck.Case(prompts=((1, 2),)))

        def test_two(decoder):
            eqcheck.assert_equivalent(decoder, eqcheck.Case(prompts=((1, 2), (3,))))

        def test_unnamed():
            raise eqcheck.Unsupported("of something else")
        """
    )
    result = pytester.runpytest_inprocess(f"--adapter={path}:alone", str(own), "-ra")
    result.assert_outcomes(passed=1, skipped=1, failed=1)
    result.stdout.fnmatch_lines(["SKIPPED*declined: one row at a time"])
