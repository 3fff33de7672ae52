"""A gate in sentences: why a row is wrong, where wrong rows are, and the report for a terminal."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from textwrap import fill
from typing import Any

from eqcheck.contract.escaping import one_line
from eqcheck.contract.kinds import KINDS
from eqcheck.explanation.layout import columns
from eqcheck.explanation.records import many
from eqcheck.gate.cause import AGAIN, BLOCK, SERVES_DRAFT, TIMES, EditCause
from eqcheck.gate.conditions import CONCURRENCY, Counts, needed_conditions
from eqcheck.gate.lengths import LENGTHS, SHORTEST
from eqcheck.gate.rows import ENDS, PIECE, Row
from eqcheck.gate.run import DOUBTS, Gate
from eqcheck.truth.evidence import ROOM

MOST_VALUES = 7  # of a condition that a terminal shows


def where(conditions: Counts) -> list[str]:
    """A sentence for each condition that all wrong rows meet."""
    said = []
    for name, value in needed_conditions(conditions):
        if name == CONCURRENCY:
            said.append(f"No row is wrong with a concurrency below {value}.")
        else:
            said.append(f"In the table {name!r} all wrong rows stand under {value!r}.")
    return said


def explained(gate: Gate, why: EditCause, rows: Sequence[Row]) -> str:
    """The cause in plain sentences."""
    first = rows[0]
    if why.edit in LENGTHS:
        return _length(gate, why)
    at = first.beyond(gate.threshold)
    said = []
    if why.kind in ENDS:
        said.append(
            f"{len(rows)} of {len(gate.rows)} rows end as no row of the plain server does: {_END[why.kind]}. In "
            f"request {first.request} the limit is {first.asked.max_tokens}, and the row has "
            f"{many(len(first.answer.tokens), 'new token')}."
        )
    elif why.kind == "stray-law":
        said.append(
            "Sampled rows do not follow the law of those that the plain server samples for the same requests: the "
            f"evidence is 1e{gate.sampled.log_evidence / math.log(10):.1f}. Most of it comes from tokens "
            f"{gate.sampled.best.expects}. {_stand_in(gate)}{_greedy_beside(gate)}".rstrip()
        )
    elif at is not None:
        place = first.places[at]
        said.append(
            f"{len(rows)} of {len(gate.greedy)} greedy rows have a token that the plain server puts more than "
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
    "premature-stop": "they end by no stop, and have fewer tokens than they asked for",
}


def _length(gate: Gate, why: EditCause) -> str:
    """Rows that end elsewhere than the plain server's, though nothing else about their end is wrong."""
    row, plain = gate.lengths.won[why.edit][0]
    where = "ends before the others" if why.edit == SHORTEST else "goes on behind the end of the others"
    return (
        f"The plain server has up to two rows of each request. In {many(why.of, 'request')} one row {where}, and in "
        f"{why.given} of these it is the speculative server's. In request {row.request} that row has "
        f"{many(len(row.answer.tokens), 'new token')} and ends by {_reason(row)!r}, and the plain server's has "
        f"{len(plain.answer.tokens)} and ends by {_reason(plain)!r}."
    )


def _reason(row: Row) -> str:
    return one_line(str(row.answer.finish_reason), 20)


def _stand_in(gate: Gate) -> str:
    return "" if gate.draft is not None else "The draft's law is not known: the plain server stands in for it. "


def _greedy_beside(gate: Gate) -> str:
    """The greedy rows beside sampled ones that are wrong, though they do not decide."""
    gaps = [row.gap for row in gate.greedy if row.beyond(gate.threshold) is not None]
    if not gaps:
        return ""
    return (
        f"Of {len(gate.greedy)} greedy rows beside them {len(gaps)} have a token that lies up to {max(gaps):.3g} nats "
        "below the plain server's own choice; no row of the control has. "
    )


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
    step = f"; scores are told in steps of {noise['step']:.3g}" if noise["step"] else ""
    lines = [
        f"{report['speculative']['url']} against {report['plain']['url']}: {report['verdict']}",
        f"  {report['requests']} requests with {many(report['prompts'], 'prompt')} ({report['greedy']} greedy, "
        f"{report['sampled']} sampled), "
        f"{report['tokens']} tokens; {evidence['exceeding']} greedy rows beyond {report['threshold']:.3g} nats",
        f"  noise: the control's {noise['control_rows']} rows are up to {noise['greatest_gap_of_control']:.3g} nats "
        f"from the referee, and rounding changes a score by up to {noise['greatest_change_of_a_score']:.3g}{step}",
        f"  evidence 1e{evidence['log10']:.1f}; a right server reaches 1e6 once in a million gates{_rule(report)}",
    ]
    speed = report["speed"]
    if speed.get("plain") and speed.get("speculative"):
        accepted = f", {report['acceptance']:.0%} of drafts accepted" if report["acceptance"] is not None else ""
        each = ", ".join(f"{share:.0%}" for share in report["acceptance_of_positions"])
        accepted += f" (by position {each})" if each else ""
        lines.append(f"  speed: {speed['speculative'] / speed['plain']:.2f} times the plain server's{accepted}")
    if noise["cache_broken"]:
        lines.append(f"  {_broken_cache(noise)}")
    retried = {role: calls["retried"] for role, calls in report["calls"].items() if calls["retried"]}
    lines += [f"  {count} calls of the {role} server were made again" for role, count in retried.items()]
    if report["too_long"]:
        lines.append(f"  {report['too_long']} prompts were left out: the context does not hold them")
    if report["untold"]:
        lines.append(f"  {report['untold']} requests were left out: a server tells no ids or no scores of all tokens")
    if report["sampled"] and report["verdict"] == "equivalent":
        lines.append(f"  of sampled rows a temperature that is a fifth off would have been seen{_corrections(report)}")
    if report["speculates"] is None:
        lines.append("  whether the speculative server speculates was not seen: it tells no counts of drafts")
    if report["stops_heeded"] is False:
        lines.append("  stops by ids were not asked: the plain server does not heed stop_token_ids")
    if report["verdict"] == "inconclusive":
        lines.append(_why_not(report))
    lines += [line for violation in report["violations"] for line in _told(violation)]
    width = columns()
    wrapped = (
        line if "curl" in line else fill(line, width, subsequent_indent="    ") for line in lines if line != "  "
    )
    return "\n".join(wrapped)


def _rule(report: Mapping[str, Any]) -> str:
    decides = report["verdict"] == "violation" and report["evidence"]["log10"] < math.log10(
        report["evidence"]["decides"]
    )
    return "; a row that breaks a rule decides without it" if decides else ""


def _broken_cache(noise: Mapping[str, Any]) -> str:
    change = f"changes by {noise['greatest_change_in_pieces']:.3g} nats"
    return (
        f"{PIECE} tokens at a time a score of the plain server {change}: its cache may be wrong; that is not taken "
        "for noise"
    )


def _told(violation: Mapping[str, Any]) -> list[str]:
    """The lines of a violation."""
    lines = [
        "",
        f"{violation['fingerprint']}: {violation['count']} rows",
        f"  {KINDS[violation['kind']].meaning if violation['kind'] in KINDS.keys() - {'stray-law'} else ''}",
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
    if violation["kind"] == "stray-law" and "curl" in violation:
        drawn = "; the script in --out draws it often on both servers" if "script" in violation else ""
        lines.append(f"  a single row shows little: these commands ask for the row that adds most{drawn}")
    lines += [f"  {role}: {command}" for role, command in violation.get("curl", {}).items()]
    return lines


def _corrections(report: Mapping[str, Any]) -> str:
    """Return whether the law of a common mistake would have been seen, too."""
    if "corrections" in report["visible_laws"]:
        return ", and corrections drawn from the target's law"
    return "; corrections drawn from the target's law may need more, or a server of the draft (--draft)"


def _why_not(report: Mapping[str, Any]) -> str:
    if report["evidence"]["log10"] > math.log10(DOUBTS):
        return f"  a right server leaves so much evidence in one gate of a hundred at most: {_more(report)}"
    if report["out_of_time"] and report["evidence"]["log10"] > 0:
        return f"  there is some evidence, and fewer rows were asked than were to be: {_more(report)}"
    if report["speculates"] is False:
        return "  the speculative server counted no draft token: start it with a draft"
    if report["lacking"]:
        law = ", or a wrong law of sampled rows," if report["sampled"] else ""
        return f"  too few rows for a fault of one token in 40{law} to show: {_more(report)}"
    if report["noise"]["visible"] < 0.25:
        return f"  too noisy: a wrong token is beyond the noise in {report['noise']['visible']:.0%} of places"
    return "  one row ends as no row of the plain server does; more requests would tell"


def _more(report: Mapping[str, Any]) -> str:
    more, total = report["lacking"], report["lacking"] + report["requests"]
    if report["interrupted"]:
        return f"{more} more requests would tell; it was interrupted, and the same command goes on if it has --out"
    if report["out_of_time"]:
        return f"{more} more requests would tell; the time was over (--budget)"
    return f"{more} more requests would tell (--requests {total})"


def compared(report: Mapping[str, Any], before: Mapping[str, Any]) -> str:
    """This gate beside an earlier one, a line for each figure that both have."""
    lines = [f"\n\nBaseline: {one_line(str(before.get('verdict')), 20)} then, {report['verdict']} now"]
    for name, part in (("threshold", ""), ("speed", "speculative"), ("speed", "plain"), ("acceptance", "")):
        then, now = before.get(name), report[name]
        if part:
            then, now = then.get(part) if isinstance(then, dict) else None, now.get(part)
        if isinstance(then, int | float) and isinstance(now, int | float):
            lines.append(f"  {f'{name}, {part}' if part else name}: {then:.3g} then, {now:.3g} now")
    return "\n".join(lines)
