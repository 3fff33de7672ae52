"""Heads: batch speculative decoding that drafts from the target's hidden states, without a draft model.

The caches are those of `ragged`, with a write offset for each row. The input of a row's head follows from the tokens
that the row accepted (`drafters.reading`): the state in the column of the last accepted token, which is another column
in every row.

A head is anything with ``vocab_size``, ``hidden_size`` and one of the shapes: ``column(hidden, k)``; ``accepted`` with
``step(state, token)``; or ``pairs``. `eqcheck.transparent.drafting` says what each is called with.

    >>> from eqcheck.transparent.decoding import models, truth_of
    >>> from eqcheck.core.case.record import Case
    >>> case = Case(prompts=((3, 1, 4), (1, 5)), max_new_tokens=10, num_draft_tokens=4, agreement=1.0)
    >>> target, draft = models(case, truth_of(case))
    >>> engine = Heads(target, draft.head, shape="column", num_draft_tokens=4)
    >>> outputs = engine.generate([[3, 1, 4], [1, 5]], max_new_tokens=10)
    >>> [len(row) for row in outputs], engine.stats.verify_calls, engine.stats.acceptance
    ([10, 10], 2, 1.0)

Rows are greedy. Works on the targets that `ragged` works on, where they give their hidden states.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

import eqcheck

from .drafters import SHAPES, Drafter
from .serving import Engine, Prompt, PromptError, Row, RowModel, Unsupported, decode, enough
from .serving.checks import check_model

TURNS = ("column", "accepted", "pairs")  # the shapes in the order in which cases meet them


class Heads(Engine):
    """One write offset per row, and a head instead of a draft model; see the module."""

    def __init__(self, target: Any, head: Any, *, shape: str = "", **settings: Any) -> None:
        self.shape = shape or getattr(head, "shape", "")
        super().__init__(target, head, **settings)
        most = getattr(head, "most_draft_tokens", None)
        if most is not None and self.num_draft_tokens > most:
            raise Unsupported(
                f"num_draft_tokens: expected at most {most} draft tokens, as many as the head has, got "
                f"{self.num_draft_tokens}"
            )

    def check_models(self, tokenizers: Sequence[Any]) -> None:
        check_model("target", self.target, windows=self.windows)
        if self.shape not in SHAPES:
            raise Unsupported(f"shape: expected one of {', '.join(SHAPES)}, got {self.shape!r}")
        config = self.target.config.get_text_config()
        for name in ("vocab_size", "hidden_size"):
            has, needs = getattr(self.draft, name, None), getattr(config, name)
            if has != needs:
                raise Unsupported(f"head: expected one for the target's {name} of {needs}, got one for {has}")

    @property
    def models(self) -> tuple[Any, ...]:
        return (self.target,)

    def _check(self, prompt: Prompt) -> None:
        super()._check(prompt)
        if prompt.sampling is not None and prompt.sampling.temperature:
            raise PromptError("temperature: expected 0, got a row to be sampled; rows with heads are greedy")

    def begin(self) -> None:
        self.verifier = RowModel(self.target)
        self.drafter: Drafter = SHAPES[self.shape](self.draft)

    def room(self) -> int:
        return enough(self.batch_size - len(self.rows), self.batch_size)

    def fit(self) -> None:
        """Have room for the next round, and not much more than that."""
        slots = max((len(row.tokens) for row in self.rows), default=0) + self.num_draft_tokens + 1
        self.verifier.fit(len(self.rows), slots)
        self.drafter.fit(len(self.rows), slots)

    def feed(self, ids: torch.Tensor, starts: Sequence[int], first: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
        """The target's answers after each token of ``ids`` ``[rows, block]``, and its states of them."""
        output = self.verifier.run(starts, first, input_ids=ids, output_hidden_states=True)
        return output.logits.argmax(-1), output.hidden_states[-1]

    def join(self, rows: list[Row]) -> None:
        """Feed the prompts, padded on the right: what is answered at their ends are the rows' first new tokens."""
        first, lengths = len(self.rows), [len(row.tokens) for row in rows]
        self.rows += rows
        self.fit()
        longest = max(lengths)
        padded = [row.tokens + row.tokens[-1:] * (longest - len(row.tokens)) for row in rows]
        ids = torch.tensor(padded, device=self.verifier.device)  # [rows, longest]
        step = self.prefill_chunk or longest
        for start in range(0, longest, step):
            piece = ids[:, start : start + step]
            starts = [start] * len(rows)
            answers, hidden = self.feed(piece, starts, first)
            self.stats.prefill_calls += 1
            following = torch.cat([ids[:, start + 1 : start + step + 1], answers[:, -1:]], dim=1)[:, : piece.shape[1]]
            counts = [min(max(0, length - start), piece.shape[1]) for length in lengths]
            for i, row in enumerate(rows):
                if start < lengths[i] <= start + piece.shape[1]:
                    following[i, counts[i] - 1] = answers[i, counts[i] - 1]
                    self.stats.count(0, 0, row.commit([int(answers[i, counts[i] - 1])]))
            self.drafter.observe(hidden, following, starts, counts, first)

    def round(self) -> list[Row]:
        took_part = list(self.rows)
        self.drop_finished()  # a prompt's answer may be a row's last token
        if self.rows:
            self.speculate()
            self.drop_finished()
        return took_part

    def speculate(self) -> None:
        """Draft, verify and commit for all rows at once.

        Invariant, before and after: caches and drafter know all tokens of each row but the newest.
        """
        rows = self.rows
        budgets = [row.budget(self.num_draft_tokens) for row in rows]
        newest = torch.tensor([row.tokens[-1:] for row in rows], device=self.verifier.device)
        k = max(budgets)
        drafts = self.drafter.propose(rows, k) if k else newest[:, :0]  # [rows, k]
        starts = [row.cached for row in rows]
        answers, hidden = self.feed(torch.cat([newest, drafts], dim=1), starts)
        right = (answers[:, :-1] == drafts).long().cumprod(1).sum(1).tolist()
        counts = []
        for row, budget, block, agreed in zip(rows, budgets, answers.tolist(), right, strict=True):
            accepted = min(agreed, budget)
            counts.append(row.commit(block[: accepted + 1]))
            self.stats.count(budget, accepted, counts[-1])
        # For accepted draft tokens and the bonus token, the answers are the tokens themselves.
        self.drafter.observe(hidden, answers, starts, counts)
        self.stats.verify_calls += 1

    def drop_finished(self) -> None:
        """Let go of the rows that finished; the last rows move into their places."""
        for place in reversed(range(len(self.rows))):
            if self.rows[place].finish_reason:
                last = self.rows.pop()
                if place < len(self.rows):
                    self.rows[place] = last
                    self.verifier.copy_row(len(self.rows), place, last.cached)
                    self.drafter.move(len(self.rows), place, last.cached)
        self.fit()


@eqcheck.decoder(
    name="heads",
    padding_sides=("left", "right"),
    families=("rotary", "learned", "window"),
    cache_states=("empty", "pads-huge", "pads-nan", "wrapped", "chunked", "late-rows"),
    origin="a head on the target's hidden states, in three shapes by turns: see the module's docstring",
)
def generate(target: Any, draft: Any, request: eqcheck.Request) -> list[list[int]]:
    """New tokens of each row, three rows at a time; the shape of the head follows from the prompts."""
    head = getattr(draft, "head", None)
    if head is None:
        raise Unsupported("draft: expected one with a scripted head, which only the transparent target's has")
    shape = TURNS[sum(map(len, request.prompts)) % len(TURNS)]
    return decode(Heads, target, head, request, batch_size=3, shape=shape)
