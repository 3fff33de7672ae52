"""What a planted fault is: what is broken in which build, where it happened in the wild, and what it must be named.

An id is ``SWITCH.BUILD``; the switch is the name searched for in the build's code, and begins with the number of the
failure mode: P positions, M masks, K caches, T token bookkeeping, D draft, X scheduling, S declared cache states.

Not planted, because greedy decoding of the models at hand cannot show it:

M9   a query row that sees nothing becomes NaN inside a kernel's softmax: the model's arithmetic, not the decoder's
T8   stop strings: rows end by token only
T9   a minimum of new tokens: requests have none
T19  tokens after the EOS in throughput counters: nothing is counted
X6   K clamped by the fastest row, X9 a silent re-prefill each round: right and slow, by a policy that may be meant
"""

from __future__ import annotations

from dataclasses import dataclass

from eqcheck.catalogue.builds import BUILDS
from eqcheck.contract import CLAIMED, FAMILIES, Decoder

EQSPEC = "https://arxiv.org/abs/2510.22876"
# Families for which the mask can be 4-D; the other counts tokens in a 2-D one.
NOT_ORDER = tuple(family for family in FAMILIES if family != "mask-order")


@dataclass(frozen=True)
class Fault:
    """One planted fault.

    ``families`` are those on which it shows, ``cache_states`` those that it needs, ``rows`` how many rows. One that is
    ``held_back`` sits in an engine or place that attribution was not developed on; one that is ``hashlm_only`` edits
    what only a `HashLM` keeps in K and V.
    """

    id: str
    mechanism: str
    link: str
    component: str
    kind: str
    families: tuple[str, ...] = CLAIMED
    cache_states: tuple[str, ...] = ("empty",)
    rows: int = 2
    held_back: bool = False
    hashlm_only: bool = False

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

    def decoder(self) -> Decoder:
        """The build with this fault, and no other, switched in."""
        return BUILDS[self.build].decoder(self.id, [self.switch])


@dataclass(frozen=True)
class Pair:
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
        """The build with both faults switched in."""
        return BUILDS[self.first.build].decoder(self.id, [self.first.switch, self.second.switch])


def issue(repository: str, number: int) -> str:
    return f"https://github.com/{repository}/issues/{number}"


def plant(
    switch: str,
    fingerprint: str,
    mechanism: str,
    link: str,
    builds: str,
    held_back: str = "",
    *,
    families: tuple[str, ...] = FAMILIES,
    cache_states: tuple[str, ...] = ("empty",),
    rows: int = 2,
    hashlm_only: bool = False,
) -> list[Fault]:
    """The same fault in several builds, given by name; those of ``held_back`` are held back.

    ``families`` are those on which it shows, as far as a build claims them.
    """
    component, _, kind = fingerprint.partition("/")
    return [
        Fault(
            id=f"{switch}.{build}",
            mechanism=mechanism,
            link=link,
            component=component,
            kind=kind,
            families=tuple(family for family in BUILDS[build].families if family in families),
            cache_states=cache_states,
            rows=rows,
            held_back=build in held_back.split(),
            hashlm_only=hashlm_only,
        )
        for build in (*builds.split(), *held_back.split())
    ]
