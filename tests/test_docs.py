"""docs/bridge.md does what it says: its files are audited as written, and the fault that it plants is found."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = (Path(__file__).parent.parent / "docs" / "bridge.md").read_text()
FILES = {name: text for text, name in re.findall(r"```python\n(# (\S+\.py)\n.*?)```", PAGE, re.DOTALL)}
SHOWN = re.findall(r"^```\n(cache/.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the files of the page."""
    assert sorted(FILES) == ["bridge.py", "engine.py", "text_bridge.py", "text_engine.py"]
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def audit(folder: Path, adapter: str, *words: str) -> subprocess.CompletedProcess[str]:
    assert f"$ eqcheck audit {adapter}\n" in PAGE
    command = [sys.executable, "-m", "eqcheck.cli", "audit", adapter, "--no-corpus", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("adapter", ["bridge.py", "text_bridge.py"])
def test_right_as_written(folder: Path, adapter: str) -> None:
    done = audit(folder, adapter, "--cases", "60")
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_fault_is_found_as_shown(folder: Path) -> None:
    ((old, new),) = re.findall(r"```diff\n-(.*\n)\+(.*\n)```", PAGE)
    engine = folder / "engine.py"
    assert FILES["engine.py"].count(old) == 1
    engine.write_text(FILES["engine.py"].replace(old, new))
    done = audit(folder, "bridge.py", "--cases", "60")
    assert done.returncode == 1, done.stdout + done.stderr
    (shown,) = SHOWN
    told = [re.sub(r"\d+", "N", line) for line in (shown, done.stdout)]  # which case is the smallest may change
    lines = [line for line in told[0].splitlines() if line.startswith(("cache/", "  However", "  Repair"))]
    assert len(lines) == 3
    for line in lines:
        assert line in told[1], done.stdout


def test_the_docs_name_what_there_is() -> None:
    from eqcheck import compat

    assert all(name in PAGE for name in compat.__all__)
    readme = (Path(__file__).parent.parent / "README.md").read_text()
    assert "(docs/bridge.md)" in readme
