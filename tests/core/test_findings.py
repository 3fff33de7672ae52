"""What an audit makes of failing cases: claims and discoveries, answers that do not repeat, stale known ones."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
import torch
from as_data import shown, write
from clock import TRANSPARENT, Clock

from eqcheck import cli
from eqcheck.audit.loop import audit
from eqcheck.catalogue import known_good
from eqcheck.cli.audit import exit_code
from eqcheck.contract import registry
from eqcheck.contract.decoders import CACHE_STATES, Decoder, Request, decoder
from eqcheck.core.case.record import Case
from eqcheck.core.result.findings import Audit, Options
from eqcheck.core.result.outcome import Outcome
from eqcheck.core.store.casefile import read_case
from eqcheck.transparent.sequences import RERUNS

Rows = list[list[int]]
SHORT = "bookkeeping/premature-stop"
right: Callable[[Any, Any, Request], Rows] = known_good()["one_row"]
Printed = pytest.CaptureFixture[str]


def made(function: Callable[[Any, Any, Request], Any], **claims: Any) -> Decoder:
    return decoder(name="mine", **claims)(function)


def short(target: Any, draft: Any, request: Request) -> Rows:
    return [row[:-1] for row in right(target, draft, request)]


def short_on(*families: str) -> Callable[[Any, Any, Request], Rows]:
    def generate(target: Any, draft: Any, request: Request) -> Rows:
        return (short if target.config.family in families else right)(target, draft, request)

    return generate


def written(result: Audit, folder: Path) -> dict[str, Any]:
    folder.mkdir(exist_ok=True)
    return write(result, folder)


# Families beyond the claim


@pytest.mark.rest
def test_a_violation_beyond_the_claim_is_a_discovery(tmp_path: Path) -> None:
    mine = made(short_on("learned"), families=("rotary",))
    result = audit(mine, Options(cases=40, families=("rotary", "learned")))
    data = written(result, tmp_path / "mine")
    assert (data["verdict"], data["violations"]) == ("equivalent", [])
    matrix = data["matrix"]
    assert matrix["rotary"]["cases"] + matrix["learned"]["cases"] == 40
    count = matrix["learned"]["cases"]
    assert matrix["rotary"] == {
        "claimed": True,
        "cases": 40 - count,
        "violations": 0,
        "inconclusive": 0,
        "declined": 0,
        "fingerprints": {},
    }
    assert (matrix["learned"]["claimed"], matrix["learned"]["fingerprints"]) == (False, {SHORT: count})
    assert data["cases"]["run"] == data["cases"]["equivalent"] == 40 - count
    (discovery,) = data["discoveries"]
    assert (discovery["fingerprint"], discovery["count"]) == (SHORT, count)
    assert discovery["case"]["family"] == "learned"
    assert [len(prompt) for prompt in discovery["case"]["prompts"]] == [1]
    path = tmp_path / "mine" / "discoveries" / "bookkeeping-premature-stop.json"
    assert discovery["reproduce"] == f"eqcheck replay {path}"
    assert read_case(path).case.to_dict() == discovery["case"]
    text = shown(data)
    assert f"ok {40 - count}" in text
    assert f"[violation {count}/{count}]" in text
    assert "DISCOVERY" in text
    assert "## DISCOVERY " in (tmp_path / "mine" / "report.md").read_text()


def test_a_claimed_violation_is_minimised_within_the_claim() -> None:
    mine = made(short_on("rotary", "learned"), families=("learned",))
    result = audit(mine, Options(cases=30, families=("rotary", "learned")))
    assert [violation.case.family for violation in result.violations] == ["learned"]
    assert [discovery.case.family for discovery in result.discoveries] == ["rotary"]
    assert result.verdict == "violation"


@pytest.mark.rest
def test_hangs_beyond_the_claim_do_not_end_the_audit() -> None:
    def sleeping(target: Any, draft: Any, request: Request) -> Rows:
        while target.config.family == "learned":
            target(input_ids=torch.tensor([[1]]), use_cache=False)  # until it has been called too often
        return right(target, draft, request)

    mine = made(sleeping, families=("rotary",))
    result = audit(mine, Options(cases=30, families=("rotary", "learned")))
    assert [outcome.fingerprint for outcome in result.outcomes if outcome.case.family == "learned"] == [
        "crash/hang"
    ] * 3
    assert len(result.claimed) > 10
    assert result.verdict == "equivalent"
    assert any("was left out after 3 cases" in warning for warning in result.warnings)


def test_only_families_beyond_the_claim_test_nothing() -> None:
    result = audit(made(right, families=("rotary",)), Options(cases=10, families=("learned",)))
    assert (result.verdict, result.claimed) == ("inconclusive", [])
    assert any("audit without --families" in warning for warning in result.warnings)


@pytest.mark.long
def test_exit_codes_of_discoveries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Printed) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(
        "import eqcheck\n"
        "@eqcheck.decoder(name='mine', families=('rotary',))\n"
        "def generate(target, draft, request):\n"
        "    limits = {'max_new_tokens': request.max_new_tokens, 'eos_token_ids': request.eos_token_ids}\n"
        "    rows = [eqcheck.Oracle(target).truth(prompt, **limits) for prompt in request.prompts]\n"
        "    return rows if target.config.family == 'rotary' else [row[:-1] for row in rows]\n"
    )
    words = ("audit", "--adapter", "mine.py", "--cases", "40", "--families")
    assert cli.main((*words, "rotary,learned")) == 0
    assert cli.main((*words, "learned")) == 5
    capsys.readouterr()
    assert cli.main((*words, "all", "--json")) == 0
    (data,) = json.loads(capsys.readouterr().out)["reports"]
    assert sum(entry["cases"] for entry in data["matrix"].values()) == 40
    assert len(data["matrix"]) == 6


@pytest.mark.rest
def test_cache_states_not_taken_are_shown(tmp_path: Path) -> None:
    data = written(audit(made(right), Options(cases=40)), tmp_path)
    assert list(data["cache_states"]) == list(CACHE_STATES)
    assert sum(count for count in data["cache_states"].values() if isinstance(count, int)) == 40
    assert data["cache_states"]["wrapped"] == "not applicable"
    line = "not tested, since cache_states= does not claim them: chunked, prefix, preallocated, late-rows"
    assert line in shown(data)
    assert line in (tmp_path / "report.md").read_text()
    assert [data["cache_states"][name] for name in ("chunked", "prefix")] == ["not taken"] * 2


# Answers that do not repeat


@pytest.mark.rest
def test_a_decoder_wrong_at_random_is_not_called_a_violation(tmp_path: Path) -> None:
    chance = random.Random(1)

    def at_random(target: Any, draft: Any, request: Request) -> Rows:
        return (short if chance.random() < 0.5 else right)(target, draft, request)

    assert RERUNS >= 7  # 0.5 ** 7 < 1 %
    for _ in range(12):
        result = audit(made(at_random), Options(cases=6))
        assert (result.verdict, result.violations) == ("inconclusive", [])
    data = written(result, tmp_path)
    (doubtful,) = data["inconclusive"]
    assert doubtful["fingerprint"] == SHORT
    assert read_case(tmp_path / "inconclusive" / "bookkeeping-premature-stop.json").case.to_dict() == (doubtful["case"])
    assert data["cases"]["inconclusive"] == result.inconclusive > 0
    assert data["cases"]["violation"] == 0
    assert "INCONCLUSIVE" in shown(data)


@pytest.mark.rest
def test_one_fingerprint_in_doubt_puts_all_in_doubt() -> None:
    chance = random.Random(2)

    def mixed(target: Any, draft: Any, request: Request) -> Rows:
        if len(request.prompts) > 2 and chance.random() < 0.5:
            raise KeyError("now and then")
        return (short if len(request.prompts) == 2 else right)(target, draft, request)

    result = audit(made(mixed), Options(cases=40))
    assert (result.verdict, result.violations) == ("inconclusive", [])
    assert {record.fingerprint for record in result.doubtful} == {SHORT, "crash/exception:KeyError"}
    assert result.inconclusive == sum(outcome.status == "violation" for outcome in result.outcomes)


# Known violations


@pytest.fixture
def few_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eqcheck.core.result.findings.ENOUGH_TO_CALL_STALE", 20)


KNOWN = {"bookkeeping/past-eos": "https://example.org/1", SHORT: "https://example.org/2"}


@pytest.mark.usefixtures("few_are_enough")
@pytest.mark.rest
def test_a_known_violation_that_is_not_seen_is_stale(tmp_path: Path) -> None:
    result = audit(made(short, known=KNOWN), Options(cases=20))
    assert (result.stale, result.unknown) == (["bookkeeping/past-eos"], [])
    (warning,) = [warning for warning in result.warnings if warning.startswith("STALE")]
    assert warning == "STALE: bookkeeping/past-eos is declared as known and did not occur in 20 cases; remove it"
    assert written(result, tmp_path)["stale"] == ["bookkeeping/past-eos"]
    assert exit_code([result], allow_known=True) == 1
    assert exit_code([audit(made(right, known=KNOWN), Options(cases=20))], allow_known=True) == 1
    assert exit_code([audit(made(short, known={SHORT: "link"}), Options(cases=20))], allow_known=True) == 0


@pytest.mark.usefixtures("few_are_enough")
@pytest.mark.rest
def test_too_few_cases_do_not_make_it_stale() -> None:
    for options in (Options(cases=19), Options(cases=30, families=("rotary",))):
        result = audit(made(right, known=KNOWN), options)
        assert result.stale == []
        assert any("whether that is stale" in warning for warning in result.warnings)
        assert exit_code([result], allow_known=True) == 0


def test_three_hundred_cases_are_enough() -> None:
    from eqcheck.core.result import findings as result

    assert result.ENOUGH_TO_CALL_STALE == 300


# What is left on disk, and time


def test_case_files_of_earlier_audits_are_removed(tmp_path: Path) -> None:
    written(audit(made(short), Options(cases=5)), tmp_path)
    own = tmp_path / "cases" / "mine.json"
    own.write_text('{"format": "of somebody else"}')
    written(audit(made(right), Options(cases=5)), tmp_path)
    assert list((tmp_path / "cases").iterdir()) == [own]


def test_minimising_takes_at_most_the_budget_again(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock().put(monkeypatch, TRANSPARENT)

    def slow(target: Any, draft: Any, request: Request) -> Rows:
        clock.now += 0.05
        if len(request.prompts) > 2:
            raise KeyError
        if len(request.prompts) > 1:
            raise IndexError
        return right(target, draft, request)

    result = audit(made(slow), Options(cases=None, budget=2.0))
    assert clock.now < 3 * 2.0 + 2 * RERUNS * 0.2
    assert {violation.fingerprint for violation in result.violations} == {
        "crash/exception:KeyError",
        "crash/exception:IndexError",
    }


@pytest.mark.rest
def test_what_could_not_be_minimised_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    result = audit(made(short), Options(cases=5, budget=600.0))
    assert result.violations[0].minimised

    clock = Clock().put(monkeypatch, TRANSPARENT)

    def slowly(outcome: Outcome, *_: object) -> Outcome:
        clock.now += 0.6
        return outcome

    monkeypatch.setattr("eqcheck.transparent.lane.confirms", slowly)
    result = audit(made(short), Options(cases=5, budget=0.5))
    assert not result.violations[0].minimised
    assert any("could be made small" in warning for warning in result.warnings)


# Small things of the command line


def test_a_broken_entry_point_is_listed_as_broken(monkeypatch: pytest.MonkeyPatch, capsys: Printed) -> None:
    point = EntryPoint("their_engine", "no_such_package.adapter:generate", registry.GROUP)
    monkeypatch.setattr(registry, "entry_points", lambda group: [point])
    assert cli.main(("list",)) == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()[2:]}
    assert "broken" in lines["their_engine"]
    assert "No module named 'no_such_package'" in lines["their_engine"]
    assert "broken" not in lines["eqspec"]


def test_errors_inside_a_stored_case_name_the_file(tmp_path: Path, capsys: Printed) -> None:
    path = tmp_path / "case.json"
    case = {**Case(prompts=((1,),)).to_dict(), "family": "rotory"}
    for content in (case, {"format": "eqcheck-violation/1", "adapter": "eqspec", "fingerprint": SHORT, "case": case}):
        path.write_text(json.dumps(content))
        assert cli.main(("replay", str(path))) == 4
        assert f"case file {path}: family: expected one of" in capsys.readouterr().err


@pytest.mark.parametrize("timeout", [5, 5.0])
def test_a_case_timeout_may_be_an_int(tmp_path: Path, timeout: float) -> None:
    path = tmp_path / "case.json"
    stored = {"format": "eqcheck-violation/1", "adapter": "eqspec", "fingerprint": SHORT, "case_timeout": timeout}
    path.write_text(json.dumps({**stored, "case": Case(prompts=((1,),)).to_dict()}))
    assert read_case(path).case_timeout == 5.0
    for wrong in (True, "5", None):
        path.write_text(json.dumps({**stored, "case_timeout": wrong, "case": Case(prompts=((1,),)).to_dict()}))
        with pytest.raises(ValueError, match="case_timeout: expected 1 to 86400 seconds, got "):
            read_case(path)


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("--adapter", "hf_prr"), "unknown adapter 'hf_prr'; did you mean 'hf_pr'? Known: "),
        (("--adapter", "xyzzy"), "unknown adapter 'xyzzy'. Known: "),
        (("--families", "rotory"), "unknown family 'rotory'; did you mean 'rotary'? Known: all, rotary"),
    ],
)
def test_usage_errors(words: tuple[str, ...], what: str, capsys: Printed) -> None:
    assert cli.main(("audit", *words)) == 4
    assert what in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ("audit", "--pair"),
        ("audit", "--no-color"),
        ("audit", "--observability", "cases.jsonl"),
        ("audit", "eqspec", "--case-memory", "2G"),
        ("replay", "case.json", "--no-color"),
        ("bench", "--quick"),
    ],
)
def test_what_was_removed_is_one_clear_error(words: tuple[str, ...], capsys: Printed) -> None:
    assert cli.main(words) == 4
    printed = capsys.readouterr()
    option = next((word for word in words if word.startswith("--")), words[0])
    said = f"unrecognized arguments: {option}" if words[0] != "bench" else "invalid choice: 'bench'"
    assert (printed.out, len(printed.err.splitlines())) == ("", 1)
    assert said in printed.err
