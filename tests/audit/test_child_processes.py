"""Processes that eqcheck starts keep what they compile, whatever the container says."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from eqcheck.audit.workers.serve import NO_BYTECODE, begin_child
from eqcheck.audit.workers.worker import child_environment
from eqcheck.contract import registry
from eqcheck.contract.decoders import RowOptions
from eqcheck.core.case.engine import EngineCase, EngineRow
from eqcheck.engines import lane, script

PACKAGE = Path(__file__).parents[2] / "eqcheck"
STARTS = re.compile(r"subprocess\.(?:Popen|run|check_output|check_call|call)\(|posix_spawn\(")


@pytest.fixture(autouse=True)
def container(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NO_BYTECODE, "1")
    monkeypatch.setattr(sys, "dont_write_bytecode", True)


def test_the_environment_of_a_child_lacks_the_variable_alone() -> None:
    assert child_environment(OMP_NUM_THREADS="1") == {
        name: value for name, value in os.environ.items() if name != NO_BYTECODE
    } | {"OMP_NUM_THREADS": "1"}


def test_every_process_of_the_package_gets_that_environment() -> None:
    starting = {path: path.read_text() for path in PACKAGE.rglob("*.py") if STARTS.search(path.read_text())}
    assert {path.name for path in starting} == {"worker.py", "interpreter.py", "cluster.py", "script.py"}
    for path, text in starting.items():
        assert len(STARTS.findall(text)) == len(re.findall(r"(?:env=|, )child_environment\(", text)), path


def test_a_worker_that_another_python_runs_compiles(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import os, sys\nimport eqcheck\n"
        "@eqcheck.decoder(name='mine')\n"
        "def generate(target, draft, request):\n"
        "    assert not sys.dont_write_bytecode and 'PYTHONDONTWRITEBYTECODE' not in os.environ\n"
        "    raise eqcheck.Unsupported('it is started')\n"
    )
    with lane.worker(registry.load(f"{tmp_path / 'mine.py'}:generate"), sys.executable) as spawned:
        case = EngineCase((EngineRow((1, 2), RowOptions(4)),))
        assert spawned.try_case(case).status == "skipped"


def test_a_script_compiles() -> None:
    text = "import json, sys\nprint(json.dumps({'compiles': not sys.dont_write_bytecode}))\nsys.exit(1)\n"
    assert script.run(sys.executable, {"one.py": text}) == {"compiles": True}


def _state() -> str:
    return json.dumps([sys.dont_write_bytecode, NO_BYTECODE in os.environ])


def test_a_process_of_multiprocessing_compiles_once_it_has_begun() -> None:
    begin = multiprocessing.get_context("spawn")
    for initializer, expected in ((None, [True, True]), (begin_child, [False, False])):
        with ProcessPoolExecutor(1, begin, initializer) as pool:
            assert json.loads(pool.submit(_state).result()) == expected
