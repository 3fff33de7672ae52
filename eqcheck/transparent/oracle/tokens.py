"""The causes that tokens alone show: rows returned whole, ends of rows, exchanged rows. A wrong token shows none."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from eqcheck.contract.endings import EARLY, row_end
from eqcheck.core.explanation.records import BY_TOKENS, Explanation, Given
from eqcheck.core.explanation.statements import Statement, ends_early, state
from eqcheck.core.result.outcome import RowVerdict
from eqcheck.transparent.attribution.bookkeeping import ends, prompt_returned

Ids = tuple[int, ...]
Kind = tuple[str, Statement]
Follow = Callable[[Ids, Ids], Ids]
"""Returns the true row of a prompt, which follows these tokens as far as rounding explains them."""
Fits = Callable[[Ids, Ids], bool]
"""Returns whether rounding explains each of these tokens of a prompt's row."""
_FEW = 4  # wrong rows, of which any two are compared; of more rows those that begin alike


@dataclass(frozen=True)
class Checked:
    """The prompts of a check, the limit of their rows, the EOS ids and the pad id, None where it is not known."""

    prompts: tuple[Ids, ...]
    limit: int
    eos: Ids
    pad: int | None

    def from_tokens(self, rows: Sequence[RowVerdict], whole: tuple[RowVerdict, Statement] | None) -> Explanation:
        """Return the cause of wrong rows that count each by itself; one with a wrong token comes before the others.

        ``whole`` is the row that was returned with its prompt, if that is so of all.
        """
        named = [(row, self._kind(row, rows)) for row in rows if row.first is not None]
        row, kind = next((one for one in named if one[1] is None), named[0])
        if whole:
            row, kind = whole[0], ("prompt-in-output", whole[1])
        return self._explanation(row, kind, rows)

    def sure(self, rows: Sequence[RowVerdict], follow: Follow, fits: Fits) -> Explanation | None:
        """Return the first fault that needs no evidence; None where tokens are doubtful and nothing else is wrong.

        Whether a token is beyond rounding may be open in some rows. No token decides whether another row was returned
        with its prompt, is exactly what another should be, or ends where no row may end.
        """
        wrong = [row for row in rows if row.first is not None]
        if whole := self._whole(wrong, follow):
            row, statement = whole
            return self._explanation(row, ("prompt-in-output", statement), rows)
        for row in wrong:
            if kind := self._kind(row, rows) or self._exchanged(row, wrong, fits):
                return self._explanation(row, kind, rows)
        for row in wrong:  # with a doubtful token before its end
            kind, index = self._end(row)
            if kind is not None:
                return self._explanation(row, kind, rows, index if index < len(row.expected) else None)
        return None

    def _kind(self, row: RowVerdict, rows: Sequence[RowVerdict]) -> Kind | None:
        """Return the kind of a wrong row that is right as far as it goes, or exactly another wrong one's."""
        for other in rows:
            if other.row != row.row and other.first is not None and other.expected == row.observed:
                return "row-swap", state("of-another-row", other_row=other.row)
        return ends(row.expected, row.observed, self.eos, -1 if self.pad is None else self.pad)

    def _exchanged(self, row: RowVerdict, wrong: Sequence[RowVerdict], fits: Fits) -> Kind | None:
        """Return a swap where rows differ from each other's truth by near-ties, if the rows stand in a circle."""
        at, gone = row, list[int]()
        while at.row not in gone:
            gone.append(at.row)
            near = (one for one in wrong if one.row != at.row and (len(wrong) <= _FEW or _alike(at, one)))
            found = next((one for one in near if self._is(at.observed, one, fits)), None)
            if found is None:
                return None
            at = found
        return ("row-swap", state("of-another-row", other_row=gone[1])) if at.row == row.row else None

    def _is(self, tokens: Ids, other: RowVerdict, fits: Fits) -> bool:
        """Return whether tokens may be what another row should be; one token alone may be so by chance."""
        if tokens == other.expected:
            return True
        ends_rightly = self._end(replace(other, observed=tokens))[0] is None
        return len(tokens) > 1 and ends_rightly and fits(self.prompts[other.row], tokens)

    def _end(self, row: RowVerdict) -> tuple[Kind | None, int]:
        """Return the kind of a row that ends where none may, whatever its tokens should be, and where it had to end."""
        tokens = row.observed
        end = row_end(tokens, self.limit, self.eos)
        if end.early:
            return (EARLY, ends_early(end.length, self.limit)), end.length
        return ends(tokens[: end.due], tokens, self.eos, -1 if self.pad is None else self.pad), end.due

    def _whole(self, wrong: Sequence[RowVerdict], follow: Follow) -> tuple[RowVerdict, Statement] | None:
        """Return the first row with its prompt, behind which near-ties count as right; rows without are left out."""
        limits, whole = [self.limit] * len(self.prompts), list[RowVerdict]()
        for row in wrong:
            for start in self._starts(row):
                tail = row.observed[start : start + self.limit]
                one = replace(row, expected=follow(self.prompts[row.row], tail))
                if prompt_returned(self.prompts, [one], limits, self.pad, self.eos):
                    whole.append(one)
                    break
        return prompt_returned(self.prompts, whole, limits, self.pad, self.eos) if whole else None

    def _starts(self, row: RowVerdict) -> Iterator[int]:
        """Yield where the new tokens of a row may begin behind its prompt, with one id as pads around it."""
        prompt, tokens = self.prompts[row.row], row.observed
        for before in range(len(tokens) - len(prompt)):
            fill = {*tokens[:before]}
            if len(fill) > 1:
                return
            if tokens[before : before + len(prompt)] != prompt:
                continue
            start = before + len(prompt)
            yield start
            while start < len(tokens) - 1 and len(fill | {tokens[start]}) == 1:
                fill.add(tokens[start])
                start += 1
                yield start

    def _explanation(
        self, row: RowVerdict, kind: Kind | None, rows: Sequence[RowVerdict], index: int | None = None
    ) -> Explanation:
        """Return the explanation of a row; ``index`` is where it is wrong, by default its first difference."""
        name, statement = kind or ("unattributed", state("outputs-alone"))
        index = row.first if index is None else index
        assert index is not None
        return Explanation(
            "bookkeeping" if kind else "unattributed",
            name,
            row=row.row,
            token_index=index,
            round=None,
            expected=row.expected[index] if index < len(row.expected) else None,
            observed=row.observed[index] if index < len(row.observed) else None,
            detail=statement.detail,
            facts=statement.facts,
            expected_row=row.expected,
            observed_row=row.observed,
            wrong_rows=tuple(row.row for row in rows if row.first is not None),
            basis=BY_TOKENS,
            given=Given(self.prompts[row.row], self.pad, self.eos, limit=self.limit, requests=len(self.prompts)),
        )


def _alike(one: RowVerdict, other: RowVerdict) -> bool:
    """Return whether a row begins as another should."""
    return bool(one.observed) and one.observed[:1] == other.expected[:1]
