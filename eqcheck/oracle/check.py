"""Check that every token of an output is the one the target generates alone for that row."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence, Set
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from eqcheck.attribution.bookkeeping import ends
from eqcheck.attribution.completions import told_wrongly_of, without_passed_stops
from eqcheck.attribution.declarations import ignored
from eqcheck.attribution.ids import variants
from eqcheck.attribution.reading import Reader
from eqcheck.attribution.state import leaked, with_stale_entries
from eqcheck.attribution.whole_rows import prompt_returned
from eqcheck.attribution.witnesses import second_opinion
from eqcheck.case.record import Case
from eqcheck.contract.decoders import PADDING_SIDES, Decoder
from eqcheck.contract.errors import OutputError, Unsupported, UsageError, Violation
from eqcheck.contract.escaping import describe, listed
from eqcheck.contract.requirements import refused
from eqcheck.decoding.harness import run as run_case
from eqcheck.decoding.run import Run, cut
from eqcheck.explanation.records import BY_TOKENS, Explanation, Given
from eqcheck.explanation.statements import Statement, state
from eqcheck.real.built import recognised
from eqcheck.result.verdict import RowVerdict, Verdict, as_int, check_row, check_rows
from eqcheck.truth.rounded import RowGaps, coarse

if TYPE_CHECKING:
    from eqcheck.oracle.watch import Watch

_Ids: TypeAlias = tuple[int, ...]


class Oracle:
    """Compare outputs with what the target generates alone: one row at a time, no padding, no cache, greedy.

    ``target`` is any Hugging Face causal LM in evaluation mode. In float64 and float32 the comparison is exact. Below
    float32, rounding decides near-ties: the oracle warns, and wrong tokens are ``inconclusive`` until the evidence of
    all its checks reaches 10^6, then a ``violation``. A built checkpoint (`eqcheck.construction.folder.built`) is exact
    in every dtype. The methods take ``eos_token_id``, the name in transformers, as well as ``eos_token_ids``.

        >>> from eqcheck.hashlm.model import HashLM, HashConfig
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
        self.vocab_size = int(text.vocab_size)
        self._gaps = RowGaps(target) if coarse(target) and not recognised(target) else None
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
        length = len(checked) + _limit(max_new_tokens)
        return self._extend(list(checked), length, self._eos(eos_token_ids, eos_token_id))[len(checked) :]

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
        gaps = self._gaps.add(checked, observed, limit, eos) if self._gaps else [()] * len(checked)
        judged = [self._row(*pair, limit, eos) for pair in zip(checked, observed, gaps, strict=True)]
        rows = tuple(RowVerdict(i, expected, observed[i]) for i, (expected, _) in enumerate(judged))
        wrong = [row for row in rows if row.first is not None]
        if not wrong:
            return Verdict("tie" if any(ties for _, ties in judged) else "equivalent", rows)
        whole = prompt_returned(checked, rows, [limit] * len(checked), pad_token_id, eos)
        said = _from_tokens(checked, rows, wrong, limit, eos, pad_token_id, whole)
        if self._gaps and said.component == "unattributed":
            return self._gaps.verdict(rows, said, gaps)
        return Verdict("violation", rows, said)

    def watch(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        max_new_tokens: int,
        eos_token_ids: Sequence[int] = (),
        pad_token_id: int | None = None,
        padding_side: str = "left",
        draft: Any = None,
        eos_token_id: int | Sequence[int] | None = None,
    ) -> AbstractContextManager[Watch]:
        """Watch the target (and the ``draft``) while your code decodes ``prompts``, and find the first wrong query.

        After the block, ``verdict`` and ``explain()`` of the watch name the first wrong position id, attention mask or
        cache entry, with its call and slot. Set ``outputs`` of the watch to what your code returned to judge the tokens
        too. Works with transformers models that use sdpa or eager attention and are not compiled. Raises as `check`
        does, and `UsageError` for a model that cannot be read.

            >>> import torch
            >>> from eqcheck.real.models import model_of
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
        from eqcheck.oracle.watch import WatchedCase, family_like, watching

        limit, eos = _limit(max_new_tokens), self._eos(eos_token_ids, eos_token_id)
        if padding_side not in PADDING_SIDES:
            raise UsageError(f"padding_side: expected one of {PADDING_SIDES}, got {padding_side!r}")
        pad = -1 if pad_token_id is None else pad_token_id
        case = WatchedCase(self._prompts(prompts), limit, eos, pad, padding_side, family_like(self.target))
        return watching(self, case, draft)

    def _row(self, prompt: _Ids, observed: _Ids, gaps: Sequence[float], limit: int, eos: _Ids) -> tuple[_Ids, int]:
        """Return the true row, which follows the observed one through near-ties, and the number of near-ties."""
        expected, ties = self._expected(prompt, observed, limit, eos), 0
        while self._gaps:
            pairs = enumerate(zip(expected, observed, strict=False))
            index = next((i for i, (right, got) in pairs if right != got), None)
            if index is None or gaps[index] > self._gaps.threshold:
                break
            kept, ties = observed[: index + 1], ties + 1
            ended = kept[-1] in eos or len(kept) == limit
            rest = () if ended else self._expected(prompt + kept, observed[len(kept) :], limit - len(kept), eos)
            expected = kept + rest
        return expected, ties

    def _expected(self, prompt: _Ids, observed: _Ids, limit: int, eos: _Ids) -> _Ids:
        """Return the true row; one forward over prompt and output gives it as far as the output is correct."""
        sequence = list(prompt + observed[:limit])
        predicted = self._argmax(sequence)
        kept = list(prompt)
        for index in range(len(prompt), len(prompt) + limit):
            if index - 1 >= len(predicted):
                break
            kept.append(_chosen(predicted, index - 1))
            if kept[-1] in eos:
                return tuple(kept[len(prompt) :])
            if index >= len(sequence) or sequence[index] != kept[-1]:
                break
        return tuple(self._extend(kept, len(prompt) + limit, eos)[len(prompt) :])

    def _extend(self, sequence: list[int], length: int, eos: tuple[int, ...]) -> list[int]:
        while len(sequence) < length:
            sequence.append(_chosen(self._argmax(sequence), len(sequence) - 1))
            if sequence[-1] in eos:
                break
        return sequence

    def _argmax(self, tokens: Sequence[int]) -> list[int | None]:
        """Return the target's choice after each token; None where no logit is the greatest, because of NaN."""
        ids = torch.tensor([list(tokens)], device=getattr(self.target, "device", "cpu"))
        with torch.no_grad():
            logits = self.target(input_ids=ids, use_cache=False).logits
        finite = logits[0].amax(-1).isfinite()  # a NaN makes the greatest one NaN
        return [int(token) if fine else None for token, fine in zip(logits[0].argmax(-1), finite, strict=True)]

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


def _chosen(choices: Sequence[int | None], position: int) -> int:
    choice = choices[position]
    if choice is None:
        raise UsageError(
            f"target: expected finite logits, got NaN or infinity at position {position}, so no output can be judged; "
            "compute in float32 or float64, and look for NaN in the weights"
        )
    return choice


def _limit(max_new_tokens: Any) -> int:
    limit = as_int(max_new_tokens)
    if limit is None or limit < 1:
        raise OutputError(f"max_new_tokens: expected an integer of at least 1, got {max_new_tokens!r}")
    return limit


def _from_tokens(
    prompts: tuple[tuple[int, ...], ...],
    rows: tuple[RowVerdict, ...],
    wrong: list[RowVerdict],
    limit: int,
    eos: tuple[int, ...],
    pad: int | None,
    whole: tuple[RowVerdict, Statement] | None,
) -> Explanation:
    """The cause that tokens show: rows returned ``whole``, ends of rows, exchanged rows; a wrong token has none."""
    named = []
    for verdict in wrong:
        kind = ends(verdict.expected, verdict.observed, eos, -1 if pad is None else pad)
        swapped = [r.row for r in wrong if r.row != verdict.row and r.expected == verdict.observed]
        if swapped:
            kind = ("row-swap", state("of-another-row", other_row=swapped[0]))
        named.append((verdict, kind))
    verdict, kind = next((one for one in named if one[1] is None), named[0])
    if whole:
        verdict, kind = whole[0], ("prompt-in-output", whole[1])
    component = "bookkeeping" if kind else "unattributed"
    name, statement = kind or ("unattributed", state("outputs-alone"))
    index = verdict.first
    assert index is not None
    return Explanation(
        component,
        name,
        row=verdict.row,
        token_index=index,
        round=None,
        expected=verdict.expected[index] if index < len(verdict.expected) else None,
        observed=verdict.observed[index] if index < len(verdict.observed) else None,
        detail=statement.detail,
        facts=statement.facts,
        expected_row=verdict.expected,
        observed_row=verdict.observed,
        wrong_rows=tuple(row.row for row in wrong),
        basis=BY_TOKENS,
        given=Given(prompts[verdict.row], pad, eos, limit=limit, requests=len(prompts)),
    )


def judge(run: Run) -> Verdict:
    """The verdict on a run, explained by reading its trace.

    The truth is that of the target's definition (`eqcheck.truth.continuation.continue_row`), which costs a fraction of
    asking the target as `Oracle` does; the tests hold the two against each other.
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
