"""Truth for rows with options: the float64 model alone, one row, no padding, no cache; and how wide it decides."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch

from eqcheck.contract.options import RowOptions
from eqcheck.core.case.engine import EngineRow
from eqcheck.core.law import penalised
from eqcheck.engines.checkpoints.steps import Steps
from eqcheck.engines.construction.function import CODES, VOCABULARY, Function
from eqcheck.engines.construction.weights import LOGITS, capped, signs

_ALIKE = 1e-3  # scores of a built checkpoint are alike or an eighth apart, up to penalties


class FunctionTruth:
    """The tokens that a built checkpoint emits for a row: its function, and the options of the row.

    >>> from eqcheck.checkpoints import built
    >>> from eqcheck.contract.decoders import RowOptions
    >>> checkpoint = built("full")
    >>> FunctionTruth(checkpoint.function).row(EngineRow((1, 2, 3), RowOptions(1))) == [checkpoint.next([1, 2, 3])]
    True
    """

    def __init__(self, function: Function) -> None:
        self.function = function
        table = np.zeros((CODES, VOCABULARY))  # by the token that is chosen, the scores of all
        scores = capped(signs(range(CODES)) * LOGITS @ signs(range(CODES)).T, function.cap)
        table[np.ix_(function.tokens_out, function.tokens_out)] = scores
        self.table = torch.from_numpy(table)
        self.second = self.table.topk(2).indices[:, 1].tolist()  # by the token that is chosen

    def row(self, row: EngineRow, begin: Sequence[int] = ()) -> list[int]:
        """The new tokens, as they go on after ``begin``, with the EOS that ends them."""
        read, output, changes = self.function.reader(), list(begin), row.options.changes_scores
        *_, best = map(read, [*row.prompt, *begin])
        while len(output) < row.options.max_new_tokens:
            output.append(int(at_place(self.table[best], row, output).argmax()) if changes else best)
            if row.options.ended(output):
                break
            best = read(output[-1])
        return output

    def together(self, rows: Sequence[EngineRow], outputs: Sequence[Sequence[int]]) -> list[torch.Tensor]:
        """The scores of several rows, each ``[n + 1, vocabulary]``, without their options."""
        chosen = [self.function.choices([*row.prompt, *output]) for row, output in zip(rows, outputs, strict=True)]
        return [self.table[best[len(row.prompt) - 1 :]] for row, best in zip(rows, chosen, strict=True)]

    def emitted(self, rows: Sequence[EngineRow], count: int) -> list[list[int]]:
        """Return ``count`` tokens after each prompt, whatever the rows' options."""
        return [self.function.emitted(row.prompt, count) for row in rows]

    def best_two(self, rows: Sequence[EngineRow], count: int) -> list[list[tuple[int, int]]]:
        """The two best choices for so many tokens after each prompt, with options; the first goes on, past an EOS."""
        return [self._best_two(row, count) for row in rows]

    def _best_two(self, row: EngineRow, count: int) -> list[tuple[int, int]]:
        if not row.options.changes_scores:
            return [(best, self.second[best]) for best in self.function.emitted(row.prompt, count)]
        read, pairs = self.function.reader(), list[tuple[int, int]]()
        *_, chosen = map(read, row.prompt)
        while len(pairs) < count:
            best, second = at_place(self.table[chosen], row, [one for one, _ in pairs]).topk(2).indices.tolist()
            pairs.append((best, second))
            chosen = read(best)
        return pairs

    def decides(self, row: EngineRow) -> bool:
        """Return whether one token is the best at each place: options may make two score alike,
        and then any is right.
        """
        output = self.row(row)
        best = self.scores(row, output)[: len(output)].topk(2).values
        return bool((best[:, 0] > best[:, 1] + _ALIKE).all())

    def choices(self, row: EngineRow, output: Sequence[int]) -> torch.Tensor:
        """The token it would emit at each place of ``output``, given those before it, and after it: [n + 1]."""
        return self.scores(row, output).argmax(-1)

    def scores(self, row: EngineRow, output: Sequence[int]) -> torch.Tensor:
        """The scores of the next token after each beginning of ``output``, with the options: [n + 1, vocabulary]."""
        return with_options(self.together([row], [output])[0], row, output)


class ModelTruth:
    """The tokens that a model emits for one row.

    >>> from eqcheck.engines.checkpoints.folders import checkpoint
    >>> from eqcheck.contract.decoders import RowOptions
    >>> truth = ModelTruth(checkpoint().models()[0])
    >>> row = EngineRow((1, 2, 3), RowOptions(max_new_tokens=5))
    >>> truth.choices(row, truth.row(row))[:5].tolist() == truth.row(row)
    True
    """

    def __init__(self, model: Any) -> None:
        self.model = model

    def row(self, row: EngineRow, begin: Sequence[int] = ()) -> list[int]:
        """The new tokens, as they go on after ``begin``, with the EOS that ends them."""
        output, steps = list(begin), Steps(self.model, [[*row.prompt, *begin]])
        scores = steps.first
        while len(output) < row.options.max_new_tokens:
            output.append(int(at_place(scores[0], row, output).argmax()))
            if row.options.ended(output):
                break
            scores = steps.next(output[-1:])
        return output

    @torch.no_grad()
    def together(self, rows: Sequence[EngineRow], outputs: Sequence[Sequence[int]]) -> list[torch.Tensor]:
        """The scores of several rows, each ``[n + 1, vocabulary]``, without their options, from one forward.

        Rows are padded at their end, where nothing of a row looks, so that they are the rows' own up to rounding.
        """
        texts = [[*row.prompt, *output] for row, output in zip(rows, outputs, strict=True)]
        ids = torch.zeros(len(texts), max(map(len, texts)), dtype=torch.long)
        for line, text in zip(ids, texts, strict=True):
            line[: len(text)] = torch.tensor(text)
        logits = self.model(input_ids=ids, use_cache=False).logits
        return [
            logits[number, len(row.prompt) - 1 : len(text)]
            for number, (row, text) in enumerate(zip(rows, texts, strict=True))
        ]

    def emitted(self, rows: Sequence[EngineRow], count: int) -> list[list[int]]:
        """Return ``count`` tokens after each prompt, whatever the rows' options; for drawing cases,
        which must be fast.
        """
        return [list(tokens) for tokens in zip(*self._grown(rows, count, lambda s: s.argmax(-1)), strict=True)]

    def best_two(self, rows: Sequence[EngineRow], count: int) -> list[list[tuple[int, int]]]:
        """The two best choices for so many tokens after each prompt, with options; the first one goes on, past an EOS.

        >>> from eqcheck.engines.checkpoints.row_judge import truth
        >>> from eqcheck.contract.decoders import RowOptions
        >>> row = EngineRow((1, 2, 3), RowOptions(max_new_tokens=5))
        >>> [best for best, _ in truth().best_two([row], 5)[0]] == truth().row(row)
        True
        """
        pairs: list[list[tuple[int, int]]] = [[] for _ in rows]

        def choose(scores: torch.Tensor) -> torch.Tensor:
            for row, score, chosen in zip(rows, scores, pairs, strict=True):
                score = at_place(score, row, [best for best, _ in chosen])
                chosen.append(tuple(score.topk(2).indices.tolist()))
            return torch.tensor([chosen[-1][0] for chosen in pairs])

        for _ in self._grown(rows, count, choose):
            pass
        return pairs

    def _grown(
        self, rows: Sequence[EngineRow], count: int, choose: Callable[[torch.Tensor], torch.Tensor]
    ) -> Iterator[list[int]]:
        """The next token of each row, so many times; ``choose`` takes it from the scores ``[rows, vocabulary]``."""
        steps = Steps(self.model, [row.prompt for row in rows])
        chosen = choose(steps.first).tolist()
        yield chosen
        for _ in range(count - 1):
            chosen = choose(steps.next(chosen)).tolist()
            yield chosen

    def decides(self, row: EngineRow) -> bool:
        """Scores of random weights are never alike."""
        return True

    def choices(self, row: EngineRow, output: Sequence[int]) -> torch.Tensor:
        """The token it would emit at each place of ``output``, given what is there before, and after it: [n + 1]."""
        return self.scores(row, output).argmax(-1)

    @torch.no_grad()
    def scores(self, row: EngineRow, output: Sequence[int]) -> torch.Tensor:
        """The scores of the next token after each beginning of ``output``, with the options: [n + 1, vocabulary]."""
        ids = torch.tensor([[*row.prompt, *output]])
        scores = self.model(input_ids=ids, use_cache=False).logits[0, len(row.prompt) - 1 :]
        return with_options(scores, row, output)


Truth = FunctionTruth | ModelTruth


def with_options(scores: torch.Tensor, row: EngineRow, output: Sequence[int]) -> torch.Tensor:
    """The scores after the row's penalties and its minimum; row ``i`` of them comes after ``output[:i]``."""
    return penalised(scores, row.options, row.prompt, output)


class AskedRow(NamedTuple):
    """A prompt and options that are applied after it, which no case need have: nothing checks them."""

    prompt: tuple[int, ...]
    options: RowOptions


def at_place(scores: torch.Tensor, row: EngineRow | AskedRow, before: Sequence[int]) -> torch.Tensor:
    """The scores ``[vocabulary]`` after the row's options, where these tokens have been emitted before."""
    if not row.options.changes_scores:
        return scores
    return penalised(scores[None], row.options, row.prompt, before, len(before))[0]


def row_with(row: EngineRow, **options: Any) -> EngineRow:
    """The row with other options."""
    return replace(row, options=replace(row.options, **options))
