"""What a benchmark found, as JSON, as tables and as plots."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tabulate import tabulate

from benchmarks.run import BASELINE, Results, Scale

Row = dict[str, Any]
SHARES = ("draft", "verify", "realign", "group", "other")
COLOURS = {"draft": "#9ecae1", "verify": "#3182bd", "realign": "#e6550d", "group": "#fdae6b", "other": "#bdbdbd"}


def write(found: Results, folder: Path) -> list[str]:
    """``bench.json``, ``README.md`` and, where matplotlib is installed, plots; the names of what was written."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "bench.json").write_text(json.dumps(found.to_dict(), indent=1) + "\n")
    pictures = plots(found, folder)
    shown = "\n\n".join(f"![{name}]({name})" for name in pictures)
    machine = ", ".join(f"{key} {value}" for key, value in found.machine.items())
    text = f"# Benchmark\n\n{machine}.\n\n{shown}\n\n{tables(found, 'github')}\n"
    (folder / "README.md").write_text(text)
    return ["bench.json", "README.md", *pictures]


def tables(found: Results, style: str = "simple") -> str:
    """Throughput by batch size, where the time goes, latency under arrivals, what sampling costs, notes."""
    parts = []
    for lengths in found.plan.lengths:
        for acceptance in found.plan.acceptances:
            rows = [r for r in found.results if (r["lengths"], r["acceptance"]) == (lengths, acceptance)]
            title = f"Tokens a second (and times batch 1), {lengths} prompts, acceptance {_rate(acceptance)}"
            parts.append(_table(title + _turns(found.plan, acceptance), _throughput(rows, found.plan), style))
    for lengths in found.plan.lengths:
        rows = [r for r in found.results if (r["lengths"], r["acceptance"]) == (lengths, found.plan.acceptances[0])]
        if compared := _over_baseline(rows, found.plan):
            title = f"Speed over that of {BASELINE} in the same turn: median (least to greatest), {lengths} prompts, "
            parts.append(_table(f"{title}acceptance {_rate(found.plan.acceptances[0])}", compared, style))
    batch = found.plan.focus
    for lengths in found.plan.lengths:
        rows = [
            r
            for r in found.results
            if (r["batch"], r["lengths"], r["acceptance"]) == (batch, lengths, found.plan.acceptances[0])
            and r["verified"]
        ]
        title = f"Where the time goes at batch {batch}, {lengths} prompts, acceptance "
        title += f"{_rate(found.plan.acceptances[0])} (prefills are verify and draft)"
        parts.append(_table(title, [_anatomy(row) for row in rows], style))
    if found.arrivals:
        title = "Seconds from arrival to last token under Poisson arrivals, acceptance real, median of "
        title += f"{found.plan.repeats} turns"
        parts.append(_table(title, [_latency(row) for row in found.arrivals], style))
    if found.sampled:
        title = f"Throughput of sampled rows over that of greedy ones at batch {batch}, acceptance real: "
        title += "median (least to greatest) of turns; sampled at a temperature that leaves the tokens as they are"
        parts.append(_table(title, _cost_of_sampling(found.sampled), style))
    parts += [f"Note: {note}." for note in found.notes]
    return "\n\n".join(parts)


def _rate(acceptance: float | None) -> str:
    return "of the real draft" if acceptance is None else f"dictated {acceptance}"


def _table(title: str, rows: Sequence[Row], style: str) -> str:
    body = tabulate(rows, headers="keys", tablefmt=style, disable_numparse=True, stralign="right")
    return f"**{title}**\n\n{body}" if style == "github" else f"{title}\n\n{body}"


def _turns(plan: Scale, acceptance: float | None) -> str:
    counts = {plan.turns(batch, acceptance) for batch in plan.batches}
    return " (one turn)" if counts == {1} else f" (the middle of {' or '.join(map(str, sorted(counts)))} turns)"


def _throughput(rows: Sequence[Row], plan: Scale) -> list[Row]:
    """A line per engine; and how many prompts there were, and how often their drafts were accepted."""
    found = []
    for name in dict.fromkeys(row["engine"] for row in rows):
        mine = {row["batch"]: row for row in rows if row["engine"] == name}
        first = mine.get(1, {}).get("tokens_per_second")
        line: Row = {"engine": name}
        for batch in plan.batches:
            row = mine.get(batch)
            speed = row and row["tokens_per_second"]
            shown = "-" if row is None else row.get("failure", "")
            if speed:
                shown = f"{speed:.0f}" + (f" ({speed / first:.1f}x)" if first and batch > 1 else "")
            line[f"batch {batch}"] = shown
        found.append(line)
    for key, show in (("prompts", str), ("accepted_share", _percent)):
        by_batch = {row["batch"]: show(row[key]) for row in rows if row.get(key) is not None}
        found.append({"engine": key.partition("_")[0], **{f"batch {b}": by_batch.get(b, "-") for b in plan.batches}})
    return found


def _over_baseline(rows: Sequence[Row], plan: Scale) -> list[Row]:
    speeds = {(r["engine"], r["batch"]): r["turns_tokens_per_second"] for r in rows if r["verified"]}
    found: list[Row] = []
    for name in dict.fromkeys(name for name, _ in speeds if name != BASELINE):
        line = {}
        for batch in plan.batches:
            turns = zip(speeds.get((name, batch), ()), speeds.get((BASELINE, batch), ()), strict=False)
            line[f"batch {batch}"] = _middle([mine / theirs for mine, theirs in turns]) or "-"
        if set(line.values()) != {"-"}:
            found.append({"engine": name, **line})
    return found


def _middle(ratios: Sequence[float]) -> str:
    """The median and the range; empty where there is nothing."""
    if len(ratios) < 2:
        return "".join(f"{ratio:.2f}x" for ratio in ratios)
    return f"{statistics.median(ratios):.2f}x ({min(ratios):.2f}-{max(ratios):.2f})"


def _cost_of_sampling(rows: Sequence[Row]) -> list[Row]:
    """A line per engine and kind of prompts, a column per way of sampling."""
    found: dict[tuple[str, str], Row] = {}
    for row in rows:
        line = found.setdefault((row["engine"], row["lengths"]), {key: row[key] for key in ("engine", "lengths")})
        line[row["options"]] = _middle(row["turns_ratio"]) or "failed"
    return list(found.values())


def _anatomy(row: Row) -> Row:
    shares = {name: _percent(row[f"{name}_share"]) for name in SHARES}
    memory = row["peak_memory_mb"]
    return {
        "engine": row["engine"],
        **shares,
        "accepted": _percent(row.get("accepted_share")),
        "tokens/verify": f"{row['tokens_per_verify']:.2f}" if "tokens_per_verify" in row else "",
        "grouping rate": _percent(row.get("grouping_rate")),
        "peak memory": "" if memory is None else f"{memory:.0f} MB",
    }


def _latency(row: Row) -> Row:
    shown = {f"P{p}": f"{row[f'p{p}_s']:.2f}" if row["verified"] else "failed" for p in (50, 99)}
    shown["P99 of each turn"] = " ".join(f"{seconds:.2f}" for seconds in row["turns_p99_s"])
    keys = ("engine", "lengths", "batch", "arrivals", "arrivals_per_second")
    return {**{key.replace("_", " "): row[key] for key in keys}, **shown}


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f} %"


def plots(found: Results, folder: Path) -> list[str]:
    """Throughput over batch size, where the time goes, latency and memory; none where matplotlib is not installed."""
    try:
        import matplotlib
    except ImportError:
        found.note("no plots: matplotlib is not installed (pip install 'eqcheck[bench]')")
        return []
    if not any(row["verified"] for row in found.results):
        return []
    matplotlib.use("Agg")
    drawn = [_plot_throughput(found, folder), _plot_shares(found, folder)]
    return [*drawn, _plot_service(found, folder)] if any(row["verified"] for row in found.arrivals) else drawn


def _plot_throughput(found: Results, folder: Path) -> str:
    import matplotlib.pyplot as plt

    plan = found.plan
    figure, axes = plt.subplots(
        len(plan.lengths),
        len(plan.acceptances),
        figsize=(3.4 * len(plan.acceptances), 3 * len(plan.lengths)),
        squeeze=False,
        sharey=True,
    )
    names = list(dict.fromkeys(row["engine"] for row in found.results if row["verified"]))
    for i, lengths in enumerate(plan.lengths):
        for j, acceptance in enumerate(plan.acceptances):
            axis = axes[i][j]
            for number, name in enumerate(names):
                rows = [
                    r
                    for r in found.results
                    if r["verified"] and (r["engine"], r["lengths"], r["acceptance"]) == (name, lengths, acceptance)
                ]
                at, speeds = [r["batch"] for r in rows], [r["tokens_per_second"] for r in rows]
                axis.plot(at, speeds, marker="o", markersize=4, color=f"C{number}", label=name)
            axis.set_xscale("log", base=2)
            axis.set_xticks(plan.batches, [str(batch) for batch in plan.batches])
            axis.set_title(f"{lengths}, {_rate(acceptance)}", fontsize=9)
            axis.grid(alpha=0.3)
        axes[i][0].set_ylabel("tokens a second")
    axes[0][0].set_ylim(bottom=0)  # of all, for they share it
    for axis in axes[-1]:
        axis.set_xlabel("batch size")
    return _save(figure, axes[0][0], folder, "throughput.png", 0.06)


def _plot_shares(found: Results, folder: Path) -> str:
    import matplotlib.pyplot as plt

    batch = found.plan.focus
    figure, axes = plt.subplots(1, len(found.plan.lengths), figsize=(4.2 * len(found.plan.lengths), 2.6), squeeze=False)
    for axis, lengths in zip(axes[0], found.plan.lengths, strict=True):
        setting = (batch, lengths, found.plan.acceptances[0])
        rows = [r for r in found.results if r["verified"] and (r["batch"], r["lengths"], r["acceptance"]) == setting]
        names = [row["engine"] for row in rows]
        left = [0.0] * len(rows)
        for share in SHARES:
            # Milliseconds a token, so that the bars' lengths compare.
            cost = [1000 * (row[f"{share}_share"] or 0) / row["tokens_per_second"] for row in rows]
            axis.barh(names, cost, left=left, color=COLOURS[share], label=share)
            left = [a + b for a, b in zip(left, cost, strict=True)]
        axis.invert_yaxis()
        axis.set_title(f"batch {batch}, {lengths} prompts, real draft", fontsize=9)
        axis.set_xlabel("milliseconds a token")
    return _save(figure, axes[0][0], folder, "shares.png", 0.1)


def _plot_service(found: Results, folder: Path) -> str:
    """Of engines that take prompts as they come: latency under arrivals, peak memory, grouping rate."""
    import matplotlib.pyplot as plt

    focus = (found.plan.focus, found.plan.acceptances[0])
    timed = {(r["engine"], r["lengths"]): r for r in found.results if (r["batch"], r["acceptance"]) == focus}
    waited = {(row["engine"], row["lengths"]): row for row in found.arrivals if row["verified"]}
    panels = {
        "P50, seconds from arrival to last token": {key: row["p50_s"] for key, row in waited.items()},
        "P99, seconds from arrival to last token": {key: row["p99_s"] for key, row in waited.items()},
        "peak memory, MB": {key: timed[key]["peak_memory_mb"] for key in waited},
        "grouping rate, where rows are grouped": {key: timed[key]["grouping_rate"] for key in waited},
    }
    figure, axes = plt.subplots(1, len(panels), figsize=(3.4 * len(panels), 2.6), sharey=True)
    for axis, (title, values) in zip(axes, panels.items(), strict=True):
        names = list(dict.fromkeys(name for name, _ in values))
        height = 0.8 / len(found.plan.lengths)
        for number, lengths in enumerate(found.plan.lengths):
            at = [place + number * height for place in range(len(names))]
            known = [values.get((name, lengths)) for name in names]
            widths = [float("nan") if value is None else value for value in known]
            bars = axis.barh(at, widths, height * 0.9, label=f"{lengths} prompts")
            axis.bar_label(bars, fmt="{:.3g}", padding=2, fontsize=7)  # a zero is told from what is not known
        axis.set_yticks([place + 0.4 - height / 2 for place in range(len(names))], names)
        axis.set_title(title, fontsize=9)
        axis.margins(x=0.12)
        axis.grid(axis="x", alpha=0.3)
    axes[0].invert_yaxis()
    return _save(figure, axes[0], folder, "service.png", 0.1)


def _save(figure: Any, first: Any, folder: Path, name: str, bottom: float) -> str:
    """Write a figure, with the legend of its first axes in the room left at the bottom."""
    import matplotlib.pyplot as plt

    handles, labels = first.get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=len(labels), frameon=False)
    figure.tight_layout(rect=(0, bottom, 1, 1))
    figure.savefig(folder / name, dpi=110)
    plt.close(figure)
    return name
