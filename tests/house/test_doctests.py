"""The examples in docstrings hold: one test for each folder, which imports only what has examples.

`--doctest-modules` would import all of eqcheck, torch and transformers in each process that collects, to find them.
"""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest
from committed import ROOT, committed

MODULES = [path for place in ("eqcheck", "benchmarks", "tests") for path in committed(f"{place}/**/*.py")]
WITH_EXAMPLES = [path for path in MODULES if "\n    >>> " in path.read_text() and path != Path(__file__)]
FOLDERS = sorted({path.parent for path in WITH_EXAMPLES})


def module_of(path: Path) -> str:
    """The name by which a module is imported here: `tests` and `tests/tools` are folders of the path and no packages.

    >>> module_of(ROOT / "eqcheck/report/__init__.py"), module_of(ROOT / "tests/tools/score.py")
    ('eqcheck.report', 'score')
    """
    wings = {path.parent for path in committed("tests/*/test_*.py")} - {ROOT / "tests" / "conformance"}
    folders = (ROOT / "tests" / "tools", *wings, ROOT / "tests", ROOT)
    inside = path.relative_to(next(folder for folder in folders if path.is_relative_to(folder)))
    return ".".join(inside.with_suffix("").parts).removesuffix(".__init__")


def failures(module: str) -> list[str]:
    """What doctest says of the examples that fail; an error where a module has none."""
    said: list[str] = []
    tests = [test for test in doctest.DocTestFinder().find(importlib.import_module(module)) if test.examples]
    assert tests, f"{module}: >>> stands in no docstring"
    runner = doctest.DocTestRunner(verbose=False, optionflags=doctest.ELLIPSIS)
    for test in tests:
        runner.run(test, out=said.append)
    return said


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: str(folder.relative_to(ROOT)))
def test_examples_of_a_folder(folder: Path) -> None:
    said = [text for path in WITH_EXAMPLES if path.parent == folder for text in failures(module_of(path))]
    assert not said, "\n".join(said)


def test_an_example_that_fails_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "wrong_examples.py").write_text('def one():\n    """\n    >>> 1 + 1\n    3\n    """\n')
    (tmp_path / "no_examples.py").write_text("# >>> 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    (said,) = failures("wrong_examples")
    assert "Expected:\n    3\nGot:\n    2" in said
    with pytest.raises(AssertionError, match="in no docstring"):
        failures("no_examples")
