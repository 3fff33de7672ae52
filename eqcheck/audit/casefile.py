"""Case files: one case on disk, with the violation it showed. Every file is written whole or not at all."""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eqcheck import __version__
from eqcheck.blackbox.case import ENGINE_CASE_FORMAT, EngineCase
from eqcheck.case import CASE_FORMAT, Case
from eqcheck.errors import UsageError

VIOLATION_FORMAT = "eqcheck-violation/1"
TEMPORARY = ".tmp"


@dataclass(frozen=True)
class StoredViolation:
    """What a case file says: the case, the adapter it broke, the fingerprint then (None for a bare case), the limits.

    ``isolated``: it was run in a worker process that was given ``case_memory`` bytes. ``minimised`` is False where an
    audit ended before it could shrink the case.
    """

    case: Case | EngineCase
    adapter: str | None = None
    fingerprint: str | None = None
    case_timeout: float = 60.0
    isolated: bool = False
    case_memory: int | None = None
    minimised: bool = True
    explanation: str = ""

    def to_json(self) -> str:
        """The file's content; the inverse of `read_case`."""
        data = {
            "format": VIOLATION_FORMAT,
            "eqcheck": __version__,
            "adapter": self.adapter,
            "fingerprint": self.fingerprint,
            "case_timeout": self.case_timeout,
            "isolated": self.isolated,
            "case_memory": self.case_memory,
            "minimised": self.minimised,
            "case": self.case.to_dict(),
            "explanation": self.explanation,
        }
        return json.dumps(data, indent=1) + "\n"


def read_case(path: Path) -> StoredViolation:
    """Read a case file, or a bare case; `UsageError` says which file and what is wrong with it."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(f"case file {path}: there is no such file") from None
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"case file {path}: cannot read it as JSON: {error}") from error
    try:
        return _stored(data)
    except UsageError as error:
        raise UsageError(f"case file {path}: {error}") from error


def _stored(data: Any) -> StoredViolation:
    if isinstance(data, dict) and data.get("format") in (CASE_FORMAT, ENGINE_CASE_FORMAT):
        return StoredViolation(_case(data))
    if not isinstance(data, dict) or data.get("format") != VIOLATION_FORMAT:
        got = data.get("format") if isinstance(data, dict) else type(data).__name__
        raise UsageError(f"expected format {VIOLATION_FORMAT!r} or {CASE_FORMAT!r}, got {got!r}")
    return StoredViolation(
        case=_case(data.get("case", {})),
        adapter=_field(data, "adapter", str),
        fingerprint=_field(data, "fingerprint", str),
        case_timeout=float(_field(data, "case_timeout", (int, float), 60.0)),
        isolated=_field(data, "isolated", bool, False),
        case_memory=_field(data, "case_memory", (int, type(None)), None),
        minimised=_field(data, "minimised", bool, True),
        explanation=_field(data, "explanation", str, ""),
    )


def _case(data: Any) -> Case | EngineCase:
    engine = isinstance(data, dict) and data.get("format") == ENGINE_CASE_FORMAT
    return EngineCase.from_dict(data) if engine else Case.from_dict(data)


def _field(data: Mapping[str, Any], name: str, kind: Any, default: Any = ...) -> Any:
    value = data.get(name, default)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        kinds = kind if isinstance(kind, tuple) else (kind,)
        got = "nothing" if value is ... else repr(value)
        raise UsageError(f"{name}: expected {' or '.join(k.__name__ for k in kinds)}, got {got}")
    return value


def file_stem(name: str) -> str:
    """A fingerprint, or the name of a decoder, as the name of a file; odd and long ones end with a hash."""
    stem = re.sub(r"[^A-Za-z0-9_.-]+", "-", name.replace("/", "-").replace(":", "-")).strip("-.")
    if re.fullmatch(r"[A-Za-z0-9_./:-]{1,120}", name) and stem:
        return stem
    return f"{stem[:100]}-{hashlib.sha256(name.encode()).hexdigest()[:6]}"


def write_whole(path: Path, text: str) -> None:
    """Write a file so that at every moment, also if this process is killed, it is the old one or the new one."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:60]}.", suffix=TEMPORARY)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
