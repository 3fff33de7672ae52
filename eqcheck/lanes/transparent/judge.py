"""One case on the transparent target, decoded and judged."""

from __future__ import annotations

import time
from dataclasses import replace

from eqcheck.attribution.draft_causes import causes_of, explained
from eqcheck.attribution.ids import variants
from eqcheck.attribution.losses import all_losses
from eqcheck.attribution.reading import Reader
from eqcheck.attribution.state import with_stale_entries
from eqcheck.attribution.story import decode_of, story_of
from eqcheck.attribution.witnesses import second_opinion, shown_by
from eqcheck.case.record import Case
from eqcheck.contract.decoders import Generate
from eqcheck.contract.family import FAMILY
from eqcheck.decoding.harness import run
from eqcheck.decoding.run import Run
from eqcheck.explanation.records import Explanation
from eqcheck.hashlm.trace import TARGET
from eqcheck.lanes.transparent.coverage import exercised, traits
from eqcheck.oracle.check import judge
from eqcheck.result.outcome import Outcome


def luck_of(done: Run) -> tuple[str, str]:
    """The fingerprint of a wrong context behind which a real model is right all the same, and where; or nothing.

    A hash that sees anything else answers anything else, so there it is not looked for.
    """
    if done.outputs is None or not FAMILY[done.case.family].target:
        return "", ""
    unseen = Reader(done).unseen()
    if unseen is None or unseen.query is None or unseen.component == "unattributed":
        return "", ""
    query = unseen.query
    return unseen.fingerprint, f"call {query.call}, batch row {query.call_row}, column {query.column}"


def slots(done: Run) -> tuple[int, int]:
    """Return how many slots the target was handed in all its calls, and how many of them a query saw."""
    calls = done.trace.made(TARGET)
    handed = sum(len(call.visible) * call.visible.shape[2] for call in calls)
    return handed, sum(int(call.visible.any(axis=1).sum()) for call in calls)


def try_case(generate: Generate, case: Case, timeout: float | None, *, opinion: bool = False) -> Outcome:
    """Decode and judge one case; with ``opinion``, try by repair whether its explanation holds, and tell its story."""
    start = time.monotonic()
    done = run(generate, case, timeout)
    verdict = judge(done)
    explanation = verdict.explanation
    if case.before and explanation is not None:
        explanation = with_stale_entries(done, explanation)
    if opinion and explanation is not None:
        explanation = second_opinion(generate, done, explanation, timeout, variants(case))
    return Outcome(
        case,
        verdict.status,
        verdict.exact_match,
        verdict.prefix_match,
        frozenset() if done.declined else frozenset(exercised(done)),
        done.outputs,
        explanation,
        done.failure_text,
        tuple(all_losses(done).items()) if verdict else (),
        causes_of(done) if verdict else (),
        slow_of(generate, done, timeout) if verdict and opinion else None,
        declined=done.declined,
        tied=done.ties,
        luck=luck_of(done) if verdict else ("", ""),
        slots=slots(done) if verdict else (0, 0),
        traits=traits(case, done.truth),
        seconds=time.monotonic() - start,
        story=story_of(done, explanation) if opinion and explanation is not None else None,
    )


def slow_of(generate: Generate, done: Run, timeout: float | None, fingerprint: str = "") -> Explanation | None:
    """Explain a run that is right and lost draft tokens, if the case with other ids shows the same; else return None.

    The first cause is told, or the one with this ``fingerprint``.
    """
    explanation = explained(done, fingerprint)
    if explanation is None:
        return None
    agree = differ = passed = 0
    for case in variants(done.case):
        other = run(generate, case, timeout)
        causes = [cause.fingerprint for cause in causes_of(other)] if judge(other) else []
        agree += explanation.fingerprint in causes
        differ += bool(causes) and explanation.fingerprint not in causes
        passed += not causes and other.outputs is not None
    stable = shown_by(agree, differ, passed) == "stable"
    return replace(explanation, permuted=(agree, differ, passed)) if stable else None


def try_slow(
    generate: Generate, case: Case, timeout: float | None, *, opinion: bool = False, fingerprint: str = ""
) -> Outcome:
    """Decode one case that loses draft tokens by this cause, and explain that one, whatever else it loses."""
    done = run(generate, case, timeout)
    verdict = judge(done)
    return Outcome(case, verdict.status, slow=slow_of(generate, done, timeout, fingerprint) if verdict else None)


def try_calls(
    generate: Generate, case: Case, timeout: float | None, *, opinion: bool = False, explanation: Explanation | None
) -> Outcome:
    """Decode one case, and keep every call of the models as ``observed["calls"]``, with what they explain."""
    done = run(generate, case, timeout)
    return Outcome(case, "skipped", outputs=done.outputs, observed={"calls": decode_of(done, explanation)})
