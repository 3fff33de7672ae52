"""Try mutants until so many are found that change what is emitted, and write ``README.md`` and ``mutation.json``."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch
import transformers

from mutation import mutator, real, trial, truth
from mutation.mutator import Mutant
from mutation.write import FORMAT, brief, report, summary

Found = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m mutation", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("reports/mutation"))
    parser.add_argument("--sample", type=int, default=300, metavar="N", help="how many mutants that change something")
    parser.add_argument("--seed", type=int, default=0, help="of the order of the mutants, and of the audits")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--whole", type=int, default=0, metavar="N", help="what else an audit of N cases says, too")
    parser.add_argument("--only", action="append", metavar="ID", help="these mutants alone, by the beginning of an id")
    parser.add_argument("--write", action="store_true", help="only write the report again, of the stored details")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    details = given.out / "details.jsonl"
    if not given.write:
        collect(details, given.sample, given.seed, given.jobs, given.whole, given.only)
    first, *records = [json.loads(line) for line in details.read_text(encoding="utf-8").splitlines()]
    found = gathered(first, records)
    (given.out / "README.md").write_text(report(found), encoding="utf-8")
    text = json.dumps(found | {"mutants": [brief(one) for one in found["mutants"]]}, indent=1)
    (given.out / "mutation.json").write_text(text + "\n", encoding="utf-8")
    print(json.dumps(summary(found["mutants"])))


def collect(details: Path, sample: int, seed: int, jobs: int, whole: int, only: list[str] | None) -> None:
    """Try mutants until ``sample`` have changed something; each becomes a line of ``details``."""
    start = time.monotonic()
    trial.prepare(seed)
    lines = trial.reached(seed)
    population: list[Mutant] = []
    discarded = Counter[str]()
    for file in mutator.files():
        found, more = mutator.mutants(file, lines[file])
        population += found
        discarded += more
    order = mutator.spread(population, seed)
    if only:
        order = [mutant for mutant in order if any(mutant.id.startswith(beginning) for beginning in only)]
    with details.open("w", encoding="utf-8") as file_:
        head = {"format": FORMAT, "seed": seed, "population": len(population), "discarded": discarded}
        head["versions"] = {"torch": torch.__version__, "transformers": transformers.__version__}
        file_.write(json.dumps(head) + "\n")
        live = tried = 0
        for mutant, one in trial.run(order, seed, jobs, whole):
            record = described(mutant, one)
            file_.write(json.dumps(record) + "\n")
            file_.flush()
            live, tried = live + record["live"], tried + 1
            _progress(record, live, sample, tried, time.monotonic() - start)
            if live >= sample and not only:
                break


def gathered(first: Found, records: list[Found]) -> Found:
    """Everything that the report says, of the lines of ``details.jsonl``."""
    live = [truth.judged(one) for one in records if one["live"]]
    unusable = sum(one["status"] != "ran" for one in records)
    counts = {
        "population": first["population"],
        "discarded": first["discarded"],
        "tried": len(records),
        "declining": sum(one["declines"] for one in records),
        "same": len(records) - len(live) - unusable - sum(one["declines"] for one in records),
        "unusable": unusable,
        "real_cases": real.CASES,
        "most_cases": trial.MOST_CASES,
    }
    head = {name: first[name] for name in ("format", "seed", "versions")}
    return {**head, "counts": counts, "mutants": live}


def described(mutant: Mutant, found: Found) -> Found:
    """A mutant and what became of it, beside what is true."""
    record: Found = {
        "id": mutant.id,
        "file": mutant.file,
        "line": mutant.line,
        "function": mutant.function,
        "operator": mutant.operator,
        "engine": mutant.engine,
        "held_back": mutant.held_back,
        "diff": mutant.diff,
        "answers": truth.answers(mutant),
        **found,
    }
    record["declines"] = bool(found.get("real") and found["real"][1] == "declines" and not found.get("caught"))
    record["live"] = bool(found.get("real") or found.get("caught")) and not record["declines"]
    return record


def _progress(record: Found, live: int, sample: int, tried: int, seconds: float) -> None:
    name = f"{record['component']}/{record['kind']}" if record.get("caught") else record.get("why", "not caught")[:60]
    print(
        f"{seconds:5.0f} s  {live}/{sample} of {tried}  {record['id']}  {record.get('real')}  {name}",
        file=sys.stderr,
        flush=True,
    )


if __name__ == "__main__":
    main()
