"""All planted faults by id, and those that are held out."""

from __future__ import annotations

from served import fresh as reported
from served import held as held_out
from served import unseen as newest
from served.fault import Fault
from served.faults import FAULTS
from served.score import FaultScore, check_fault


def held() -> tuple[Fault, ...]:
    """The faults of mechanisms that attribution was not developed on at first."""
    return held_out.FAULTS


def unseen() -> tuple[Fault, ...]:
    """The faults of mechanisms that were planted last, when attribution had been written."""
    return newest.FAULTS


def fresh() -> tuple[Fault, ...]:
    """The faults of mechanisms that were reported, and that none of the other files has."""
    return reported.FAULTS


def check(identifier: str) -> FaultScore:
    """Score a fault by its id; a process is sent an id, because steps cannot be sent."""
    return check_fault(next(fault for fault in (*fresh(), *unseen(), *held(), *FAULTS) if fault.id == identifier))
