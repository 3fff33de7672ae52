"""The scripts of reports/by_hand show what they say, under the version that they name."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
import transformers
from committed import committed

SCRIPTS = committed("reports/by_hand/*.py")
LINES, OF_TRANSFORMERS = 40, 25


def most(script: Path) -> int:
    return OF_TRANSFORMERS if script.stem.startswith("transformers_") else LINES


def test_a_script_is_short_and_the_reports_name_it() -> None:
    page = (SCRIPTS[0].parents[1] / "README.md").read_text()
    assert [script.stem for script in SCRIPTS if len(script.read_text().splitlines()) > most(script)] == []
    assert [script.stem for script in SCRIPTS if f"by_hand/{script.name}" not in page] == []


@pytest.mark.skipif(not transformers.__version__.startswith("5.23."), reason="the scripts name transformers 5.23")
@pytest.mark.parametrize("name", [one.stem for one in SCRIPTS if one.stem.startswith("transformers_")])
@pytest.mark.tiers(quick=9, rest=1)
def test_a_script_of_transformers_shows_its_fault(name: str) -> None:
    script = next(one for one in SCRIPTS if one.stem == name)
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(script))
    assert ended.value.code == 1
