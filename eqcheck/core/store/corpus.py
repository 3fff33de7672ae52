"""The corpus: cases that broke a decoder once, kept in ``.eqcheck/`` and run first by its next audit.

``.eqcheck/1/<decoder>/<fingerprint>.json``, each a case file; those of families that the decoder did not claim
lie in ``unclaimed/``. There is no index, and every file is written whole, so several audits may share a corpus and any
may be killed. No case is ever deleted; a file that cannot be read is left as it is.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any

from eqcheck.contract.errors import UsageError, one_line
from eqcheck.contract.extras import missing
from eqcheck.contract.profiles import FILE_BYTES
from eqcheck.core.store.casefile import TEMPORARY, StoredViolation, file_stem, parsed_case, read_case, write_whole

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
        stored: dict[Path, StoredViolation] = {}
        for path in sorted([*self.folder.glob("*.json"), *self.folder.glob("unclaimed/*.json")]):
            if path.name.startswith("."):
                continue
            try:
                stored[path] = read_case(path)
            except UsageError as error:
                self.warnings.append(f"corpus: {error}; the file is left as it is")
                self._retired.add(path)
        self._sweep()
        return stored

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
        """The stored cases that can be read, as text by name, for another machine."""
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


def kept(violation: StoredViolation, decoder: str, root: Path = Path(".eqcheck")) -> Path:
    """Write a case that a test found to the decoder's folder of the corpus; to a temporary one if that cannot be."""
    name = f"{file_stem(violation.fingerprint or violation.case.lane)}-{violation.case.id}.json"
    folder = Corpus(root, decoder).folder
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / name, violation.to_json())
    except OSError:
        folder = Path(mkdtemp(prefix="eqcheck-"))
        write_whole(folder / name, violation.to_json())
    return folder / name


def _better(new: StoredViolation, old: StoredViolation) -> bool:
    return _size(new) < _size(old)


def _size(violation: StoredViolation) -> tuple[bool, int]:
    """Minimised first, then small."""
    return not violation.minimised, len(json.dumps(violation.case.to_dict()))


@contextmanager
def shared_corpus(place: str) -> Iterator[Path]:
    """A folder here that holds a corpus of several machines; raises `UsageError` where the place cannot be reached.

        with shared_corpus("s3://bucket/eqcheck") as folder: ...

    The place is a folder, or a URL that `fsspec` reaches: its cases are copied here first, and new ones are copied back
    at the end, file by file. No case is ever deleted, and a smaller case of a fingerprint takes the place of a larger.
    """
    if "://" not in place:
        yield Path(place)
        return
    with TemporaryDirectory(prefix="eqcheck-corpus-") as temporary:
        folder = Path(temporary)
        files, root = _reached(place)
        try:
            had = _copied_here(files, root, folder)
        except Exception as error:
            raise _unreachable(place, error) from error
        try:
            yield folder
        finally:
            _copied_back(files, root, folder, had, place)


def _reached(place: str) -> tuple[Any, str]:
    try:
        from fsspec.core import url_to_fs
    except ImportError:
        raise missing("fsspec", "--corpus: a URL") from None
    try:
        files, root = url_to_fs(place)
        return files, str(root)
    except Exception as error:  # whatever the library of that protocol raises, or that there is none
        raise _unreachable(place, error) from error


def _unreachable(place: str, error: Exception) -> UsageError:
    why = one_line(f"{type(error).__name__}: {error}", 300)
    return UsageError(f"--corpus {place}: expected a folder, or a URL that fsspec reaches; {why}")


def _copied_here(files: Any, root: str, folder: Path) -> dict[Path, bytes]:
    """Copy files that are no larger than case files; their content by their paths here."""
    had: dict[Path, bytes] = {}
    for name, about in files.find(f"{root}/{VERSION}", detail=True).items():
        parts = PurePosixPath(name[name.rindex(f"/{VERSION}/") + 1 :]).parts
        if name.endswith(".json") and len(parts) in (3, 4) and about.get("size", 0) <= FILE_BYTES and ".." not in parts:
            path = folder.joinpath(*parts)
            path.parent.mkdir(parents=True, exist_ok=True)
            had[path] = files.cat_file(name)
            path.write_bytes(had[path])
    return had


def _copied_back(files: Any, root: str, folder: Path, had: dict[Path, bytes], place: str) -> None:
    for path in folder.glob(f"{VERSION}/**/*.json"):
        content = path.read_bytes()
        if had.get(path) == content:
            continue
        name = f"{root}/{path.relative_to(folder).as_posix()}"
        try:
            parsed_case(content.decode())
            files.makedirs(name.rpartition("/")[0], exist_ok=True)
            files.pipe_file(name, content)
        except Exception as error:
            raise _unreachable(place, error) from error
