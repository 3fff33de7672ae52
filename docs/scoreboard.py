"""The page `scoreboard.md`, made from the committed reports: engine by dtype, kind of checkpoint and drafter.

python docs/scoreboard.py        after docs/issues.py: writes docs/scoreboard.md, and the table of results in README.md
"""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from issues import notes, page_of

from eqcheck import __version__
from eqcheck.construction.layouts import LAYOUTS
from eqcheck.contract.decoders import DRAFTING
from eqcheck.contract.escaping import inline
from eqcheck.explanation.layout import WHOLE, table
from eqcheck.explanation.records import many
from eqcheck.lanes.about import CHECKPOINT
from eqcheck.report import load
from eqcheck.report.schema import Report, ReportedViolation, Served

ROOT = Path(__file__).resolve().parent.parent
PAGE, README = ROOT / "docs" / "scoreboard.md", ROOT / "README.md"
DTYPES = ("float32", "float16", "bfloat16")
DRAFTERS = tuple(drafter for drafter in DRAFTING if drafter != "none")
HEAD = """# Scoreboard

`python docs/scoreboard.py` writes this page from the reports that are committed in `reports/`. A cell holds what one
audit saw: how many cases, and how many of them are wrong. "Not tried" says nothing of the engine. Where none was
wrong, [limits](limits.md) says which faults would not have shown.

A cell counts all cases that failed, those too that did not fail again in a new engine. It names a cause if a stored
case of it is from there, and links its issue, which has the script; other cells may have it, too. Seeds that are
ignored are counted beside the cases.
"""


NEEDS = """## Options and situations: wrong cases

A wrong case stands in the row of each option or setting that it needs: without that one it is right. A case that was
not made smaller stands in the row of each that it has. A switch is an option that eqcheck sets for a whole request
and holds against the engine without drafts.
"""


def page(reports: Sequence[Report], version: str = __version__) -> str:
    """The page: a row for each report, then for each engine what was tried of it."""
    engines: dict[str, list[Report]] = {}
    for report in reports:
        engines.setdefault(report.decoder.origin, []).append(report)
    blocks = [HEAD, _overview(reports, version)]
    for origin, own in engines.items():
        engine = origin.rpartition("/")[2]
        blocks += [f"## {engine}\n\n<{origin}>\n", _cells(own), _issues(engine)]
    blocks += ["## Options and situations: cases\n\nA dash: in none.\n", _situations(reports)]
    blocks += [NEEDS, _needs(reports)]
    return "\n".join(filter(None, blocks))


def _situations(reports: Sequence[Report]) -> str:
    """In how many cases of each report an option did something, or a situation was met."""
    told = CHECKPOINT.counters | CHECKPOINT.sampled
    rows = [[what, *(str(report.coverage.get(name) or "-") for report in reports)] for name, what in told.items()]
    met = [row for row in rows if set(row[1:]) != {"-"}]
    return _table(met, ["cases in which", *(f"`{report.decoder.name}`" for report in reports)])


def _needs(reports: Sequence[Report]) -> str:
    """How many wrong cases of each report need an option or a setting; those of the most reports first."""
    counts = [Counter[str]() for _ in reports]
    for report, own in zip(reports, counts, strict=True):
        for one in (condition for violation in report.violations for condition in violation.conditions):
            for need in one.needs or ["none: the defaults" if one.minimised else "not told"]:
                own[need] += one.count
    wrong = [(report, own) for report, own in zip(reports, counts, strict=True) if own]
    among = Counter(need for own in counts for need in own)
    rows = [[need, *(str(own[need] or "-") for _, own in wrong)] for need, _ in sorted(among.items(), key=_order)]
    return _table(rows, ["needs", *(f"`{report.decoder.name}`" for report, _ in wrong)])


def _order(counted: tuple[str, int]) -> tuple[int, str]:
    return -counted[1], counted[0]


def _issues(engine: str) -> str:
    """The pages of an engine's causes, which have the scripts; `python docs/issues.py` makes them first."""
    pages = sorted((ROOT / "reports" / "issues").glob(f"{engine}-*.md"))
    titles = [page.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ") for page in pages]
    return "".join(f"- [{title}](../reports/issues/{page.name})\n" for page, title in zip(pages, titles, strict=True))


def _overview(reports: Sequence[Report], version: str) -> str:
    rows = [
        [
            f"[`reports/{report.decoder.name}`](../reports/{report.decoder.name}/report.md)",
            inline(report.decoder.version),
            _tool(report, version),
            ", ".join(dict.fromkeys(one.dtype for one in report.served)) or "not recorded",
            str(report.cases.run),
            report.verdict,
            _causes(report) or "none",
        ]
        for report in reports
    ]
    return _table(rows, ["report", "version", "eqcheck", "dtype", "cases", "verdict", "causes: cases"])


def _tool(report: Report, version: str) -> str:
    wrote = report.versions.get("eqcheck", "unknown")
    return wrote if wrote == version else f"{wrote}, not {version}"


def _causes(report: Report) -> str:
    return ", ".join(f"{_linked(report, one)}: {one.count}" for one in report.violations)


def _linked(report: Report, violation: ReportedViolation) -> str:
    """The fingerprint, with a link to the page of its cause if it has one."""
    page = page_of(report.decoder.origin, violation.fingerprint, notes())
    name = f"`{inline(violation.fingerprint)}`"
    return f"[{name}](../reports/issues/{page})" if (ROOT / "reports" / "issues" / page).is_file() else name


def _cells(reports: Sequence[Report]) -> str:
    """What was tried of an engine, by kind of checkpoint; a report that does not tell them apart has a line."""
    tried = [(report, one) for report in reports for one in report.served]
    lines = [
        f"- `reports/{report.decoder.name}`: {many(report.cases.run, 'case')}; the report does not say in which dtype, "
        "on which checkpoints and with which drafters."
        for report in reports
        if not report.served
    ]
    dtypes = list(dict.fromkeys(one.dtype for _, one in tried))
    if tried and (left := [dtype for dtype in DTYPES if dtype not in dtypes]):
        lines.append(f"- Not tried, as far as reports say: {' and '.join(left)}, on any checkpoint.")
    if not tried:
        return "\n".join([*lines, ""])
    columns = dict.fromkeys((dtype, drafter) for dtype in dtypes for drafter in DRAFTERS)
    columns |= dict.fromkeys((one.dtype, one.drafter) for _, one in tried)
    cells = {
        _place(one): "; ".join(_cell(*pair) for pair in tried if _place(pair[1]) == _place(one)) for _, one in tried
    }
    kinds = dict.fromkeys((*LAYOUTS, *(one.kind for _, one in tried)))
    rows = [[kind, *(cells.get((kind, *column), "not tried") for column in columns)] for kind in kinds]
    return "\n".join([*lines, "", _table(rows, ["checkpoint", *map(" ".join, columns)])])


def _place(one: Served) -> tuple[str, str, str]:
    return one.kind, one.dtype, one.drafter


def _cell(report: Report, one: Served) -> str:
    if not one.violations:
        return f"{many(one.cases, 'case')}, none wrong"
    causes = dict.fromkeys(
        _linked(report, violation)
        for violation in report.violations
        for condition in violation.conditions
        if _where(condition.case) == (one.kind, one.drafter)
    )
    wrong = f"**{one.violations} of {one.cases} wrong**"
    if not causes:
        return f"[{wrong}](../reports/{report.decoder.name}/report.md)"
    return f"{wrong}: {', '.join(causes)}"


def _where(case: dict[str, object]) -> tuple[str, str]:
    """The kind of checkpoint and the drafter of a stored case; a case leaves out its defaults."""
    kind = str(case.get("checkpoint") or "").rpartition("-")[0]
    return kind if kind in LAYOUTS else "random", str(case.get("drafting") or "model")


def _table(rows: list[list[str]], headers: list[str]) -> str:
    return table(rows, headers, WHOLE, tablefmt="github") + "\n"


def committed(pattern: str = "*/report.json") -> list[Report]:
    """The reports that the repository holds, by folder: those of engines, unless the pattern says others.

    Reports of audits that somebody ran here are not among them.
    """
    own = subprocess.run(
        ["git", "ls-files", "-z", "reports"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    paths = sorted((ROOT / "reports").glob(pattern))
    return [load(path.parent) for path in paths if str(path.relative_to(ROOT)) in own.split("\0")]


def front(text: str, reports: Sequence[Report]) -> str:
    """README.md with a table of these reports between its marks; reports of one release are one line.

    An engine of the same release that never drafts has a line of its own.
    """
    releases: dict[tuple[str, str, bool], list[Report]] = {}
    for report in reports:
        plain = bool(report.served) and all(one.drafter == "none" for one in report.served)
        releases.setdefault((report.decoder.origin, report.decoder.version, plain), []).append(report)
    rows = []
    for (_, version, _), own in releases.items():
        counts = Counter[str]()
        for one in (violation for report in own for violation in report.violations):
            counts[f"`{inline(one.component)}/{inline(one.kind)}`"] += one.count
        name = f"`{min((report.decoder.name for report in own), key=len)}` {inline(version.partition('-')[0])}"
        numbers = (sum(getattr(report.cases, what) for report in own) for what in ("run", "violation", "inconclusive"))
        causes = ", ".join(f"{cause} {count}" for cause, count in counts.most_common())
        rows.append([name.strip(), *map(str, numbers), causes or "none"])
    made = _table(rows, ["decoder", "cases", "wrong", "not settled", "causes: cases"])
    before, mark, rest = text.partition("<!-- results -->\n")
    return "".join([before, mark, made, *rest.partition("<!-- /results -->")[1:]])


def shown() -> list[Report]:
    """The reports in README.md: decoders with published faults, then engines."""
    return [*committed("showcase/*/report.json"), *committed()]


if __name__ == "__main__":
    PAGE.write_text(page(committed()), encoding="utf-8")
    README.write_text(front(README.read_text(encoding="utf-8"), shown()), encoding="utf-8")
