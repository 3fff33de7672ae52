"""The wheel: everything is in it, and it leaves an installed `adapters` of the index alone."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import hypothesis.errors
import hypothesis.strategies
import pytest

ROOT = Path(__file__).parents[2]


PIP = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
INSIDE = {"adapters/": "eqcheck/adapters/", "reference_impls/": "eqcheck/reference_impls/"}
INSIDE |= {"tests/catalogue/": "eqcheck/catalogue/", "tests/conformance/": "eqcheck/conformance/"}
INSIDE |= {"eqcheck/": "eqcheck/"}


def _files(folder: Path, *options: str) -> list[str]:
    command = ["git", "ls-files", "--exclude-standard", *options]
    named = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout.splitlines()
    return [name for name in named if (folder / name).is_file()]  # not the link to the catalogue, which lies in tests/


def _build(work: Path, *forgotten: str) -> tuple[Path, set[str]]:
    """A wheel of the files as they are now and empty ``forgotten`` ones, and what it lacks, or has for no reason."""
    copy = work / "checkout"
    subprocess.run(["git", "clone", "--quiet", "--no-checkout", str(ROOT), str(copy)], check=True)
    for name in (*_files(ROOT, "-co"), *forgotten):
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        (copy / name).write_bytes((ROOT / name).read_bytes() if name not in forgotten else b"")
    build = ["wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(work), str(copy)]
    subprocess.run([*PIP, *build], check=True)
    (wheel,) = work.glob("eqcheck-*.whl")
    wanted = {
        inside + name.removeprefix(folder)
        for name in _files(copy, "-co")
        for folder, inside in INSIDE.items()
        if name.startswith(folder) and not name.endswith(".safetensors")
    }
    found = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    return wheel, wanted ^ found


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel of the files as they are now."""
    wheel, astray = _build(tmp_path_factory.mktemp("wheel"))
    assert not astray, "in the repository and not in the wheel, or the other way round"
    return wheel


@pytest.fixture(scope="module")
def site(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of installed packages that holds the wheel and somebody else's top-level ``adapters``."""
    target = tmp_path_factory.mktemp("site")
    (target / "adapters").mkdir()
    (target / "adapters" / "__init__.py").write_text("OWNER = 'somebody else'\n")
    subprocess.run([*PIP, "install", "--no-deps", "--target", str(target), str(wheel)], check=True)
    return target


def _python(site: Path, cwd: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(site)}
    return subprocess.run(
        [sys.executable, *arguments], cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.rest
def test_the_wheel_is_small_and_alone(wheel: Path, site: Path) -> None:
    assert wheel.stat().st_size < 1_400_000
    tops = {path.name for path in site.iterdir() if path.is_dir() and not path.name.endswith(".dist-info")}
    assert tops - {"bin", "__pycache__"} == {"eqcheck", "adapters"}


@pytest.mark.rest
def test_a_folder_that_the_wheel_forgets_is_seen(tmp_path: Path) -> None:
    assert _build(tmp_path, "eqcheck/new/__init__.py")[1] == {"eqcheck/new/__init__.py"}


@pytest.mark.parametrize("where", ["checkout", "wheel"])
@pytest.mark.tiers(quick=0, rest=1)
def test_three_folders_are_sub_packages_and_nothing_else_is(where: str, site: Path, tmp_path: Path) -> None:
    """In a checkout they lie beside ``eqcheck``; what else lies there must not be found below it."""
    code = "import sys\nfrom importlib.util import find_spec\nprint(*[find_spec(n) is not None for n in sys.argv[1:]])"
    inside = ["adapters", "reference_impls", "conformance", "adapters.hf_pr", "reference_impls.serving.engine"]
    beside = ["eqcheck", "benchmarks", "tests", "test_audit", "comparison", "reports", "docs", "adapters.registry"]
    names = [f"eqcheck.{name}" for name in inside + beside]
    done = _python(site if where == "wheel" else ROOT, tmp_path, "-c", code, *names)
    assert done.stdout.split() == ["True"] * len(inside) + ["False"] * len(beside), done.stdout + done.stderr


@pytest.mark.rest
def test_a_module_of_a_checkout_exists_once(tmp_path: Path) -> None:
    code = "import sys, eqcheck, eqcheck.conformance.test_laws\nfor spec in eqcheck.names(): eqcheck.load(spec)\n"
    code += "files = [getattr(m, '__file__', None) or '' for m in sys.modules.values()]\n"
    code += f"files = [f for f in files if f.startswith({str(ROOT)!r}) and 'site-packages' not in f]\n"
    done = _python(ROOT, tmp_path, "-c", f"{code}print(len(files), len(set(files)))")
    count, distinct = map(int, done.stdout.split())
    assert count == distinct > 20, done.stderr


@pytest.mark.rest
def test_lives_beside_another_adapters(site: Path, tmp_path: Path) -> None:
    code = "import adapters, eqcheck; print(adapters.OWNER, eqcheck.__file__, *eqcheck.names())"
    done = _python(site, tmp_path, "-c", code)
    assert done.stdout.startswith(f"somebody else {site}"), done.stdout + done.stderr
    own = ["bsp", "dsd", "eagle", "eqspec", "exspec", "heads", "hf_pr", "medusa", "ragged", "transformers", "tree"]
    assert {*own, "llama_cpp", "mlx_vlm", "openai_http", "openvino_genai", "vllm"} <= set(done.stdout.split())


@pytest.mark.long
def test_audit_and_pytest_from_the_wheel(site: Path, tmp_path: Path) -> None:
    done = _python(site, tmp_path, "-m", "eqcheck.cli", "audit", "--adapter", "ragged", "--cases", "11")
    assert done.returncode == 0, done.stdout + done.stderr
    done = _python(site, tmp_path, "-m", "pytest", "--adapter=hf_pr", "--eqcheck-cases=10", "-k", "solo")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "bookkeeping/premature-stop" in done.stdout


def test_neither_import_nor_plugin_loads_torch() -> None:
    code = (
        "import sys, eqcheck, eqcheck.pytest_plugin; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def _undocumented(source: str) -> set[str]:
    """What a source imports of Hypothesis besides what is in its reference."""
    used = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            used |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            used |= {f"{node.module}.{alias.name}" for alias in node.names}
    documented = {"hypothesis", "hypothesis.strategies", "hypothesis.errors"}
    for module in (hypothesis, hypothesis.strategies, hypothesis.errors):
        documented |= {f"{module.__name__}.{name}" for name in getattr(module, "__all__", dir(module))}
    return {name for name in used if name.split(".")[0] == "hypothesis"} - documented


@pytest.mark.rest
def test_of_hypothesis_only_what_it_documents_is_used() -> None:
    """Its other modules change without notice, also among the versions that are allowed."""
    for folder in ("eqcheck", "adapters", "reference_impls", "benchmarks", "tests"):
        for path in (ROOT / folder).rglob("*.py"):
            assert not _undocumented(path.read_text()), path
    planted = (
        "import hypothesis.core\nfrom hypothesis import given, strategies\nfrom hypothesis.internal import conjecture"
    )
    assert _undocumented(planted) == {"hypothesis.core", "hypothesis.internal.conjecture"}
