"""Faults of engines with heads: mostly of what a head is given, so that the output stays right and acceptance is lost.

Each fault stands for a report of its kind, and is planted in builds whose heads can have it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from eqcheck.catalogue.engines.heads import AcceptedHead, ColumnHead, Headed, PairsHead
from eqcheck.catalogue.faults.fault import amount, fault, planted, step
from eqcheck.catalogue.faults.wrong_bookkeeping import CountsMatches

SCALE = amount("state scale", 0.5, 0.3, 0.8)

EVERY = "head_column head_accepted head_pairs"


fault("H1-own-token", "draft/token-shift", "vllm-project/vllm#14647").plant(
    "The first token of the prompt is not dropped: each state meets its own token",
    planted("head_pairs"),
    step(Headed, tokens_behind=lambda right, self, i, first, count: self.rows[i][first : first + count]),
)


@planted("", "head_pairs")
@fault("H2-prompt-ends-twice", "draft/token-shift", "mlc-ai/mlc-llm#2266")
class PromptEndsTwice(Headed):
    """The state of the prompt's last token meets that token, not the first new one."""

    def tokens_behind(self, i: int, first: int, count: int) -> list[int]:
        tokens = super().tokens_behind(i, first, count)
        return tokens if first else [*tokens[:-1], self.rows[i][count - 1]]


@planted("head_pairs")
@fault("H3-own-entries-kept", "draft/own-hidden", "vllm-project/vllm#14649")
class OwnEntriesKept(PairsHead):
    """Entries of accepted draft tokens stay as the head wrote them; only the newest pair is new to it."""

    def roll_back(self, i: int, surplus: int) -> None:
        self.own = {**getattr(self, "own", {}), i: surplus}

    def drafted(self, i: int, count: int) -> list[int]:
        own, new = self.own.get(i, 0) if hasattr(self, "own") else 0, len(self.states[i])
        accepted = min(own, new - 1)
        super().roll_back(i, own - accepted)
        self.states[i], self.behind[i] = self.states[i][accepted:], self.behind[i][accepted:]
        return super().drafted(i, count)


fault("H4-scaled", "draft/torn-hidden", "vllm-project/vllm#14464").plant(
    "A normalisation is left out, so the states are other numbers",
    planted(EVERY),
    step(Headed, handed_on=lambda right, self, states: states * SCALE),
)


@planted("head_column")
@fault("H5-order-kept", "draft/wrong-row-hidden", "vllm-project/vllm#7505")
class OrderKept(ColumnHead):
    """When rows leave, the states stay in the order that the rows had."""

    def note(self, drafted: Sequence[int], counts: Sequence[int]) -> None:
        super().note(drafted, counts)
        self.order = list(self.active)

    def newest(self, place: int, i: int) -> torch.Tensor:
        return self.states[self.order[place]][-1]


fault("H6-target-again", "draft/stale-hidden", "vllm-project/vllm#36531").plant(
    "From the second step on the head is given the target's state again",
    planted("head_pairs"),
    step(PairsHead, goes_on_from=lambda right, self, own, given: given),
)


@planted("", "head_pairs")
@fault("H7-rolled-back-by-rejected", "draft/own-hidden", "vllm-project/vllm#33561")
class RolledBackByRejected(PairsHead):
    """The head's cache is rolled back by what was rejected, and then all newly accepted pairs follow."""

    def roll_back(self, i: int, surplus: int) -> None:
        self.own = {**getattr(self, "own", {}), i: surplus}

    def drafted(self, i: int, count: int) -> list[int]:
        own = getattr(self, "own", {}).get(i, 0)
        super().roll_back(i, max(0, own - len(self.states[i]) + 1))
        return super().drafted(i, count)


fault("H8-neighbours-window", "draft/wrong-row-hidden", "sgl-project/sglang#28496").plant(
    "A row's part of the flat tensor begins one row too early",
    planted(EVERY),
    step(Headed, source=lambda right, self, place: max(0, place - 1)),
)


@planted("", EVERY)
@fault("H9-counted-from-the-prompt", "draft/wrong-column-hidden", "sgl-project/sglang#4997")
class CountedFromThePrompt(Headed):
    """Columns are counted as if the whole row had been fed."""

    def columns(self, place: int, count: int, drafted: int) -> list[int]:
        right = super().columns(place, count, drafted)
        return [min(column + self.first[place], max(self.sizes) - 1) for column in right]


@planted("head_accepted")
@fault("H10-targets-for-own", "draft/stale-hidden", "sgl-project/sglang#10059")
class TargetsForOwn(AcceptedHead):
    """The first step is given the target's state, not the head's own behind all of them."""

    def attended(self, i: int, states: torch.Tensor) -> torch.Tensor:
        super().attended(i, states)
        return states[-1:]


@planted("head_accepted head_pairs")
@fault("H11-one-of-several", "draft/wrong-column-hidden", "sgl-project/sglang#16974")
class OneOfSeveral(Headed):
    """The head is given only the last of several newly accepted tokens."""

    def note(self, drafted: Sequence[int], counts: Sequence[int]) -> None:
        super().note(drafted, counts)
        for i in self.active:
            if self.first[self.active.index(i)]:
                self.states[i], self.behind[i] = self.states[i][-1:], self.behind[i][-1:]


@planted(EVERY)
@fault("H12-buffer-of-last-replay", "draft/stale-hidden", "sgl-project/sglang#22832")
class BufferOfLastReplay(Headed):
    """If a call is as large as the one before, its states are still those of that one."""

    def captured(self) -> torch.Tensor:
        now, before = super().captured(), getattr(self, "buffer", None)
        self.buffer = now
        return now if before is None or before.shape != now.shape else before


fault("H13-layer-before", "draft/wrong-layer-hidden", "sgl-project/sglang#32334").plant(
    "Numbers of layers are off by one",
    planted(EVERY),
    step(Headed, captured=lambda right, self: self.asked.layers[-2]),
)

fault("H14-embeddings", "draft/wrong-layer-hidden", "ml-explore/mlx-lm#1469", mechanism="H13-layer-before").plant(
    "The embeddings of the tokens are taken for the states",
    planted("", EVERY),
    step(Headed, captured=lambda right, self: self.asked.layers[0]),
)


@planted("head_accepted head_pairs")
@fault("H15-bonus-never-entered", "draft/token-shift", "ikawrakow/ik_llama.cpp#1979")
class BonusNeverEntered(Headed):
    """The newest token never reaches the head: the one before it does, again."""

    def tokens_behind(self, i: int, first: int, count: int) -> list[int]:
        return [*super().tokens_behind(i, first, count)[:-1], self.rows[i][first + count - 1]]

    def newest_token(self, i: int) -> int:
        return self.rows[i][-2]


@planted("", EVERY)
@fault(
    "H16-one-column-late", "draft/wrong-column-hidden", "ikawrakow/ik_llama.cpp#1894", mechanism="H20-pads-not-counted"
)
class OneColumnLate(Headed):
    """A slice of the states begins one column too late."""

    def columns(self, place: int, count: int, drafted: int) -> list[int]:
        return [min(column + 1, max(self.sizes) - 1) for column in super().columns(place, count, drafted)]


@planted("head_column")
@fault("H17-all-taken-for-accepted", "draft/wrong-column-hidden", "charlie12345/ROCmFPX#15")
class AllTakenForAccepted(Headed):
    """After a part of the draft tokens was accepted, the newest state is taken from the last column."""

    def columns(self, place: int, count: int, drafted: int) -> list[int]:
        right = super().columns(place, count, drafted)
        return [*right[:-1], max(self.sizes) - 1] if 1 < count <= drafted else right


fault("H18-sequence-zero", "draft/wrong-row-hidden", "turbo-tan/llama.cpp-tq3#79").plant(
    "The state carried over is kept for the first row, and taken by all",
    planted("", "head_column"),
    step(ColumnHead, newest=lambda right, self, place, i: self.states[self.active[0]][-1]),
)

fault("H19-rows-permuted", "draft/wrong-row-hidden", "ggml-org/llama.cpp#29019", mechanism="H21-next-row").plant(
    "Captured rows come back in another order than they were fed in",
    planted("", EVERY),
    step(Headed, source=lambda right, self, place: len(self.active) - 1 - place),
)

fault("H20-pads-not-counted", "draft/wrong-column-hidden", "ggml-org/llama.cpp#22881").plant(
    "Rows of the tensor are taken for tokens, though pads stand before them",
    planted(EVERY),
    step(Headed, columns=lambda right, self, place, count, drafted: list(range(count))),
)

fault("H21-next-row", "draft/wrong-row-hidden", "vllm-project/speculators#279").plant(
    "Each row is given the states of the row behind it",
    planted("head_column head_pairs"),
    step(Headed, source=lambda right, self, place: (place + 1) % len(self.active)),
)


@planted("", "head_column head_pairs")
@fault("H22-halves-of-two", "draft/torn-hidden", "vllm-project/vllm#14464")
class HalvesOfTwo(Headed):
    """A copy in two pieces takes the second from the state before."""

    def handed_on(self, states: torch.Tensor) -> torch.Tensor:
        return torch.cat([states[:, :7], states.roll(1, 0)[:, 7:]], dim=1) if len(states) > 1 else states * 0


fault("H23-steps-without-token", "draft/token-shift", "ikawrakow/ik_llama.cpp#1718").plant(
    "The head goes on from the first token of the row",
    planted("", "head_accepted"),
    step(AcceptedHead, newest_token=lambda right, self, i: self.rows[i][0]),
)


@planted("", "head_column")
@fault("H24-kept-after-rejection", "draft/stale-hidden", "sgl-project/sglang#18647")
class KeptAfterRejection(ColumnHead):
    """After a round in which nothing was accepted, the state of the round before is still there."""

    def note(self, drafted: Sequence[int], counts: Sequence[int]) -> None:
        before = dict(self.states)
        super().note(drafted, counts)
        for i, count in zip(self.active, counts, strict=True):
            if not count and i in before:
                self.states[i] = before[i]


# A decoder's own faults show with a head as with a draft model.
planted(EVERY)(CountsMatches)
