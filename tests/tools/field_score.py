"""Audit the faults of `field_faults`, each for a minute: ``python -m field_score [NAMES] [--out FILE.json]``.

A line of each fault says when it was caught, which cause was named and whether its component is the one that was
planted; of faults that lose drafts, whether the report says that draft tokens were lost. Beside the JSON file lie the
reports as the terminal shows them.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import field_faults
import torch

from eqcheck.audit import events
from eqcheck.audit.loop import audit
from eqcheck.contract import registry
from eqcheck.core.result.findings import Options
from eqcheck.report.build import in_terminal, write

UNKNOWN = "unattributed"


class Watch:
    """Listens to an audit: how many cases were done, and when the first failed."""

    def __init__(self) -> None:
        self.begun, self.done = time.monotonic(), 0
        self.caught: tuple[int, float] | None = None

    def __call__(self, event: events.Event) -> None:
        if isinstance(event, events.CaseDone):
            self.done = event.done
            if event.failing and self.caught is None:
                self.caught = event.done, round(time.monotonic() - self.begun, 1)


def scored(name: str, budget: float, folder: Path) -> dict[str, Any]:
    """The score of a fault, or of the engine without one; its report is written to the folder."""
    planted = field_faults.FAULTS.get(name)
    decoder, watch = registry.load(f"{field_faults.__file__}:{name}"), Watch()
    result = audit(decoder, Options(cases=None, budget=budget, python=sys.executable), watch)
    shown = in_terminal([write(result, folder / name)], [str(folder / name)])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.txt").write_text("\n".join([*map(str, result.warnings), shown]), encoding="utf-8")
    named = [finding.fingerprint for finding in result.violations]
    lost = [str(warning) for warning in result.warnings if "draft tokens were lost" in str(warning)]
    declared = planted.component if planted else "right"
    components = {one.partition("/")[0] for one in named} - {UNKNOWN}
    if not named and not lost:
        verdict = "clean"
    elif planted and planted.loses:
        verdict = "ok" if lost and not components else "other"
    else:
        verdict = "ok" if declared in components else "other" if components else "unknown"
    return {
        "name": name,
        "thread": planted.thread if planted else "",
        "mechanism": planted.mechanism if planted else "",
        "declared": declared,
        "caught": watch.caught,
        "cases": result.tally.run,
        "failing": result.tally.statuses["violation"],
        "named": named,
        "lost": lost,
        "verdict": verdict,
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m field_score", description=__doc__)
    parser.add_argument("names", nargs="*", help="faults; all if there are none, and the engine without a fault")
    parser.add_argument("--budget", type=float, default=60.0, help="seconds of each audit")
    parser.add_argument("--out", type=Path, default=Path("field_score.json"), help="where results are kept as JSON")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    results = list[dict[str, Any]]()
    for name in asked.names or ["right", *field_faults.FAULTS]:
        score = scored(name, asked.budget, asked.out.with_suffix(""))
        results.append(score)
        asked.out.write_text(json.dumps(results, indent=1), encoding="utf-8")
        caught = "after {} cases and {} s".format(*score["caught"]) if score["caught"] else "no case wrong"
        said = " ".join([*score["named"], *(["draft-loss"] if score["lost"] else [])])
        line = score["thread"], score["mechanism"], caught, said or "-", score["declared"], score["verdict"]
        print(name, *line, sep=" | ", flush=True)
    return int(any(score["verdict"] != "ok" for score in results if score["name"] != "right"))


if __name__ == "__main__":
    sys.exit(main())
