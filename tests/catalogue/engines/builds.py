"""The known-good engines, each as a decoder, and what each claims: the one place where claims are made."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from eqcheck.catalogue.engines.batch import Holes, Realigned, RolledBack
from eqcheck.catalogue.engines.blocks import PagedEngine, PagedSmall, Prefixed, PrefixedSmall
from eqcheck.catalogue.engines.columns import Static
from eqcheck.catalogue.engines.engine import RoundEngine, Rows
from eqcheck.catalogue.engines.heads import AcceptedHead, ColumnHead, PairsHead
from eqcheck.catalogue.engines.layers import Checkpointed, Rerun, Windowed
from eqcheck.catalogue.engines.lines import Continuous
from eqcheck.catalogue.engines.pool import Packed, Pooled
from eqcheck.catalogue.engines.rows import Expanded, OneRow, PerRow, Restored, Staged, Uncached
from eqcheck.catalogue.engines.trees import Forked, ForkedRows
from eqcheck.contract.decoders import CLAIMED, TAKEN, Decoder, Request, decoder
from eqcheck.contract.family import HYBRID, UNIFORM, named


@dataclass(frozen=True)
class Build:
    """An engine and its claims."""

    engine: type[RoundEngine]
    families: tuple[str, ...]
    cache_states: tuple[str, ...] = TAKEN

    def decoder(self, name: str) -> Decoder:
        """The engine as a decoder."""
        return decoder(
            name=name,
            families=self.families,
            cache_states=self.cache_states,
            note=(self.engine.__doc__ or "").partition("\n")[0],
        )(partial(_decode, self.engine))


def _decode(engine: type[RoundEngine], target: Any, draft: Any, request: Request) -> Rows:
    return engine(target, draft, request).decode()


# Families whose layers differ have builds of their own; of the others these are right on them, too, where
# tests/transparent/test_hybrid.py says so.
_CROPPED = named(lambda family: not family.stateful and not family.near)
# A hole in a row's slots changes distances counted in slots, and what a window of slots reaches.
_HOLES_FORGIVEN = named(lambda family: family.holes)
# A 4-D mask says nothing about order, and is taken as it is: the window is part of it.
_MASK_OF_THEIR_OWN = named(lambda family: not (family.counts_mask or family.stateful or family.near))
# Siblings have one position and two slots.
_TREES = named(lambda family: family.fed and not family.near)
_STATES = named(lambda family: family.stateful)

BUILDS = {
    "one_row": Build(OneRow, UNIFORM),
    "uncached": Build(Uncached, UNIFORM),
    "expanded": Build(Expanded, UNIFORM),
    # A draft shorter than another row's leaves a hole in the block.
    "realigned": Build(Realigned, _HOLES_FORGIVEN, (*TAKEN, "prefix", "chunked")),
    "holes": Build(Holes, _HOLES_FORGIVEN, (*TAKEN, "prefix", "chunked", "preallocated")),
    "rolled_back": Build(RolledBack, _CROPPED, (*TAKEN, "chunked", "preallocated")),
    "per_row": Build(PerRow, _CROPPED, (*TAKEN, "prefix", "chunked", "late-rows")),
    "restored": Build(Restored, UNIFORM, (*TAKEN, "prefix", "chunked")),
    "continuous": Build(Continuous, _MASK_OF_THEIR_OWN, (*TAKEN, "prefix", "chunked", "late-rows")),
    "packed": Build(Packed, CLAIMED),
    "pooled": Build(Pooled, CLAIMED),
    "paged": Build(PagedEngine, _MASK_OF_THEIR_OWN, (*TAKEN, "prefix", "chunked")),
    "paged_small": Build(PagedSmall, _MASK_OF_THEIR_OWN, (*TAKEN, "prefix", "chunked")),
    "prefixed": Build(Prefixed, _MASK_OF_THEIR_OWN, (*TAKEN, "chunked")),
    "prefixed_small": Build(PrefixedSmall, _MASK_OF_THEIR_OWN, (*TAKEN, "chunked")),
    "static": Build(Static, _HOLES_FORGIVEN, (*TAKEN, "prefix", "chunked")),
    "staged": Build(Staged, _CROPPED, (*TAKEN, "prefix", "chunked")),
    "replayed": Build(Restored, HYBRID, (*TAKEN, "prefix", "chunked")),
    "windowed": Build(Windowed, named(lambda family: bool(family.near) and family.fed), (*TAKEN, "chunked")),
    "rerun": Build(Rerun, _STATES, (*TAKEN, "prefix", "chunked")),
    "checkpointed": Build(Checkpointed, _STATES),
    "forked": Build(Forked, _TREES, (*TAKEN, "tree")),
    "forked_rows": Build(ForkedRows, _TREES, (*TAKEN, "tree")),
}

# Engines that draft with a head on the target's hidden states.
HEAD_BUILDS = {
    "head_column": Build(ColumnHead, BUILDS["realigned"].families),
    "head_accepted": Build(AcceptedHead, BUILDS["holes"].families),
    "head_pairs": Build(PairsHead, BUILDS["realigned"].families),
}


def known_good() -> dict[str, Decoder]:
    """Every build as it stands, by name."""
    return {name: build.decoder(name) for name, build in BUILDS.items()}
