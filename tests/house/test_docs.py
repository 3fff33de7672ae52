"""The pages of docs whose files are audited as written: bridges, a script; and the faults planted there are found."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from eqcheck.contract.architectures import ARCHITECTURES
from eqcheck.contract.errors import UsageError
from eqcheck.contract.family import claimed_by
from eqcheck.contract.registry import load
from eqcheck.transparent.decoding import run
from eqcheck.transparent.oracle import judge
from eqcheck.transparent.real.models import model_of
from eqcheck.transparent.real.targets import check, families_of
from eqcheck.transparent.search import Source

PAGE = (Path(__file__).parents[2] / "docs" / "bridge.md").read_text()
FILES = {name: text for text, name in re.findall(r"```python\n(# (\S+\.py)\n.*?)```", PAGE, re.DOTALL)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the files of the page."""
    assert sorted(FILES) == [
        "bridge.py",
        "engine.py",
        "lookup_bridge.py",
        "paged_bridge.py",
        "text_bridge.py",
        "text_engine.py",
    ]
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def audit(folder: Path, adapter: str, *words: str) -> subprocess.CompletedProcess[str]:
    assert f"$ eqcheck audit {adapter}\n" in PAGE
    command = [sys.executable, "-m", "eqcheck.cli", "audit", adapter, "--no-corpus", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("adapter", ["bridge.py", "lookup_bridge.py", "paged_bridge.py", "text_bridge.py"])
@pytest.mark.long
def test_right_as_written(folder: Path, adapter: str) -> None:
    done = audit(folder, adapter, "--cases", "20")
    assert done.returncode == 0, done.stdout + done.stderr


NOT_CLAIMED = {"mistral", "gemma2", "gpt_oss", "bloom", "mamba2"}  # of the families that the bridge names none


@pytest.mark.parametrize("target", ARCHITECTURES)
@pytest.mark.tiers(quick=0, rest=7)
def test_the_bridge_is_right_on_every_target_that_it_claims(folder: Path, target: str) -> None:
    _ready(target)
    decoder = load(str(folder / "bridge.py"))
    (family,) = families_of(target)
    assert claimed_by(decoder.families, family) == (target not in NOT_CLAIMED)
    if target in NOT_CLAIMED:
        return
    with decoder.running() as generate:
        for case in Source(3, (family,), ("left", "right"), ("empty",)).chunk(0, 6):
            assert judge(run(generate, case))


@pytest.mark.parametrize("target", ARCHITECTURES)
@pytest.mark.tiers(quick=9, rest=4)
def test_configurations_say_what_real_checkpoints_say(target: str) -> None:
    _ready(target)
    config = model_of(target, "float64", 0).config
    usual = type(config)()
    said = {"num_key_value_heads", "num_kv_heads", "head_dim", "num_attention_heads", "num_hidden_layers"}
    assert {name for name in said if hasattr(config, name)} == {name for name in said if hasattr(usual, name)}


def _ready(target: str) -> None:
    """Skip a target that this transformers does not have, as `--target all` does."""
    try:
        (family,) = families_of(target)
        check(family)
    except UsageError as error:
        pytest.skip(str(error))


@pytest.mark.long
def test_the_fault_is_found_as_the_page_says(folder: Path) -> None:
    ((old, new),) = re.findall(r"```diff\n-(.*\n)\+(.*\n)```", PAGE)
    engine = folder / "engine.py"
    assert FILES["engine.py"].count(old) == 1
    engine.write_text(FILES["engine.py"].replace(old, new))
    done = audit(folder, "bridge.py", "--cases", "60")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "The audit finds `cache/stale-entry`, shows the slot" in PAGE
    (violation,) = json.loads((folder / "reports" / "bridged" / "report.json").read_text())["violations"]
    assert violation["fingerprint"] == "cache/stale-entry"
    assert "rejected draft" in violation["explanation"]


def test_the_docs_name_what_there_is() -> None:
    from eqcheck import compat

    assert all(name in PAGE for name in compat.__all__)
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    assert "(docs/bridge.md)" in readme


SCRIPT = (Path(__file__).parents[2] / "docs" / "script.md").read_text()


@pytest.mark.long
def test_the_script_is_audited_as_it_is(tmp_path: Path) -> None:
    files = {name: text for text, name in re.findall(r"```python\n(# (\S+\.py)\n.*?)```", SCRIPT, re.DOTALL)}
    assert sorted(files) == ["generate.py", "script_adapter.py"]
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert "$ eqcheck audit script_adapter.py\n" in SCRIPT
    command = [sys.executable, "-m", "eqcheck.cli", "audit", "script_adapter.py", "--no-corpus", "--cases"]
    right = subprocess.run([*command, "20"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert right.returncode == 0, right.stdout + right.stderr
    wrong = files["generate.py"].replace("answers[:, : accepted + 1]", "answers[:, : accepted + 2]")
    (tmp_path / "generate.py").write_text(wrong)
    found = subprocess.run([*command, "20"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert found.returncode == 1, found.stdout + found.stderr
