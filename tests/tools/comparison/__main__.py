"""Run the comparison and write ``README.md`` and ``comparison.json``; with ``--from`` only write again."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from comparison.compare import FORMAT, compare
from comparison.write import report
from eqcheck.catalogue import FAULTS


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m comparison", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("reports/comparison"))
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--every", type=int, default=1, metavar="N", help="only every N-th fault, for a quick look")
    parser.add_argument("--from", dest="stored", type=Path, metavar="JSON", help="write the report of stored figures")
    given = parser.parse_args()
    if given.stored:
        found = json.loads(given.stored.read_text(encoding="utf-8"))
        if found.get("format") != FORMAT:
            sys.exit(f"{given.stored}: expected format {FORMAT!r}, got {found.get('format')!r}")
    else:
        found = compare(given.jobs, range(0, len(FAULTS), given.every), _progress)
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "comparison.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    (given.out / "README.md").write_text(report(found), encoding="utf-8")


def _progress(done: int, total: int) -> None:
    print(f"\r{done} of {total}", end="" if done < total else "\n", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
