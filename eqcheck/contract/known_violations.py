"""``known.toml``: violations that are known for now, each with a link, and a day after which it fails again.

[[violation]]
fingerprint = "bookkeeping/past-eos"
decoder = "mine"                      # may be left out: any decoder
link = "https://github.com/me/mine/issues/12"
until = 2027-03-31                    # the last day on which it passes
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from pathlib import Path
from typing import Any

from eqcheck.contract.decoders import Decoder
from eqcheck.contract.errors import UsageError, did_you_mean, one_line
from eqcheck.contract.kinds import FINGERPRINTS

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_FIELDS = ("fingerprint", "decoder", "link", "until")
_MOST_BYTES = 2**20


@dataclass(frozen=True)
class Known:
    """A violation that passes up to the day ``until``; ``decoder`` is empty where it does of any."""

    fingerprint: str
    link: str
    until: date
    decoder: str = ""

    def of(self, decoder: str) -> bool:
        return self.decoder in ("", decoder)

    def outdated(self, today: date, cases: str | None = None) -> str:
        """Return why the entry is to be renewed or taken out; empty where it stands.

        ``cases`` are those in which the violation did not occur, in words; empty where it did, None where
        nobody looked.

        >>> entry = Known("mask/window", "https://example.org/1", date(2027, 3, 31))
        >>> entry.outdated(date(2027, 3, 31), ""), entry.outdated(date(2027, 4, 1), "")[-24:]
        ('', 'day, 2027-03-31, is past')
        """
        about, day = f"listed as known, {self.fingerprint} ({self.link})", f"its last day, {self.until}, is past"
        past = self.until < today
        if cases:
            both = f", and {day}: take the entry out" if past else "; if it is gone, take the entry out"
            return f"{about}: did not occur in {cases}{both}"
        return f"{about}: {'' if cases is None else 'fails again, for '}{day}" if past else ""


def load(path: Path) -> tuple[Known, ...]:
    """The entries of a file; raises `UsageError`, which says what is wrong in which entry."""
    where = f"known violations, {path}"
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise UsageError(f"{where}: expected at most {_MOST_BYTES} bytes")
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{where}: cannot be read: {error.strerror or error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"{where}: not TOML: {one_line(str(error))}") from error
    tables = data.get("violation", [])
    shaped = isinstance(tables, list) and all(isinstance(table, dict) for table in tables)
    if set(data) - {"violation"} or not shaped:
        raise UsageError(f"{where}: expected tables [[violation]] and nothing else, got {_named(data)}")
    entries = tuple(_entry(table, f"{where}: violation {number}") for number, table in enumerate(tables, start=1))
    for number, table in enumerate(entries):
        if any(table.fingerprint == other.fingerprint and table.decoder == other.decoder for other in entries[:number]):
            raise UsageError(f"{where}: {table.fingerprint} is listed twice for the same decoder; keep one entry")
    return entries


def passing(entries: Iterable[Known], decoders: Iterable[Decoder], today: date) -> dict[str, set[str]]:
    """The fingerprints that are known and pass, of each decoder by name: it declares them, or an entry lists them."""
    listed = [entry for entry in entries if entry.until >= today]
    return {one.name: {*one.known, *(e.fingerprint for e in listed if e.of(one.name))} for one in decoders}


def older(decoders: Iterable[Decoder], shipped: Iterable[str]) -> str:
    """A remark on decoders of the user's that declare what is known in code; empty where none does."""
    named = ", ".join(one.name for one in decoders if one.known and one.name not in {*shipped})
    return f"{named}: known= is the older way and still read; write known.toml (docs/ci.md)" if named else ""


def in_ci() -> bool:
    """Return whether this runs in continuous integration, by the variable ``CI`` that every service sets."""
    return os.environ.get("CI", "").lower() not in ("", "0", "false")


def unheard(entries: Sequence[Known], decoders: Sequence[str]) -> str:
    """A remark on entries that name a decoder which is not audited; empty where there are none.

    >>> unheard([Known("mask/window", "https://example.org/1", date(2027, 3, 31), "mien")], ["mine"])
    "has entries of decoders that are not audited here: 'mien'; did you mean 'mine'?"
    """
    strangers = dict.fromkeys(one.decoder for one in entries if one.decoder not in ("", *decoders))
    named = ", ".join(repr(name) + did_you_mean(name, decoders) for name in strangers)
    return one_line(f"has entries of decoders that are not audited here: {named}", 300) if named else ""


def _entry(table: dict[str, Any], where: str) -> Known:
    for name in table:
        if name not in _FIELDS:
            near = did_you_mean(name, _FIELDS) or "."
            raise UsageError(f"{where}: unknown field {one_line(name)!r}{near} Known: {', '.join(_FIELDS)}")
    fingerprint, link, until = table.get("fingerprint"), table.get("link"), table.get("until")
    if not isinstance(fingerprint, str) or fingerprint.partition(":")[0] not in FINGERPRINTS:
        near = did_you_mean(str(fingerprint), FINGERPRINTS) or "."
        got = one_line(f"{fingerprint!r}", 100)
        raise UsageError(f"{where}: expected a fingerprint such as 'mask/window', got {got}{near} See `eqcheck kinds`")
    where = f"{where} ({one_line(fingerprint, 100)})"
    if not isinstance(link, str) or not re.fullmatch(r"https?://[!-~]+", link):
        raise UsageError(
            f"{where}: expected a link, 'https://...', got {one_line(repr(link), 100) if link is not None else 'none'}"
        )
    if not isinstance(until, date) or isinstance(until, datetime):
        raise UsageError(f"{where}: expected until = a date such as 2027-03-31, without quotes, got {until!r:.100}")
    decoder = table.get("decoder", "")
    if not isinstance(decoder, str) or not decoder.isprintable():
        raise UsageError(f"{where}: expected the name of a decoder, got {decoder!r:.100}")
    return Known(fingerprint, link, until, decoder)


def _named(data: dict[str, Any]) -> str:
    return one_line(", ".join(data) or "nothing", 100)
