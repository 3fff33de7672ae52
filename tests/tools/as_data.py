"""Reports of audits as plain data, for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from eqcheck.core.result.findings import Audit
from eqcheck.report import build
from eqcheck.report.schema import from_builtins, to_builtins
from eqcheck.report.terminal import summary


def to_dict(result: Audit, folder: Path) -> dict[str, Any]:
    return to_builtins(build.report_of(result, folder))


def write(result: Audit, folder: Path) -> dict[str, Any]:
    return to_builtins(build.write(result, folder))


def shown(data: dict[str, Any]) -> str:
    """What the terminal shows of a report."""
    return summary([from_builtins(data)], ["there"])
