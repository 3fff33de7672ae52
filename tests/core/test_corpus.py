"""The corpus: what an audit keeps for the next one, whatever becomes of the audit or of the files."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from as_data import to_dict

from eqcheck.audit.loop import audit
from eqcheck.audit.workers.fork import context
from eqcheck.catalogue import known_good
from eqcheck.contract.decoders import Decoder, Request, RowOptions, decoder
from eqcheck.core.case.engine import EngineCase, EngineRow
from eqcheck.core.case.record import Case
from eqcheck.core.result.findings import Audit, Options
from eqcheck.core.store.casefile import StoredViolation, read_case
from eqcheck.core.store.corpus import Corpus

Rows = list[list[int]]
SHORT = "bookkeeping/premature-stop"
right: Callable[[Any, Any, Request], Rows] = known_good()["one_row"]


def made(function: Callable[[Any, Any, Request], Any], **claims: Any) -> Decoder:
    return decoder(name="mine", **{"padding_sides": ("left", "right"), **claims})(function)


def short(target: Any, draft: Any, request: Request) -> Rows:
    return [row[:-1] for row in right(target, draft, request)]


def short_when_several(target: Any, draft: Any, request: Request) -> Rows:
    return (short if len(request.prompts) > 1 else right)(target, draft, request)


def raising_often(target: Any, draft: Any, request: Request) -> Rows:
    """Fails with many fingerprints."""
    raise type(f"Error{sum(map(sum, request.prompts)) % 23}", (Exception,), {})


def audited(function: Callable[[Any, Any, Request], Any], root: Path, cases: int = 20, **options: Any) -> Audit:
    claims = options.pop("claims", {})
    return audit(made(function, **claims), Options(cases=cases, corpus=root / ".eqcheck", **options))


def files(root: Path) -> dict[str, StoredViolation]:
    return {str(path.relative_to(root / ".eqcheck")): read_case(path) for path in (root / ".eqcheck").rglob("*.json")}


def stored(case: Case, fingerprint: str = SHORT, **more: Any) -> StoredViolation:
    return StoredViolation(case, "mine", fingerprint, **more)


@pytest.mark.rest
def test_a_violation_is_stored_minimised_and_replayed_first(tmp_path: Path) -> None:
    first = audited(short_when_several, tmp_path)
    assert first.replayed == []
    (kept,) = files(tmp_path).items()
    assert kept[0] == "1/mine/bookkeeping-premature-stop.json"
    assert kept[1].case == first.violations[0].case
    assert (kept[1].fingerprint, kept[1].minimised) == (SHORT, True)
    second = audited(short_when_several, tmp_path, seed=1)
    assert [outcome.case for outcome in second.replayed] == [kept[1].case]
    assert (second.violations[0].case, second.violations[0].stored) == (kept[1].case, True)
    assert len(second.outcomes) == 20
    report = to_dict(second, tmp_path)
    assert report["corpus"] == {"replayed": 1, "failing": 1}
    assert report["violations"][0]["from_corpus"]


def test_a_stored_case_alone_makes_a_violation(tmp_path: Path) -> None:
    Corpus(tmp_path / ".eqcheck", "mine").store(stored(Case(prompts=((1,), (2,)), max_new_tokens=2)), claimed=True)

    def short_on_that(target: Any, draft: Any, request: Request) -> Rows:
        return (short if request.prompts == [[1], [2]] else right)(target, draft, request)

    result = audited(short_on_that, tmp_path)
    assert (result.verdict, result.violations[0].count) == ("violation", 0)
    assert all(outcome.status == "equivalent" for outcome in result.outcomes)


@pytest.mark.rest
def test_a_case_that_no_longer_fails_is_kept(tmp_path: Path) -> None:
    audited(short_when_several, tmp_path)
    before = files(tmp_path)
    result = audited(right, tmp_path)
    assert (result.verdict, len(result.replayed)) == ("equivalent", 1)
    assert files(tmp_path) == before
    # A new bug of the same fingerprint goes beside it.
    audited(lambda t, d, r: (short if r.max_new_tokens > 3 else right)(t, d, r), tmp_path)
    assert len(files(tmp_path)) == 2
    assert before.items() <= files(tmp_path).items()


def test_cases_outside_what_was_asked_are_not_replayed(tmp_path: Path) -> None:
    corpus = Corpus(tmp_path / ".eqcheck", "mine")
    traits: list[dict[str, Any]] = [
        {"family": "learned"},
        {"padding_side": "right"},
        {"cache_state": "pads-nan"},
        {"family": "window"},
    ]
    for number, trait in enumerate(traits):
        corpus.store(stored(Case(prompts=((1,), (2,)), **trait), f"crash/exception:E{number}"), claimed=True)
    claims: dict[str, Any] = {"padding_sides": ("left",), "cache_states": ("empty",), "families": ("rotary",)}
    assert audited(right, tmp_path, 1, claims=claims).replayed == []
    assert len(audited(right, tmp_path, 1, claims={"families": ("rotary", "learned")}).replayed) == 3


def test_a_case_found_smaller_replaces_the_larger(tmp_path: Path) -> None:
    corpus = Corpus(tmp_path / ".eqcheck", "mine")
    small, large = Case(prompts=((1,),)), Case(prompts=((1, 2, 3), (4, 5, 6, 7, 8)))
    for case, minimised, kept in (
        (large, False, large),
        (small, False, small),
        (large, False, small),
        (large, True, large),
        (small, False, large),
        (small, True, small),
    ):
        corpus.store(stored(case, minimised=minimised), claimed=True)
        (found,) = files(tmp_path).values()
        assert found.case == kept


@pytest.mark.parametrize("content", ["", "{", '{"format": "eqcheck-violation/9"}', "[]", "\0"])
@pytest.mark.tiers(quick=0, rest=1)
def test_a_file_that_cannot_be_read_is_named_and_left_alone(tmp_path: Path, content: str) -> None:
    audited(short, tmp_path)
    (name,) = files(tmp_path)
    damaged = tmp_path / ".eqcheck" / name
    damaged.write_text(content)
    result = audited(short, tmp_path)
    assert result.verdict == "violation"
    (warning,) = [warning for warning in result.warnings if "corpus" in warning]
    assert str(damaged) in warning
    assert "left as it is" in warning
    assert damaged.read_text() == content
    beside = [path for path in damaged.parent.glob("*.json") if path != damaged]
    assert [read_case(path).fingerprint for path in beside] == [SHORT]


def test_a_corpus_that_cannot_be_written_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / ".eqcheck").write_text("a file where the folder should be")
    result = audited(short, tmp_path)
    assert result.verdict == "violation"
    assert any("could not be stored" in warning for warning in result.warnings)


def test_stale_temporary_files_are_removed_and_fresh_ones_are_not(tmp_path: Path) -> None:
    audited(short, tmp_path)
    folder = tmp_path / ".eqcheck" / "1" / "mine"
    old, fresh = folder / ".x.json.abc.tmp", folder / ".y.json.def.tmp"
    for path in (old, fresh):
        path.write_text("{")
    os.utime(old, (time.time() - 7200,) * 2)
    result = audited(short, tmp_path)
    assert (old.exists(), fresh.exists()) == (False, True)
    assert not any("corpus" in warning for warning in result.warnings)


@pytest.mark.rest
def test_discoveries_are_kept_apart(tmp_path: Path) -> None:
    def short_on_learned(target: Any, draft: Any, request: Request) -> Rows:
        return (short if target.config.family == "learned" else right)(target, draft, request)

    options: dict[str, Any] = {"claims": {"families": ("rotary",)}, "families": ("rotary", "learned")}
    result = audited(short_on_learned, tmp_path, **options)
    assert (result.verdict, len(result.discoveries)) == ("equivalent", 1)
    assert set(files(tmp_path)) == {"1/mine/unclaimed/bookkeeping-premature-stop.json"}
    again = audited(short_on_learned, tmp_path, **options)
    assert (again.verdict, again.discoveries[0].stored) == ("equivalent", True)


def audit_until_killed(root: str, started: str, seed: int) -> None:
    Path(started).touch()
    while True:
        audit(made(raising_often), Options(cases=60, seed=seed, corpus=Path(root) / ".eqcheck"))
        seed += 1


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")
@pytest.mark.long
def test_ten_kills_leave_every_case_whole_and_lose_none(tmp_path: Path) -> None:
    chance = random.Random()
    complete: set[str] = set()
    for kill in range(10):
        started = tmp_path / f"started {kill}"
        processes = [
            context().Process(target=audit_until_killed, args=(str(tmp_path), str(started), 10 * kill + number))
            for number in range(1 + kill % 2)
        ]
        for process in processes:
            process.start()
        end = time.monotonic() + 600
        while not started.exists() and time.monotonic() < end:
            time.sleep(0.01)
        time.sleep(chance.uniform(0.0, 1.5))
        while kill == 9 and len(list(tmp_path.rglob("*.json"))) < 4 and time.monotonic() < end:
            time.sleep(0.01)
        for process in processes:
            process.kill()
            process.join()
        found = files(tmp_path)  # raises for one that cannot be read
        assert complete <= set(found)
        complete = set(found)
        assert all(violation.fingerprint for violation in found.values())
    assert len(complete) > 3
    temporary = list((tmp_path / ".eqcheck").rglob(".*"))
    for path in temporary:
        os.utime(path, (time.time() - 7200,) * 2)
    result = audit(made(raising_often), Options(cases=1, corpus=tmp_path / ".eqcheck"))
    assert len(result.replayed) == to_dict(result, tmp_path)["corpus"]["replayed"] == len(complete)
    assert not list((tmp_path / ".eqcheck").rglob(".*.tmp"))


def test_a_case_of_another_lane_is_no_older_version_of_a_case(tmp_path: Path) -> None:
    corpus = Corpus(tmp_path, "mine")
    engine = EngineCase((EngineRow((1,), RowOptions(1)),), checkpoint="of-another-torch")
    for case in (engine, Case(prompts=((1, 2, 3),), max_new_tokens=9), replace(engine, checkpoint="")):
        corpus.store(StoredViolation(case, "mine", SHORT), claimed=True)
    assert [stored.case.lane for stored in corpus.load().values()].count("engine") == 2
    assert len(corpus.load()) == 3
