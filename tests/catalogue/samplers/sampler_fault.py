"""The record of a planted fault of sampling: what is drawn wrongly, where that happened, what it must be named.

The broken part is a scheme of sampling in which one step is overridden: a class under `fault` as a decorator, whose
docstring is the title, or a `step` in `SampledFault.plant`. An id is ``L<number>-<name>.<build>``, L for law. Every
third number is held back: attribution was not developed on those.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from eqcheck.catalogue.faults.fault import address
from eqcheck.catalogue.samplers.sampler_engine import SAMPLED_BUILDS, Sampler, sampler
from eqcheck.contract.decoders import Decoder

HELD_BACK_EVERY = 3
C = TypeVar("C", bound=type[Sampler])
SHOWS = {
    "law": "the law of a row's next token is wrong",
    "rows": "every row alone has the right law, but rows depend on each other",
    "greedy": "sampled rows have the right law, and greedy rows are drawn",
    "seeds": "the laws are right, but a row's seed does not do what it promises",
}
SAMPLED_FAULTS: list[SampledFault] = []


@dataclass(frozen=True)
class SampledFault:
    """One planted fault of sampling.

    ``regime`` is where it shows best, ``tokens`` how many it takes there until the evidence is 10^6, as simulated;
    None where none was made. Where rows are cut, many show earlier, by an impossible token. ``shows`` is one of
    `SHOWS`.
    """

    number: int
    name: str
    kind: str
    link: str
    regime: str
    tokens: int | None
    shows: str
    title: str = ""
    scheme: type[Sampler] = Sampler

    @property
    def id(self) -> str:
        return f"L{self.number}-{self.name}"

    @property
    def fingerprint(self) -> str:
        """The component and kind that the fault must be attributed to."""
        return f"sampling/{self.kind}"

    @property
    def held_back(self) -> bool:
        return self.number % HELD_BACK_EVERY == 0

    def decoder(self, build: str) -> Decoder:
        """A build with this fault, and no other."""
        return sampler(self.scheme, build, f"{self.id}.{build}")

    def decoders(self, builds: Sequence[str] = SAMPLED_BUILDS) -> list[Decoder]:
        return [self.decoder(build) for build in builds]

    def __call__(self, scheme: C) -> C:
        """Decorate the scheme that breaks."""
        title = " ".join((scheme.__doc__ or "").split()).rstrip(".")
        SAMPLED_FAULTS.append(replace(self, title=title, scheme=scheme))
        return scheme

    def plant(self, title: str, scheme: type[Sampler]) -> None:
        scheme.__doc__ = f"{title}."
        self(scheme)


def fault(
    id: str, kind: str, link: str = "", *, regime: str = "std", tokens: int | None = None, shows: str = "law"
) -> SampledFault:
    """Say what breaks; ``id`` begins with its number, ``link`` is ``owner/repository#number`` or an address."""
    number, _, name = id.partition("-")
    return SampledFault(int(number[1:]), name, kind, link and address(link), regime, tokens, shows)
