"""The wheel: everything is in it, and it leaves an installed `adapters` of the index alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of installed packages that holds the wheel and somebody else's top-level ``adapters``."""
    work = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    copy = work / "checkout"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(copy)], check=True)
    for path in subprocess.run(
        ["git", "ls-files", "-mo", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split():
        if (ROOT / path).exists():
            (copy / path).parent.mkdir(parents=True, exist_ok=True)
            (copy / path).write_bytes((ROOT / path).read_bytes())
    build = ["wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(work), str(copy)]
    subprocess.run([*pip, *build], check=True)
    (wheel,) = work.glob("eqcheck-*.whl")
    target = work / "site"
    (target / "adapters").mkdir(parents=True)
    (target / "adapters" / "__init__.py").write_text("OWNER = 'somebody else'\n")
    subprocess.run([*pip, "install", "--no-deps", "--target", str(target), str(wheel)], check=True)
    return target


def _python(site: Path, cwd: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(site)}
    return subprocess.run(
        [sys.executable, *arguments], cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )


def test_wheel_has_all_and_only_its_packages(site: Path) -> None:
    tops = {path.name for path in site.iterdir() if path.is_dir() and not path.name.endswith(".dist-info")}
    assert tops - {"bin", "__pycache__"} == {"eqcheck", "adapters"}
    for part in (
        "adapters/hf_pr.py",
        "reference_impls/eqspec.py",
        "reference_impls/serving/engine.py",
        "conformance/test_laws.py",
        "compat/legacy.py",
        "pair/target/model.safetensors",
        "pair/draft/config.json",
        "pair/training.json",
        "py.typed",
    ):
        assert (site / "eqcheck" / part).exists()


def test_lives_beside_another_adapters(site: Path, tmp_path: Path) -> None:
    code = "import adapters, eqcheck; print(adapters.OWNER, eqcheck.__file__, *eqcheck.names())"
    done = _python(site, tmp_path, "-c", code)
    assert done.stdout.startswith(f"somebody else {site}"), done.stdout + done.stderr
    own = ["bsp", "dsd", "eqspec", "exspec", "hf_pr", "ragged", "transformers"]
    assert sorted(done.stdout.split()[-10:]) == sorted([*own, "openai_http", "openvino_genai", "vllm"])


def test_audit_and_pytest_from_the_wheel(site: Path, tmp_path: Path) -> None:
    done = _python(site, tmp_path, "-m", "eqcheck.cli", "audit", "--adapter", "ragged", "--cases", "20", "--pair")
    assert done.returncode == 0, done.stdout + done.stderr
    done = _python(site, tmp_path, "-m", "pytest", "--adapter=hf_pr", "--eqcheck-cases=10", "-k", "solo")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "bookkeeping/premature-stop" in done.stdout


def test_neither_import_nor_plugin_loads_torch() -> None:
    code = (
        "import sys, eqcheck, eqcheck.pytest_plugin; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
