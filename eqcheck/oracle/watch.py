"""Watch any code that runs a transformers model, and explain the first query with a wrong context."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol, cast

from eqcheck.attribution.labels import labels_of
from eqcheck.attribution.reading import Reader
from eqcheck.case.record import Case
from eqcheck.contract.errors import UsageError
from eqcheck.contract.family import FAMILY
from eqcheck.decoding.rounding import after, answered
from eqcheck.decoding.run import Run, Truth, cut
from eqcheck.explanation.records import Given
from eqcheck.hashlm.trace import DRAFT, TARGET, Trace
from eqcheck.real.shadow import Shadow
from eqcheck.real.tap import NotRead, TapFailed, Watched, tapped
from eqcheck.result.verdict import Verdict, check_rows
from eqcheck.truth.continuation import digests_of

_LEARNED = ("gpt2", "gpt_bigcode", "gpt_neo", "biogpt", "xglm", "openai-gpt")
_BY_MASK = ("bloom", "opt", "mpt")


class AnyOracle(Protocol):
    """Describe the part of an `eqcheck.Oracle` that a watch needs."""

    @property
    def target(self) -> Any: ...

    @property
    def vocab_size(self) -> int: ...

    def truth(self, prompt: Any, *, max_new_tokens: int) -> Any: ...


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
    if config.model_type in _LEARNED:
        return "learned"
    kinds = set(getattr(config, "layer_types", None) or ())
    window = getattr(config, "sliding_window", None)
    if window and (kinds == {"sliding_attention"} or (not kinds and config.model_type == "mistral")):
        return f"window:{int(window)}"
    return "rotary"


class Watch:
    """Hold the calls of a watched model; set ``outputs`` to what your code returned to judge its tokens too."""

    def __init__(self, oracle: AnyOracle, case: WatchedCase, trace: Trace) -> None:
        self._oracle, self._case, self._trace = oracle, case, trace
        self.outputs: Sequence[Sequence[int]] | None = None

    @cached_property
    def verdict(self) -> Verdict:
        """Judge every row as far as it was decoded; the explanation names the first wrong context.

        Where the context was right and rounding chose another token, the row counts as a tie.
        """
        run = self._run()
        if not any(row.first is not None for row in run.verdicts):
            return Verdict("tie" if run.ties else "equivalent", run.verdicts)
        return Verdict("violation", run.verdicts, Reader(run).explain())

    def explain(self) -> str:
        """Return the explanation as text."""
        return self.verdict.explain()

    def _run(self) -> Run:
        case, oracle = self._case, self._oracle
        limit = case.max_new_tokens
        uncut = tuple(tuple(oracle.truth(prompt, max_new_tokens=limit)) for prompt in case.prompts)
        texts = [(*prompt, *row) for prompt, row in zip(case.prompts, uncut, strict=True)]
        digests = tuple(digests_of(case.family, [text])[0] for text in texts)
        truth = Truth(tuple(cut(row, case.eos_token_ids) for row in uncut), uncut, digests)
        run = Run(cast(Case, case), truth, self._trace, truth.rows)
        if self.outputs is not None:
            run = replace(run, outputs=check_rows(self.outputs, len(case.prompts), oracle.vocab_size))
            return _after_ties(run, oracle)
        return _as_far_as_asked(run)


def _as_far_as_asked(run: Run) -> Run:
    """The run with the tokens that queries answered: right ones as far as one saw its row, and the next as it is."""
    labels = labels_of(run, run.trace)
    outputs, rows = [], []
    for row, expected in enumerate(run.truth.rows):
        start = len(run.case.prompts[row]) - 1
        tokens: list[int] = []
        for index in range(len(expected)):
            queries = labels.queries(row, start + index)
            if not any(label.exact for _, label in queries):
                asked = [write for write, label in queries if not label.exact]
                tokens += [int(labels.calls[write[0]].predictions[write[1:]]) for write in asked[-1:]]
                break
            tokens.append(expected[index])
        outputs.append(tuple(tokens))
        rows.append(expected[: len(tokens)])
    return replace(run, outputs=tuple(outputs), truth=replace(run.truth, rows=tuple(rows)))


def _after_ties(run: Run, oracle: AnyOracle) -> Run:
    """The run with a truth that goes on after tokens which a query that saw exactly its row was answered with."""
    for row in range(len(run.case.prompts)):
        while (index := answered(run, row)) is not None:
            run = after(run, row, index, lambda text, left: oracle.truth(text, max_new_tokens=left))
    return run


@contextmanager
def watching(oracle: AnyOracle, case: WatchedCase, draft: Any = None) -> Iterator[Watch]:
    """Watch the oracle's target, and a draft, for as long as the context lasts."""
    trace = Trace()
    models = [Watched.of(oracle.target, TARGET), *([Watched.of(draft, DRAFT)] if draft is not None else [])]
    with tapped(models, Shadow(models, FAMILY[case.family], trace, {})):
        try:
            yield Watch(oracle, case, trace)
        except NotRead as unread:
            raise UsageError(f"watch: the model cannot be read: {unread}") from unread
        except TapFailed as error:
            raise RuntimeError(f"eqcheck: reading failed, which says nothing about your code: {error}") from error


__all__ = ["Watch", "WatchedCase", "family_like", "watching"]
