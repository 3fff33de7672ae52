"""A gate as data, as text for a terminal, and as a page. All sentences of a gate are made here."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from textwrap import fill
from typing import Any

from eqcheck.contract.escaping import printable
from eqcheck.contract.kinds import KINDS
from eqcheck.explanation.layout import columns
from eqcheck.explanation.records import many
from eqcheck.gate.answers import ServerError, acceptance, acceptance_of_positions
from eqcheck.gate.cause import AGAIN, BLOCK, SERVES_DRAFT, TIMES, EditCause, cause
from eqcheck.gate.conditions import CONCURRENCY, Counts, conditions_of, needed_conditions
from eqcheck.gate.reproduction import TRIES, Requests, SmallestSearch, curls, script
from eqcheck.gate.rows import ENDS, Row
from eqcheck.gate.run import DOUBTS, Gate
from eqcheck.report.checks import Check, Status
from eqcheck.report.templates import page
from eqcheck.truth.evidence import CROSSES, ROOM

FORMAT = "eqcheck-gate/1"
MOST_VALUES = 7  # of a condition that a terminal shows
LOOKED_AT = 3  # wrong rows; one is to be shown again


def built(gate: Gate, redact: bool = False) -> dict[str, Any]:
    """The report: verdict, noise, threshold, evidence, speeds, and a violation for each way in which rows are wrong."""
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
        "greedy": greedy,
        "sampled": sampled,
        "tokens": sum(len(row.answer.tokens) for row in gate.rows),
        "noise": _noise(gate),
        "threshold": gate.threshold,
        "evidence": {
            "log10": round(gate.log_evidence / math.log(10), 2),
            "decides": CROSSES,
            "exceeding": sum(row.beyond(gate.threshold) is not None for row in _greedy(gate)),
        },
        "too_long": gate.too_long,
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
    """The noise, as measured."""
    return {
        "greatest_gap_of_control": max((row.gap for row in gate.control), default=0.0),
        "greatest_change_of_a_score": gate.noise,
        "step": gate.floor,
        "visible": round(gate.visible, 3),
        "control_rows": len(gate.control),
    }


def _greedy(gate: Gate) -> list[Row]:
    return [row for row in gate.rows if not row.asked.temperature]


def _violations(gate: Gate, redact: bool) -> list[dict[str, Any]]:
    made = []
    counts, ends = gate.wrong_ends, gate.ends
    for kind in ENDS:
        rows = [row for row in gate.rows if row.wrong_end(ends) == kind]
        if counts[kind] > 1:
            made.append(_violation(gate, EditCause("bookkeeping", kind, of=len(rows)), rows, redact))
    if gate.log_greedy >= math.log(CROSSES):
        rows = sorted(
            (row for row in _greedy(gate) if row.beyond(gate.threshold) is not None), key=lambda row: row.request
        )
        only_beside = any(row.beside for row in rows) and _only_beside(gate, rows)
        why = EditCause("sampling", "greedy-drawn") if only_beside else cause(gate, rows)
        made.append(_violation(gate, why, rows, redact))
    if gate.sampled.log_evidence >= math.log(CROSSES):
        rows = [row for row in gate.rows if row.asked.temperature]
        made.append(_violation(gate, EditCause("sampling", "stray-law", gate.sampled.best), rows, redact))
    return made


def _only_beside(gate: Gate, rows: Sequence[Row]) -> bool:
    """Whether greedy rows are wrong beside sampled rows alone: asked again without these, they are right."""
    again = gate.speculative.each(gate.speculative.complete, [row.asked for row in rows[:12]], rows[0].concurrency)
    gaps = [
        max((place.gap for place in gate.plain.scored(answer.prompt, answer.tokens)), default=0.0) for answer in again
    ]
    return not any(gap > gate.threshold for gap in gaps)


def _violation(gate: Gate, why: EditCause, rows: Sequence[Row], redact: bool) -> dict[str, Any]:
    first = rows[0]
    at = None if first.asked.temperature else first.beyond(gate.threshold)
    at = len(first.answer.tokens) - 1 if at is None else at
    place = first.places[at] if at < len(first.places) and not first.asked.temperature else None
    conditions = conditions_of(gate, rows) if why.kind != "stray-law" else {}
    made = {
        "fingerprint": why.fingerprint,
        "component": why.component,
        "kind": why.kind,
        "count": len(rows),
        "first": {
            "request": first.request,
            "token_index": at,
            "expected": place.best if place is not None and place.gap else None,
            "observed": first.answer.tokens[at] if first.answer.tokens else None,
            "gap": round(place.gap, 6) if place is not None else 0.0,
        },
        "conditions": conditions,
        "explanation": " ".join([_explained(gate, why, rows), *_where(conditions)]),
    }
    return made if redact else made | _shown(gate, why, rows, at)


def _shown(gate: Gate, why: EditCause, rows: Sequence[Row], at: int) -> dict[str, Any]:
    """Commands that show a wrong row, and the smallest requests that do so each time, with a script."""
    if not gate.plain.url.startswith("http"):
        return {}
    search = SmallestSearch(gate, why.kind)
    tried = (search.smallest(row) for row in (rows[:LOOKED_AT] if why.kind != "stray-law" else ()))
    try:
        case = next((one for one in tried if one is not None), None)
    except ServerError:  # the verdict stands without it
        case = None
    if case is None or search.row is None:
        return {
            "curl": curls(gate, Requests((replace(rows[0].asked, prompt=rows[0].answer.prompt, max_tokens=at + 1),), 0))
        }
    smallest: dict[str, Any] = {
        "at_once": len(case.requests),
        "prompt_tokens": len(search.row.answer.prompt),
        "asked": search.asked,
    }
    smallest |= {"max_tokens": search.row.asked.max_tokens, "observed": list(search.row.answer.tokens), "at": search.at}
    natively = gate.speculative.native or gate.plain.native  # the script speaks OpenAI's completions
    shown = "" if natively else script(gate, case, search.at)
    return {
        "curl": curls(gate, case),
        "smallest": smallest | {"tries": TRIES, "script": shown},
    }


def _where(conditions: Counts) -> list[str]:
    """A sentence for each condition that all wrong rows meet."""
    said = []
    for name, value in needed_conditions(conditions):
        if name == CONCURRENCY:
            said.append(f"No row is wrong with a concurrency below {value}.")
        else:
            said.append(f"In the table {name!r} all wrong rows stand under {value!r}.")
    return said


def _explained(gate: Gate, why: EditCause, rows: Sequence[Row]) -> str:
    """The cause in plain sentences."""
    first = rows[0]
    at = first.beyond(gate.threshold)
    said = []
    if why.kind in ENDS:
        said.append(f"{len(rows)} of {len(gate.rows)} rows end as no row of the plain server does: {_END[why.kind]}.")
    elif why.kind == "stray-law":
        said.append(
            "Sampled rows do not follow the law of those that the plain server samples for the same requests: the "
            f"evidence is 1e{gate.sampled.log_evidence / math.log(10):.0f}; the bet {why.edit} earns most."
        )
    elif at is not None:
        place = first.places[at]
        said.append(
            f"{len(rows)} of {len(_greedy(gate))} greedy rows have a token that the plain server puts more than "
            f"{gate.threshold:.3g} nats below its own choice. No row of the control lies beyond "
            f"{gate.threshold / ROOM:.3g}. In request {first.request} new token {at} is id {place.token}, and id "
            f"{place.best} is {place.gap:.3g} nats better."
        )
    if why.edit == AGAIN:
        said.append(
            f"Wrong tokens are likely ones, and the next tokens are right behind them. Asked alone {TIMES} times, "
            f"{why.given} of {why.of} of these rows do not have the same wrong token each time."
        )
    elif why.edit == SERVES_DRAFT:
        said.append(
            f"In {why.given} of {why.of} places where the draft and the plain server differ the row has the draft's "
            "choice: perhaps the speculative server serves the draft model, or accepts every draft."
        )
    elif why.edit and why.kind != "stray-law":
        said.append(
            f"The plain server emits {why.given} of {why.of} wrong tokens itself {_edited(gate, why.edit)}; "
            f"chance gives so many with a probability of {why.chance:.0e}."
        )
    elif why.kind == "over-accept":
        said.append(
            f"Of {why.of} wrong tokens {why.given} are the draft's own choice, and nothing wrong stays in the context: "
            "drafts are accepted that the target rejects."
        )
    elif why.kind == "wrong-correction":
        said.append(
            f"Of {why.of} wrong tokens {why.given} are followed by a right one, so nothing wrong stays in the context: "
            f"tokens are chosen wrongly. {_whose(why)}"
        )
    elif why.kind == "greedy-drawn":
        said.append("The same rows are right where no sampled row stands beside them.")
    if why.component == "unattributed":
        said.append("No single edit of a context makes the plain server emit the wrong tokens.")
    return " ".join(said)


_END = {
    "over-length": "they have more tokens than they asked for",
    "past-eos": "they go on behind a stop or the end of the text",
    "premature-stop": "they are said to end by their limit, and have fewer tokens",
}


def _whose(why: EditCause) -> str:
    if why.by_draft is None:
        return "Whether they are rejected drafts is not seen: servers do not tell their drafts (--draft does)."
    return f"Of all wrong tokens {why.by_draft[0]} of {why.by_draft[1]} are the draft's own choice."


def _edited(gate: Gate, edit: str) -> str:
    name, _, number = edit.partition(" ")
    first, whose = int(number) * BLOCK, "its second" if gate.draft is None else "the draft's"
    return {
        "without": f"if the token {number} before the last is left out",
        "twice": f"if the token {number} before the last stands twice",
        "draft": f"if {whose} choice stays in the context, {many(int(number), 'token')} back",
        "drafts": "if each rejected draft stays in the context",
        "row": f"behind the text of the row at {number}",
        "input": f"if the last token is that of the row at {number}",
        "block": f"if the tokens {first} to {first + BLOCK - 1} of the context are left out",
        "behind": f"if it sees the last {number} tokens alone",
    }[name]


def text_of(report: Mapping[str, Any]) -> str:
    """The report for a terminal."""
    noise, evidence = report["noise"], report["evidence"]
    lines = [
        f"{report['speculative']['url']} against {report['plain']['url']}: {report['verdict']}",
        f"  {report['requests']} requests ({report['greedy']} greedy, {report['sampled']} sampled), "
        f"{report['tokens']} tokens; {evidence['exceeding']} greedy rows beyond {report['threshold']:.3g} nats",
        f"  noise: the control's {noise['control_rows']} rows are up to {noise['greatest_gap_of_control']:.3g} nats "
        f"from the referee, and rounding changes a score by up to {noise['greatest_change_of_a_score']:.3g}",
        f"  evidence 1e{evidence['log10']:.1f}; a right server reaches 1e6 once in a million gates",
    ]
    speed = report["speed"]
    if speed.get("plain") and speed.get("speculative"):
        accepted = f", {report['acceptance']:.0%} of drafts accepted" if report["acceptance"] is not None else ""
        each = ", ".join(f"{share:.0%}" for share in report["acceptance_of_positions"])
        accepted += f" (by position {each})" if each else ""
        lines.append(f"  speed: {speed['speculative'] / speed['plain']:.2f} times the plain server's{accepted}")
    retried = {role: calls["retried"] for role, calls in report["calls"].items() if calls["retried"]}
    lines += [f"  {count} calls of the {role} server were made again" for role, count in retried.items()]
    if report["too_long"]:
        lines.append(f"  {report['too_long']} prompts were left out: the context does not hold them")
    if report["sampled"] and report["verdict"] == "equivalent":
        lines.append(f"  of sampled rows a temperature that is a fifth off would have been seen{_corrections(report)}")
    if report["speculates"] is None:
        lines.append("  whether the speculative server speculates was not seen: it tells no counts of drafts")
    if report["stops_heeded"] is False:
        lines.append("  stops by ids were not asked: the plain server does not heed stop_token_ids")
    if report["verdict"] == "inconclusive":
        lines.append(_why_not(report))
    for violation in report["violations"]:
        lines += [
            "",
            f"{violation['fingerprint']}: {violation['count']} rows",
            f"  {KINDS[violation['kind']].meaning}" if violation["kind"] in KINDS else "",
            f"  {violation['explanation']}",
        ]
        for name, counts in violation["conditions"].items():
            if len(counts) > MOST_VALUES:
                continue  # it is in the report
            cells = ", ".join(f"{value}: {wrong} of {all_}" for value, (wrong, all_) in counts.items())
            lines.append(f"  {name}: {cells}")
        if smallest := violation.get("smallest"):
            lines.append(
                f"  smallest: {smallest['at_once']} at once, a prompt of {smallest['prompt_tokens']} tokens and a "
                f"limit of {smallest['max_tokens']}, wrong in {smallest['tries']} of {smallest['tries']} tries"
            )
        lines += [f"  {role}: {command}" for role, command in violation.get("curl", {}).items()]
    width = columns()
    wrapped = (line if "curl" in line else fill(line, width, subsequent_indent="    ") for line in lines)
    return "\n".join(wrapped)


def _corrections(report: Mapping[str, Any]) -> str:
    """Whether the law of a common mistake would have been seen, too."""
    if "corrections" in report["visible_laws"]:
        return ", and corrections drawn from the target's law"
    return "; corrections drawn from the target's law may need more, or a server of the draft (--draft)"


def checks_of(report: Mapping[str, Any]) -> list[Check]:
    """The gate as checks for a CI server: its verdict, and each violation."""
    status: dict[str, Status] = {"violation": "failed", "inconclusive": "inconclusive"}
    verdict, said = report["verdict"], printable(text_of(report))
    checks = [Check("verdict", status.get(verdict, "passed"), f"{verdict}, {report['tokens']} tokens", said)]
    return [*checks, *(Check(one["fingerprint"], "failed", one["explanation"]) for one in report["violations"])]


def _why_not(report: Mapping[str, Any]) -> str:
    if report["evidence"]["log10"] > math.log10(DOUBTS):
        more = f"{report['lacking']} more requests would tell (--requests)"
        return f"  too much evidence for a right server, too little to accuse it: {more}"
    if report["speculates"] is False:
        return "  the speculative server counted no draft token: start it with a draft"
    if report["lacking"]:
        law = ", or a wrong law of sampled rows," if report["sampled"] else ""
        more = report["lacking"]
        return f"  too few rows: a fault of one token in 40{law} shows in {more} more requests (--requests)"
    if report["noise"]["visible"] < 0.25:
        return f"  too noisy: a wrong token is beyond the noise in {report['noise']['visible']:.0%} of places"
    return "  one row ends as no row of the plain server does; more requests would tell"


def page_of(report: Mapping[str, Any], gaps: Mapping[str, Sequence[float]]) -> str:
    """A page with the greatest gap of each row of both servers on one axis, from 0.001 nats on, logarithmic."""

    def x(gap: float) -> float:
        return round(100 + 140 * min(4.0, max(0.0, 3 + math.log10(max(gap, 1e-9)))), 1)

    marks = {name: [(x(gap), 3 * (at % 9) - 12) for at, gap in enumerate(values)] for name, values in gaps.items()}
    said, limit = printable(text_of(report)), x(report["threshold"])
    return page("eqcheck gate", "gate.jinja", report=report, marks=marks, limit=limit, said=said)
