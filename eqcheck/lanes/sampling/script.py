"""A wrong law as a script that needs only the engine: it draws one request until the evidence is that of a violation.

Beside the scripts of an engine lie the files that they share (`eqcheck.lanes.checkpoint.script`), and the evidence and
the law as files of their own. A script is run with the engine's own Python before it is handed out, and handed out
only if it fails.
"""

from __future__ import annotations

import textwrap

from eqcheck import __version__
from eqcheck.case.sampling import SampledEngineCase
from eqcheck.contract.decoders import Decoder, hook
from eqcheck.contract.kinds import KINDS
from eqcheck.contract.options import ORDER
from eqcheck.explanation.statements import reason
from eqcheck.lanes.checkpoint.script import CHECKPOINT, ENGINE, SETTINGS, copied, in_docstring, row_text, run, shared
from eqcheck.lanes.sampling import exhibit
from eqcheck.result.findings import Finding
from eqcheck.truth import law

EVIDENCE, LAW = "_sampling.py", "_law.py"

_FINDING = '''"""{title}

{version}.{plain}
{explanation}

    python {name}        # exit code 1: shown, 0: not shown; needs {requirements}; {shared} beside it
"""

from _checkpoint import row
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


def evidence_files() -> dict[str, str]:
    """The files that sampled scripts share beside those of other scripts, by name; they name no module of eqcheck."""
    texts = {EVIDENCE: copied(exhibit), LAW: copied(law)}
    options = f"from types import SimpleNamespace as RowOptions\n\nORDER = {ORDER}"
    for name, instead in (
        ("checkpoints.builder import", f"from {CHECKPOINT.removesuffix('.py')} import"),
        ("truth.law import", f"from {LAW.removesuffix('.py')} import"),
        ("contract.options import ORDER, RowOptions", options),
    ):
        texts = {file: text.replace(f"from eqcheck.{name}", instead) for file, text in texts.items()}
    return texts


def checked_script(decoder: Decoder, version: str, python: str, finding: Finding) -> str | None:
    """The script of a finding; None where the adapter has not what it takes, or the script does not show it."""
    if not hook(decoder.function, "script") or not isinstance(finding.case, SampledEngineCase):
        return None
    text = script(decoder, version, finding)
    shown = run(python, {"finding.py": text} | shared(decoder) | evidence_files())
    return text if "with" in shown.get("wrong", ()) else None


def script(decoder: Decoder, version: str, finding: Finding) -> str:
    """The text of a finding's script; it imports what `shared` and `evidence_files` have."""
    e, case = finding.explanation, finding.case
    return _FINDING.format(
        title=in_docstring(f"{decoder.name}: {e.fingerprint}, found by eqcheck {__version__}."),
        version=in_docstring(f"{decoder.name} {version}"),
        plain=f" Without speculation the engine is {finding.plain}." if finding.plain else "",
        explanation=textwrap.fill(in_docstring(f"{KINDS[e.kind].meaning}. {reason(e)}"), 110),
        name="<this file>",
        requirements=in_docstring(hook(decoder.function, "requirements")),
        shared=", ".join((ENGINE, CHECKPOINT, EVIDENCE, LAW)),
        rows="\n".join(row_text(row.to_dict()) for row in case.rows),
        settings={name: getattr(case, name) for name in SETTINGS},
        order=case.order,
        most=10 * max(150, case.crosses_after),
    )
