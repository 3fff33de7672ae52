"""Where the speed comes from, as pictures that one understands without the text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import log2, log10
from pathlib import Path
from typing import Any

from benchmarks.law import Fit, fitted
from benchmarks.why import Law

GAIN, LOSS, WHOLE = "#3182bd", "#e6550d", "#636363"


def plots(found: Law, folder: Path) -> list[str]:
    """The pictures that there is something to draw in; none where matplotlib is not installed."""
    try:
        import matplotlib
    except ImportError:
        found.notes.append("no plots: matplotlib is not installed (pip install 'eqcheck[bench]')")
        return []
    matplotlib.use("Agg")
    pictures: dict[str, tuple[Callable[[Law], Any], object]] = {
        "waterfall.png": (_waterfall, found.speeds),
        "predicted.png": (_predicted, found.speeds),
        "best-k.png": (_best, found.best),
        "law.png": (_law, found.speeds),
        "budget.png": (_budget, found.budgets),
        "traces.png": (_traces, found.traces),
    }
    drawn = []
    for name, (draw, there) in pictures.items():
        if there:
            figure = draw(found)
            figure.savefig(folder / name, dpi=110, bbox_inches="tight")
            matplotlib.pyplot.close(figure)
            drawn.append(name)
    return drawn


def _axes(count: int, width: float, height: float, title: str, **shared: Any) -> tuple[Any, Any]:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, count, figsize=(width * count, height), squeeze=False, **shared)
    figure.suptitle(title, fontsize=11, x=0.01, ha="left")
    figure.subplots_adjust(top=0.8, bottom=0.18, wspace=0.06 if shared else 0.25)
    return figure, axes[0]


def _waterfall(found: Law) -> Any:
    """From plain decoding, 1, by every factor to the speed-up that was measured."""
    batch = found.plan.focus
    rows = [row for row in found.speeds if row["batch"] == batch]
    title = f"What makes the speed-up over plain decoding, at batch {batch}: every bar multiplies what is above it"
    figure, axes = _axes(len(rows), 4.6, 3.6, title, sharey=True)
    for axis, row in zip(axes, rows, strict=True):
        names = ["plain decoding", *row["factors"], "measured speed-up"]
        at = most = 1.0
        for place, factor in enumerate(row["factors"].values(), start=1):
            colour = GAIN if factor >= 1 else LOSS
            axis.barh(place, at * factor - at, left=at, color=colour, height=0.7)
            axis.plot([at * factor] * 2, [place - 0.35, place + 1.35], color="#bdbdbd", linewidth=0.8)
            axis.text(max(at, at * factor) * 1.04, place, f"x {factor:.2f}", va="center", fontsize=8, color=colour)
            at *= factor
            most = max(most, at)
        for place, value in ((0, 1.0), (len(names) - 1, at)):
            axis.barh(place, value, color=WHOLE, height=0.7)
            axis.text(value * 1.04, place, f"{value:.2f}", va="center", fontsize=8, weight="bold")
        axis.set_yticks(range(len(names)), names, fontsize=8)
        axis.set_xscale("log", base=2)
        ticks = (0.5, 1, 2, 4, 8)
        axis.set_xticks(ticks, [f"{tick}x" for tick in ticks], fontsize=8)
        axis.set_xlim(0.4, max(8, 2 * most))  # with room for what is written behind the longest bar
        axis.set_title(row["engine"], fontsize=10)
        axis.grid(axis="x", alpha=0.3)
        axis.axvline(1, color="black", linewidth=0.8)
    axes[0].invert_yaxis()
    return figure


def _predicted(found: Law) -> Any:
    """The speed-up that was measured over batch sizes, and the three predictions."""
    names = list(dict.fromkeys(row["engine"] for row in found.speeds))
    figure, axes = _axes(len(names), 4, 3, "Speed-up over plain decoding: measured, and predicted", sharey=True)
    words = {
        "same": "formula, one rate for all",
        "by_row": "formula, a rate for each row",
        "waiting": "rows wait, costs of each call",
    }
    for axis, name in zip(axes, names, strict=True):
        rows = [row for row in found.speeds if row["engine"] == name]
        at = [row["batch"] for row in rows]
        low, high = ([abs(f(row["turns"]) - row["speed_up"]) for row in rows] for f in (min, max))
        measured = [row["speed_up"] for row in rows]
        axis.errorbar(at, measured, yerr=[low, high], color="black", marker="o", capsize=3, label="measured (range)")
        for number, (key, label) in enumerate(words.items()):
            marks = "^sd"[number]
            axis.plot(
                at, [row["predicted"][key] for row in rows], marks, linestyle=":", color=f"C{number}", label=label
            )
        _by_batch(axis, at)
        axis.set_title(name, fontsize=10)
        axis.axhline(1, color="#bdbdbd", linewidth=0.8)
    axes[0].set_ylabel("times plain decoding")
    axes[0].set_ylim(bottom=0)
    axes[-1].legend(fontsize=7, loc="upper left", bbox_to_anchor=(1.02, 1))
    return figure


def _by_batch(axis: Any, at: Sequence[int]) -> None:
    axis.set_xscale("log", base=2)
    axis.set_xticks(at, [str(batch) for batch in at])
    axis.set_xlabel("batch size")
    axis.grid(alpha=0.3)


def _best(found: Law) -> Any:
    """Throughput over K, measured and predicted, each beside its best."""
    title = f"How many draft tokens are best? ({found.best[0]['engine']})"
    figure, axes = _axes(len(found.best), 3.6, 2.9, title, sharey=True)
    for axis, row in zip(axes, found.best, strict=True):
        measured = {int(k): speed for k, speed in row["tokens_per_second"].items()}
        gains = {int(k): gain for k, gain in row["gains"].items() if int(k) in measured}
        for values, label, colour, best in (
            (measured, "measured", "black", row["measured"]),
            (gains, "predicted", "C0", max(gains, key=lambda k: gains[k])),
        ):
            top = max(values.values())
            axis.plot(list(values), [value / top for value in values.values()], marker="o", color=colour, label=label)
            axis.plot(best, 1, marker="*", markersize=15, color=colour)
        axis.set_title(f"batch {row['batch']}", fontsize=10)
        axis.set_xlabel("draft tokens a round (K)")
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("throughput, share of the best")
    axes[0].legend(fontsize=8, title="star: the best K", title_fontsize=8)
    return figure


def fit_of_drafts(found: Law) -> Fit | None:
    """Acceptance length over the logarithms of parameters and of tokens of training."""
    if len(found.drafts) < 5:
        return None
    points = [(log10(row["parameters"]), log10(row["tokens"])) for row in found.drafts]
    return fitted(points, [row["acceptance_length"] for row in found.drafts])


def fit_of_speeds(found: Law, name: str) -> Fit | None:
    """Speed-up of an engine over the logarithm of the batch size, to base 2; through three points any line goes."""
    rows = [row for row in found.speeds if row["engine"] == name]
    if len(rows) < 4:
        return None
    return fitted([(log2(row["batch"]),) for row in rows], [row["speed_up"] for row in rows])


def _law(found: Law) -> Any:
    """The log-linear laws: acceptance over the size and the training of the draft, speed-up over the batch size."""
    fit = fit_of_drafts(found)
    figure, axes = _axes(2 if fit else 1, 5, 3.4, "Is it linear in the logarithm? Dots: measured. Lines: fitted")
    if fit:
        sizes = sorted({row["parameters"] for row in found.drafts})
        for number, tokens in enumerate(sorted({row["tokens"] for row in found.drafts})):
            rows = sorted((r for r in found.drafts if r["tokens"] == tokens), key=lambda row: row["parameters"])
            values = [row["acceptance_length"] for row in rows]
            label = f"{tokens / 1e6:.2f} M tokens of training"
            axes[0].plot([row["parameters"] for row in rows], values, "o", color=f"C{number}", label=label)
            line = [fit(log10(size), log10(tokens)) for size in sizes]
            axes[0].plot(sizes, line, linestyle="--", color=f"C{number}")
        axes[0].set_xscale("log")
        axes[0].set_xlabel("parameters of the draft")
        axes[0].set_ylabel("tokens a round")
        axes[0].set_ylim(bottom=1)  # what plain decoding has
        words = f"R2 {fit.r2:.3f}; wrong by up to {fit.left_out:.2f} tokens for a draft left out"
        axes[0].set_title(words, fontsize=9)
        axes[0].legend(fontsize=7, loc="lower right")
        axes[0].grid(alpha=0.3)
    axis = axes[-1]
    batches = sorted({row["batch"] for row in found.speeds})
    for number, name in enumerate(dict.fromkeys(row["engine"] for row in found.speeds)):
        through = fit_of_speeds(found, name)
        rows = [row for row in found.speeds if row["engine"] == name]
        label = name + (f": {through.coefficients[1]:+.2f} a doubling, R2 {through.r2:.2f}" if through else "")
        at, values = [row["batch"] for row in rows], [row["speed_up"] for row in rows]
        axis.plot(at, values, "o", color=f"C{number}", label=label)
        if through:
            axis.plot(batches, [through(log2(batch)) for batch in batches], linestyle="--", color=f"C{number}")
    _by_batch(axis, batches)
    axis.set_ylabel("times plain decoding")
    axis.set_ylim(bottom=0)
    axis.legend(fontsize=7, loc="lower right")
    return figure


def _budget(found: Law) -> Any:
    """Throughput within shares of the memory, for each engine that can be bounded."""
    names = list(dict.fromkeys(row["engine"] for row in found.budgets))
    title = f"Batch {found.budgets[0]['batch']}: throughput in less memory"
    figure, axes = _axes(len(names), 4, 2.8, title, sharey=True)
    for axis, name in zip(axes, names, strict=True):
        rows = [row for row in found.budgets if row["engine"] == name]
        bars = axis.bar([f"{row['share']:.0%}" for row in rows], [row["throughput_kept"] for row in rows], color=GAIN)
        axis.bar_label(bars, [f"{row['throughput_kept']:.0%}" for row in rows])
        axis.axhline(1, color="black", linewidth=0.8)
        axis.set_title(name, fontsize=10)
        axis.set_xlabel("share of the memory")
        axis.margins(y=0.15)
    axes[0].set_ylabel("throughput kept")
    return figure


def _traces(found: Law) -> Any:
    """How many rounds rows need for as many tokens."""
    tables = found.traces
    title = f"Rounds that rows need for 128 tokens: the wider, the longer a batch of {tables[0]['batch']} waits"
    figure, (axis,) = _axes(1, 8, 2.8, title)
    boxes = axis.boxplot(
        [row["rounds"] for row in tables], orientation="horizontal", whis=(5, 95), showfliers=False, widths=0.6
    )
    for box in boxes["medians"]:
        box.set_color(LOSS)
    labels = [f"{row['name']} (x {row['slowest_of_batch']:.2f})" for row in tables]
    axis.set_yticks(range(1, len(labels) + 1), labels)
    axis.set_xlabel("rounds (box: half of the rows; lines: nine in ten; x: the slowest of the batch over the mean)")
    axis.invert_yaxis()
    axis.grid(axis="x", alpha=0.3)
    return figure
