"""The lanes, each made by a function, and which of them a decoder is audited in.

A new lane is a folder, a function in `LANES`, its `conclusions`, and a name in `lanes_of`; its case is named in
`eqcheck.core.store.casefile`. It is imported when it is needed: reading a case or a report imports no model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace

from eqcheck.audit.lane import BESIDE, EXACT_LAW, LESS, ROW_OPTIONS, Lane, shares
from eqcheck.contract.decoders import Decoder
from eqcheck.contract.family import FAMILY, LLAMA
from eqcheck.contract.profiles import Draw
from eqcheck.core.result.findings import Audit, Options


def lanes_of(decoder: Decoder, options: Options) -> list[Lane]:
    """The lanes in which a decoder is audited: on checkpoints where it loads them or another Python runs it.

    One that is called with models is audited on a checkpoint as well if it takes `ROW_OPTIONS`.
    One that samples is audited in the lane of sampling as well, but on real targets; the two share a time budget. In
    ``LESS`` than float32 only the scores of `EXACT_LAW` are exact: an engine that does not load it samples no row.
    """
    names = ["engine", "engine-sampling"]
    if not (decoder.checkpoints or options.python):
        names = ["transparent", "sampling"]
    less = names[0] == "engine" and decoder.dtype in LESS and EXACT_LAW not in decoder.kinds
    real = any(FAMILY[family].target for family in options.families)
    if less or real or "temperature" not in decoder.capabilities:
        names = names[:1]
    if names[0] == "transparent" and decoder.spec and not real and LLAMA in decoder.families:
        names += ["engine"] * bool(ROW_OPTIONS & set(decoder.capabilities))
    if options.profile:
        names = [name for name in names if options.profile.draw(name)]
    if options.budget:
        options = replace(options, budget=options.budget / len(names))
    lanes = [new_lane(name, decoder, own) for name, own in _by_lane(options, names).items()]
    for lane in lanes:
        lane.lanes = tuple(names)
    return lanes


def _by_lane(options: Options, names: Sequence[str]) -> dict[str, Options]:
    """The options of each lane: with the draw that the profile has for it, or else with its share of the cases."""
    if options.profile:
        return {name: _of_profile(options, options.profile.draw(name), (name, names[0])) for name in names}
    counts = shares(options.cases, names) if options.cases else [None] * len(names)
    return {name: replace(options, cases=count) for name, count in zip(names, counts, strict=True) if count != 0}


def _of_profile(options: Options, draw: Draw | None, lane_and_first: tuple[str, str]) -> Options:
    if draw is None:
        return options
    bounded = tuple(field.name for field in fields(draw.bounds))
    count = -(-draw.cases // BESIDE) if lane_and_first == ("engine", "transparent") else draw.cases
    return replace(options, cases=count, bounds=draw.bounds, bounded=bounded, block=draw.block)


def _transparent(decoder: Decoder, options: Options) -> Lane:
    from eqcheck.transparent.lane import TransparentLane

    return TransparentLane(decoder, options)


def _engine(decoder: Decoder, options: Options) -> Lane:
    from eqcheck.engines.lane import EngineLane

    return EngineLane(decoder, options)


def _sampling(decoder: Decoder, options: Options) -> Lane:
    from eqcheck.sampling.lane import SampledLane
    from eqcheck.sampling.transparent_target import TransparentTarget

    return SampledLane(decoder, options, TransparentTarget)


def _engine_sampling(decoder: Decoder, options: Options) -> Lane:
    from eqcheck.sampling.engine_target import EngineTarget
    from eqcheck.sampling.lane import SampledLane

    return SampledLane(decoder, options, EngineTarget)


# Each imports its lane when one is made: a report and a case know the names of lanes, and need no torch.
LANES: dict[str, Callable[[Decoder, Options], Lane]] = {
    "transparent": _transparent,
    "engine": _engine,
    "sampling": _sampling,
    "engine-sampling": _engine_sampling,
}


def new_lane(name: str, decoder: Decoder, options: Options) -> Lane:
    """A lane, for one audit of a decoder."""
    return LANES[name](decoder, options)


def conclusions(audit: Audit) -> None:
    """Draw the conclusions of a lane from the counts and findings of one audit, or of several shards merged."""
    if audit.lane == "transparent":
        from eqcheck.transparent.conclusions import conclusions as of_lane
    elif audit.lane == "engine":
        from eqcheck.engines.conclusions import conclusions as of_lane
    else:
        from eqcheck.sampling.judge import conclusions as of_lane
    of_lane(audit)
