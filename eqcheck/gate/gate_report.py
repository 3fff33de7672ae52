"""A gate as data and as a page; `eqcheck.gate.sentences` makes its words."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from eqcheck.contract.errors import UsageError, one_line, printable
from eqcheck.gate.bets import LENGTHS
from eqcheck.gate.cause import UNATTRIBUTED, EditCause, cause, conditions_of
from eqcheck.gate.compared_rows import (
    ENDS,
    Row,
    ServerError,
    Wanted,
    acceptance,
    acceptance_of_positions,
    second_choices,
)
from eqcheck.gate.comparison import Gate
from eqcheck.gate.reproduction import TRIES, Requests, SmallestSearch, curls, sampled_script, script
from eqcheck.gate.sentences import condition_line, explained, sections, summary, text_of, verdict_of
from eqcheck.report.checks import Check, Status
from eqcheck.report.page import page
from eqcheck.transparent.truth.rounding_evidence import CROSSES

FORMAT = "eqcheck-gate/1"
LOOKED_AT = 3  # wrong rows; one is to be shown again


def built(gate: Gate, redact: bool = False) -> dict[str, Any]:
    """Return the report: verdict, noise, threshold, evidence, speeds, and a violation for each way to be wrong."""
    violations = [] if gate.verdict != "violation" else _violations(gate, redact)
    greedy, sampled = (sum(bool(row.asked.temperature) == yes for row in gate.rows) for yes in (False, True))
    return {
        "format": FORMAT,
        "verdict": gate.verdict,
        "speculative": {"url": gate.speculative.url, "model": gate.speculative.model},
        "plain": {"url": gate.plain.url, "model": gate.plain.model, "scoring": gate.plain.scoring},
        "visible_laws": gate.sampled.visible,
        "draft": gate.draft.url if gate.draft is not None else None,
        "requests": len(gate.rows),
        "requested": gate.settings.requests,
        "greedy": greedy,
        "sampled": sampled,
        "tokens": sum(len(row.answer.tokens) for row in gate.rows),
        "noise": _noise(gate),
        "threshold": gate.threshold,
        "evidence": {
            "log10": round(gate.log_evidence / math.log(10), 2),
            "decides": CROSSES,
            "exceeding": sum(row.beyond(gate.threshold) is not None for row in gate.greedy),
        },
        "too_long": gate.too_long,
        "untold": gate.untold,
        "prompts": len({row.answer.prompt for row in gate.rows}),
        "interrupted": gate.interrupted,
        "out_of_time": gate.out_of_time,
        "lacking": gate.lacking if gate.verdict == "inconclusive" else 0,
        "stops_heeded": gate.stops_heeded,
        "speed": {name: round(speed.rate, 1) for name, speed in gate.speeds.items()},
        "speculates": gate.speculates,
        "acceptance": acceptance(gate.drafted),
        "acceptance_of_positions": acceptance_of_positions(gate.drafted),
        "calls": {
            server.role: {"calls": server.calls, "retried": server.retried}
            for server in filter(None, (gate.speculative, gate.plain, gate.draft))
        },
        "violations": violations,
    }


def _noise(gate: Gate) -> dict[str, Any]:
    """Return the noise as measured."""
    return {
        "greatest_gap_of_control": max((row.gap for row in gate.control), default=0.0),
        "greatest_change_of_a_score": gate.noise,
        "greatest_change_in_pieces": gate.in_pieces,
        "cache_broken": gate.cache_broken,
        "step": gate.floor,
        "visible": round(gate.visible, 3),
        "control_rows": len(gate.control),
    }


def _violations(gate: Gate, redact: bool) -> list[dict[str, Any]]:
    # Ends and lengths first: they are read from the rows and need no search. One row may end so by an accident of the
    # server, so two decide.
    made = []
    counts, ends = gate.wrong_ends, gate.ends
    for kind in ENDS:
        rows = [row for row in gate.rows if row.wrong_end(ends) == kind]
        if counts[kind] > 1:
            made.append(_violation(gate, EditCause("bookkeeping", kind, of=len(rows)), rows, redact))
    for name in gate.lengths.crossed:
        kind, bet = LENGTHS[name], gate.lengths.bets[name]
        if counts[kind] < 2:
            rows = sorted((row for row, _ in gate.lengths.won[name]), key=lambda row: row.asked.temperature > 0)
            made.append(
                _violation(
                    gate, EditCause("bookkeeping", kind, given=bet.won, of=bet.counted, length=name), rows, redact
                )
            )
    if gate.log_greedy >= math.log(CROSSES):
        rows = sorted(
            (row for row in gate.greedy if row.beyond(gate.threshold) is not None), key=lambda row: row.request
        )
        only_beside = any(row.beside for row in rows) and _only_beside(gate, rows)
        why = EditCause("sampling", "greedy-drawn") if only_beside else _searched(gate, rows)
        made.append(_violation(gate, why, rows, redact))
    if gate.sampled.log_evidence >= math.log(CROSSES):
        why = EditCause("sampling", "stray-law")
        made.append(_violation(gate, why, gate.sampled.by_weight, redact))
    return made


def _searched(gate: Gate, rows: Sequence[Row]) -> EditCause:
    """Search the cause; the verdict stands without it if a server stops answering."""
    try:
        return cause(gate, rows)
    except ServerError:
        return UNATTRIBUTED


def _only_beside(gate: Gate, rows: Sequence[Row]) -> bool:
    """Return whether greedy rows are wrong only together with sampled rows, and right without them."""
    again = gate.speculative.each(gate.speculative.complete, [row.asked for row in rows[:12]], rows[0].concurrency)
    gaps = [
        max((place.gap for place in gate.plain.scored(answer.prompt, answer.tokens)), default=0.0) for answer in again
    ]
    return not any(gap > gate.threshold for gap in gaps)


def _violation(gate: Gate, why: EditCause, rows: Sequence[Row], redact: bool) -> dict[str, Any]:
    first = rows[0]
    at = first.furthest if first.asked.temperature else first.beyond(gate.threshold)
    at = len(first.answer.tokens) - 1 if at is None or why.kind in ENDS else at
    place = first.places[at] if at < len(first.places) else None
    conditions = conditions_of(gate, rows) if why.kind != "stray-law" else {}
    said, condition = explained(gate, why, rows), condition_line(conditions)
    made = {
        "fingerprint": why.fingerprint,
        "component": why.component,
        "kind": why.kind,
        "count": len(rows),
        "first": {
            "request": first.request,
            "token_index": at,
            "expected": place.best if place is not None and place.gap and not first.asked.temperature else None,
            "observed": first.answer.tokens[at] if first.answer.tokens else None,
            "gap": round(place.gap, 6) if place is not None else 0.0,
        },
        "conditions": conditions,
        "cause": {"certainty": said.certainty, "text": said.cause, "evidence": said.evidence},
        "explanation": " ".join([said.cause, said.evidence, *([f"Wrong {condition}."] if condition else [])]),
    }
    if why.kind not in ENDS and why.kind != "stray-law":
        seconds = second_choices(gate.greedy, gate.threshold)
        made["second_choices"] = {"wrong_tokens": seconds.wrong, "second": seconds.second}
    return made if redact else made | _shown(gate, why, rows, at)


def _shown(gate: Gate, why: EditCause, rows: Sequence[Row], at: int) -> dict[str, Any]:
    """Return commands that show a wrong row, and the smallest requests that do so each time, with a script."""
    if not gate.plain.url.startswith("http"):
        asked, tokens = rows[0].asked, list(rows[0].answer.tokens)
        shown: dict[str, Any] = {"prompt": list(rows[0].answer.prompt), "max_tokens": asked.max_tokens}
        return {"row": shown | {"observed": tokens}, "compared": _compared(gate, why, rows[0], at)}
    if why.kind == "stray-law":
        asked = replace(rows[0].asked, prompt=rows[0].answer.prompt)
        lines = sampled_script(gate, asked)
        return {"curl": curls(gate, Requests((asked,), 0))} | ({"script": lines} if lines else {})
    search = SmallestSearch(gate, why.kind, why.length)
    tried = (search.smallest(row) for row in rows[:LOOKED_AT])
    try:
        case = next((one for one in tried if one is not None), None)
    except ServerError:  # the verdict stands without it
        case = None
    if case is None or search.row is None:
        limit = rows[0].asked.max_tokens if why.kind in ENDS else at + 1
        asked = replace(rows[0].asked, prompt=rows[0].answer.prompt, max_tokens=limit)
        return {"curl": curls(gate, Requests((asked,), 0)), "compared": _compared(gate, why, rows[0], at)}
    smallest: dict[str, Any] = {
        "at_once": len(case.requests),
        "prompt_tokens": len(search.row.answer.prompt),
        "asked": search.asked,
    }
    smallest |= {"max_tokens": search.row.asked.max_tokens, "observed": list(search.row.answer.tokens), "at": search.at}
    natively = gate.speculative.native or gate.plain.native  # the script speaks OpenAI's completions
    lines = "" if natively else script(gate, case, None if why.kind in ENDS else search.at)
    return {
        "curl": curls(gate, case),
        "smallest": smallest | {"tries": TRIES, "script": lines},
        "compared": _compared(gate, why, search.row, search.at),
    }


def _compared(gate: Gate, why: EditCause, row: Row, at: int) -> dict[str, Any] | None:
    """Return the row, what the plain server returns for it, and the first token that differs; None if it is down now.

    For a wrong token the plain server continues the row's own tokens before it: rounding may lead it elsewhere sooner.
    """
    prompt, got = row.answer.prompt, list(row.answer.tokens)
    wanted = replace(row.asked, prompt=prompt, seed=None)
    ends = why.kind in ENDS
    try:
        expected = list(gate.plain.complete(wanted).tokens)
        if not ends and expected[:at] != got[:at]:
            rest = Wanted((*prompt, *got[:at]), max(1, wanted.max_tokens - at), stops=wanted.stops)
            expected = [*got[:at], *gate.plain.complete(rest).tokens]
    except ServerError:
        return None
    differing = (place for place, pair in enumerate(zip(expected, got, strict=False)) if pair[0] != pair[1])
    index = next(differing, min(len(expected), len(got))) if ends else at
    gap = 0.0 if ends or at >= len(row.places) else round(row.places[at].gap, 6)
    return {"prompt": list(prompt), "expected": expected, "got": got, "index": index, "gap": gap}


def checks_of(report: Mapping[str, Any]) -> list[Check]:
    """Return the gate as checks for a CI server: its verdict, and each violation."""
    status: dict[str, Status] = {"violation": "failed", "inconclusive": "inconclusive"}
    verdict, said = report["verdict"], printable(text_of(report))
    checks = [Check("verdict", status.get(verdict, "passed"), f"{verdict}, {report['tokens']} tokens", said)]
    return [*checks, *(Check(one["fingerprint"], "failed", one["explanation"]) for one in report["violations"])]


def page_of(report: Mapping[str, Any], gaps: Mapping[str, Sequence[float]], out: str = "") -> str:
    """Return the report as a page, with the largest gap of each row of both servers on a logarithmic axis."""

    def x(gap: float) -> float:
        return round(100 + 140 * min(4.0, max(0.0, 3 + math.log10(max(gap, 1e-9)))), 1)

    marks = {name: [(x(gap), 3 * (at % 9) - 12) for at, gap in enumerate(values)] for name, values in gaps.items()}
    return page(
        "eqcheck gate",
        "gate.jinja",
        report=report,
        verdict=verdict_of(report),
        sections=sections(report, out),
        summary=summary(report),
        tables=_tables(report),
        marks=marks,
        limit=x(report["threshold"]),
    )


def _tables(report: Mapping[str, Any]) -> list[list[tuple[str, str, int, int]]]:
    """Return for each violation the rows of its table of conditions: name, value, wrong rows, all rows."""
    return [
        [(name, value, *count) for name, counts in violation["conditions"].items() for value, count in counts.items()]
        for violation in report["violations"]
    ]


def earlier(path: Path) -> dict[str, Any]:
    """Read the report of an earlier gate; `UsageError` for a file that is none."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"--baseline {path}: cannot be read: {one_line(str(error), 200)}") from None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise UsageError(f"--baseline {path}: expected the gate.json of a gate, in the format {FORMAT}")
    return data
