"""ARCHITECTURE.md is true: the rooms are those that it lists, in their order, and the places it names are there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from committed import committed
from test_structure import ROOMS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "ARCHITECTURE.md").read_text()
LISTED, BESIDE = PAGE.partition("## Who knows whom")[2].split("```")[1:4:2]
PLACES = re.findall(r"^\| ([^|`]+) \| (.+) \|$", PAGE.partition("## Where things go")[2].partition("\n## ")[0], re.M)[
    1:
]


def untrue(where: str) -> Iterator[str]:
    """What a row of the table names that is not there: paths, and names that none of its files defines."""
    named = re.findall(r"`([^`]+)`", where)
    paths = [ROOT / name for name in named if "/" in name or name.endswith((".md", ".yml", "Makefile"))]
    yield from (str(path.relative_to(ROOT)) for path in paths if not path.exists())
    files = [file for path in paths for file in (path.rglob("*.py") if path.is_dir() else [path]) if file.exists()]
    texts = [file.read_text() for file in files]
    for name in named:
        if (
            re.fullmatch(r"\w+", name)
            and name != "Makefile"
            and not any(re.search(rf"^( *(def|class) )?{name}\b", text, re.M) for text in texts)
        ):
            yield name


def test_things_go_where_the_page_says() -> None:
    assert [new for new, where in PLACES if not re.search(r"`\w+/", where)] == []
    assert {new: wrong for new, where in PLACES if (wrong := list(untrue(where)))} == {}


def test_a_place_that_is_not_there_is_seen() -> None:
    assert len(PLACES) > 12
    wrong = "a folder in `eqcheck/lines/`; `LANES` and `lane_of` in `eqcheck/audit/lanes.py`"
    assert list(untrue(wrong)) == ["eqcheck/lines", "lane_of"]


def test_the_wings_are_listed_from_the_top_to_the_bottom() -> None:
    listed = re.findall(r"^(\w+)/", LISTED, re.M)
    inside = [path for path in (ROOT / "eqcheck").iterdir() if path.is_dir() and not path.is_symlink()]
    assert set(listed) == {path.name for path in inside if any(path.glob("*.py"))}
    assert listed == sorted(listed, key=ROOMS.index, reverse=True)


def test_the_folders_beside_the_package_are_listed() -> None:
    folders = {path.relative_to(ROOT).parts[0] for path in committed("*/**/*.py")}
    top = {name for name in folders if not name.startswith(".")}
    assert top - {"eqcheck"} <= set(re.findall(r"^(\w+)/", BESIDE, re.M))


def test_it_is_two_pages() -> None:
    assert len(PAGE.splitlines()) < 140
