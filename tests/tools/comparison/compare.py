"""Every fault and every known-good decoder of the catalogue, seen by each test in use and by eqcheck."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import torch
import transformers

from comparison.methods import AS_USED, METHODS, Setting, agreement, try_on
from eqcheck.catalogue import BUILDS, FAULTS, Fault
from eqcheck.selfcheck.faults import check_fault, check_known_good, in_processes

FORMAT = "eqcheck-comparison/1"
COMPARED, DRAFT_SIDE, OTHER_SETUP = "compared", "draft side", "other set-up"
LOW_PRECISION = "bfloat16"
TIMED = "realigned"  # the build whose right decoder is timed
AUDIT_CASES, SOUND_CASES = 300, 100
RIGHT = tuple(build for build in BUILDS if build != "one_row")  # which does not speculate: it is the reference itself

Found = dict[str, Any]


def group(fault: Fault) -> str:
    """Whether a fault shows in the output of an ordinary Llama or GPT-2 that starts with an empty cache."""
    if fault.component == "draft":
        return DRAFT_SIDE
    ordinary = fault.cache_states == ("empty",) and {"rotary", "learned"} & set(fault.families)
    return COMPARED if ordinary and not fault.hashlm_only else OTHER_SETUP


def check_one_fault(number: int) -> Found:
    """What every method says of ``FAULTS[number]``; the tests in use only where they could see it."""
    torch.set_num_threads(1)
    fault = FAULTS[number]
    start = time.perf_counter()
    ours = check_fault(number, judged=1)
    seconds = time.perf_counter() - start
    return {
        "id": fault.id,
        "mechanism": fault.title,
        "group": group(fault),
        "component": fault.component,
        "kind": fault.kind,
        "families": list(fault.families),
        "held_back": fault.held_back,
        "eqcheck": {
            "caught": ours.caught,
            "named": ours.attributed,
            "seconds": round(seconds, 3),
            "cases": ours.cases_to_catch,
        },
        "tests": _tests(fault) if group(fault) == COMPARED else {},
    }


def _tests(fault: Fault) -> dict[str, dict[str, Found]]:
    found: dict[str, dict[str, Found]] = {}
    with fault.decoder().running() as generate:
        for method in METHODS:
            found[method.name] = {}
            for name, setting in method.settings.items():
                outcome = try_on(setting, generate, remember=True)
                found[method.name][name] = _plain(outcome.failed, outcome.way, outcome.seconds)
    return found


def _plain(failed: bool, way: str, seconds: float) -> Found:
    return {"failed": failed, "way": way, "seconds": round(seconds, 3)}


def check_one_build(build: str) -> Found:
    """What every method says of a known-good decoder, in the numeric type used; as used, in low precision too."""
    torch.set_num_threads(1)
    good = check_known_good(build, 0, SOUND_CASES)
    found: dict[str, Any] = {}
    with BUILDS[build].decoder(build).running() as generate:
        for method in METHODS:
            found[method.name] = {}
            for name, setting in method.settings.items():
                found[method.name][name] = {}
                for dtype in (setting.dtype, *([LOW_PRECISION] if name == AS_USED else [])):
                    outcome = try_on(replace(setting, dtype=dtype), generate, remember=True)
                    found[method.name][name][dtype] = _plain(outcome.failed, outcome.way, outcome.seconds)
    return {"name": build, "eqcheck": {"cases": good.cases, "violations": good.violations}, "tests": found}


def time_right_decoder() -> Found:
    """Seconds that each method takes to pass a right decoder, nothing known beforehand."""
    torch.set_num_threads(1)
    start = time.perf_counter()
    check_known_good(TIMED, 0, AUDIT_CASES)
    found: Found = {"build": TIMED, "eqcheck": round(time.perf_counter() - start, 3), "eqcheck_cases": AUDIT_CASES}
    with BUILDS[TIMED].decoder(TIMED).running() as generate:
        found["tests"] = {
            method.name: {
                name: round(try_on(setting, generate).seconds, 3) for name, setting in method.settings.items()
            }
            for method in METHODS
        }
    return found


def compare(jobs: int, faults: Sequence[int], listen: Callable[[int, int], None]) -> Found:
    """The whole comparison as plain data; ``listen`` gets done and total."""
    start = time.perf_counter()
    work: list[Callable[[], Found]] = [time_right_decoder]
    work += [partial(check_one_build, build) for build in RIGHT]
    work += [partial(check_one_fault, number) for number in faults]
    results = []
    for result in in_processes(work, jobs):
        results.append(result)
        listen(len(results), len(work))
    return {
        "format": FORMAT,
        "versions": {"python": platform.python_version(), "torch": torch.__version__}
        | {"transformers": transformers.__version__},
        "elapsed_s": round(time.perf_counter() - start, 1),
        "jobs": jobs,
        "methods": [
            {
                "name": method.name,
                "source": method.source,
                "settings": {name: _described(setting) for name, setting in method.settings.items()},
            }
            for method in METHODS
        ],
        "right_decoder": results[0],
        "known_good": results[1 : 1 + len(RIGHT)],
        "faults": results[1 + len(RIGHT) :],
    }


def _described(setting: Setting) -> Found:
    shares = agreement(setting)
    passes = (setting.rule.__doc__ or setting.rule.__name__.replace("_", " ")).strip()
    return asdict(setting) | {"rule": passes, "draft_agreement": [round(share, 3) for share in shares]}
