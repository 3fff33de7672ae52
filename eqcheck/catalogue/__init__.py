"""Engines that are right, and faults that can be planted in them: what eqcheck itself is tested with."""

from eqcheck.catalogue.engines.builds import BUILDS, Build, known_good
from eqcheck.catalogue.faults import FAULTS, PAIRS, PLANTED, Fault, FaultPair

__all__ = ["BUILDS", "FAULTS", "PAIRS", "PLANTED", "Build", "Fault", "FaultPair", "known_good"]
