"""Where the speed comes from, as JSON and as a page of tables and pictures."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tabulate import tabulate

from benchmarks.lawplots import fit_of_drafts, fit_of_speeds, plots
from benchmarks.why import Law

CLOSE_ACCEPTANCE, CLOSE_SPEED = 0.03, 0.10
HOLDS_R2, HOLDS_ERROR = 0.95, 0.1


def write(found: Law, folder: Path) -> list[str]:
    """``law.json``, ``law.md`` and, where matplotlib is installed, pictures; the names of what was written."""
    folder.mkdir(parents=True, exist_ok=True)
    pictures = plots(found, folder)
    (folder / "law.json").write_text(json.dumps(found.to_dict(), indent=1) + "\n")
    shown = "\n\n".join(f"![{name}]({name})" for name in pictures)
    machine = ", ".join(f"{key} {value}" for key, value in found.machine.items())
    text = f"# Where the speed comes from\n\n{machine}.\n\n{shown}\n\n{tables(found, 'github')}\n"
    (folder / "law.md").write_text(text)
    return ["law.json", "law.md", *pictures]


def tables(found: Law, style: str = "simple") -> str:
    """Acceptance and speed-up beside what was predicted, factors, best K, memory, the laws, the generators."""
    parts = [
        _table("Tokens a round, measured and by the formula", [_accepted(row) for row in found.speeds], style),
        _table("Speed-up over plain decoding, measured and predicted", [_speed(row) for row in found.speeds], style),
        _table(
            "Factors of the speed-up; their product is what was measured", [_factors(r) for r in found.speeds], style
        ),
        _table("Best K, by the formula and measured", [_best(row) for row in found.best], style),
        _table("Throughput within a share of the memory", [_kept(row) for row in found.budgets], style),
        _table("Generators of acceptance, beside what they imitate", [_trace(row) for row in found.traces], style),
    ]
    return "\n\n".join([*filter(None, parts), *laws(found), *(f"Note: {note}." for note in found.notes)])


def laws(found: Law) -> list[str]:
    """Whether the log-linear laws hold, in sentences."""
    said = []
    if fit := fit_of_drafts(found):
        b0, size, tokens = fit.coefficients
        holds = fit.r2 >= HOLDS_R2 and fit.left_out <= HOLDS_ERROR
        said.append(
            f"Acceptance length over drafts: {b0:.2f} {size:+.2f} log10(parameters) {tokens:+.2f} log10(tokens of "
            f"training), R2 {fit.r2:.3f}, and an error of at most {fit.left_out:.2f} tokens for a draft left out. "
            f"The log-linear law {'holds' if holds else 'does not hold'} on these {len(found.drafts)} drafts."
        )
    for name in dict.fromkeys(row["engine"] for row in found.speeds):
        line = fit_of_speeds(found, name)
        if line is None:
            continue
        holds = line.r2 >= HOLDS_R2
        said.append(
            f"Speed-up of {name} over the batch size: {line.coefficients[0]:.2f} {line.coefficients[1]:+.3f} log2(B), "
            f"R2 {line.r2:.2f}: the law {'holds' if holds else 'does not hold'}."
        )
    return said


def _table(title: str, rows: Sequence[dict[str, Any]], style: str) -> str:
    if not rows:
        return ""
    body = tabulate(rows, headers="keys", tablefmt=style, disable_numparse=True, stralign="right")
    return f"**{title}**\n\n{body}" if style == "github" else f"{title}\n\n{body}"


def _against(predicted: float, measured: float, close: float) -> str:
    error = predicted / measured - 1
    return f"{predicted:.2f} ({error:+.0%}{'' if abs(error) <= close else ', off'})"


def _accepted(row: dict[str, Any]) -> dict[str, Any]:
    gave = row["acceptance"]
    shown = {key: _against(gave[key], gave["tokens"], CLOSE_ACCEPTANCE) for key in ("same", "by_row")}
    return {
        "engine": row["engine"],
        "batch": row["batch"],
        "measured": f"{gave['tokens']:.3f}",
        "a": f"{gave['a']:.3f}",
        "one rate": shown["same"],
        "a rate for each row": shown["by_row"],
        "rate by position": " ".join(f"{one:.2f}" for one in gave["positions"]),
        "if all waited for the least": f"{gave['waiting']:.2f}",
    }


def _speed(row: dict[str, Any]) -> dict[str, Any]:
    names = {"same": "one rate", "by_row": "a rate for each row", "waiting": "rows wait"}
    return {
        "engine": row["engine"],
        "batch": row["batch"],
        "measured (range)": f"{row['speed_up']:.2f} ({min(row['turns']):.2f}-{max(row['turns']):.2f})",
        **{name: _against(row["predicted"][key], row["speed_up"], CLOSE_SPEED) for key, name in names.items()},
    }


def _factors(row: dict[str, Any]) -> dict[str, Any]:
    factors = {name: f"{factor:.2f}" for name, factor in row["factors"].items()}
    return {
        "engine": row["engine"],
        "batch": row["batch"],
        **factors,
        "product": f"{math.prod(row['factors'].values()):.2f}",
    }


def _best(row: dict[str, Any]) -> dict[str, Any]:
    speeds = " ".join(f"{k}: {speed:.0f}" for k, speed in row["tokens_per_second"].items())
    lost = row["lost_by_prediction"]
    return {
        "engine": row["engine"],
        "batch": row["batch"],
        "a": f"{row['a']:.3f}",
        "predicted": row["predicted"] or "none: draft nothing",
        "measured": row["measured"],
        "lost with the predicted": "" if lost is None else f"{lost:.1%}",
        "tokens a second by K": speeds,
    }


def _kept(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "engine": row["engine"],
        "batch": row["batch"],
        "memory": f"{row['share']:.0%} ({row['kv_bytes'] / 2**20:.1f} MiB)",
        "throughput kept": f"{row['throughput_kept']:.1%} ({min(row['turns']):.0%}-{max(row['turns']):.0%})",
        "verify calls": row["verify_calls"],
    }


def _trace(row: dict[str, Any]) -> dict[str, Any]:
    shown = {"generator": row["name"], "tokens a round": f"{row['tokens_a_round']:.2f}"}
    for place, name in enumerate(("tokens a round", "correlation", "dispersion")):
        if "here" in row:
            shown[name] = f"{row['here'][place]:.2f} (traces: {row['measured'][place]:.2f})"
    return {**shown, f"slowest of {row['batch']}": f"{row['slowest_of_batch']:.2f}"}
