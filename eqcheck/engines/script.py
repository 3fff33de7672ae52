"""A finding as a script that needs only the engine: it builds the checkpoint, decodes, and shows what is wrong.

A wrong law is shown by one request that is drawn until the evidence is that of a violation. Beside the scripts of an
engine lie files that they share: the very one that built the checkpoint, the functions that drove the engine in the
audit, which import what they need themselves, and for sampled rows the evidence and the law. A script is run with the
engine's own Python before it is handed out, and handed out only if it fails.
"""

from __future__ import annotations

import inspect
import json
import os
import signal
import subprocess
import tempfile
import textwrap
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from eqcheck import __version__
from eqcheck.audit.workers.worker import child_environment
from eqcheck.contract import options
from eqcheck.contract.decoders import SETTINGS, Decoder, hook
from eqcheck.contract.errors import one_line
from eqcheck.contract.kinds import KINDS
from eqcheck.core import law
from eqcheck.core.case.engine import EngineCase
from eqcheck.core.case.sampling import SampledEngineCase
from eqcheck.core.explanation.statements import needs_words, plain_words, reason, sentence
from eqcheck.core.result.findings import Finding
from eqcheck.core.result.outcome import HANG
from eqcheck.engines import script_sampling as exhibit
from eqcheck.engines.checkpoints import builder
from eqcheck.engines.checkpoints.dictation import drafts
from eqcheck.engines.checkpoints.folders import AGREEMENT, SAVED, checkpoint
from eqcheck.engines.checkpoints.row_judge import truth

_RUN_S = 300.0
_LEAST_S = 1.0  # no engine starts within less

ENGINE, CHECKPOINT, EVIDENCE, LAW = "_engine.py", "_checkpoint.py", "_sampling.py", "_law.py"

_FINDING = '''"""{title}

{version}. {needs}
{explanation}

    {command}        # exit code 1: shown, 0: not shown; needs {requirements}, and {shared} in the same folder
"""

{imports}

ROWS = [
{rows}
]
SETTINGS = {settings}
{more}

if __name__ == "__main__":
    main(ROWS, SETTINGS, {arguments})
'''
_OF_TOKENS = {
    "imports": "from _checkpoint import main, row",
    "more": "\n# The tokens of the target alone, for each row.\nEXPECTED = {expected}",
    "arguments": "EXPECTED{kind}",
}
_OF_LAW = {
    "imports": "from _checkpoint import row\nfrom _sampling import main",
    "more": "ORDER = {order}\n"
    "MOST = {most}  # tokens: ten times as many as the evidence took when this was written, or more",
    "arguments": "ORDER, MOST",
}

_BESIDE = {  # imports in copies of modules
    f"from {builder.__name__} import": f"from {CHECKPOINT.removesuffix('.py')} import",
    f"from {law.__name__} import": f"from {LAW.removesuffix('.py')} import",
    f"from {options.__name__} import ORDER, RowOptions": (
        f"from types import SimpleNamespace as RowOptions\n\nORDER = {options.ORDER}"
    ),
}

_HEAD = '''"""How the engine is driven, for the scripts here; by eqcheck {version}."""

import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any


'''


def scripted(decoder: Decoder, finding: Finding) -> bool:
    """Return whether there may be a script: the adapter has what it takes, and it would end."""
    failure = finding.outcome.explanation
    told = failure is not None and finding.outcome.outputs is not None  # beside tokens that are right
    told = told and not isinstance(finding.case, SampledEngineCase)  # a law is wrong by its tokens
    return bool(hook(decoder.function, "script")) and finding.outcome.symptom != HANG and not told


def unscripted(ends: float) -> str:
    """Say why a finding has no script, in an audit that ``ends`` then, on the monotonic clock."""
    if time.monotonic() > ends - _LEAST_S:
        return "no time was left to check a script of it; replay its case, or give the audit more time (--budget)"
    return "no script without eqcheck shows it; replay its case"


def checked_script(
    decoder: Decoder,
    version: str,
    python: str,
    finding: Finding,
    ends: Callable[[], float] = lambda: float("inf"),
) -> str | None:
    """The script of a finding, or None where there is none, it does not fail as the finding says, or the audit ends."""
    if not scripted(decoder, finding) or time.monotonic() > ends() - _LEAST_S:
        return None
    text = script(decoder, version, finding)
    pair = checkpoint(finding.case.checkpoint, decoder.dtype)
    folders = (pair.target, pair.draft) if pair.built else ()
    shown = run(python, {"finding.py": text} | shared(decoder, finding.case), folders, ends() - time.monotonic())
    if isinstance(finding.case, SampledEngineCase):
        return text if "with" in shown.get("wrong", ()) else None
    failure = finding.outcome.explanation
    failed = failure is not None and failure.kind != "invalid-output"  # tokens that are none are shown as they are
    return text if shown.get("raised") == failed and (failed or shown["wrong_rows"]) else None


def run(
    python: str, files: dict[str, str], words: Sequence[Path] = (), seconds: float = float("inf")
) -> dict[str, Any]:
    """Run the first of some files, which lie in one folder: the JSON object of its last line, which says what it shows.

    It is empty where the script does not end within so many seconds, or its exit code is not 1.
    """
    with tempfile.TemporaryDirectory() as folder:
        for name, text in files.items():
            (Path(folder) / name).write_text(text)
        process = subprocess.Popen(
            [python, next(iter(files)), *map(str, words)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=folder,
            env=child_environment(),
            start_new_session=True,  # an interrupt is the audit's, not the script's
        )
        try:
            printed, _ = process.communicate(timeout=max(0.0, min(_RUN_S, seconds)))
        except subprocess.TimeoutExpired:
            return {}
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # its children, too
            process.wait()
    try:
        last = json.loads(printed.splitlines()[-1]) if process.returncode == 1 else {}
    except (IndexError, ValueError):  # it ended before it could say anything
        last = {}
    return last if isinstance(last, dict) else {}


def script(decoder: Decoder, version: str, finding: Finding) -> str:
    """The text of a finding's script; it imports what `shared` has."""
    e, case = finding.explanation, finding.case
    what = e.detail if e.component == "unattributed" else f"{e.fingerprint}: {KINDS[e.kind].meaning}. {reason(e)}"
    parts, facts = _OF_TOKENS, dict[str, Any]()
    if isinstance(case, SampledEngineCase):
        parts, facts = _OF_LAW, {"order": case.order, "most": 10 * max(150, case.crosses_after)}
    else:
        kind = checkpoint(case.checkpoint).kind if checkpoint(case.checkpoint).built else ""
        parts = parts | {"arguments": parts["arguments"].format(kind=f", {kind!r}" if kind else "")}
        facts = {"expected": json.dumps([truth(case.checkpoint).row(row) for row in case.rows])}
    *files, last = shared(decoder, case)
    return _FINDING.format(
        title=in_docstring(f"{decoder.name}: {finding.outcome.symptom}, found by eqcheck {__version__}."),
        version=in_docstring(f"{decoder.name} {version}"),
        needs=about_case(finding.needs, finding.plain),
        explanation=textwrap.fill(in_docstring(what), 110),
        command=_command(case, decoder.dtype),
        requirements=in_docstring(hook(decoder.function, "requirements")),
        shared=f"{', '.join(files)} and {last}",
        rows="\n".join(row_text(row.to_dict()) for row in case.rows),
        settings={name: getattr(case, name) for name in SETTINGS if name != "switch" or case.switch}
        | _dtype(decoder)
        | _dictated(case),
        **parts | {"more": parts["more"].format(**facts)},
    )


def about_case(needs: Sequence[str], plain: str) -> str:
    """Say in sentences what a case needs to fail, and how the engine does on it without speculation.

    >>> about_case((), "right")
    'Fails at default settings. Without speculation the engine is correct.'
    """
    named = needs_words(needs) if needs else f"fails at {needs_words(needs)}"
    return " ".join(sentence(words) for words in (named, plain_words(plain)) if words)


def _command(case: EngineCase, dtype: str) -> str:
    """Return how a script is run; a built checkpoint is written first."""
    pair = checkpoint(case.checkpoint, dtype)
    if not pair.built:
        return "python <this file>"
    less = f" --dtype {dtype}" if dtype in SAVED else ""
    write = f"eqcheck checkpoint write {pair.kind} target --draft draft --agreement {AGREEMENT}{less}"
    return f"{write}\n    python <this file> target draft"


def shared(decoder: Decoder, case: EngineCase) -> dict[str, str]:
    """The files that the scripts of cases like this share, by name; they name no module of eqcheck."""
    parts = [_source(part) for part in hook(decoder.function, "script")]
    files = {
        ENGINE: _HEAD.format(version=__version__) + "\n\n\n".join(parts) + "\n",
        CHECKPOINT: copied(builder),
    }
    if isinstance(case, SampledEngineCase):
        files |= {EVIDENCE: copied(exhibit), LAW: copied(law)}
    return files


def copied(module: ModuleType) -> str:
    """A module as a file beside scripts; its first line is how eqcheck knows a file that it may remove."""
    text = inspect.getsource(module)
    for name, instead in _BESIDE.items():
        text = text.replace(name, instead)
    return f"# A copy, made by eqcheck {__version__}.\n{text}"


def in_docstring(text: str) -> str:
    """Text of an engine, which must not end the docstring: what follows would be run."""
    return one_line(text, 4000).replace("\\", "/").replace('"', "'")


def row_text(row: dict[str, Any]) -> str:
    """A row as a script writes it."""
    limit = row.pop("max_new_tokens")
    asked = "".join(f", {name}={value!r}" for name, value in row.items() if name not in ("prompt", "accepts"))
    return f"    row({row['prompt']}, {limit}{asked}),"


def _dtype(decoder: Decoder) -> dict[str, Any]:
    return {} if decoder.dtype == "float32" else {"dtype": decoder.dtype}


def _dictated(case: EngineCase) -> dict[str, Any]:
    return {"drafts": drafts(case)} if case.drafting == "dictated" else {}


def _source(part: object) -> str:
    text = textwrap.dedent(inspect.getsource(part))  # type: ignore[arg-type]
    return text.removeprefix("@staticmethod\n").rstrip()
