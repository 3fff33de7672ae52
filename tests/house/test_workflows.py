"""The action and the workflows: valid YAML, whose commands and options exist and whose inputs are no code."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from eqcheck import cli
from eqcheck.cli.new import REPOSITORY, WORKFLOW

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

yaml: Any = pytest.importorskip("yaml")
ROOT = Path(__file__).parents[2]
ACTION = ROOT / "action.yml"
PLACES = (".github/workflows/*.yml", "examples/*/.github/*/*.yml", "proposals/*/*.yml")
OWN = [path for place in PLACES for path in sorted(ROOT.glob(place))]
SCAFFOLD = WORKFLOW.substitute(file="engine.py", repository=REPOSITORY)


def steps(text: str) -> list[dict[str, Any]]:
    data = yaml.safe_load(text)
    jobs = data["jobs"].values() if "jobs" in data else [data["runs"]]
    return [step for job in jobs for step in job["steps"]]


CHECKOUT = "@11bd71901bbe5b1630ceea73d27597364c9af683"


def flaws(text: str) -> list[str]:
    """What is wrong with the steps of an action or a workflow."""
    found = []
    for step in steps(text):
        uses, run = step.get("uses", ""), step.get("run", "")
        if uses and uses != "./" and not re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", uses):
            found.append(f"not pinned: {uses}")
        if "${{" in run:
            found.append(f"an expression in a script: {run}")
        for line in run.splitlines():
            words = shlex.split(line)
            try:
                if words[:1] == ["eqcheck"]:
                    cli._parsed(cli._parser(), words[1:])
                elif words[:1] == ["make"] and not re.search(rf"^\$\(VENV\)/{words[1][6:]}:|^{words[1]}:", MAKE, re.M):
                    found.append(f"no such target: {line}")
            except ValueError as error:
                found.append(str(error))
    return found


MAKE = (ROOT / "Makefile").read_text()


@pytest.mark.parametrize("path", [ACTION, *OWN], ids=lambda path: str(path.name))
def test_the_repositorys_own(path: Path) -> None:
    """Those of the examples, too: who copies them copies their pins."""
    assert not flaws(path.read_text())


def test_what_the_scaffold_writes() -> None:
    assert not flaws(SCAFFOLD)
    scripts = [step.get("run", "") for step in steps(SCAFFOLD)]
    assert "eqcheck audit engine.py --profile ci --junit eqcheck.xml" in scripts, "a budget would draw by the load"
    assert any(f"'eqcheck[audit] @ git+{REPOSITORY}'" in script for script in scripts), "no index has it"
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]
    assert urls["Repository"] == REPOSITORY


@pytest.mark.parametrize(
    ("right", "wrong", "said"),
    [
        (CHECKOUT, "@main", "not pinned: actions/checkout@main"),
        (CHECKOUT, "@v4.2.2", "not pinned: actions/checkout@v4.2.2"),
        ("--profile ci", "--profil3 ci", "unrecognized arguments: --profil3 ci"),
        ("--profile ci", "--budget soon", "expected a time"),
        ("engine.py", "${{ github.head_ref }}", "an expression in a script"),
        ("python -m pip install uv", "make nothing", "no such target: make nothing"),
    ],
)
def test_a_flaw_is_seen(right: str, wrong: str, said: str) -> None:
    assert any(said in flaw for flaw in flaws(SCAFFOLD.replace(right, wrong)))


def test_every_input_of_the_action_is_used_as_a_variable() -> None:
    data = yaml.safe_load(ACTION.read_text())
    audit = next(step for step in data["runs"]["steps"] if step.get("name") == "Audit")
    assert set(data["inputs"]) == {"adapter", "args", "budget", "known", "out", "profile", "python"}
    assert {f"EQCHECK_{name.upper()}" for name in data["inputs"]} == set(audit["env"])
    assert all(f'"${name}"' in audit["run"] or f'"${name}/' in audit["run"] for name in audit["env"])


@pytest.mark.parametrize(("known", "profile", "budget"), [("", "", "5s"), ("my known.toml", "ci", ""), ("", "", "")])
def test_the_action_runs_the_audit_that_was_asked(tmp_path: Path, known: str, profile: str, budget: str) -> None:
    """Its script is run with a Python that prints what it is given, and inputs that a shell would obey.

    An input that is empty is left to `[tool.eqcheck]`.
    """
    audit = next(step for step in steps(ACTION.read_text()) if step.get("name") == "Audit")
    fake = tmp_path / "python"
    fake.write_text(f'#!/bin/sh\nexec {sys.executable} -c "import sys; print(sys.argv[1:])" "$@"\n')
    fake.chmod(0o755)
    inputs = {"ADAPTER": "eqspec\nmy engine.py:x\n\n$(touch gotcha)", "BUDGET": budget, "KNOWN": known, "OUT": "a b"}
    inputs |= {"PROFILE": profile, "ARGS": "--case-timeout\n90s\n\n--memory"}
    variables = {f"EQCHECK_{name}": value for name, value in {**inputs, "PYTHON": str(fake)}.items()}
    done = subprocess.run(
        ["bash", "-e", "-c", audit["run"]],
        cwd=tmp_path,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
    )
    words = ["-m", "eqcheck.cli", "audit", "--out", "a b", "--junit", "a b/junit.xml"]
    words += ["--profile", profile] if profile else []
    words += ["--budget", budget] if budget else []
    words += ["--known", known] if known else []
    words += ["--case-timeout", "90s", "--memory", "--", "eqspec", "my engine.py:x", "$(touch gotcha)"]
    assert done.stdout.strip() == str(words), done.stderr
    cli._parsed(cli._parser(), words[2:])
    assert not (tmp_path / "gotcha").exists()


@pytest.mark.skipif(not shutil.which("make"), reason="there is no make")
@pytest.mark.parametrize("folder", [".venv", ".venv-torch", ".venv-vllm", ".venv-openvino_genai"])
def test_make_takes_the_cpu_build_with_uv_and_says_what_comes_without(folder: str) -> None:
    command = ["make", "--dry-run", "--always-make", f"{folder}/.installed"]
    done = [subprocess.run([*command, uv], cwd=ROOT, capture_output=True, text=True) for uv in ("UV=", "UV=/bin/uv")]
    without, with_uv = (one.stdout for one in done)
    assert "uv is missing: torch comes from the index of pip" in without
    assert "uv is missing" not in with_uv
    assert "/bin/uv pip install --quiet --torch-backend cpu" in with_uv
    assert "-m pip install" not in with_uv
    assert f"{folder}/bin/python -m compileall" in with_uv
    assert f"{folder}/bin/python -m compileall" in without


@pytest.mark.skipif(not shutil.which("make"), reason="there is no make")
def test_make_lays_an_older_transformers_over_the_environment() -> None:
    folder = ".venv-transformers-4.57.6"
    command = ["make", "--dry-run", "--always-make", f"{folder}/.installed", "UV=/bin/uv"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout
    (install,) = (line for line in done.splitlines() if f"{folder}/bin/python -m pip install" in line)
    assert install.endswith("'transformers==4.57.6'")
    assert "--constraint" not in install  # which names another transformers
    assert "addsitedir" in done
    assert "rm " not in done  # or make would install it again each time
