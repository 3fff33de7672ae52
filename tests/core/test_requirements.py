"""What a decoder requires holds of every request that it sees, in each lane: drawn, stored, derived or shrunk."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import replace
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import eqcheck
from eqcheck import cli
from eqcheck.audit.coverage_words import CHECKPOINT, TRANSPARENT
from eqcheck.audit.lanes import new_lane
from eqcheck.audit.loop import Campaign, audit
from eqcheck.audit.workers.worker import set_up
from eqcheck.catalogue import known_good
from eqcheck.contract import registry
from eqcheck.contract.decoders import Decoder, RowOptions, decoder
from eqcheck.contract.errors import NOTHING, Unsupported, UsageError
from eqcheck.contract.requirements import REQUIREMENTS, barred, refused, told, unmet
from eqcheck.core.case.engine import EngineCase, EngineRow
from eqcheck.core.case.record import Case
from eqcheck.core.case.sampling import SampledCase, SampledEngineCase
from eqcheck.core.result.declining import lacking
from eqcheck.core.result.findings import Audit, Options
from eqcheck.core.result.tally import Alike, Tally
from eqcheck.core.store.casefile import StoredViolation, write_whole
from eqcheck.core.store.corpus import Corpus
from eqcheck.engines.conclusions import _warnings
from eqcheck.engines.drawing import alike
from eqcheck.transparent.coverage import ESSENTIAL, vacuous
from eqcheck.transparent.decoding import run
from eqcheck.transparent.lane import TransparentLane
from eqcheck.transparent.memory import probe_case

pytest_plugins = ["pytester"]

BARRED = ("id-0-not-in-prompt", "id-127-not-in-prompt", "id-5-not-in-prompt")
NEEDS: dict[str, tuple[str, ...]] = {
    **{name: (name,) for name in REQUIREMENTS},
    "ids": BARRED,
    "all": (*REQUIREMENTS, *BARRED),
}
# A decoder of each need, right and wrong: it fails loudly where a request does not meet what it requires.
DECODERS = """
import eqcheck
from eqcheck.contract import registry
from eqcheck.contract.requirements import unmet

right = registry.load("eqspec")
CAN = right.capabilities

@eqcheck.decoder(name="right", requires=NEEDS, capabilities=CAN, padding_sides=("left", "right"))
def strict(target, draft, request):
    if failing := unmet(request, NEEDS):
        raise RuntimeError(f"a request of {len(request.prompts)} rows does not meet {failing}")
    return right(target, draft, request)

@eqcheck.decoder(name="wrong", requires=NEEDS, capabilities=CAN, padding_sides=("left", "right"))
def wrong(target, draft, request):
    return [[*row[:-1], (row[-1] + 1) % 64] if len(row) > 2 else row for row in strict.function(target, draft, request)]
"""
LANES = {
    "transparent": Options(cases=40),
    "real": Options(cases=6, families=("rotary@llama",)),
    "engine": Options(cases=12, python=sys.executable),
    "sampling": Options(cases=12),
    "engine-sampling": Options(cases=8, python=sys.executable),
}


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def strict(folder: Path, needs: tuple[str, ...], name: str = "strict") -> Decoder:
    path = folder / "mine.py"
    path.write_text(DECODERS.replace("NEEDS", repr(needs)))
    return registry.load(f"{path}:{name}")


def lane_of(name: str, found: Decoder, **options: Any) -> Any:
    return new_lane("transparent" if name == "real" else name, found, replace(LANES[name], **options))


def audited(lane: Any) -> Audit:
    Campaign(lane, lambda event: None).run()
    result: Audit = lane.result
    return result


@pytest.mark.parametrize("need", NEEDS)
@pytest.mark.parametrize("lane", LANES)
@pytest.mark.tiers(quick=5, rest=14)
def test_every_lane_draws_what_is_required(lane: str, need: str, folder: Path) -> None:
    needs = NEEDS[need]
    drawn = list(islice(lane_of(lane, strict(folder, needs)).cases(), 30))
    assert [unmet(case, needs) for case in drawn] == [[]] * 30
    lengths = [len(case.request().prompts) for case in drawn]
    assert max(lengths) > 1 or "batch-1" in needs


@pytest.mark.parametrize("lane", LANES)
@pytest.mark.tiers(quick=3, rest=2)
def test_without_a_need_other_cases_are_drawn(lane: str, folder: Path) -> None:
    drawn = list(islice(lane_of(lane, strict(folder, ())).cases(), 100))
    sampled = {"one-temperature", "one-sampling", "sampled-n"}  # the last is of decoders that take several answers
    sampled |= {"same-weights"} if lane != "transparent" else set()  # there each case is one request
    rarely = sampled if "sampling" not in lane else {"min-limit-2", "one-eos", "sampled-n", "same-weights"}
    assert {name for name in REQUIREMENTS if not any(unmet(case, (name,)) for case in drawn)} <= rarely


def lanes_and(*needs: str) -> list[tuple[str, str]]:
    """Each lane with each need; a lane whose decoder runs in a Python of its own, with the last one."""
    return [(lane, need) for lane in LANES for need in (needs[-1:] if "engine" in lane else needs)]


@pytest.mark.parametrize(("lane", "need"), lanes_and("no-eos", "equal-lengths", "all"))
@pytest.mark.tiers(quick=1, rest=3)
def test_a_right_decoder_sees_nothing_else(lane: str, need: str, folder: Path) -> None:
    result = audited(lane_of(lane, strict(folder, NEEDS[need])))
    assert result.findings == []
    assert result.tally.run == LANES[lane].cases
    assert result.tally.declined == {}


@pytest.mark.parametrize(
    ("need", "never"),
    [
        ("no-eos", {"eos_inside_block"}),
        ("equal-lengths", {"ragged_prompts"}),
        ("batch-1", {"several_rows", "ragged_prompts", "batched_call", "ragged_round"}),
        ("one-eos", set()),
    ],
)
def test_no_verdict_is_vacuous_for_lack_of_what_is_required_to_be_away(need: str, never: set[str]) -> None:
    """Neither of what no case can show, nor silent on what some case could."""
    one_row = replace(known_good()["one_row"], requires=(need,), cache_states=("empty",))
    begins = "VACUOUS: no case had: "
    tally = Tally(Counter({Alike(True, "rotary", "equivalent"): 3}))
    engine: Any = SimpleNamespace(decoder=one_row, tally=tally, coverage={}, doubtful=[], options=Options())
    for warnings, essential, words in (
        (_warnings(engine), ("several_rows", "ragged_prompts"), CHECKPOINT.counters),
        (vacuous({}, (need,)), ESSENTIAL, TRANSPARENT.counters),
    ):
        missing = [words[name] for name in essential if name not in never]
        said = [one for one in warnings if one.startswith(begins)]
        assert said == ([f"VACUOUS: {lacking(missing)}"] if missing else [])
    result = audited(TransparentLane(one_row, Options(cases=1, isolate=False)))
    said = [one for one in result.warnings if one.startswith(begins)]
    assert not any(TRANSPARENT.counters[name] in one for name in never for one in said)
    assert vacuous(dict.fromkeys({*ESSENTIAL} - never, 1), (need,)) == []


@pytest.mark.parametrize(("lane", "need"), lanes_and("equal-lengths", "ids", "no-eos"))
@pytest.mark.tiers(quick=0, rest=1)
def test_a_wrong_decoder_is_shown_within_what_it_requires(
    lane: str, need: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Made small, decoded with other ids or other prompts, repaired, and stored: all within what is required."""
    for limit in ("MINIMISE_S", "EXPLAIN_S"):  # that something is looked for is enough
        monkeypatch.setattr(f"eqcheck.engines.investigate.{limit}", 2.0)
    needs = NEEDS[need]
    few = {"real": 6, "engine": 3, "engine-sampling": 4}.get(lane, 12)
    result = audited(lane_of(lane, strict(folder, needs, "wrong"), corpus=folder / ".eqcheck", cases=few))
    assert result.findings
    assert not [one for one in result.findings if one.explanation.component == "crash"]
    assert all(unmet(finding.case, needs) == [] for finding in result.findings)


@pytest.mark.parametrize("lane", LANES)
@pytest.mark.tiers(quick=1, rest=2)
def test_stored_cases_are_asked_only_within_what_is_required(lane: str, folder: Path) -> None:
    decoder = strict(folder, ("equal-lengths", "no-eos"))
    of_engine = EngineRow((1, 2), RowOptions(4, temperature=0.7)), EngineRow((3,), RowOptions(4))
    stored: dict[str, Any] = {
        "transparent": Case(prompts=((1, 2), (3,))),
        "real": Case(prompts=((1, 2), (3,)), family="rotary@llama"),
        "engine": EngineCase((EngineRow((1, 2), RowOptions(4)), EngineRow((3,), RowOptions(4)))),
        "sampling": SampledCase(((1, 2), (3,)), (RowOptions(4, temperature=0.7), RowOptions(4))),
        "engine-sampling": SampledEngineCase(of_engine),
    }
    corpus = Corpus(folder / ".eqcheck", decoder.name)
    kept = StoredViolation(stored[lane], decoder.spec, "bookkeeping/past-eos")
    corpus.store(kept, claimed=True)
    result = audited(lane_of(lane, decoder, corpus=folder / ".eqcheck", cases=2))
    assert (result.replayed, result.findings) == ([], [])
    (folder / "case.json").write_text(kept.to_json())
    words = ["replay", "case.json", "--adapter", decoder.spec]
    python = ["--python", sys.executable] if "engine" in lane else []
    assert cli.main([*words, *python]) == NOTHING


def test_a_request_before_the_last_has_to_meet_it_too(folder: Path) -> None:
    case = Case(prompts=((1,),), before=(Case(prompts=((1, 2), (3,))),))
    assert refused(case, ("equal-lengths",)) == "it requires equal-lengths"
    write_whole(folder / "case.json", StoredViolation(case, None, "state/leaks-from-earlier-request").to_json())
    decoder = strict(folder, ("equal-lengths",))
    assert cli.main(["replay", "case.json", "--adapter", decoder.spec]) == NOTHING


@pytest.mark.parametrize("need", NEEDS)
@pytest.mark.tiers(quick=1, rest=3)
def test_the_other_places_that_make_requests(need: str) -> None:
    needs = NEEDS[need]
    assert unmet(probe_case("rotary", "left", needs), needs) == []
    case = EngineCase(tuple(EngineRow((n, 0, 5), RowOptions(8, (9, 10, n))) for n in range(4)))
    assert [unmet(alike(case, number, needs), needs) for number in range(12)] == [[]] * 12

    from hypothesis import HealthCheck, given, settings

    seen = []

    @settings(max_examples=20, database=None, suppress_health_check=list(HealthCheck))
    @given(eqcheck.strategies.cases(requires=needs))
    def drawn(case: Case) -> None:
        seen.append(unmet(case, needs))

    drawn()
    assert seen
    assert not any(seen)


@pytest.mark.long
def test_the_laws_of_pytest(folder: Path, pytester: pytest.Pytester) -> None:
    spec = strict(folder, NEEDS["all"]).spec
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", f"--adapter={spec}", "--eqcheck-cases=3")
    outcomes = result.parseoutcomes()
    assert not {"failed", "error", "errors"} & set(outcomes)
    assert outcomes["passed"] > 6


def test_what_does_not_meet_it_is_declined() -> None:
    @decoder(name="mine", requires=("batch-1",))
    def mine(target: Any, draft: Any, request: Any) -> Any:
        raise RuntimeError("decoded")

    with set_up(mine, []) as generate:
        assert run(generate, Case(prompts=((1, 2), (3,)))).declined == "it requires batch-1"
        assert run(generate, Case(prompts=((1, 2),))).failure is not None


def published(target: Any, draft: Any, request: Any) -> list[list[int]]:
    """A sampler as papers print it: one row, one temperature, no EOS, and a prompt without the id that it pads with."""
    (prompt,), temperature = request.prompts, request.rows[0].temperature or 1.0
    tokens = torch.tensor([prompt])
    while len(tokens[0]) < len(prompt) + request.max_new_tokens:
        fed, laws = tokens, []
        for _ in range(request.num_draft_tokens):
            laws.append((draft(input_ids=fed, use_cache=False).logits[0, -1].double() / temperature).softmax(-1))
            fed = torch.cat([fed, torch.multinomial(laws[-1], 1)[None]], 1)
        scores = target(input_ids=fed, use_cache=False).logits[0, tokens.shape[1] - 1 :].double()
        p = (scores / temperature).softmax(-1)
        for column, q in enumerate(laws):
            token = int(fed[0, tokens.shape[1]])
            if torch.rand((), dtype=torch.float64) * q[token] < p[column, token]:
                tokens = fed[:, : tokens.shape[1] + 1]
                continue
            rest = (p[column] - q).clamp(min=0)
            tokens = torch.cat([tokens, torch.multinomial(rest, 1)[None]], 1)
            break
        else:
            tokens = torch.cat([tokens, torch.multinomial(p[-1], 1)[None]], 1)
    return [tokens[0, len(prompt) :][: request.max_new_tokens].tolist()]


@pytest.mark.rest
def test_a_published_sampler_that_stops_at_no_eos_is_right() -> None:
    needs = ("batch-1", "no-eos")
    mine = decoder(name="published", requires=needs, capabilities=("temperature",))(published)
    lane = lane_of("sampling", mine, cases=60)
    result = audited(lane)
    assert (result.verdict, result.findings) == ("equivalent", [])
    assert (
        any(row.eos_token_ids for case in islice(lane_of("sampling", mine).cases(), 60) for row in case.rows) is False
    )
    unsaid = decoder(name="published", requires=("batch-1",), capabilities=("temperature",))(published)
    assert audited(lane_of("sampling", unsaid, cases=60)).verdict == "violation"


@pytest.mark.rest
def test_it_is_said_of_both_lanes(folder: Path) -> None:
    said = audit(strict(folder, ("no-eos", "id-5-not-in-prompt")), Options(cases=4)).warnings
    words = "there is no EOS id; the id 5 occurs in no prompt"
    assert [one for one in said if one.startswith("requires=")] == [
        f"requires= left out other cases; in those drawn: {words}"
    ]


@pytest.mark.parametrize("name", ["id-x-not-in-prompt", "id-007-not-in-prompt", "id-N-not-in-prompt", "one-temprature"])
def test_a_name_that_does_not_exist(name: str) -> None:
    with pytest.raises(UsageError, match=f"requires: expected some of .*, or id-N-not-in-prompt .*got '{name}'"):
        decoder(requires=(name,))
    assert told(name) == ""


def test_an_id_has_to_be_left() -> None:
    every = tuple(f"id-{token}-not-in-prompt" for token in range(128))
    assert len(barred(every)) == 128
    with pytest.raises(UsageError, match="expected an id that may stand in a prompt"):
        audit(decoder(name="mine", requires=every)(published), Options(cases=1))


def test_one_temperature_and_one_sampling_are_told_apart() -> None:
    options = RowOptions(4, temperature=0.7), RowOptions(4, temperature=0.7, top_k=3)
    case = SampledCase(((1,), (2,)), options)
    assert unmet(case, tuple(REQUIREMENTS)) == ["batch-1", "one-sampling"]
    other = replace(case, rows=(options[0], RowOptions(4)))
    assert unmet(other, ("one-temperature", "one-sampling")) == ["one-temperature", "one-sampling"]


def test_a_declined_request_has_a_reason() -> None:
    made = decoder(name="mine", requires=("batch-1",))(published)
    with pytest.raises(Unsupported, match="it requires batch-1"):
        eqcheck.assert_equivalent(made, Case(prompts=((1,), (2,))))
