"""A corpus that several machines share: a folder, or whatever `fsspec` reaches by a URL.

    with shared_corpus("s3://bucket/eqcheck") as folder: ...

What lies at a URL is copied here first, and what was stored here in the meantime is copied back at the end, file by
file: no case is ever deleted, and a smaller case of a fingerprint takes the place of a larger one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any

from eqcheck.contract.errors import UsageError
from eqcheck.contract.escaping import one_line
from eqcheck.contract.limits import FILE_BYTES
from eqcheck.store.casefile import parsed_case
from eqcheck.store.corpus import VERSION


@contextmanager
def shared_corpus(place: str) -> Iterator[Path]:
    """A folder here that holds the corpus; raises `UsageError` where the place cannot be reached."""
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
        raise UsageError("--corpus: a URL needs fsspec: pip install 'eqcheck[ray]'") from None
    try:
        found: tuple[Any, str] = url_to_fs(place)
        return found
    except Exception as error:  # whatever the library of that protocol raises, or that there is none
        raise _unreachable(place, error) from error


def _unreachable(place: str, error: Exception) -> UsageError:
    why = one_line(f"{type(error).__name__}: {error}", 300)
    return UsageError(f"--corpus {place}: expected a folder, or a URL that fsspec reaches; {why}")


def _copied_here(files: Any, root: str, folder: Path) -> dict[Path, bytes]:
    """Copy what looks like a case file, and is not too large to be one; its content by its path here."""
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
