"""What a planted fault of sampling is: what a sampler draws wrongly, where that happened, what it must be named.

A fault is a class under the decorator `planted`: a scheme of sampling in which one step is overridden. Its docstring
says what is broken. Its id is ``L<number>-<name>.<build>``, L for law. Every third number is held back: attribution was
not developed on those.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from eqcheck.catalogue.samplers.build import SAMPLED_BUILDS, sampler
from eqcheck.catalogue.samplers.engine import Sampler
from eqcheck.contract.decoder import Decoder

HELD_BACK_EVERY = 3
C = TypeVar("C", bound=type[Sampler])
SHOWS = {
    "law": "the law of a row's next token is wrong",
    "rows": "every row alone has the right law, but rows depend on each other",
    "greedy": "sampled rows have the right law, and greedy rows are drawn",
    "seeds": "the laws are right, but a row's seed does not do what it promises",
}


@dataclass(frozen=True)
class SampledFault:
    """One planted fault of sampling.

    ``regime`` is where it shows best, ``tokens`` how many it takes there until the evidence is 10^6, as simulated;
    None where none was made. Where rows are cut, many show earlier, by an impossible token. ``shows`` is one of
    `SHOWS`.
    """

    number: int
    name: str
    mechanism: str
    link: str
    kind: str
    regime: str
    tokens: int | None
    shows: str
    scheme: type[Sampler]

    @property
    def id(self) -> str:
        return f"L{self.number}-{self.name}"

    @property
    def fingerprint(self) -> str:
        """What the fault must be attributed to."""
        return f"sampling/{self.kind}"

    @property
    def held_back(self) -> bool:
        return self.number % HELD_BACK_EVERY == 0

    def decoder(self, build: str) -> Decoder:
        """A build with this fault, and no other."""
        return sampler(self.scheme, build, f"{self.id}.{build}")

    def decoders(self, builds: Sequence[str] = SAMPLED_BUILDS) -> list[Decoder]:
        return [self.decoder(build) for build in builds]


SAMPLED_FAULTS: list[SampledFault] = []


def planted(
    id: str,
    kind: str,
    link: str = "",
    *,
    regime: str = "std",
    tokens: int | None = None,
    shows: str = "law",
) -> Callable[[C], C]:
    """Plant a fault; ``id`` begins with its number, ``link`` is ``owner/repository#number`` or an address."""

    def plant(broken: C) -> C:
        number, _, name = id.partition("-")
        mechanism = " ".join((broken.__doc__ or "").split()).rstrip(".")
        where = link
        if "#" in link:
            repository, _, issue = link.partition("#")
            where = f"https://github.com/{repository}/issues/{issue}"
        SAMPLED_FAULTS.append(
            SampledFault(int(number[1:]), name, mechanism, where, kind, regime, tokens, shows, broken)
        )
        return broken

    return plant
