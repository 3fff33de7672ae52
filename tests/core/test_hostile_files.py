"""Case files that come from elsewhere: each is refused in one clear line, and none chooses what code is run."""

from __future__ import annotations

import importlib.metadata
import json
import os
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from eqcheck import cli
from eqcheck.audit.loop import audit
from eqcheck.contract import registry
from eqcheck.contract.decoders import Decoder
from eqcheck.core.case.record import Case
from eqcheck.core.result.findings import Options
from eqcheck.core.store.casefile import read_case
from eqcheck.selfcheck.faults import SelfCheck

BARE: dict[str, Any] = Case(prompts=((1, 2), (3,))).to_dict()
FILE: dict[str, Any] = {
    "format": "eqcheck-violation/1",
    "adapter": "eqspec",
    "fingerprint": "bookkeeping/premature-stop",
    "case": BARE,
}
ROW = {"prompt": [1, 2], "max_new_tokens": 2}
ENGINE: dict[str, Any] = {"format": "eqcheck-engine-case/1", "rows": [ROW]}
Printed = pytest.CaptureFixture[str]


def deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


def case(**changes: Any) -> dict[str, Any]:
    return {**FILE, "case": {**BARE, **changes}}


def engine(row: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    return {**FILE, "case": {**ENGINE, "rows": [{**ROW, **(row or {})}], **changes}}


# The content of a file, and what the refusal has to say: the field, what was expected, what came.
REFUSED: list[tuple[Any, tuple[str, ...]]] = [
    *(
        ({**FILE, "case_timeout": limit}, ("case_timeout: expected 1 to 86400 seconds", got))
        for limit, got in ((-1, "-1"), (0, "0"), (1e-3, "0.001"), (1e300, "1e+300"))
    ),
    ({**FILE, "case_timeout": float("nan")}, ("case_timeout: expected a finite number, got nan",)),
    ({**FILE, "case_timeout": float("inf")}, ("case_timeout: expected a finite number, got inf",)),
    ('{"format": "eqcheck-violation/1", "case_timeout": 1e999}', ("case_timeout: expected a finite number, got inf",)),
    ({**FILE, "case_timeout": True}, ("case_timeout: expected 1 to 86400 seconds, got True",)),
    ({**FILE, "case_timeout": 10**300}, ("integers of at most 20 digits, got one of 301",)),
    ({**FILE, "isolated": True, "case_memory": -1}, ("case_memory: expected 67108864 to ", "got -1")),
    ({**FILE, "isolated": True, "case_memory": 1}, ("case_memory: expected 67108864 to ", "got 1")),
    ({**FILE, "adapter": "\ud800"}, ("adapter: expected text", "surrogate")),
    ({**FILE, "explanation": "a \udfff"}, ("explanation: expected text", "surrogate")),
    ({**FILE, "\ud800": 1}, ("expected text", "surrogate")),
    ({**FILE, "adapter": "a\0.py"}, ("adapter: expected one line of printable text, got 'a\\x00.py'",)),
    ({**FILE, "adapter": "\x1b]0;gone\x07"}, ("adapter: expected one line of printable text", "\\x1b")),
    ({**FILE, "adapter": "x" * 10**5}, ("adapter: expected at most 4096 characters, got 100000",)),
    ({**FILE, "fingerprint": "crash/exception:\x1b[31m"}, ("fingerprint: expected one line of printable text",)),
    ({**FILE, "fingerprint": "x" * 10**5}, ("fingerprint: expected at most 4096 characters, got 100000",)),
    ("[" * 10**5 + "]" * 10**5, ("lists within lists",)),
    (case(prompts=deep(300)), ("case.prompts", "expected at most 8 levels")),
    (case(accepts=deep(900)), ("case.accepts", "expected at most 8 levels")),
    ({**FILE, "surprise": deep(300)}, ("surprise", "expected at most 8 levels")),
    (case(seed=10**5000), ("expected integers of at most 20 digits, got one of 5001",)),
    (case(prompts=[[10**400]]), ("expected integers of at most 20 digits, got one of 401",)),
    (case(prompts=[[10**19]]), ("prompts[0]: expected 0..127, got 10000000000000000000",)),
    (case(**{"z" * 10**5: 1}), ("unknown field 'zzz",)),
    (case(vocab_size=65535), ("vocab_size: expected 4..1024, got 65535",)),
    (case(max_new_tokens=4095), ("max_new_tokens: expected 1..1023, got 4095",)),
    (case(num_draft_tokens=4000), ("num_draft_tokens: expected 1..64, got 4000",)),
    (case(prompts=[[1]] * 10**4), ("prompts: expected at most 256 rows, got 10000",)),
    (case(prompts=[[1] * 10**5]), ("prompts[0]: expected at most 1020 tokens beside 4 new ones, got 100000",)),
    (case(prompts=[[1]] * 200, max_new_tokens=500), ("expected at most 8192 tokens in all rows, new ones included",)),
    (case(accepts=[[0] * 10**5]), ("accepts[0]: expected at most 1024 rounds, got 100000",)),
    (case(accepts=[[]] * 10**4), ("accepts: expected at most 256 rows, got 10000",)),
    (case(eos_token_ids=[1] * 10**5), ("eos_token_ids: expected at most 1024, got 100000",)),
    (
        case(cache_state="preallocated", max_new_tokens=100, num_draft_tokens=64, prompts=[[1]] * 3),
        ("num_draft_tokens: expected fewer for cache_state 'preallocated'",),
    ),
    (
        case(max_new_tokens=1000, num_draft_tokens=64),
        ("prompts, max_new_tokens, num_draft_tokens: expected less together", "130195000", "4194304"),
    ),
    (engine({"repetition_penalty": float("nan")}), ("rows[0].repetition_penalty: expected a finite number",)),
    (engine({"repetition_penalty": 1e308}), ("repetition_penalty: expected a number above 0 and up to 100",)),
    (engine({"presence_penalty": -1e308}), ("presence_penalty: expected a number from -100 to 100",)),
    (engine({"presence_penalty": True}), ("presence_penalty: expected a finite number",)),
    (engine({"max_new_tokens": True}), ("rows[0].max_new_tokens: expected an integer",)),
    (engine({"prompt": [True]}), ("prompt: expected token ids",)),
    (engine({"prompt": 5}), ("rows[0].prompt: expected a list of token ids, got 5",)),
    (engine({"eos_token_ids": "ab"}), ("rows[0].eos_token_ids: expected a list of token ids, got 'ab'",)),
    (engine(rows=[ROW] * 10**4), ("rows: expected at most 512, got 10000",)),
    (engine(rows=[{**ROW, "max_new_tokens": 2000}] * 500), ("rows: expected at most 65536 tokens in all",)),
    (engine(prefix_caching="yes"), ("prefix_caching: expected true, false or null, got 'yes'",)),
    (engine(num_draft_tokens=True), ("num_draft_tokens: expected an integer",)),
    (engine(checkpoint=5), ("checkpoint: expected text, got 5",)),
    (" " * (3 * 2**20), ("expected at most 2 MB, got 3 MB",)),
    (b"\xff\xfe{}", ("cannot read it as JSON",)),
]
IDS = [f"{number}-{what[0][:40]}" for number, (_, what) in enumerate(REFUSED)]


def written(path: Path, content: Any) -> Path:
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif isinstance(content, str):
        path.write_text(content)
    else:
        path.write_text(json.dumps(content) if _printable_ints(content) else _spelt(content))
    return path


def _printable_ints(content: Any) -> bool:
    try:
        json.dumps(content)
    except (ValueError, RecursionError):
        return False
    return True


def _spelt(content: Any) -> str:
    """JSON of what ``json`` will not write: integers of thousands of digits, and lists of hundreds of levels."""
    before = sys.getrecursionlimit()
    sys.set_int_max_str_digits(10**6)
    sys.setrecursionlimit(10**4)
    try:
        return json.dumps(content)
    finally:
        sys.set_int_max_str_digits(4300)
        sys.setrecursionlimit(before)


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("eqcheck.selfcheck.faults.short", lambda: SelfCheck((), ()))
    return tmp_path


def eqcheck(*words: str) -> int:
    return cli.main(words)


@pytest.mark.parametrize(("content", "what"), REFUSED, ids=IDS)
@pytest.mark.tiers(quick=52, rest=1)
def test_a_hostile_file_is_refused_in_one_line(
    work: Path, capsys: Printed, content: Any, what: tuple[str, ...]
) -> None:
    path = written(work / "case.json", content)
    assert eqcheck("replay", str(path)) == 4
    printed = capsys.readouterr()
    assert printed.out == ""
    (line,) = printed.err.splitlines()
    assert line.startswith(f"eqcheck: case file {path}: ")
    assert len(line) < 700 + len(str(path))
    for part in what:
        assert part in line


@pytest.mark.rest
def test_the_corpus_survives_all_of_them(work: Path) -> None:
    folder = work / ".eqcheck" / "1" / "good"
    folder.mkdir(parents=True)
    before = {}
    for number, (content, _) in enumerate(REFUSED):
        path = written(folder / f"{number}.json", content)
        before[path] = path.read_bytes()
    os.mkfifo(folder / "pipe.json")
    (folder / "folder.json").mkdir()
    good = registry.load("eqspec").named("eqspec")
    found = audit(Decoder("good", good.function), Options(cases=5, corpus=work / ".eqcheck"))
    assert found.verdict == "equivalent"
    for path in [*before, folder / "pipe.json", folder / "folder.json"]:
        (warning,) = [warning for warning in found.warnings if f"{path}:" in warning]
        assert "left as it is" in warning
        assert len(warning) < 800 + len(str(path))
    assert {path: path.read_bytes() for path in before} == before


def test_what_is_no_plain_file_is_refused(work: Path, capsys: Printed) -> None:
    os.mkfifo(work / "pipe")
    for path in ("/dev/zero", str(work), str(work / "pipe")):
        assert eqcheck("replay", path) == 4
        assert f"case file {path}: expected a file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("asked", "what"),
    [
        ({"padding_side": "right"}, "DECLINED: dsd: it does not take the padding side right, only left; "),
        ({"cache_state": "preallocated"}, "DECLINED: dsd: it does not take the cache state preallocated, only "),
    ],
)
def test_a_file_may_ask_only_what_the_decoder_takes(
    work: Path, capsys: Printed, asked: dict[str, Any], what: str
) -> None:
    path = written(work / "case.json", {**case(**asked), "adapter": "dsd"})
    assert eqcheck("replay", str(path)) == 5
    assert capsys.readouterr().out.startswith(what)


def test_an_engine_of_checkpoints_declines_a_case_for_transparent_models(work: Path, capsys: Printed) -> None:
    path = written(work / "case.json", case())
    assert eqcheck("replay", str(path), "--adapter", "vllm") == 5
    assert capsys.readouterr().out.startswith("DECLINED: vllm: it loads checkpoints")


def test_a_name_twice_and_an_unknown_field_are_refused(work: Path, capsys: Printed) -> None:
    twice = work / "twice.json"
    twice.write_text(json.dumps(FILE)[:-1] + ', "adapter": "dsd"}')
    assert eqcheck("replay", str(twice)) == 4
    assert "expected each name once, got 'adapter' 2 times" in capsys.readouterr().err
    assert eqcheck("replay", str(written(work / "more.json", {**FILE, "adaptor": "dsd"}))) == 4
    assert "unknown field 'adaptor'; did you mean 'adapter'?" in capsys.readouterr().err


def test_what_fails_beyond_the_claim_is_said_to_be_a_discovery(work: Path, capsys: Printed) -> None:
    path = written(work / "case.json", case(family="slot-distance", accepts=[[0], [1]], prompts=[[1, 2, 3], [3]]))
    assert eqcheck("replay", str(path)) == 1
    assert capsys.readouterr().out.endswith(
        "eqspec does not claim the family slot-distance: this is a discovery, no violation.\n"
    )


@pytest.mark.parametrize("limit", [1, 5, 60.0, 86400])
@pytest.mark.tiers(quick=3, rest=0)
def test_no_time_limit_that_is_taken_makes_a_right_decoder_fail(work: Path, capsys: Printed, limit: float) -> None:
    assert eqcheck("replay", str(written(work / "case.json", {**FILE, "case_timeout": limit}))) == 0
    assert capsys.readouterr().out.startswith("FIXED: eqspec")


@pytest.mark.rest
def test_a_short_time_limit_counts_only_where_the_case_was_one_that_hung(work: Path, capsys: Printed) -> None:
    (work / "slow.py").write_text(SLOW)
    path = written(work / "case.json", {**FILE, "case_timeout": 1})
    assert eqcheck("replay", str(path), "--adapter", "slow.py") == 0
    written(path, {**FILE, "case_timeout": 1, "fingerprint": "crash/hang"})
    assert eqcheck("replay", str(path), "--adapter", "slow.py") == 1
    printed = capsys.readouterr().out
    assert "no answer within 1 s" in printed
    assert printed.endswith("The limit is from the case file; the usual one is 60 s.\n")


SLOW = """
import time, eqcheck

@eqcheck.decoder()
def slow(target, draft, request):
    time.sleep(1.5)
    limits = {"max_new_tokens": request.max_new_tokens, "eos_token_ids": request.eos_token_ids}
    return [eqcheck.Oracle(target).truth(prompt, **limits) for prompt in request.prompts]
"""
EVIL = """
from pathlib import Path
Path(__file__).with_name("was-run").touch()
import eqcheck

@eqcheck.decoder()
def evil(target, draft, request):
    return [[] for prompt in request.prompts]
"""


@pytest.fixture
def evil(work: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(work))
    monkeypatch.delitem(sys.modules, "evil_code", raising=False)
    (work / "evil_code.py").write_text(EVIL)
    return work


@pytest.mark.parametrize(
    "spec", ["{}/evil_code.py", "{}/evil_code.py:evil", "evil_code.py", "evil_code:evil", "evil_code.py:"]
)
@pytest.mark.parametrize("kind", [BARE, ENGINE])
def test_code_that_only_the_file_names_is_not_run(evil: Path, capsys: Printed, spec: str, kind: dict[str, Any]) -> None:
    spec = spec.format(evil)
    path = written(evil / "it's a case.json", {**FILE, "adapter": spec, "case": kind})
    assert eqcheck("replay", str(path)) == 4
    printed = capsys.readouterr()
    assert printed.out == ""
    (line,) = printed.err.splitlines()
    assert repr(spec) in line
    assert not (evil / "was-run").exists()
    if kind is BARE and not spec.endswith(":"):
        words = shlex.split(line.partition("type: ")[2])
        assert words == ["eqcheck", "replay", str(path), "--adapter", spec]
        assert eqcheck(*words[1:]) == 1
        assert (evil / "was-run").exists()


def test_the_command_to_type_keeps_the_options(evil: Path, capsys: Printed) -> None:
    path = written(evil / "case.json", {**FILE, "adapter": "evil_code:evil"})
    assert eqcheck("replay", str(path), "-v", "--isolate", "--python", sys.executable) == 4
    line = capsys.readouterr().err.strip()
    assert line.endswith(f"type: eqcheck replay {path} --adapter evil_code:evil --isolate -v --python {sys.executable}")


def test_an_installed_entry_point_that_the_file_names_is_run(evil: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    point = importlib.metadata.EntryPoint("installed", "evil_code:evil", registry.GROUP)
    monkeypatch.setattr(registry, "entry_points", lambda group: [point])
    path = written(evil / "case.json", {**FILE, "adapter": "installed"})
    assert eqcheck("replay", str(path)) == 1
    assert (evil / "was-run").exists()


@pytest.mark.rest
def test_the_reproduce_command_names_code_that_is_not_shipped(evil: Path) -> None:
    def reproduce(adapter: str, name: str) -> str:
        assert eqcheck("audit", "--adapter", adapter, "--cases", "5", "--out", "out") == 1
        report = json.loads((evil / "out" / name / "report.json").read_text())
        command: str = report["violations"][0]["reproduce"]
        return command

    mine, shipped = reproduce("evil_code:evil", "evil"), reproduce("hf_pr", "hf_pr")
    assert mine.endswith(" --adapter evil_code:evil")
    assert "--adapter" not in shipped
    for command in (mine, shipped):
        assert eqcheck(*shlex.split(command)[1:]) == 1


EXTREMES: list[dict[str, Any]] = [
    {"vocab_size": 1024, "prompts": ((1023, 5), (7,))},
    {"prompts": tuple((n % 128,) for n in range(256)), "max_new_tokens": 2},
    {"prompts": ((1,) * 1000, (2,)), "max_new_tokens": 4, "num_draft_tokens": 64},
    {"prompts": ((1, 2),), "max_new_tokens": 200, "num_draft_tokens": 64, "accepts": ((0, 64) * 512,)},
    {"prompts": ((1, 2), (3,)), "cache_state": "late-rows", "arrivals": (4095, 0)},
    {"prompts": ((1, 2), (3,)), "cache_state": "chunked", "prefill_chunk": 4095},
    {"prompts": ((1, 2), (3,)), "eos_token_ids": tuple(range(128)), "seed": 2**63 - 1},
]


@pytest.mark.parametrize("extreme", EXTREMES, ids=lambda given: "-".join(given))
@pytest.mark.tiers(quick=3, rest=4)
def test_a_right_decoder_is_right_on_the_largest_cases_that_are_taken(extreme: dict[str, Any], tmp_path: Path) -> None:
    path = written(tmp_path / "case.json", Case(**extreme).to_dict())
    assert read_case(path).case == Case(**extreme)
    assert eqcheck("replay", str(path), "--adapter", "eqspec") == 0
