"""The examples: small.py has the idea in one file; the project only depends on eqcheck, and a bug in it is found."""

from __future__ import annotations

import ast
import json
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

import eqcheck

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "tiny-decoder"
ADAPTER = "tiny_decoder_adapter.py"


SMALL = ROOT / "examples" / "small.py"


FOUND = """\
Each request alone: equal
All in one batch: WRONG in row 1, new token 2
  expected  87 15  2 23 52 77 35 26
  got       87 15 34 29 33 44 26 48
                  ^^
  slot 7  must hold  token 15, position id 2
          holds      token 15, position id 5
The batch with the right position ids: equal
"""


def output_of(script: Path) -> str:
    return subprocess.run([sys.executable, script], capture_output=True, text=True, check=True).stdout


def test_the_small_example_finds_its_bug_and_says_where() -> None:
    assert output_of(SMALL) == FOUND


def test_the_mended_small_example_finds_nothing(tmp_path: Path) -> None:
    source, wrong = SMALL.read_text(), "return len(cache) - padding"
    assert source.count(wrong) == 1
    mended = tmp_path / "small.py"
    mended.write_text(source.replace(wrong, "return sum(slot.attended for slot in cache)"))
    lines = output_of(mended).splitlines()
    assert len(lines) == 3
    assert all(line.endswith(": equal") for line in lines)


def test_the_small_example_stays_small_and_needs_nothing() -> None:
    source = SMALL.read_text()
    assert source.count("\n") <= 150
    imported = [node for node in ast.walk(ast.parse(source)) if isinstance(node, (ast.Import, ast.ImportFrom))]
    names = {alias.name if isinstance(node, ast.Import) else node.module for node in imported for alias in node.names}
    assert names <= set(sys.stdlib_module_names) | {"__future__", "collections.abc"}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of the example, somewhere else."""
    ignored = shutil.ignore_patterns("__pycache__", ".*_cache", ".hypothesis", ".eqcheck")
    return Path(shutil.copytree(EXAMPLE, tmp_path / "project", ignore=ignored))


def python(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.long
def test_its_own_tests_and_the_laws_pass(project: Path) -> None:
    options = ["-q", "-p", "no:cacheprovider", f"--adapter={ADAPTER}", "--eqcheck-cases=4"]
    done = python(project, "pytest", *options, "tests", "--pyargs", "eqcheck.conformance")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "passed" in done.stdout


@pytest.mark.long
def test_the_bug_of_its_readme_is_found_and_named(project: Path) -> None:
    decoder = project / "tiny_decoder.py"
    right, wrong = "(mask.cumsum", "(torch.ones_like(mask).cumsum"
    assert right in decoder.read_text()
    assert wrong.strip("(") in (project / "README.md").read_text()
    decoder.write_text(decoder.read_text().replace(right, wrong))
    done = python(project, "eqcheck.cli", "audit", "--adapter", ADAPTER, "--cases", "20", "--no-corpus", "--json")
    assert done.returncode == 1, done.stderr
    (report,) = json.loads(done.stdout)["reports"]
    assert {one["fingerprint"] for one in report["violations"]} == {"position/query-position"}
    assert report["matrix"]["rotary"]["violations"] == 0


def _used(source: str) -> set[str]:
    """The names of eqcheck that a source uses; modules below it with a dot."""
    used = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "eqcheck":
            used.add(node.attr)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "eqcheck":
            used |= {alias.name if node.module == "eqcheck" else str(node.module) for alias in node.names}
        elif isinstance(node, ast.Import):
            used |= {alias.name for alias in node.names if alias.name.startswith("eqcheck.")}
    return used


def test_it_uses_public_names_only() -> None:
    found = set().union(*(_used(path.read_text()) for path in EXAMPLE.rglob("*.py")))
    assert {"decoder", "Request", "Oracle"} <= found <= set(eqcheck.__all__)
    assert not _used("import eqcheck.transparent.decoding\nfrom eqcheck.transparent.hashlm.trace import Call") <= set(
        eqcheck.__all__
    )


def test_its_workflow_runs_what_its_readme_says() -> None:
    workflow = msgspec.yaml.decode((EXAMPLE / ".github" / "workflows" / "tests.yml").read_text())
    steps = [step.get("run", "") for step in workflow["jobs"]["tests"]["steps"]]
    for command in ("pytest", "pytest --adapter=tiny_decoder", "eqcheck audit tiny_decoder"):
        assert any(step.startswith(command) for step in steps)
        assert command in (EXAMPLE / "README.md").read_text()
