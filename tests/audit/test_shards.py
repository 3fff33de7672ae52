"""A campaign in shards: merged, they are one audit, whoever ran them and in whatever order they finished."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from as_data import to_dict

from eqcheck.audit import shards
from eqcheck.audit.loop import audit
from eqcheck.audit.shards import Shard, from_builtins, merged, part_of, read, to_builtins, write
from eqcheck.catalogue import known_good
from eqcheck.cli import main
from eqcheck.contract.decoders import Decoder, Request, decoder
from eqcheck.contract.errors import UsageError
from eqcheck.contract.registry import load
from eqcheck.core.case.record import Case
from eqcheck.core.result.findings import Audit, Options
from eqcheck.core.result.outcome import Outcome
from eqcheck.core.store.casefile import StoredViolation
from eqcheck.core.store.corpus import Corpus, shared_corpus
from eqcheck.report.build import report_of
from eqcheck.transparent.coverage import ESSENTIAL

Rows = list[list[int]]
SHORT = "bookkeeping/premature-stop"
right: Callable[[Any, Any, Request], Rows] = known_good()["one_row"]


def short_when_several(target: Any, draft: Any, request: Request) -> Rows:
    rows = right(target, draft, request)
    return [row[:-1] for row in rows] if len(rows) > 2 else rows


def made(function: Any, **claims: Any) -> Decoder:
    return decoder(name="mine", **claims)(function)


WRONG, RIGHT = made(short_when_several), made(right)
OPTIONS = Options(seed=5)


@pytest.fixture(scope="module")
def three() -> list[Shard]:
    return [shards.run(WRONG, OPTIONS, number, cases=40) for number in range(3)]


def plain(result: Audit, folder: Path) -> dict[str, Any]:
    """The report without what depends on the machine's speed."""
    return {**to_dict(result, folder), "elapsed_s": None, "cases_per_second": None, "seed": None}


@pytest.mark.rest
def test_a_shard_is_an_ordinary_audit_with_a_seed_of_its_own(tmp_path: Path, three: list[Shard]) -> None:
    """Merged alone, it is that audit to the letter."""
    for number in (0, 2):
        alone = audit(WRONG, replace(OPTIONS, seed=shards.seed_of(5, number), cases=40))
        assert plain(merged(WRONG, OPTIONS, [three[number]]), tmp_path) == plain(alone, tmp_path)


@pytest.mark.rest
def test_stored_in_any_order_they_merge_into_the_same_report(tmp_path: Path, three: list[Shard]) -> None:
    here = to_dict(merged(WRONG, OPTIONS, three), tmp_path)
    for order in ((2, 0, 1), (1, 2, 0)):
        folder = tmp_path / "".join(map(str, order))
        for number in order:
            write(three[number], folder)
        assert to_dict(merged(WRONG, OPTIONS, read(folder)), tmp_path) == here
    assert len(set(here["cases"]) & {"run", "violation"}) == 2
    assert here["cases"]["run"] == 120


@pytest.mark.rest
def test_counts_add_up_and_findings_are_one_with_the_smallest_case(tmp_path: Path, three: list[Shard]) -> None:
    alone = [to_dict(merged(WRONG, OPTIONS, [shard]), tmp_path) for shard in three]
    together = to_dict(merged(WRONG, OPTIONS, three), tmp_path)
    for name in ("run", "equivalent", "violation"):
        assert together["cases"][name] == sum(one["cases"][name] for one in alone)
    for name, count in together["coverage"].items():
        assert count == sum(one["coverage"].get(name, 0) for one in alone)
    mean = sum(one["equivalence"]["exact_match"] * one["cases"]["run"] for one in alone) / 120
    assert together["equivalence"]["exact_match"] == pytest.approx(mean, abs=1e-4)
    (violation,), every = together["violations"], [one["violations"][0] for one in alone]
    assert violation["fingerprint"] == SHORT
    assert violation["count"] == sum(one["count"] for one in every) == together["cases"]["violation"]
    sizes = [len(json.dumps(one["case"])) for one in every]
    assert len(json.dumps(violation["case"])) == min(sizes)
    for value, (failing, run) in violation["axes"]["rows"].items():
        each = [one["axes"]["rows"].get(value, [0, 0]) for one in every]
        assert [failing, run] == [sum(counts[at] for counts in each) for at in (0, 1)]
    assert any(line.startswith("only with 3 or more rows ") for line in violation["only"])  # no shard alone can say so
    assert sum(cell["cases"] for cell in together["matrix"].values()) == 120


@pytest.mark.rest
def test_what_one_shard_did_not_exercise_another_may_have() -> None:
    """Conclusions are drawn from all counts, not gathered from the shards. Where most cases fail, nothing is said."""
    zeroth, other = (shards.run(RIGHT, OPTIONS, number, cases=20) for number in (0, 1))

    def raising(shard: Shard, names: tuple[str, ...]) -> Shard:
        (part,) = shard.parts
        tally = replace(part.tally, coverage=Counter(names))
        return replace(shard, parts=(replace(part, tally=tally),))

    def vacuous(*found: Shard) -> list[str]:
        return [line for line in merged(RIGHT, OPTIONS, found).warnings if line.startswith("VACUOUS: no case had")]

    first, second = raising(zeroth, ESSENTIAL[:4]), raising(other, ESSENTIAL[4:])
    assert vacuous(first)
    assert vacuous(second)
    assert not vacuous(first, second)
    assert vacuous(first, raising(other, ESSENTIAL[:3]))


def test_a_doubt_in_one_shard_is_one_of_all(three: list[Shard]) -> None:
    (part,) = three[1].parts
    doubtful = replace(part, findings=(replace(part.findings[0], standing="inconclusive"),))
    result = merged(WRONG, OPTIONS, [three[0], replace(three[1], parts=(doubtful,))])
    assert result.verdict == "inconclusive"
    assert not result.violations


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"eqcheck": "0.0.1 (abc)"}, "eqcheck: expected .* got 0.0.1"),
        ({"decoder": "other"}, "decoder: expected mine, got other"),
        ({"code": "1234"}, "code: expected"),
        ({"seed": 6}, "seed: expected 5, got 6"),
        ({"options": {"isolate": True}}, "expected"),
    ],
)
def test_shards_of_another_campaign_are_refused(three: list[Shard], change: dict[str, Any], said: str) -> None:
    other = replace(three[1], terms=replace(three[1].terms, **change))
    with pytest.raises(UsageError, match=f"shards 0 and 1 are of different campaigns.*{said}"):
        merged(WRONG, OPTIONS, [three[0], other])


def test_doubles_disorder_and_nothing_are_refused(three: list[Shard]) -> None:
    with pytest.raises(UsageError, match="shard 0: expected once, got twice"):
        merged(WRONG, OPTIONS, [three[0], three[0]])
    with pytest.raises(UsageError, match="order of their numbers, got 0 after 1"):
        merged(WRONG, OPTIONS, [three[1], three[0]])
    with pytest.raises(UsageError, match="at least one, got none"):
        merged(WRONG, OPTIONS, [])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda text: text[:300], "cannot read it as JSON"),
        (lambda text: text.replace("eqcheck-shard/1", "eqcheck-shard/9"), "expected format 'eqcheck-shard/1'"),
        (lambda text: text.replace('"ties":0', '"ties":"\\u001b[31m"'), r"Expected `int`, got `str`"),
        (lambda text: text.replace('"number":0', '"number":-1'), "Expected `int` >= 0"),
        (lambda text: "[]", "expected format"),
    ],
)
def test_a_file_that_is_no_shard_is_named_and_stays(
    tmp_path: Path, three: list[Shard], change: Callable[[str], str], said: str
) -> None:
    path = write(three[0], tmp_path)
    path.write_text(change(path.read_text()))
    before = path.read_text()
    with pytest.raises(UsageError, match=said) as error:
        list(read(tmp_path))
    assert str(path) in str(error.value)
    assert "\x1b" not in str(error.value)
    assert path.read_text() == before


def test_hostile_text_in_a_shard_is_plain_in_the_report(tmp_path: Path, three: list[Shard]) -> None:
    (part,) = three[0].parts
    said = replace(part, warnings=("\x1b[31mred", "<script>"), version="\x1b]0;x")
    report = report_of(merged(WRONG, OPTIONS, [replace(three[0], parts=(said,))]), tmp_path)
    assert "\x1b" not in json.dumps(to_dict(merged(WRONG, OPTIONS, [replace(three[0], parts=(said,))]), tmp_path))
    assert any("red" in line for line in report.warnings)


def test_a_shard_of_another_eqcheck_is_refused_in_one_line(
    tmp_path: Path, three: list[Shard], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its records may be others: that is said before any of them is read."""
    path = write(three[0], tmp_path)
    path.write_text(path.read_text().replace('"tally":', '"counts":'))
    monkeypatch.setattr(shards, "code_of_eqcheck", lambda: "9.9 (abc)")
    with pytest.raises(UsageError, match=r"0000000\.json: expected one of eqcheck 9\.9 \(abc\), ") as error:
        list(read(tmp_path))
    assert f"got one of {three[0].terms.eqcheck}; give another --out" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.rest
def test_evidence_of_stored_shards_reaches_the_report_or_is_refused(tmp_path: Path) -> None:
    shard = shards.run(load("eqspec"), replace(OPTIONS, seed=1), 0, cases=3)
    assert [part.lane for part in shard.parts] == ["transparent", "sampling"]
    data = json.loads(json.dumps(to_builtins(shard)))
    assert to_builtins(from_builtins(data)) == to_builtins(shard)
    write(shard, tmp_path)
    here = to_dict(merged(load("eqspec"), OPTIONS, [shard]), tmp_path)
    assert to_dict(merged(load("eqspec"), OPTIONS, read(tmp_path)), tmp_path) == here
    assert here["sampling"]["course"]
    wealth, broken = data["parts"][1]["wealth"], list[Any]([[], {"shape": [3], "float64": "AAAA"}])
    for logs in broken:
        data["parts"][1]["wealth"] = {**wealth, "_all": logs}
        (tmp_path / "0000000.json").write_text(json.dumps(data))
        with pytest.raises(UsageError, match=r"shard .*0000000\.json: .*\.parts\[1\]\.wealth"):
            list(read(tmp_path))


def synthetic(number: int, count: int) -> Shard:
    """A shard of so many outcomes that nobody decoded."""
    rng = random.Random(number)
    result = Audit(RIGHT, OPTIONS, "transparent", RIGHT.families, RIGHT.families)
    cases = [
        Case(((1,) * rng.randrange(1, 9),) * rng.randrange(1, 6), num_draft_tokens=rng.randrange(1, 8), family=family)
        for family in RIGHT.families
        for _ in range(200)
    ]
    names = frozenset(ESSENTIAL)
    result.outcomes = [Outcome(rng.choice(cases), "equivalent", 1.0, 1.0, names, ((1,),)) for _ in range(count)]
    terms = shards.terms_of(RIGHT, OPTIONS)
    return Shard(terms, number, count, None, (part_of(result),))


@pytest.mark.rest
def test_100_000_cases_of_four_workers_merge_in_no_time(tmp_path: Path) -> None:
    for number in range(4):
        write(synthetic(number, 25_000), tmp_path)
    start = time.process_time()
    result = merged(RIGHT, OPTIONS, read(tmp_path))
    report = report_of(result, tmp_path)
    assert time.process_time() - start < 300, "a guard against what takes a second a case"
    assert (report.verdict, report.cases.run, report.coverage["ragged_round"]) == ("equivalent", 100_000, 100_000)


def test_what_a_shard_stores_reaches_the_corpus_and_the_next_campaign(tmp_path: Path) -> None:
    asked = replace(OPTIONS, corpus=tmp_path)
    shard = shards.run(WRONG, asked, 0, cases=8)
    assert list(shard.stored) == ["bookkeeping-premature-stop.json"]
    corpus = Corpus(tmp_path, "mine")
    for name, text in shard.stored.items():
        corpus.take(name, text)
        corpus.take(f"../../{name}", text)  # a name is no path
    assert [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.json")] == [f"1/mine/{name}"]
    again = shards.run(WRONG, asked, 0, cases=8, corpus=corpus.files())
    assert merged(WRONG, asked, [again]).tally.failing == 1
    assert not again.stored
    corpus.take(name, text[:100])
    assert "could not be stored" in corpus.warnings[0]
    assert (tmp_path / "1" / "mine" / name).read_text() == text


def test_a_corpus_may_lie_at_a_url() -> None:
    pytest.importorskip("fsspec")
    violation = StoredViolation(Case(prompts=((1, 2), (3,))), "mine", SHORT)
    for count in (1, 1):
        with shared_corpus("memory://corpus/of") as folder:
            Corpus(folder, "mine").store(violation, True)
            assert len(Corpus(folder, "mine").load()) == count
    with shared_corpus("memory://corpus/of") as folder:
        assert [one.case for one in Corpus(folder, "mine").load().values()] == [violation.case]


@pytest.mark.parametrize("place", ["nowhere://x/y", "http://127.0.0.1:9/x"])
def test_a_corpus_that_cannot_be_reached_is_one_message(place: str) -> None:
    pytest.importorskip("fsspec")
    with (
        pytest.raises(UsageError, match=r"--corpus .*expected a folder, or a URL that fsspec reaches"),
        shared_corpus(place),
    ):
        pass


@pytest.mark.parametrize("address", ["", " "])
def test_an_empty_address_of_a_cluster_is_one_message(
    address: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ray or not: an unset variable must not make it an audit here."""
    assert main(["audit", "eqspec", "--ray", address, "--out", str(tmp_path / "out")]) == 4
    (line,) = capsys.readouterr().err.splitlines()
    assert "--ray '': expected a Ray cluster that answers" in line
    assert not (tmp_path / "out").exists()
