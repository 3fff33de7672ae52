"""Two audits of a decoder beside each other: which causes are new, gone, or still there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from eqcheck.core.explanation.layout import columns, table, wrapped
from eqcheck.core.explanation.notice import INCONCLUSIVE, VACUOUS
from eqcheck.core.explanation.records import many
from eqcheck.report.content import Content
from eqcheck.report.schema import Report

STATES = ("new", "still there", "in doubt", "not seen", "gone", "no violation")
_RARE = 0.01


@dataclass(frozen=True)
class Sighting:
    """A cause in an audit: its standing, in how many cases, and of how many; where it is known, the link."""

    standing: str
    count: int
    of: int
    known: str | None = None

    def __str__(self) -> str:
        return f"{self.standing} {self.count} of {self.of}"


@dataclass(frozen=True)
class ComparedCause:
    """A cause in two audits; ``state`` is one of `STATES`.

    ``new``: a violation that was none. ``in doubt``: it was a violation and is a discovery or inconclusive now.
    ``missed`` is the probability that the later cases show nothing of a cause that is as frequent as it was; where it
    is more than 1 %, or not known, the cause is ``not seen``, which is less than ``gone``.
    """

    state: str
    fingerprint: str
    meaning: str
    before: Sighting | None
    now: Sighting | None
    missed: float | None = None


@dataclass(frozen=True)
class Comparison:
    """Two reports of a decoder, the changes between them, and ``notes`` on what else is not alike."""

    before: Report
    now: Report
    changes: tuple[ComparedCause, ...]
    notes: tuple[str, ...]

    @property
    def worse(self) -> bool:
        """Return whether there is a violation that was none before."""
        return any(change.state == "new" for change in self.changes)

    @property
    def versions(self) -> list[tuple[str, str, str]]:
        """Each version before and now; ``-`` for none."""
        names = dict.fromkeys([*self.before.versions, *self.now.versions])
        return [(name, self.before.versions.get(name, "-"), self.now.versions.get(name, "-")) for name in names]

    @property
    def figures(self) -> list[tuple[str, str, str]]:
        """Verdicts, cases and means, before and now."""
        before, now = _figures(self.before), _figures(self.now)
        return [(name, before[name], now[name]) for name in now if (before[name], now[name]) != ("-", "-")]


def _figures(report: Report) -> dict[str, str]:
    return {
        "verdict": report.verdict,
        "cases": str(report.cases.run),
        "in violation": str(report.cases.violation),
        "exact match": Content(report).exact,
        "prefix match": Content(report).prefix,
        "drafts accepted": "-" if report.acceptance is None else f"{report.acceptance:.0%}",
    }


def compare(before: Report, now: Report) -> Comparison:
    """The change of each cause from one audit to the next."""
    (old, meant), (new, means) = _sightings(before), _sightings(now)
    meanings, ran = means | meant, now.cases.run
    changes = [_change(name, meanings[name], old.get(name), new.get(name), ran) for name in new | old]
    changes.sort(key=lambda change: STATES.index(change.state))
    return Comparison(before, now, tuple(changes), tuple(_notes(before, now)))


def _sightings(report: Report) -> tuple[dict[str, Sighting], dict[str, str]]:
    """Each fingerprint with its gravest standing, and with its meaning."""
    sightings: dict[str, Sighting] = {}
    meanings: dict[str, str] = {}
    for standing, one in Content(report).findings:
        sightings.setdefault(one.fingerprint, Sighting(standing, one.count, report.cases.run, one.known))
        meanings[one.fingerprint] = one.cause.meaning
    return sightings, meanings


def _change(fingerprint: str, meaning: str, before: Sighting | None, now: Sighting | None, ran: int) -> ComparedCause:
    was, is_now = (bool(one and one.standing == "violation") for one in (before, now))
    missed = None
    if not was:
        state = "new" if is_now else "no violation"
    elif now:
        state = "still there" if is_now else "in doubt"
    else:
        if before and 0 < before.count <= before.of:
            missed = (1 - before.count / before.of) ** ran
        state = "gone" if missed is not None and missed <= _RARE else "not seen"
    return ComparedCause(state, fingerprint, meaning, before, now, missed)


def _notes(before: Report, now: Report) -> list[str]:
    """All that is not alike, so that a difference between the two may be no change of the decoder."""
    pairs = zip(_conditions(before).items(), _conditions(now).values(), strict=True)
    notes = [f"{name}: {was} before, {is_now} now" for (name, was), is_now in pairs if was != is_now]
    notes += [
        f"the audit {when} was interrupted" for when, one in (("before", before), ("now", now)) if one.interrupted
    ]
    return notes + [f"now: {warning}" for warning in now.noticed if warning.kind in (VACUOUS, INCONCLUSIVE)]


def _conditions(report: Report) -> dict[str, str]:
    return {
        "decoder": report.decoder.name,
        "lane": report.lane,
        "families": ", ".join(report.families),
        "seed": str(report.seed),
        "required of requests": ", ".join(report.requires) or "nothing",
        "eqcheck": report.versions.get("eqcheck", "-"),
    }


def chance(change: ComparedCause) -> str:
    """Return how likely a cause that is gone was only missed, as a sentence; empty where that is not known."""
    if change.missed is None:
        return ""
    return f"if it were as frequent as before, these cases would miss it with probability {change.missed:.1g}"


def to_text(comparisons: Sequence[Comparison]) -> str:
    """The comparisons for a terminal."""
    lines: list[str] = []
    width = columns()
    for comparison in comparisons:
        name = comparison.now.decoder.name
        lines += ["", *[wrapped(f"{name}: NOTE {note}", width) for note in comparison.notes]]
        rows = [*comparison.figures, *(row for row in comparison.versions if row[1] != row[2])]
        lines += [table(rows, [name, "before", "now"], width), ""]
        causes = [[c.state, c.fingerprint, str(c.before or "-"), str(c.now or "-")] for c in comparison.changes]
        if causes:
            lines += [table(causes, ["", "cause", "before", "now"], width)]
            said = [f"{c.fingerprint}: {c.state}; {chance(c)}" for c in comparison.changes if chance(c)]
            lines += [wrapped(line, width) for line in said]
        lines.append(wrapped(f"{name}: {in_words(comparison)}", width))
    return "\n".join(lines).lstrip("\n")


def in_words(comparison: Comparison) -> str:
    """Return how many causes are in each state.

    >>> from types import SimpleNamespace as Given
    >>> in_words(Given(changes=[Given(state="new"), Given(state="gone"), Given(state="gone")]))
    '1 cause is new, 2 causes are gone.'
    >>> in_words(Given(changes=[]))
    'No cause before, and none now.'
    """
    counts = {state: sum(change.state == state for change in comparison.changes) for state in STATES[:-1]}
    said = [f"{many(n, 'cause')} {'is' if n == 1 else 'are'} {state}" for state, n in counts.items() if n]
    return f"{', '.join(said)}." if said else "No cause before, and none now."
