"""The report: what became of the mutants, as data and as Markdown."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

Found = dict[str, Any]
FORMAT = "eqcheck-mutation/1"
_INTRODUCTION = """\
# Mutants of the reference engines

The sources of `eqspec`, `exspec`, `ragged` and of what they share, changed mechanically in one place each: a number by
one, a comparison, a condition, a bound, an argument, a name. Of {population} mutants {tried} were tried, in an order
drawn with seed {seed} in which files, functions and operators take turns, until {live} had changed what is emitted;
{same} changed nothing that was seen (speed, memory, the choice of rows, or nothing at all), {declining} declined what
they were asked, {unusable} could not be imported or did not end in time. To do it again:

```console
PYTHONPATH=tests/tools python -m mutation --jobs 2
```

*Changes a real model*: on a tiny random Llama and a tiny GPT-2 in float64, {real_cases} ragged cases each, the output
differs from what the model emits for the row alone. *Caught*: an audit of up to {most_cases} cases, families `rotary`
and `learned`, calls a violation. What it then says of the first one, after minimising and repair, is held against a
table of right answers by place in the source, `tests/tools/mutation/truth.py`, written before anything was audited.
*Unattributed*: no cause is asserted. *False*: what is asserted is not so; each answer outside the table was held
against the changed code by hand (`tests/tools/mutation/judgements.json`).
"""
_COLUMNS = ["", "mutants", "change a real model", "of these caught", "component right", "kind right", "unattributed"]


def summary(records: Sequence[Found]) -> Found:
    """The figures of some mutants; all of them changed something."""
    caught = [one for one in records if one.get("caught")]
    return {
        "mutants": len(records),
        "real": sum(bool(one.get("real")) for one in records),
        "real_caught": sum(bool(one.get("real") and one.get("caught")) for one in records),
        "caught": len(caught),
        "component_right": sum(one["component_right"] for one in caught),
        "kind_right": sum(one["kind_right"] for one in caught),
        "unattributed": sum(one["component"] == "unattributed" for one in caught),
        "false": sum(one.get("judgement") == "false" for one in caught),
        "to judge": sum(one.get("judgement") == "to judge" for one in caught),
    }


def brief(record: Found) -> Found:
    """A record without what only a doubtful one needs."""
    doubtful = "judgement" in record or record.get("component") in (None, "unattributed")
    left_out = {
        "case",
        "warnings",
        "declines",
        "also",
        "count",
        "verdict",
        "real_s",
        "audit_s",
        "line",
        "function",
        "live",
        "status",
    }
    left_out |= set() if doubtful else {"text", "diff", "answers"}
    return {key: value for key, value in record.items() if key not in left_out}


def report(found: Found) -> str:
    """``README.md``."""
    records = found["mutants"]
    crashed = [one for one in records if one.get("caught") and one["component"] == "crash"]
    others = [one for one in records if one not in crashed]
    parts = [
        _INTRODUCTION.format(**found["counts"], seed=found["seed"], live=len(records)),
        _table(
            [*_COLUMNS, "false"],
            [_line("all", records), _line("that crash or hang", crashed), _line("that emit wrong tokens", others)],
        ),
        "Shares are of all mutants: one that changes no real model can still be named rightly where HashLM sees it. "
        "By file:\n",
        _table(
            [*_COLUMNS, "false"],
            [
                _line(f"`{name}`", [r for r in records if r["file"] == name])
                for name in sorted({r["file"] for r in records})
            ],
        ),
        "By the component that is asserted:\n",
        _table(
            [*_COLUMNS, "false"],
            [
                _line(name, [r for r in records if r.get("component", "nothing") == name])
                for name in sorted({r.get("component", "nothing") for r in records})
            ],
        ),
    ]
    missed = [one for one in records if not one.get("caught")]
    if missed:
        parts.append(f"## Not caught: {len(missed)}\n")
        parts += [_entry(one) for one in missed]
    outside = [one for one in records if one.get("judgement") or one.get("component") == "unattributed"]
    parts.append(f"## Outside the table, or not attributed: {len(outside)}\n")
    parts += [_entry(one) for one in outside]
    return "\n".join(parts)


def _line(name: str, records: list[Found]) -> list[str]:
    s = summary(records)
    caught = s["caught"] or 1
    return [
        name,
        str(s["mutants"]),
        str(s["real"]),
        str(s["real_caught"]),
        f"{s['component_right']} ({s['component_right'] / caught:.1%})",
        f"{s['kind_right']} ({s['kind_right'] / caught:.1%})",
        str(s["unattributed"]),
        str(s["false"]) + (f", {s['to judge']} not judged" if s["to judge"] else ""),
    ]


def _table(head: list[str], body: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *body]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def _entry(record: Found) -> str:
    """A mutant that a person is to look at."""
    says = f"{record['component']}/{record['kind']}" if record.get("caught") else "nothing"
    lines = [f"### `{record['id']}` ({record['engine']}): {says}\n", "```diff", record["diff"], "```"]
    lines.append(f"Right: {', '.join(record['answers']) or 'nothing but a crash'}. Real model: {record.get('real')}.")
    if record.get("judgement"):
        lines.append(f"Judgement: **{record['judgement']}**. {record['why']}")
    if record.get("text"):
        lines += ["", "```text", textwrap.dedent(record["text"]), "```"]
    return "\n".join(lines) + "\n"
