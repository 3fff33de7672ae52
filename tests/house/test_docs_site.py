"""The documentation builds strictly, asks nothing of a network, and has every public name."""

from __future__ import annotations

import doctest
import importlib
import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import eqcheck
from eqcheck import compat
from eqcheck.contract.decoders import DTYPES
from eqcheck.contract.kinds import FINGERPRINTS
from eqcheck.core.explanation.handbook import about

ROOT = Path(__file__).parents[2]
FETCHED = re.compile(
    r"""(?:<script[^>]*\ssrc|<img[^>]*\ssrc|<iframe[^>]*\ssrc|<link[^>]*\shref)="?(https?:|//)[^>]*>"""
)
IN_STYLE = re.compile(r"""(?:@import|url\()\s*["']?(?:https?:|//)""")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make docs` does."""
    for module in ("mkdocs", "material", "mkdocstrings_handlers.python"):
        pytest.importorskip(module, reason="the extra `docs` is not installed")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=quiet, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return folder


def fetched(text: str) -> list[str]:
    """What a page or a style sheet has a browser fetch from elsewhere."""
    return [found.group() for pattern in (FETCHED, IN_STYLE) for found in pattern.finditer(text)]


@pytest.mark.long
def test_the_site_fetches_nothing(site: Path) -> None:
    files = [*site.rglob("*.html"), *site.rglob("*.css")]
    assert len(files) > 15
    for file in files:
        assert fetched(file.read_text(encoding="utf-8")) == [], file.name


@pytest.mark.parametrize(
    "text",
    [
        '<script src="https://example.org/a.js">',
        '<link rel="stylesheet" href="//example.org/a.css">',
        "@import 'https://example.org/a.css'",
        "src: url(https://example.org/a.woff2)",
    ],
)
def test_what_is_fetched_is_seen(text: str) -> None:
    assert fetched(text)
    assert not fetched('<a href="https://example.org/">a link</a> <script src="assets/a.js">')


@pytest.mark.rest
def test_every_kind_has_a_page_and_is_on_the_page_of_kinds(site: Path) -> None:
    table = (site / "kinds.html").read_text(encoding="utf-8")
    for kind in FINGERPRINTS:
        name = kind.replace("/", "-")
        assert f'href="kinds/{name}.html" id="{name}"' in table or f'id="{name}" href="kinds/{name}.html"' in table
        page = (site / "kinds" / f"{name}.html").read_text(encoding="utf-8")
        assert f"eqcheck explain {kind}" in page
        for cause in about(kind).causes:
            assert all(f'href="{url}"' in page for url in cause.urls)


@pytest.mark.long
def test_links_to_a_kind_lead_to_it(site: Path) -> None:
    """The address that the command prints or a report links to."""
    assert 'id="position-query-position"' in (site / "kinds.html").read_text(encoding="utf-8")


@pytest.mark.rest
def test_every_public_name_is_on_the_page_of_the_api(site: Path) -> None:
    page = (site / "api.html").read_text(encoding="utf-8")
    for name in set(eqcheck.__all__) - {"__version__", "kit", "strategies"}:
        assert f'id="eqcheck.{name}"' in page, name
    for name in compat.__all__:
        assert f'id="eqcheck.compat.{name}"' in page, name
    assert 'id="eqcheck.strategies.cases"' in page
    assert 'id="eqcheck.kit.Equivalence"' in page
    assert "eqcheck.__version__" in page
    assert "<blockquote>" not in page  # an example that was taken for a quote


@pytest.mark.parametrize("name", sorted(set(eqcheck.__all__) - {"__version__", "kit", "strategies"}))
def test_every_public_name_has_a_fact_and_an_example(name: str) -> None:
    text = inspect.getdoc(getattr(eqcheck, name)) or ""
    assert text.splitlines()[0].endswith("."), text
    assert ">>> " in text


@pytest.mark.parametrize("name", ["hooks", "doctests"])
def test_what_makes_pages_does_as_it_says(name: str) -> None:
    pytest.importorskip("mkdocs", reason="the extra `docs` is not installed")
    pytest.importorskip("griffe", reason="the extra `docs` is not installed")
    assert doctest.testmod(loaded(name)).failed == 0


def loaded(name: str) -> ModuleType:
    """A module of docs/; they import one another."""
    sys.path.insert(0, str(ROOT / "docs"))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.pop(0)


def test_the_page_of_decoders_has_what_they_declare() -> None:
    from eqcheck.contract import registry

    page = (ROOT / "docs" / "decoders.md").read_text(encoding="utf-8")
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines() if line.startswith("| `")]
    served = [name for name in registry.names() if name.rpartition("_")[2] in DTYPES]  # told in a sentence
    assert sorted(row[0].strip("`") for row in rows) == sorted({*registry.names()} - {*served})
    for name, _, families, sides, known in rows:
        decoder = registry.load(name.strip("`"))
        claimed = ("rotary",) if decoder.checkpoints else decoder.families
        assert (families, sides) == (", ".join(claimed), ", ".join(decoder.padding_sides)), name
        assert re.findall(r"\[`([^`]*)`\]\(kinds\.md#([\w-]*)\)", known) == [
            (kind, kind.replace("/", "-")) for kind in decoder.known
        ], name
    ready = page.split("\n- ")[1].partition(" need nothing else")[0]
    assert set(re.findall(r"`(\w+)`", ready)) == set(registry.self_contained())


def test_the_search_finds_names_by_their_parts(site: Path) -> None:
    index = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))
    separator = re.compile(index["config"]["separator"])
    assert separator.split("position/query-position") == ["position", "query", "position"]
    assert separator.split("request.max_new_tokens") == ["request", "max", "new", "tokens"]
    words = {word.lower() for one in index["docs"] for word in separator.split(f"{one['title']} {one['text']}")}
    assert {part for kind in FINGERPRINTS for part in separator.split(kind)} <= words
    assert {"max", "new", "tokens", "bsp", "replay"} <= words
    assert "max_new_tokens" not in words
