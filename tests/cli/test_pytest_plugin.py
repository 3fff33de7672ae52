"""The pytest plugin, in runs of its own: the conformance suite, a user's own tests, and what a run without it pays."""

from __future__ import annotations

import multiprocessing.popen_forkserver  # noqa: F401 - or each run in this process starts a fork server
import subprocess
import sys
from pathlib import Path

import pytest

import eqcheck.transparent.sequences  # noqa: F401  # with torch, which a run in this process cannot import again
from eqcheck import pytest_plugin
from eqcheck.cli.replaying import replay
from eqcheck.contract import registry
from eqcheck.contract.errors import UsageError
from eqcheck.core.result.findings import Options
from eqcheck.core.store.casefile import read_case

pytest_plugins = ["pytester"]

ENGINES = """
import eqcheck

@eqcheck.decoder(name="good", padding_sides=("left", "right"))
def good(target, draft, request):
    limits = {"max_new_tokens": request.max_new_tokens, "eos_token_ids": request.eos_token_ids}
    return [eqcheck.Oracle(target).truth(prompt, **limits) for prompt in request.prompts]

@eqcheck.decoder(name="short")
def short(target, draft, request):
    return [row[:-1] for row in good(target, draft, request)]

KNOWN = {"bookkeeping/premature-stop": "https://example.org/1"}

@eqcheck.decoder(name="declared", version="1.2", origin="a folder", known=KNOWN)
def declared(target, draft, request):
    return short(target, draft, request)

@eqcheck.decoder(name="worse", known=KNOWN)
def worse(target, draft, request):
    rows = good(target, draft, request)
    return [[*row, 5] for row in rows] if len(rows) == 4 else [row[:-1] for row in rows]

@eqcheck.decoder(name="mended", known=KNOWN)
def mended(target, draft, request):
    return good(target, draft, request)

earlier = []

@eqcheck.decoder(name="keeps")
def keeps(target, draft, request):
    earlier.append(request)
    rows = good(target, draft, request)
    return rows if len(earlier) < 3 else [row[:-1] for row in rows]

@eqcheck.decoder(name="raises")
def raises(target, draft, request):
    raise KeyError("no such slot")

@eqcheck.decoder(name="engine")
class Engine:
    def open(self):
        print("engine opened", file=open("log", "a"))

    def close(self):
        print("engine closed", file=open("log", "a"))

    def __call__(self, target, draft, request):
        return [prompt[:1] for prompt in request.prompts]
"""
OWN_TESTS = """
import eqcheck
import pytest

@pytest.fixture
def known_fault():
    return "engine"

def test_named(decoder, known_fault):
    assert decoder.name == known_fault

def test_called(decoder):
    request = eqcheck.Request([[1, 2], [3]], 1, 1, (), 0, "left")
    assert decoder(None, None, request) == [[1], [3]]

def test_without_decoder():
    pass
"""
LAWS, SAMPLED = 11, 4  # the latter for decoders that sample


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


ORACLE = """
import eqcheck
from eqcheck.transparent.hashlm.model import HashConfig, HashLM

oracle = eqcheck.Oracle(HashLM(HashConfig(seed=1)).eval())
right = oracle.truth([3, 1, 4], max_new_tokens=3)

def test_at_once():
    assert oracle.check([[3, 1, 4]], [right[:2]], max_new_tokens=3)

def test_by_name():
    verdict = oracle.check([[3, 1, 4]], [right[:2]], max_new_tokens=3)
    assert verdict

def test_right():
    assert oracle.check([[3, 1, 4]], [right], max_new_tokens=3)
"""
LISTED = """[[violation]]
fingerprint = "bookkeeping/premature-stop"
link = "https://example.org/7"
until = {}
"""


class Brief:
    """A plugin that has decoders sample a few cases only, however long they take."""

    def pytest_collection_modifyitems(self, items: list[pytest.Function]) -> None:
        for item in items:
            if hasattr(item.module, "SECONDS"):
                item.module.Options = lambda budget, cases, **asked: Options(cases=round(budget), **asked)


def run(pytester: pytest.Pytester, *words: str) -> pytest.RunResult:
    """In a process of its own where it takes several, or where what is imported counts."""
    alone = {"-n", "--pyargs"} & set(words) or not any(word.startswith("--adapter") for word in words)
    if alone:
        return pytester.runpytest_subprocess("--eqcheck-cases=3", *words)
    return pytester.runpytest_inprocess("--eqcheck-cases=3", *words, plugins=[Brief()])


@pytest.fixture(autouse=True)
def _no_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    """In CI, pytest's short summary says the whole message of a failure a second time."""
    for name in ("CI", "BUILD_NUMBER"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def engines(pytester: pytest.Pytester) -> Path:
    """A file with some decoders, in a folder beside the tests."""
    path = pytester.mkdir("engines") / "mine.py"
    path.write_text(ENGINES)
    return path


@pytest.mark.long
def test_the_laws_run_from_an_empty_directory(pytester: pytest.Pytester) -> None:
    result = run(pytester, "--adapter=eqspec")
    result.assert_outcomes(passed=LAWS + SAMPLED)
    assert result.ret == pytest.ExitCode.OK
    result.stdout.no_fnmatch_line("*known*")


EXPLAINED = [
    "bookkeeping/premature-stop: *",
    "*request 0   prompt    10",
    "*options   max_new_tokens 1",
    "*expected  *",
    "*got       end",
    "*^^^ new token 0",
    "*Cause*",
    "*Reproduce: eqcheck replay *.json --adapter engines/mine.py:short",
]


def explained(result: pytest.RunResult) -> None:
    """The run failed with the explanation, and nothing of eqcheck's own."""
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines([*EXPLAINED, "FAILED *test_solo_equivalence?short? - *"])
    told = result.stdout.str()
    own = (".py:", "Error", ">  ", "def ", "Traceback")
    block = told[told.index("bookkeeping/premature-stop") : told.index("Reproduce:")]
    assert not [line for line in block.splitlines() if any(mark in line for mark in own)]


@pytest.mark.parametrize("more", [("--tb=long", "-l"), ("-q", "--tb=short")])
@pytest.mark.usefixtures("engines")
@pytest.mark.tiers(quick=1, rest=1)
def test_a_wrong_decoder_fails_with_the_explanation_and_nothing_else(
    more: tuple[str, ...], pytester: pytest.Pytester
) -> None:
    result = run(pytester, "--adapter=engines/mine.py:short", "-k", "solo", *more)
    result.assert_outcomes(failed=1, deselected=LAWS + SAMPLED - 1)
    explained(result)


@pytest.mark.usefixtures("engines")
def test_the_stored_case_is_small_and_can_be_replayed(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(pytester, "--adapter=engines/mine.py:short", "-k", "solo")
    (path,) = (pytester.path / ".eqcheck" / "1" / "short").iterdir()
    stored = read_case(path)
    assert (stored.fingerprint, stored.case.to_dict()["prompts"]) == ("bookkeeping/premature-stop", [[10]])
    assert stored.adapter == f"{pytester.path / 'engines' / 'mine.py'}:short"
    monkeypatch.chdir(pytester.path)
    assert [replay(path, f"engines/mine.py:{name}") for name in ("short", "good")] == [1, 0]


@pytest.mark.usefixtures("engines")
@pytest.mark.long
def test_a_case_that_fails_after_others_only_is_stored_with_them(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = run(pytester, "--adapter=engines/mine.py:keeps", "-k", "solo")
    result.stdout.fnmatch_lines(["state/leaks-from-earlier-request: *", "*Reproduce: eqcheck replay *"])
    (path,) = (pytester.path / ".eqcheck" / "1" / "keeps").iterdir()
    assert len(read_case(path).case.before) == 2
    monkeypatch.chdir(pytester.path)
    assert replay(path, "engines/mine.py:keeps") == 1


@pytest.mark.usefixtures("engines")
def test_where_the_corpus_cannot_be_written_the_case_lies_elsewhere(pytester: pytest.Pytester) -> None:
    (pytester.path / ".eqcheck").write_text("a file")
    result = run(pytester, "--adapter=engines/mine.py:short", "-k", "solo")
    (line,) = [line for line in result.outlines if "Reproduce:" in line]
    path = Path(line.split()[3])
    assert read_case(path).fingerprint == "bookkeeping/premature-stop"
    assert not path.is_relative_to(pytester.path / ".eqcheck")


@pytest.mark.usefixtures("engines")
def test_what_a_decoder_raises_is_shown_with_its_own_frames_alone(pytester: pytest.Pytester) -> None:
    result = run(pytester, "--adapter=engines/mine.py:raises", "-k", "solo or limit", "-rs")
    result.stdout.fnmatch_lines(
        ["crash/exception:KeyError: the decoder raised an exception", '  File "*mine.py", line *, in raises']
    )
    result.assert_outcomes(failed=1, skipped=1, deselected=LAWS + SAMPLED - 2)
    result.stdout.fnmatch_lines(
        ["SKIPPED *: same fault as test_solo_equivalence, which explains it (crash/exception:KeyError in 3 of * cases)"]
    )
    files = [line for line in result.outlines if line.startswith("  File ")]
    assert len(files) == 1


@pytest.mark.usefixtures("engines")
@pytest.mark.rest
def test_a_declared_fault_is_an_expected_failure(pytester: pytest.Pytester) -> None:
    result = run(pytester, "--adapter=engines/mine.py:declared", "-rx")
    result.assert_outcomes(xfailed=LAWS - 1, passed=2, skipped=SAMPLED)
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(
        [
            "eqcheck: decoder under test: declared 1.2, a folder",
            "eqcheck: *, torch *, transformers *, Python *, 3 cases per law, seed 0",
            "declared: bookkeeping/premature-stop shows (https://example.org/1)",
            "XFAIL *solo_equivalence* - bookkeeping/premature-stop in 3 of 3 cases, https://example.org/1",
        ]
    )


@pytest.mark.usefixtures("engines")
@pytest.mark.rest
def test_a_listed_fault_is_an_expected_failure_until_its_last_day(pytester: pytest.Pytester) -> None:
    (pytester.path / "known.toml").write_text(LISTED.format("2999-12-31"))
    words = ("--adapter=engines/mine.py:short", "--eqcheck-cases=5", "--eqcheck-known=known.toml", "-k", "solo", "-rx")
    result = run(pytester, *words)
    result.assert_outcomes(xfailed=1)
    result.stdout.fnmatch_lines(["*premature-stop in * cases, https://example.org/7, until 2999-12-31*"])
    (pytester.path / "known.toml").write_text(LISTED.format("2020-12-31"))
    result = run(pytester, *words, "--collect-only")
    result.stdout.fnmatch_lines(["eqcheck: listed as known, *: its last day, 2020-12-31, is past"])
    result = run(pytester, *words[:-3], "-k", "solo")
    result.assert_outcomes(failed=1)
    config = pytester.parseconfig(*words[:3])
    assert pytest_plugin._listed(config, "short") == {}


@pytest.mark.parametrize(
    ("engine", "until", "said"),
    [
        ("short", "2999-12-31", ""),
        ("short", "2020-12-31", "fails again, for its last day, 2020-12-31, is past"),
        ("good", "2999-12-31", "did not occur in * cases; if it is gone, take the entry out"),
        ("good", "2020-12-31", "did not occur in * cases, and its last day, 2020-12-31, is past: take the entry out"),
    ],
)
@pytest.mark.usefixtures("engines")
@pytest.mark.tiers(quick=1, rest=1)
def test_where_it_is_strict_an_entry_that_is_past_or_gone_fails(
    engine: str, until: str, said: str, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    (pytester.path / "known.toml").write_text(LISTED.format(until))
    words = [f"--adapter=engines/mine.py:{engine}", "--eqcheck-cases=30", "--eqcheck-known=known.toml", "-k", "known"]
    run(pytester, *words).assert_outcomes(deselected=LAWS + SAMPLED)  # there is no such test
    result = run(pytester, *words, "--eqcheck-known-strict")
    result.assert_outcomes(**{"failed" if said else "passed": 1, "deselected": LAWS + SAMPLED})
    if said:
        result.stdout.fnmatch_lines([f"listed as known, bookkeeping/premature-stop (https://example.org/7): {said}"])
    if said and engine == "short":  # the other takes many cases
        monkeypatch.setenv("CI", "true")
        run(pytester, *words).assert_outcomes(failed=1, deselected=LAWS + SAMPLED)


@pytest.mark.rest
def test_what_is_loaded_is_said_before_the_header(pytester: pytest.Pytester, engines: Path) -> None:
    """Some seconds pass before pytest's first line, and nobody shall wonder."""
    path = pytester.makepyfile(test_own="def test_nothing(decoder):\n    pass\n")
    words = f"--adapter={engines}:Engine", str(path)
    lines = pytester.runpytest_subprocess(*words).outlines
    begin = next(number for number, line in enumerate(lines) if "test session starts" in line)
    assert lines[:begin] == [f"eqcheck: loading {what}" for what in ("torch", f"{engines}:Engine", "transformers")]
    assert not [line for line in pytester.runpytest_subprocess(*words, "-q").outlines if "loading" in line]


def test_an_assert_of_a_verdict_tells_its_explanation(pytester: pytest.Pytester) -> None:
    path = pytester.makepyfile(test_mine=ORACLE)
    result = run(pytester, "--adapter=eqspec", str(path))
    result.assert_outcomes(failed=2, passed=1)
    for _ in range(2):
        result.stdout.fnmatch_lines(
            [
                "E *assert <violation: bookkeeping/premature-stop: row 0, new token 2: expected *, got the row's end>*",
                "*eqcheck: the verdict*",
                "bookkeeping/premature-stop: *",
            ]
        )
    assert result.stdout.str().count("eqcheck: the verdict") == 2


def test_a_wrong_list_of_known_faults_is_a_usage_error(pytester: pytest.Pytester) -> None:
    (pytester.path / "known.toml").write_text(LISTED.format('"soon"'))
    result = run(pytester, "--adapter=eqspec", "--eqcheck-known=known.toml")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*known.toml: violation 1 (bookkeeping/premature-stop): expected until = a date*"])


@pytest.mark.usefixtures("engines")
@pytest.mark.rest
def test_another_fault_of_the_same_law_still_fails(pytester: pytest.Pytester) -> None:
    result = run(pytester, "--adapter=engines/mine.py:worse", "--eqcheck-cases=20", "-k", "solo")
    result.assert_outcomes(failed=1, deselected=LAWS + SAMPLED)
    result.stdout.fnmatch_lines(["bookkeeping/over-length: *", "*Known, and seen as well: bookkeeping/premature-stop"])


@pytest.mark.parametrize(("cases", "outcome"), [(3, "passed"), (30, "failed")])
@pytest.mark.usefixtures("engines")
@pytest.mark.tiers(quick=0, rest=1)
def test_a_declared_fault_that_does_not_show_fails_where_enough_cases_ran(
    cases: int, outcome: str, pytester: pytest.Pytester
) -> None:
    result = run(pytester, "--adapter=engines/mine.py:mended", f"--eqcheck-cases={cases}", "-k", "known")
    result.assert_outcomes(**{outcome: 1, "deselected": LAWS + SAMPLED})
    fault = "bookkeeping/premature-stop"
    said = {
        "passed": f"WARNING mended: {fault} does not show; * cases are too few to tell (300 are enough)",
        "failed": f"{fault} is declared as known, and none of * cases shows it: remove it from known= of mended (*)",
    }
    result.stdout.fnmatch_lines([said[outcome]])


@pytest.mark.usefixtures("engines")
@pytest.mark.long
def test_two_adapters_in_two_processes(pytester: pytest.Pytester) -> None:
    specs = [f"--adapter=engines/mine.py:{name}" for name in ("good", "short")]
    result = run(pytester, "-n", "2", "--pyargs", "eqcheck.conformance", *specs, "-k", "solo_equivalence")
    result.assert_outcomes(passed=1, failed=1)
    explained(result)


TOLD = """
def test_told(pytestconfig, decoder):
    options = ("cases", "profile", "target", "known", "known_strict")
    print({name: pytestconfig.getoption(f"eqcheck_{name}") for name in options})
    print(decoder.spec, sorted(decoder.known.values()))
    assert not hasattr(pytestconfig, "workerinput"), "so that it is printed"
"""
TIMEOUT_S = 600  # on a busy machine; without one a run that never ends would not fail
NOTHING_SAID = {"cases": 30, "profile": "", "target": "", "known": None, "known_strict": False}


@pytest.mark.parametrize(("said", "workers"), [("nothing", "1"), ("profile", "2"), ("file", "2")])
@pytest.mark.usefixtures("engines")
@pytest.mark.rest
def test_workers_are_told_what_the_first_process_decided(said: str, workers: str, pytester: pytest.Pytester) -> None:
    """No case, profile or known fault is named twice; where a worker is told nothing it may draw for ever."""
    told = pytester.makepyfile(test_told=TOLD)
    words, decided, links = ["--adapter=engines/mine.py:short"], NOTHING_SAID, list[str]()
    if said == "profile":
        words, decided = [*words, "--eqcheck-profile=ci"], {**decided, "cases": 20, "profile": "ci-2026.12"}
    if said == "file":
        pytester.path.joinpath("known.toml").write_text(LISTED.format("2999-12-31"))
        table = 'adapter = "engines/mine.py:short"\nprofile = "ci"\nknown = "known.toml"\n'
        pytester.path.joinpath("pyproject.toml").write_text(f"[tool.eqcheck]\n{table}")
        words = ["--eqcheck-known-strict"]
        decided = {**decided, "cases": 20, "profile": "ci-2026.12", "known": str(pytester.path / "known.toml")}
        decided, links = {**decided, "known_strict": True}, ["https://example.org/7, until 2999-12-31"]
    laws = ("--pyargs", "eqcheck.conformance", str(told)) if workers == "2" else (str(told),)
    result = pytester.runpytest_subprocess(*words, "-n", workers, *laws, "-k", "told or solo", timeout=TIMEOUT_S)
    result.stdout.fnmatch_lines([f"*{decided}*".replace("[", "[[]"), f"*mine.py:short {links}".replace("[", "[[]")])
    solo = {"xfailed" if said == "file" else "failed": 1} if workers == "2" else {}
    told_fails = 1 + solo.pop("failed", 0)
    result.assert_outcomes(failed=told_fails, **solo)


@pytest.mark.usefixtures("engines")
@pytest.mark.rest
def test_the_suite_ends_in_workers_where_nothing_is_said(pytester: pytest.Pytester) -> None:
    words = "--adapter=engines/mine.py:good", "-n", "2", "-k", "solo or determinism or seeds"
    result = pytester.runpytest_subprocess(*words, timeout=TIMEOUT_S)
    result.assert_outcomes(passed=2, skipped=1)


@pytest.mark.parametrize("count", [None, 0])
def test_a_number_of_cases_that_is_none_is_refused_where_they_are_drawn(count: int | None) -> None:
    from conformance import examination, test_laws

    examined = examination.Examination(registry.load("eqspec"), test_laws.LAWS, count)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=f"count: expected a number of cases of at least 1, got {count}"):
        examined.of("test_solo_equivalence")


def test_own_tests_take_the_decoder_which_is_set_up_once(pytester: pytest.Pytester, engines: Path) -> None:
    path = pytester.makepyfile(test_own=OWN_TESTS)
    result = run(pytester, f"--adapter={engines}:Engine", str(path))
    result.assert_outcomes(passed=3)
    assert (pytester.path / "log").read_text().splitlines() == ["engine opened", "engine closed"]


@pytest.mark.usefixtures("engines")
def test_with_paths_only_they_run(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_own=OWN_TESTS, test_other="def test_other():\n    raise AssertionError\n")
    collected = run(pytester, "--adapter=engines/mine.py:good", "test_own.py", "--collect-only", "-q")
    assert collected.ret == pytest.ExitCode.OK
    names = [line.split("::")[1].partition("[")[0] for line in collected.outlines if "::" in line]
    assert names == ["test_named", "test_called", "test_without_decoder"]


def test_own_tests_are_skipped_without_an_adapter(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_own=OWN_TESTS)
    result = run(pytester, "-rs")
    result.assert_outcomes(passed=1, skipped=2)
    result.stdout.fnmatch_lines(["SKIPPED *needs --adapter=SPEC"])


@pytest.mark.parametrize("more", [(), ("-n", "2")])
@pytest.mark.tiers(quick=1, rest=1)
def test_the_suite_without_an_adapter_is_no_clean_run(more: tuple[str, ...], pytester: pytest.Pytester) -> None:
    result = run(pytester, "--pyargs", "eqcheck.conformance", *more)
    assert result.ret != pytest.ExitCode.OK
    assert result.parseoutcomes().keys() <= {"error", "errors"}
    result.stdout.fnmatch_lines(["*tests nothing without --adapter=SPEC*"])


def test_a_run_without_adapter_imports_nothing_heavy(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import sys

        def test_imports(pytestconfig):
            assert pytestconfig.pluginmanager.hasplugin("eqcheck")
            assert not {"torch", "transformers"} & set(sys.modules)
        """
    )
    run(pytester).assert_outcomes(passed=1)


@pytest.mark.parametrize("module", ["eqcheck", "eqcheck.pytest_plugin", "eqcheck.cli"])
def test_imports_are_light(module: str) -> None:
    code = f"import sys, {module}; sys.exit(bool({{'torch', 'transformers', 'hypothesis'}} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["--adapter=hf_prr"], "unknown adapter 'hf_prr'; did you mean 'hf_pr'?"),
        (["--adapter=absent.py", "--adapter=eqspec"], "absent.py: there is no such file"),
        (["--adapter=engines/mine.py"], "name one with :attr, of good, short, declared"),
        (["--adapter=engines/mine.py:enginee"], "no decoder 'enginee'"),
        (["--adapter=eqspec", "--eqcheck-cases=0"], "--eqcheck-cases: expected an integer of at least 1"),
    ],
)
@pytest.mark.usefixtures("engines")
def test_usage_errors(pytester: pytest.Pytester, words: list[str], what: str) -> None:
    result = run(pytester, *words)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert what in result.stderr.str()
    assert "Traceback" not in result.stderr.str()
