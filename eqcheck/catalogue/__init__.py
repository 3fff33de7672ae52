"""Engines that are right, and faults that can be switched into them: what eqcheck itself is tested with."""

from eqcheck.catalogue.builds import BUILDS, Build, known_good
from eqcheck.catalogue.caches import CACHES
from eqcheck.catalogue.contexts import MASKS, POSITIONS
from eqcheck.catalogue.fault import Fault, Pair
from eqcheck.catalogue.pairs import PAIRS
from eqcheck.catalogue.tokens import BOOKKEEPING, CRASHES, DRAFT

FAULTS = [*POSITIONS, *MASKS, *CACHES, *BOOKKEEPING, *DRAFT, *CRASHES]

__all__ = ["BUILDS", "FAULTS", "PAIRS", "Build", "Fault", "Pair", "known_good"]
