"""What a planted fault is: what is broken in which engine, where it happened in the wild, and what it must be named.

A fault is a class under the decorators `planted` and `fault`, which says in its docstring what is broken. It is a
*patch*, a subclass of an engine or of a part of one that overrides one step, or holds several: for each engine those
are mixed in that are for its classes. An id is ``SWITCH.BUILD``; the switch begins with the number of the failure mode:
P positions, M masks, K caches, T token bookkeeping, D draft, X scheduling, S declared cache states.

Not planted, because greedy decoding of the models at hand cannot show it:

M9   a query row that sees nothing becomes NaN inside a kernel's softmax: the model's arithmetic, not the decoder's
T8   stop strings: rows end by token only
T9   a minimum of new tokens: requests have none
T19  tokens after the EOS in throughput counters: nothing is counted
X6   K clamped by the fastest row, X9 a silent re-prefill each round: right and slow, by a policy that may be meant
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from eqcheck.catalogue.engines.builds import BUILDS
from eqcheck.catalogue.engines.engine import RoundEngine
from eqcheck.contract.decoder import Decoder
from eqcheck.contract.family import FAMILIES, named

EQSPEC = "https://arxiv.org/abs/2510.22876"
FED = named(lambda family: family.fed)
FOUR_D = named(lambda family: not family.counts_mask)  # those for which a mask can be 4-D
SLOTS = named(lambda family: not family.stateful)  # those for which something can be in a cache and hidden

# Why no edit of abduction says a fault.
OUTPUT_RIGHT = "the output is right"
NO_TOKENS = "there are no tokens to explain"
HANDED = "an engine that loads a checkpoint is not handed such a cache state"
NUMBERS = "no edit changes K and V themselves"
OTHER_MODEL = "it does not show on the checkpoint, a Llama"

C = TypeVar("C", bound=type[Any])


@dataclass(frozen=True)
class Fault:
    """One planted fault.

    ``families`` are those on which it shows, ``cache_states`` those that it needs, ``rows`` how many rows. One that is
    ``held_back`` sits in an engine or place that attribution was not developed on; one that is ``hashlm_only`` edits
    what only a `HashLM` keeps in K and V. ``edit`` is the id of the edit by which abduction says it from tokens alone
    (`eqcheck.abduction`), or else ``no_edit`` is why none does. ``patches`` break the engine, its
    memory for the target included, ``draft_patches`` its memory for the draft.
    """

    id: str
    mechanism: str
    link: str
    component: str
    kind: str
    families: tuple[str, ...]
    cache_states: tuple[str, ...]
    rows: int
    held_back: bool
    hashlm_only: bool
    edit: str
    no_edit: str
    patches: tuple[type[Any], ...]
    draft_patches: tuple[type[Any], ...]

    @property
    def switch(self) -> str:
        return self.id.partition(".")[0]

    @property
    def build(self) -> str:
        return self.id.partition(".")[2]

    @property
    def fingerprint(self) -> str:
        """What the fault must be attributed to."""
        return f"{self.component}/{self.kind}"

    def engine(self) -> type[RoundEngine]:
        """The build's engine with this fault, and no other."""
        return patched(BUILDS[self.build].engine, self.patches, self.draft_patches)

    def decoder(self) -> Decoder:
        """The build with this fault, and no other."""
        return replace(BUILDS[self.build], engine=self.engine()).decoder(self.id)


@dataclass(frozen=True)
class FaultPair:
    """Two faults in one build at once; where both show, ``first`` must be named: it comes first in causal order."""

    first: Fault
    second: Fault

    @property
    def id(self) -> str:
        return f"{self.first.switch}+{self.second.switch}.{self.first.build}"

    @property
    def families(self) -> tuple[str, ...]:
        """Those on which both show."""
        return tuple(family for family in self.first.families if family in self.second.families)

    @property
    def cache_states(self) -> tuple[str, ...]:
        """Those that both need."""
        return tuple(state for state in self.first.cache_states if state in self.second.cache_states)

    def decoder(self) -> Decoder:
        """The build with both faults."""
        build = BUILDS[self.first.build]
        return replace(build, engine=patched(self.first.engine(), self.second.patches)).decoder(self.id)


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
    return next(one for one in patch.__mro__ if one.__module__.startswith("eqcheck.catalogue.engines."))


def patches_of(broken: type[Any]) -> tuple[type[Any], ...]:
    """The patches of a class under `fault`: what it holds, and itself if it is one."""
    held = tuple(one for one in vars(broken).values() if isinstance(one, type))
    return held if broken.__base__ is object else (*held, broken)


def issue(repository: str, number: int) -> str:
    return f"https://github.com/{repository}/issues/{number}"


PLANTED: list[Fault] = []
_RECORDS: dict[type[Any], dict[str, Any]] = {}


def fault(switch: str, fingerprint: str, link: str, *, hashlm_only: bool = False) -> Callable[[C], C]:
    """Say what a class breaks: see `Fault`. Its ``on_draft`` are faults whose patches break the draft's memory."""

    def record(broken: C) -> C:
        component, _, kind = fingerprint.partition("/")
        sentence = " ".join((broken.__doc__ or "").split()).rstrip(".")
        first = sentence.partition(" ")[0]
        _RECORDS[broken] = {
            "id": switch,
            "mechanism": sentence if first.isupper() and first != "A" else sentence[:1].lower() + sentence[1:],
            "link": link,
            "component": component,
            "kind": kind,
            "hashlm_only": hashlm_only,
            "patches": patches_of(broken),
            "draft_patches": tuple(one for other in getattr(broken, "on_draft", ()) for one in patches_of(other)),
        }
        return broken

    return record


def planted(
    builds: str,
    held_back: str = "",
    *,
    families: Sequence[str] = FAMILIES,
    cache_states: tuple[str, ...] = ("empty",),
    rows: int = 1,
    edit: str = "",
    no_edit: str = "",
) -> Callable[[C], C]:
    """Plant a fault in several builds, given by name; those of ``held_back`` are held back.

    ``families`` are those on which it shows, as far as a build claims them; for the rest see `Fault`. Where
    that is not the same in all builds, a fault is planted twice.
    """

    def plant(broken: C) -> C:
        record = _RECORDS[broken]
        for build in (*builds.split(), *held_back.split()):
            one = {
                **record,
                "id": f"{record['id']}.{build}",
                "families": tuple(family for family in BUILDS[build].families if family in families),
                "held_back": build in held_back.split(),
            }
            PLANTED.append(Fault(**one, cache_states=cache_states, rows=rows, edit=edit, no_edit=no_edit))
        return broken

    return plant
