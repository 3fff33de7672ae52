"""Print a stored case as a test to paste: ``eqcheck replay CASE --as-test``. It decodes nothing and needs no torch."""

from __future__ import annotations

import json
import os
import re
from dataclasses import fields
from pathlib import Path
from pprint import pformat

from eqcheck import __version__
from eqcheck.contract import registry
from eqcheck.contract.errors import UsageError
from eqcheck.core.case.record import Case
from eqcheck.core.result.outcome import HANG
from eqcheck.core.store.casefile import StoredViolation, command, read_case, target_of

_NO_TEST = {
    "engine": "an engine loads a checkpoint and is run by a Python or a server of its own",
    "engine-sampling": "an engine loads a checkpoint, and sampled tokens have a law and no one right output",
    "sampling": "sampled tokens have a law and no one right output; it takes many draws to tell",
}
# Printed even where the default is meant: an explanation names them, and a reader has to see what the case asks for.
_ALWAYS = ("max_new_tokens", "num_draft_tokens", "accepts", "eos_token_ids", "pad_token_id")


def as_test(path: Path, adapter: str | None = None) -> str:
    """Return a case file as a test that fails as long as the decoder has the fault.

    The file may name code, too: the test then says in a comment that it imports that code. Raises `UsageError` for a
    case that no short test can hold.
    """
    stored = read_case(path)
    spec = spec_of(path, stored, adapter)
    case, fingerprint = stored.case, stored.fingerprint or ""
    why = _NO_TEST.get(case.lane, "")
    if (stored.isolated and fingerprint.startswith("crash/")) or fingerprint == HANG:
        why = "the decoder hangs, or failed in a process of its own, and pytest would end with it"
    if why or not isinstance(case, Case):
        raise UsageError(
            f"case file {path}: no test can be printed: {why}; keep the file and run {command(path, spec)}"
        )
    name = re.sub(r"\W+", "_", f"test_{fingerprint or 'case'}_{case.id}")
    about = f"This case showed {fingerprint} with eqcheck {__version__}." if fingerprint else "The rows must be right."
    file, attr = _file(spec)
    code = f"{_from_here(file)}{attr}" if file else spec if registry.names_code(spec) else ""
    own = [named for named in (code, target_of(case)) if named]
    warning = [f"    # The case file names this code, which the test imports: {json.dumps(one)}" for one in own]
    imports, decoder = _loaded(spec)
    lines = [
        *imports,
        f"def {name}() -> None:",
        f"    {json.dumps(about)}",  # a file's text must not become code
        *([] if adapter else warning),
        f"    case = {_literal(case, 4)}",
        *decoder,
        "    eqcheck.assert_equivalent(decoder, case)",
    ]
    return "\n".join(lines) + "\n"


def spec_of(path: Path, stored: StoredViolation, adapter: str | None) -> str:
    """The adapter of a case, as given or as its file names it; `UsageError` where there is none."""
    if (spec := adapter or stored.adapter) is None:
        raise UsageError(f"case file {path}: it names no adapter; give one with --adapter")
    return spec


def _file(spec: str) -> tuple[str, str]:
    """Return the file of a SPEC and its ``:attr``; both are empty when it names no file."""
    parts = re.fullmatch(r"(.*\.py)((?::[^/\\]*)?)", spec) if registry.names_code(spec) else None
    return (parts[1], parts[2]) if parts else ("", "")


def _loaded(spec: str) -> tuple[list[str], list[str]]:
    """Return the import lines of a test, and its lines that load the decoder."""
    file, rest = _file(spec)
    if not file:
        return ["import eqcheck", "", ""], [f"    decoder = eqcheck.load({json.dumps(spec)})"]
    place = json.dumps(_from_here(file))
    attr = f" + {json.dumps(rest)}" if rest else ""
    search = [f"    place = {place}"]
    search += ["    places = (folder / place for folder in Path(__file__).resolve().parents)"]
    search += ["    file = next((one for one in places if one.is_file()), place)"]
    return (
        ["from pathlib import Path", "", "import eqcheck", "", ""],
        [
            "    # The nearest one, in the folder of this test or above it: the project may lie anywhere.",
            *search,
            f"    decoder = eqcheck.load(str(file){attr})",
        ],
    )


def _from_here(file: str) -> str:
    """A file's path from the working directory, where it lies in one project with it; its whole path elsewhere.

    >>> _from_here("engines/mine.py"), _from_here(str(Path.cwd() / "mine.py")), _from_here("/proc/mine.py")
    ('engines/mine.py', 'mine.py', '/proc/mine.py')
    """
    whole = Path(file).resolve()
    try:
        together = Path(os.path.commonpath([whole, Path.cwd()]))
    except ValueError:  # another drive
        return whole.as_posix()
    return whole.as_posix() if together == Path(whole.anchor) else Path(os.path.relpath(whole)).as_posix()


def _literal(case: Case, indent: int) -> str:
    """A case as source: what is not as usual and what explanations name, a line for each field."""
    shown = [name for name in _ALWAYS if name != "accepts" or (case.agreement is None and not case.tree)]
    lines = []
    for field in fields(case):
        value = getattr(case, field.name)
        if value == field.default and field.name not in shown:
            continue
        if field.name == "before":
            earlier = "".join(f"{' ' * (indent + 8)}{_literal(each, indent + 8)},\n" for each in value)
            text = f"(\n{earlier}{' ' * (indent + 4)})"
        else:
            text = pformat(value, width=max(40, 112 - indent - len(field.name)), compact=True)
            text = text.replace("\n", f"\n{' ' * (indent + 5 + len(field.name))}")
        lines.append(f"{' ' * (indent + 4)}{field.name}={text},\n")
    return f"eqcheck.Case(\n{''.join(lines)}{' ' * indent})"
