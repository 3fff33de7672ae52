"""The README's adapter works as written, with the README's commands."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

README = (Path(__file__).parent.parent / "README.md").read_text()


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    blocks = re.findall(r"```python\n(import eqcheck\nimport torch\n.*?)```", README, re.DOTALL)
    assert len(blocks) == 1
    path = tmp_path / "mine.py"
    path.write_text(blocks[0])
    return path


def _run(adapter: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *command], cwd=adapter.parent, capture_output=True, text=True, check=False
    )


def test_audit_as_written(adapter: Path) -> None:
    assert "$ eqcheck audit --adapter mine.py\n" in README
    done = _run(adapter, "eqcheck.cli", "audit", "--adapter", "mine.py", "--cases", "40")
    assert done.returncode == 0, done.stdout + done.stderr
    assert (adapter.parent / "reports" / "mine" / "report.json").exists()


def test_pytest_as_written(adapter: Path) -> None:
    assert "$ pytest --adapter=mine.py\n" in README
    done = _run(adapter, "pytest", "-p", "no:cacheprovider", "--adapter=mine.py", "--eqcheck-cases=5")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "10 passed" in done.stdout
