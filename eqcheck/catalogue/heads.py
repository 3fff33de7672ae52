"""Faults of engines with heads: mostly of what a head is given, so that the output stays right and acceptance is lost.

`HEAD_BUILDS` are right. Each fault stands for a report of its kind, and is planted in builds whose heads can have it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch

from eqcheck.catalogue.engines.builds import BUILDS, Build
from eqcheck.catalogue.engines.headed import AcceptedHead, ColumnHead, Headed, PairsHead
from eqcheck.catalogue.faults.bookkeeping import CountsMatches
from eqcheck.catalogue.faults.fault import issue, patched
from eqcheck.contract.decoder import Decoder

HEAD_BUILDS = {
    "head_column": Build(ColumnHead, BUILDS["realigned"].families),
    "head_accepted": Build(AcceptedHead, BUILDS["holes"].families),
    "head_pairs": Build(PairsHead, BUILDS["realigned"].families),
}
EVERY = "head_column head_accepted head_pairs"
C = TypeVar("C", bound=type[Any])


@dataclass(frozen=True)
class HeadFault:
    """A planted fault of what a head is given; ``kind`` is the warning that is due."""

    id: str
    mechanism: str
    link: str
    kind: str
    patch: type[Any]
    held_back: bool
    component: str = "draft"
    cache_states: tuple[str, ...] = ("empty",)

    @property
    def build(self) -> Build:
        return HEAD_BUILDS[self.id.partition(".")[2]]

    @property
    def families(self) -> tuple[str, ...]:
        return self.build.families

    @property
    def fingerprint(self) -> str:
        return f"{self.component}/{self.kind}"

    def decoder(self) -> Decoder:
        """The build with this fault, and no other."""
        return replace(self.build, engine=patched(self.build.engine, (self.patch,))).decoder(self.id)


HEAD_FAULTS: list[HeadFault] = []


def fault(
    switch: str, kind: str, link: str, builds: str = EVERY, held_back: bool = False, component: str = "draft"
) -> Callable[[C], C]:
    """Plant a class in the builds named."""

    def plant(broken: C) -> C:
        for build in builds.split():
            said = " ".join((broken.__doc__ or "").split()).rstrip(".")
            HEAD_FAULTS.append(HeadFault(f"{switch}.{build}", said, link, kind, broken, held_back, component))
        return broken

    return plant


@fault("H1-own-token", "token-shift", issue("vllm-project/vllm", 14647), "head_pairs")
class OwnToken(Headed):
    """The first token of the prompt is not dropped: each state meets its own token."""

    def tokens_behind(self, i: int, first: int, count: int) -> list[int]:
        return self.rows[i][first : first + count]


@fault("H2-prompt-ends-twice", "token-shift", issue("mlc-ai/mlc-llm", 2266), "head_pairs", held_back=True)
class PromptEndsTwice(Headed):
    """The state of the prompt's last token meets that token, not the first new one."""

    def tokens_behind(self, i: int, first: int, count: int) -> list[int]:
        tokens = super().tokens_behind(i, first, count)
        return tokens if first else [*tokens[:-1], self.rows[i][count - 1]]


@fault("H3-own-entries-kept", "own-hidden", issue("vllm-project/vllm", 14649), "head_pairs")
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


@fault("H4-scaled", "torn-hidden", issue("vllm-project/vllm", 14464))
class Scaled(Headed):
    """A normalisation is left out, so the states are other numbers."""

    def handed_on(self, states: torch.Tensor) -> torch.Tensor:
        return states * 0.5


@fault("H5-order-kept", "wrong-row-hidden", issue("vllm-project/vllm", 7505), "head_column")
class OrderKept(ColumnHead):
    """When rows leave, the states stay in the order that the rows had."""

    def note(self, drafted: Sequence[int], counts: Sequence[int]) -> None:
        super().note(drafted, counts)
        self.order = list(self.active)

    def newest(self, place: int, i: int) -> torch.Tensor:
        return self.states[self.order[place]][-1]


@fault("H6-target-again", "stale-hidden", issue("vllm-project/vllm", 36531), "head_pairs")
class TargetAgain(PairsHead):
    """From the second step on the head is given the target's state again."""

    def goes_on_from(self, own: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
        return given


@fault("H7-rolled-back-by-rejected", "own-hidden", issue("vllm-project/vllm", 33561), "head_pairs", held_back=True)
class RolledBackByRejected(PairsHead):
    """The head's cache is rolled back by what was rejected, and then all newly accepted pairs follow."""

    def roll_back(self, i: int, surplus: int) -> None:
        self.own = {**getattr(self, "own", {}), i: surplus}

    def drafted(self, i: int, count: int) -> list[int]:
        own = getattr(self, "own", {}).get(i, 0)
        super().roll_back(i, max(0, own - len(self.states[i]) + 1))
        return super().drafted(i, count)


@fault("H8-neighbours-window", "wrong-row-hidden", issue("sgl-project/sglang", 28496))
class NeighboursWindow(Headed):
    """A row's part of the flat tensor begins one row too early."""

    def source(self, place: int) -> int:
        return max(0, place - 1)


@fault("H9-counted-from-the-prompt", "wrong-column-hidden", issue("sgl-project/sglang", 4997), held_back=True)
class CountedFromThePrompt(Headed):
    """Columns are counted as if the whole row had been fed."""

    def columns(self, place: int, count: int, drafted: int) -> list[int]:
        right = super().columns(place, count, drafted)
        return [min(column + self.first[place], max(self.sizes) - 1) for column in right]


@fault("H10-targets-for-own", "stale-hidden", issue("sgl-project/sglang", 10059), "head_accepted")
class TargetsForOwn(AcceptedHead):
    """The first step is given the target's state, not the head's own behind all of them."""

    def attended(self, i: int, states: torch.Tensor) -> torch.Tensor:
        super().attended(i, states)
        return states[-1:]


@fault("H11-one-of-several", "wrong-column-hidden", issue("sgl-project/sglang", 16974), "head_accepted head_pairs")
class OneOfSeveral(Headed):
    """Of several newly accepted tokens the head is given only the last."""

    def note(self, drafted: Sequence[int], counts: Sequence[int]) -> None:
        super().note(drafted, counts)
        for i in self.active:
            if self.first[self.active.index(i)]:
                self.states[i], self.behind[i] = self.states[i][-1:], self.behind[i][-1:]


@fault("H12-buffer-of-last-replay", "stale-hidden", issue("sgl-project/sglang", 22832))
class BufferOfLastReplay(Headed):
    """Where a call is as large as the one before, its states are still those of that one."""

    def captured(self) -> torch.Tensor:
        now, before = super().captured(), getattr(self, "buffer", None)
        self.buffer = now
        return now if before is None or before.shape != now.shape else before


@fault("H13-layer-before", "wrong-layer-hidden", issue("sgl-project/sglang", 32334))
class LayerBefore(Headed):
    """Numbers of layers are off by one."""

    def captured(self) -> torch.Tensor:
        return self.asked.layers[-2]


@fault("H14-embeddings", "wrong-layer-hidden", issue("ml-explore/mlx-lm", 1469), held_back=True)
class Embeddings(Headed):
    """The embeddings of the tokens are taken for the states."""

    def captured(self) -> torch.Tensor:
        return self.asked.layers[0]


@fault("H15-bonus-never-entered", "token-shift", issue("ikawrakow/ik_llama.cpp", 1979), "head_accepted head_pairs")
class BonusNeverEntered(Headed):
    """The newest token never reaches the head: the one before it does, again."""

    def tokens_behind(self, i: int, first: int, count: int) -> list[int]:
        return [*super().tokens_behind(i, first, count)[:-1], self.rows[i][first + count - 1]]

    def newest_token(self, i: int) -> int:
        return self.rows[i][-2]


@fault("H16-one-column-late", "wrong-column-hidden", issue("ikawrakow/ik_llama.cpp", 1894), held_back=True)
class OneColumnLate(Headed):
    """A slice of the states begins one column too late."""

    def columns(self, place: int, count: int, drafted: int) -> list[int]:
        return [min(column + 1, max(self.sizes) - 1) for column in super().columns(place, count, drafted)]


@fault("H17-all-taken-for-accepted", "wrong-column-hidden", issue("charlie12345/ROCmFPX", 15), "head_column")
class AllTakenForAccepted(Headed):
    """After a part of the draft tokens was accepted, the newest state is taken from the last column."""

    def columns(self, place: int, count: int, drafted: int) -> list[int]:
        right = super().columns(place, count, drafted)
        return [*right[:-1], max(self.sizes) - 1] if 1 < count <= drafted else right


@fault("H18-sequence-zero", "wrong-row-hidden", issue("turbo-tan/llama.cpp-tq3", 79), "head_column", held_back=True)
class SequenceZero(ColumnHead):
    """The state carried over is kept for the first row, and taken by all."""

    def newest(self, place: int, i: int) -> torch.Tensor:
        return self.states[self.active[0]][-1]


@fault("H19-rows-permuted", "wrong-row-hidden", issue("ggml-org/llama.cpp", 29019), held_back=True)
class RowsPermuted(Headed):
    """Captured rows come back in another order than they were fed in."""

    def source(self, place: int) -> int:
        return len(self.active) - 1 - place


@fault("H20-pads-not-counted", "wrong-column-hidden", issue("ggml-org/llama.cpp", 22881))
class PadsNotCounted(Headed):
    """Rows of the tensor are taken for tokens, though pads stand before them."""

    def columns(self, place: int, count: int, drafted: int) -> list[int]:
        return list(range(count))


@fault("H21-next-row", "wrong-row-hidden", issue("vllm-project/speculators", 279), "head_column head_pairs")
class NextRow(Headed):
    """Each row is given the states of the row behind it."""

    def source(self, place: int) -> int:
        return (place + 1) % len(self.active)


@fault("H22-halves-of-two", "torn-hidden", issue("vllm-project/vllm", 14464), "head_column head_pairs", held_back=True)
class HalvesOfTwo(Headed):
    """A copy in two pieces takes the second from the state before."""

    def handed_on(self, states: torch.Tensor) -> torch.Tensor:
        return torch.cat([states[:, :7], states.roll(1, 0)[:, 7:]], dim=1) if len(states) > 1 else states * 0


@fault("H23-steps-without-token", "token-shift", issue("ikawrakow/ik_llama.cpp", 1718), "head_accepted", held_back=True)
class StepsWithoutToken(AcceptedHead):
    """The head goes on from the first token of the row."""

    def newest_token(self, i: int) -> int:
        return self.rows[i][0]


@fault("H24-kept-after-rejection", "stale-hidden", issue("sgl-project/sglang", 18647), "head_column", held_back=True)
class KeptAfterRejection(ColumnHead):
    """After a round in which nothing was accepted, the state of the round before is still there."""

    def note(self, drafted: Sequence[int], counts: Sequence[int]) -> None:
        before = dict(self.states)
        super().note(drafted, counts)
        for i, count in zip(self.active, counts, strict=True):
            if not count and i in before:
                self.states[i] = before[i]


# A decoder's own faults show with a head as with a draft model.
fault("T15-counts-matches", "over-accept", issue("huggingface/transformers", 28508), component="bookkeeping")(
    CountsMatches
)
