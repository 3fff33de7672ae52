"""Engines that are right, and faults that can be planted in them: what eqcheck itself is tested with."""

from eqcheck.catalogue.engines.builds import BUILDS, Build, known_good
from eqcheck.catalogue.faults import FAULTS, PLANTED, Fault

__all__ = ["BUILDS", "FAULTS", "PLANTED", "Build", "Fault", "known_good"]
