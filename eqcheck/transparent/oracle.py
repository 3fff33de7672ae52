"""The causes that tokens alone show: rows returned whole, ends of rows, exchanged rows. A wrong token shows none."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from eqcheck.contract.decoders import PADDING_SIDES, Decoder
from eqcheck.contract.endings import EARLY, row_end
from eqcheck.contract.errors import OutputError, Unsupported, UsageError, Violation, describe, listed
from eqcheck.contract.requirements import refused
from eqcheck.core.case.record import Case
from eqcheck.core.explanation.records import BY_TOKENS, Explanation, Given
from eqcheck.core.explanation.statements import Statement, ends_early, state
from eqcheck.core.result.outcome import RowVerdict, Verdict, as_int, check_row, check_rows
from eqcheck.transparent.attribution.bookkeeping import ends, prompt_returned, told_wrongly_of, without_passed_stops
from eqcheck.transparent.attribution.declarations import ignored
from eqcheck.transparent.attribution.leak import leaked, with_stale_entries
from eqcheck.transparent.attribution.reading import Reader
from eqcheck.transparent.attribution.witnesses import second_opinion, variants
from eqcheck.transparent.decoding import Run, cut
from eqcheck.transparent.decoding import run as run_case
from eqcheck.transparent.real.models import recognised
from eqcheck.transparent.truth.generation import Alone
from eqcheck.transparent.truth.rounded import Measured, RowGaps, calmly, coarse, within

if TYPE_CHECKING:
    from eqcheck.transparent.watch import Watch

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


# Check that every token of an output is the one the target generates alone for that row.

_Ids: TypeAlias = tuple[int, ...]


class Oracle:
    """Compare outputs with what the target generates alone: one row at a time, no padding, no cache, greedy.

    ``target`` is any Hugging Face causal LM in evaluation mode. In float64 and float32 the comparison is exact. Below
    float32, rounding decides near-ties: the oracle warns, and wrong tokens are ``inconclusive`` until the evidence of
    all its checks reaches 10^6, then a ``violation``. A built checkpoint (`eqcheck.engines.construction.folder.built`)
    is exact in every dtype. The methods take ``eos_token_id``, the name in transformers, as well as ``eos_token_ids``.

        >>> from eqcheck.transparent.hashlm.model import HashLM, HashConfig
        >>> oracle = Oracle(HashLM(HashConfig(seed=1)))
        >>> truth = oracle.truth([3, 1, 4], max_new_tokens=4)
        >>> bool(oracle.check([[3, 1, 4]], [truth], max_new_tokens=4))
        True
        >>> print(oracle.check([[3, 1, 4]], [truth[:2]], max_new_tokens=4).explanation.fingerprint)
        bookkeeping/premature-stop
    """

    def __init__(self, target: Any) -> None:
        if not callable(target) or not hasattr(target, "config"):
            raise UsageError(f"target: expected a Hugging Face causal LM, got {describe(target)}")
        if getattr(target, "training", False):
            raise UsageError("target: expected a model in evaluation mode, got one in training; call target.eval()")
        self.target = target
        config = target.config
        text = config.get_text_config() if hasattr(config, "get_text_config") else config
        if as_int(getattr(text, "vocab_size", None)) is None:
            raise UsageError(f"target: expected a causal LM whose config has a vocab_size, got {describe(target)}")
        self.vocab_size = int(text.vocab_size)
        self._alone = Alone(target)
        self._gaps = RowGaps(target, self._alone) if coarse(target) and not recognised(target) else None
        if self._gaps:
            dtype = str(target.dtype).removeprefix("torch.")
            ties = "near-ties are possible, and wrong tokens need the evidence of many rows"
            warnings.warn(f"target: computes in {dtype}, so {ties}; in float64 every token counts", stacklevel=2)

    def truth(
        self,
        prompt: Sequence[int],
        *,
        max_new_tokens: int,
        eos_token_ids: Sequence[int] = (),
        eos_token_id: int | Sequence[int] | None = None,
    ) -> list[int]:
        """Return the new tokens that the target generates alone after ``prompt``, with the EOS that ends them.

        Raises `OutputError` for a malformed prompt or limit.
        """
        (checked,) = self._prompts([prompt])
        limit, eos = _limit(max_new_tokens), self._eos(eos_token_ids, eos_token_id)
        with calmly(self.target):
            return list(self._continued(checked, limit, eos))

    def check(
        self,
        prompts: Sequence[Sequence[int]],
        outputs: Sequence[Sequence[int]],
        *,
        max_new_tokens: int,
        eos_token_ids: Sequence[int] = (),
        pad_token_id: int | None = None,
        eos_token_id: int | Sequence[int] | None = None,
    ) -> Verdict:
        """Judge ``outputs``: new tokens only, one list of ids per prompt, in the order of ``prompts``.

        A row must end at its first token in ``eos_token_ids`` or at ``max_new_tokens``. Outputs alone do not show why a
        token is wrong, so the explanation is then ``unattributed``; rows that include their prompt, are swapped, or end
        too early or too late are named. Use `watch` to find the cause. Raises `OutputError` for malformed prompts or
        outputs, `UsageError` for a target whose logits are NaN.
        """
        limit, eos = _limit(max_new_tokens), self._eos(eos_token_ids, eos_token_id)
        checked = self._prompts(prompts)
        observed = check_rows(outputs, len(checked), self.vocab_size)
        asked = Checked(checked, limit, eos, pad_token_id)
        self._alone.begin(checked, observed)
        with calmly(self.target):
            return self.noted(self._rounded(asked, observed) if self._gaps else self._exact(asked, observed), checked)

    def watch(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        max_new_tokens: int,
        eos_token_ids: Sequence[int] = (),
        pad_token_id: int | None = None,
        padding_side: str = "left",
        draft: Any = None,
        tokens_only: bool = False,
        eos_token_id: int | Sequence[int] | None = None,
    ) -> AbstractContextManager[Watch]:
        """Watch the target (and the ``draft``) while your code decodes ``prompts``, and find the first wrong query.

        After the block, ``verdict`` and ``explain()`` of the watch name the first wrong position id, attention mask or
        cache entry, with its call and slot. Set ``outputs`` of the watch to what your code returned to judge the tokens
        too. A wrong context is a violation also where every token is right so far; ``tokens_only`` lets it pass. Works
        with transformers models that use sdpa or eager attention and are not compiled. Raises as `check` does, and
        `UsageError` for a model that cannot be read.

            >>> import torch
            >>> from eqcheck.transparent.real.models import model_of
            >>> model = model_of("llama", "float64", 0)
            >>> ids = torch.tensor([[0, 0, 3, 1, 4], [1, 5, 9, 2, 6]])
            >>> def generate(mask):
            ...     return model.generate(
            ...         ids, attention_mask=mask, max_new_tokens=3, do_sample=False, pad_token_id=0, eos_token_id=None)
            >>> with Oracle(model).watch([[3, 1, 4], [1, 5, 9, 2, 6]], max_new_tokens=3, pad_token_id=0) as w:
            ...     _ = generate(torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]]))
            >>> bool(w.verdict)
            True
            >>> with Oracle(model).watch([[3, 1, 4], [1, 5, 9, 2, 6]], max_new_tokens=3, pad_token_id=0) as w:
            ...     _ = generate(torch.ones(2, 5, dtype=torch.long))
            >>> w.verdict.explanation.fingerprint
            'mask/pad-visible'
        """
        from eqcheck.transparent.watch import WatchedCase, family_like, watching

        limit, eos = _limit(max_new_tokens), self._eos(eos_token_ids, eos_token_id)
        if padding_side not in PADDING_SIDES:
            raise UsageError(f"padding_side: expected one of {PADDING_SIDES}, got {padding_side!r}")
        pad = -1 if pad_token_id is None else pad_token_id
        case = WatchedCase(self._prompts(prompts), limit, eos, pad, padding_side, family_like(self.target))
        return watching(self, case, draft, tokens_only)

    def noted(self, verdict: Verdict, prompts: Sequence[_Ids]) -> Verdict:
        """Return the verdict with what is known of a target that has several answers of its own."""
        return replace(verdict, note=self._alone.note(prompts))

    def alike(self, prompts: Sequence[_Ids], rows: Sequence[_Ids], limit: int) -> list[tuple[int, ...]]:
        """Return what the target generates alone after each prompt, no EOS, in the way that a row is nearest to."""
        self._alone.begin(prompts, rows)
        rounds = self._gaps is not None
        pairs = zip(prompts, rows, strict=True)
        return [self._alone.expected(prompt, row, limit, (), rounds).tokens for prompt, row in pairs]

    def by_length(
        self, verdict: Verdict, prompts: Sequence[_Ids], outputs: Sequence[_Ids], limit: int, eos: Sequence[int]
    ) -> Verdict:
        """Return the verdict on rows whose contexts were right; with a rope by length their tokens still may be wrong.

        A call rotates by its longest row, so a right context in it is not that of the row alone.
        """
        if not self._alone.ropes:
            return verdict
        told = self.check(prompts, outputs, max_new_tokens=limit, eos_token_ids=eos)
        if told or told.explanation is None or told.explanation.component != "unattributed":
            return verdict if told else told
        why = state("rope-of-the-call", rope=self._alone.ropes)
        return replace(told, explanation=replace(told.explanation, detail=why.detail, facts=why.facts))

    def _exact(self, asked: Checked, observed: tuple[_Ids, ...]) -> Verdict:
        """Return the verdict where every token counts."""
        pairs = enumerate(zip(asked.prompts, observed, strict=True))
        rows = tuple(RowVerdict(i, self._expected(*pair, asked.limit, asked.eos), pair[1]) for i, pair in pairs)
        if all(row.first is None for row in rows):
            return Verdict("equivalent", rows)
        whole = prompt_returned(asked.prompts, rows, [asked.limit] * len(rows), asked.pad, asked.eos)
        return Verdict("violation", rows, asked.from_tokens(rows, whole))

    def _rounded(self, asked: Checked, observed: tuple[_Ids, ...]) -> Verdict:
        """Return the verdict where rounding decides near-ties: what is sure without evidence comes first."""
        gaps = self._gaps
        assert gaps is not None
        measured = gaps.add(asked.prompts, observed, asked.limit, asked.eos)
        pairs = zip(asked.prompts, observed, measured, strict=True)
        rows = tuple(RowVerdict(i, self._followed(*each, asked), each[1]) for i, each in enumerate(pairs))
        if all(row.first is None for row in rows):
            ties = sum(len(one.differing(row)) for one, row in zip(measured, observed, strict=True))
            return Verdict("tie" if ties else "equivalent", rows, ties=ties)

        def measure(prompt: _Ids, tokens: _Ids) -> Measured:
            return gaps.measure(prompt, within(tokens, asked.limit, asked.eos))

        def follow(prompt: _Ids, tokens: _Ids) -> _Ids:
            return self._followed(prompt, tokens, measure(prompt, tokens), asked)

        def fits(prompt: _Ids, tokens: _Ids) -> bool:
            return max(measure(prompt, tokens).gaps, default=0.0) <= gaps.threshold

        if said := asked.sure(rows, follow, fits):
            return Verdict("violation", rows, said)
        return gaps.verdict(rows, asked.from_tokens(rows, None), measured)

    def _followed(self, prompt: _Ids, observed: _Ids, measured: Measured, asked: Checked) -> _Ids:
        """Return the true row, which follows the observed one through near-ties."""
        assert self._gaps is not None
        gaps, threshold = measured.gaps, self._gaps.threshold
        kept = observed[: next((at for at, gap in enumerate(gaps) if gap > threshold), len(gaps))]
        if len(kept) == asked.limit or kept[-1:] in [(one,) for one in asked.eos]:
            return kept
        return kept + self._continued(prompt + kept, asked.limit - len(kept), asked.eos)

    def _expected(self, prompt: _Ids, observed: _Ids, limit: int, eos: _Ids) -> _Ids:
        """Return the true row, in the way to generate it that agrees longest with the observed one."""
        return self._alone.expected(prompt, observed, limit, eos).tokens

    def _continued(self, prompt: _Ids, limit: int, eos: _Ids) -> _Ids:
        row = self._alone.generated(prompt, limit, eos)
        assert row is not None  # without a cache the target always answers
        return row

    def _eos(self, eos_token_ids: Any, eos_token_id: Any = None) -> tuple[int, ...]:
        name, wanted = "eos_token_ids", "a sequence of token ids"
        if eos_token_id is not None:
            if not isinstance(eos_token_ids, tuple | list) or eos_token_ids:
                raise UsageError("eos_token_ids, eos_token_id: expected one of the two, got both")
            name, wanted = "eos_token_id", "a token id, or a sequence of them"
            eos_token_ids = eos_token_id if isinstance(eos_token_id, Sequence | Set) else (eos_token_id,)
        if not isinstance(eos_token_ids, Sequence | Set) or isinstance(eos_token_ids, str):
            hint = f"; use ({eos_token_ids},)" if isinstance(eos_token_ids, int) else ""
            got = eos_token_ids if hint else listed(eos_token_ids)
            raise OutputError(f"{name}: expected {wanted}, got {got}{hint}")
        return check_row(list(eos_token_ids), self.vocab_size, name)

    def _prompts(self, prompts: Any) -> tuple[tuple[int, ...], ...]:
        if not isinstance(prompts, list | tuple):
            raise OutputError(f"prompts: expected list[list[int]], got {listed(prompts)}")
        if not prompts:
            raise OutputError("prompts: expected at least one row, got none")
        checked = check_rows(prompts, len(prompts), self.vocab_size, "prompts")
        for row, prompt in enumerate(checked):
            if not prompt:
                raise OutputError(f"prompts[{row}]: expected at least one token, got an empty list")
        return checked


def _limit(max_new_tokens: Any) -> int:
    limit = as_int(max_new_tokens)
    if limit is None or limit < 1:
        raise OutputError(f"max_new_tokens: expected an integer of at least 1, got {max_new_tokens!r}")
    return limit


def judge(run: Run) -> Verdict:
    """The verdict on a run, explained by reading its trace.

    The truth is that of the target's definition (`eqcheck.transparent.truth.continuation.continue_row`), which costs a
    fraction of asking the target as `Oracle` does; the tests hold the two against each other.
    """
    if run.declined:
        return Verdict("skipped", (), declined=run.declined)
    if run.outputs is None:
        return Verdict("violation", (), run.failure)
    rows = run.verdicts
    if all(row.first is None for row in rows):
        unused = ignored(run) or told_wrongly_of(run)
        return Verdict("violation", rows, unused) if unused else Verdict("equivalent", rows)
    rest, behind = without_passed_stops(run)
    return Verdict("violation", rows, Reader(rest).explain() or behind)


def assert_equivalent(decoder: Decoder, case: Case) -> None:
    """Decode a case, and raise `Violation` with the explanation unless the output is exactly what the target generates.

    To confirm the cause, a failing case is decoded again with repairs and with other tokens. Raises `Unsupported` if
    the decoder declines the case or the case lacks what it requires; in a Hypothesis test the next example is drawn.

    >>> from eqcheck.contract import registry
    >>> assert_equivalent(registry.load("eqspec"), Case(prompts=((1, 2), (3,)), accepts=((1,), (0,))))
    """
    __tracebackhide__ = True  # pytest would print this source, which tells nobody anything
    declined = refused(case, decoder.requires)
    if not declined:
        verdict = _judged(decoder, case)
        declined = verdict.declined
    if declined:
        _pass_over(declined)
    if not verdict:
        raise Violation(verdict.explain())


def _judged(decoder: Decoder, case: Case) -> Verdict:
    """The verdict on a case; where it fails after earlier requests and not alone, that is what is said."""
    with decoder.running() as generate:
        verdict = judge(done := run_case(generate, case))
        if (read := verdict.explanation) and not case.before:
            verdict = replace(verdict, explanation=second_opinion(generate, done, read, None, variants(case)))
    if case.before and verdict.explanation:
        alone = _judged(decoder, case.alone)
        if alone.explanation:
            return alone
        stale = case.unchanging != case and not _judged(decoder, case.unchanging).explanation
        read = with_stale_entries(done, verdict.explanation)
        return replace(verdict, explanation=leaked(case, read, stale=stale))
    return verdict


def _pass_over(declined: str) -> None:
    __tracebackhide__ = True
    if "hypothesis" in sys.modules:
        from hypothesis import currently_in_test_context, reject

        if currently_in_test_context():
            reject()
    raise Unsupported(f"declined: {declined}")


__all__ = ["Oracle", "assert_equivalent", "cut", "judge"]
