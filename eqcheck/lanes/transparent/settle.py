"""Turn a failing case into a finding: does the answer repeat, what is the smallest case, and does its cause hold?"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace

from eqcheck.attribution.ids import redrawn, variants
from eqcheck.attribution.witnesses import mechanism
from eqcheck.case.record import Case
from eqcheck.lanes.transparent.search import Source
from eqcheck.lanes.transparent.sequences import RERUNS, SequenceSearch
from eqcheck.result.outcome import HANG, Outcome
from eqcheck.workers.worker import Workers

MINIMISE_S = 60.0  # for one fingerprint
SLOW_TRIES, SLOW_S = 200, 20.0  # for one cause of lost draft tokens: what is slow is right
_HANG_AGAIN_S = 1.0
_LATER = 40  # cases that are tried for state behind a fingerprint
_ALONE_TRIES = 150  # where each takes a process of its own


def confirms(
    outcome: Outcome, runner: Workers, sequences: SequenceSearch | None, slowest: float, seconds: float
) -> Outcome | None:
    """The outcome if the case fails time and again, alone or (then it becomes a sequence) after earlier requests.

    A decoder that hung has to hang again within the whole limit: some are slow once, when they compile. After that it
    is given up sooner; ``slowest`` is the longest that a case took which ended.
    """
    if outcome.fingerprint == HANG and not runner.try_case(outcome.case).repeats(outcome):
        return None
    soon = max(_HANG_AGAIN_S, 20 * slowest) if outcome.fingerprint == HANG else None
    if sequences is not None:
        return sequences.examine(outcome, soon, seconds)
    if outcome.case.before:  # no process tells whether it needs them: what fails without them is no fault of state
        outcome = runner.try_case(outcome.case.alone, soon)
        if outcome.explanation is None:
            return None
    repeats = all(runner.try_case(outcome.case, soon).repeats(outcome) for _ in range(RERUNS))
    return outcome if repeats else None


def of_state(others: list[Outcome], runner: Workers, sequences: SequenceSearch, seconds: float) -> Outcome | None:
    """A sequence among the other cases of a fingerprint whose first case fails alone: one name, two faults."""
    if sequences.proven:
        return None
    runner.renew()
    for outcome in others[:_LATER]:
        if outcome.case.before:
            if runner.renew() and runner.try_case(outcome.case.alone).explanation is None:
                return sequences.examine(outcome, None, seconds)
            continue
        after_others, after_itself = runner.try_case(outcome.case), runner.try_case(outcome.case)
        if after_others.explanation is None or after_itself.explanation is None:
            found = sequences.examine(outcome, None, seconds)
            return found if found and found.case.before else None
    return None


def confirmed(outcome: Outcome, runner: Workers) -> Outcome:
    """The outcome with a second opinion: `unattributed`, with what each witness says, where they prove no cause.

    Where it rests on a coincidence of ids, and most cases without equal ids have one cause, one of them stands for it.
    """
    if outcome.fingerprint == HANG or outcome.case.before:
        return outcome
    runner.renew()
    again = runner.try_case(outcome.case, opinion=True)
    if again.outputs != outcome.outputs:
        return outcome
    if again.explanation and again.explanation.component == "unattributed" and again.explanation.permuted[1]:
        others = [
            runner.try_case(case, opinion=True) for case in (*variants(outcome.case)[3:], redrawn(outcome.case, 6))
        ]
        proved = [one for one in others if one.explanation and one.explanation.component != "unattributed"]
        for fingerprint, count in Counter(one.fingerprint for one in proved).items():
            if 4 * count >= 3 * len(others):
                return next(one for one in proved if one.fingerprint == fingerprint)
    return again


def minimise(
    outcome: Outcome, source: Source, runner: Workers, families: Collection[str], seconds: float
) -> Outcome | None:
    """The smallest case that fails in the same way, within ``families``; None when it does not fail a second time.

    The same way is more than the fingerprint: `eqcheck.attribution.witnesses.mechanism`. A case that hangs is left
    alone: every try would take the whole time limit.
    """
    fingerprint, explanation = outcome.fingerprint, outcome.explanation
    if fingerprint == HANG or explanation is None:
        return outcome
    cause = mechanism(explanation)

    def fails(case: Case) -> bool:
        if case.family not in families:
            return False
        found = runner.try_case(case).explanation
        return found is not None and mechanism(found) == cause

    def fails_alone(case: Case) -> bool:
        return runner.renew() and fails(case)

    case, end = outcome.case, time.monotonic() + min(seconds, MINIMISE_S)
    runner.renew()
    smallest = source.minimise(case, fails, seconds=end - time.monotonic())
    hindered = not fails(smallest)  # by what was decoded before it
    runner.renew()
    last = runner.try_case(smallest)
    if hindered or last.fingerprint != fingerprint:
        if not runner.renew():
            return None
        smallest = source.minimise(case, fails_alone, tries=_ALONE_TRIES, seconds=max(1.0, end - time.monotonic()))
        runner.renew()
        last = runner.try_case(smallest)
    return replace(last, minimal=True) if last.fingerprint == fingerprint else None


def smallest_slow(
    outcomes: Sequence[Outcome], fingerprint: str, source: Source, runner: Workers, seconds: float
) -> tuple[Case, bool]:
    """The smallest case found that loses draft tokens by a cause, and whether there was time to make it small.

    Where a case of these ``outcomes`` loses by this cause first, the smallest one does so, too.
    """

    def loses(outcome: Outcome, first: bool) -> bool:
        names = [cause.fingerprint for cause in outcome.lost if not cause.window]
        return not outcome.failed and fingerprint in (names[:1] if first else names)

    first = any(loses(outcome, True) for outcome in outcomes)
    losing = [outcome for outcome in outcomes if loses(outcome, first)]
    chosen = min(losing, key=lambda outcome: sum(map(len, outcome.case.prompts)))
    if seconds <= 0:
        return chosen.case, False
    runner.renew()
    case = source.minimise(
        chosen.case,
        lambda case: case.family == chosen.case.family and loses(runner.try_case(case), first),
        tries=SLOW_TRIES,
        seconds=min(seconds, SLOW_S),
    )
    return case, True
