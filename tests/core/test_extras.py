"""Without extras the oracle and pytest work, and an audit ends with one line that says what to install."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from eqcheck.contract.extras import EXTRAS

BLOCKED = """
import sys
from importlib.machinery import PathFinder

class Without(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name in {blocked} else super().find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Without
{code}
"""
OURS = ("fsspec", "httpx", "hypothesis", "jinja2", "rich", "shtab")  # the others come with transformers
ORACLE = """
import eqcheck
from eqcheck.transparent.hashlm.model import HashConfig, HashLM
oracle = eqcheck.Oracle(HashLM(HashConfig(seed=1)))
truth = oracle.truth([3, 1, 4], max_new_tokens=3)
assert oracle.check([[3, 1, 4]], [truth], max_new_tokens=3)
assert "new token 2" in str(oracle.check([[3, 1, 4]], [[*truth[:2], truth[2] + 1]], max_new_tokens=3))
import pytest
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", "--adapter=eqspec", "--eqcheck-cases=2", "-k", "exact_limit"]))
"""


def without(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    program = BLOCKED.format(blocked=OURS, code=code)
    return subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.long
def test_oracle_and_plugin_need_no_extra(tmp_path: Path) -> None:
    done = without(ORACLE, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout


def test_what_is_missing_is_one_line_and_a_usage_error(tmp_path: Path) -> None:
    code = "from eqcheck.cli import main\nfor words in {!r}: print(main(words))"
    done = without(code.format([["audit", "bsp"], ["checkpoint", "list"]]), tmp_path)
    assert done.stderr == "eqcheck: eqcheck audit needs rich, which is not installed: pip install 'eqcheck[audit]'\n"
    assert done.stdout.startswith("4\n")
    assert done.stdout.endswith("\n0\n")
    done = without("import eqcheck\neqcheck.strategies", tmp_path)
    assert "eqcheck.strategies needs hypothesis, which is not installed: pip install" in done.stderr


def test_every_extra_is_one_that_brings_its_package() -> None:
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    for package, extra in EXTRAS.items():
        (listed,) = re.findall(rf"(?m)^{extra} = \[(.*)\]$", text)
        assert f'"{package}>=' in listed
