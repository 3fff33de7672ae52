"""One case decoded and judged, in any lane."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

from eqcheck.contract.errors import OutputError, listed, one_line
from eqcheck.core.explanation.notice import InternalError
from eqcheck.core.explanation.records import Explanation, many
from eqcheck.core.explanation.statements import Statement, sentence
from eqcheck.core.explanation.text import RIGHT_SO_FAR, Part, agreement, laid_out, render

# Define the verdicts of a batch and of its rows.
#
# equivalent < tie < inconclusive < violation        (verdicts merge to the highest)

VERDICTS = ("equivalent", "tie", "inconclusive", "violation")


def merge(verdicts: Iterable[str]) -> str:
    """Return the gravest of several verdicts; ``"inconclusive"`` for none, because nothing was shown.

    >>> merge(["equivalent", "violation", "tie"])
    'violation'
    """
    found = list(verdicts)
    return max(found, key=VERDICTS.index) if found else "inconclusive"


def common_start(first: Sequence[object], second: Sequence[object]) -> int:
    """Count the leading items that two sequences share.

    >>> common_start((5, 6, 7), (5, 6))
    2
    """
    pairs = zip(first, second, strict=False)
    return next((at for at, (one, other) in enumerate(pairs) if one != other), min(len(first), len(second)))


@dataclass(frozen=True)
class RowVerdict:
    """Hold a row's expected and observed tokens; ``first`` is the index of the first difference, None if equal."""

    row: int
    expected: tuple[int, ...]
    observed: tuple[int, ...]

    @property
    def first(self) -> int | None:
        return None if self.expected == self.observed else common_start(self.expected, self.observed)

    @property
    def prefix_match(self) -> float:
        """Return the leading correct tokens as a share of the expected ones; 1 if equal or only too long."""
        if self.first is None:
            return 1.0
        return self.first / len(self.expected) if self.expected else 1.0


@dataclass(frozen=True, repr=False)
class Verdict:
    """Hold the oracle's verdict on one batch; it is truthy if every row is what the target generates alone.

    ``status`` is one of `VERDICTS`, or ``skipped`` if the decoder declined; ``declined`` is then the reason. ``tie``
    (truthy) means that rows differ only where the target's logits tie within rounding, in so many ``ties``. ``rows``
    hold expected and observed tokens; ``explanation`` is the cause as data. ``note`` says where the target itself has
    several answers for a row alone. ``unseen`` is how many tokens may follow of which a watch without outputs saw no
    call. ``str()`` gives the explanation as text.

    >>> verdict = Verdict("violation", (RowVerdict(0, expected=(4, 5), observed=(4,)), RowVerdict(1, (6,), (6,))))
    >>> bool(verdict), verdict.exact_match, verdict.prefix_match
    (False, 0.5, 0.75)
    """

    status: str
    rows: tuple[RowVerdict, ...]
    explanation: Explanation | None = None
    declined: str = ""
    ties: int = 0
    note: Statement | None = None
    unseen: int = 0

    def __bool__(self) -> bool:
        return self.status in ("equivalent", "tie")

    def __str__(self) -> str:
        return self.explain()

    def __repr__(self) -> str:
        """Return the verdict as one short line: pytest prints it after a failed ``assert``, and cuts longer ones."""
        e = self.explanation
        if e is None:
            return f"<{self.status}>"
        right, got = ("the row's end" if token is None else token for token in (e.expected, e.observed))
        what = RIGHT_SO_FAR if e.harmless else f"expected {right}, got {got}"
        at = f": row {e.row}, new token {e.token_index}: {what}"
        return one_line(f"<{self.status}: {e.fingerprint}{'' if e.row is None else at}>", 200)

    @property
    def exact_match(self) -> float:
        """Return the share of rows that are completely correct; 0 if there are no rows."""
        return sum(row.first is None for row in self.rows) / max(len(self.rows), 1)

    @property
    def prefix_match(self) -> float:
        """Return the leading correct tokens as a share of the expected ones, averaged over rows."""
        return sum(row.prefix_match for row in self.rows) / max(len(self.rows), 1)

    def explain(self) -> str:
        """Return the explanation as text; for an equivalent batch one line that says so. The note stands at the end."""
        if self.note is None:
            return self._explained()
        return "\n".join([self._explained(), *laid_out([Part("Target", sentences=(sentence(self.note.detail),))])])

    def _explained(self) -> str:
        if self.declined:
            return f"declined: {self.declined}"
        if self.explanation is None:
            seen = sum(len(row.observed) for row in self.rows)
            return agreement(self.status, len(self.rows), self.ties, seen if self.unseen else None)
        return render(self.explanation, status=self.status)


def check_rows(outputs: Any, count: int, vocab_size: int, name: str = "outputs") -> tuple[tuple[int, ...], ...]:
    """Convert ``outputs`` to tuples of ints; raise `OutputError`, which calls them ``name``, if malformed.

    Lists and tuples of integers (numpy's too) are accepted; tensors are not, because a rectangular tensor cannot say
    where a row ends.
    """
    expectation = f"expected list[list[int]] with {count} rows"
    if not isinstance(outputs, list | tuple):
        raise OutputError(f"{name}: {expectation}, got {listed(outputs)}")
    if len(outputs) != count:
        raise OutputError(f"{name}: {expectation}, got {many(len(outputs), 'row')}")
    return tuple(check_row(row, vocab_size, f"{name}[{index}]") for index, row in enumerate(outputs))


def check_row(row: Any, vocab_size: int, name: str) -> tuple[int, ...]:
    """Convert one row to a tuple of ints; raise `OutputError`, which calls it ``name``, if malformed."""
    if not isinstance(row, list | tuple):
        raise OutputError(f"{name}: expected a list of token ids, got {listed(row)}")
    tokens: list[int] = []
    for at, token in enumerate(row):
        value = as_int(token)
        if value is None:
            raise OutputError(f"{name}[{at}]: expected a token id (int), got {listed(token)}")
        if not 0 <= value < vocab_size:
            raise OutputError(f"{name}[{at}]: expected a token in 0..{vocab_size - 1}, got {value}")
        tokens.append(value)
    return tuple(tokens)


def as_int(value: Any) -> int | None:
    """Convert a Python or numpy integer to ``int``; return None for anything else, also for bools and tensors."""
    if isinstance(value, bool) or hasattr(value, "detach"):
        return None
    try:
        return int(operator.index(value))
    except TypeError:
        return None


# One decode as data to be drawn: the calls with their caches, and the rounds of a row.
#
# A trace makes it (`eqcheck.transparent.attribution.story`); the trace view and a report's pages draw it.


@dataclass(frozen=True)
class DrawnSlot:
    """One slot of a row's cache in a call.

    ``holds`` says in words what is stored, from the view of the row: ``position 3``, ``rejected draft at position 3``,
    ``cut draft at position 3`` (the target agreed with it, behind the row's end), ``row 1, position 3``, ``row 1,
    rejected draft at position 3``, ``pad``, ``filler`` (fills up like a pad, with another id), ``unknown``, ``never
    written``, ``what no model wrote``, ``an entry of the draft``. Where the copies in K and V, layers and heads
    disagree, what disagrees follows after ``; ``. ``id`` is its token, ``position`` the one that it carries, ``origin``
    says which call and column wrote it; None and empty for what no model wrote. ``position_right`` is None where no
    position is right, or none is known to be. ``kind`` is as of `eqcheck.core.explanation.records.Slot`, or
    ``no-model``; ``of_row`` and ``of_position`` are the row and logical position that it holds, None where its copies
    disagree.
    """

    holds: str
    id: int | None
    position: int | None
    position_right: bool | None
    origin: str
    kind: str = ""
    of_row: int | None = None
    of_position: int | None = None


@dataclass(frozen=True)
class DrawnQuery:
    """One query of a row in a call: what it feeds, stands for, sees and answers.

    ``stands_for`` is in the words of `DrawnSlot`, empty where it is not known; of a long row some are left out.
    ``position`` is the one that it carries, ``expected_position`` the one that is right, None where the query stands
    for no token of the row. ``sees`` and ``should`` have a character for each slot, ``1`` or ``0``: whether it is seen,
    and whether it should be; ``should`` is empty where that is not known. ``answer`` is the id that it predicts, and
    ``expected`` the one after its true context, None where not known.
    """

    column: int
    stands_for: str
    id: int
    position: int
    expected_position: int | None
    sees: str
    should: str
    answer: int
    expected: int | None


@dataclass(frozen=True)
class DrawnRow:
    """One batch row of a call: ``row`` is the request's, None where none is recognised, ``round`` is 0 for none."""

    batch_row: int
    row: int | None
    round: int
    slots: tuple[DrawnSlot, ...]
    queries: tuple[DrawnQuery, ...]

    def right(self, query: DrawnQuery) -> bool | None:
        """Return whether one of the queries saw exactly what it should, positions included; None where that is not
        known.

        >>> slots = (DrawnSlot("position 0", 5, 0, True, ""), DrawnSlot("pad", 0, 0, None, ""))
        >>> one, other = (DrawnQuery(0, "position 0", 5, 0, 0, sees, "10", 7, 7) for sees in ("10", "11"))
        >>> row = DrawnRow(0, 0, 1, slots, (one, other))
        >>> row.right(one), row.right(other)
        (True, False)
        """
        if not query.should:
            return None
        misplaced = (s.position_right is False for s, seen in zip(self.slots, query.sees, strict=False) if seen == "1")
        return query.sees == query.should and query.position == query.expected_position and not any(misplaced)


@dataclass(frozen=True)
class DrawnCall:
    """One forward of ``target`` or ``draft``. ``given``: it was made before the decoder began.

    ``committed`` are the new tokens that rows have after it and had not before, by row, as strings of the row numbers.
    ``left_out`` counts batch rows that are not drawn.
    """

    number: int
    model: str
    given: bool
    rows: tuple[DrawnRow, ...]
    committed: dict[str, tuple[int, ...]]
    left_out: int = 0


@dataclass(frozen=True)
class DrawnRound:
    """One round of a row: the ids drafted, how many were accepted, the correction or bonus, and what was committed.

    ``accepted`` counts the drafts, from the first, that the row has after the round; ``agreed`` the drafts that the
    target answered as well, None in reports of eqcheck 0.1. ``last`` says what the row has behind the accepted ones:
    ``correction`` in the place of a draft that was rejected, ``bonus`` behind all of them, or empty where it has
    nothing, or nothing was drafted, or a draft was cut; ``last_id`` is its id. ``committed`` are the new tokens that
    the row has after the round and had not before. ``call`` is the number of the target's call. ``known`` is False of
    the last round of a row that was returned otherwise than it was fed: what the row has after it is not known.
    """

    number: int
    call: int
    drafted: tuple[int, ...]
    accepted: int
    last: str
    last_id: int | None
    committed: tuple[int, ...]
    agreed: int | None = None
    known: bool = True

    def fate(self, number: int) -> str:
        """The fate of a draft, by its number from 0.

        ``accepted``; ``cut``: the target agreed with it, and the row does not have it, as it ends before; ``rejected``;
        ``over-accepted``: the row has it though the target answered another id; or ``unknown``.

        >>> one = DrawnRound(1, 2, drafted=(5, 6, 7), accepted=1, last="", last_id=None, committed=(5,), agreed=2)
        >>> [one.fate(number) for number in range(3)]
        ['accepted', 'cut', 'rejected']
        """
        if not self.known:
            return "unknown"
        agreed = number < (self.accepted if self.agreed is None else self.agreed)
        if number < self.accepted:
            return "accepted" if agreed else "over-accepted"
        return "cut" if agreed else "rejected"

    @property
    def odd(self) -> list[str]:
        """Return how many drafts fared otherwise than drafts do as a rule.

        >>> DrawnRound(1, 2, (5, 6, 7), 1, "", None, (5,), agreed=2).odd
        ['1 cut']
        """
        every = [self.fate(number) for number in range(len(self.drafted))]
        return [f"{every.count(fate)} {fate}" for fate in ("over-accepted", "cut") if fate in every]

    @property
    def fates(self) -> str:
        """Return how many drafts were accepted, and the `odd` ones."""
        return ", ".join([str(self.accepted), *self.odd]) if self.known else "not known"


@dataclass(frozen=True)
class Story:
    """The story of one row: its rounds, and the call in which the first fault lies, None where none is known.

    Where every context was right, ``call`` is the one that answered for the first wrong token. ``at`` is the number of
    the batch row of ``call`` that is concerned, and ``column`` that of its query. There are no rounds where rows are
    asked the same, and nobody sees whose they are. ``batch`` are the rounds of every row, of the first of many.
    """

    row: int
    rounds: tuple[DrawnRound, ...]
    call: DrawnCall | None = None
    at: int | None = None
    column: int | None = None
    batch: tuple[tuple[DrawnRound, ...], ...] = ()


@dataclass(frozen=True)
class DrawnDecode:
    """A whole decode: its calls in order, and per row what is right and what was returned (None: nothing was).

    ``left_out`` counts calls that are not drawn, which are gaps in the numbers of the others. ``rounds`` are those of
    each row, as far as they are seen. ``story`` is of the row at fault, None where none is. ``note`` is what else is to
    be said.
    """

    calls: tuple[DrawnCall, ...]
    left_out: int
    rounds: tuple[tuple[DrawnRound, ...], ...]
    expected: tuple[tuple[int, ...], ...]
    returned: tuple[tuple[int, ...], ...] | None
    story: Story | None = None
    note: str = ""

    def first_wrong(self, row: int) -> int | None:
        """The index of the first new token of a row that is not right, or that is missing; None where none is.

        >>> decode = DrawnDecode((), 0, (), ((5, 6), (7,), (8,)), ((5, 9), (7, 7), (8,)))
        >>> [decode.first_wrong(row) for row in range(3)]
        [1, 1, None]
        """
        if self.returned is None or self.returned[row] == self.expected[row]:
            return None
        return common_start(self.returned[row], self.expected[row])

    def committed(self, row: int) -> tuple[int, ...]:
        """The new tokens that the rounds of a row committed."""
        return tuple(token for one in self.rounds[row] for token in one.committed)

    def wrongly_committed(self, row: int) -> int | None:
        """The same, where the rounds committed there what was returned: else it went wrong after them.

        >>> rounds = (DrawnRound(1, 1, (), 0, "", None, (5, 6)),)
        >>> [DrawnDecode((), 0, (rounds,), ((5, 6),), ((5, 9),)).wrongly_committed(0)]
        [None]
        """
        wrong = self.first_wrong(row)
        if wrong is None or self.returned is None or wrong >= len(self.returned[row]):
            return None
        return wrong if self.committed(row)[wrong : wrong + 1] == (self.returned[row][wrong],) else None


HANG = "crash/hang"
HANGS_TO_GIVE_UP = 3
UNTRIED = "the time ended before a cause was searched for"
UNJUDGED = "unjudged"  # the status of a case in whose judging eqcheck itself failed


class CaseLog(NamedTuple):
    """The cases that one instance of a decoder had decoded before: the first ``done`` cases of its ``log``."""

    log: list[Any]
    done: int

    @property
    def cases(self) -> tuple[Any, ...]:
        return tuple(self.log[: self.done])


@dataclass(frozen=True)
class NearTie:
    """An ``emitted`` token that is as good as the ``best``: the target prefers that by no more than ``bound``.

    It is new token ``index`` of a row; ``case`` is the id of the case. ``margin`` is by how much ``best`` is preferred.
    """

    row: int
    index: int
    best: int
    emitted: int
    margin: float
    bound: float
    case: str = ""

    def __str__(self) -> str:
        place = f"case {self.case}, row {self.row}, new token {self.index}"
        return f"{place}: {self.emitted} for {self.best}, margin {self.margin:.2g}, tolerance {self.bound:.2g}"


class DraftCause(NamedTuple):
    """Draft tokens that one case lost by one cause: the ``tokens``, and those of rows that are held to be ``waiting``
    for each other.

    Where the draft saw a row's newest tokens and nothing else, ``window`` is how many. ``doubtful``: that the draft
    predicted what was refused may be chance.
    """

    fingerprint: str
    window: int
    doubtful: bool
    tokens: int
    waiting: int


class LossesOf(Enum):
    """Say whose losses a count is of: rows that go on ``alone``, or rows held to be ``waiting`` for the slowest one.

    Of a ``head`` are draft tokens, and in ``head hit`` its rounds with a wrong input.
    """

    ALONE = ""
    WAITING = "waiting"
    HEAD = "head"
    HIT = "head hit"


class Loss(NamedTuple):
    """The key of a count of what the draft side lost (`eqcheck.transparent.attribution.lost_drafts`).

    >>> str(Loss("rounds")), str(Loss("stale", LossesOf.HIT))
    ('rounds', 'head hit stale')
    """

    name: str
    of: LossesOf = LossesOf.ALONE

    def __str__(self) -> str:
        return f"{self.of.value} {self.name}".lstrip()


class RoundsThat(Enum):
    """Say of which rounds with dictated drafts a count is.

    They were ``asked``, or ``played`` as asked; in others the engine was given ``others`` than the dictated tokens, or
    added ``fewer`` tokens than its drafts allow.
    """

    ASKED = "asked"
    PLAYED = "played"
    OTHERS = "others"
    FEWER = "fewer"


class DictatedRounds(NamedTuple):
    """The key of a count of rounds with dictated drafts: all of them, or those that accept so many of K drafts."""

    rounds: RoundsThat
    accepted: int | None = None
    of: int | None = None


class DueBy(Enum):
    """Say by what draft tokens that are due are counted: by the rows of a batch, by row, or by position in a round."""

    BATCH = "batch"
    ROW = "row"
    POSITION = "position"
    SAMPLED = "sampled rows"


class DuePlace(NamedTuple):
    """A place where draft tokens are due; ``name`` is which of them, such as ``2-3`` for a batch of two or three rows.

    >>> str(DuePlace(DueBy.BATCH, "2-3")), str(DuePlace(DueBy.SAMPLED))
    ('batch 2-3', 'sampled rows')
    """

    by: DueBy
    name: str = ""

    def __str__(self) -> str:
        return f"{self.by.value} {self.name}".rstrip()


class DraftsThat(Enum):
    """Say of which draft tokens a count is: those that are ``due``, and those of them that were ``accepted``.

    ``drawn`` counts rounds of sampled rows in which they were drawn: nothing is known of these.
    """

    DUE = "due"
    ACCEPTED = "accepted"
    DRAWN = "drawn"


class DueDrafts(NamedTuple):
    """The key of a count of draft tokens that are due (`eqcheck.engines.checkpoints.acceptance`)."""

    place: DuePlace
    drafts: DraftsThat


@dataclass(frozen=True)
class Outcome:
    """One case's result, picklable. ``outputs`` is None when the decoder failed.

    ``status`` is one of `eqcheck.core.result.outcome.VERDICTS`, or ``skipped`` where the decoder ``declined``, which
    says why. ``explanation`` is what judging alone shows; a lane may know more when it has looked into a failing case.
    ``coverage`` names what the case exercised, ``observed`` what the decoder itself counted, ``dictated`` the rounds
    with dictated drafts, ``due`` the draft tokens that are due, ``losses`` what the draft side lost where the output is
    right, ``lost`` by which cause; ``slow`` explains the first of these where a second look was taken. ``luck`` has the
    fingerprint and the place of a wrong context where the output is right all the same. ``traits`` are what is known of
    the case before it is decoded, in the order of `TRAITS` of `eqcheck.core.result.conditions`. ``tied`` are the tokens
    that rounding decided, ``slots`` those of its caches that the target was handed in all its calls, and those of them
    that a query saw. ``drawn`` is False for a case of the corpus, ``minimal`` is True where nothing smaller fails like
    it.

    ``internal`` is set where eqcheck itself failed: the case is not judged then, and its status is `UNJUDGED`.

    ``seconds`` is what decoding and judging took, ``history`` what the decoder decoded before, ``story`` what befell
    the row, which comes with a second look where calls are seen; two outcomes that differ in these alone are equal.
    """

    case: Any
    status: str
    exact_match: float = 0.0
    prefix_match: float = 0.0
    coverage: frozenset[str] = frozenset()
    outputs: tuple[tuple[int, ...], ...] | None = None
    explanation: Explanation | None = None
    traceback: str = ""
    losses: tuple[tuple[Loss, int], ...] = ()
    lost: tuple[DraftCause, ...] = ()
    slow: Explanation | None = field(default=None, compare=False)
    declined: str = ""
    observed: Mapping[str, Any] = field(default_factory=dict)
    tied: tuple[NearTie, ...] = ()
    slots: tuple[int, int] = (0, 0)
    luck: tuple[str, str] = ("", "")
    internal: InternalError | None = None
    traits: tuple[int | str, ...] = ()
    dictated: Mapping[DictatedRounds, int] = field(default_factory=dict)
    due: Mapping[DueDrafts, int] = field(default_factory=dict)
    drawn: bool = True
    minimal: bool = field(default=False, compare=False)
    seconds: float = field(default=0.0, compare=False)
    history: CaseLog | None = field(default=None, compare=False, repr=False)
    story: Story | None = field(default=None, compare=False, repr=False)

    @property
    def fingerprint(self) -> str | None:
        return self.explanation.fingerprint if self.explanation else None

    @property
    def symptom(self) -> str:
        """The look of a failing case before anybody has looked into it; empty for one that is right."""
        return self.fingerprint or ""

    @property
    def component(self) -> str:
        """The component that is at fault, as far as judging alone shows it; empty where it does not."""
        return self.explanation.component if self.explanation else ""

    @property
    def ties(self) -> tuple[NearTie, ...]:
        """Tokens that another one was as likely as, up to rounding."""
        return self.tied

    @property
    def failed(self) -> bool:
        return self.status == "violation"

    def repeats(self, other: Outcome) -> bool:
        """Return whether a second run gave the same answer, or failed in the same way."""
        return (self.symptom, self.outputs) == (other.symptom, other.outputs)


def unjudged(internal: InternalError, case: Any) -> Outcome:
    """The outcome of a case in whose judging eqcheck itself failed."""
    return Outcome(case, UNJUDGED, internal=internal)
