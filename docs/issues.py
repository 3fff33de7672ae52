"""Issues for maintainers of engines, made from the committed reports, their scripts and `reports/notes.toml`.

python docs/issues.py        writes reports/issues/

A cause that several reports of one engine have is one issue with several conditions; so are causes of one root, which a
note names as `also`. A fault that was found by hand has a script, and no report. The text on the engine's source
was written by a person who read it, and comes from the notes; all else comes from the reports.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from eqcheck.contract.errors import inline
from eqcheck.core.explanation.records import many
from eqcheck.core.explanation.statements import reason
from eqcheck.report.schema import Report, ReportedViolation

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
FOLDER, NOTES = ROOT / "reports" / "issues", ROOT / "reports" / "notes.toml"
PINS, LONGEST = ROOT / "environments", 40
Found = list[tuple[Report, ReportedViolation]]
_CRASH, _WRONG = "crash", "wrong tokens, no error"


def issues(reports: Sequence[Report], notes: Sequence[dict[str, Any]]) -> dict[str, str]:
    """The pages by file name; causes that were not shown (`unattributed`) have none, the index counts their cases."""
    found: dict[tuple[str, str], Found] = {}
    left = 0
    root = {(note["origin"], also): note["fingerprint"] for note in notes for also in note.get("also", ())}
    for report in reports:
        for violation in report.violations:
            if violation.caused:
                origin, cause = report.decoder.origin, violation.fingerprint
                found.setdefault((origin, root.get((origin, cause), cause)), []).append((report, violation))
            else:
                left += violation.count
    noted = {(note["origin"], note["fingerprint"]): note for note in notes if "fingerprint" in note}
    if strangers := noted.keys() - found.keys():
        raise ValueError(f"notes.toml: no committed report has {sorted(strangers)}")
    pages, rows = {}, []
    for (origin, fingerprint), own in found.items():
        note = noted.get((origin, fingerprint), {})
        name = page_of(origin, fingerprint, notes)
        pages[name] = _issue(own, note, fingerprint)
        rows.append(f"- [{_title(own, note)}]({name})")
    for note in (note for note in notes if "fingerprint" not in note):
        name = f"{Path(note['script']).stem.replace('_', '-')}.md"
        engine = note["origin"].rpartition("/")[2]
        title = f"{engine} {note['version']}: {note['title']} ({note['severity']})"
        pages[name] = _page([f"# {title}", note["about"].strip(), _by_hand(engine, note)], note)
        rows.append(f"- [{title}]({name})")
    head = "# Issues, made from the reports by `python docs/issues.py`\n"
    rest = f"{many(left, 'failing case')} of these reports have no cause that was shown, and no issue."
    return {**pages, "README.md": "\n".join([head, *rows, "", rest, ""])}


def page_of(origin: str, fingerprint: str, notes: Sequence[dict[str, Any]]) -> str:
    """The name of the page of an engine's cause: that of its root, if a note names one."""
    root = next((n["fingerprint"] for n in notes if n["origin"] == origin and fingerprint in n.get("also", ())), None)
    return f"{origin.rpartition('/')[2]}-{re.sub('[/: ]', '-', root or fingerprint)}.md"


def _title(own: Found, note: dict[str, Any]) -> str:
    engine, violation = own[0][0].decoder, own[0][1]
    what = note.get("title") or f"`{inline(violation.fingerprint)}`, {inline(violation.cause.meaning)}"
    severity = note.get("severity") or (_CRASH if violation.component == "crash" else _WRONG)
    return f"{engine.origin.rpartition('/')[2]} {inline(engine.version.partition('-')[0])}: {what} ({severity})"


def _issue(own: Found, note: dict[str, Any], issue: str) -> str:
    own = sorted(own, key=lambda pair: pair[1].fingerprint != issue)  # the issue's own cause first
    report, violation = own[0]
    engine = note.get("package") or _package(report)
    versions = {name: version for name, version in report.versions.items() if name != report.decoder.name}
    judge = ", ".join(f"{name} {inline(version)}" for name, version in versions.items())
    pins = _pins(report.decoder.name)
    apart = ", in an environment of its own," if pins else ""  # the judge's packages are not the engine's
    said = f"{note['case'].strip()}\n\n" if "case" in note else ""
    blocks = [
        f"# {_title(own, note)}",
        note.get("about", "") or f"{inline(reason(violation.evidence) or violation.cause.meaning)}",
        f"## Environment\n\n- {engine}{pins}\n- Linux, on a CPU\n- judged{apart} by {judge}",
        "## Script\n\n" + _script([each for _, each in own], note),
        f"## Expected and observed\n\n{said}```\n" + violation.explanation + "\n```",
        "## Shows with\n\n" + "\n".join(_shows(*pair, violation.fingerprint) for pair in own),
    ]
    return _page(blocks, note)


def _package(report: Report) -> str:
    """The package of an engine: its adapter is named after it, and after a dtype; some versions name it themselves."""
    name, version = re.sub(r"_(b?float\d+)$", "", report.decoder.name), inline(report.decoder.version)
    return f"{name} {version}" if version[:1].isdigit() else version


def _by_hand(engine: str, note: dict[str, Any]) -> str:
    """The environment and the script of a fault that was found by hand."""
    package = note.get("package") or f"{engine} {note['version']}"
    blocks = [
        f"## Environment\n\n- {package}{_pins(re.sub('[-.]', '_', engine))}\n- Linux, on a CPU",
        f"## Script\n\n{_own_script(note, engine)}",
        f"## Expected\n\n{note['expected']}",
        f"## Observed\n\n```\n{note['observed'].strip()}\n```",
    ]
    return "\n\n".join(blocks)


def _own_script(note: dict[str, Any], engine: str) -> str:
    """A script that was written by hand, whole."""
    text = (ROOT / note["script"]).read_text(encoding="utf-8").strip()
    needs = note.get("needs", f"{engine} alone")
    if "eqcheck checkpoint write" in text and "needs" not in note:
        needs = f"{engine}, and two folders that `eqcheck` writes as its first lines say"
    shows = note.get("shows", "Exit code 1 says that it was shown.")
    said = f"`{note['script']}`; it needs {needs}. {shows} {note.get('ran', '')}"
    return f"{said.rstrip()}\n\n```python\n{text}\n```"


def _page(blocks: list[str], note: dict[str, Any]) -> str:
    """The parts of a page, with those that the notes have behind them."""
    if note.get("reading"):
        blocks.append("## Where, by reading and not by running\n\n" + note["reading"].strip())
    if note.get("tried"):
        blocks.append("## Tried\n\n" + note["tried"].strip())
    if note.get("newer"):
        blocks.append("## Newer releases\n\n" + note["newer"].strip())
    if note.get("fix"):
        run = "" if note.get("tried") else ", not run"
        blocks.append(f"## A fix to consider{run}\n\n```diff\n{note['fix'].strip()}\n```")
    if note.get("tests"):
        blocks.append("## Your tests\n\n" + note["tests"].strip())
    if note.get("threads"):
        blocks.append("## Threads\n\n" + "\n".join(f"- {thread}" for thread in note["threads"]))
    return "\n\n".join(blocks) + "\n"


def _pins(name: str) -> str:
    """The file of an engine's packages, if it has one; an adapter in another dtype has the same."""
    own = (path.name for path in sorted(PINS.glob("*.txt")) if name.startswith(path.stem))
    return next((f"; its packages: `environments/{file}`" for file in own), "")


def _shows(report: Report, violation: ReportedViolation, issue: str) -> str:
    """Under which options, in how many cases of a report, and as which cause if it is another of the same root."""
    lines = []
    other = "" if violation.fingerprint == issue else f"; as `{inline(violation.fingerprint)}`"
    for one in violation.conditions:
        needs = ", ".join(one.needs) or ("the defaults" if one.minimised else "options that were not made fewer")
        alone = f"; without speculation: {one.without_speculation}" if one.without_speculation else ""
        lines.append(
            f"- {needs}: {one.count} of {report.cases.run} cases of `reports/{report.decoder.name}`{other}{alone}"
        )
    return "\n".join(lines)


def _script(causes: Sequence[ReportedViolation], note: dict[str, Any]) -> str:
    """The shortest script of the issue's own cause, whole where it is short, and the paths of the others."""
    conditions = [one for cause in causes for one in cause.conditions]
    first = causes[0].fingerprint
    of = {Path(one.script): cause.fingerprint != first for cause in causes for one in cause.conditions if one.script}
    paths = sorted(of, key=lambda path: (of[path], _lines(path), path))
    if "script" in note:
        shown = f"\n\nIt prints:\n\n```\n{note['observed'].strip()}\n```"
        return _own_script(note, "the engine") + shown + "".join(f"\n\nAlso: `{path}`" for path in paths)
    if not paths:
        large = "" if conditions[0].minimised else ": the case was not made smaller"
        return f"There is none{large}. `{inline(conditions[0].reproduce)}` decodes the case again."
    shortest, *others = paths
    ran = f" {note['ran']}" if note.get("ran") else ""
    source = (ROOT / shortest).read_text(encoding="utf-8")
    beside = ["_engine", *re.findall(r"(?m)^from (_\w+) import", source)]
    beside += ["_law"] * ("_sampling" in beside)
    files = ", ".join(f"`{name}.py`" for name in beside)
    text = f"`{shortest}`; it needs the packages that its first lines name, and {files} beside it. "
    if "eqcheck checkpoint write" in source:
        text += "Its arguments are two folders that `eqcheck` writes as its first lines say. "
        text += "Without them its verdict means nothing. "
    text += f"Exit code 1 says that it was shown.{ran}"
    if _lines(shortest) <= LONGEST:
        text += f"\n\n```python\n{(ROOT / shortest).read_text(encoding='utf-8').strip()}\n```"
    return text + "".join(f"\n\nAlso: `{path}`" for path in others)


def _lines(path: Path) -> int:
    return len((ROOT / path).read_text(encoding="utf-8").splitlines())


def notes() -> list[dict[str, Any]]:
    """What was read in the engines' sources, by hand."""
    return list(tomllib.loads(NOTES.read_text(encoding="utf-8")).get("issue", []))


if __name__ == "__main__":
    from scoreboard import committed

    FOLDER.mkdir(exist_ok=True)
    for old in FOLDER.glob("*.md"):
        old.unlink()
    for file, page in issues(committed(), notes()).items():
        (FOLDER / file).write_text(page, encoding="utf-8")
