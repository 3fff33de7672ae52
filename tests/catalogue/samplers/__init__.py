"""Samplers that are right, and faults that can be planted in them: what the judgement of laws is tested with."""

# In this order: a fault's place says in which build it is audited.
from eqcheck.catalogue.samplers import decisions, wrong_laws  # noqa: F401
from eqcheck.catalogue.samplers.sampler_engine import SAMPLED_BUILDS
from eqcheck.catalogue.samplers.sampler_fault import SAMPLED_FAULTS, SampledFault
from eqcheck.catalogue.samplers.schemes import RIGHT, samplers

__all__ = ["RIGHT", "SAMPLED_BUILDS", "SAMPLED_FAULTS", "SampledFault", "samplers"]
