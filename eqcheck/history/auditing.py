"""The audits of a history: for each version an environment, an audit in it, and what is kept of them.

A version's folder has the report of its audit and ``audited.json``, written last: what was asked, and what was
installed. Where both are there and the same is asked again, the version is not audited again.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

import eqcheck
from eqcheck import report
from eqcheck.contract.errors import USAGE, UsageError
from eqcheck.contract.escaping import one_line
from eqcheck.history.environments import Environment, NotInstalled, name_of, without
from eqcheck.report.schema import Report
from eqcheck.store.casefile import write_whole

AUDITED, NOT_INSTALLED, NOT_AUDITED, PENDING = "audited", "not installed", "not audited", "not audited yet"
_KEPT, _LOG = "audited.json", "audit.log"
_HERE = Path(eqcheck.__file__).resolve().parents[1]
Say = Callable[[str], None]


@dataclass(frozen=True)
class Trial:
    """The question to every version: the same cases, drawn from one seed.

    ``by_tokens``: only the decoding is done under the version, and tokens alone are judged. Otherwise the whole audit
    runs under it.
    """

    spec: str
    decoder: str
    package: str
    cases: int
    seed: int
    by_tokens: bool
    eqcheck: str = eqcheck.__version__


@dataclass(frozen=True)
class Release:
    """One version: what was installed and what its audit found, or why there is no audit.

    ``causes`` counts the drawn cases by fingerprint; ``known`` has the links that the adapter declares.
    """

    version: str
    status: str
    reason: str = ""
    installed: tuple[str, ...] = ()
    verdict: str = ""
    run: int = 0
    equivalent: int = 0
    declined: int = 0
    causes: dict[str, int] = field(default_factory=dict)
    meanings: dict[str, str] = field(default_factory=dict)
    known: dict[str, str] = field(default_factory=dict)
    elapsed_s: float = 0.0


@dataclass(frozen=True)
class _Kept:
    asked: Trial
    installed: tuple[str, ...]


def columns(asked: Trial, base: str, versions: list[str], folder: Path, say: Say) -> Generator[Release, None, None]:
    """Audit each version on top of the environment of the Python ``base``; a column each, as soon as it is there.

    Raises `UsageError` where ``base`` does not have the package, or the folder cannot be written.
    """
    left_out: frozenset[str] | None = None
    for version in versions:
        kept = read(asked, version, folder / version)
        if kept is not None:
            say(f"{asked.package} {version}: audited before")
            yield kept
            continue
        if left_out is None:
            left_out = _left_out(asked, base)
        yield _audited(asked, base, version, folder / version, left_out, say)


def read(asked: Trial, version: str, folder: Path) -> Release | None:
    """The column of a version whose audit is kept in its folder; None where there is none of what is asked."""
    try:
        kept = msgspec.json.decode((folder / _KEPT).read_bytes(), type=_Kept)
        found = report.load(folder / asked.decoder)
    except (OSError, msgspec.DecodeError, UsageError):
        return None
    return None if kept.asked != asked or found.interrupted else _column(version, kept.installed, found)


def _left_out(asked: Trial, base: str) -> frozenset[str]:
    """Requirements of the package that the environment below lacks (say, GPU packages)."""
    with Environment(base) as below:
        there = below.installed(asked.package)
        if not there:
            raise UsageError(
                f"package {asked.package!r}: expected one that {base} has, so that nothing unknown is installed; "
                "install it there, or name another one with --package"
            )
        try:
            return frozenset(map(name_of, below.resolve(asked.package, there).pins))
        except NotInstalled:
            return frozenset()


def _audited(asked: Trial, base: str, version: str, folder: Path, left_out: frozenset[str], say: Say) -> Release:
    folders = () if asked.by_tokens else (str(_HERE),)
    installed: tuple[str, ...] = ()
    try:
        with Environment(base, folders) as environment:
            pins = without(environment.resolve(asked.package, version), left_out)
            say(str(pins))
            environment.install(pins)
            installed = pins.pins
            folder.mkdir(parents=True, exist_ok=True)
            (folder / _KEPT).unlink(missing_ok=True)
            reason = _audit(asked, environment, folder)
    except NotInstalled as error:
        say(f"{asked.package} {version}: {NOT_INSTALLED}: {error}")
        return Release(version, NOT_INSTALLED, str(error))
    except OSError as error:
        raise UsageError(f"--out {folder}: cannot write there: {error}") from error
    if reason:
        say(f"{asked.package} {version}: {NOT_AUDITED}: {reason}")
        return Release(version, NOT_AUDITED, reason, installed)
    write_whole(folder / _KEPT, msgspec.json.encode(_Kept(asked, installed)).decode() + "\n")
    column = _column(version, installed, report.load(folder / asked.decoder))
    found = ", ".join(f"{name} {count}" for name, count in column.causes.items())
    say(f"{asked.package} {version}: {column.verdict}, {column.run} cases{found and ': '}{found}")
    return column


def _audit(asked: Trial, environment: Environment, folder: Path) -> str:
    """Audit into the folder; the reason where that cannot be done, otherwise nothing."""
    python = sys.executable if asked.by_tokens else environment.python
    command = [python, "-m", "eqcheck.cli", "audit", "--json", "--no-corpus", f"--adapter={asked.spec}"]
    command += [f"--cases={asked.cases}", f"--seed={asked.seed}", f"--out={folder}"]
    command += [f"--python={environment.python}"] if asked.by_tokens else []
    with (folder / _LOG).open("w+", errors="replace") as log:
        done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=log, check=False)
        log.seek(0)
        said = log.read().replace(f"{Path(environment.python).parents[1]}/", "")
    if done.returncode < 0 or done.returncode in (3, USAGE):
        return _last_words(said) or f"the audit ended with {done.returncode}"
    audit = report.load(folder / asked.decoder)
    if audit.interrupted:
        raise KeyboardInterrupt
    if not audit.cases.run:
        return one_line(f"every case was declined: {next(iter(audit.declined), 'no case was drawn')}")
    return ""


def _last_words(said: str) -> str:
    """A command's words on its failure: the text after ``eqcheck:``, or the exception before an internal error."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    own = [index for index, line in enumerate(lines) if line.startswith("eqcheck: ")]
    if not own:
        return one_line(" ".join(lines[-1:]), 400)
    at = own[-1]
    if lines[at].startswith("eqcheck: internal error") and at:
        return one_line(lines[at - 1], 400)
    return one_line(" ".join(lines[at:]).removeprefix("eqcheck: "), 400)


def _column(version: str, installed: tuple[str, ...], audit: Report) -> Release:
    violations = audit.violations
    return Release(
        version,
        AUDITED,
        "",
        installed,
        audit.verdict,
        audit.cases.run,
        audit.cases.equivalent + audit.cases.tie,
        audit.cases.skipped,
        {one.fingerprint: one.count for one in violations},
        {one.fingerprint: one.cause.meaning for one in violations},
        {one.fingerprint: one.known for one in violations if one.known},
        audit.elapsed_s,
    )
