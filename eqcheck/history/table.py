"""A history as data (`eqcheck-history/1`) and as Markdown: a row for each cause, a column for each version."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
from tabulate import tabulate

from eqcheck.contract.escaping import cleaned, code, inline
from eqcheck.history.auditing import AUDITED, Release, Trial
from eqcheck.store.casefile import write_whole

FORMAT: Final = "eqcheck-history/1"
NONE = "·"
_FEW = 0.8  # of the cases of the version beside it


@dataclass(frozen=True)
class CauseChange:
    """A cause that is there in one of two neighbours and not in the other; ``doubts`` are reasons to look again."""

    fingerprint: str
    change: Literal["appeared", "vanished"]
    version: str
    before: str
    doubts: tuple[str, ...]


@dataclass(frozen=True)
class VersionTable:
    """The question, a column for each version, and the versions at which causes appeared or vanished."""

    format: Literal["eqcheck-history/1"]
    asked: Trial
    versions: tuple[Release, ...]
    changes: tuple[CauseChange, ...]


def history(asked: Trial, columns: list[Release]) -> VersionTable:
    """The history of columns in the order of their versions; its texts can be printed."""
    plain = cleaned(msgspec.to_builtins(columns))
    whole = msgspec.convert(plain, tuple[Release, ...])
    return VersionTable(FORMAT, asked, whole, tuple(changes(whole)))


def fingerprints(columns: tuple[Release, ...]) -> list[str]:
    """The causes of all versions, in the order in which they are seen."""
    return list(dict.fromkeys(name for column in columns for name in column.causes))


def changes(columns: tuple[Release, ...]) -> list[CauseChange]:
    """Where a cause is seen in one version and not in the one audited before it, or the other way round."""
    audited = [column for column in columns if column.status == AUDITED]
    changes: list[CauseChange] = []
    for name in fingerprints(columns):
        for before, after in pairwise(audited):
            if (name in before.causes) == (name in after.causes):
                continue
            shows, lacks = (after, before) if name in after.causes else (before, after)
            change: Literal["appeared", "vanished"] = "appeared" if shows is after else "vanished"
            doubts = tuple(_doubts(columns, before, after, shows, lacks))
            changes.append(CauseChange(name, change, after.version, before.version, doubts))
    return changes


def _doubts(
    columns: tuple[Release, ...],
    before: Release,
    after: Release,
    shows: Release,
    lacks: Release,
) -> list[str]:
    """Other reasons why a cause shows in one version and not in its neighbour."""
    hiding = [name for name in lacks.causes if name not in shows.causes]
    doubts = [f"it may hide behind {', '.join(map(code, hiding))} in {lacks.version}"] if hiding else []
    if lacks.run < _FEW * shows.run:
        doubts.append(f"{lacks.version} ran {lacks.run} cases, {shows.version} ran {shows.run}")
    order = [column.version for column in columns]
    between = columns[order.index(before.version) + 1 : order.index(after.version)]
    if between:
        doubts.append(f"no audit of {', '.join(column.version for column in between)} between them")
    return doubts


def write(past: VersionTable, folder: Path) -> None:
    """Write ``history.json`` and ``history.md`` into the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    data: dict[str, Any] = msgspec.to_builtins(past)
    write_whole(folder / "history.json", json.dumps(data, indent=1) + "\n")
    write_whole(folder / "history.md", to_markdown(past))


def to_markdown(past: VersionTable) -> str:
    """The history for a reader."""
    asked, audited = past.asked, [column for column in past.versions if column.status == AUDITED]
    where = (
        "Only the decoding ran under each version; its tokens were judged under one and the same eqcheck and target."
        if asked.by_tokens
        else "The whole audit ran under each version."
    )
    lines = [
        f"# {inline(asked.decoder)}: a history over versions of {inline(asked.package)}",
        "",
        f"{len(audited)} of {len(past.versions)} versions audited, {asked.cases} cases from seed {asked.seed} in each "
        f"lane, eqcheck {asked.eqcheck}. {where}",
        "",
        *_changes(past),
        *_table(past, audited),
        *_without(past),
        *_installed(audited),
    ]
    return "\n".join(lines)


def _changes(past: VersionTable) -> list[str]:
    lines = ["## What changed", ""]
    for change in past.changes:
        doubts = f" But {'; and '.join(change.doubts)}." if change.doubts else ""
        seen = "does not show it" if change.change == "appeared" else "shows it"
        told = f"{code(change.fingerprint)} {change.change} in {change.version}; {change.before} {seen}."
        lines.append(f"- {told}{doubts}")
    audited = [column for column in past.versions if column.status == AUDITED]
    changed = {change.fingerprint for change in past.changes}
    lines += [
        f"- {code(name)} is in every audited version." for name in fingerprints(past.versions) if name not in changed
    ]
    if audited and not any(column.causes for column in audited):
        lines.append("- No audited version shows a violation.")
    return [*lines, ""] if len(lines) > 2 else []


def _table(past: VersionTable, audited: list[Release]) -> list[str]:
    if not past.versions:
        return []
    rows: list[list[str]] = [
        [_cell(code(name)), *(_count(column, name) for column in past.versions)] for name in fingerprints(past.versions)
    ]
    for title, text in (("verdict", "verdict"), ("cases that ran", "run"), ("cases declined", "declined")):
        rows.append([title, *(str(getattr(c, text)) if c.status == AUDITED else "-" for c in past.versions)])
    table = tabulate(
        rows,
        headers=["cause", *(column.version for column in past.versions)],
        tablefmt="github",
        disable_numparse=True,
    )
    meanings = {name: text for column in audited for name, text in column.meanings.items()}
    known = {name: link for column in audited for name, link in column.known.items()}
    notes = [
        f"- {code(name)}: {inline(text)}" + (f" Known: {inline(known[name])}" if name in known else "")
        for name, text in meanings.items()
    ]
    return [
        "## Causes by version",
        "",
        table,
        "",
        f"A number counts the cases that show a cause; {NONE} means that none of them did; - means no audit. A case "
        "counts with the first cause that it shows, so one cause can hide behind another. The cases are drawn from one "
        "seed, so they are the same for every version that takes them. A cause that needs rarer cases can be missed.",
        "",
        *notes,
        *([""] if notes else []),
    ]


def _count(column: Release, name: str) -> str:
    return "-" if column.status != AUDITED else str(column.causes.get(name, NONE))


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _without(found: VersionTable) -> list[str]:
    missing = [column for column in found.versions if column.status != AUDITED]
    if not missing:
        return []
    lines = [f"- {column.version}: {column.status}. {inline(column.reason)}".rstrip() for column in missing]
    return ["## Versions without an audit", "", *lines, ""]


def _installed(audited: list[Release]) -> list[str]:
    if not audited:
        return []
    lines = [f"- {c.version}: {inline(', '.join(c.installed)) or 'what was there already'}" for c in audited]
    return ["## What was installed", "", *lines, ""]
