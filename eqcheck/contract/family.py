"""Families of models, a record each: how they see positions and masks. Free of torch, as cases and reports name them.

A new family is a record here; what it sees is computed in `eqcheck.transparent.hashlm.visibility`, and hashed in
`eqcheck.transparent.hashlm.hashing`.

    >>> FAMILY["window"].window, CLAIMED
    (8, ('rotary', 'learned'))
    >>> HYBRID, FAMILY["hybrid-window"].window, FAMILY["hybrid-window"].lower.window
    (('hybrid-window', 'convolution'), None, 8)
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Literal

from eqcheck.contract.architectures import TARGETS, Parsed, parsed


@dataclass(frozen=True)
class Family:
    """Describe how models ``like`` some known ones see what they are fed.

    ``places`` says where a query takes the place of a key from: the ``positions`` fed, the ``ranks`` among the slots
    that the 2-D mask shows, the ``slots``, or the ``steps`` since a state absorbed it. The place itself counts
    where it is ``absolute``, the distance to it elsewhere. ``window`` is how many slots a query sees, itself included.
    ``near`` is the window of the lower layer, where that one alone has a window. With ``holes`` hidden slots between a
    row's tokens change nothing. A state that ``skips`` takes in no masked token, wherever it stands, and counts none as
    a step. ``claimed`` families are the claim of a decoder that names none. ``target`` is the real
    model that is read, None where it is a `HashLM`.
    """

    name: str
    like: str
    places: Literal["positions", "ranks", "slots", "steps"]
    absolute: bool = False
    window: int | None = None
    near: int | None = None
    holes: bool = True
    skips: bool = False
    claimed: bool = False
    target: Parsed | None = None

    @property
    def fed(self) -> bool:
        """Return whether places are the position ids."""
        return self.places == "positions"

    @property
    def counts_mask(self) -> bool:
        """Return whether tokens are counted in the mask, which so has to be 2-D."""
        return self.places == "ranks"

    @property
    def biased(self) -> bool:
        """Return whether places come as a bias to the scores, so that real models always build a mask."""
        return self.places in ("ranks", "slots")

    @property
    def stateful(self) -> bool:
        """Return whether there is a state in place of slots: it cannot be cropped,
        and takes in nothing that is hidden.
        """
        return self.places == "steps"

    @property
    def lower(self) -> Family:
        """The family that the lower layer is of: another one than the upper, where that layer alone has a window."""
        return replace(self, window=self.near, near=None) if self.near else self

    @property
    def layer_types(self) -> tuple[str, ...]:
        """The types of its layers in the words of transformers, where they have windows; else empty."""
        if self.stateful or not self.lower.window:
            return ()
        return "sliding_attention", "full_attention" if self.near else "sliding_attention"

    @property
    def built(self) -> str:
        """The name of the built checkpoint that its real model is, empty for any other."""
        known = TARGETS.get(self.target.architecture) if self.target else None
        return known.built if known else ""

    @property
    def vocab_size(self) -> int:
        """Return how many ids its models emit, from 0."""
        return 256 if self.built else 128

    def first_seen(self, position: int) -> int:
        """The first position that a query at this one is to see."""
        return max(0, position + 1 - self.window) if self.window else 0


WINDOW = 8
KERNEL = 4  # of a convolution: the inputs that it sees, as in Mamba and in gated delta nets
LLAMA = "rotary"  # the family of what eqcheck trains or loads itself


class _Families(dict[str, Family]):
    """The families by name; one on a real model, or ``window:N`` of N slots, is made when it is asked for."""

    def __missing__(self, name: str) -> Family:
        if name.startswith("window:") and name[7:].isdecimal():
            return replace(self["window"], name=name, window=int(name[7:]))
        target = parsed(name)
        if target is None:
            raise KeyError(name)
        self[name] = family = replace(self[target.family], name=name, target=target)
        return family


FAMILY = _Families(
    (family.name, family)
    for family in (
        Family("rotary", "Llama, Qwen, NeoX", "positions", claimed=True),
        Family("learned", "GPT-2", "positions", absolute=True, claimed=True),
        Family("mask-order", "OPT, Bloom", "ranks"),
        Family("slot-distance", "MPT", "slots", holes=False),
        Family("window", "Mistral, Gemma", "positions", window=WINDOW, holes=False),
        Family("recurrent", "Mamba", "steps", holes=False),
        Family("hybrid-window", "Gemma 3, gpt-oss", "positions", near=WINDOW, holes=False),
        Family("convolution", "Mamba, Qwen3-Next, LFM2", "steps", near=KERNEL, holes=False),
        Family("masked-recurrent", "gated delta nets of mlx-lm and vLLM", "steps", holes=False, skips=True),
    )
)


def named(which: Callable[[Family], bool]) -> tuple[str, ...]:
    """The names of those families."""
    return tuple(name for name, family in FAMILY.items() if "@" not in name and which(family))  # real ones come later


def base_of(name: str) -> str:
    """The family that one on a real model is like; any other is its own.

    >>> base_of("rotary@llama"), base_of("learned"), base_of("window:16@./folder")
    ('rotary', 'learned', 'window')
    """
    return name.partition("@")[0].partition(":")[0]


def asked_by(name: str) -> tuple[str, ...]:
    """The families that a decoder has to claim, for a family or a real model of one to be within its claims.

    One mask does not serve a model with a window in some of its layers only, as `rotary` ones are served.

    >>> asked_by("rotary@llama"), asked_by("rotary@gemma2"), asked_by("hybrid-window")
    (('rotary',), ('rotary', 'window'), ('hybrid-window',))
    """
    target = parsed(name)
    known = TARGETS.get(target.architecture) if target else None
    return (base_of(name), *(("window",) if known and known.windowed else ()))


def claimed_by(families: Collection[str], name: str) -> bool:
    """Return whether a decoder that claims ``families`` claims a family, or a real model of one."""
    return set(asked_by(name)) <= set(families)


FAMILIES = tuple(FAMILY)
HYBRID = named(lambda family: family.near is not None)  # those whose layers do not all see the same
UNIFORM = named(lambda family: family.near is None)
CLAIMED = named(lambda family: family.claimed)
