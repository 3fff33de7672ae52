"""How much of what heads propose is accepted: ``python -m benchmarks.heads.measure [FOLDER]``.

The shipped pair's target decodes beginnings of files that are held out, greedily and in batches, with its draft model,
with the Medusa-type and with the Clover-type head, each in chains and in trees. Every row of all of them is held
against the target alone, in float64. ``heads.json`` and ``heads.md`` go to the folder, by default ``reports/bench``.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from eqcheck.reference_impls.drafters.trained import HEADS, load
from eqcheck.reference_impls.drafters.trees import TreeHeads
from eqcheck.reference_impls.heads import Heads
from eqcheck.reference_impls.ragged import Ragged
from eqcheck.reference_impls.serving import Engine, Prompt
from eqcheck.reference_impls.tree import Tree

from benchmarks import pair
from benchmarks.measure import now, processor_time
from benchmarks.pair.train import corpus
from benchmarks.run import machine
from eqcheck import Oracle

PROMPTS, LENGTH, NEW, BATCH = 64, 96, 64, 8
NODES = 8
NAMES = {"draft": "draft model", "medusa": "Medusa-type head", "clover": "Clover-type head"}
CLAIM = "50 to 76 %"  # extra tokens a step over Medusa's (arXiv 2405.00263)

Rounds = dict[int, list[int]]


def decoded(engine: Engine, prompts: list[list[int]], new: int) -> tuple[list[list[int]], Rounds]:
    """The new tokens of each prompt; and how many draft tokens it accepted in each round but its first and its last."""
    rows: list[list[int]] = [[] for _ in prompts]
    accepted: Rounds = {i: [] for i in range(len(prompts))}
    for update in engine.stream(Prompt(tokens, new, (), i) for i, tokens in enumerate(prompts)):
        if rows[update.id] and not update.finish_reason:
            accepted[update.id].append(len(update.token_ids) - 1)
        rows[update.id] += update.token_ids
    return rows, accepted


def by_place(counts: Counter[int], places: int = HEADS) -> list[float]:
    """The share of the proposals at each place that is accepted where all before them were."""
    reached = [sum(n for accepted, n in counts.items() if accepted >= place) for place in range(places + 1)]
    return [round(reached[place + 1] / max(1, reached[place]), 4) for place in range(places)]


def measured(name: str, engine: Engine, prompts: list[list[int]], new: int, oracle: Oracle) -> dict[str, Any]:
    """One engine on these prompts; what is counted are rounds of rows."""
    device = torch.device("cpu")
    with processor_time(device):
        began = now(device)
        rows, accepted = decoded(engine, prompts, new)
        seconds = now(device) - began
    verdict = oracle.check(prompts, rows, max_new_tokens=new)
    counts = Counter(n for row in accepted.values() for n in row)
    rounds = sum(counts.values())
    return {
        "drafter": name,
        "tree": isinstance(engine, Tree | TreeHeads),
        "columns": engine.nodes if isinstance(engine, TreeHeads) else engine.num_draft_tokens,
        "by_place": by_place(counts),
        "tokens_per_round": round(1 + sum(k * n for k, n in counts.items()) / max(1, rounds), 4),
        "least_and_most_of_a_row": [
            round(1 + pick(sum(row) / len(row) for row in accepted.values() if row), 4) for pick in (min, max)
        ],
        "tokens_per_verify": round(engine.stats.tokens_per_verify, 4),
        "rounds": rounds,
        "rows_right": sum(row.first is None for row in verdict.rows),
        "rows": len(rows),
        "seconds": round(seconds, 2),
    }


def engines(models: Any, batch: int) -> Iterator[tuple[str, Engine]]:
    """What is measured: chains, trees of as many nodes, and trees of twice as many."""
    target, draft = models
    yield "draft", Ragged(target, draft, num_draft_tokens=HEADS, batch_size=batch)
    for nodes in (HEADS, NODES):
        yield "draft", Tree(target, draft, num_draft_tokens=nodes, batch_size=batch)
    for name in ("medusa", "clover"):
        head = load(name, target)
        yield name, Heads(target, head, num_draft_tokens=HEADS, batch_size=batch)
        for nodes in (HEADS, NODES):
            yield name, TreeHeads(target, head, num_draft_tokens=HEADS, nodes=nodes, batch_size=batch)


def measure(prompts: int = PROMPTS, new: int = NEW, batch: int = BATCH) -> dict[str, Any]:
    """Everything, as data."""
    _, held = corpus()
    models, exact = pair.load(), Oracle(pair.load(torch.float64).target)
    step = (len(held) - LENGTH) // prompts
    texts = [held[start : start + LENGTH].tolist() for start in range(0, prompts * step, step)]
    with torch.no_grad():
        runs = [measured(name, engine, texts, new, exact) for name, engine in engines(models, batch)]
    return {
        "command": "python -m benchmarks.heads.measure",
        "machine": machine(models.target.device),
        "prompts": {"count": prompts, "tokens": LENGTH, "new": new, "batch": batch},
        "runs": runs,
        "extra_tokens_of_clover_over_medusa": extra(runs),
    }


def extra(runs: list[dict[str, Any]]) -> dict[str, float]:
    """By how much more than Medusa's the accepted tokens of a Clover round are, by what is drafted."""
    tokens = {(run["drafter"], run["tree"], run["columns"]): run["tokens_per_round"] - 1 for run in runs}
    return {
        f"{'tree' if tree else 'chain'} of {columns}": round(gained / tokens["medusa", tree, columns] - 1, 4)
        for (name, tree, columns), gained in tokens.items()
        if name == "clover"
    }


def page(found: dict[str, Any]) -> str:
    """The data as a page."""
    prompts, runs = found["prompts"], found["runs"]
    lines = [
        "# Heads beside a draft model",
        "",
        ", ".join(f"{key} {value}" for key, value in found["machine"].items()) + ".",
        "",
        f"`{found['command']}`: {prompts['count']} prompts of {prompts['tokens']} held-out bytes, {prompts['new']} new "
        f"tokens each, batches of {prompts['batch']}, greedy, float32.",
        "",
        "| drafter | drafts | tokens a round (rows: least to most) | accepted at place 1, 2, 3, 4 "
        "| tokens a second | rows right |",
        "|---|---|---|---|---|---|",
    ]
    for run in runs:
        least, most = run["least_and_most_of_a_row"]
        cells = [
            NAMES[run["drafter"]],
            f"{'tree' if run['tree'] else 'chain'} of {run['columns']}",
            f"{run['tokens_per_round']:.2f} ({least:.2f} to {most:.2f})",
            " ".join(f"{share:.2f}" for share in run["by_place"]),
            f"{prompts['count'] * prompts['new'] / run['seconds']:.0f}",
            f"{run['rows_right']} of {run['rows']}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    gains = ", ".join(f"{gain:+.0%} ({drafts})" for drafts, gain in found["extra_tokens_of_clover_over_medusa"].items())
    lines += [
        "",
        "At each place: the share that is accepted where all before it were. Seconds are those of the process, on one "
        "thread. First and last rounds of a row count for speed only.",
        "",
        f"Accepted tokens a round, Clover's over Medusa's: {gains}. The paper claims {CLAIM} more.",
        "",
    ]
    return "\n".join(lines)


def write(found: dict[str, Any], folder: Path) -> None:
    """``heads.json`` and ``heads.md``."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "heads.json").write_text(json.dumps(found, indent=1) + "\n")
    (folder / "heads.md").write_text(page(found))


if __name__ == "__main__":
    write(measure(), Path(sys.argv[1] if sys.argv[1:] else "reports/bench"))
