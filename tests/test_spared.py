"""What is said of values that were spared, and of options that make two tokens alike."""

from collections import Counter
from types import SimpleNamespace
from typing import Any

from eqcheck.abduction import _of_most_rows
from eqcheck.case.engine import EngineRow
from eqcheck.checkpoints.judge import truth
from eqcheck.contract.decoders import RowOptions
from eqcheck.lanes.transparent.conclusions import Places, lying
from eqcheck.report.build import _axes


def _by_k(**counts: int) -> Places:
    names = {"one": "1", "few": "2-4", "many": "5+"}
    places: Places = Counter({("num_draft_tokens", names[name]): count for name, count in counts.items()})
    places["family", "rotary"] = sum(counts.values())
    return places


def test_a_value_that_chance_may_spare_is_not_told_as_spared() -> None:
    assert lying(_by_k(few=22), _by_k(one=30, few=55, many=23)) == []  # each of the two might be spared by chance
    assert lying(_by_k(few=40, many=20), _by_k(one=60, few=20, many=20)) == [
        "only with K of 2 or more (60 of 100 cases), never with K of 1 (0 of 60)"
    ]


def test_no_bar_says_that_a_value_is_spared_which_the_smallest_case_has() -> None:
    drawn = {"rows": {"1": (0, 9), "2": (3, 5), "3+": (4, 6)}, "num_draft_tokens": {"1": (0, 8), "2-4": (7, 12)}}
    case: Any = SimpleNamespace(axes={"rows": "1", "num_draft_tokens": "2-4"})
    finding: Any = SimpleNamespace(case=case, minimised=True, axes=drawn)
    assert _axes(finding) == drawn | {"rows": {"2": (3, 5), "3+": (4, 6)}}
    finding.minimised = False
    assert _axes(finding) == drawn


def test_two_tokens_of_one_score_are_seen() -> None:
    alone, prompt = truth("full"), (5, 6, 7)
    plain = EngineRow(prompt, RowOptions(1))
    best, second = alone.scores(plain, ())[0].topk(2)[1].tolist()
    margin = float(alone.scores(plain, ())[0][best] - alone.scores(plain, ())[0][second])
    assert alone.decides(plain)
    assert not alone.decides(EngineRow(prompt, RowOptions(1, logit_bias=((second, margin),))))


def test_a_cause_that_begins_few_of_the_wrong_rows_is_none() -> None:
    evidence: Any = SimpleNamespace(first_wrong={0: 1, 1: 0, 2: 3}, wrong_rows=(0, 1, 2))
    for explained, most in (({(0, 1)}, False), ({(0, 1), (2, 4)}, False), ({(0, 1), (1, 0)}, True)):
        finding: Any = SimpleNamespace(explained=explained)
        assert _of_most_rows(evidence, finding) == most
