"""The audit of a decoder: draw cases, decode, judge, confirm, minimise, report."""

from eqcheck.audit.loop import audit
from eqcheck.audit.outcome import Outcome, try_case
from eqcheck.audit.result import Audit, Options, Progress, ViolationRecord

__all__ = ["Audit", "Options", "Outcome", "Progress", "ViolationRecord", "audit", "try_case"]
