"""Every planted fault is caught, and attributed to what was broken."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from builds import BUILDS
from faults import BOTH, FAULTS, Fault

from eqcheck.case import Case
from eqcheck.harness import run
from eqcheck.oracle import judge
from eqcheck.search import Source
from eqcheck.verdict import KINDS

CHUNKS = 2
MISREAD_AT_MOST = 0.04  # a coincidence of tokens can make one fault look like another, about once in a vocabulary


@pytest.fixture(scope="module")
def drawn() -> list[Case]:
    torch.set_num_threads(1)
    source = Source(3, BOTH, ("left",))
    return [case for chunk in range(CHUNKS) for case in source.chunk(chunk)]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.build}-{fault.name}")
def test_fault_is_caught_and_named(fault: Fault, drawn: list[Case]) -> None:
    engine = BUILDS[fault.build](fault.name)
    found: Counter[str] = Counter()
    for case in drawn:
        if case.family in fault.families:
            explanation = judge(run(engine, case)).explanation
            found[explanation.fingerprint if explanation else "equivalent"] += 1
    caught = sum(found.values()) - found["equivalent"]
    right = sum(
        count for name, count in found.items() if any(name.startswith(one) for one in fault.attributed.split("|"))
    )
    assert caught > 0
    assert right >= (1 - MISREAD_AT_MOST) * caught - 1, dict(found)


def test_declared_kinds_exist() -> None:
    for fault in FAULTS:
        for one in fault.attributed.split("|"):
            component, _, kind = one.partition("/")
            assert component in KINDS
            assert kind == "" or kind in KINDS[component]
