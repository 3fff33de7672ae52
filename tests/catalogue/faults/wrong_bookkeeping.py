"""Faults in what is accepted and what is committed of a round (T), and in whose predictions are taken (X)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from eqcheck.catalogue.engines.engine import RoundEngine, Rows
from eqcheck.catalogue.engines.rows import Expanded
from eqcheck.catalogue.faults.fault import amount, fault, planted, step
from eqcheck.contract.decoders import Request


class OtherAnswers(RoundEngine):
    """Commits by other predictions; they may be fewer than a row has drafts, and then the last is taken again."""

    def commit(self, drafts: Rows, predicted: Rows) -> list[int]:
        return super().commit(drafts, self.others(predicted))

    def others(self, predicted: Rows) -> Rows:
        """The predictions that are taken for those of the active rows."""
        raise NotImplementedError

    def accepted(self, proposed: Sequence[int], answers: Sequence[int]) -> int:
        return super().accepted(proposed[: len(answers)], answers)

    def block(self, count: int, proposed: list[int], answers: list[int]) -> list[int]:
        return super().block(count, proposed, [*answers, answers[-1]])


@planted("realigned per_row", "expanded packed", edit="rejected-emitted")
@fault("T10-correction-from-draft", "bookkeeping/over-accept")
class CorrectionFromDraft(RoundEngine):
    """The correction is taken from the draft."""

    def block(self, count: int, proposed: list[int], answers: list[int]) -> list[int]:
        return proposed[: count + 1] if count < len(proposed) else super().block(count, proposed, answers)


@planted("uncached per_row packed static", "realigned staged", edit="newest-twice")
@fault("T10-correction-twice", "bookkeeping/repeated-token", "vllm-project/vllm#33251")
class CorrectionTwice(RoundEngine):
    """The correction or bonus token is committed twice."""

    def block(self, count: int, proposed: list[int], answers: list[int]) -> list[int]:
        return [*super().block(count, proposed, answers), answers[count]]


@planted("realigned holes", "continuous", edit="rejected-answered")
@fault("T11-first-mismatch-accepted", "bookkeeping/over-accept", "ohdearquant/lattice#243")
class FirstMismatchAccepted(RoundEngine):
    """The first draft token that differs is accepted, and the token after it taken from the target."""

    def block(self, count: int, proposed: list[int], answers: list[int]) -> list[int]:
        return super().block(min(count + 1, len(proposed)), proposed, answers)


@planted("uncached per_row", "holes continuous", edit="last-of-several-lost")
@fault("T13-accepted-dropped", "bookkeeping/lost-token", "NVIDIA/TensorRT-LLM#7803")
class AcceptedDropped(RoundEngine):
    """The last accepted draft token is dropped, the correction or bonus token kept."""

    def block(self, count: int, proposed: list[int], answers: list[int]) -> list[int]:
        block = super().block(count, proposed, answers)
        return [*block[:-2], block[-1]] if count > 1 else block


fault("T14-correction-from-last-column", "bookkeeping/wrong-correction", "NVIDIA/TensorRT-LLM#15098").plant(
    "The correction is read from the block's last column",
    planted("realigned per_row", "packed", edit="correction-of-last-column"),
    step(RoundEngine, block=lambda right, self, count, proposed, answers: [*proposed[:count], answers[-1]]),
)


@planted("realigned per_row", "rolled_back", rows=2, edit="correction-of-next-row")
@fault("T14-correction-from-next-row", "bookkeeping/wrong-correction", "sgl-project/sglang#26866")
class CorrectionFromNextRow(RoundEngine):
    """The correction is read from the next row."""

    def commit(self, drafts: Rows, predicted: Rows) -> list[int]:
        self.next_rows = iter([*predicted[1:], predicted[0]])
        return super().commit(drafts, predicted)

    def block(self, count: int, proposed: list[int], answers: list[int]) -> list[int]:
        others = next(self.next_rows)
        return [*proposed[:count], others[min(count, len(others) - 1)]]


@planted("", "expanded", rows=2, no_edit="no edit shifts answers between rows by the lengths of their drafts")
@fault("T14-short-window-shifts-rows", "bookkeeping/wrong-correction", "vllm-project/vllm#52477")
class ShortWindowShiftsRows(Expanded):
    """Behind a row with fewer draft tokens, rows are given the answers of the row after them."""

    def verify(self, drafts: Rows) -> Rows:
        windows = super().verify(drafts) * 2
        sizes = [len(proposed) + 1 for proposed in drafts]
        shifted = [min(sizes[:place], default=size) < size for place, size in enumerate(sizes)]
        taken = [windows[place + shift] for place, shift in enumerate(shifted)]
        return [window + window[-1:] * (size - len(window)) for window, size in zip(taken, sizes, strict=True)]


@planted("realigned per_row", "uncached packed", edit="any-match-accepted")
@fault("T15-counts-matches", "bookkeeping/over-accept", "huggingface/transformers#28508")
class CountsMatches(RoundEngine):
    """All draft tokens that agree are counted, not those before the first that does not."""

    def accepted(self, proposed: Sequence[int], answers: Sequence[int]) -> int:
        return sum(a == b for a, b in zip(proposed, answers, strict=False))


@planted("realigned holes", edit="pad-for-bonus")
@fault("T16-pad-draft-accepted", "bookkeeping/pad-in-output")
class PadDraftAccepted(RoundEngine):
    """The pad that fills up a short draft is accepted."""

    def block(self, count: int, proposed: list[int], answers: list[int]) -> list[int]:
        if count == len(proposed) < self.request.num_draft_tokens:
            return [*proposed, self.request.pad_token_id]
        return super().block(count, proposed, answers)


@planted("holes", "continuous", rows=3, edit="next-row-once-one-left")
@fault("X1-results-by-batch-row", "bookkeeping/wrong-correction", "vllm-project/vllm#14645")
class ResultsByBatchRow(OtherAnswers):
    """Once a row has left, predictions go to the request one place off."""

    def others(self, predicted: Rows) -> Rows:
        return [*predicted[1:], predicted[0]] if len(self.active) < len(self.rows) else predicted


@planted("uncached per_row", "packed staged", edit="correction-of-next-column")
@fault("T14-correction-one-column-late", "bookkeeping/wrong-correction", "NVIDIA/TensorRT-LLM#15098")
class CorrectionOneColumnLate(RoundEngine):
    """The correction is read one column late, after the rejected draft token."""

    def block(self, count: int, proposed: list[int], answers: list[int]) -> list[int]:
        return [*proposed[:count], answers[min(count + 1, len(proposed))]]


@planted("realigned per_row static", "paged", no_edit="no edit commits what follows the correction")
@fault("T20-one-more-after-rejection", "bookkeeping/wrong-correction", "huggingface/transformers#47433")
class OneMoreAfterRejection(RoundEngine):
    """After a rejection what the target predicted after the rejected draft token is committed, too."""

    def block(self, count: int, proposed: list[int], answers: list[int]) -> list[int]:
        block = super().block(count, proposed, answers)
        return [*block, answers[count + 1]] if count < len(proposed) else block


@planted("realigned uncached paged_small", "per_row", no_edit="no edit reads the answers to a prompt's tokens")
@fault("T21-answers-from-wrong-end", "bookkeeping/wrong-correction", "NVIDIA/TensorRT-LLM#15098")
class AnswersFromWrongEnd(RoundEngine):
    """If a block begins with tokens of the row, the first answers are taken for the last."""

    def answers(self, logits: Iterable[torch.Tensor], drafts: Rows) -> Rows:
        return [row.argmax(-1).tolist()[: len(proposed) + 1] for row, proposed in zip(logits, drafts, strict=True)]


fault("T22-no-verification", "bookkeeping/over-accept", "vllm-project/vllm-ascend#13766").plant(
    "All draft tokens are committed, whatever the target predicts",
    planted("realigned per_row", "paged_small", edit="all-accepted"),
    step(RoundEngine, accepted=lambda right, self, proposed, answers: len(proposed)),
)


@planted("uncached static", "continuous", no_edit="no edit asks the draft in place of the target")
@fault("T22-verified-by-draft", "bookkeeping/unverified")
class VerifiedByDraft(RoundEngine):
    """Draft tokens are verified by the draft itself; the target is not asked."""

    def verify(self, drafts: Rows) -> Rows:
        texts = [self.rows[i] + proposed for i, proposed in zip(self.active, drafts, strict=True)]
        return self.answers([self.draft(input_ids=torch.tensor([t]), use_cache=False).logits[0] for t in texts], drafts)


@planted("realigned per_row", "packed", no_edit="no edit asks the draft in place of the target")
@fault("T23-models-exchanged", "bookkeeping/unverified")
class ModelsExchanged(RoundEngine):
    """Target and draft are exchanged: the target drafts, and the draft verifies."""

    def __init__(self, target: Any, draft: Any, request: Request) -> None:
        super().__init__(draft, target, request)


UNVERIFIED = amount("unverified-at-end", 1, 1, 2)


@planted("realigned per_row packed", "static", edit="end-unverified")
@fault("T27-last-draft-unverified", "bookkeeping/over-accept", "ml-explore/mlx-lm#1109")
class LastDraftUnverified(RoundEngine):
    """The last draft token of a round is taken without being verified, if all before it are accepted."""

    def accepted(self, proposed: Sequence[int], answers: Sequence[int]) -> int:
        count = super().accepted(proposed, answers)
        return len(proposed) if count + UNVERIFIED >= len(proposed) else count


fault("T25-answers-cut-at-seven", "bookkeeping/repeated-token", "antirez/ds4#358").plant(
    "The answers of a round are kept in a buffer for seven, so the seventh is taken again for the eighth",
    planted("realigned per_row", "staged", no_edit="no edit cuts the answers of a round"),
    step(OtherAnswers, others=lambda right, self, predicted: [answers[:7] for answers in predicted]),
)


fault("X11-four-rows-at-once", "bookkeeping/wrong-correction", "vllm-project/vllm#46324").plant(
    "Answers are kept for four rows, and further rows are given those of the first",
    planted("realigned uncached", "paged", rows=5, no_edit="no edit gives some rows the answers of others"),
    step(OtherAnswers, others=lambda right, self, predicted: [predicted[place % 4] for place in range(len(predicted))]),
)


@planted("realigned static", "paged", rows=2, no_edit="no edit gives some rows the answers of others")
@fault("X12-answers-by-first-token", "bookkeeping/wrong-correction", "sgl-project/sglang#8726")
class AnswersByFirstToken(OtherAnswers):
    """Answers are looked up by a row's first token, so rows that share it are given those of one."""

    def others(self, predicted: Rows) -> Rows:
        firsts = [self.rows[i][0] for i in self.active]
        return [predicted[firsts.index(token)] for token in firsts]
