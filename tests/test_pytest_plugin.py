"""The pytest plugin, in runs of its own: the conformance suite, a user's own tests, and what a run without it pays."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

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

def test_named(decoder):
    assert decoder.name == "engine"

def test_called(decoder):
    request = eqcheck.Request([[1, 2], [3]], 1, 1, (), 0, "left")
    assert decoder(None, None, request) == [[1], [3]]

def test_without_decoder():
    pass
"""
LAWS = 10


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def run(pytester: pytest.Pytester, *words: str) -> pytest.RunResult:
    return pytester.runpytest_subprocess("--eqcheck-cases=3", *words)


@pytest.fixture
def engines(pytester: pytest.Pytester) -> Path:
    """A file with some decoders, in a folder beside the tests."""
    path = pytester.mkdir("engines") / "mine.py"
    path.write_text(ENGINES)
    return path


def test_the_laws_run_from_an_empty_directory(pytester: pytest.Pytester) -> None:
    result = run(pytester, "--adapter=eqspec")
    result.assert_outcomes(passed=LAWS)
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["*eqcheck: decoders under test: eqspec*"])


def test_a_wrong_decoder_fails_with_the_explanation(pytester: pytest.Pytester) -> None:
    result = run(pytester, "--pyargs", "eqcheck.conformance", "--adapter=hf_pr", "-k", "solo_equivalence")
    result.assert_outcomes(failed=1, deselected=LAWS - 1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        [
            "*bookkeeping/premature-stop - the row ends too early",
            "*Let   row * have the prompt ids *, pad id *, K = *",
            "*It is expected to emit ids *",
            "*Then  new token * is the first that differs*",
            "*However, *",
        ]
    )


@pytest.mark.usefixtures("engines")
def test_two_adapters_in_two_processes(pytester: pytest.Pytester) -> None:
    specs = [f"--adapter=engines/mine.py:{name}" for name in ("good", "short")]
    result = run(pytester, "-n", "2", *specs, "-k", "solo_equivalence")
    result.assert_outcomes(passed=1, failed=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*bookkeeping/premature-stop - *", "FAILED *test_solo_equivalence*short*"])


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
        (["--adapter=engines/mine.py"], "name one with :attr, of good, short, Engine"),
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
