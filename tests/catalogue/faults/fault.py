"""The record of a planted fault: what is broken in which engine, where it happened in the wild, what it must be named.

A fault is written once. `fault` says what it is and `planted` where it sits; between them stands what breaks: a class
under both as decorators, whose docstring is the title, or one `step` or several in `Fault.plant`. A *patch* overrides a
step of an engine or of a part of one; a class may hold several. For each engine those are mixed in that are for its
classes. An id is ``SWITCH.BUILD``; the switch begins with the number of the failure mode: P positions, M masks,
K caches, T token bookkeeping, D draft, H heads, X scheduling, S declared cache states, L leaks of memory.

Not planted, because greedy decoding of the models at hand cannot show it:

M9   a query row that sees nothing becomes NaN inside a kernel's softmax: the model's arithmetic, not the decoder's
T8   stop strings: rows end by token only
T9   a minimum of new tokens: requests have none
T19  tokens after the EOS in throughput counters: nothing is counted
X6   K clamped by the fastest row, X9 a silent re-prefill each round: right and slow, by a policy that may be meant
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from eqcheck.catalogue.engines.builds import BUILDS, HEAD_BUILDS, Build
from eqcheck.catalogue.engines.engine import RoundEngine
from eqcheck.contract.decoders import Decoder
from eqcheck.contract.family import UNIFORM, named

EQSPEC = "https://arxiv.org/abs/2510.22876"
FED = named(lambda family: family.fed)
FOUR_D = named(lambda family: not family.counts_mask)  # those for which a mask can be 4-D
SLOTS = named(lambda family: not family.stateful)  # those for which something can be in a cache and hidden

# Reasons why no edit of abduction describes a fault.
OUTPUT_RIGHT = "the output is right"
NO_TOKENS = "there are no tokens to explain"
HANDED = "an engine that loads a checkpoint is not handed such a cache state"
NUMBERS = "no edit changes K and V themselves"
OTHER_MODEL = "it does not show on the checkpoint, a Llama"

# The seed of the amounts in planted faults; without one they are fixed, as in the reports.
SEED = os.environ.get("EQCHECK_CATALOGUE_SEED", "")

C = TypeVar("C", bound=type[Any])
Number = TypeVar("Number", int, float)
RECORDS: list[Fault] = []


@dataclass(frozen=True)
class Planting:
    """The builds that a fault sits in, and what it needs to show there: see `Fault`."""

    builds: tuple[str, ...]
    held_back: tuple[str, ...]
    needs: dict[str, Any]
    families: Sequence[str]

    def __call__(self, broken: C) -> C:
        self.plant(_BROKEN[broken])
        return broken

    def plant(self, record: Fault) -> None:
        for name in (*self.builds, *self.held_back):
            families = tuple(family for family in build_of(name).families if family in self.families)
            held_back = name in self.held_back
            where = {"id": f"{record.id}.{name}", "families": families, "held_back": held_back, **self.needs}
            RECORDS.append(replace(record, **where))


@dataclass(frozen=True)
class Fault:
    """One planted fault.

    Faults of one ``mechanism`` are variations of one: it is the switch, unless another one's is given. ``families`` are
    the families on which it shows, ``cache_states`` the states that it needs, ``rows`` how many rows. One that is
    ``held_back`` sits in an engine or place that attribution was not developed on; one that is ``hashlm_only`` edits
    what only a `HashLM` keeps in K and V. ``edit`` is the id of the edit by which abduction says it from tokens alone
    (`eqcheck.engines.abduction`), or else ``no_edit`` is why none does. ``patches`` break the engine, its memory for
    the target included, ``draft_patches`` its memory for the draft.
    """

    id: str
    component: str
    kind: str
    link: str
    mechanism: str
    hashlm_only: bool = False
    title: str = ""
    families: tuple[str, ...] = ()
    cache_states: tuple[str, ...] = ("empty",)
    rows: int = 1
    held_back: bool = False
    edit: str = ""
    no_edit: str = ""
    patches: tuple[type[Any], ...] = ()
    draft_patches: tuple[type[Any], ...] = ()

    @property
    def switch(self) -> str:
        return self.id.partition(".")[0]

    @property
    def build(self) -> str:
        return self.id.partition(".")[2]

    @property
    def fingerprint(self) -> str:
        """The component and kind that the fault must be attributed to."""
        return f"{self.component}/{self.kind}"

    def engine(self) -> type[RoundEngine]:
        """The build's engine with this fault, and no other."""
        return patched(build_of(self.build).engine, self.patches, self.draft_patches)

    def decoder(self) -> Decoder:
        """The build with this fault, and no other."""
        return replace(build_of(self.build), engine=self.engine()).decoder(self.id)

    def __call__(self, broken: C) -> C:
        """Decorate the class that breaks; its ``on_draft`` are classes that break the draft's memory."""
        title = " ".join((broken.__doc__ or "").split()).rstrip(".")
        _BROKEN[broken] = self.with_patches(title, patches_of(broken), getattr(broken, "on_draft", ()))
        return broken

    def plant(self, title: str, *parts: Planting | type[Any], on_draft: Iterable[type[Any]] = ()) -> None:
        """Plant it: ``parts`` are where, and its patches."""
        patches = tuple(part for part in parts if isinstance(part, type))
        record = self.with_patches(title, patches, on_draft)
        for part in parts:
            if isinstance(part, Planting):
                part.plant(record)

    def with_patches(self, title: str, patches: tuple[type[Any], ...], on_draft: Iterable[type[Any]]) -> Fault:
        of_draft = tuple(patch for broken in on_draft for patch in patches_of(broken))
        return replace(self, title=title, patches=patches, draft_patches=of_draft)


_BROKEN: dict[type[Any], Fault] = {}


def fault(
    switch: str, fingerprint: str, link: str = EQSPEC, *, mechanism: str = "", hashlm_only: bool = False
) -> Fault:
    """Say what breaks: see `Fault`. The link is an address or ``owner/repository#issue``."""
    component, _, kind = fingerprint.partition("/")
    return Fault(switch, component, kind, address(link), mechanism or switch, hashlm_only)


def planted(
    builds: str,
    held_back: str = "",
    *,
    families: Sequence[str] = UNIFORM,
    **needs: Any,
) -> Planting:
    """Plant a fault in several builds, given by name; those of ``held_back`` are held back.

    ``families`` are those on which it shows, as far as a build claims them; for what else it ``needs`` see `Fault`.
    Where that is not the same in all builds, a fault is planted twice.
    """
    return Planting(tuple(builds.split()), tuple(held_back.split()), needs, families)


def step(whole: C, **steps: Callable[..., Any]) -> C:
    """A patch of a class by its steps: each is a function of the right step, the object, and what the step is given."""
    parts: dict[str, Any] = {}
    patch: C = type(whole.__name__, (whole,), parts)  # type: ignore[assignment]
    for name, function in steps.items():
        setattr(patch, name, _method(patch, name, function))
    return patch


def _method(patch: type[Any], name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, *given: function(getattr(super(patch, self), name), self, *given)


def amount(name: str, usual: Number, least: Number, most: Number) -> Number:
    """An amount in a fault: drawn, where there is a `SEED`, from a range in which the fault is one."""
    if not SEED:
        return usual
    draw = random.Random(f"{SEED} {name}").uniform(least, most)
    return round(draw) if isinstance(usual, int) else draw


def patched(whole: C, patches: Iterable[type[Any]], of_draft: Iterable[type[Any]] = ()) -> C:
    """An engine, or a part of one, with every patch that is for its class, and with its own parts patched likewise."""
    parts: dict[str, Any] = {"__doc__": whole.__doc__}
    for name, some in (("memory", patches), ("draft_memory", of_draft), ("store", patches)):
        if some and hasattr(whole, name):
            parts[name] = patched(getattr(whole, name), some)
    mixed = [patch for patch in patches if issubclass(whole, _patched_by(patch))]
    return type(whole.__name__, (*mixed, whole), parts)  # type: ignore[return-value]


def _patched_by(patch: type[Any]) -> type[Any]:
    """The class of an engine, or of a part of one, that a patch is for."""
    return next(base for base in patch.__mro__ if base.__module__.startswith("eqcheck.catalogue.engines."))


def patches_of(broken: type[Any]) -> tuple[type[Any], ...]:
    """The patches of a class under `fault`: what it holds, and itself if it is one."""
    held = tuple(value for value in vars(broken).values() if isinstance(value, type))
    return held if broken.__base__ is object else (*held, broken)


def build_of(name: str) -> Build:
    return BUILDS.get(name) or HEAD_BUILDS[name]


def address(link: str) -> str:
    """The address of an issue.

    >>> address("vllm-project/vllm#9730")
    'https://github.com/vllm-project/vllm/issues/9730'
    """
    repository, _, number = link.partition("#")
    return link if link.startswith("http") else f"https://github.com/{repository}/issues/{number}"
