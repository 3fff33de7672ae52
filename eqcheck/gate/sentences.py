"""A gate in sentences: a report in which each violation has the form that all reports of eqcheck have.

`explained` makes the words of a violation from the gate, `sections` lays out a violation of the report for terminal and
page, and `text_of` is the whole report.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from eqcheck.contract.errors import one_line
from eqcheck.contract.kinds import KINDS
from eqcheck.core.explanation.layout import WHOLE, columns, filled
from eqcheck.core.explanation.records import many
from eqcheck.core.explanation.statements import odds, one_in, power_of_ten
from eqcheck.core.explanation.text import WIDTH, Part, laid_out
from eqcheck.core.explanation.token_words import compared, shortened
from eqcheck.gate.bets import SHORTEST
from eqcheck.gate.cause import (
    BLOCK,
    NO,
    NONE_BEFORE,
    TIMES,
    YES,
    AskedEdit,
    Counts,
    EditCause,
    EditKind,
    GateCondition,
    Sign,
    telling,
)
from eqcheck.gate.compared_rows import ENDS, PIECE, Row, second_choices
from eqcheck.gate.comparison import DOUBTS, Gate
from eqcheck.transparent.truth.rounding_evidence import CROSSES

CAUSE, LIKELY, UNKNOWN = "Cause", "Likely cause", "Cause unknown"
ROOM_OF_ROWS = 56  # characters for the tokens of a row: they fit into 80 with their labels
DECIDES = power_of_ten(math.log10(CROSSES))
LONG_CURL = 420  # characters: a longer command fills the screen, and is left to the JSON


class CauseWords(NamedTuple):
    """The words of a violation: how sure the cause is, the cause, and the evidence for it."""

    certainty: str
    cause: str
    evidence: str


def progress(gate: Gate) -> str:
    """Say how far a gate is."""
    tokens, spent = sum(len(row.answer.tokens) for row in gate.rows), time.monotonic() - gate.began
    doubled = f" (doubled from {gate.settings.requests}: evidence above {DOUBTS:.0f})" if gate.doubtful else ""
    said = f"{len(gate.rows)} of {gate.most} requests{doubled}, {tokens:,} tokens, {spent:.0f} s"
    return f"{said}; evidence {power_of_ten(gate.log_evidence / math.log(10))} ({DECIDES} decides)"


# The words of a violation


def explained(gate: Gate, why: EditCause, rows: Sequence[Row]) -> CauseWords:
    """Return the words for a violation whose wrong rows are these."""
    if why.length:
        return CauseWords(CAUSE, *_length(gate, why))
    if why.kind in ENDS:
        return CauseWords(CAUSE, *_end(gate, why, rows))
    if why.kind == "stray-law":
        return CauseWords(LIKELY, *_distribution(gate))
    evidence = _wrong_tokens(gate, rows)
    if second := _second(gate):
        evidence = f"{evidence} {second}"
    certainty = UNKNOWN if why.component == "unattributed" else LIKELY
    return CauseWords(certainty, _cause(gate, why), evidence)


def _end(gate: Gate, why: EditCause, rows: Sequence[Row]) -> tuple[str, str]:
    first = rows[0]
    limit, tokens = first.asked.max_tokens, many(len(first.answer.tokens), "token")
    said = {
        "over-length": "The server returns more tokens than max_tokens allows.",
        "past-eos": "The server goes on after a stop token or the end of the text.",
        "premature-stop": "The server says finish_reason 'length', with fewer tokens than max_tokens.",
    }[why.kind]
    return said, (
        f"{len(rows)} of {len(gate.rows)} requests end like this, and none does on the plain server; two decide. "
        f"Request {first.request} has max_tokens {limit} and returned {tokens}."
    )


def _length(gate: Gate, why: EditCause) -> tuple[str, str]:
    """Return cause and evidence of rows that end elsewhere than the plain server's."""
    row, plain = gate.lengths.won[why.length][0]
    shortest = why.length == SHORTEST
    said = "Rows end too early: the last token or tokens are missing." if shortest else "Rows go on after their end."
    return said, (
        f"In {many(why.of, 'request')} one of the three rows (one speculative, two plain) ends "
        f"{'before' if shortest else 'after'} the others; in {why.given} it is the speculative server's: "
        f"{_found(gate)}. Request "
        f"{row.request}: {many(len(row.answer.tokens), 'token')}, finish_reason {_reason(row)!r}; on the plain server "
        f"{len(plain.answer.tokens)}, {_reason(plain)!r}."
    )


def _reason(row: Row) -> str:
    return one_line(str(row.answer.finish_reason), 20)


def _distribution(gate: Gate) -> tuple[str, str]:
    """Return what the bet that earns most on sampled rows is on, and how many greedy rows among them are wrong, too."""
    stand_in = (
        ""
        if gate.draft is not None
        else " The draft's probabilities are not known; the plain server with a short context stands in for the draft "
        "(--draft URL gives them)."
    )
    wrong = [row.gap for row in gate.greedy if row.beyond(gate.threshold) is not None]
    beside = (
        f" {len(wrong)} of {len(gate.greedy)} greedy requests that ran with them are wrong, too, by up to "
        f"{max(wrong):.3g} nats."
        if wrong
        else ""
    )
    cause = f"Most of the evidence comes from tokens {gate.sampled.best.expects}; other causes are not excluded."
    return cause, (
        "Each request was sampled once on this server and twice on the plain one, and this server's rows stand out: "
        f"{_found(gate)}.{stand_in}{beside}"
    )


def _wrong_tokens(gate: Gate, rows: Sequence[Row]) -> str:
    return (
        f"{len(rows)} of {len(gate.greedy)} greedy requests have a token more than {gate.threshold:.3g} nats below the "
        f"plain server's choice, {_LIMIT}: {_found(gate)}."
    )


def _found(gate: Gate) -> str:
    found = power_of_ten(gate.log_evidence / math.log(10))
    return f"evidence {found} ({DECIDES} decides; a correct server reaches it once in a million gates)"


_LIMIT = "twice what rounding does to its own rows"


def _second(gate: Gate) -> str:
    """Say so where every wrong token is the plain server's second choice."""
    seconds = second_choices(gate.greedy, gate.threshold)
    if not seconds.all_second:
        return ""
    return (
        f"All {seconds.wrong} wrong tokens are the plain server's second choice; if they were random among its top "
        f"five, the chance of that would be {odds(seconds.log10_chance)}."
    )


def _cause(gate: Gate, why: EditCause) -> str:
    """Return the cause of wrong greedy tokens in a sentence or two."""
    if why.sign is Sign.AGAIN:
        return (
            f"Sent again alone {TIMES} times, {why.given} of {why.of} of these requests do not return the same wrong "
            "token each time. Wrong tokens are likely ones, and the tokens after them are right, as if drawn at random."
        )
    if why.sign is Sign.SERVES_DRAFT:
        return (
            f"In {why.given} of {why.of} places where draft and plain server differ, the output has the draft's "
            "choice: the server may serve the draft model, or accept every draft."
        )
    if why.sign is Sign.LOSSY:
        farthest = second_choices(gate.greedy, gate.threshold).farthest
        return (
            "Drafts are accepted although the target prefers another token (lossy or threshold acceptance): those at "
            f"most {farthest:.2f} nats below its choice, and none beyond. The chance that wrong tokens keep such a "
            f"limit by accident is {one_in(why.chance)}."
        )
    if why.component == "unattributed":
        known = "" if gate.draft is not None else " With --draft URL the search knows the real draft tokens."
        return (
            "No single change of the context (a missing, repeated or rejected token, another row's token, a missing "
            f"block) makes the plain server return most of the wrong tokens.{known}"
        )
    if why.kind == "over-accept":
        return (
            f"Drafts are accepted that the target rejects: {why.given} of {why.of} wrong tokens are the draft's own "
            "choice, and the tokens after them are right."
        )
    if why.kind == "wrong-correction":
        return (
            f"Single tokens are chosen wrongly, the context stays right: {why.given} of {why.of} wrong tokens are "
            f"followed by a right one. {_whose(why)}"
        )
    if why.kind == "greedy-drawn":
        return "Greedy rows that run beside sampled rows are sampled, too. Sent again without these, they are right."
    assert why.edit is not None
    return (
        f"{_edited(gate, why.edit)}, the plain server returns exactly the wrong tokens ({why.given} of {why.of}). "
        f"The chance that some edit fits so often by accident is {one_in(why.chance)}."
    )


def _whose(why: EditCause) -> str:
    if why.by_draft is None:
        return "Whether they are rejected drafts is not known: servers do not tell their drafts (--draft URL does)."
    return f"{why.by_draft[0]} of {why.by_draft[1]} wrong tokens are the draft's own choice."


def _edited(gate: Gate, edit: AskedEdit) -> str:
    change, number = edit
    first, back = number * BLOCK, many(number, "token")
    whose = "the plain server's second choice stands in for it" if gate.draft is None else "the draft's choice"
    return {
        EditKind.WITHOUT: f"If {_before(number)} is missing from the context",
        EditKind.TWICE: f"If {_before(number)} is in the context twice",
        EditKind.DRAFT: f"If a rejected draft token stays in the context {back} back ({whose})",
        EditKind.DRAFTS: "If every rejected draft token stays in the context",
        EditKind.ROW: f"If the context is that of the request {_next(number)}",
        EditKind.INPUT: f"If the last token fed is that of the request {_next(number)}",
        EditKind.BLOCK: f"If tokens {first} to {first + BLOCK - 1} are missing from the context",
        EditKind.BEHIND: f"If only the last {number} tokens are in the context",
    }[change]


def _before(number: int) -> str:
    return "the token before the last one" if number == 1 else f"the token {number} places before the last one"


def _next(number: int) -> str:
    return "before it" if number < 0 else "after it"


# The words of conditions

_PHRASES = {
    GateCondition.PLACE: {"first": "the first of requests that run together", "later": "requests after the first"},
    GateCondition.BESIDE: {YES: "sampled rows in the batch", NO: "no sampled rows in the batch"},
    GateCondition.STOP: {YES: "a stop token", NO: "no stop token"},
    GateCondition.REQUEST: {"later": "later requests"},
    GateCondition.BEGINS: {
        YES: "prompts that begin like an earlier one",
        NO: "prompts that do not begin like an earlier one",
    },
    GateCondition.SINCE: {NONE_BEFORE: "no rejected draft before"},
}


def condition_line(conditions: Counts) -> str:
    """Say under which condition rows are wrong, empty where chance explains all differences.

    >>> condition_line({"concurrency": {"1": [0, 40], "4": [29, 30], "16": [20, 20]}})
    'only with 4 or more requests at once (49 of 50; otherwise 0 of 40)'
    """
    side = telling(conditions)
    if side is None:
        return ""
    counts = f"({side.wrong} of {side.rows}; otherwise {side.other_wrong} of {side.other_rows})"
    often = "more often" if side.other_wrong else "only"
    return f"{often} with {_phrase(side.condition, side.values)} {counts}"


def _phrase(condition: GateCondition, values: Sequence[str]) -> str:
    value = values[0]
    if value in (phrases := _PHRASES.get(condition, {})):
        return phrases[value]
    if condition is GateCondition.CONCURRENCY:
        return f"{value} or more requests at once" if len(values) > 1 else f"{many(int(value), 'request')} at once"
    if condition is GateCondition.SINCE:
        after = many(int(value), "token") if value.isdigit() else f"{value} tokens"
        return f"{after} after the last rejected draft"
    if condition is GateCondition.PROMPT:
        return f"prompts of the kind {value!r}"
    if condition is GateCondition.ENDS:
        return f"finish_reason {value!r}"
    if condition is GateCondition.LENGTH:
        return f"prompt lengths of 16n + {value}"
    return f"the {value} requests"


# The layout of a violation


@dataclass(frozen=True)
class Section:
    """A violation as it is shown: a headline, how many requests are wrong, its parts, and commands to reproduce it."""

    fingerprint: str
    meaning: str
    count: str
    parts: list[Part]
    commands: list[str]


def sections(report: Mapping[str, Any], out: str = "") -> list[Section]:
    """Lay out the violations of a report; ``out`` is the folder that has their scripts."""
    return [_section(violation, report, out) for violation in report["violations"]]


def _section(violation: Mapping[str, Any], report: Mapping[str, Any], out: str) -> Section:
    kind, cause = violation["kind"], violation["cause"]
    of = report["sampled"] if kind == "stray-law" else report["requests"] if kind in ENDS else report["greedy"]
    count = f"{violation['count']} of {of} {'' if kind in ENDS else 'greedy '}requests"
    where = condition_line(violation["conditions"])
    return Section(
        violation["fingerprint"],
        "greedy tokens differ from the plain server's" if kind == "unattributed" else KINDS[kind].meaning,
        f"{of} sampled requests" if kind == "stray-law" else count,
        [
            *_request(violation),
            Part(cause["certainty"], sentences=(cause["text"],)),
            Part("Evidence", cause["evidence"]),
            *([Part("Where", where)] if where else []),
        ],
        _commands(violation, out),
    )


def _request(violation: Mapping[str, Any]) -> list[Part]:
    """Return the request that shows the violation, with its rows; nothing where no single request does."""
    told, smallest = violation.get("compared"), violation.get("smallest")
    if told is None:
        return []
    if smallest is None:
        title, note = f"Request {violation['first']['request']}", "not made smaller"
    else:
        at_once = f"{smallest['at_once']} at once" if smallest["at_once"] > 1 else "alone"
        title, tries = "Smallest case", smallest["tries"]
        note = f"{at_once}, max_tokens {smallest['max_tokens']}; wrong in {tries} of {tries} tries"
    rows = [
        ("prompt", shortened(told["prompt"])),
        *compared(told["expected"], told["got"], told["index"], ROOM_OF_ROWS),
    ]
    if told["gap"]:
        rows.append(("", f"{told['gap']:.3g} nats below the plain server's choice"))
    return [Part(title, note, rows=tuple(("", label, line) for label, line in rows))]


def _commands(violation: Mapping[str, Any], out: str) -> list[str]:
    """Return what shows the violation again: the script if it was written, else a curl command for each server."""
    script = violation.get("smallest", violation).get("script")
    if script and out:
        return [f"python {out}/{violation['kind']}.py"]
    told = list(violation.get("curl", {}).values())
    if told and max(map(len, told)) <= LONG_CURL:
        return told
    if told:
        return ["rerun with --out DIR for a script" if script else "rerun with --json for the curl commands"]
    return []


# The report


def text_of(report: Mapping[str, Any], out: str = "") -> str:
    """Return the report for a terminal: the leading violation and the verdict come last, and stay on the screen."""
    width = min(columns(), WIDTH)
    parts = [_as_text(section, width) for section in sections(report, out)][::-1]
    said = laid_out([Part(label, text) for label, text in summary(report)], width)
    verdict = filled(f"{report['verdict']}: {verdict_of(report)}", width, 2)
    return "\n\n".join([*parts, "\n".join([*said, verdict])])


def _as_text(section: Section, width: int) -> str:
    head = f"FAIL {section.fingerprint}: {section.meaning}"
    pad = width - len(head) - len(section.count)
    lines = [f"{head}{' ' * pad}{section.count}"] if pad >= 2 else [head, f"  {section.count}"]
    parts = [*section.parts, *(Part("" if at else "Reproduce", one) for at, one in enumerate(section.commands))]
    for part in parts:
        lines += laid_out([part], WHOLE if part.note in section.commands else width)  # a command is copied whole
    return "\n".join(lines)


def summary(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return labelled lines: what was compared, and how."""
    kinds = [f"{report[kind]} {kind}" for kind in ("greedy", "sampled") if report[kind]]
    asked = str(report["requests"]) if len(kinds) > 1 else "".join(kinds)
    split = f" ({', '.join(kinds)})" if len(kinds) > 1 else ""
    doubled = (
        f" Twice as many as requested, because the evidence was above {DOUBTS:.0f}."
        if report["requests"] > report["requested"]
        else ""
    )
    lines = [
        ("Compared", f"{report['speculative']['url']} with plain {report['plain']['url']}"),
        (
            "Requests",
            f"{asked}{split}, {report['tokens']:,} tokens; each also sent twice to the plain server.{doubled}",
        ),
    ]
    if report["greedy"] and not report["violations"]:
        lines.append(
            (
                "Wrong",
                f"is a greedy token that the plain server scores more than {report['threshold']:.3g} nats below its "
                f"own choice: {_LIMIT}",
            )
        )
    if not report["violations"]:
        found = power_of_ten(report["evidence"]["log10"])
        lines.append(
            ("Evidence", f"{found}; {DECIDES} decides, and a correct server reaches it once in a million gates")
        )
    lines += [("Speed", _speed(report))] if report["speed"].get("plain") and report["speed"].get("speculative") else []
    return lines + [("Note", note) for note in _notes(report)]


def _speed(report: Mapping[str, Any]) -> str:
    speed = report["speed"]
    said = f"{speed['speculative'] / speed['plain']:.2f} times the plain server's"
    if report["acceptance"] is not None:
        said += f"; {report['acceptance']:.0%} of draft tokens accepted"
    if each := report["acceptance_of_positions"]:
        said += f" (by draft position: {', '.join(f'{share:.0%}' for share in each)})"
    return said


def _notes(report: Mapping[str, Any]) -> list[str]:
    """Return what a reader has to know besides the verdict; nothing where all is normal."""
    noise, notes = report["noise"], []
    if noise["cache_broken"]:
        notes.append(
            f"scored {PIECE} tokens at a time, a score of the plain server changes by "
            f"{noise['greatest_change_in_pieces']:.3g} nats: its cache may be wrong; this is not counted as rounding"
        )
    for role, calls in report["calls"].items():
        if calls["retried"]:
            notes.append(f"{many(calls['retried'], 'call')} of the {role} server failed and were sent again")
    if report["too_long"]:
        notes.append(f"{many(report['too_long'], 'prompt')} left out: too long for the context")
    if report["untold"]:
        notes.append(f"{many(report['untold'], 'request')} left out: a server did not return all ids or scores")
    if report["sampled"] and report["verdict"] == "equivalent":
        notes.append(f"a temperature that is 20% off would have been seen{_corrections(report)}")
    if report["speculates"] is None:
        notes.append("not known whether the speculative server speculates: its metrics do not count drafts")
    if report["stops_heeded"] is False:
        notes.append("stop tokens were not tested: the plain server ignores stop_token_ids")
    return notes


def _corrections(report: Mapping[str, Any]) -> str:
    """Say whether corrections from the wrong distribution would have been seen, too."""
    if "corrections" in report["visible_laws"]:
        return ", and so would corrections drawn from the target's distribution"
    return "; corrections drawn from the target's distribution may need more requests, or --draft URL"


def verdict_of(report: Mapping[str, Any]) -> str:
    """Return what a verdict means, and for an inconclusive one what would decide."""
    if report["verdict"] == "violation":
        return "output differs from the plain server's by more than rounding"
    if report["verdict"] == "equivalent":
        return "no difference beyond rounding; a fault in one token of 40 would have been seen"
    if report["evidence"]["log10"] > math.log10(DOUBTS):
        return f"so much evidence comes from one correct server in a hundred at most; {_more(report)}"
    if report["out_of_time"] and report["evidence"]["log10"] > 0:
        return f"some evidence, and fewer requests than planned; {_more(report)}"
    if report["speculates"] is False:
        return "the speculative server counted no draft token; start it with a draft"
    if report["lacking"]:
        sampled = ", or a wrong sampling distribution," if report["sampled"] else ""
        return f"too few requests to see a fault in one token of 40{sampled}; {_more(report)}"
    if report["noise"]["visible"] < 0.25:
        return (
            f"too noisy: only in {report['noise']['visible']:.0%} of places would another token stand out from "
            "rounding; use other prompts, or servers in a wider dtype"
        )
    return "one row ends as no row of the plain server does; more requests would decide"


def _more(report: Mapping[str, Any]) -> str:
    more, total = report["lacking"], report["lacking"] + report["requests"]
    said = f"about {many(more, 'more request')} would decide"
    if report["interrupted"]:
        return f"{said}; it was interrupted, and the same command continues if it has --out"
    if report["out_of_time"]:
        return f"{said}; the time was over (--budget)"
    return f"{said} (--requests {total})"


def beside(report: Mapping[str, Any], before: Mapping[str, Any]) -> str:
    """Compare this gate with an earlier one, a line for each figure that both have."""
    lines = [f"\n\nBaseline: {one_line(str(before.get('verdict')), 20)} then, {report['verdict']} now"]
    for name, part in (("threshold", ""), ("speed", "speculative"), ("speed", "plain"), ("acceptance", "")):
        then, now = before.get(name), report[name]
        if part:
            then, now = then.get(part) if isinstance(then, dict) else None, now.get(part)
        if isinstance(then, int | float) and isinstance(now, int | float):
            lines.append(f"  {f'{name}, {part}' if part else name}: {then:.3g} then, {now:.3g} now")
    return "\n".join(lines)
