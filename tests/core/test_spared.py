"""What is said of options that make two tokens alike, and of causes of few rows."""

from types import SimpleNamespace
from typing import Any

from eqcheck.contract.decoders import RowOptions
from eqcheck.core.case.engine import EngineRow
from eqcheck.core.case.sampling import SampledCase
from eqcheck.engines.abduction import _of_most_rows
from eqcheck.engines.checkpoints.row_judge import truth
from eqcheck.report.build import _axes


def test_no_bar_says_that_a_value_is_spared_which_the_smallest_case_has() -> None:
    drawn = {"rows": {"1": (0, 9), "2": (3, 5), "3+": (4, 6)}, "num_draft_tokens": {"1": (0, 8), "2-4": (7, 12)}}
    case: Any = SimpleNamespace(axes={"rows": "1", "num_draft_tokens": "2-4"})
    finding: Any = SimpleNamespace(case=case, minimised=True, axes=drawn)
    assert _axes(finding) == drawn | {"rows": {"2": (3, 5), "3+": (4, 6)}}
    finding.minimised = False
    assert _axes(finding) == drawn


def test_a_sampled_case_has_no_bars() -> None:
    case = SampledCase(((5, 7),), (RowOptions(3, temperature=1.0),))
    finding: Any = SimpleNamespace(case=case, minimised=True, axes={})
    assert _axes(finding) == {}


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
