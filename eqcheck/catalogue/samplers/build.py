"""A scheme of sampling mixed into a build, and the decoder that this makes."""

from __future__ import annotations

from functools import partial
from typing import Any

from eqcheck.catalogue.engines.builds import BUILDS
from eqcheck.catalogue.engines.engine import Rows
from eqcheck.catalogue.samplers.engine import Sampler
from eqcheck.contract.decoder import Decoder, Request, decoder

SAMPLED_BUILDS = ("uncached", "per_row", "realigned")
CAPABILITIES = ("temperature", "top-k", "top-p", "min-p", "seeds")


def engine_of(scheme: type[Sampler], build: str) -> type[Sampler]:
    """The build's engine, sampling by a scheme."""
    parts: dict[str, Any] = {"__doc__": scheme.__doc__}
    engine: type[Sampler] = type(scheme.__name__, (scheme, BUILDS[build].engine), parts)
    return engine


def sampler(scheme: type[Sampler], build: str, name: str) -> Decoder:
    """The build with a scheme of sampling, as a decoder."""
    engine = engine_of(scheme, build)
    return decoder(
        name=name,
        families=BUILDS[build].families,
        capabilities=CAPABILITIES,
        seeds=engine.seeds,
        lossless=engine.lossless,
        note=(engine.__doc__ or "").partition("\n")[0],
    )(partial(_decode, engine))


def _decode(engine: type[Sampler], target: Any, draft: Any, request: Request) -> Rows:
    return engine(target, draft, request).decode()
