"""A wrong law as a script that needs only the engine: it draws one request until the evidence is that of a violation.

Beside the scripts of an engine lies what they share (`eqcheck.lanes.checkpoint.script`), and the evidence as a file of
its own. A script is run with the engine's own Python before it is handed out, and handed out only if it fails.
"""

from __future__ import annotations

import inspect
import re
import textwrap

from eqcheck import __version__
from eqcheck.case.sampled import SampledEngineCase
from eqcheck.contract.decoder import Decoder, hook
from eqcheck.contract.kinds import KINDS
from eqcheck.contract.options import ORDER
from eqcheck.explanation.statements import reason
from eqcheck.lanes.checkpoint.sampled import shown
from eqcheck.lanes.checkpoint.script import SETTINGS, SHARED, in_docstring, row_text, run, shared
from eqcheck.result.findings import Finding
from eqcheck.truth import law

EVIDENCE = "_sampling.py"

_FINDING = '''"""{title}

{version}.{plain}
{explanation}

    python {name}        # exit code 1: shown, 0: not shown; needs {requirements}; {shared} and {evidence} beside it
"""

from _engine import row
from _sampling import main

ROWS = [
{rows}
]
SETTINGS = {settings}
ORDER = {order}
MOST = {most}  # tokens: ten times as many as the evidence took when this was written, or more

if __name__ == "__main__":
    main(ROWS, SETTINGS, ORDER, MOST)
'''

_HEAD = '''"""The evidence of sampled scripts, by eqcheck {version}: the law of each token, and bets against it."""

from __future__ import annotations

import json
import math
import random
import shutil
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import _engine

ORDER = {order}
RowOptions = SimpleNamespace

'''

_TAIL = '''

def begin(target, draft, request):
    """Start the engine, in a process of its own; random numbers are fresh in every run."""
    _engine.prepare()
    begin.engine = _engine.start(target, draft, request)
    random.seed()


def once(request):
    return _engine.decode(begin.engine, request)


def drawn(folders, models, request, order, most):
    """Decode the request again and again: the evidence after the last token, tokens, requests, impossible tokens."""
    logs, tokens, requests, impossible, greatest = 0.0, 0, 0, 0, 1.0
    with ProcessPoolExecutor(1, get_context("spawn"), begin, (*folders, request)) as pool:
        while tokens < most and greatest < CROSSES and not impossible:
            for asked in request.rows:
                asked.seed = None if asked.seed is None else random.getrandbits(31)
            outputs = pool.submit(once, request).result()
            gains, count, odd = earned(models, request.prompts, request.rows, outputs, order)
            logs, tokens, requests, impossible = logs + gains, tokens + count, requests + 1, impossible + odd
            greatest = max(greatest, evidence(logs))
    return greatest, tokens, requests, impossible


def main(rows, settings, order, most):
    """Draw the request with speculation and without, say what was seen, and end with the exit code."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)
    prompts, options = zip(*rows)
    request = SimpleNamespace(prompts=list(prompts), rows=list(options), **settings)
    plain = SimpleNamespace(**{**vars(request), "drafting": "none"})
    folder = Path(tempfile.mkdtemp())
    try:
        folders = _engine.build(folder)
        pairs = ((folders[0], torch.float64), (folders[1], torch.float64), (folders[0], torch.float32))
        models = [AutoModelForCausalLM.from_pretrained(path, dtype=dtype).eval() for path, dtype in pairs]
        seen = {"with": drawn(folders, models, request, order, most)}
        if seen["with"][3] or seen["with"][0] >= CROSSES:
            seen["without"] = drawn(folders, models, plain, order, max(3 * seen["with"][1], 500))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    wrongly = [name for name, (greatest, _, _, odd) in seen.items() if odd or greatest >= CROSSES]
    for name, (greatest, tokens, requests, impossible) in seen.items():
        odd = ", and a token that has no probability" if impossible else ""
        print(
            f"{name} speculation: {'WRONG' if name in wrongly else 'not shown'}: the evidence against the target's law "
            f"was {greatest:.3g} at most in {tokens} tokens of {requests} answers{odd}"
        )
    print("At 1e6 the law is wrong: a right engine gets there once in a million runs.")
    print(json.dumps({"wrong": wrongly}))
    sys.exit(len(seen) > 1)
'''


def evidence_file() -> str:
    """What sampled scripts share beside how the engine is driven."""
    parts = [_without_imports(inspect.getsource(module)) for module in (law, shown)]
    head = _HEAD.format(version=__version__, order=ORDER) + "import numpy as np\nimport torch\n"
    return head + "\n\n".join(parts).rstrip() + "\n" + _TAIL


def _without_imports(text: str) -> str:
    """A module without its docstring and its imports."""
    body = text.partition('"""')[2].partition('"""')[2]
    return re.sub(r"^(from|import) [^\n]*\n", "", body, flags=re.MULTILINE).strip() + "\n"


def checked_script(decoder: Decoder, version: str, python: str, finding: Finding) -> str | None:
    """The script of a finding; None where the adapter has not what it takes, or the script does not show it."""
    if not hook(decoder.function, "script") or not isinstance(finding.case, SampledEngineCase):
        return None
    text = script(decoder, version, finding)
    shown = run(python, {"finding.py": text, SHARED: shared(decoder), EVIDENCE: evidence_file()})
    return text if "with" in shown.get("wrong", ()) else None


def script(decoder: Decoder, version: str, finding: Finding) -> str:
    """The text of a finding's script; it imports what `shared` and `evidence_file` have."""
    e, case = finding.explanation, finding.case
    return _FINDING.format(
        title=in_docstring(f"{decoder.name}: {e.fingerprint}, found by eqcheck {__version__}."),
        version=in_docstring(f"{decoder.name} {version}"),
        plain=f" Without speculation the engine is {finding.plain}." if finding.plain else "",
        explanation=textwrap.fill(in_docstring(f"{KINDS[e.kind].meaning}. {reason(e)}"), 110),
        name="<this file>",
        requirements=in_docstring(hook(decoder.function, "requirements")),
        shared=SHARED,
        evidence=EVIDENCE,
        rows="\n".join(row_text(row.to_dict()) for row in case.rows),
        settings={name: getattr(case, name) for name in SETTINGS},
        order=case.order,
        most=10 * max(150, case.crosses_after),
    )
