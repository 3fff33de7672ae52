"""What would be published is whole and passes the checks of the index; version, citation and changelog agree."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import msgspec
import pytest
from test_packaging import ROOT, _files

import eqcheck

CHECKS = {"twine": ["twine", "check", "--strict"], "check_wheel_contents": ["check_wheel_contents"]}
DOCUMENTS = ("CHANGELOG.md", "CITATION.cff", "CONTRIBUTING.md", "LICENSE", "README.md", "SECURITY.md")
NEEDED = (
    "ARCHITECTURE.md",
    "Makefile",
    "constraints.txt",
    "pyproject.toml",
    "environments/vllm.txt",
    "tests/tools/tiny.py",
)
EXAMPLE = "examples/tiny-decoder/tiny_decoder.py"


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist of the files as they are now, and the wheel that is made of it."""
    pytest.importorskip("build", reason="needs the packages of eqcheck[dev]")
    copy = tmp_path_factory.mktemp("dist")
    for name in _files(ROOT, "-co"):
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, copy / name)
    done = run("build", "--no-isolation", "--outdir", str(copy / "dist"), str(copy))
    assert done.returncode == 0, done.stdout + done.stderr
    return copy / "dist"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", *arguments], capture_output=True, text=True, check=False)


@pytest.mark.rest
def test_the_sdist_has_what_one_needs_to_test_and_nothing_large(dist: Path) -> None:
    (sdist,) = dist.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
        sizes = {member.name: member.size for member in archive.getmembers()}
    assert {*DOCUMENTS, *NEEDED, EXAMPLE} <= names
    needed = re.compile(
        r"(eqcheck|adapters|reference_impls|benchmarks|tests)/.*\.py|eqcheck/core/explanation/handbook/.*\.md"
    )
    assert {name for name in _files(ROOT, "-co") if needed.fullmatch(name)} <= names
    assert not [name for name in names if name.startswith(("reports", ".")) or name.endswith((".safetensors", ".pyc"))]
    assert not {name: size for name, size in sizes.items() if size > 300_000}  # texts grow, a large file is no text
    assert sdist.stat().st_size < 2_600_000


@pytest.mark.parametrize("tool", CHECKS)
@pytest.mark.rest
def test_the_checks_pass_and_can_fail(tool: str, dist: Path, tmp_path: Path) -> None:
    pytest.importorskip(tool, reason="needs the packages of eqcheck[dev]")
    (wheel,) = dist.glob("*.whl")
    published = [wheel] if tool == "check_wheel_contents" else list(dist.iterdir())
    done = run(
        *CHECKS[tool], *(["--config", str(ROOT / "pyproject.toml")] if tool != "twine" else []), *map(str, published)
    )
    assert done.returncode == 0, done.stdout + done.stderr
    spoilt = tmp_path / wheel.name
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(spoilt, "w") as new:
        for item in old.infolist():
            data = old.read(item)
            if item.filename.endswith("METADATA"):
                data = data.partition(b"\n\n")[0] + b"\n"  # without its description
            if item.filename.endswith("RECORD"):
                data += b"eqcheck/left.pyc,,\n"
            new.writestr(item, data)
        new.writestr("eqcheck/left.pyc", b"")
    assert run(*CHECKS[tool], str(spoilt)).returncode != 0


def test_links_of_the_description_lead_to_the_repository(dist: Path) -> None:
    (wheel,) = dist.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("METADATA"))
        described = archive.read(name).decode().partition("\n\n")[2]
    links = re.findall(r"\]\(([^)]+)\)", described)
    assert len(links) == len(re.findall(r"\]\(([^)]+)\)", (ROOT / "README.md").read_text(encoding="utf-8"))) > 20
    assert not [link for link in links if not link.startswith("https://")], "an index does not know the other files"
    assert [link for link in links if "/raw/" in link and link.endswith(".png")], "a picture, not the page that has it"


@pytest.mark.rest
def test_the_version_is_the_same_everywhere(dist: Path) -> None:
    version = eqcheck.__version__
    assert {path.name for path in dist.iterdir()} == {
        f"eqcheck-{version}.tar.gz",
        f"eqcheck-{version}-py3-none-any.whl",
    }
    assert re.search(rf"(?m)^## {re.escape(version)} - \d{{4}}-\d\d-\d\d$", (ROOT / "CHANGELOG.md").read_text())


def _missing(citation: str) -> set[str]:
    """The keys that a citation file of version 1.2.0 has to have, and this text has not."""
    data = msgspec.yaml.decode(citation)
    return {"cff-version", "message", "title", "authors"} - {key for key, value in data.items() if value}


def test_the_citation_is_whole_and_names_no_person() -> None:
    text = (ROOT / "CITATION.cff").read_text()
    data = msgspec.yaml.decode(text)
    assert not _missing(text)
    assert _missing("cff-version: 1.2.0\nauthors: []\ntitle: x") == {"message", "authors"}
    assert (data["version"], data["cff-version"]) == (eqcheck.__version__, "1.2.0")
    assert data["authors"] == [{"name": "eqcheck contributors"}]


@pytest.mark.parametrize("name", ["CONTRIBUTING.md", "SECURITY.md"])
def test_documents_invent_no_address(name: str) -> None:
    text = (ROOT / name).read_text()
    assert "issue tracker" in text
    assert not re.findall(r"https?://|[\w.]+@[\w.]+", text)
