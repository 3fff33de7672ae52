"""Engines that are right, and faults that can be switched into them: what eqcheck itself is tested with."""

from eqcheck.catalogue.awaited import AWAITED
from eqcheck.catalogue.builds import BUILDS, Build, known_good
from eqcheck.catalogue.caches import CACHES
from eqcheck.catalogue.commits import COMMITS
from eqcheck.catalogue.contexts import MASKS, POSITIONS
from eqcheck.catalogue.declared import DECLARED
from eqcheck.catalogue.drafts import DRAFT
from eqcheck.catalogue.fault import Fault, Pair
from eqcheck.catalogue.pairs import PAIRS
from eqcheck.catalogue.tensors import TENSORS
from eqcheck.catalogue.tokens import BOOKKEEPING, CRASHES

PLANTED = [*POSITIONS, *MASKS, *CACHES, *TENSORS, *BOOKKEEPING, *COMMITS, *DECLARED, *DRAFT, *CRASHES]
FAULTS = [fault for fault in PLANTED if AWAITED.isdisjoint({fault.id, fault.switch})]

__all__ = ["BUILDS", "FAULTS", "PAIRS", "PLANTED", "Build", "Fault", "Pair", "known_good"]
