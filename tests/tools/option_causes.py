"""Each wrong use of an option has its sentence, in two builds, on several checkpoints; right builds have none.

``python -m option_causes [KIND] [FAULT]`` prints a line for each build and cause, and ends with 1 if any is not named.
"""

from __future__ import annotations

import random
import sys
from typing import Any

import torch
from option_faults import FAULTS, Rounds, Together

from eqcheck.contract.decoders import RowOptions
from eqcheck.core.case.engine import EngineCase, EngineRow
from eqcheck.engines.abduction import Abduced, Evidence, abduce_options
from eqcheck.engines.checkpoints.continuations import row_with
from eqcheck.engines.checkpoints.folders import checkpoint
from eqcheck.engines.checkpoints.row_judge import Judge, truth
from eqcheck.engines.drawing import alike
from eqcheck.engines.option_effects import CHANGING

# The fault, the option, and the edit that says it. Where a draft applies options, what it proposes is right for the
# target with them, so that options which only the bonus has are missed at corrections alone.
CAUSES = [
    ("frequency-ignored", "frequency-penalty", "option-ignored"),
    ("stale", "frequency-penalty", "option-stale"),
    ("row-start-alone", "allowed-ids", "option-for-row-start-alone"),
    ("stale", "bad-words", "option-stale"),
    ("ngrams-ignored", "no-repeat-ngram-size", "option-ignored"),
    ("stale", "no-repeat-ngram-size", "option-stale"),
    ("over-rejected", "frequency-penalty", "option-over-rejected"),
    ("over-first-rejected", "frequency-penalty", "option-over-first-rejected"),
    ("over-proposed", "frequency-penalty", "option-over-proposed"),
    ("once-a-round", "frequency-penalty", "option-once-a-round"),
    ("bonus-without", "logit-bias", "option-missing-at-bonus"),
    ("first-alone", "allowed-ids", "option-for-first-alone"),
    ("row-start-alone", "logit-bias", "option-for-row-start-alone"),
    ("first-without", "allowed-ids", "option-missing-at-first"),
    ("drafts-without", "allowed-ids", "option-at-bonus-alone or option-missing-at-correction"),
    ("times-tokens", "logit-bias", "option-times-tokens"),
    ("by-tokens", "frequency-penalty", "option-by-tokens"),
    ("a-round-late", "frequency-penalty", "option-stale-by-a-round"),
    ("prompt-counted", "presence-penalty", "option-over-prompt"),
    ("next-row", "allowed-ids", "option-of-neighbour"),
    ("over-drafts", "frequency-penalty", "option-over-drafts"),
    ("prompt-counted-minimum", "min-new-tokens", "option-over-prompt"),
    ("ids-off-by-one", "logit-bias", "option-of-other-ids"),
    ("next-bias", "logit-bias", "option-of-neighbour"),
    ("next-of-going", "allowed-ids", "option-of-others"),
]
BUILDS = (Rounds, Together)
OTHERS = 12  # cases alike


def cases(kind: str, option: str, rows: int = 1) -> list[EngineCase]:
    """One case with the option in most rows, and others like it."""
    rng, alone = random.Random(5), truth(kind)
    asked = []
    for number in range(rows):
        prompt = (7, 200, 9, 30) if not number else tuple(rng.randrange(256) for _ in range(6))
        row = EngineRow(prompt, RowOptions(30 - 8 * number))
        if option in CHANGING:
            row = CHANGING[option](rng, row, alone.row(row))
        elif option == "min-new-tokens":
            row = row_with(row, eos_token_ids=tuple(alone.row(row)[5:8]), min_new_tokens=20)
        else:
            row = row_with(row, **{option.replace("-", "_"): 2.03})
        asked.append(row)
    case = EngineCase(tuple(asked), num_draft_tokens=4, checkpoint=kind)
    return [case, *(alike(case, number) for number in range(OTHERS))]


def cause(build: type[Rounds], kind: str, fault: str, option: str) -> Abduced | None:
    """What explains the rows that an engine with the fault makes wrong."""
    faulty: dict[str, Any] = {"kind": kind, "fault": staticmethod(FAULTS[fault]) if fault else None}
    engine, judge = type(build.__name__, (build,), faulty)(), Judge("float64")
    several = 3 if "next" in fault else 1
    decoded = [(case, engine("", "", case.request())) for case in cases(kind, option, several)]
    decoded.sort(key=lambda one: all(row.first is None for row in judge.rows(*one)))
    built = checkpoint(kind).built
    assert built is not None
    target, draft = (one.function for one in built)
    return abduce_options([Evidence(target, draft, *one) for one in decoded])


def main(kind: str = "full", only: str = "") -> int:
    torch.set_num_threads(1)
    failed, right = 0, dict[tuple[str, str], Abduced | None]()
    for fault, option, edit in [one for one in CAUSES if only in one[0]]:
        for build in BUILDS:
            found, key = cause(build, kind, fault, option), (build.__name__, option)
            right[key] = right[key] if key in right else cause(build, kind, "", option)
            named = found.search.edit if found else ""
            failed += named.partition(":")[0] not in edit.split(" or ") or right[key] is not None
            print(
                f"{kind} {build.__name__} {fault} {option}: {named or 'not named'}",
                "" if right[key] is None else "FALSE",
            )
            sys.stdout.flush()
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
