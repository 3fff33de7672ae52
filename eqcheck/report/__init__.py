"""The reports of audits: data for programs, and text for readers.

    eqcheck.report.load(path).verdict

schema: the data; build: from an audit to the data; content: its words and counts
markdown, terminal, page: its layouts
"""

from __future__ import annotations

import gc
import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from eqcheck.report.schema import Report

# Reports of earlier releases name the lanes of engines after the checkpoints that engines load.
FORMER_LANES = {"checkpoint": "engine", "checkpoint-sampling": "engine-sampling"}


def load(path: str | Path) -> Report:
    """Read a ``report.json``, or the one in a folder.

    Raises `eqcheck.contract.errors.UsageError` if the file is not a report in this version's format.

    >>> load("reports/showcase/bsp").violations[0].fingerprint
    'position/query-position'
    """
    import msgspec

    from eqcheck.audit.lanes import LANES
    from eqcheck.contract.errors import UsageError, one_line
    from eqcheck.contract.profiles import REPORT_BYTES, REPORT_LEVELS
    from eqcheck.core.store.casefile import read_json
    from eqcheck.report.schema import FORMAT, from_builtins

    again, collecting = "audit the decoder again with this eqcheck", gc.isenabled()
    file = Path(path)
    file = file / "report.json" if file.is_dir() else file
    gc.disable()  # it would look for garbage again and again among millions of objects that all live
    try:
        data = read_json(file, REPORT_BYTES, REPORT_LEVELS)
        got = data.get("format") if isinstance(data, dict) else None
        if got != FORMAT:
            newer = re.fullmatch(r"eqcheck-report/([3-9]|[1-9]\d+)", str(got))
            instead = "read it with the newer eqcheck that wrote it, or " if newer else ""
            raise UsageError(f"expected format {FORMAT!r}, got {got!r}; {instead}{again}")
        if isinstance(data.get("lane"), str):
            data["lane"] = FORMER_LANES.get(data["lane"], data["lane"])
        report = from_builtins(data)
        if report.lane not in LANES:
            raise UsageError(f"lane: expected one of {tuple(LANES)}, got {report.lane!r:.80}")
        return report
    except (UsageError, msgspec.ValidationError) as error:
        said = one_line(str(error))
        raise UsageError(f"report {file}: {said}{'' if again in said else f'; {again}'}") from error
    finally:
        if collecting:
            gc.enable()
