"""``eqcheck replay CASE --as-test``: the printed test fails on the wrong decoder, and passes on a right one."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from eqcheck import cli
from eqcheck.contract.decoders import RowOptions
from eqcheck.contract.errors import Violation
from eqcheck.core.case.engine import EngineCase, EngineRow
from eqcheck.core.case.record import Case
from eqcheck.core.case.sampling import SampledCase, SampledEngineCase
from eqcheck.core.store.casefile import StoredViolation, read_case

SHOWCASE = Path(__file__).parents[2] / "reports" / "showcase" / "bsp" / "cases" / "position-query-position.json"
LEAKS = '''
import eqcheck
from eqcheck.transparent.truth.continuation import continue_row

def alone(target, prompt, count):
    c = target.config
    return list(continue_row(c.family, c.vocab_size, c.seed, tuple(prompt), count)[0])

@eqcheck.decoder(name="right")
def right(target, draft, request):
    return [alone(target, prompt, request.max_new_tokens) for prompt in request.prompts]

@eqcheck.decoder(name="leaks")
class Leaks:
    """It keeps the K of its first request."""

    k = None

    def __call__(self, target, draft, request):
        self.k = self.k or request.num_draft_tokens
        rows = right(target, draft, request)
        return rows if self.k == request.num_draft_tokens else [row[:-1] for row in rows]
'''


def printed(path: Path, capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    """The function that the printed test defines, and its text."""
    assert cli.main(["replay", str(path), "--as-test", *words]) == 0
    text = capsys.readouterr().out
    compile(text, "test", "exec")
    assert max(map(len, text.splitlines())) <= 120
    assert text.count("eqcheck.assert_equivalent(") == 1
    found: dict[str, Any] = {"__file__": str(Path.cwd() / "test_pasted.py")}
    exec(text, found)
    (name,) = (name for name in found if name.startswith("test_"))
    return found[name], text


def written(path: Path, case: Any, adapter: str, fingerprint: str, **more: Any) -> Path:
    path.write_text(StoredViolation(case, adapter, fingerprint, **more).to_json())
    return path


SEQUENCE = Case(
    prompts=((3, 1),), num_draft_tokens=2, before=(Case(prompts=((5,), (6, 7))), Case(prompts=((9,),), seed=4))
)
ON_LLAMA = Case(
    prompts=((3, 1, 4), (15,), (9, 2, 6, 5)),
    max_new_tokens=10,
    num_draft_tokens=3,
    accepts=((3, 0, 1), (0, 2, 0), (1, 3)),
    pad_token_id=127,
    padding_side="right",
)


@pytest.mark.long
def test_pytest_runs_what_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, text = printed(SHOWCASE, capsys)
    (tmp_path / "test_pasted.py").write_text(text)
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_pasted.py"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "position/query-position: wrong position id" in done.stdout
    assert "FAILED test_pasted.py::test_position_query_position_" in done.stdout
    assert "raise Violation" not in done.stdout, "eqcheck's own source"


@pytest.mark.parametrize("kind", ["transparent", "real target", "real target in bfloat16", "sequence"])
@pytest.mark.tiers(quick=2, rest=1)
def test_it_fails_on_the_wrong_decoder_and_passes_on_a_right_one(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    case, wrong, right, fingerprint = read_case(SHOWCASE).case, "bsp", "eqspec", "position/query-position"
    assert isinstance(case, Case)
    if kind == "sequence":
        (tmp_path / "mine.py").write_text(LEAKS)
        monkeypatch.chdir(tmp_path)
        case, fingerprint = SEQUENCE, "state/leaks-from-earlier-request"
        wrong, right = "mine.py:Leaks", "mine.py:right"
    elif kind != "transparent":
        case = replace(ON_LLAMA, family="rotary@llama" + ("@bfloat16" if "bfloat16" in kind else ""))
    path = written(tmp_path / "case.json", case, wrong, fingerprint)
    again = ["--adapter", wrong] if ":" in wrong else []
    function, text = printed(path, capsys, *again)
    with pytest.raises(Violation, match=rf"^{fingerprint}: "):
        function()
    assert f"This case showed {fingerprint} with eqcheck " in text
    function, _ = printed(path, capsys, "--adapter", right)
    function()


@pytest.mark.rest
def test_the_test_runs_where_the_project_was_moved_to(tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    """In CI the project lies in another folder: no path of this machine may be in the test."""
    here, there = tmp_path / "here", tmp_path / "there"
    (here / "engines").mkdir(parents=True)
    (here / "engines" / "mine.py").write_text(LEAKS)
    monkeypatch.chdir(here)
    path = written(here / "case.json", SEQUENCE, str(here / "engines" / "mine.py") + ":Leaks", "state/x")
    for words in ([], ["--adapter", "engines/mine.py:Leaks"]):
        assert cli.main(["replay", str(path), "--as-test", *words]) == 0
        text = capsys.readouterr().out
        assert str(tmp_path) not in text
    here.rename(there)
    (there / "tests").mkdir()
    (there / "tests" / "test_pasted.py").write_text(text)
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(there / "tests")]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout
    assert "eqcheck.Violation: state/leaks-from-earlier-request" in done.stdout


def test_what_explanations_name_is_printed_though_it_is_as_usual(tmp_path: Path, capsys: Any) -> None:
    _, text = printed(written(tmp_path / "case.json", Case(prompts=((1,),)), "eqspec", "mask/window"), capsys)
    for name in ("max_new_tokens", "num_draft_tokens", "accepts", "eos_token_ids", "pad_token_id"):
        assert f"        {name}=" in text


def test_printing_a_test_imports_no_torch() -> None:
    code = f"""
import sys
from eqcheck.cli import main
assert main(["replay", {str(SHOWCASE)!r}, "--as-test"]) == 0
sys.exit(bool({{"torch", "transformers", "numpy"}} & set(sys.modules)))
"""
    assert subprocess.run([sys.executable, "-c", code], check=False, stdout=subprocess.DEVNULL).returncode == 0


OPTIONS = RowOptions(4, temperature=1.0)


@pytest.mark.parametrize(
    ("case", "more", "why"),
    [
        (EngineCase((EngineRow((1, 2), RowOptions(4)),)), {}, "an engine loads a checkpoint"),
        (SampledEngineCase((EngineRow((1, 2), OPTIONS),), num_draft_tokens=3), {}, "an engine loads a checkpoint, and"),
        (SampledCase(((5, 7),), (OPTIONS,)), {}, "sampled tokens have a law and no one right output"),
        (Case(prompts=((1,),)), {"fingerprint": "crash/hang"}, "the decoder hangs, or failed in a process of its own"),
        (Case(prompts=((1,),)), {"fingerprint": "crash/exception:SIGSEGV", "isolated": True}, "the decoder hangs, or"),
    ],
    ids=["checkpoint", "sampled checkpoint", "sampled", "hang", "gone"],
)
def test_a_case_that_is_no_short_test_gives_one_error_that_says_why(
    case: Any, more: dict[str, Any], why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path / "case.json", case, "eqspec", **{"fingerprint": "mask/window", **more})
    assert cli.main(["replay", str(path), "--as-test"]) == 4
    out, err = capsys.readouterr()
    (line,) = err.splitlines()
    assert out == ""
    assert f"no test can be printed: {why}" in line
    assert line.endswith(f"keep the file and run eqcheck replay {path}")


def test_code_that_only_the_file_names_is_printed_and_said_to_be_imported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hostile = "mine.py:Leaks\"); raise SystemExit(7) # '"
    for spec in ("mine.py:Leaks", hostile):
        _, text = printed(written(tmp_path / "case.json", SEQUENCE, spec, "mask/window"), capsys)
        assert f"# The case file names this code, which the test imports: {json.dumps(spec)}" in text
    _, text = printed(tmp_path / "case.json", capsys, "--adapter", "mine.py:Leaks")
    assert "The case file names" not in text
    assert 'place = "mine.py"' in text
    assert 'eqcheck.load(str(file) + ":Leaks")' in text
    assert cli.main(["replay", str(SHOWCASE), "--as-test", "-v"]) == 4
    assert "--as-test prints a test and decodes nothing" in capsys.readouterr().err


def test_no_text_of_a_file_becomes_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A case file may come from anyone, and what is printed is pasted."""
    hostile = "\"\"\"; raise SystemExit(7)  # ''' \\"
    path = written(tmp_path / "case.json", Case(prompts=((1,),)), "eqspec", hostile)
    function, _ = printed(path, capsys)
    function()
    assert str(function.__doc__).startswith(f"This case showed {hostile} with eqcheck ")


def test_the_literals_are_the_case(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Long prompts, trees and earlier requests: what is printed is read back as the same case."""
    nodes = ((0, 0), (1, 0), (0, 1))
    long = Case(prompts=(tuple(range(90)), (1,)), accepts=((2, 0), (1,)), num_draft_tokens=3, eos_token_ids=(7,))
    tree = Case(prompts=((3,),), num_draft_tokens=3, cache_state="tree", tree=((nodes,),), paths=(((0, 0),),))
    for case in (long, tree, SEQUENCE):
        path = tmp_path / "bare.json"
        path.write_text(json.dumps(case.to_dict()))
        _, text = printed(path, capsys, "--adapter", "eqspec")
        literal = text[text.index("eqcheck.Case(") : text.index("    decoder = ")]
        import eqcheck

        assert eval(literal, {"eqcheck": eqcheck}) == case


@pytest.mark.long
def test_a_pipe_that_closes_loses_neither_the_page_nor_the_exit_code(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    words = [sys.executable, "-m", "eqcheck.cli", "replay", "-v", str(SHOWCASE), "--html", str(page)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stderr
        process.stdout.close()
        told = process.stderr.read()
        assert process.wait() == 1
    assert told == ""
    assert page.read_text().startswith("<!doctype html>")
