"""Verdicts of a batch and of its rows.

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
from eqcheck.explanation.text import laid_out, parts, render

VERDICTS = ("equivalent", "tie", "inconclusive", "violation")


def merge(verdicts: Iterable[str]) -> str:
    """The gravest of several verdicts; of none, ``"inconclusive"``, because nothing was shown.

    >>> merge(["equivalent", "violation", "tie"])
    'violation'
    """
    found = list(verdicts)
    return max(found, key=VERDICTS.index) if found else "inconclusive"


def common_start(first: Sequence[object], second: Sequence[object]) -> int:
    """How many items of two sequences are the same, from the first.

    >>> common_start((5, 6, 7), (5, 6))
    2
    """
    pairs = zip(first, second, strict=False)
    return next((at for at, (one, other) in enumerate(pairs) if one != other), min(len(first), len(second)))


@dataclass(frozen=True)
class RowVerdict:
    """One row of output beside the truth; ``first`` is the index of the first difference, None when equal."""

    row: int
    expected: tuple[int, ...]
    observed: tuple[int, ...]

    @property
    def first(self) -> int | None:
        return None if self.expected == self.observed else common_start(self.expected, self.observed)

    @property
    def prefix_match(self) -> float:
        """Leading equal tokens as a share of the expected ones; 1 when equal or only too long."""
        if self.first is None:
            return 1.0
        return self.first / len(self.expected) if self.expected else 1.0


@dataclass(frozen=True, repr=False)
class Verdict:
    """The oracle's answer for one batch; truthy when every row is what the target emits alone, near-ties included.

    ``status`` is one of `VERDICTS`, or ``skipped`` where the decoder ``declined``, which says why. ``str()`` of it is
    the explanation.

    >>> verdict = Verdict("violation", (RowVerdict(0, expected=(4, 5), observed=(4,)), RowVerdict(1, (6,), (6,))))
    >>> bool(verdict), verdict.exact_match, verdict.prefix_match
    (False, 0.5, 0.75)
    """

    status: str
    rows: tuple[RowVerdict, ...]
    explanation: Explanation | None = None
    declined: str = ""

    def __bool__(self) -> bool:
        return self.status in ("equivalent", "tie")

    def __str__(self) -> str:
        return self.explain()

    def __repr__(self) -> str:
        """The verdict in one short line: pytest writes it after a failed ``assert``, and cuts longer ones."""
        e = self.explanation
        if e is None:
            return f"<{self.status}>"
        right, got = ("the row's end" if token is None else token for token in (e.expected, e.observed))
        at = f": row {e.row}, new token {e.token_index}: expected {right}, got {got}"
        return one_line(f"<{self.status}: {e.fingerprint}{'' if e.row is None else at}>", 200)

    @property
    def exact_match(self) -> float:
        """Share of rows that are equal in full; 0 when the decoder returned no rows."""
        return sum(row.first is None for row in self.rows) / max(len(self.rows), 1)

    @property
    def prefix_match(self) -> float:
        """Mean over rows of the leading equal tokens as a share of the expected ones."""
        return sum(row.prefix_match for row in self.rows) / max(len(self.rows), 1)

    def explain(self) -> str:
        """The explanation as text; for an equivalent batch one line that says so."""
        if self.declined:
            return f"declined: {self.declined}"
        if self.explanation is None:
            but = ", except in near-ties that rounding decides" if self.status == "tie" else ""
            return f"{self.status}: {many(len(self.rows), 'row')}, every token is what the target returns alone{but}"
        if self.status == "inconclusive":
            lines = ["inconclusive: tokens differ, but not by more than the rounding of this dtype may explain so far"]
            return "\n".join([*lines, *laid_out(parts(self.explanation))])
        return render(self.explanation)


def check_rows(outputs: Any, count: int, vocab_size: int, name: str = "outputs") -> tuple[tuple[int, ...], ...]:
    """``outputs`` as tuples of ints; `OutputError` says what was expected and what came, under this ``name``.

    Lists and tuples of integers (numpy's too) are taken; tensors are not, because a rectangle of tensors cannot say
    where a row ends.
    """
    expectation = f"expected list[list[int]] with {count} rows"
    if not isinstance(outputs, list | tuple):
        raise OutputError(f"{name}: {expectation}, got {listed(outputs)}")
    if len(outputs) != count:
        raise OutputError(f"{name}: {expectation}, got {many(len(outputs), 'row')}")
    return tuple(check_row(row, vocab_size, f"{name}[{index}]") for index, row in enumerate(outputs))


def check_row(row: Any, vocab_size: int, name: str) -> tuple[int, ...]:
    """One row as a tuple of ints; `OutputError` says under this ``name`` what was expected and what came."""
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
    """A Python or numpy integer as ``int``; None for anything else, also for bools and tensors."""
    if isinstance(value, bool) or hasattr(value, "detach"):
        return None
    try:
        return int(operator.index(value))
    except TypeError:
        return None
