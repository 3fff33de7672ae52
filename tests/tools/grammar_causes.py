"""Each wrong use of a grammar is caught, and named as it is, in three builds; right builds are right.

``python -m grammar_causes [FAULT]`` prints a line for each build and fault, and ends with 1 if any name is false.
``python -m grammar_causes right CASES`` decodes so many cases with grammars by each right build.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import torch
from grammar_faults import BUILDS, CLAIMS, FAULTS, Checked, Free, engine
from grammar_unseen import UNSEEN

import eqcheck
from eqcheck.core.case.engine import EngineCase
from eqcheck.core.result.outcome import Outcome
from eqcheck.engines.checkpoints.row_judge import Judge
from eqcheck.engines.drawing import EngineCases
from eqcheck.engines.engine_outcome import judged
from eqcheck.engines.investigate import Investigation

JUDGE = Judge("float64")
MOST = 120  # cases until a fault is to be caught
SECONDS = 90.0  # for the cause


class Found(NamedTuple):
    """Cases until a row was wrong, the fingerprint, and the edit that explains it, if any does."""

    cases: int
    fingerprint: str = ""
    edit: str = ""


def with_grammars(seed: int) -> Iterator[EngineCase]:
    """Cases of which a row has a grammar."""
    cases = EngineCases(seed, CLAIMS, kinds=("full",)).cases()
    return (case for case in cases if any(row.options.grammar for row in case.rows))


def decoded(build: type[Free], case: EngineCase) -> Outcome:
    decoder = build()
    outputs = decoder("", "", case.request())
    return judged(JUDGE, case, {"outputs": outputs, "observed": decoder.observed, "told": decoder.told})


def shows(build: type[Free], name: str) -> bool:
    """Whether a fault can show: a draft that is allowed, and not the best, is the best but one of the target's here.

    Drafts that the grammar forbids are proposed by `Free` alone.
    """
    return (build, name) != (Checked, "free-correction") and (build is Free or name != "unseen-anew")


def found(build: type[Free], fault: type[Free], seed: int = 0) -> Found:
    """What an audit would find of a fault: the first case that is wrong, made small, and its cause."""
    faulty = engine(build, fault)
    for number, case in zip(range(1, MOST + 1), with_grammars(seed), strict=False):
        outcome = decoded(faulty, case)
        if outcome.failed:
            decoder = eqcheck.decoder(name="grammars", checkpoints=True, capabilities=CLAIMS)(faulty)
            asked = Investigation(decoder, lambda case: decoded(faulty, case), lambda outcome: True)
            finding = asked.finding(outcome, None, lambda: SECONDS)
            search = finding.explanation.search
            return Found(number, finding.fingerprint, search.edit if search else "")
    return Found(0)


def main(only: str = "", most: str = "") -> int:
    torch.set_num_threads(1)
    if only == "right":
        counts = Counter(
            (build.__name__, decoded(build, case).status)
            for build in BUILDS
            for _, case in zip(range(int(most)), with_grammars(7), strict=False)
        )
        print(dict(counts))
        return int(any(status != "equivalent" for _, status in counts))
    false = 0
    for name, (fault, edits) in (FAULTS | UNSEEN).items():
        for build in (build for build in BUILDS if only in name and shows(build, name)):
            cause = found(build, fault)
            said = cause.edit.partition(":")[0]
            verdict = "right" if said and said in edits.split(" or ") else "FALSE" if said else "not named"
            false += verdict == "FALSE" or not cause.cases
            print(
                f"{build.__name__} {name}: case {cause.cases}, {cause.fingerprint}, {cause.edit or '-'}: {verdict}",
                flush=True,
            )
    return int(false > 0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
