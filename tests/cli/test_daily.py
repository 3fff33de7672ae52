"""The small commands: lists, explanations, scaffolds, completion; and that help is quick and fits."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from pages import on_a_terminal

from eqcheck import assert_equivalent, cli
from eqcheck.audit.coverage_words import TRANSPARENT
from eqcheck.cli import COMMANDS, new
from eqcheck.contract import registry
from eqcheck.contract.errors import Violation
from eqcheck.contract.kinds import FINGERPRINTS, KINDS
from eqcheck.core.case.record import Case
from eqcheck.core.explanation.handbook import about

Printed = pytest.CaptureFixture[str]
NAMES = sorted(module.__name__.rpartition(".")[2].replace("listing", "list") for module in COMMANDS)


def lines(capsys: Printed, *words: str, columns: int = 0, monkeypatch: pytest.MonkeyPatch | None = None) -> list[str]:
    if monkeypatch:
        on_a_terminal(monkeypatch, columns)
    assert cli.main(words) == 0
    return capsys.readouterr().out.splitlines()


def test_kinds_lists_each_with_its_meaning(capsys: Printed, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = lines(capsys, "kinds", columns=200, monkeypatch=monkeypatch)[2:]
    assert [line.split()[0] for line in listed] == list(FINGERPRINTS)
    assert all(line.endswith(kind.meaning) for line, kind in zip(listed, KINDS.values(), strict=True))


@pytest.mark.parametrize("columns", [60, 200])
def test_lists_and_explanations_fit(columns: int, capsys: Printed, monkeypatch: pytest.MonkeyPatch) -> None:
    assert all(len(line) <= columns for line in lines(capsys, "kinds", columns=columns, monkeypatch=monkeypatch))
    for fingerprint in FINGERPRINTS:
        shown = lines(capsys, "explain", fingerprint, columns=columns, monkeypatch=monkeypatch)
        said = about(fingerprint)
        sample = [f"    {line}" for line in said.sample.splitlines()]  # it is not folded, but fits in 80 columns
        assert "\n".join(sample) in "\n".join(shown)
        assert all(len(line) <= columns for line in shown if "://" not in line and line not in sample)
        text = " ".join(" ".join(shown).split())
        assert all(part in text for part in (said.what, said.signs, said.fix, KINDS[fingerprint.split("/")[1]].meaning))
        assert {f"    {url}" for cause in said.causes for url in cause.urls} <= set(shown)


@pytest.mark.parametrize("word", ["crash/exception:KeyError", "exception", "crash/exception"])
def test_a_kind_may_be_named_as_a_report_does_or_alone(word: str, capsys: Printed) -> None:
    assert lines(capsys, "explain", word)[0] == "crash/exception: the decoder raised an exception"


@pytest.mark.parametrize(
    ("word", "said"),
    [
        (
            "position/query-positon",
            "there is no kind 'position/query-positon'; did you mean 'position/query-position'?",
        ),
        ("mask/stale-entry", "did you mean 'cache/stale-entry'?"),
        ("", "there is no kind ''. See `eqcheck kinds`"),
        ("\x1b[31m/..", "there is no kind"),
    ],
)
def test_an_unknown_kind_is_one_line(word: str, said: str, capsys: Printed) -> None:
    assert cli.main(["explain", word]) == 4
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
    assert "\x1b" not in line


@pytest.mark.parametrize("command", ["", *NAMES])
@pytest.mark.parametrize("columns", [60, 200])
def test_help_fits(command: str, columns: int, capsys: Printed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    with pytest.raises(SystemExit) as ended:
        cli.main([*([command] if command else []), "--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert all(len(line) <= columns for line in shown.splitlines())
    assert command or all(f"    {name}" in shown for name in NAMES)


@pytest.mark.parametrize("words", [["--help"], ["explain", "mask/window"], ["kinds"], ["new", "engine.py"]])
def test_small_commands_import_no_model(words: list[str], tmp_path: Path) -> None:
    code = "import sys\nfrom eqcheck import cli\ntry: cli.main(sys.argv[1:])\nexcept SystemExit: pass\n"
    code += "print([name for name in ('torch', 'transformers', 'numpy') if name in sys.modules], file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", code, *words], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stderr == "[]\n"


def test_specs_may_stand_anywhere(capsys: Printed, monkeypatch: pytest.MonkeyPatch) -> None:
    for words in (["a", "--seed", "1", "b"], ["--seed", "1", "a", "b"], ["a", "b", "--seed", "1"]):
        options = cli._parsed(cli._parser(), ["audit", *words])
        assert (options.specs, options.seed) == (["a", "b"], 1)
    assert cli.main(["audit", "eqspec", "--sed", "1", "b"]) == 4
    assert "unrecognized arguments: --sed" in capsys.readouterr().err
    assert cli.main(["kinds", "more"]) == 4


@pytest.mark.parametrize("shell", ["bash", "zsh", "tcsh"])
def test_completion_is_a_script(shell: str, capsys: Printed) -> None:
    pytest.importorskip("shtab")
    with pytest.raises(SystemExit):
        cli.main(["--print-completion", shell])
    assert "explain" in capsys.readouterr().out


def completed(script: Path, *words: str) -> list[str]:
    """What bash offers for the last of these words."""
    lines = [f"source {script}", f"COMP_WORDS=({' '.join(map(repr, words))})", f"COMP_CWORD={len(words) - 1}"]
    lines += ["_shtab_eqcheck 2>/dev/null", 'printf "%s\\n" "${COMPREPLY[@]}"']
    return subprocess.run(["bash", "-c", "\n".join(lines)], capture_output=True, text=True).stdout.split()


def test_bash_completes_commands_decoders_and_kinds(
    tmp_path: Path, capsys: Printed, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("shtab")
    hostile = ["eqspec", "$(touch gotcha)", "`touch gotcha`", "a b", "bsp"]
    monkeypatch.setattr(registry, "names", lambda: hostile)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        cli.main(["--print-completion", "bash"])
    script = tmp_path / "completion"
    script.write_text(capsys.readouterr().out)
    assert completed(script, "eqcheck", "expl") == ["explain"]
    assert completed(script, "eqcheck", "explain", "mask/w") == ["mask/window"]
    assert completed(script, "eqcheck", "audit", "--adapter", "eqs") == ["eqspec"]
    assert completed(script, "eqcheck", "audit", "eqs") == ["eqspec"]
    assert "--budget" in completed(script, "eqcheck", "audit", "--bu")
    assert not (tmp_path / "gotcha").exists()


def test_completion_without_shtab_says_how_to_get_it(capsys: Printed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert cli.main(["--print-completion", "bash"]) == 4
    assert "needs shtab, which is not installed: pip install 'eqcheck[completion]'" in capsys.readouterr().err


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_scaffold_is_right_as_it_stands(work: Path, capsys: Printed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eqcheck.selfcheck.faults.short", lambda: type("Right", (), {"failures": []}))
    assert cli.main(["new", "engine.py", "--ci"]) == 0
    assert "next: eqcheck audit engine.py" in capsys.readouterr().out
    assert cli.main(["audit", "engine.py", "--cases", "25", "--no-corpus"]) == 0
    text = capsys.readouterr().out
    assert "engine: equivalent, 25 cases" in text
    assert TRANSPARENT.counters["draft_called"] in " ".join(text.split()), "it does not hide that nothing is drafted"


def test_a_scaffold_whose_call_is_wrong_fails(work: Path) -> None:
    cli.main(["new", "engine.py"])
    case, engine = Case(prompts=((3, 1), (5, 6, 7, 8))), work / "engine.py"
    assert_equivalent(registry.load("engine.py"), case)
    wrong = engine.read_text().replace("[0] * count + [1] * (width - count)", "[1] * width")
    (work / "wrong.py").write_text(wrong)
    with pytest.raises(Violation, match="mask/pad-visible"):
        assert_equivalent(registry.load("wrong.py"), case)


def test_nothing_is_overwritten(work: Path, capsys: Printed) -> None:
    (work / "engine.py").write_text("mine")
    assert cli.main(["new", "engine.py"]) == 4
    assert "exists and is not overwritten" in capsys.readouterr().err
    assert (work / "engine.py").read_text() == "mine"
    (work / "link.py").symlink_to("nowhere")
    assert cli.main(["new", "link.py"]) == 4
    workflow = work / ".github" / "workflows" / "eqcheck.yml"
    workflow.parent.mkdir(parents=True)
    workflow.write_text("mine")
    assert cli.main(["new", "other.py", "--ci"]) == 4
    assert (workflow.read_text(), (work / "other.py").exists()) == ("mine", False)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["engine.txt"], "expected a Python file"),
        (["a\nb.py"], "expected a Python file"),
        (['a"""b.py'], "expected a Python file"),
        (["no/engine.py"], "there is no folder 'no'"),
        (["torch.py"], "would hide the module 'torch'"),
        (["json.py"], "would hide the module 'json'"),
        (["engine.py", "--name", 'x"); import os #'], "expected letters, digits"),
        (["my engine.py"], "expected letters, digits"),
        (["${{x}}.py", "--ci", "--name", "x"], "FILE"),
        (["a;b.py", "--ci", "--name", "x"], "--ci: expected FILE below this folder"),
        (["/tmp/never.py", "--ci"], "--ci: expected FILE below this folder"),
    ],
)
def test_what_cannot_be_a_scaffold_writes_nothing(work: Path, words: list[str], said: str, capsys: Printed) -> None:
    assert cli.main(["new", *words]) == 4
    assert said in capsys.readouterr().err
    assert not list(work.iterdir())


def typed_in(typed: str) -> tuple[int, str]:
    """The exit code of ``eqcheck new engine.py`` on a terminal where this is typed, and what it shows there."""
    outer, inner = pty.openpty()
    os.write(outer, typed.encode())
    command = [sys.executable, "-m", "eqcheck.cli", "new", "engine.py"]
    done = subprocess.run(command, stdin=inner, stdout=subprocess.PIPE, stderr=inner, timeout=600)
    shown = os.read(outer, 10_000).decode()
    os.close(inner)
    os.close(outer)
    return done.returncode, shown


@pytest.mark.parametrize("typed", ["\nmaybe\n", "no name\ny\n"])
def test_an_answer_that_is_none_writes_nothing(work: Path, typed: str) -> None:
    code, shown = typed_in(typed)
    assert code == 4
    assert "expected" in shown
    assert not list(work.iterdir())


@pytest.mark.parametrize(
    ("typed", "name", "ci"),
    [
        ("\n\n", "engine", False),
        ("fast\ny\n", "fast", True),
        ("fast\nYES\n", "fast", True),
        ("\nNo\n", "engine", False),
    ],
)
def test_on_a_terminal_it_asks_twice(work: Path, typed: str, name: str, ci: bool) -> None:
    code, asked = typed_in(typed)
    assert (code, asked.count("]: ")) == (0, 2)
    assert f'name="{name}"' in (work / "engine.py").read_text()
    assert new._WORKFLOW.exists() == ci
