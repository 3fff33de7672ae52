"""A gate beside an earlier one, by the JSON that this one wrote."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from eqcheck.contract.errors import UsageError
from eqcheck.contract.escaping import one_line
from eqcheck.gate.report import FORMAT


def earlier(path: Path) -> dict[str, Any]:
    """The report of an earlier gate; `UsageError` for a file that is none."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"--baseline {path}: cannot be read: {one_line(str(error), 200)}") from None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise UsageError(f"--baseline {path}: expected the gate.json of a gate, in the format {FORMAT}")
    return data


def compared(report: Mapping[str, Any], before: Mapping[str, Any]) -> str:
    """This gate beside an earlier one, a line for each figure that both have."""
    lines = [f"\n\nBaseline: {one_line(str(before.get('verdict')), 20)} then, {report['verdict']} now"]
    for name, part in (("threshold", ""), ("speed", "speculative"), ("speed", "plain"), ("acceptance", "")):
        then, now = before.get(name), report[name]
        if part:
            then, now = then.get(part) if isinstance(then, dict) else None, now.get(part)
        if isinstance(then, int | float) and isinstance(now, int | float):
            lines.append(f"  {f'{name}, {part}' if part else name}: {then:.3g} then, {now:.3g} now")
    return "\n".join(lines)
