"""The files of this repository that git knows: what a user's audits wrote beside them is none of a test's business."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@cache
def _names(root: Path) -> tuple[str, ...]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, text=True, check=False)
    if listed.returncode:
        raise RuntimeError(f"{root}: git lists no files: {listed.stderr.strip()}; these tests run in a clone")
    return tuple(listed.stdout.split("\0")[:-1])


def committed(pattern: str, root: Path = ROOT) -> list[Path]:
    """Return the files that git lists and that match a pattern relative to the root, sorted.

    ``*`` matches within one folder and ``**`` any folders, as in `pathlib.Path.glob`. A file that is listed but was
    deleted is left out.

    >>> [path.name for path in committed("tests/tools/commit*.py")]
    ['committed.py']
    """
    there = set(root.glob(pattern))
    return sorted(there.intersection(root / name for name in _names(root)))
