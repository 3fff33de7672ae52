"""One decode of a case: its trace and outputs, beside the truth."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from eqcheck.case.record import Case
from eqcheck.contract.completion import Completion
from eqcheck.decoding.rounds import Rounds
from eqcheck.explanation.records import Explanation
from eqcheck.hashlm.hashing import Words
from eqcheck.hashlm.trace import Trace
from eqcheck.result.outcome import NearTie
from eqcheck.result.verdict import RowVerdict


@dataclass(frozen=True)
class Truth:
    """The output of the target alone, per row.

    ``rows`` end at the first EOS or stop sequence, or at the limit; ``uncut`` go on to the limit regardless.
    ``digests[row]`` ``[layers, positions]`` are the hashes of a query at each logical position that saw just its row.
    """

    rows: tuple[tuple[int, ...], ...]
    uncut: tuple[tuple[int, ...], ...]
    digests: tuple[Words, ...]


@dataclass(frozen=True)
class Run:
    """One decode of one case.

    ``outputs`` is None when the decoder failed, and then ``failure`` says how, or when it ``declined``, which says why.
    ``ties`` are the tokens that rounding decided, where the target computes in less than float64; the truth goes on
    after them. ``completions`` are the rows that came as such, None for others.
    """

    case: Case
    truth: Truth
    trace: Trace
    outputs: tuple[tuple[int, ...], ...] | None
    failure: Explanation | None = None
    failure_text: str = ""
    declined: str = ""
    ties: tuple[NearTie, ...] = ()
    completions: tuple[Completion | None, ...] = ()

    @cached_property
    def rounds(self) -> Rounds:
        """The rounds of its rows, as far as contexts were right."""
        return Rounds(self.case.prompts, self.case.pad_token_id, self.truth.digests, self.trace)

    @property
    def verdicts(self) -> tuple[RowVerdict, ...]:
        """Each row beside its truth; rows that were not returned count as right."""
        outputs = self.truth.rows if self.outputs is None else self.outputs
        return tuple(RowVerdict(row, *pair) for row, pair in enumerate(zip(self.truth.rows, outputs, strict=True)))


def cut(row: tuple[int, ...] | list[int], eos_token_ids: tuple[int, ...]) -> tuple[int, ...]:
    """A row up to and including its first EOS."""
    end = next((i for i, token in enumerate(row) if token in eos_token_ids), len(row))
    return tuple(row[: end + 1])
