"""What README and docs/ say is so: commands parse, the first report is as shown, examples run, files are there."""

from __future__ import annotations

import argparse
import ast
import json
import re
import shlex
from pathlib import Path

import pytest
from conformance import test_laws, test_sampled_laws

import eqcheck
from eqcheck import pytest_plugin
from eqcheck.cli import _parser, main
from eqcheck.contract import known_violations, registry
from eqcheck.contract.options import RowOptions
from eqcheck.report import ndjson
from eqcheck.report.ndjson import FORMAT
from eqcheck.transparent.hashlm.model import HashConfig, HashLM

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = {page.name: page.read_text(encoding="utf-8") for page in [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]}


def fenced(page: str, language: str) -> list[str]:
    """The blocks of a page that are in this language; those of none are what a terminal shows."""
    blocks: list[list[str]] = []
    inside = ""
    for line in PAGES[page].splitlines(keepends=True):
        if line.startswith("```"):
            inside = "" if inside else line.strip()
            if inside == f"```{language}":
                blocks.append([])
        elif inside == f"```{language}":
            blocks[-1].append(line)
    return ["".join(block) for block in blocks]


def commands(page: str) -> list[str]:
    return re.findall(r"^\$ (.*?)(?:\s+#.*)?$", "".join(fenced(page, "console")), re.MULTILINE)


COMMANDS = [(name, command) for name in PAGES for command in commands(name)]
OURS = re.compile(r"(?:eqcheck|tests|adapters|reference_impls|benchmarks|reports|docs|environments)/[\w./-]*\w/?")
# Options of make, of pip, of uv, and of the servers that docs/gate.md starts.
OTHERS = {"--jobs", "--extra-index-url", "--torch-backend", "--model-path", "--parallel", "--speculative-algorithm"}
OTHERS |= {"--speculative-config", "--speculative-draft-model-path"}
# Of a fresh clone; tests/house/test_newcomer.py runs them.
FRESH = ("git clone https://github.com/OWNER/eqcheck", "cd eqcheck", ". .venv/bin/activate", "python watch_mine.py")
MADE = ("reports/mine", "reports/engine", "reports/bsp")  # by the commands on the pages


def options_of(parser: argparse.ArgumentParser) -> set[str]:
    """Every option of a parser and of its commands."""
    found = {option for action in parser._actions for option in action.option_strings}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            found |= {option for command in action.choices.values() for option in options_of(command)}
    return found


def check(command: str) -> None:
    """Raise unless a command is one that eqcheck, make, pytest or pip takes, or uv for the CPU build of torch."""
    command = command.replace("uv pip install --torch-backend cpu ", "pip install ")
    word, *rest = shlex.split(re.sub(r"^(?:EQCHECK_[A-Z_]+=\S+ )+", "", command))
    if word == "eqcheck":
        _parser().parse_args(rest)
    elif word in ("git", "cd", ".", "python") and command in FRESH:
        return
    elif word == "make":
        assert re.search(rf"^{rest[0]}[ :]", (ROOT / "Makefile").read_text(), re.MULTILINE)
    elif word == "pytest":
        plugin = Path(str(pytest_plugin.__file__)).read_text()
        assert all(f'"{option.partition("=")[0]}"' in plugin for option in rest if option.startswith("--"))
    else:
        extra = re.fullmatch(r"pip install (?:\.|'(?:\.|eqcheck)\[(\w+)\]')", command)
        known_extra = extra and (not extra[1] or f"\n{extra[1]} = [" in (ROOT / "pyproject.toml").read_text())
        assert known_extra or command == ".venv-vllm/bin/python reports/vllm/NAME.py"


@pytest.mark.parametrize(("page", "command"), COMMANDS)
def test_commands_are_ones_that_there_are(page: str, command: str) -> None:
    check(command)


@pytest.mark.parametrize(
    "command",
    [
        "eqcheck audti",
        "eqcheck audit --adaptor x",
        "make adit",
        "cd nowhere",
        "pytest --eqcheck-x",
        "pip install x",
        "pip install '.[no]'",
    ],
)
def test_a_command_that_there_is_not_is_seen(command: str) -> None:
    with pytest.raises((AssertionError, eqcheck.EqcheckError)):
        check(command)


def test_options_in_the_text_are_ones_that_there_are() -> None:
    known = options_of(_parser()) | set(re.findall(r'"(--[\w-]+)"', Path(str(pytest_plugin.__file__)).read_text()))
    for name, page in PAGES.items():
        named = {option for code in re.findall(r"`([^`\n]+)`", page) for option in re.findall(r"--[a-z][\w-]*", code)}
        assert named <= known | OTHERS, (name, named - known)


def test_files_in_the_text_are_there() -> None:
    for name, page in PAGES.items():
        text = re.sub(r"^```.*?^```", "", page, flags=re.DOTALL | re.MULTILINE)
        for path in (p for code in re.findall(r"`([^`\n]+)`", text) for p in OURS.findall(code)):
            generic = path.startswith(MADE) or "NAME" in path
            assert generic or (ROOT / path).exists() or (ROOT / "eqcheck" / path).exists(), (name, path)


@pytest.mark.long
def test_the_first_report_is_as_the_start_page_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The commands of docs/start.md up to `replay -v`, in the order in which they stand there."""
    monkeypatch.chdir(tmp_path)
    said = []
    for words in (shlex.split(command)[1:] for command in commands("start.md") if "bsp" in command):
        main([*words, *(["--no-corpus"] if words[0] == "audit" else [])])
        said.append(capsys.readouterr().out)
    verdict, call = (block for block in fenced("start.md", "") if block.startswith(("bsp: violation", "call 5")))
    assert said[0].endswith(verdict)
    assert said[1].endswith(verdict)
    assert Path("reports/bsp/report.html").is_file()
    assert said[2].startswith("FAILS: bsp\nposition/query-position: ")
    assert call in "".join(f"{line.rstrip()}\n" for line in said[3].splitlines())


@pytest.mark.rest
def test_the_adapter_with_a_draft_and_a_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is right as written, and the planted fault has the name that the page gives, in a case of one row."""
    page = PAGES["adapter.md"]
    (code,) = (block for block in fenced("adapter.md", "python") if block.startswith("# engine.py"))
    ((old, new),) = re.findall(r"```diff\n-(.*\n)\+(.*\n)```", page)
    assert code.count(old) == 1
    assert "ends with `position/query-position`, in a smallest case of one row" in page
    for name, text, expected in (("right", code, 0), ("wrong", code.replace(old, new), 1)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "engine.py").write_text(text)
        monkeypatch.chdir(tmp_path / name)
        assert main(["audit", "--adapter", "engine.py", "--cases", "30", "--no-corpus"]) == expected
    report = json.loads(Path("reports/engine/report.json").read_text())
    (violation,) = report["violations"]
    assert violation["fingerprint"] == "position/query-position"
    assert len(violation["case"]["prompts"]) == 1
    assert "rejected draft" in violation["explanation"]


def test_the_adapter_with_an_option(tmp_path: Path) -> None:
    """A row with a bias gets its token, and the row without one that of the target; without its line it does not."""
    (code,) = (block for block in fenced("options.md", "python") if block.startswith("# optional.py"))
    applied = "scores[token] += bias"
    assert code.count(applied) == 1
    target = HashLM(HashConfig(seed=1))
    rows = (RowOptions(max_new_tokens=3, logit_bias=((7, 1e9),)), RowOptions(max_new_tokens=2))
    request = eqcheck.Request([[3, 1], [4]], 3, 2, (), 0, "left", rows=rows)
    outputs = []
    for name, text in (("right", code), ("wrong", code.replace(applied, "pass"))):
        (tmp_path / f"{name}.py").write_text(text)
        with registry.load(str(tmp_path / f"{name}.py")).running() as generate:
            outputs.append(generate(target, None, request))
    plain = eqcheck.Oracle(target).truth([4], max_new_tokens=2)
    assert outputs[0] == [[7, 7, 7], plain]
    assert outputs[1] != outputs[0]


@pytest.mark.filterwarnings("ignore:target. computes in bfloat16")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_the_watched_loop_is_told_as_the_oracle_page_shows(dtype: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The script prints the text below it, in each dtype that the page names; mended, it is equivalent."""
    (code,) = (block for block in fenced("oracle.md", "python") if block.startswith("# watched.py"))
    (shown,) = fenced("oracle.md", "")
    made, missing = "LlamaForCausalLM(config)", "# missing: "
    assert (code.count(made), code.count(missing)) == (1, 1)
    code = code.replace(made, f"{made}.to(torch.{dtype})")
    exec(code, {})
    assert capsys.readouterr().out == shown
    exec(code.replace(missing, ""), {})
    assert capsys.readouterr().out.startswith("equivalent")


def test_engines_have_the_dtypes_and_kinds_of_the_table() -> None:
    table = PAGES["engines.md"].partition("<!-- served -->")[2].partition("\n\n")[0]
    for name, dtypes, kinds in re.findall(r"^\| `(\w+)` \| (.*) \| (.*) \|$", table, re.MULTILINE):
        if name == "openai_http":
            continue
        for dtype in dtypes.split(", "):
            decoder = registry.load(name if dtype == "float32" else f"{name}_{dtype}")
            assert (decoder.dtype, ", ".join(decoder.kinds)) == (dtype, kinds)


def test_the_laws_are_those_of_the_suite() -> None:
    for module in (test_laws, test_sampled_laws):
        for node in ast.parse(Path(str(module.__file__)).read_text()).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                row = f"| `{node.name}` | {ast.get_docstring(node)} |"
                assert row in PAGES["ci.md"] or node.name == "test_known_faults_still_show"


def test_the_list_of_known_violations_is_one(tmp_path: Path) -> None:
    (listed,) = [text for text in fenced("ci.md", "toml") if text.startswith("[[violation]]")]
    (tmp_path / "known.toml").write_text(listed)
    (entry,) = known_violations.load(tmp_path / "known.toml")
    assert entry.of("mine")


def test_events_are_those_of_the_log() -> None:
    assert FORMAT in PAGES["ci.md"]
    for event in re.findall(r"^\| ``([\w-]+)`` \|", str(ndjson.__doc__), re.MULTILINE):
        assert f"`{event}`" in PAGES["ci.md"]


def test_an_own_test_as_written() -> None:
    (code,) = [text for text in fenced("ci.md", "python") if "test_two_rows_of_unequal_length" in text]
    names: dict[str, object] = {}
    exec(code, names)
    test = names["test_two_rows_of_unequal_length"]
    assert callable(test)
    test(eqcheck.load("eqspec"))


def test_the_sample_of_the_page_on_reports_is_that_of_the_readme() -> None:
    (sample,) = (block for block in fenced("README.md", "") if block.startswith("FAIL position/"))
    explained = sample.partition("\n")[2].partition("  Reproduce")[0]
    assert any(explained in block for block in fenced("report.md", ""))


def test_the_readme_is_short_and_its_links_lead_somewhere() -> None:
    readme = PAGES["README.md"]
    assert len(readme.splitlines()) <= 130
    for path, anchor in re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)", readme):
        assert (ROOT / path).exists(), path
        headings = re.findall(r"^#+ (.*)$", (ROOT / path).read_text(), re.MULTILINE) if anchor else []
        assert not anchor or anchor in [re.sub(r"[^\w -]", "", h).lower().replace(" ", "-") for h in headings], anchor
