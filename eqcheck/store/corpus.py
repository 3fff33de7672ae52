"""The corpus: cases that broke a decoder once, kept in ``.eqcheck/`` and run first by its next audit.

``.eqcheck/1/<decoder>/<fingerprint>.json``, each a case file; those of families that the decoder did not claim
lie in ``unclaimed/``. There is no index, and every file is written whole, so several audits may share a corpus and any
may be killed. No case is ever deleted; a file that cannot be read is left as it is.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from pathlib import Path

from eqcheck.contract.errors import UsageError
from eqcheck.store.casefile import TEMPORARY, StoredViolation, file_stem, parsed_case, read_case, write_whole

VERSION = "1"
_STALE_AFTER_S = 3600.0  # a write takes milliseconds; what is older was left by an audit that was killed


@dataclass
class Corpus:
    """The stored cases of one decoder under ``root`` (the folder ``.eqcheck``)."""

    root: Path
    decoder: str
    warnings: list[str] = field(default_factory=list)
    _own: dict[Path, Path] = field(default_factory=dict)
    _retired: set[Path] = field(default_factory=set)

    @property
    def folder(self) -> Path:
        return self.root / VERSION / file_stem(self.decoder)

    def load(self) -> dict[Path, StoredViolation]:
        """Every stored case by its file; a file that cannot be read is named in ``warnings``."""
        found: dict[Path, StoredViolation] = {}
        for path in sorted([*self.folder.glob("*.json"), *self.folder.glob("unclaimed/*.json")]):
            if path.name.startswith("."):
                continue
            try:
                found[path] = read_case(path)
            except UsageError as error:
                self.warnings.append(f"corpus: {error}; the file is left as it is")
                self._retired.add(path)
        self._sweep()
        return found

    def retire(self, path: Path) -> None:
        """A stored case that no longer fails as it did: it stays, and a new case of its fingerprint goes beside it."""
        self._retired.add(path)

    def store(self, violation: StoredViolation, claimed: bool) -> None:
        """Keep a case as that of its fingerprint, unless the one that is there is as good or better."""
        folder = self.folder if claimed else self.folder / "unclaimed"
        stem = file_stem(str(violation.fingerprint))
        plain = folder / f"{stem}.json"
        path = self._own.get(plain, plain)
        if path in self._retired:
            path = folder / f"{stem}~{violation.case.id}.json"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            old = read_case(path) if path.exists() else None
            if old and (old.case.lane, old.case.checkpoint) != (violation.case.lane, violation.case.checkpoint):
                path = folder / f"{stem}~{violation.case.id}.json"
            elif old and not _better(violation, old):
                return
            write_whole(path, violation.to_json())
        except OSError as error:  # the same for every case: the loop says it once
            self.warnings.append(f"corpus: new cases could not be stored in {self.folder}: {error.strerror or error}")
            return
        except UsageError as error:
            self.warnings.append(f"corpus: {violation.fingerprint} could not be stored: {error}")
            return
        self._own[plain] = path

    def files(self) -> dict[str, str]:
        """What can be read of the stored cases, as text by name, for another machine."""
        return {path.relative_to(self.folder).as_posix(): path.read_text(encoding="utf-8") for path in self.load()}

    def take(self, name: str, text: str) -> None:
        """Keep a case file of another corpus of this decoder, unless the one that is here is as good or better."""
        folder = self.folder / "unclaimed" if name.startswith("unclaimed/") else self.folder
        path = folder / Path(name).name
        try:
            folder.mkdir(parents=True, exist_ok=True)
            new = parsed_case(text)
            if not path.exists() or _better(new, read_case(path)):
                write_whole(path, text)
        except (OSError, UsageError) as error:
            self.warnings.append(f"corpus: {path.name} could not be stored: {error}")

    def _sweep(self) -> None:
        """Remove the temporary files of audits that were killed long ago."""
        for path in self.folder.rglob(f".*{TEMPORARY}"):
            try:
                if time.time() - path.stat().st_mtime > _STALE_AFTER_S:
                    path.unlink()
            except OSError:
                continue  # another audit was faster


def _better(new: StoredViolation, old: StoredViolation) -> bool:
    return _size(new) < _size(old)


def _size(violation: StoredViolation) -> tuple[bool, int]:
    """Minimised first, then small."""
    return not violation.minimised, len(json.dumps(violation.case.to_dict()))
