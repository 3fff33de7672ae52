"""All planted faults by id, and those that are held out."""

from __future__ import annotations

from served import held as unseen
from served.fault import Fault
from served.faults import FAULTS
from served.score import FaultScore, check_fault


def held() -> tuple[Fault, ...]:
    """The faults of mechanisms that attribution was not developed on at first."""
    return unseen.FAULTS


def check(identifier: str) -> FaultScore:
    """Score a fault by its id; a process is sent an id, because steps cannot be sent."""
    return check_fault(next(fault for fault in (*held(), *FAULTS) if fault.id == identifier))
