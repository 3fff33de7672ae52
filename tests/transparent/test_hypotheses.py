"""Each hypothesis about a wrong token, and each rule that labels a column, decides a run that another would misread."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from eqcheck.catalogue import FAULTS
from eqcheck.core.case.record import Case
from eqcheck.transparent.attribution import labels, reading
from eqcheck.transparent.attribution.bookkeeping import WrongToken
from eqcheck.transparent.attribution.labels import RULES, labels_of
from eqcheck.transparent.attribution.reading import HYPOTHESES, Finding, Reader
from eqcheck.transparent.decoding import Run, run

CASES = Path(__file__).parents[1] / "golden" / "cases"
# A fault with a stored case of the golden net. `rounded` is that of a cache in 8 bits (`test_real_targets.py`),
# `fed-instead` that of an engine which feeds another token than the newest (`tests/transparent/test_feeding.py`).
DECIDED = {
    "row-ends": "T2-eos-in-prompt.uncached",
    "prompt-unfinished": "T29-first-piece-answered.paged",
    "other-node": "T30-bonus-of-last-node.forked_rows",
    "wrong-context": "X2-stale-row-index.realigned",
    "right-context": "T15-counts-matches.packed",
    "behind-rejected": "T20-one-more-after-rejection.realigned",
    "never-asked": "T22-verified-by-draft.uncached",
    "unknown": "P10-positions-not-restarted.packed",
}
LABELLED = {
    "before_first": "M11-pads-accumulate.expanded",
    "right_beyond_doubt": "P10-positions-not-restarted.packed",
    "next_token": "K10-joined-row-not-prefilled.continuous",
    "pad": "K10-joined-row-not-prefilled.continuous",
    "pads_inside": "M11-pads-accumulate.expanded",
}
T20 = Case(
    prompts=((124, 100, 127, 66, 77), (38, 23, 81, 45, 30)),
    max_new_tokens=7,
    num_draft_tokens=2,
    accepts=((2, 1, 2, 1, 0), (0, 0, 0)),
    eos_token_ids=(107,),
    pad_token_id=107,
    family="mask-order",
)


def runs(name: str) -> list[Run]:
    """The fault decoding its stored cases."""
    torch.set_num_threads(1)
    fault = next(fault for fault in FAULTS if fault.id == name)
    stored = json.loads((CASES / f"engine-{fault.build}.json").read_text())
    cases = [Case.from_dict(one["case"]) for key, one in stored.items() if key.split(" ")[0] == name]
    cases = [T20] if name.startswith("T20") else cases
    return [run(fault.decoder(), case) for case in cases]


@pytest.mark.parametrize("hypothesis", DECIDED)
def test_a_hypothesis_decides_a_run(hypothesis: str, monkeypatch: pytest.MonkeyPatch) -> None:
    said = []

    def noted(reader: Reader, asked: WrongToken) -> Finding | None:
        said.append(HYPOTHESES[hypothesis](reader, asked))
        return said[-1]

    monkeypatch.setattr(reading, "HYPOTHESES", {**HYPOTHESES, hypothesis: noted})
    explained = [Reader(one).explain() for one in runs(DECIDED[hypothesis])]
    kinds = {finding[1].fingerprint for finding in said if finding}
    assert kinds & {one.fingerprint for one in explained if one}


@pytest.mark.parametrize("rule", LABELLED)
def test_a_rule_labels_a_column_that_is_something_else_without_it(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    done = runs(LABELLED[rule])
    right = [labels_of(one, one.trace).of for one in done]
    monkeypatch.setattr(labels, "RULES", tuple(one for one in RULES if one.__name__ != rule))
    assert right != [labels_of(one, one.trace).of for one in done]


def test_every_hypothesis_and_rule_has_a_run() -> None:
    assert [*HYPOTHESES] == [name for name in HYPOTHESES if name in DECIDED or name in ("rounded", "fed-instead")]
    # No engine of the catalogue fills up a prefill: tests/transparent/test_true_words.py has one that does.
    assert [rule.__name__ for rule in RULES] == [*LABELLED, "fills_a_prompt", "draft_or_filler"]
