"""Draft tokens that are due: the draft alone proposes them, and the target agrees. Lost ones cost speed, not output."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from eqcheck.contract.errors import one_line
from eqcheck.core.explanation.notice import INCONCLUSIVE, Notice
from eqcheck.core.explanation.records import many
from eqcheck.core.result.findings import Audit
from eqcheck.core.result.outcome import DraftsThat, DueBy, DueDrafts, DuePlace

_TOLD = 0.01  # as large a share of losses is told
_ENOUGH = 50  # draft tokens due, so that none lost of them says something
Due = Mapping[DuePlace, tuple[int, int]]  # by batch, row or position: draft tokens accepted, and due


def due(counts: Counter[DueDrafts]) -> dict[DuePlace, tuple[int, int]]:
    """Count draft tokens accepted and due by place.

    Nothing is known of sampled rows where one round shows that the engine draws its draft tokens.

    >>> row = DuePlace(DueBy.ROW, "0")
    >>> due(Counter({DueDrafts(row, DraftsThat.DUE): 4, DueDrafts(row, DraftsThat.ACCEPTED): 3}))[row]
    (3, 4)
    """
    drawn = {key.place for key, count in counts.items() if key.drafts is DraftsThat.DRAWN and count}
    places = sorted({key.place for key in counts if key.drafts is not DraftsThat.DRAWN} - drawn, key=str)
    return {
        place: (counts[DueDrafts(place, DraftsThat.ACCEPTED)], counts[DueDrafts(place, DraftsThat.DUE)])
        for place in places
    }


def total(places: Due) -> tuple[int, int]:
    """Draft tokens accepted and due, in batches of every size and in sampled rows."""
    rows = [counts for place, counts in places.items() if place.by in (DueBy.BATCH, DueBy.SAMPLED)]
    return sum(accepted for accepted, _ in rows), sum(asked for _, asked in rows)


def warnings(places: Due) -> list[str]:
    """The warning about an engine that loses draft tokens, with the places where it loses none."""
    accepted, asked = total(places)
    lost = asked - accepted
    if lost < 2 or lost < asked * _TOLD:
        return []
    share = _percent(lost / asked)
    said = f"{lost} of {asked} draft tokens that should have been accepted were lost ({share})"
    spared = [str(place) for place, (kept, of) in places.items() if kept == of >= _ENOUGH]
    where = f", none in {one_line(', '.join(spared), 70)}" if spared else ""
    return [Notice(f"{said}{where}. This costs speed, not output", "draft")]


def lost_of(audit: Audit) -> tuple[int, int]:
    """The draft tokens that an audit lost in all its lanes, and how many were due."""
    lost, asked = audit.facts.get("draft_loss") or (0, 0)  # of the transparent target, by its trace
    kept, due_too = total(due(audit.tally.due))
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
