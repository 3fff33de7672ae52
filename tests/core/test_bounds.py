"""`--cases` bounds what all lanes draw together, each claim has its turn, and a verdict names what it did not test."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from eqcheck.audit import shards
from eqcheck.audit.lane import shares, total_for
from eqcheck.audit.lanes import LANES, lanes_of
from eqcheck.audit.loop import audit
from eqcheck.cli import main
from eqcheck.contract import registry
from eqcheck.contract.decoders import CACHE_STATES, CAPABILITIES, FAMILIES, Decoder
from eqcheck.contract.errors import EQUIVALENT, INCONCLUSIVE
from eqcheck.contract.profiles import Bounds, profile
from eqcheck.core.explanation.notice import LIMIT, kind_of
from eqcheck.core.result.claims import Claim, Unreached, claims_in, sentence
from eqcheck.core.result.findings import Audit, Options
from eqcheck.report.build import report_of
from eqcheck.report.content import Content
from eqcheck.transparent.search import Source

HEAD = """
import eqcheck, pathlib, torch
ASKED = pathlib.Path(__file__).with_name("asked.txt")

def asked(request):
    rows = [(row.max_new_tokens, row.temperature) for row in request.rows]
    with ASKED.open("a") as file:
        file.write(f"{request.prompts} {rows} {request.num_draft_tokens} {request.drafting} {request.pad_token_id}\\n")
"""
CALLED = (
    HEAD
    + """
def row(target, prompt, options):
    ids = list(prompt)
    for _ in range(options.max_new_tokens):
        scores = target(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1].double()
        t = options.temperature
        ids.append(int(torch.multinomial(torch.softmax(scores / t, -1), 1)) if t else int(scores.argmax()))
        if ids[-1] in options.eos_token_ids:
            break
    return ids[len(prompt):]

@eqcheck.decoder(name="counting", capabilities=CAPS)
def decode(target, draft, request):
    asked(request)
    return [row(target, prompt, options) for prompt, options in zip(request.prompts, request.rows)]
"""
)
ENGINE = (
    HEAD
    + """
from eqcheck.core.case.engine import EngineRow
from eqcheck.engines.checkpoints.row_judge import truth

KINDS = ("full", "window", "qwen3", "mla", "moe")

@eqcheck.decoder(name="engine", checkpoints=True, dtype="bfloat16", kinds=KINDS, capabilities=CAPS)
class Engine:
    def __call__(self, target, draft, request):
        asked(request)
        kind = next(kind for kind in KINDS if f"{kind}-" in target)
        rows = zip(request.prompts, request.rows)
        return [truth(kind).row(EngineRow(tuple(prompt), options)) for prompt, options in rows]
"""
)


def made(folder: Path, code: str, *capabilities: str) -> Decoder:
    (folder / "counting.py").write_text(code.replace("CAPS", repr(capabilities)))
    return registry.load(str(folder / "counting.py"))


def decoded(folder: Path) -> int:
    """How many cases the decoder itself was handed; some of sampled rows it is handed again, as a control."""
    return len(set((folder / "asked.txt").read_text().splitlines()))


@pytest.mark.parametrize(
    "capabilities", [(), ("temperature",), ("row-limits",), ("temperature", "row-limits")], ids="+".join
)
@pytest.mark.parametrize("cases", [3, 24])
def test_the_decoder_is_handed_no_more_cases_than_were_asked_for(
    tmp_path: Path, capabilities: tuple[str, ...], cases: int
) -> None:
    result = audit(made(tmp_path, CALLED, *capabilities), Options(cases=cases))
    assert not result.violations
    assert decoded(tmp_path) == result.tally.run == cases
    assert report_of(result, tmp_path).cases.run == cases


def test_nor_is_an_engine_on_all_its_checkpoints(tmp_path: Path) -> None:
    result = audit(made(tmp_path, ENGINE, "row-limits", "row-eos"), Options(cases=13, python=sys.executable))
    assert decoded(tmp_path) == result.tally.run == 13
    assert (result.verdict, result.unreached) == ("equivalent", [])


def test_nor_do_shards_draw_more(tmp_path: Path) -> None:
    decoder = made(tmp_path, CALLED, "temperature")
    parts = [shards.run(decoder, Options(), number, cases=6) for number in range(2)]
    assert [part.drawn for part in parts] == [6, 6]
    merged = shards.merged(decoder, Options(cases=12), parts)
    assert decoded(tmp_path) == merged.tally.run == 12
    assert merged.verdict == "equivalent"


@pytest.mark.parametrize("cases", [1, 2, 3, 10, 60, 5000])
@pytest.mark.parametrize(
    "lanes",
    [["transparent"], ["transparent", "sampling", "engine"], ["engine", "engine-sampling"]],
    ids=len,
)
def test_lanes_share_all_cases_and_the_first_has_the_most(cases: int, lanes: Sequence[str]) -> None:
    counts = shares(cases, lanes)
    assert sum(counts) == cases
    assert counts[0] == max(counts) > 0
    assert min(counts) > 0 or cases < len(lanes)
    for lane, count in zip(lanes, counts, strict=True):
        assert set(lanes) <= set(LANES)
        assert count == 0 or shares(total_for(lane, count, lanes), lanes)[lanes.index(lane)] >= count


def few(folder: Path, cases: int, **options: Any) -> Audit:
    decoder = made(folder, ENGINE, "row-limits", "token-budget", "ngram")
    return audit(decoder, replace(Options(cases=cases, python=sys.executable), **options))


def test_a_verdict_on_one_of_five_checkpoints_is_inconclusive_and_says_how_many_cases_test_all(tmp_path: Path) -> None:
    result = few(tmp_path, 2)
    assert (result.verdict, result.tally.run) == ("inconclusive", 2)
    missed = {one.claim.name: one.cases for one in result.unreached if one.claim.what == "checkpoint"}
    assert missed == {"window": 3, "qwen3": 5, "mla": 7, "moe": 9}
    (said,) = [warning for warning in result.warnings if kind_of(warning) == "INCONCLUSIVE"]
    assert "window, qwen3, mla, moe" in said
    assert said.endswith("use --cases 9")
    assert few(tmp_path, 9).verdict == "equivalent"


def test_it_is_inconclusive_whatever_ended_the_audit_too_soon(tmp_path: Path) -> None:
    result = few(tmp_path, 9)
    assert result.verdict == "equivalent"
    result.options = replace(result.options, cases=None, budget=100.0)
    result.unreached = [Unreached(Claim("checkpoint", "moe"), 9)]
    assert result.verdict == "inconclusive"
    result.unreached = [Unreached(Claim("checkpoint", "moe"), None)]
    assert result.verdict == "equivalent"


def test_the_command_exits_2_and_the_report_has_the_claims(tmp_path: Path) -> None:
    spec = made(tmp_path, ENGINE).spec
    words = ["audit", spec, "--python", sys.executable, "--no-corpus", "--quiet", "--out", str(tmp_path / "out")]
    assert main([*words, "--cases", "3"]) == INCONCLUSIVE
    report = json.loads((tmp_path / "out" / "engine" / "report.json").read_text())
    assert report["verdict"] == "inconclusive"
    assert {"claim": {"what": "checkpoint", "name": "moe"}, "cases": 9} in report["unreached"]
    assert main([*words, "--cases", "9"]) == EQUIVALENT
    assert json.loads((tmp_path / "out" / "engine" / "report.json").read_text())["unreached"] == []


def test_a_profile_warns_of_what_it_leaves_out_and_keeps_its_verdict(tmp_path: Path) -> None:
    short = replace(profile("ci", "9"), lanes=(replace(profile("ci", "9").draw("engine"), cases=3),))  # type: ignore[arg-type, type-var]
    result = few(tmp_path, 3, profile=short)
    assert result.verdict == "equivalent"
    assert any(kind_of(said) == "VACUOUS" and "moe" in said and "profile ci" in said for said in result.warnings)


def test_what_no_case_within_the_bounds_can_test_is_told_and_is_no_doubt(tmp_path: Path) -> None:
    decoder = made(tmp_path, ENGINE, "many-rows")
    options = Options(cases=12, python=sys.executable, bounds=Bounds(rows=4), bounded=("rows",))
    result = audit(decoder, options)
    assert result.unreached == [Unreached(Claim("capability", "many-rows"), None)]
    assert result.verdict == "equivalent"
    assert any(kind_of(said) == "VACUOUS" and "within these bounds" in said for said in result.warnings)


@pytest.mark.parametrize("name", ["eqspec", "tree", "heads", "hf_pr", "mlx_lm", "openvino_genai", "llama_cpp"])
def test_30_cases_test_all_that_a_shipped_decoder_claims(name: str) -> None:
    decoder = registry.load(name)
    for lane in lanes_of(decoder, Options(cases=30, python=sys.executable if decoder.checkpoints else "")):
        enough = max(30, 4 * len(decoder.kinds))  # two cases for each kind in each lane
        assert all(one.cases is not None and one.cases <= enough for one in lane.unreached()), lane.result.lane


@pytest.mark.parametrize("seed", range(3))
def test_the_first_cases_of_the_transparent_target_test_each_claim(seed: int) -> None:
    options = ("stop-sequences", "cancel", "logprobs")
    source = Source(seed, FAMILIES, ("left", "right"), tuple(CACHE_STATES), capabilities=options, opening=True)
    found = {claim for case in source.chunk(0, 16) for claim in claims_in(case)}
    assert {name for what, name in ((one.what, one.name) for one in found) if what == "family"} == set(FAMILIES)
    assert {one.name for one in found if one.what == "cache state"} == set(CACHE_STATES)
    assert {one.name for one in found if one.what == "capability"} == set(options)
    without = replace(source, opening=False).chunk(0, 10)
    assert without == replace(source, opening=False, capabilities=options).chunk(0, 10)
    assert set(without) <= set(source.chunk(0, 50)), "the opening adds cases and leaves none out"


def test_a_sentence_fits_a_line_however_much_was_not_tested() -> None:
    many = [Unreached(Claim("capability", name), 40) for name in CAPABILITIES]
    many += [Unreached(Claim("checkpoint", f"kind{number}"), None) for number in range(30)]
    many += [Unreached(Claim("cache state", name), 7) for name in CACHE_STATES]
    for count in range(1, len(many) + 1):
        said = sentence(many[:count], 100_000)
        assert len(said) <= LIMIT, said
        assert "--cases 40" in said
    assert "within these bounds" in sentence([Unreached(Claim("drafter", "ngram"), None)], 1)


def test_stored_cases_are_counted_apart(tmp_path: Path) -> None:
    short = CALLED.replace(", options) for prompt", ", options)[:-1] or [0] for prompt")
    decoder = made(tmp_path, short)
    options = Options(cases=6, corpus=tmp_path / "stored")
    first = audit(decoder, options)
    assert first.verdict == "violation"
    assert all(finding.replayed == 0 for finding in first.violations)
    second = audit(decoder, options)
    report = report_of(second, tmp_path)
    assert report.corpus.replayed > 0
    assert sum(one.stored for one in report.violations) == report.corpus.failing
    assert sum(one.count for one in report.violations) == report.cases.violation <= 6
    told = [Content(report).counted(one) for one in report.violations]
    assert any(f"of {report.cases.run} drawn, " in line and line.endswith("stored") for line in told)


def test_fail_fast_on_a_stored_case_counts_that_case(tmp_path: Path) -> None:
    decoder = made(tmp_path, CALLED.replace("return [row(", "return [[0, 0, 0, 0] or row("))
    options = Options(cases=6, corpus=tmp_path / "stored")
    assert audit(decoder, options).violations
    result = audit(decoder, replace(options, fail_fast=frozenset()))
    report = report_of(result, tmp_path)
    assert (report.verdict, report.cases.run) == ("violation", 0)
    assert report.violations
    for one in report.violations:
        assert one.stored > 0
        assert Content(report).counted(one).startswith(f"{one.stored} of {report.corpus.replayed} stored case")
