"""Define the verdicts of a batch and of its rows.

equivalent < tie < inconclusive < violation        (verdicts merge to the highest)
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from eqcheck.contract.errors import OutputError
from eqcheck.contract.escaping import listed, one_line
from eqcheck.explanation.records import Explanation, many
from eqcheck.explanation.statements import Statement, sentence
from eqcheck.explanation.text import RIGHT_SO_FAR, Part, agreement, laid_out, render

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
