"""The repository's `benchmarks/`: beside this package in a clone, and not in a wheel."""

from __future__ import annotations

import sys
from pathlib import Path

from eqcheck.contract.errors import UsageError

ROOT = Path(__file__).resolve().parents[2]


def find(command: str) -> None:
    """Make `benchmarks` importable for a command; `UsageError` where it does not lie beside this package."""
    if not (ROOT / "benchmarks" / "pair" / "__init__.py").is_file():  # others have folders of that name, too
        raise UsageError(
            f"{command}: benchmarks/ is not beside {Path(__file__).parents[1]}; it is a folder of eqcheck's "
            "repository, and a wheel leaves it out. Clone the repository, install the clone with "
            "`pip install -e .`, and run the command again"
        )
    if sys.path[:1] != [str(ROOT)]:
        sys.path.insert(0, str(ROOT))  # first: others have packages of that name, too
