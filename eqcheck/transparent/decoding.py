"""One decode of a case: its trace and outputs, beside the truth."""

from __future__ import annotations

import signal
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from transformers import DynamicCache, GenerationConfig

from eqcheck.contract.cache_names import cache_argument
from eqcheck.contract.completion import Completion, split
from eqcheck.contract.decoders import Generate
from eqcheck.contract.errors import OutputError, Unsupported, one_line, printable
from eqcheck.contract.family import FAMILY
from eqcheck.contract.trees import REJECTED, Nodes, chain, walk
from eqcheck.core.case.record import Case
from eqcheck.core.explanation.records import Explanation, crash
from eqcheck.core.result.outcome import NearTie, RowVerdict, check_rows
from eqcheck.transparent.drafting import Contexts, ScriptedDraft, ScriptedHead
from eqcheck.transparent.hashlm.hashing import UNEVEN, Words
from eqcheck.transparent.hashlm.model import HashConfig, HashLM, Script
from eqcheck.transparent.hashlm.parts import preallocated
from eqcheck.transparent.hashlm.trace import TARGET, Call, Fix, TooManyCalls, Trace, Uses
from eqcheck.transparent.real.scores import scores_of
from eqcheck.transparent.real.tap import NotRead, TapFailed
from eqcheck.transparent.real.targets import watched
from eqcheck.transparent.rounds import Rounds
from eqcheck.transparent.truth.continuation import continue_row, continue_rows, digests_of
from eqcheck.transparent.truth.ties import tolerance


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


# Compute how far a right draft gets: a case dictates where its draft is wrong,
# so the rounds that rows need are known.


def script_of(case: Case, truth: Truth) -> Script:
    """The script of a case's draft: the contexts where it is wrong, and how far down the target's token is then."""
    if case.agreement is not None:
        return Script(agreement=case.agreement)
    wrong = _ranks(case, truth)
    return Script(frozenset(wrong), 1.0, {digest: rank for digest, rank in wrong.items() if rank > 1})


def _ranks(case: Case, truth: Truth) -> dict[int, int]:
    """The contexts (by digest) after which the case has the draft be wrong, with the rank of the target's token there.

    Rows whose contexts coincide cannot be told apart by a draft; the first of them decides.
    """
    ranks: dict[int, int] = {}
    for row, (prompt, digests) in enumerate(zip(case.prompts, truth.digests, strict=True)):
        dictated = _dictated(case, row)
        for index in range(case.max_new_tokens):
            digest = int(digests[-1, len(prompt) + index - 1])
            ranks.setdefault(digest, dictated[index] if index < len(dictated) else REJECTED if case.tree else 1)
    return {digest: rank for digest, rank in ranks.items() if rank}


def _dictated(case: Case, row: int) -> list[int]:
    """The rank of the target's token among the draft's choices, for the first new tokens of a row."""
    if case.tree:
        paths = case.paths[row] if row < len(case.paths) else ()
        return [rank for path in paths for rank in (*path, REJECTED)]
    rounds = case.accepts[row] if row < len(case.accepts) else ()
    return [rank for n in rounds for rank in (*[0] * n, int(n < case.num_draft_tokens))]


def continuations(case: Case, truth: Truth, second: Callable[[Words], Sequence[int]] | None = None) -> list[list[int]]:
    """The ids that a draft which sees its row proposes after each new token of the target, by row.

    ``second`` says what it proposes in place of the target's token after contexts of these digests; without it that is
    just another id.
    """
    rows = []
    for tokens, digests, ranks in zip(truth.uncut, truth.digests, Schedule(case, truth).ranks, strict=True):
        contexts = digests[-1, -len(tokens) - 1 : -1]
        wrong = second(contexts) if second else [(token + 1) % case.vocab_size for token in tokens]
        each = zip(tokens, wrong, ranks, strict=True)
        rows.append([int(other) if rank else token for token, other, rank in each])
    return rows


class ScriptedRound(NamedTuple):
    """A row's part in a round: ``accepted`` draft tokens, ``emitted`` new ones, ``ends`` says why the row is done."""

    accepted: int
    emitted: int
    ends: str = ""  # "eos-inside-the-block", "eos-not-drafted", "limit"


class Schedule:
    """The rounds of an engine that accepts what the draft gets right.

    ``ranks`` has, for each row and new token up to the limit, the rank of the target's token among the choices of a
    draft that sees its row: 0 where the draft proposes it.
    """

    def __init__(self, case: Case, truth: Truth) -> None:
        self._case, self._truth = case, truth
        self.needed = [len(row) for row in truth.rows]
        script = script_of(case, truth)
        self.ranks: list[list[int]] = []
        for prompt, digests in zip(case.prompts, truth.digests, strict=True):
            contexts = digests[-1, len(prompt) - 1 : -1]
            wrong = zip(contexts.tolist(), script.disagrees(contexts).tolist(), strict=True)
            self.ranks.append([script.lower.get(digest, 1) if one else 0 for digest, one in wrong])

    def accepted(self, row: int, tokens: int, nodes: Nodes) -> int:
        """Return how many of these draft tokens of a right draft are accepted behind so many new tokens of a row."""
        return len(walk(nodes, self.ranks[row][tokens:]))

    def reach(self, row: int, tokens: int, count: int) -> int:
        """Return how many new tokens are known after a round that verifies a chain of so many right draft tokens."""
        return tokens + self.accepted(row, tokens, chain(count)) + 1

    @cached_property
    def rows(self) -> list[list[ScriptedRound]]:
        """Return the rounds of each row."""
        return [self._row(row) for row in range(len(self.needed))]

    @property
    def rounds(self) -> list[list[ScriptedRound]]:
        """Return per round the part of each row that is not done."""
        longest = max(map(len, self.rows))
        return [[of_row[number] for of_row in self.rows if number < len(of_row)] for number in range(longest)]

    def _row(self, row: int) -> list[ScriptedRound]:
        case, tokens, needed = self._case, self._truth.rows[row], self.needed[row]
        at, rounds = 0, list[ScriptedRound]()
        while at < needed:
            accepted = self.accepted(row, at, case.nodes(row, len(rounds)) or chain(case.num_draft_tokens))
            emitted = min(accepted + 1, needed - at)
            at += emitted
            drafted = "eos-inside-the-block" if emitted <= accepted else "eos-not-drafted"
            ends = drafted if tokens[-1] in case.eos_token_ids else "limit"
            rounds.append(ScriptedRound(accepted, emitted, ends if at == needed else ""))
        return rounds


# Ties told from faults, where a target computes in less than float64.
#
# A token is a tie where a query that saw exactly its row answered it, and the float64 target prefers its own by no
# more than `eqcheck.transparent.truth.ties.tolerance`. Tokens behind a tie are judged after the emitted token: the
# truth goes on from it.


def ties_of(run: Run) -> Run:
    """The run with its truth going on after ties, and their count.

    It is as it is where the target computes in float64, or is a built checkpoint, which is exact in every dtype.
    """
    case, family = run.case, FAMILY[run.case.family]
    assert family.target is not None
    if run.outputs is None or family.target.dtype == "float64" or family.built:
        return run
    bound = tolerance(family.target.architecture, family.target.dtype, case.seed)
    for row in range(len(case.prompts)):
        while (index := answered_rightly(run, row)) is not None and (margin := _lead(run, row, index)) <= bound:
            run = after(
                run,
                row,
                index,
                lambda text, left: continue_row(case.family, case.vocab_size, case.seed, text, left)[0],
                (margin, bound),
            )
    return run


def answered_rightly(run: Run, row: int) -> int | None:
    """The place where a row first differs from the truth, if a query that saw exactly its row was answered with it."""
    verdict = run.verdicts[row]
    index, observed = verdict.first, verdict.observed
    if index is None or index in (len(verdict.expected), len(observed)):
        return None
    digest = run.truth.digests[row][-1, len(run.case.prompts[row]) + index - 1]
    return index if observed[index] in answers_to(run, int(digest)) else None


def answers_to(run: Run, digest: int) -> set[int]:
    """Return what the target predicts in this context, in any call; several tokens where rounding decides.

    A query whose head was not asked predicts nothing.
    """
    answers: set[int] = set()
    for call in run.trace.made(TARGET):
        for row, column in np.argwhere(call.digests == np.uint64(digest)).tolist():
            answers |= {int(call.predictions[row, column]), *run.trace.level.get((call.number, row, column), ())}
    return answers - {-1}


def _lead(run: Run, row: int, index: int) -> float:
    """The lead of the float64 target's own token over the one that was emitted."""
    verdict = run.verdicts[row]
    scores = scores_of(FAMILY[run.case.family], run.case.seed, (*run.case.prompts[row], *verdict.expected[:index]))[-1]
    return float(scores[verdict.expected[index]] - scores[verdict.observed[index]])


def after(
    run: Run,
    row: int,
    index: int,
    more: Callable[[tuple[int, ...], int], Sequence[int]],
    lead: tuple[float, float] = (0.0, 0.0),
) -> Run:
    """The run with one tie more, and a truth in which the row has the token that it emitted and goes on behind it.

    ``more`` gives so many tokens as the target has them after a text; ``lead`` is the margin of the tie, and its bound.
    """
    assert run.outputs is not None
    prompt, uncut, digests = run.case.prompts[row], [*run.truth.uncut], [*run.truth.digests]
    tie = NearTie(row, index, uncut[row][index], run.outputs[row][index], *lead)
    kept = (*uncut[row][:index], tie.emitted)
    left = run.case.max_new_tokens - len(kept)
    uncut[row] = (*kept, *more((*prompt, *kept), left)) if left > 0 else kept
    digests[row] = digests_of(run.case.family, [(*prompt, *uncut[row])])[0]
    rows = tuple(options.cut(tokens) for options, tokens in zip(run.case.options, uncut, strict=True))
    return replace(run, truth=Truth(rows, tuple(uncut), tuple(digests)), ties=(*run.ties, tie))


# Run one case: build its target and draft, let the decoder decode it, keep everything that happened.


def truth_of(case: Case) -> Truth:
    """The truth of a case, from the definition of its target."""
    continued = continue_rows(case.family, case.vocab_size, case.seed, case.prompts, case.max_new_tokens)
    uncut = tuple(tokens for tokens, _ in continued)
    return Truth(
        rows=tuple(options.cut(row) for options, row in zip(case.options, uncut, strict=True)),
        uncut=uncut,
        digests=tuple(digests for _, digests in continued),
    )


@lru_cache(maxsize=16)
def _models(
    family: str, vocab_size: int, seed: int, draft_seed: int, extra_pad: bool, uneven: bool = False
) -> tuple[HashLM, ScriptedDraft]:
    config = HashConfig(vocab_size=vocab_size, seed=seed, family=family, extra_pad=extra_pad)
    target = cast(HashLM, HashLM(config).eval())
    draft = ScriptedDraft.of(target, weights=draft_seed)
    if uneven:
        config = HashConfig(vocab_size, seed, family, extra_pad=extra_pad, spread=astuple(UNEVEN))
        target = cast(HashLM, HashLM(config).eval())
    return target, draft


def models(case: Case, truth: Truth, trace: Trace | None = None) -> tuple[HashLM, ScriptedDraft]:
    """The case's target and scripted draft, recording into ``trace``.

    They are new each time: whatever a decoder does to them (hooks, attributes, configuration) ends with the case.
    """
    extra = case.known_ids > case.vocab_size
    family, _, seed, draft_seed = case.weights
    kept = _models(family, case.known_ids, seed, draft_seed, extra, case.uneven)
    target, draft = (model.fresh() for model in kept)
    draft = cast(ScriptedDraft, draft)
    script = script_of(case, truth)
    draft.script(script.wrong_after, agreement=script.agreement, lower=script.lower)
    digests = [digests[-1] for digests in truth.digests]
    draft.continuations = _told(trace, lambda: continuations(case, truth, draft.model.second_choices))
    draft.head = ScriptedHead(draft, Contexts(draft, case, truth.uncut, digests))
    for model in (target, draft):
        model.trace = trace
        model.model.poison = POISON.get(case.cache_state)
        model.generation_config = GenerationConfig(
            pad_token_id=case.pad_token_id, eos_token_id=list(case.eos_token_ids) or None
        )
    return target, draft


def _told(trace: Trace | None, made: Callable[[], list[list[int]]]) -> Callable[[], list[list[int]]]:
    """The drafts of a case, for decoders that look them up; the trace notes that they were asked for."""

    def told() -> list[list[int]]:
        if trace is not None:
            trace.drafts_told = True
        return made()

    return told


POISON = {"pads-huge": float(2**30), "pads-nan": float("nan")}


def _handed(case: Case, model: Any) -> DynamicCache | None:
    """The cache that the decoder is given to start from, or None."""
    if case.cache_state == "preallocated":
        slots = max(map(len, case.prompts)) + (case.max_new_tokens + 1) * (case.num_draft_tokens + 1)
        return preallocated(slots, model.config.num_hidden_layers)
    if case.cache_state != "prefix":
        return None
    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        beginning = torch.tensor([case.prompts[0][: case.prefix_length]])
        model(input_ids=beginning, use_cache=True, **cache_argument(model, cache))
    return cache


def run(
    generate: Generate,
    case: Case,
    timeout: float | None = None,
    repair: Callable[[Trace], Callable[[Call], Fix]] | None = None,
) -> Run:
    """Let a decoder decode a case, on one thread's models and under ``no_grad``; a ``repair`` may step in.

    The cases ``before`` in the case are decoded first, and their runs do not count.
    Whatever the decoder does wrong (raises, hangs, returns nonsense, changes the request) is in the result's
    ``failure``; why it declined is in ``declined``. This function itself raises only for faults of eqcheck and for
    ``KeyboardInterrupt``.
    """
    for earlier in case.before:
        run(generate, earlier, timeout)
    truth = truth_of(case)
    rows, new = len(case.prompts), case.max_new_tokens
    trace = Trace(max_calls=200 + 4 * rows * (new + 2) * (case.num_draft_tokens + 2))
    if FAMILY[case.family].target:
        return _on_real_target(generate, case, truth, trace, timeout, repair)
    target, draft = models(case, truth, trace)
    target.model.repair = repair(trace) if repair else None
    handed = _handed(case, target), _handed(case, draft)
    trace.given = trace.calls[-1].number if trace.calls else 0
    if case.cache_state == "preallocated":
        trace.handed = cast(Uses, cast(Any, handed[0]).layers[0].uses)
    return answered(generate, case, truth, trace, (target, draft), timeout, handed)


def _on_real_target(
    generate: Generate,
    case: Case,
    truth: Truth,
    trace: Trace,
    timeout: float | None,
    repair: Callable[[Trace], Callable[[Call], Fix]] | None,
) -> Run:
    """Decode like `run`, on real models that are read while they run and then restored."""
    generation = {"pad_token_id": case.pad_token_id, "eos_token_id": list(case.eos_token_ids) or None}
    known = tuple(zip(truth.uncut, truth.digests, strict=True))
    script, mends = script_of(case, truth), repair(trace) if repair else None
    with watched(FAMILY[case.family], case.seed, trace, known, script, generation, mends) as (target, draft):
        draft.continuations = _told(trace, lambda: continuations(case, truth))
        handed = _handed(case, target), _handed(case, draft)
        trace.given = trace.calls[-1].number if trace.calls else 0
        if case.cache_state == "preallocated":
            trace.handed = cast(Uses, cast(Any, handed[0]).layers[0].uses)
        try:
            done = answered(generate, case, truth, trace, (target, draft), timeout, handed)
        except NotRead as unread:
            return Run(case, truth, trace, None, declined=one_line(f"it cannot be read: {unread}"))
    return ties_of(done) if repair is None else done


def answered(
    generate: Generate,
    case: Any,
    truth: Truth,
    trace: Trace,
    models: tuple[Any, Any],
    timeout: float | None,
    handed: tuple[Any, Any] = (None, None),
) -> Run:
    """The run of a decoder on a case with these models, and with the caches that it is ``handed`` for them."""
    request, untouched, rows = case.request(), case.request(), len(case.prompts)
    for one in (request, untouched):
        one.target_cache, one.draft_cache = handed
    target, draft = models
    try:
        with torch.no_grad(), _alarm(timeout):
            outputs: Any = generate(target, draft, request)
    except (TooManyCalls, _TimeUp) as error:
        return Run(case, truth, trace, None, Explanation("crash", "hang", detail=str(error)))
    except Unsupported as error:
        return Run(case, truth, trace, None, declined=why(error))
    except (NotRead, TapFailed):
        raise
    except BaseException as error:  # the decoder's, whatever it is: the audit reports it and goes on
        if _of_the_user(error):
            raise
        failure = crash("exception", type(error).__name__, _message(error))
        text = printable("".join(traceback.format_exception(error)))
        return Run(case, truth, trace, None, failure, text)
    try:
        if request != untouched:
            changed = one_line(f"expected {untouched}, got {request}", 2000)
            return Run(case, truth, trace, None, crash("invalid-output", "mutated-request", changed))
        tokens, completions = split(outputs)
        returned = check_rows(tokens, rows, case.known_ids)
        if any(options.cancel_after for options in case.options):
            right = zip(case.options, truth.rows, map(len, returned), strict=True)
            truth = replace(truth, rows=tuple(options.until(row, count) for options, row, count in right))
        return Run(case, truth, trace, returned, completions=completions)
    except BaseException as error:  # OutputError, or anything that looking at the decoder's objects raises
        if _of_the_user(error):
            raise
        what = _what(outputs) if isinstance(error, OutputError) else type(outputs).__name__
        return Run(case, truth, trace, None, crash("invalid-output", what, _message(error)))


def _of_the_user(error: BaseException) -> bool:
    """Return whether an exception may be the user's Ctrl-C; worker processes ignore that, so there it is not."""
    return isinstance(error, KeyboardInterrupt) and signal.getsignal(signal.SIGINT) is not signal.SIG_IGN


def why(declined: Unsupported) -> str:
    """The reason a decoder gives, as one line."""
    return _message(declined) or "no reason given"


def _message(error: BaseException) -> str:
    """The first line of an exception's text, even where asking for it raises."""
    try:
        text = str(error)
    except BaseException:
        text = "<exception str() failed>"
    return one_line(next(iter(text.splitlines()), ""))


def _what(outputs: Any) -> str:
    parts = [outputs, *(outputs if isinstance(outputs, list | tuple) else [])]
    parts += [token for row in parts[1:] if isinstance(row, list | tuple) for token in row]
    return "tensor" if any(hasattr(part, "detach") for part in parts) else type(outputs).__name__


class _TimeUp(BaseException):
    """The decoder did not answer in time; not an ``Exception``, so that decoders do not swallow it."""


@contextmanager
def _alarm(seconds: float | None) -> Iterator[None]:
    """Raise `_TimeUp` in the running decoder after so many seconds, where the platform can."""
    usable = hasattr(signal, "setitimer") and threading.current_thread() is threading.main_thread()
    if not seconds or not usable:
        yield
        return

    def ring(*_: object) -> None:
        raise _TimeUp(f"no answer within {seconds:g} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
