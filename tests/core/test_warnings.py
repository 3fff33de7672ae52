"""A warning fits 200 characters, whatever a decoder says, and is not cut for that where eqcheck alone speaks."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from eqcheck.audit.coverage_words import CHECKPOINT, TRANSPARENT
from eqcheck.contract import registry
from eqcheck.contract.decoders import CACHE_STATES, CAPABILITIES, FAMILIES, PADDING_SIDES, REQUIREMENTS
from eqcheck.contract.kinds import FINGERPRINTS, HEAD_LOSSES
from eqcheck.contract.options import ORDER
from eqcheck.core.explanation.notice import LIMIT
from eqcheck.core.explanation.records import Explanation
from eqcheck.core.result import declining, losses
from eqcheck.core.result.findings import Audit, Finding, Options
from eqcheck.core.result.outcome import DueBy, DuePlace, Loss, LossesOf, Outcome
from eqcheck.core.result.tally import SPEAKS, Alike, ServedCase, Tally
from eqcheck.engines import conclusions as of_checkpoints
from eqcheck.engines.checkpoints import dictation
from eqcheck.report.build import report_of
from eqcheck.sampling.betting.exclusion import Exclusion
from eqcheck.sampling.betting.wealth import Wealth
from eqcheck.sampling.drawing import DRAWN, DRAWN_OF_ENGINES
from eqcheck.sampling.judge import REGIMES, conclusions
from eqcheck.transparent.attribution.lost_drafts import all_warnings
from eqcheck.transparent.conclusions import luck_warnings
from eqcheck.transparent.coverage import vacuous

BIG = 9_999_999
LONG = "the engine says at length what it thinks of this request " * 20


def all_of(texts: Iterable[str]) -> list[str]:
    found = list(texts)
    assert found, "nothing is tested"
    assert all(len(text) <= LIMIT for text in found), max(found, key=len)
    return found


@pytest.mark.parametrize("lane", [TRANSPARENT, CHECKPOINT], ids=["transparent", "engine"])
def test_whatever_was_not_exercised(lane: object) -> None:
    words = list((TRANSPARENT if lane is TRANSPARENT else CHECKPOINT).counters.values())
    for count in range(1, len(words) + 1):
        all_of([f"VACUOUS: {declining.lacking(words[:count])}"])
    all_of(vacuous({}))
    all_of(vacuous({**dict.fromkeys(TRANSPARENT.counters, 1), "off_spine": 0}))


@pytest.mark.parametrize("name", HEAD_LOSSES)
def test_losses_of_heads_and_drafts(name: str) -> None:
    counts = {Loss("rounds", LossesOf.HEAD): BIG, Loss("allowed", LossesOf.HEAD): BIG}
    counts |= {Loss(name, LossesOf.HEAD): BIG // 2, Loss(name, LossesOf.HIT): BIG // 2}
    all_of(all_warnings(Counter(counts)))
    for kind in ("wrong-context", "altered", "lost-bonus", "asked-again", "lost"):
        for allowed in (BIG, BIG // 4):
            counts = {Loss("rounds"): BIG, Loss("ideal"): BIG // 3, Loss("allowed"): allowed, Loss(kind): BIG // 2}
            all_of(all_warnings(Counter(counts)))
    places = {DuePlace(DueBy.ROW, str(number)): (BIG, BIG) for number in range(128)}
    places[DuePlace(DueBy.BATCH, "128")] = (BIG, 2 * BIG)
    all_of(losses.warnings(places))


def test_what_decoders_decline_and_require() -> None:
    decoder = replace(
        registry.load("eqspec"),
        requires=tuple(REQUIREMENTS),
        capabilities=tuple(CAPABILITIES),
        seeds="none",
        option_order=ORDER,
        padding_sides=("left", "right"),
        cache_states=tuple(CACHE_STATES),
        families=FAMILIES,
        known=dict.fromkeys(FINGERPRINTS, "https://example.org"),
    )  # fmt: skip
    alike: Counter[Alike] = Counter()
    for family in FAMILIES:
        for side in PADDING_SIDES:
            for state in CACHE_STATES:
                axes = (("family", family), ("padding_side", side), ("cache_state", state))
                alike[Alike(True, family, "skipped", declined=f"{family} {LONG}", axes=axes)] = BIG
    alike[Alike(True, "rotary", "equivalent")] = 1
    raised = Counter({"stops": BIG, "to_cancel": BIG})
    tally = Tally(alike, coverage=raised, lucky=Counter(dict.fromkeys(FINGERPRINTS, BIG)))
    found = all_of(declining.warnings_of(decoder, tally))
    assert len(found) > len(FAMILIES)
    all_of(luck_warnings(Audit(decoder, Options(), counted=tally)))
    served = Counter(
        {ServedCase(kind, "model", status, LONG): BIG for kind in ("a", "b") for status in ("skipped", "crash/x")}
    )
    all_of(of_checkpoints.refused(Tally(served=served), "bfloat16"))


def outcome() -> Outcome:
    from eqcheck.contract.decoders import RowOptions
    from eqcheck.core.case.engine import EngineCase, EngineRow

    case = EngineCase((EngineRow((1,), RowOptions(4)),))
    return Outcome(case, "violation", explanation=Explanation("bookkeeping", "premature-stop", row=0))


def test_engines_that_show_little() -> None:
    decoder = replace(registry.load("vllm"), capabilities=(), seeds="none", dtype="bfloat16", kinds=("window",))
    doubtful = [Finding(outcome(), Explanation("bookkeeping", "premature-stop"), BIG, "inconclusive")]
    dictated = Counter(dict.fromkeys((dictation.ASKED, dictation.OTHERS, dictation.FEWER), BIG))
    coverage = Counter({"dictated": BIG, "harmless_context": BIG, "kv_blocks": BIG, "prefix_caching": BIG})
    for observed in (Counter[str](), Counter({SPEAKS: BIG})):
        alike = Counter({Alike(True, "rotary", "equivalent"): BIG})
        tally = Tally(alike, observed=observed, dictated=dictated, coverage=coverage)
        result = Audit(decoder, Options(), "engine", findings=doubtful, counted=tally, unsettled=BIG)
        of_checkpoints.conclusions(result)
        assert len(all_of(result.warnings)) > 5
    every = replace(decoder, capabilities=tuple(CAPABILITIES), kinds=("full",))
    result = Audit(every, Options(), "engine", counted=Tally(Counter({Alike(True, "rotary", "equivalent"): BIG})))
    of_checkpoints.conclusions(result)
    all_of(result.warnings)


@pytest.mark.parametrize("regimes", [DRAWN, DRAWN_OF_ENGINES], ids=["transparent", "engine"])
def test_samplers_of_which_little_is_known(regimes: dict[str, object]) -> None:
    decoder = replace(registry.load("eqspec"), lossless=LONG)
    tally = Tally(Counter({Alike(True, "rotary", "equivalent"): BIG}))
    result = Audit(decoder, Options(), "sampling", counted=tally, wealth=Wealth(), exclusion=Exclusion())
    result.facts[REGIMES] = list(regimes)
    conclusions(result)
    all_of(result.warnings)


def test_a_report_cuts_what_others_say_too_long(tmp_path: Path) -> None:
    result = Audit(registry.load("eqspec"), Options(), warnings=[LONG])
    (said,) = report_of(result, tmp_path).warnings
    assert len(said) <= LIMIT
    assert said.startswith(LONG[:100])


def strings(node: ast.AST) -> int:
    """How many characters of a text are eqcheck's own, in an expression."""
    return sum(len(one.value) for one in ast.walk(node) if isinstance(one, ast.Constant) and isinstance(one.value, str))


def warned() -> dict[str, ast.AST]:
    """Each expression that is appended or added to ``warnings``, or made a `Notice`, anywhere in the package."""
    found: dict[str, ast.AST] = {}
    root = Path(__file__).parents[2] / "eqcheck"

    def takes(node: ast.AST) -> bool:
        return "warnings" in (getattr(node, "id", ""), getattr(node, "attr", ""))

    for path in sorted(root.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            place = f"{path.relative_to(root)}:{getattr(node, 'lineno', 0)}"
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "append":
                if takes(node.func.value):
                    found[place] = node.args[0]
            elif isinstance(node, ast.AugAssign) and takes(node.target) and isinstance(node.value, ast.List):
                found |= {f"{place}.{number}": one for number, one in enumerate(node.value.elts)}
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Notice":
                found[place] = node.args[0]
    return found


def test_the_fixed_words_of_every_warning_leave_room_for_the_rest() -> None:
    found = warned()
    assert len(found) > 40
    long = {place: strings(node) for place, node in found.items() if strings(node) > LIMIT - 10}
    assert not long
