"""What a decoder holds in memory: measured by storage, told apart by content; leaks are warned of, right builds not."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eqcheck import cli
from eqcheck.catalogue import BUILDS
from eqcheck.catalogue.faults import LEAKS
from eqcheck.catalogue.faults.leaks import KEEPING
from eqcheck.contract import registry
from eqcheck.contract.decoders import Request, decoder
from eqcheck.core.result.findings import Options
from eqcheck.selfcheck.memory import MemoryResult, check_build, check_leak
from eqcheck.transparent.hashlm.hashing import WIDTH, write_of, writes
from eqcheck.transparent.hashlm.hashing import entries as entries_of
from eqcheck.transparent.hashlm.model import HashConfig, HashLM
from eqcheck.transparent.hashlm.trace import Trace
from eqcheck.transparent.lane import TransparentLane
from eqcheck.transparent.memory import KINDS, TOKEN, Ledger, leaks, probe_case, try_memory, uses, watched


@pytest.mark.parametrize("number", range(len(LEAKS)), ids=[leak.id for leak in LEAKS])
@pytest.mark.tiers(quick=1, rest=2)
def test_a_planted_leak_is_warned_of_and_the_output_is_right(number: int) -> None:
    assert check_leak(number).failure == ""
    leak = LEAKS[number].decoder()
    with leak.running() as generate:
        assert try_memory(generate, probe_case(leak.families[0], "left"), None).status == "equivalent"


@pytest.mark.parametrize("name", [*BUILDS])
@pytest.mark.tiers(quick=3, rest=5)
def test_builds_are_warned_of_what_they_keep_by_their_build_only(name: str) -> None:
    result = check_build(name)
    assert result.failure == ""
    assert result.found == ((KEEPING[name],) if name in KEEPING else ())


@pytest.mark.parametrize("name", ["eqspec", "exspec", "ragged"])
@pytest.mark.parametrize("family", ["rotary", "learned"])
@pytest.mark.tiers(quick=2, rest=2)
def test_reference_engines_keep_nothing_for_nothing(name: str, family: str) -> None:
    engine = registry.load(name)
    with engine.running() as generate:
        observed = try_memory(generate, probe_case(family, "left"), None).observed
    assert observed["warnings"] == []
    assert observed["after_return_bytes"] == 0
    assert observed["waste"] >= 1.0
    assert observed["peak_bytes"] >= observed["least_bytes"]


def test_a_result_that_is_not_as_expected_is_a_failure() -> None:
    right = MemoryResult("x", "memory/growth", ("memory/growth",), False, 1.0)
    assert not right.failure
    assert "got no warning" in MemoryResult("x", "memory/growth", (), False, 1.0).failure
    assert "expected no warning" in MemoryResult("x", "", ("memory/growth",), False, 1.0).failure


def test_packed_holds_the_least_and_the_bound_is_what_the_note_says() -> None:
    """One entry for each committed token of each row but the newest, and K + 1 for the block."""
    case = probe_case("rotary", "left")
    done, ledger = watched(BUILDS["packed"].decoder("packed"), case)
    for use, moment in zip(uses(done, ledger.moments), ledger.moments, strict=True):
        call = next(call for call in done.trace.calls if call.number == moment.call)
        slots = call.held[0].shape[3]
        assert use.held == use.least == slots * TOKEN


@pytest.mark.rest
def test_shares_add_up_to_what_is_held() -> None:
    case = probe_case("rotary", "left")
    with registry.load("ragged").running() as generate:
        observed = try_memory(generate, case, None).observed
    assert set(observed["split"]) <= set(KINDS)
    assert sum(observed["split"].values()) == pytest.approx(1.0, abs=0.001)


def test_a_view_keeps_its_storage_alive_and_that_is_seen() -> None:
    ledger = Ledger()
    with ledger.following():
        whole = torch.zeros(2, 2, 50, WIDTH, dtype=torch.float64)
        ledger.mark(whole)
        view = whole[:, :, -1:] * 1.0, whole[:, :, -1:]
        size = whole.untyped_storage().nbytes()
        del whole
        assert ledger.alive() == size + view[0].untyped_storage().nbytes()
        view = (view[0], view[0])
        assert ledger.alive() == view[0].untyped_storage().nbytes()


def test_copies_of_whole_storages_are_followed() -> None:
    ledger = Ledger()
    one = torch.ones(4, WIDTH, dtype=torch.float64)
    with ledger.following():
        ledger.mark(one)
        other = copy.deepcopy(one)
        assert ledger.alive() == 2 * one.untyped_storage().nbytes()
    assert torch.equal(one, other)


def test_what_has_nothing_to_do_with_keys_and_values_is_not_followed() -> None:
    ledger = Ledger()
    with ledger.following():
        ledger.mark(torch.ones(4, WIDTH, dtype=torch.float64))
        mask = torch.zeros(400, 400)
        assert ledger.alive() == 0
        mask += 1
        assert ledger.alive() == 0


@given(
    call=st.integers(1, 2**24 - 1),
    rows=st.integers(1, 4),
    block=st.integers(1, 4),
    dtype=st.sampled_from([torch.float64, torch.float32, torch.bfloat16]),
)
@settings(max_examples=30, deadline=None)
def test_every_entry_says_which_write_it_is(call: int, rows: int, block: int, dtype: torch.dtype) -> None:
    import numpy as np

    tokens = np.zeros((rows, block), np.int64)
    made = entries_of(1, 0, tokens, tokens, None, call)
    stored = torch.from_numpy(made).to(dtype).double().numpy().reshape(-1, WIDTH)
    found = set((writes(stored) & ((1 << 56) - 1)).tolist())
    assert found == {write_of(call, row, column) for row in range(rows) for column in range(block)}
    assert (writes(np.zeros((2, WIDTH))) == -1).all()


def test_one_draft_token_too_many_a_round_is_growth_and_one_in_all_is_not() -> None:
    case = probe_case("rotary", "left")
    done, ledger = watched(BUILDS["holes"].decoder("holes"), case)
    seen = uses(done, ledger.moments)
    assert any(warning.startswith("memory/rejected-kept") for warning in leaks(seen, [0, 0]))
    assert leaks(seen[:4], [0, 0]) == []  # too few rounds say nothing


def test_watching_changes_no_answer() -> None:
    case = probe_case("rotary", "left")
    with registry.load("eqspec").running() as generate:
        done, _ = watched(generate, case)
    assert done.outputs == done.truth.rows
    target = HashLM(HashConfig(seed=1))
    target.trace = Trace()
    ids = torch.tensor([[3, 1, 4]])
    plain = target(ids).logits
    target.trace = Trace(watcher=Ledger())
    assert torch.equal(target(ids).logits, plain)


@pytest.mark.parametrize("requires", [(), ("equal-lengths",), ("batch-1",), ("no-eos",)])
def test_the_case_meets_what_decoders_require(requires: tuple[str, ...]) -> None:
    case = probe_case("learned", "right", requires)
    lengths = {len(prompt) for prompt in case.prompts}
    assert ("equal-lengths" in requires) <= (len(lengths) == 1)
    assert ("batch-1" in requires) == (len(case.prompts) == 1)
    assert ("no-eos" in requires) == (not case.eos_token_ids)


@pytest.mark.long
def test_an_audit_reports_memory_only_where_it_is_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for flags in ([], ["--memory"]):
        assert cli.main(["audit", "ragged", "--cases", "12", "--no-corpus", "--out", str(tmp_path), *flags]) == 0
        report = json.loads((tmp_path / "ragged" / "report.json").read_text())
        assert 0 < report["slots_seen"] <= 1
        assert (report["memory"] is not None) == bool(flags)
        assert ("Keys and values take" in (tmp_path / "ragged" / "report.md").read_text()) == bool(flags)
    assert "Keys and values take" in capsys.readouterr().out
    assert "the least" in (tmp_path / "ragged" / "report.html").read_text()


@pytest.mark.rest
def test_a_leak_is_a_warning_of_an_audit_and_no_violation(tmp_path: Path) -> None:
    leaking = tmp_path / "leaking.py"
    leaking.write_text(
        "from eqcheck.catalogue.faults import LEAKS\n"
        "leaking = next(leak for leak in LEAKS if leak.switch == 'L1-caches-kept').decoder()\n"
    )
    flags = ["--cases", "12", "--memory", "--no-corpus", "--out", str(tmp_path / "out")]
    assert cli.main(["audit", f"{leaking}:leaking", *flags]) == 0
    report = json.loads(next((tmp_path / "out").rglob("report.json")).read_text())
    assert any(warning.startswith("memory/storage-kept: ") for warning in report["warnings"])


@decoder(name="wrong")
def wrong(target: Any, draft: Any, request: Request) -> list[list[int]]:
    return [[1] for _ in request.prompts]


def test_where_the_output_is_wrong_nothing_is_measured() -> None:
    lane = TransparentLane(wrong, Options(memory=True))
    lane.conclude()
    assert lane.result.facts["memory"] == {}
    assert any("not right" in warning for warning in lane.result.warnings)
