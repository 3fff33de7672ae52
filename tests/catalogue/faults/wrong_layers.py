"""Faults where layers do not all see the same: in the states of convolutions and recurrences, and in windows (K, M).

A model is wrong as soon as one of its layers is, so most of these leave the other layer right.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from eqcheck.catalogue.engines.engine import own_copy
from eqcheck.catalogue.engines.layers import FULL, SLIDING, Checkpointed, Rerun, SlidingLayer, Windowed
from eqcheck.catalogue.faults.fault import OTHER_MODEL, fault, planted, step

STATES = ("convolution",)  # where the convolution has a state of its own
VLLM, LLAMA_CPP = "https://github.com/vllm-project/vllm", "https://github.com/ggml-org/llama.cpp"


def states(builds: str, held_back: str = "", **needs: Any) -> Any:
    """Plant faults of states here."""
    return planted(builds, held_back, families=STATES, no_edit=OTHER_MODEL, **needs)


def apart(convolution: Callable[[Rerun, int, int], Any]) -> type[Any]:
    """A patch by which the convolution gets its state from another cache than the recurrent layer, after a rejection.

    The cache is a function of the engine, the row, and how many tokens of its round are kept.
    """

    def restore(right: Callable[..., None], self: Rerun, i: int, kept: int) -> None:
        state = convolution(self, i, kept).layers[0]
        right(i, kept)
        self.caches[i].layers[0] = state

    return step(Rerun, restore=restore)


fault("K60-convolution-keeps-rejected", "cache/stale-entry", f"{VLLM}/pull/50272").plant(
    "The inputs of the convolution keep rejected drafts, and the recurrent state is rolled back",
    states("rerun", "checkpointed"),
    apart(lambda self, i, kept: self.caches[i]),
)

fault("K61-states-keep-rejected", "cache/stale-entry", f"{LLAMA_CPP}/pull/20075").plant(
    "States keep the effect of rejected drafts, and the row is cut behind the accepted ones",
    states("rerun checkpointed"),
    step(Rerun, restore=lambda right, self, i, kept: None),
)

fault("K62-states-of-before-the-round", "cache/missing-entry", f"{LLAMA_CPP}/pull/20075").plant(
    "After a rejection the states are those of before the round, and the accepted tokens are not fed again",
    states("rerun", "checkpointed"),
    step(Rerun, restore=lambda right, self, i, kept: right(i, 0)),
)

fault("K63-convolution-one-behind", "cache/missing-entry", f"{VLLM}/issues/39273").plant(
    "After a rejection the inputs of the convolution lack the last accepted token",
    states("rerun checkpointed"),
    apart(lambda self, i, kept: self.after_first(i, max(1, kept - 1))),
)


@states("rerun", cache_states=("chunked",))
@fault("K64-prompt-like-a-block", "cache/missing-entry", f"{VLLM}/issues/53051")
class PromptLikeABlock(Rerun):
    """A piece of a prompt that is as long as a block of drafts is taken for one, and its states are not kept."""

    def step(self, i: int, tokens: list[int]) -> torch.Tensor:
        before = own_copy(self.caches[i])
        logits = super().step(i, tokens)
        if len(tokens) == self.request.num_draft_tokens + 1:
            self.caches[i] = before
        return logits


@states("rerun checkpointed")
@fault("K65-step-without-drafts", "cache/missing-entry", f"{VLLM}/pull/52942")
class StepWithoutDrafts(Rerun):
    """A step without drafts reads the states after the first token of the step before, without its accepted drafts."""

    def before_drafts(self, i: int) -> None:
        if i in self.tokens and not self.budget(i):
            self.caches[i] = self.after_first(i, 1)
        super().before_drafts(i)


@states("rerun", "checkpointed", rows=2)
@fault("K66-states-of-another-row", "cache/wrong-row", f"{LLAMA_CPP}/pull/23269")
class StatesOfAnotherRow(Rerun):
    """After a rejection a row's states are restored from those of another row."""

    def restore(self, i: int, kept: int) -> None:
        other = self.active[(self.active.index(i) + 1) % len(self.active)]
        self.caches[i] = self.after_first(other, min(kept, len(self.tokens[other])))


@states("checkpointed", rows=2)
@fault("K67-aside-at-end-of-step", "cache/wrong-row", f"{VLLM}/issues/43559")
class AsideAtEndOfStep(Checkpointed):
    """States that are put aside for the end of a block are those at the end of the step, which goes on behind it."""

    def read_prompt(self, i: int) -> None:
        before = set(self.known)
        super().read_prompt(i)
        for text in set(self.known) - before:
            self.known[text] = own_copy(self.caches[i])


@states("checkpointed", rows=2)
@fault("K68-convolution-empty-at-hit", "cache/missing-entry", "https://github.com/sgl-project/sglang/pull/34043")
class ConvolutionEmptyAtHit(Checkpointed):
    """Behind a cached prefix the inputs of the convolution are zeros."""

    def hit(self, text: Sequence[int], number: int) -> Any:
        state = super().hit(text, number)
        state.absorbed = state.absorbed if number else torch.zeros_like(state.absorbed)
        return state


@states("", "checkpointed", rows=2)
@fault("K69-hit-shorter-than-states", "cache/duplicate-entry", f"{VLLM}/issues/47194")
class HitShorterThanStates(Checkpointed):
    """The last block of a cached prefix is fed again to states that have taken it in."""

    def adopt(self, i: int, text: Sequence[int]) -> None:
        super().adopt(i, text)
        self.lengths[i] = max(0, self.lengths[i] - self.size)


class Untrimmed(SlidingLayer):
    """Keeps rejected tokens as soon as it is full."""

    def crop(self, amount: int) -> None:
        if self.keys.shape[2] < self.size:
            super().crop(amount)


WINDOWS = ("hybrid-window",)
fault("K70-full-window-not-trimmed", "cache/stale-entry", "ml-explore/mlx-lm#1423").plant(
    "Once a layer with a window is full, rejected tokens stay in it",
    planted("windowed", families=WINDOWS, no_edit=OTHER_MODEL),
    Untrimmed,
)

fault("K71-window-without-room", "cache/missing-entry").plant(
    "A layer with a window keeps no more than that, and drafts push out tokens that are due when they are rejected",
    planted("", "windowed", families=WINDOWS, no_edit=OTHER_MODEL),
    step(Windowed, room=lambda right, self: right() - self.request.num_draft_tokens - 1),
)


@planted("windowed", families=WINDOWS, no_edit=OTHER_MODEL)
@fault("M50-verified-without-window", "mask/window", "huggingface/transformers#48280")
class VerifiedWithoutWindow(Windowed):
    """While drafts are verified, the mask of layers with a window has none."""

    def sees(self, kind: str, queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        return super().sees(FULL if kind == SLIDING and len(queries) > 1 else kind, queries, keys)
