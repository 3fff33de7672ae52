"""Case files: one case on disk, with the violation it showed. Every file is written whole or not at all."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shlex
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, TypeAlias

from msgspec import Meta

from eqcheck import __version__
from eqcheck.contract import registry
from eqcheck.contract.architectures import is_own, parsed
from eqcheck.contract.errors import UsageError, one_line, printable
from eqcheck.contract.fields import check, plain, read
from eqcheck.contract.profiles import CASE_TIMEOUT, FILE_BYTES, FILE_DIGITS, FILE_LEVELS, FILE_LINE, MEMORY, TIMEOUTS
from eqcheck.core.case.engine import EngineCase
from eqcheck.core.case.record import AnyCase, Case
from eqcheck.core.case.sampling import SampledCase, SampledEngineCase
from eqcheck.core.explanation.text import render
from eqcheck.core.result.findings import Audit, Finding

Line = Annotated[str, Meta(max_length=FILE_LINE)]
Seconds = Annotated[float, Meta(ge=TIMEOUTS[0], le=TIMEOUTS[1], extra={"is": "{:g} to {:g} seconds".format(*TIMEOUTS)})]
Bytes = Annotated[int, Meta(ge=MEMORY[0], le=MEMORY[1], extra={"is": "{} to {:g} bytes".format(*MEMORY)})]
VIOLATION_FORMAT = "eqcheck-violation/1"
_CASES: dict[str, type[AnyCase]] = {kind.format: kind for kind in (Case, EngineCase, SampledCase, SampledEngineCase)}
TEMPORARY = ".tmp"


@dataclass(frozen=True)
class StoredViolation:
    """The content of a case file: case, adapter that it broke, fingerprint then (None for a bare case), and limits.

    ``isolated``: it was run in a worker process that was given ``case_memory`` bytes. ``minimised`` is False where an
    audit ended before it could shrink the case.
    """

    case: AnyCase
    adapter: Line | None = None
    fingerprint: Line | None = None
    case_timeout: Seconds = CASE_TIMEOUT
    isolated: bool = False
    case_memory: Bytes | None = None
    minimised: bool = True
    explanation: str = ""

    def to_json(self) -> str:
        """The file's content; the inverse of `read_case`."""
        data = plain(self) | {"case_timeout": max(self.case_timeout, TIMEOUTS[0])}
        last = {name: data.pop(name) for name in ("case", "explanation")}
        return json.dumps({"format": VIOLATION_FORMAT, "eqcheck": __version__, **data, **last}, indent=1) + "\n"


def _lines(stored: StoredViolation) -> Iterator[str]:
    for name in ("adapter", "fingerprint"):
        text = getattr(stored, name) or ""
        if text != printable(text) or "\n" in text:
            yield f"{name}: expected one line of printable text, got {text!r}"


def read_case(path: Path) -> StoredViolation:
    """Read a case file, or a bare case; `UsageError` says in one line which file and what is wrong with it.

    A file may come from anyone: what is read is small, names fields that exist, and holds numbers that a case may have.
    """
    try:
        return _stored(read_json(path))
    except UsageError as error:
        raise UsageError(f"case file {path}: {one_line(str(error))}") from error


def stored_violation(audit: Audit, finding: Finding, name: str) -> StoredViolation:
    """A finding as its case file tells it, under the fingerprint ``name``."""
    decoder, options = audit.decoder, audit.options
    return StoredViolation(
        case=finding.case,
        adapter=decoder.spec or decoder.name,
        fingerprint=name,
        case_timeout=options.case_timeout,
        isolated=options.isolate or finding.case.lane.startswith("engine"),
        case_memory=options.case_memory if options.isolate else None,
        minimised=finding.minimised,
        explanation=render(finding.explanation),
    )


def target_of(case: AnyCase) -> str:
    """The model of the user's that a case is decoded on, ``package.module:Class`` or a folder; empty for any other."""
    own = parsed(case.family)
    return own.architecture if own and is_own(own.architecture) else ""


def command(path: Path, adapter: str = "", target: str = "") -> str:
    """Return how to replay a case file. The user's own code is named: a file alone does not say what is run or read.

    >>> command(Path("case.json"), "eqspec"), command(Path("case.json"), "mine.py:fast")
    ('eqcheck replay case.json', 'eqcheck replay case.json --adapter mine.py:fast')
    """
    words = ["eqcheck", "replay", str(path)]
    words += ["--adapter", adapter] if registry.names_code(adapter) else []
    return shlex.join([*words, "--target", target] if target else words)


def read_json(path: Path, most_bytes: int = FILE_BYTES, levels: int = FILE_LEVELS) -> Any:
    """The data of a JSON file that is small and plain; `UsageError` says why any other is refused."""
    try:
        if not path.is_file():
            raise UsageError("expected a file" if path.exists() else "there is no such file")
        if (size := path.stat().st_size) > most_bytes:
            raise UsageError(f"expected at most {most_bytes >> 20} MB, got {-(-size >> 20)} MB")
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        raise UsageError(f"cannot read it as JSON: {error}") from error
    return _json(text, levels)


def parsed_case(text: str) -> StoredViolation:
    """The same as `read_case`, of a file's text; raises `UsageError`."""
    if len(text) > FILE_BYTES:
        raise UsageError(f"expected at most {FILE_BYTES >> 20} MB, got {-(-len(text) >> 20)} MB")
    return _stored(_json(text, FILE_LEVELS))


def _json(text: str, levels: int) -> Any:
    try:
        data = json.loads(text, parse_int=_integer, object_pairs_hook=_object)
    except UsageError:
        raise
    except RecursionError:
        raise UsageError(f"cannot read it as JSON: expected at most {levels} levels of lists within lists") from None
    except ValueError as error:
        raise UsageError(f"cannot read it as JSON: {error}") from error
    _check_plain(data, levels)
    return data


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) < len(pairs):
        (twice, count), *_ = Counter(name for name, _ in pairs).most_common()
        raise UsageError(f"expected each name once, got {twice[:40]!a} {count} times")
    return data


def _integer(text: str) -> int:
    if len(text) > FILE_DIGITS:
        raise UsageError(f"expected integers of at most {FILE_DIGITS} digits, got one of {len(text)}: {text[:10]}...")
    return int(text)


def _check_plain(data: Any, levels: int, place: _Place = ()) -> None:
    """Refuse what JSON can say and no case file means: numbers that are none, text that is none, deep nesting."""
    if isinstance(data, float) and not math.isfinite(data):
        raise UsageError(f"{_where(place)}: expected a finite number, got {data}")
    if isinstance(data, str) and not _is_text(data):
        raise UsageError(f"{_where(place)}: expected text, got a lone surrogate in {data[:40]!a}")
    if not isinstance(data, dict | list):
        return
    if place and place[2] == levels:
        raise UsageError(f"{_where(place)[:80]}: expected at most {levels} levels of lists and objects, got more")
    level = place[2] + 1 if place else 1
    for name, item in data.items() if isinstance(data, dict) else enumerate(data):
        if isinstance(name, str) and not _is_text(name):
            where = _where(place) or "file"
            raise UsageError(f"{where}: expected text, got a lone surrogate in the name {name[:40]!a}")
        if item.__class__ is not int:
            _check_plain(item, levels, (place, name, level))


_Place: TypeAlias = "tuple[()] | tuple[_Place, str | int, int]"  # the place around, the name in it, and the level


def _where(place: _Place) -> str:
    if not place:
        return ""
    around, name, _ = place
    outer = _where(around)
    if isinstance(name, int):
        return f"{outer}[{name}]"
    return f"{outer}.{one_line(name, 40)}" if outer else one_line(name, 40)


def _is_text(text: str) -> bool:
    return text.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in text)


def _stored(data: Any) -> StoredViolation:
    name = data.get("format") if isinstance(data, dict) else type(data).__name__
    if isinstance(name, str) and name in _CASES:
        return StoredViolation(case_of(data))
    if not isinstance(data, dict) or name != VIOLATION_FORMAT:
        raise UsageError(f"expected format {VIOLATION_FORMAT!r} or {Case.format!r}, got {name!r:.80}")
    for needed in ("adapter", "fingerprint"):
        if needed not in data:
            raise UsageError(f"{needed}: expected text or null, got nothing")
    said = {name: value for name, value in data.items() if name not in ("format", "eqcheck")}
    stored = read(StoredViolation, {**said, "case": case_of(data.get("case", {}))}, "")
    check(stored, (_lines,))
    return replace(stored, case_timeout=float(stored.case_timeout))


def case_of(data: Any) -> AnyCase:
    """The case that plain data holds, of whichever lane; raises `CaseError`."""
    name = data.get("format") if isinstance(data, dict) else None
    kind: type[AnyCase] = _CASES.get(name if isinstance(name, str) else "", Case)
    return kind.from_dict(data)


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
