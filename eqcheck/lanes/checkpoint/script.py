"""A finding as a script that needs only the engine: it builds the checkpoint, decodes, and shows what is wrong.

The script consists of the very functions that built the checkpoint and drove the engine in the audit. It is run with
the engine's own Python before it is handed out, and handed out only if it fails.
"""

from __future__ import annotations

import inspect
import json
import os
import re
import signal
import subprocess
import tempfile
import textwrap
from contextlib import suppress
from pathlib import Path
from typing import Any

from eqcheck import __version__
from eqcheck.kinds import KINDS
from eqcheck.lanes.checkpoint import checkpoints
from eqcheck.lanes.checkpoint.judge import truth
from eqcheck.lanes.checkpoint.result import EngineAudit, Finding
from eqcheck.plain import one_line
from eqcheck.report.text import reason

_RUN_S = 300.0
_SETTINGS = ("num_draft_tokens", "drafting", "token_budget", "kv_blocks", "prefix_caching")

_HEAD = '''"""{title}

{version}. Needs {needs}. Without speculation the engine is {plain}.
{explanation}

    python {name}        # exit code 1: shown, 0: not shown; needs {requirements}
"""

import json
import os
import shutil
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace
from typing import Any



def row(prompt, max_new_tokens, **options):
    """A prompt and what is asked for it."""
    asked = SimpleNamespace(max_new_tokens=max_new_tokens, eos_token_ids=(), min_new_tokens=0, arrival=0)
    asked.repetition_penalty, asked.presence_penalty = 1.0, 0.0
    vars(asked).update(options)
    return prompt, asked


ROWS = [
{rows}
]
SETTINGS = {settings}

# What the target emits for each row, in float64, alone.
EXPECTED = {expected}

'''

_TAIL = '''

def request(drafting=SETTINGS["drafting"]):
    prompts, rows = zip(*ROWS)
    return SimpleNamespace(prompts=list(prompts), rows=list(rows), **{**SETTINGS, "drafting": drafting})


def run(target, draft, asked):
    """Decode in a process of its own."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(decoded, target, draft, asked).result()


def decoded(target, draft, asked):
    prepare()
    return decode(start(target, draft, asked), asked)


def main():
    folder = Path(tempfile.mkdtemp())
    try:
        target, draft = build(folder)
        plain = run(target, draft, request("none"))
        try:
            speculative = run(target, draft, request())
        except Exception as error:
            print(f"without speculation: {plain}")
            print(f"WRONG: {type(error).__name__}: {error}")
            return 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    wrong = [row for row, expected in enumerate(EXPECTED) if speculative[row] != expected]
    for row in wrong:
        print(f"row {row} of {len(EXPECTED)}: WRONG")
        print(f"  expected                        {EXPECTED[row]}")
        print(f"  the engine without speculation  {plain[row]}")
        print(f"  the engine with speculation     {speculative[row]}")
    print(f"{len(wrong)} of {len(EXPECTED)} rows are wrong")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
'''


def scripted(audit: EngineAudit, finding: Finding) -> bool:
    """Whether there may be a script: the adapter has what it takes, and it would end."""
    return hasattr(audit.decoder.function, "script") and finding.outcome.symptom != "crash/hang"


def checked_script(audit: EngineAudit, finding: Finding) -> str | None:
    """The script of a finding, or None where there is none or it does not fail as the finding says."""
    if not scripted(audit, finding):
        return None
    text = script(audit, finding)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "finding.py"
        path.write_text(text)
        process = subprocess.Popen(
            [audit.python, str(path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=folder,
            start_new_session=True,  # an interrupt is the audit's, not the script's
        )
        try:
            printed, _ = process.communicate(timeout=_RUN_S)
        except subprocess.TimeoutExpired:
            return None
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # its children, too
            process.wait()
    failure = finding.outcome.answer.failure
    failed = failure is not None and failure.kind != "invalid-output"  # tokens that are none are shown as they are
    shown = "WRONG" in printed and failed == ("rows are wrong" not in printed)
    return text if process.returncode == 1 and shown else None


def script(audit: EngineAudit, finding: Finding) -> str:
    """The text of the script."""
    e, case = finding.explanation, finding.case
    settings = {name: getattr(case, name) for name in _SETTINGS}
    what = e.detail if e.component == "unattributed" else f"{e.fingerprint}: {KINDS[e.kind].meaning}. {reason(e)}"
    head = _HEAD.format(
        title=_in_docstring(f"{audit.decoder.name}: {finding.outcome.symptom}, found by eqcheck {__version__}."),
        version=_in_docstring(f"{audit.decoder.name} {audit.version}"),
        needs=", ".join(finding.needs) or "no option",
        plain=finding.plain,
        explanation=textwrap.fill(_in_docstring(what), 110),
        name="<this file>",
        requirements=_in_docstring(getattr(audit.decoder.function, "requirements", "the engine")),
        rows="\n".join(_row(row.to_dict()) for row in case.rows),
        settings=settings,
        expected=json.dumps([truth().row(row) for row in case.rows]),
    )
    constants = re.findall(r"^(?:VOCAB_SIZE|POSITIONS|_SEED).* = .*$", inspect.getsource(checkpoints), re.MULTILINE)
    builders = [
        checkpoints.build,
        checkpoints.config,
        checkpoints.target_model,
        checkpoints.noisy,
        checkpoints.normal,
        checkpoints.tokenizer,
    ]
    parts = [_source(part) for part in (*builders, *audit.decoder.function.script)]
    return "\n\n\n".join([head.rstrip() + "\n\n" + "\n".join(constants), *parts]) + "\n" + _TAIL


def _in_docstring(text: str) -> str:
    """Text of an engine, which must not end the docstring: what follows would be run."""
    return one_line(text, 4000).replace("\\", "/").replace('"', "'")


def _row(row: dict[str, Any]) -> str:
    limit = row.pop("max_new_tokens")
    options = "".join(f", {name}={value!r}" for name, value in row.items() if name != "prompt")
    return f"    row({row['prompt']}, {limit}{options}),"


def _source(part: object) -> str:
    text = textwrap.dedent(inspect.getsource(part))  # type: ignore[arg-type]
    return text.removeprefix("@staticmethod\n").rstrip()
