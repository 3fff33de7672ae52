"""Watch any code that runs a transformers model, and explain the first query with a wrong context."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol, cast

import numpy as np
import torch

from eqcheck.contract.errors import Unsupported, UsageError
from eqcheck.contract.family import FAMILY
from eqcheck.contract.options import RowOptions
from eqcheck.core.case.record import Case
from eqcheck.core.explanation.records import Explanation, Given
from eqcheck.core.explanation.statements import state
from eqcheck.core.result.outcome import Verdict, check_rows
from eqcheck.transparent.attribution.labels import Labels, labels_of
from eqcheck.transparent.attribution.reading import Reader
from eqcheck.transparent.attribution.writes import Label, Write
from eqcheck.transparent.decoding import Run, Truth, after, answered_rightly, answers_to, cut
from eqcheck.transparent.hashlm.hashing import MODEL
from eqcheck.transparent.hashlm.trace import DRAFT, TARGET, Trace
from eqcheck.transparent.real.shadow import Shadow
from eqcheck.transparent.real.tap import NotRead, TapFailed, Watched, tapped
from eqcheck.transparent.truth.continuation import digests_of
from eqcheck.transparent.truth.rounded import in_pieces

_LEARNED = ("gpt2", "gpt_bigcode", "gpt_neo", "biogpt", "xglm", "openai-gpt")
_CHOOSES = ("index_topk", "indexer_topk")
"""The number of keys that each query of a sparse attention chooses by their content."""
_BY_MASK = ("bloom", "opt", "mpt")


class AnyOracle(Protocol):
    """Describe the part of an `eqcheck.Oracle` that a watch needs."""

    @property
    def target(self) -> Any: ...

    @property
    def vocab_size(self) -> int: ...

    def truth(self, prompt: Any, *, max_new_tokens: int) -> Any: ...

    def alike(self, prompts: Any, rows: Any, limit: int) -> Any: ...

    def noted(self, verdict: Verdict, prompts: Any) -> Verdict: ...

    def by_length(self, verdict: Verdict, prompts: Any, outputs: Any, limit: int, eos: Any) -> Verdict: ...


@dataclass(frozen=True)
class WatchedCase:
    """Hold the part of a case that reading needs: the caller's rows and limits."""

    prompts: tuple[tuple[int, ...], ...]
    max_new_tokens: int
    eos_token_ids: tuple[int, ...]
    pad_token_id: int
    padding_side: str
    family: str
    num_draft_tokens: int | None = None
    cache_state: str = "empty"
    tree: tuple[()] = ()

    @property
    def options(self) -> tuple[RowOptions, ...]:
        """Return the options of each row: nothing but its limit and its EOS ids."""
        return (RowOptions(self.max_new_tokens, self.eos_token_ids),) * len(self.prompts)

    def given(self, row: int) -> Given:
        """Return the prompt and the settings of a row, as an explanation quotes them."""
        given = Given(self.prompts[row], self.pad_token_id, self.eos_token_ids, self.num_draft_tokens)
        return replace(given, requests=len(self.prompts))


def family_like(model: Any) -> str:
    """Return the family whose positions and masks are like the model's; raise `UsageError` if it cannot be read."""
    config = model.config.get_text_config()
    if config.model_type in _BY_MASK:
        raise UsageError(
            f"watch: expected a model that takes position_ids, got {type(model).__name__}, which counts positions in "
            "its mask; use `eqcheck audit --target bloom` for such models"
        )
    if any(getattr(config, name, None) for name in _CHOOSES):
        raise UsageError(
            f"watch: expected a model whose mask says what a query sees, got {type(model).__name__}, whose indexer "
            "chooses it; compare its outputs with `check`"
        )
    if config.model_type in _LEARNED:
        return "learned"
    kinds = set(getattr(config, "layer_types", None) or ())
    window = getattr(config, "sliding_window", None)
    if window and (kinds == {"sliding_attention"} or (not kinds and config.model_type == "mistral")):
        return f"window:{int(window)}"
    return "rotary"


class Watch:
    """Hold the calls of a watched model; set ``outputs`` to what your code returned to judge its tokens too."""

    def __init__(self, oracle: AnyOracle, case: WatchedCase, trace: Trace, tokens_only: bool = False) -> None:
        self._oracle, self._case, self._trace, self._tokens_only = oracle, case, trace, tokens_only
        self.outputs: Sequence[Sequence[int]] | None = None

    @cached_property
    def verdict(self) -> Verdict:
        """Judge every row as far as it was decoded; the explanation names the first wrong context.

        Where the context was right and rounding chose another token, the row counts as a tie. A wrong context is a
        violation also where all tokens are right, unless the watch is of ``tokens_only``.
        """
        run = self._run()
        reader, undefined = Reader(run), _undefined(run)
        if any(row.first is not None for row in run.verdicts):
            told = _told_twice(reader)
            if undefined and (told is None or told.component not in _OF_CONTEXTS):
                told = undefined
            return self._oracle.noted(Verdict("violation", run.verdicts, told), self._case.prompts)
        harmless = None if self._tokens_only else self._wrong_context(run, reader)
        if harmless is not None:
            return Verdict("violation", run.verdicts, harmless)
        if undefined is not None:
            return Verdict("violation", run.verdicts, undefined)
        status = "tie" if run.ties else "equivalent"
        agreed = Verdict(status, run.verdicts, ties=len(run.ties), unseen=self._unseen(run))
        verdict = self._oracle.noted(agreed, self._case.prompts)
        if self.outputs is None or not run.ties:
            return verdict
        case = self._case
        return self._oracle.by_length(verdict, case.prompts, self.outputs, case.max_new_tokens, case.eos_token_ids)

    def _unseen(self, run: Run) -> int:
        """Return how many tokens may follow those that calls asked for; without outputs nothing is known of them."""
        if self.outputs is not None:
            return 0
        rows = (row.observed for row in run.verdicts)
        going = [row for row in rows if not row or row[-1] not in self._case.eos_token_ids]
        return sum(self._case.max_new_tokens - len(row) for row in going)

    def explain(self) -> str:
        """Return the explanation as text."""
        return self.verdict.explain()

    def _run(self) -> Run:
        """The run held against what the target generates alone, in the way that its rows are nearest to."""
        case, oracle = self._case, self._oracle
        limit = case.max_new_tokens
        plain = tuple(tuple(oracle.truth(prompt, max_new_tokens=limit)) for prompt in case.prompts)
        run = self._held_against(plain)
        assert run.outputs is not None
        nearest = tuple(oracle.alike(case.prompts, run.outputs, limit))
        if nearest == plain:
            return run
        runs = (run, self._held_against(nearest))
        return min(runs, key=lambda one: (sum(row.first is not None for row in one.verdicts), len(one.ties)))

    def _held_against(self, uncut: tuple[tuple[int, ...], ...]) -> Run:
        case, oracle = self._case, self._oracle
        texts = [(*prompt, *row) for prompt, row in zip(case.prompts, uncut, strict=True)]
        digests = tuple(digests_of(case.family, [text])[0] for text in texts)
        truth = Truth(tuple(cut(row, case.eos_token_ids) for row in uncut), uncut, digests)
        run = Run(cast(Case, case), truth, self._trace, truth.rows)
        if self.outputs is None:
            return _as_far_as_asked(run, oracle)
        return _after_ties(replace(run, outputs=check_rows(self.outputs, len(case.prompts), oracle.vocab_size)), oracle)

    def _wrong_context(self, run: Run, reader: Reader) -> Explanation | None:
        """Return what is known of the first wrong context that no token shows; None if it is not certain.

        No token proves that it was read rightly. So every entry that the query sees has to be known, its row has to be
        one that the call holds, and the model's own decode of the row has to be read as right.
        """
        found = [finding for finding in reader.all_unseen() if _certain(finding[1], self._trace)]
        if not found:
            return None
        _, first = min(found, key=lambda finding: finding[0])
        assert first.row is not None
        try:
            return first if _readable(self._oracle.target, run, first.row) else None
        except (NotRead, TapFailed):
            return None


# Statements by which a returned token is what was answered somewhere else: one token agrees by accident.
_ANSWERED_ELSEWHERE = ("behind", "filler", "behind-pad", "elsewhere", "elsewhere-of-another")


def _told_twice(reader: Reader) -> Explanation | None:
    """Return what is wrong, with a word on where the token was answered only if a second row says the same.

    An audit decodes the case again with other tokens. A run that is watched is not repeated, and its other wrong rows
    are all there is to hold against such a word: it needs one that agrees, and none that does not.
    """
    first = reader.explain()
    if first is None or first.facts.get("statement") not in _ANSWERED_ELSEWHERE:
        return first
    said = [one.facts.get("statement") for one in reader.of_each_row() if one.fingerprint == first.fingerprint]
    if len(said) > 1 and len(set(said)) == 1:
        return first
    neutral = state("neither")
    return replace(first, detail=neutral.detail, clauses=(), facts=neutral.facts)


_OF_CONTEXTS = ("position", "mask", "cache")


def _undefined(run: Run) -> Explanation | None:
    """Return where a query that saw exactly its row has scores of NaN; what is returned for it is no choice."""
    for call in run.trace.made(TARGET):
        for number, batch_row, column in sorted(run.trace.undefined):
            if number != call.number:
                continue
            for row, (prompt, expected) in enumerate(zip(run.case.prompts, run.truth.uncut, strict=True)):
                places = run.truth.digests[row][-1, len(prompt) - 1 :][: len(expected)]
                if not (found := np.flatnonzero(places == call.digests[batch_row, column])).size:
                    continue
                index, got = int(found[0]), run.verdicts[row].observed
                why = state("not-a-number", call=number, row=row, token_index=index)
                return Explanation(
                    "unattributed",
                    "unattributed",
                    row=row,
                    token_index=index,
                    expected=expected[index],
                    observed=got[index] if index < len(got) else None,
                    detail=why.detail,
                    facts=why.facts,
                    expected_row=run.truth.rows[row],
                    observed_row=got,
                    wrong_rows=tuple(one.row for one in run.verdicts if one.first is not None),
                    given=cast(WatchedCase, run.case).given(row),
                )
    return None


def _certain(explanation: Explanation, trace: Trace) -> bool:
    """Return whether a context is certainly wrong: a call wrote all that the query sees, and the call holds its row.

    Tokens that were decoded before the watch, or elsewhere, have entries that no call wrote. A call that has nothing to
    do with the rows, to warm up, may feed a token that one of them has.
    """
    query = explanation.query
    if query is None or explanation.component not in _OF_CONTEXTS or explanation.kind == "torn-entry":
        return False
    call = next(one for one in trace.calls if one.number == query.call)
    seen = np.flatnonzero(call.visible[query.call_row, query.column])
    if not all(np.isin(kv[0, query.call_row, 0, seen, MODEL], (TARGET, DRAFT)).all() for kv in call.kv):
        return False
    row = explanation.deviations[0].row
    due = range(query.sees_from, query.logical_position + 1)
    held = {slot.of_position for slot in explanation.slots if slot.of_row == row and slot.index is not None}
    return 2 * len(held & set(due)) >= len(due)


def _readable(target: Any, run: Run, row: int) -> bool:
    """Return whether the model's own decode of a row is read as right: whole, and a token at a time with a cache."""
    prompt, digests, family = run.case.prompts[row], run.truth.digests[row][-1], FAMILY[run.case.family]
    tokens = run.truth.rows[row][:-1]  # what follows the last one is not asked for
    for alone in (False, True):
        trace = Trace()
        model = [Watched.of(target, TARGET)]
        with torch.no_grad(), tapped(model, Shadow(model, family, trace, {})):
            if alone:
                target(input_ids=torch.tensor([[*prompt, *tokens]], device=target.device), use_cache=False)
            else:
                in_pieces(target, prompt, tokens, (1,))
        read = [digest for call in trace.calls for digest in call.digests[0].tolist()]
        if read != digests[: len(read)].tolist() or len(read) < len(prompt):
            return False
    return True


def _as_far_as_asked(run: Run, oracle: AnyOracle) -> Run:
    """The run with the tokens that queries answered: right ones as far as one saw its row, and the next as it is.

    Where rounding chose another token than the truth has, the row goes on from that.
    """
    rows = []
    for row in range(len(run.case.prompts)):
        run, count = _asked(run, row, oracle)
        rows.append(run.truth.rows[row][:count])
    return replace(run, truth=replace(run.truth, rows=tuple(rows)))


def _asked(run: Run, row: int, oracle: AnyOracle) -> tuple[Run, int]:
    """The run with the output of a row as far as it was asked for, and how many tokens that are."""
    index, start, tokens = 0, len(run.case.prompts[row]) - 1, list[int]()
    labels = labels_of(run, run.trace)
    while index < len(expected := run.truth.rows[row]):
        # Token by token, because after a near-tie the row that was chosen decides what was asked next.
        answers = answers_to(run, int(run.truth.digests[row][-1, start + index]))
        if not answers:
            queries = labels.queries(row, start + index)
            asked = [write for write, label in queries if not label.exact and _holds(labels, write, label)]
            told = [int(labels.calls[write[0]].predictions[write[1:]]) for write in asked[-1:]]
            tokens += [token for token in told if token >= 0]
            break
        chosen = _gone_on_with(run, row, tokens, {expected[index]} & answers, answers)
        tokens.append(expected[index] if chosen is None else chosen)
        if chosen is None:
            break
        if chosen != expected[index]:
            run = after(_with(run, row, tokens), row, index, _more(oracle))
            labels = labels_of(run, run.trace)
        index += 1
    return _with(run, row, tokens), len(tokens)


def _gone_on_with(run: Run, row: int, tokens: Sequence[int], right: set[int], answers: set[int]) -> int | None:
    """The one of several answers that the row goes on with, as later calls show; None where none does.

    A single answer needs no proof. Where rounding decides, what was chosen is known only by what is fed next.
    """
    if len(answers) == 1:
        return next(iter(answers))
    begin = (*run.case.prompts[row], *tokens)
    for token in (*right, *sorted(answers - right)):
        last = digests_of(run.case.family, [(*begin, token)])[0][-1, len(begin)]
        if any(bool((call.digests == last).any()) for call in run.trace.made(TARGET)):
            return token
    return None


def _holds(labels: Labels, write: Write, label: Label) -> bool:
    """Return whether the batch row of a query holds half of what the query has to see, or more.

    Without outputs nothing else shows that a call has to do with a row: one to warm up may feed a token that it has.
    """
    call, row = labels.calls[write[0]], write[1]
    here = [one for one in (*labels.held(call, row), *labels.labels(call, row)) if labels.same(one, label.request)]
    return 2 * len({one.position for one in here if one.position <= label.position}) > label.position


def _with(run: Run, row: int, tokens: Sequence[int]) -> Run:
    assert run.outputs is not None
    return replace(run, outputs=(*run.outputs[:row], tuple(tokens), *run.outputs[row + 1 :]))


def _after_ties(run: Run, oracle: AnyOracle) -> Run:
    """The run with a truth that goes on after tokens which a query that saw exactly its row was answered with."""
    for row in range(len(run.case.prompts)):
        while (index := answered_rightly(run, row)) is not None:
            run = after(run, row, index, _more(oracle))
    return run


def _more(oracle: AnyOracle) -> Callable[[tuple[int, ...], int], Sequence[int]]:
    return lambda text, left: oracle.truth(text, max_new_tokens=left)


@contextmanager
def watching(oracle: AnyOracle, case: WatchedCase, draft: Any = None, tokens_only: bool = False) -> Iterator[Watch]:
    """Watch the oracle's target, and a draft, for as long as the context lasts."""
    trace = Trace()
    try:
        models = [Watched.of(oracle.target, TARGET), *([Watched.of(draft, DRAFT)] if draft is not None else [])]
    except Unsupported as unread:
        raise UsageError(f"watch: the model cannot be read: {unread}") from unread
    with tapped(models, Shadow(models, FAMILY[case.family], trace, {})):
        try:
            yield Watch(oracle, case, trace, tokens_only)
        except NotRead as unread:
            raise UsageError(f"watch: the model cannot be read: {unread}") from unread
        except TapFailed as error:
            raise UsageError(
                f"watch: the model cannot be read: eqcheck failed on it, which says nothing about your code: {error}; "
                "compare its outputs with `check`"
            ) from error


__all__ = ["Watch", "WatchedCase", "family_like", "watching"]
