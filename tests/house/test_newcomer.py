"""README and the start page work as they stand: each command in its order, in a fresh clone, an empty HOME, without uv.

The packages are those of this environment. `PYTHONPATH=tests/tools python -m newcomer` installs them instead, and runs
`make audit` and `make test` in full.
"""

from __future__ import annotations

import sysconfig
from pathlib import Path

import newcomer
import pytest

PACKAGES = newcomer.reused(Path(sysconfig.get_paths()["purelib"]))


@pytest.mark.parametrize("page", newcomer.PAGES)
@pytest.mark.rest
def test_a_page_works_from_its_first_command_to_its_last(page: str, tmp_path: Path) -> None:
    done = newcomer.run(page, tmp_path, PACKAGES)
    assert [one.command for one in done][:3] == [
        "git clone https://github.com/OWNER/eqcheck",
        "cd eqcheck",
        "make audit",
    ]
    for one in done:
        assert one.code == one.expected, f"{one.command}: exit code {one.code}\n{one.output[-3000:]}"
        assert "uv pip" not in one.output
    assert any(one.command == "eqcheck audit mine.py" and "mine: equivalent" in one.output for one in done)


def test_a_command_that_does_not_work_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "```console\n$ eqcheck list\n$ git clone https://example.org/eqcheck\n$ uv --version\n$ make nothing\n```\n"
    )
    monkeypatch.setitem(newcomer.PAGES, "page.md", page)
    (tmp_path / "run").mkdir()
    codes = [one.code for one in newcomer.run("page.md", tmp_path / "run", PACKAGES)]
    assert codes == [127, 0, 127, 2], "eqcheck before it is installed, uv, and a target that does not exist"
