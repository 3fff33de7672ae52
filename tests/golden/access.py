"""All that the golden net takes from inside eqcheck: where names move, this module alone follows.

Every decoder of the catalogue is an attribute of it under the decoder's own id, for ``golden.access:ID`` as an adapter.
"""

from __future__ import annotations

import multiprocessing
from collections import Counter
from functools import cache
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from clock import CHECKPOINT, TRANSPARENT, Clock
from pairs import PAIRS

from eqcheck import cli
from eqcheck.catalogue import BUILDS, PLANTED
from eqcheck.catalogue.engines.builds import HEAD_BUILDS
from eqcheck.catalogue.faults import HEAD_FAULTS, LEAKS
from eqcheck.catalogue.samplers import RIGHT, SAMPLED_BUILDS, SAMPLED_FAULTS
from eqcheck.catalogue.samplers.sampler_engine import sampler
from eqcheck.contract import registry
from eqcheck.contract.decoders import Decoder
from eqcheck.contract.kinds import FINGERPRINTS
from eqcheck.core.result.findings import LawEvidence
from eqcheck.core.store.casefile import read_case
from eqcheck.report import load
from eqcheck.report.markdown import to_markdown
from eqcheck.sampling import judge
from eqcheck.sampling.betting.wealth import Wealth
from eqcheck.transparent.attribution.lost_drafts import all_warnings
from eqcheck.transparent.coverage import try_case
from golden import settled

__all__ = ["FINGERPRINTS", "ready", "report_as_markdown", "run", "told"]
SPEC = "golden.access"
_SUPREMUM: Any = vars(Wealth)["supremum"]  # before `ready` replaces it


def _decoders() -> dict[str, Decoder]:
    """Every decoder of the catalogue by its id; one that samples also has its build in it."""
    found = {name: build.decoder(name) for name, build in {**BUILDS, **HEAD_BUILDS}.items()}
    found |= {fault.id: fault.decoder() for fault in PLANTED}
    found |= {pair.id: pair.decoder() for pair in PAIRS}
    found |= {wrong.id: wrong.decoder() for wrong in HEAD_FAULTS}
    found |= {leak.id: leak.decoder() for leak in LEAKS}
    for number, (name, scheme) in enumerate(RIGHT.items()):
        build = SAMPLED_BUILDS[number % len(SAMPLED_BUILDS)]
        found[f"{name}.{build}"] = sampler(scheme, build, f"{name}.{build}")
    for number, fault in enumerate(SAMPLED_FAULTS):
        build = SAMPLED_BUILDS[number % len(SAMPLED_BUILDS)]
        found[f"{fault.id}.{build}"] = fault.decoder(build)
    return found


globals().update(_decoders())


class Shown(float):
    """Evidence that is exact where it decides, and is printed as it is on every processor (`golden.settled`)."""

    def __format__(self, spec: str) -> str:
        return format(settled(float(self)), spec)


def _shown(wealth: Wealth) -> Shown:
    return Shown(_SUPREMUM.fget(wealth))


def _evidence(greatest: float, **facts: Any) -> LawEvidence:
    """What a report says of evidence, with an ordinary number in it, which JSON can hold."""
    return LawEvidence(greatest=settled(float(greatest)), **facts)


def ready() -> None:
    """Compute on one thread, let no time pass where an audit asks for it, and fork workers that know the catalogue."""
    patch = pytest.MonkeyPatch()
    patch.setattr(Wealth, "supremum", property(_shown))
    patch.setattr(judge, "LawEvidence", _evidence)
    torch.set_num_threads(1)
    multiprocessing.set_forkserver_preload(["eqcheck.audit.workers.server", SPEC, try_case.__module__])
    forkserver.ensure_running()
    # Long after its beginning: the first word on causes is printed at once, as by a clock that has run for a while.
    Clock(1e6).put(patch, dict.fromkeys([*TRANSPARENT, *CHECKPOINT, "report.progress"]))


def run(*words: str) -> int:
    """The exit code of a command."""
    try:
        return cli.main(words)
    except SystemExit as ended:  # --help
        return int(ended.code or 0)


@cache
def _decoder(spec: str) -> Decoder:
    return registry.load(spec)


def told(spec: str, file: Path) -> dict[str, Any]:
    """What a case of the transparent target shows, as data, the evidence among it; before any second opinion."""
    stored = read_case(file)
    case: Any = stored.case
    with _decoder(spec).running() as generate:
        found = try_case(generate, case, stored.case_timeout)
    losses = Counter(dict(found.losses))
    return {
        "status": found.status,
        "outputs": found.outputs,
        "exact_match": found.exact_match,
        "prefix_match": found.prefix_match,
        "coverage": sorted(found.coverage),
        "losses": dict(sorted((str(loss), count) for loss, count in losses.items())),
        "warnings": all_warnings(losses) if losses else [],
        "luck": found.luck,
        "slots": found.slots,
        "evidence": msgspec.to_builtins(found.explanation),
    }


def report_as_markdown(folder: Path) -> str:
    """A stored report as Markdown."""
    return to_markdown(load(folder))
