"""The events of audits as they happen, a JSON object on a line each.

Every object has ``event`` and ``decoder``. The first of a decoder, ``started``, has the ``format``.

| event | has |
|---|---|
| ``started`` | ``format``, ``lane``, ``total`` cases (null: time decides) |
| ``loading`` | ``checkpoint``: this takes long |
| ``loaded`` | ``seconds`` that an engine took to start, or to load a checkpoint; the budget does not count them |
| ``case-done`` | ``done``, ``total``, ``failing``, ``stored``; ``status``, ``fingerprint`` and ``case`` |
| ``violation-seen`` | ``number``, ``fingerprint``, ``case``: not confirmed yet |
| ``settling`` | ``fingerprint`` (null: the last), ``done`` and ``total`` failing cases |
| ``settled`` | ``fingerprint``, ``standing``, ``needs``, ``count``, ``case`` |
| ``finished`` | ``verdict``, ``cases``, ``violations`` counted, ``elapsed_s``, ``interrupted``, ``internal_errors`` |

A cluster counts cases, so its ``case-done`` has no case.
"""

from __future__ import annotations

import json
from typing import Any, Final, TextIO

from eqcheck.audit.events import CaseDone, Event, Finished, Loaded, Loading, Settled, Settling, Started, ViolationSeen
from eqcheck.contract.errors import cleaned

FORMAT: Final = "eqcheck-events/1"


class EventLog:
    """A listener that writes what `told` makes of each event to a stream at once.

    When that fails it stops, and ``error`` says why.
    """

    def __init__(self, stream: TextIO) -> None:
        self.stream, self.error = stream, ""

    def __call__(self, event: Event) -> None:
        data = told(event)
        if data is None or self.error:
            return
        try:
            self.stream.write(json.dumps(cleaned(data)) + "\n")
            self.stream.flush()
        except (OSError, ValueError) as error:
            self.error = str(getattr(error, "strerror", None) or error)


def told(event: Event) -> dict[str, Any] | None:
    """An event as plain data; None for one that this version does not tell."""
    more: dict[str, Any]
    match event:
        case Started(lane=lane, total=total):
            name, more = "started", {"format": FORMAT, "lane": lane, "total": total}
        case Loading(checkpoint=checkpoint):
            name, more = "loading", {"checkpoint": checkpoint}
        case Loaded(seconds=seconds):
            name, more = "loaded", {"seconds": round(seconds, 1)}
        case CaseDone(done=done, total=total, failing=failing, stored=stored, outcome=outcome):
            name, more = "case-done", {"done": done, "total": total, "failing": failing, "stored": stored}
            if outcome is not None:
                seen = {"status": outcome.status, "fingerprint": outcome.symptom or None}
                more |= {**seen, "case": outcome.case.to_dict()}
        case ViolationSeen(outcome=outcome, number=number):
            case = outcome.case.to_dict()
            name, more = "violation-seen", {"number": number, "fingerprint": outcome.symptom, "case": case}
        case Settling(symptom=symptom, done=done, total=total):
            name, more = "settling", {"fingerprint": symptom or None, "done": done, "total": total}
        case Settled(finding=finding):
            more = {name: getattr(finding, name) for name in ("fingerprint", "standing", "needs", "count")}
            name, more = "settled", {**more, "case": finding.case.to_dict()}
        case Finished(audit=audit):
            violations = {fingerprint: sum(f.count for f in found) for fingerprint, found in audit.causes.items()}
            more = {"verdict": audit.verdict, "cases": audit.tally.run, "violations": violations}
            more |= {"internal_errors": len(audit.internal)} if audit.internal else {}
            name, more = "finished", {**more, "elapsed_s": round(audit.elapsed, 1), "interrupted": audit.interrupted}
        case _:
            return None
    return {"event": name, "decoder": event.decoder, **more}
