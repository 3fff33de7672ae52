"""Draft tokens that are due: the draft alone proposes them, and the target agrees. Lost ones cost speed, not output."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from eqcheck.contract.errors import one_line
from eqcheck.explanation.notice import INCONCLUSIVE, Notice
from eqcheck.explanation.records import many
from eqcheck.result.findings import Audit
from eqcheck.result.tally import DUE, DUE_DRAWN, DUE_SAMPLED

_TOLD = 0.01  # as large a share of losses is told
_ENOUGH = 50  # draft tokens due, so that none lost of them says something
Due = Mapping[str, tuple[int, int]]  # by batch, row or position: draft tokens accepted, and due


def due(observed: Counter[str]) -> dict[str, tuple[int, int]]:
    """Count draft tokens accepted and due by ``batch SIZE``, ``row NUMBER``, ``position NUMBER``; and of sampled rows.

    Nothing is known of sampled rows where one round shows that the engine draws its draft tokens.

    >>> due(Counter({"due row 0 due": 4, "due row 0 accepted": 3}))
    {'row 0': (3, 4)}
    """
    counts = {name.removeprefix(DUE): count for name, count in observed.items() if name.startswith(DUE)}
    drawn = counts.pop(DUE_DRAWN, 0)
    names = sorted({name.rpartition(" ")[0] for name in counts} - ({DUE_SAMPLED} if drawn else set()))
    return {name: (counts.get(f"{name} accepted", 0), counts.get(f"{name} due", 0)) for name in names}


def total(places: Due) -> tuple[int, int]:
    """Draft tokens accepted and due, in batches of every size and in sampled rows."""
    rows = [counts for name, counts in places.items() if name.startswith("batch ") or name == DUE_SAMPLED]
    return sum(accepted for accepted, _ in rows), sum(asked for _, asked in rows)


def warnings(places: Due) -> list[str]:
    """The warning about an engine that loses draft tokens, with the places where it loses none."""
    accepted, asked = total(places)
    lost = asked - accepted
    if lost < 2 or lost < asked * _TOLD:
        return []
    share = _percent(lost / asked)
    said = f"{lost} of {asked} draft tokens that should have been accepted were lost ({share})"
    spared = [name for name, (kept, of) in places.items() if kept == of >= _ENOUGH]
    where = f", none in {one_line(', '.join(spared), 70)}" if spared else ""
    return [Notice(f"{said}{where}. This costs speed, not output", "draft")]


def lost_of(audit: Audit) -> tuple[int, int]:
    """The draft tokens that an audit lost in all its lanes, and how many were due."""
    lost, asked = audit.facts.get("draft_loss") or (0, 0)  # of the transparent target, by its trace
    kept, due_too = total(due(audit.tally.observed))
    return lost + due_too - kept, asked + due_too


def within(audit: Audit, most: float | None) -> bool | None:
    """Return whether no larger share of the draft tokens is lost than may be; None where nothing is known of them."""
    lost, asked = lost_of(audit)
    return most is None or (lost <= most * asked if asked else None)


def limit(audit: Audit, most: float | None) -> None:
    """Let an audit fail where more draft tokens are lost than the share that may be; warn where nothing is known."""
    lost, asked = lost_of(audit)
    if (fits := within(audit, most)) is None:
        said = "--max-draft-loss cannot be checked: the decoder reports no counts of draft tokens"
        audit.warnings.append(Notice(said, INCONCLUSIVE))
    elif most is not None and not fits:
        share = f"{lost} of {many(asked, 'draft token')} ({_percent(lost / asked)})"
        said = f"{share} were lost, and --max-draft-loss allows {_percent(most)}"
        audit.warnings.append(Notice(said, "draft"))
        audit.outdated.append(said)


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
