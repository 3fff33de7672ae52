"""The page of all causes and one page for each engine, made from the committed reports and `reports/notes.toml`.

python docs/scoreboard.py        writes docs/scoreboard.md, and the finding and the table of engines in README.md

`docs/hooks.py` makes the pages of the engines when the site is built; they are not in git. A cause has a page if
`python docs/issues.py` made one, so run that first.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
from issues import NOTES, notes, page_of

from eqcheck import __version__
from eqcheck.audit.coverage_words import CHECKPOINT
from eqcheck.contract.errors import inline
from eqcheck.contract.kinds import KINDS
from eqcheck.core.explanation.text import WIDTH, laid_out, parts
from eqcheck.engines.construction.layouts import LAYOUTS
from eqcheck.report import load
from eqcheck.report.schema import Report, Served

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
PAGE, README = ROOT / "docs" / "scoreboard.md", ROOT / "README.md"
SHOWCASE = ROOT / "reports" / "showcase" / "bsp"
DTYPES = ("float32", "float16", "bfloat16")
INLINE = "[{name}]({url})"
HEAD = """# Scoreboard

Which released engines return other tokens with speculation than without, and why? Each engine was audited on a CPU.
The causes come from the committed [reports](../reports/README.md) and from scripts that were written by hand.

Cases are drawn to find faults, many with rare options. The share of failing cases is not the rate at which users see
a fault. A failing case is *unexplained* if no cause was found for it. *Not settled*: the failure did not repeat in a
fresh process, or the time budget ended first. It is not counted as failing.

"""
CAUSES = """
## Causes

A cause links to its page, which has the script that shows it. *Known* links to a thread that describes the same fault.
No thread was found for the others when titles and beginnings of stored threads were searched. Nothing on this page has
been filed upstream so far. *Also without drafts*: the engine is wrong without speculation, too.

"""
TRIED = "A cause is named where one of its stored cases ran; other rows may have it, too.\n"
FOOT = """
## A page for each engine

<!-- scoreboard -->
The site (`make docs`) has a page for each engine: what was tried on which checkpoint, in which dtype and with which
drafter, which options were exercised, and which of them a failing case needs. `python docs/scoreboard.py` makes this
page again.
"""


@dataclass(frozen=True)
class Engine:
    """An engine as it was audited: its repository, its name, the build, and a word on its unexplained cases."""

    origin: str
    name: str
    build: str
    unexplained: str = ""

    @property
    def file(self) -> str:
        """The name of its page on the site."""
        return f"engine-{self.origin.rpartition('/')[2].replace('.', '-').lower()}.md"


@dataclass(frozen=True)
class Finding:
    """One cause in an engine, as its note has it, and the name of its page."""

    origin: str
    name: str
    title: str
    effect: str
    known: tuple[str, ...]
    known_in_part: bool
    without_speculation: bool
    page: str


def engines() -> list[Engine]:
    """The engines in the order of the notes."""
    data = tomllib.loads(NOTES.read_text(encoding="utf-8"))
    return [msgspec.convert(one, Engine) for one in data["engine"]]


def findings() -> list[Finding]:
    """The causes in the order of the notes; `python docs/issues.py` makes their pages."""
    every = notes()
    return [
        Finding(
            origin=note["origin"],
            name=note["name"],
            title=note["title"],
            effect=note["effect"],
            known=tuple(note.get("known", ())),
            known_in_part=note.get("known_in_part", False),
            without_speculation=note.get("without_speculation", False),
            page=page_of(note["origin"], note["fingerprint"], every)
            if "fingerprint" in note
            else f"{Path(note['script']).stem.replace('_', '-')}.md",
        )
        for note in every
    ]


def page(reports: Sequence[Report], every: Sequence[Finding]) -> str:
    """The scoreboard: one table of engines, and one of causes."""
    return "".join([HEAD, _engines(reports), CAUSES, _causes(every), FOOT])


def _engines(reports: Sequence[Report]) -> str:
    rows = []
    for engine in engines():
        own = [report for report in reports if report.decoder.origin == engine.origin]
        dtypes = {one.dtype for report in own for one in report.served}
        rows.append(
            [
                engine.name,
                engine.build,
                ", ".join(dtype for dtype in DTYPES if dtype in dtypes),
                _sum(own, "run"),
                _sum(own, "violation"),
                str(_unexplained(own)),
                _sum(own, "inconclusive"),
            ]
        )
    return _table(["engine", "build", "dtypes", "cases", "failing", "unexplained", "not settled"], rows)


def _sum(reports: Iterable[Report], what: str) -> str:
    return str(sum(getattr(report.cases, what) for report in reports))


def _unexplained(reports: Iterable[Report]) -> int:
    """Failing cases for which no cause was found."""
    return sum(one.count for report in reports for one in report.violations if not one.caused)


def _causes(every: Sequence[Finding]) -> str:
    """The one table of causes, by engine. The links stand below it, so that a line of it can be read in the source."""
    rows, links = [], []
    for engine in engines():
        for number, finding in enumerate((one for one in every if one.origin == engine.origin), start=1):
            label = f"{engine.name} {number}"
            links.append(f"[{label}]: ../reports/issues/{finding.page}")
            links += [f"[{short(url)}]: {url}" for url in finding.known]
            cause, known = f"[{finding.name}][{label}]", _known(finding, "[{name}]")
            rows.append([engine.name, cause, finding.effect, known, "yes" if finding.without_speculation else ""])
    made = _table(["engine", "cause", "effect", "known", "also without drafts"], rows)
    return made + "\n" + "\n".join(dict.fromkeys(links)) + "\n"


def _known(finding: Finding, link: str) -> str:
    """The threads that describe the same fault, each as a link of this form."""
    part = "in part: " if finding.known_in_part and finding.known else ""
    return part + ", ".join(link.format(name=short(url), url=url) for url in finding.known)


def short(url: str) -> str:
    """A thread by its number.

    >>> short("https://github.com/vllm-project/vllm/issues/55005")
    'vllm#55005'
    """
    parts = re.fullmatch(r"https://github\.com/[^/]+/([^/]+)/(?:issues|pull)/(\d+)", url)
    if parts is None:
        raise ValueError(f"notes.toml: `known` should hold the URL of an issue or a pull request, got {url}")
    return f"{parts[1]}#{parts[2]}"


def front(text: str, reports: Sequence[Report], every: Sequence[Finding]) -> str:
    """README.md with the table of engines by causes between its marks."""
    rows = []
    for engine in engines():
        own = [report for report in reports if report.decoder.origin == engine.origin]
        causes = [
            finding.name + (f" ({_known(finding, INLINE)})" if finding.known else "")
            for finding in every
            if finding.origin == engine.origin
        ]
        unexplained = f"{_unexplained(own)} of {_sum(own, 'run')}. {engine.unexplained}".rstrip(". ")
        rows.append([f"**{engine.name}**: {engine.build}", "; ".join(causes) or "none found", unexplained])
    made = _table(["engine, as tested", "causes (known upstream)", "unexplained cases"], rows)
    return _between("results", text, made)


def with_finding(text: str, report: Report) -> str:
    """README.md with the most frequent cause of this report between its marks, as `eqcheck audit` prints it."""
    first, condition = report.violations[0], report.violations[0].conditions[0]
    head = f"FAIL {first.fingerprint}: {KINDS[first.kind].meaning}"
    count = f"{first.count} of {report.cases.run} cases, known"
    needs = condition.needs if condition.minimised else None
    lines = [f"{head}{count:>{WIDTH - len(head)}}"]
    lines += laid_out(parts(first.evidence, needs, condition.without_speculation, WIDTH), WIDTH)
    lines.append(f"  {'Reproduce':<13}  {first.reproduce.replace('reports/showcase/', 'reports/')}")
    return _between("finding", text, "\n".join(["```", *lines, "```", ""]))


def _between(mark: str, text: str, made: str) -> str:
    """The text with other lines between a pair of marks."""
    before, begin, rest = text.partition(f"<!-- {mark} -->\n")
    _, end, after = rest.partition(f"<!-- /{mark} -->")
    if not begin or not end:
        raise ValueError(f"README.md: expected the marks `<!-- {mark} -->` and `<!-- /{mark} -->`, each on a line")
    return "".join([before, begin, made, end, after])


def engine_page(engine: Engine, reports: Sequence[Report], every: Sequence[Finding], version: str = __version__) -> str:
    """The page of an engine: its causes, and what its audits tried."""
    own = [report for report in reports if report.decoder.origin == engine.origin]
    causes = [finding for finding in every if finding.origin == engine.origin]
    parts = [
        f"# {engine.name}\n\n<{engine.origin}>: {engine.build}. [All engines](scoreboard.md)\n",
        "## Causes\n",
        _list(causes),
    ]
    if engine.unexplained:
        parts.append(f"Unexplained: {_unexplained(own)} failing cases. {engine.unexplained}\n")
    parts += ["## Audits\n", _audits(own, version)]
    parts += ["## Checkpoints, dtypes and drafters\n", TRIED, _tried(own)]
    parts += ["## Cases in which an option or a situation was exercised\n", _situations(own)]
    if needs := _needs(own):
        parts += [
            "## Options that failing cases need\n",
            "A failing case is counted for each option without which it passes. A case that was not made smaller is "
            "counted for each option it has.\n",
            needs,
        ]
    return "\n".join(parts)


def _list(causes: Sequence[Finding]) -> str:
    lines = []
    for finding in causes:
        known = f" Known: {_known(finding, INLINE)}." if finding.known else ""
        title = finding.title[0].upper() + finding.title[1:]
        lines.append(f"- [{title}](../reports/issues/{finding.page}) ({finding.effect}).{known}\n")
    return "".join(lines) or "None was found.\n"


def _audits(reports: Sequence[Report], version: str) -> str:
    rows = [
        [
            f"[`reports/{report.decoder.name}`](../reports/{report.decoder.name}/report.md)",
            inline(report.decoder.version),
            _tool(report, version),
            f"{report.elapsed_s / 60:.0f} min",
            *(str(getattr(report.cases, what)) for what in ("run", "violation", "inconclusive")),
        ]
        for report in reports
    ]
    return _table(["report", "version", "eqcheck", "time", "cases", "failing", "not settled"], rows)


def _tool(report: Report, version: str) -> str:
    wrote = report.versions.get("eqcheck", "unknown")
    return wrote if wrote == version else f"{wrote}, not {version}"


def _tried(reports: Sequence[Report]) -> str:
    """A row for each checkpoint, dtype and drafter that was tried, and a line on those that were not."""
    rows, lines = [], []
    for report in reports:
        if not report.served:
            lines.append(f"`reports/{report.decoder.name}` does not say what its {report.cases.run} cases ran on.\n")
        rows += [[one.kind, one.dtype, one.drafter, str(one.cases), *_failing(report, one)] for one in report.served]
    kinds, dtypes = {row[0] for row in rows}, {row[1] for row in rows}
    if left := [kind for kind in LAYOUTS if kind not in kinds]:
        lines.append(f"Checkpoints that were not tried: {', '.join(left)}.\n")
    if left := [dtype for dtype in DTYPES if dtype not in dtypes]:
        lines.append(f"Dtypes that were not tried: {', '.join(left)}.\n")
    order = [*LAYOUTS, *sorted(kinds - {*LAYOUTS})]
    rows.sort(key=lambda row: (order.index(row[0]), row[1], row[2]))
    made = _table(["checkpoint", "dtype", "drafter", "cases", "failing", "causes"], rows)
    return "\n".join([*([made] if rows else []), *lines])


def _failing(report: Report, one: Served) -> tuple[str, str]:
    """How many cases failed there, and the causes that have a stored case from there."""
    if not one.violations:
        return "0", ""
    causes = dict.fromkeys(
        f"`{inline(violation.fingerprint)}`"
        for violation in report.violations
        for condition in violation.conditions
        if _where(condition.case) == (one.kind, one.drafter)
    )
    return str(one.violations), ", ".join(causes)


def _where(case: dict[str, object]) -> tuple[str, str]:
    """The kind of checkpoint and the drafter of a stored case; a case leaves out its defaults."""
    kind = str(case.get("checkpoint") or "").rpartition("-")[0]
    return kind if kind in LAYOUTS else "random", str(case.get("drafting") or "model")


def _situations(reports: Sequence[Report]) -> str:
    counters = {**CHECKPOINT.counters, **CHECKPOINT.sampled}
    rows = [
        [what, *(str(report.coverage.get(counter) or 0) for report in reports)] for counter, what in counters.items()
    ]
    names = [f"`{report.decoder.name}`" for report in reports]
    return _table(["cases in which", *names], [row for row in rows if set(row[1:]) != {"0"}])


def _needs(reports: Sequence[Report]) -> str:
    """How many failing cases need an option; the most frequent first, "" where none failed."""
    counts = [Counter[str]() for _ in reports]
    for report, own in zip(reports, counts, strict=True):
        for condition in (condition for violation in report.violations for condition in violation.conditions):
            for need in condition.needs or ["the defaults" if condition.minimised else "not known"]:
                own[need] += condition.count
    total = sum(counts, Counter[str]())
    rows = [[need, *(str(own[need]) for own in counts)] for need, _ in sorted(total.items(), key=_order)]
    return _table(["needs", *(f"`{report.decoder.name}`" for report in reports)], rows) if rows else ""


def _order(counted: tuple[str, int]) -> tuple[int, str]:
    return -counted[1], counted[0]


def _table(head: list[str], rows: Iterable[Sequence[str]]) -> str:
    """A table without padding: its lines are as short as their cells."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def committed(pattern: str = "*/report.json") -> list[Report]:
    """The reports that the repository holds, by folder: those of engines, unless the pattern says others.

    Reports of audits that somebody ran here are not among them.
    """
    tracked = subprocess.run(
        ["git", "ls-files", "-z", "reports"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    paths = sorted((ROOT / "reports").glob(pattern))
    return [load(path.parent) for path in paths if str(path.relative_to(ROOT)) in tracked.split("\0")]


if __name__ == "__main__":
    PAGE.write_text(page(committed(), findings()), encoding="utf-8")
    readme = with_finding(README.read_text(encoding="utf-8"), load(SHOWCASE))
    README.write_text(front(readme, committed(), findings()), encoding="utf-8")
