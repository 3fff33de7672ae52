"""What is shipped does not depend on the CPU: torch's kernels differ by instruction set, verdicts and names do not."""

from __future__ import annotations

import ast
import inspect
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from committed import committed

from eqcheck.core.case import engine
from eqcheck.engines.checkpoints import builder
from eqcheck.engines.checkpoints.folders import known
from eqcheck.engines.script import ENGINE

SHOWN = """
import json
from pathlib import Path
from eqcheck.contract import registry
from eqcheck.core.result.findings import Options
from eqcheck.audit.loop import audit
from eqcheck.report.build import report_of
from eqcheck.report.schema import to_builtins
from eqcheck.engines.checkpoints.folders import checkpoint

found = to_builtins(report_of(audit(registry.load("bsp"), Options(cases=40)), Path("reports")))
del found["elapsed_s"], found["cases_per_second"]
print(json.dumps({"checkpoint": checkpoint().name, "report": found}))
"""


def shown(capability: str, folder: Path) -> dict[str, Any]:
    """The name of the checkpoint and a report, by a process whose kernels use this instruction set."""
    folder.mkdir()
    environment = {
        **os.environ,
        "ATEN_CPU_CAPABILITY": capability,
        "XDG_CACHE_HOME": str(folder),
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-c", SHOWN]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.long
def test_names_verdicts_and_fingerprints_are_the_same_on_every_cpu(tmp_path: Path) -> None:
    plain, wide = (shown(capability, tmp_path / capability) for capability in ("default", "avx2"))
    assert plain == wide
    assert len(plain["report"]["violations"]) > 1
    stored = [json.loads(path.read_text())["case"] for path in committed("reports/*/cases/*.json")]
    named = {case["checkpoint"] for case in stored if "checkpoint" in case}
    assert plain["checkpoint"] in named
    assert all(map(known, named)), "the committed cases are for other weights"


def test_the_committed_scripts_build_the_same_weights() -> None:
    audits = [path.parent for path in committed("reports/*/report.json")]
    beside = [path for folder in audits for path in committed(f"reports/{folder.name}/*.py")]
    scripts = {path: path.read_text() for path in beside if path.name != "_adapter.py"}
    assert {path.parent for path in scripts if path.name == ENGINE} == {path.parent for path in scripts}
    shared = [path.parent for path in scripts if path.name == ENGINE]
    assert not any("normal_(" in text for text in scripts.values())
    for folder in shared:
        stored = dict[str, str]()
        for path in committed(f"reports/{folder.name}/_*.py"):
            stored |= functions(path.read_text())
        built = functions(inspect.getsource(builder))
        assert all(stored[name] == built[name] for name in ("target_model", "noisy", "normal"))


def functions(text: str) -> dict[str, str]:
    """The functions of a module, by name, without what they say of themselves."""
    nodes = {node.name: node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)}
    return {name: "\n".join(map(ast.unparse, node.body[1:])) for name, node in nodes.items()}


def test_a_checkpoint_has_the_tokens_and_positions_of_its_cases() -> None:
    assert (builder.VOCAB_SIZE, builder.POSITIONS) == (engine.VOCAB_SIZE, engine.POSITIONS)
