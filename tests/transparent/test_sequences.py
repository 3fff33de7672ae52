"""State across requests: a fault that needs the request before is found as a sequence, made small, and replayed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import cycle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from as_data import to_dict, write

from eqcheck import cli
from eqcheck.audit.loop import audit
from eqcheck.audit.workers.worker import Limits
from eqcheck.contract import registry
from eqcheck.contract.decoders import decoder
from eqcheck.contract.errors import CaseError, Violation
from eqcheck.contract.profiles import MOST_BEFORE
from eqcheck.core.case.record import Case
from eqcheck.core.explanation.records import Explanation
from eqcheck.core.explanation.text import render
from eqcheck.core.result.findings import Audit, Options
from eqcheck.core.result.outcome import Outcome
from eqcheck.core.shrinking.items import fewest
from eqcheck.core.store.casefile import read_case
from eqcheck.transparent.decoding import run
from eqcheck.transparent.lane import TransparentLane
from eqcheck.transparent.oracle import assert_equivalent, judge
from eqcheck.transparent.sequences import Fresh, SequenceSearch

LEAKS = "state/leaks-from-earlier-request"
DECODERS = '''
import random, time
import eqcheck, torch
from eqcheck.transparent.truth.continuation import continue_row
from transformers import DynamicCache

def rows_of(target, request, eos=None, limit=None):
    """What is right, asked of the target: one forward of all rows, padded behind their ends, for each new token."""
    eos = request.eos_token_ids if eos is None else eos
    rows, new = [list(prompt) for prompt in request.prompts], [[] for _ in request.prompts]
    for _ in range(limit or request.max_new_tokens):
        width = max(map(len, rows))
        ids = torch.tensor([row + [0] * (width - len(row)) for row in rows])
        best = target(input_ids=ids, use_cache=False).logits.argmax(-1)
        for number, row in enumerate(rows):
            if not new[number] or new[number][-1] not in eos:
                new[number].append(int(best[number, len(row) - 1]))
                row.append(new[number][-1])
        if all(one[-1] in eos for one in new):
            break
    return new

kept = {}

@eqcheck.decoder(name="last-eos")
def last_eos(target, draft, request):
    """The EOS ids of the request before end rows, too."""
    before = kept.get("eos", ())
    kept["eos"] = request.eos_token_ids
    return rows_of(target, request, (*request.eos_token_ids, *before))

@eqcheck.decoder(name="last-batch")
class LastBatch:
    """Buffers are as large as the last request's batch, and rows beyond them come from the first buffer."""

    size = None

    def __call__(self, target, draft, request):
        rows, size = rows_of(target, request), self.size or len(request.prompts)
        self.size = len(request.prompts)
        return [rows[i] if i < size else rows[0] for i in range(len(rows))]

@eqcheck.decoder(name="last-pad")
def last_pad(target, draft, request):
    """A new token that was the pad id of the request before is taken for a pad, and left out."""
    pad = kept.get("pad")
    kept["pad"] = request.pad_token_id
    return [[token for token in row if token != pad or token in request.eos_token_ids] or row[:1]
            for row in rows_of(target, request)]

@eqcheck.decoder(name="tenant")
class Tenant:
    """The cache of the last request's first row is only cleared when the prompt is shorter than what it holds."""

    def open(self):
        self.cache = DynamicCache()

    def __call__(self, target, draft, request):
        rows = rows_of(target, request)
        prompt = request.prompts[0]
        if self.cache.get_seq_length() > len(prompt):
            self.cache = DynamicCache()
        logits = target(input_ids=torch.tensor([prompt]), past_key_values=self.cache, use_cache=True).logits
        first = int(logits[0, -1].argmax())
        return [[first, *rows[0][1:]], *rows[1:]]

@eqcheck.decoder(name="first-k")
def first_k(target, draft, request):
    """The block is as wide as the first request's K asks for: with another K the last new token is not kept."""
    k = kept.setdefault("k", request.num_draft_tokens)
    return [row[:-1] if request.num_draft_tokens != k else row for row in rows_of(target, request)]

@eqcheck.decoder(name="prefixes")
def prefixes(target, draft, request):
    """The first new token of earlier requests is kept by the first token of the prompt."""
    rows, seen = rows_of(target, request), kept.setdefault("prefixes", {})
    before = dict(seen)
    seen.update({prompt[0] % 8: row[0] for prompt, row in zip(request.prompts, rows)})
    return [[before.get(prompt[0] % 8, row[0]), *row[1:]] for prompt, row in zip(request.prompts, rows)]

@eqcheck.decoder(name="poisoned")
def poisoned(target, draft, request):
    """After a request whose pad id is an EOS every answer is cut."""
    bad = kept.get("poisoned")
    if request.pad_token_id in request.eos_token_ids:
        kept["poisoned"] = True
    return [row[:-1] if bad else row for row in rows_of(target, request)]

@eqcheck.decoder(name="crashes-later")
def crashes_later(target, draft, request):
    """After a request of four rows one of a single row raises."""
    before = kept.get("rows", 0)
    kept["rows"] = len(request.prompts)
    if before > len(request.prompts):
        raise KeyError("row %d" % (before - 1))
    return rows_of(target, request)

@eqcheck.decoder(name="third-time")
def third_time(target, draft, request):
    """Each third request of a process is cut: not of any one before, but of how many."""
    kept["count"] = kept.get("count", 0) + 1
    return [row[:-1] if kept["count"] % 3 == 0 else row for row in rows_of(target, request)]

@eqcheck.decoder(name="both")
def both(target, draft, request):
    """Keeps the last EOS ids, and drops the last token of rows that hold an odd prompt."""
    rows = last_eos(target, draft, request)
    return [row[:-1] if len(prompt) == 1 else row for row, prompt in zip(rows, request.prompts)]

# Right, or not for what came before.

@eqcheck.decoder(name="counter")
def counter(target, draft, request):
    kept["count"] = kept.get("count", 0) + 1
    return rows_of(target, request)

@eqcheck.decoder(name="warmed")
class Warmed:
    """A buffer that grows with what it was asked for; a cache of answers, by what they depend on."""

    def open(self):
        self.buffer, self.answers = [], {}

    def __call__(self, target, draft, request):
        self.buffer += [0] * (max(map(len, request.prompts)) - len(self.buffer))
        key = repr((target.config.family, target.config.seed, request))
        if key not in self.answers:
            self.answers[key] = rows_of(target, request)
        return self.answers[key]

@eqcheck.decoder(name="random")
def really_random(target, draft, request):
    return [row[:-1] if random.random() < 0.3 else row for row in rows_of(target, request)]

@eqcheck.decoder(name="torch-random")
def torch_random(target, draft, request):
    return [row[:-1] if torch.rand(()) < 0.3 else row for row in rows_of(target, request)]

@eqcheck.decoder(name="wrong")
def wrong(target, draft, request):
    kept["count"] = kept.get("count", 0) + 1
    return [row[:-1] for row in rows_of(target, request)]

@eqcheck.decoder(name="wrong-first")
def wrong_first(target, draft, request):
    """The first request of a process is cut, when it has two rows: always, in a fresh process."""
    first = not kept.get("count")
    kept["count"] = 1
    return [row[:-1] if first and len(request.prompts) > 1 else row for row in rows_of(target, request)]
'''
DEVELOPED = ("last_eos", "LastBatch", "Tenant", "first_k", "poisoned", "crashes_later", "third_time")
HELD_BACK = ("last_pad", "prefixes")


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    torch.set_num_threads(1)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "stateful.py").write_text(DECODERS)
    return tmp_path


def forget() -> None:
    """Have the module of the decoders run again when it is loaded next."""
    for module in [module for module in sys.modules if module.startswith("eqcheck_adapter_stateful")]:
        del sys.modules[module]


def audited(name: str, **more: Any) -> Audit:
    """The audit of a decoder in a module that nothing has run yet."""
    forget()
    return audit(registry.load(f"stateful.py:{name}"), Options(**{"cases": 40, **more}))


@pytest.fixture(scope="module")
def leaking(tmp_path_factory: pytest.TempPathFactory) -> tuple[Audit, Path]:
    """An audit of `last_eos`, and the corpus that it left."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("leaking")
    (folder / "stateful.py").write_text(DECODERS)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        return audited("last_eos", corpus=folder / "corpus"), folder / "corpus"


@pytest.mark.parametrize("name", [*DEVELOPED, *HELD_BACK])
@pytest.mark.long
def test_state_is_a_violation_with_the_smallest_sequence(
    work: Path, name: str, capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> None:
    result = request.getfixturevalue("leaking")[0] if name == "last_eos" else audited(name)
    assert [violation.fingerprint for violation in result.violations] == [LEAKS]
    assert result.verdict == "violation"
    assert result.doubtful == []
    (violation,) = result.violations
    case = violation.case
    assert len(case.before) == (2 if name == "third_time" else 1)
    assert len(case.prompts) <= 2
    assert all(len(earlier.prompts) <= 2 for earlier in case.before)
    assert "Earlier request" in render(violation.explanation)
    assert violation.count > 0
    # Alone it is right, in a fresh process and time and again; after the others it is wrong.
    with Fresh(registry.load(f"stateful.py:{name}").spec, Limits()) as fresh:
        for _ in range(2):
            assert fresh.try_case(replace(case, before=())).status == "equivalent"
            assert fresh.try_case(case).status == "violation"
    write(result, work / "report")
    (path,) = (work / "report").glob("cases/state-leaks-from-earlier-request.json")
    stored = read_case(path)
    assert isinstance(stored.case, Case)
    assert stored.case.before
    capsys.readouterr()
    assert cli.main(["replay", str(path), "--adapter", f"stateful.py:{name}"]) == 1
    shown = capsys.readouterr().out
    assert shown.startswith("FAILS")
    assert LEAKS in shown
    assert cli.main(["replay", str(path), "--adapter", "stateful.py:counter"]) == 0
    assert "FIXED" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["counter", "Warmed"])
def test_harmless_state_is_not_accused(work: Path, name: str) -> None:
    result = audited(name)
    assert (result.verdict, result.violations, result.doubtful) == ("equivalent", [], [])


@pytest.mark.parametrize("name", ["really_random", "torch_random"])
@pytest.mark.tiers(quick=1, rest=1)
def test_what_is_random_stays_inconclusive(work: Path, name: str) -> None:
    result = audited(name)
    assert (result.verdict, result.violations) == ("inconclusive", [])
    told = [warning for warning in result.warnings if warning.startswith("INCONCLUSIVE")]
    assert any("deterministic" in warning or "not repeatable" in warning for warning in told)


@pytest.mark.parametrize(
    ("emitted", "told"),
    [
        ([1], ""),
        ([1, 2], "the request fails each time, and not in the same way: the decoder is nondeterministic"),
        ([1, 2, 0], "it does not repeat in a fresh process: the decoder is nondeterministic or keeps state"),
    ],
)
def test_a_request_that_fails_each_time_in_another_way_is_told_as_such(emitted: list[int], told: str) -> None:
    """0 is right; each try emits the next of the ids, in turn."""
    case, turn = Case(prompts=((5,),), max_new_tokens=1), cycle(emitted)

    def try_case(case: Case, timeout: float | None = None) -> Outcome:
        token = next(turn)
        wrong = Explanation("bookkeeping", "wrong-correction", 0, 0, expected=0, observed=token) if token else None
        return Outcome(case, "violation" if token else "equivalent", outputs=((token,),), explanation=wrong)

    fresh: Any = SimpleNamespace(try_case=try_case, same=SimpleNamespace(try_case=try_case))
    lane = TransparentLane(decoder(name="mine")(lambda *_: []), Options())
    lane.sequences = SequenceSearch(fresh, lambda: None, lane.source.claims)
    outcome = try_case(case)
    found = lane.sequences.examine(outcome, None, 1.0)
    assert (found is None) == bool(told)
    warning = lane._in_doubt(lane.unsettled(outcome))
    assert not told or told in warning, warning
    assert ("fails each time" in warning) == ("each time" in told)


@pytest.mark.parametrize("name", ["wrong", "wrong_first"])
@pytest.mark.tiers(quick=0, rest=1)
def test_what_fails_alone_is_no_state(work: Path, name: str) -> None:
    result = audited(name)
    assert [violation.fingerprint for violation in result.violations] == ["bookkeeping/premature-stop"]
    (violation,) = result.violations
    assert violation.case.before == ()
    assert len(violation.case.prompts) == (2 if name == "wrong_first" else 1)
    assert result.doubtful == []


@pytest.mark.long
def test_a_fault_of_the_request_and_one_of_state_are_both_found(work: Path) -> None:
    result = audited("both", cases=60)
    found = {violation.fingerprint: violation.case for violation in result.violations}
    assert set(found) == {LEAKS, "bookkeeping/premature-stop"}
    assert found["bookkeeping/premature-stop"].before == ()
    assert len(found["bookkeeping/premature-stop"].prompts[0]) == 1


@pytest.mark.rest
def test_a_report_counts_them(work: Path, tmp_path: Path, leaking: tuple[Audit, Path]) -> None:
    result, _ = leaking
    report = to_dict(result, tmp_path)
    assert report["cases"]["violation"] == result.violations[0].count > 0
    assert report["cases"]["inconclusive"] == 0
    (violation,) = report["violations"]
    assert (violation["component"], violation["kind"]) == ("state", "leaks-from-earlier-request")
    assert Case.from_dict(violation["case"]) == result.violations[0].case
    known = replace(registry.load("stateful.py:last_eos"), known={LEAKS: "https://example.org/1"})
    again = replace(result, decoder=known)
    assert (again.unknown, again.unseen) == ([], [])


@pytest.mark.parametrize(("isolate", "jobs"), [(True, 1), (False, 2)])
@pytest.mark.rest
def test_in_worker_processes(work: Path, isolate: bool, jobs: int) -> None:
    result = audited("first_k", isolate=isolate, jobs=jobs)
    assert [violation.fingerprint for violation in result.violations] == [LEAKS]


@pytest.mark.rest
def test_a_stored_sequence_is_decoded_first(work: Path, leaking: tuple[Audit, Path]) -> None:
    first, corpus = leaking
    second = audited("last_eos", corpus=corpus, cases=1)
    assert LEAKS in [outcome.fingerprint for outcome in second.replayed]  # what was seen first is right alone
    assert [violation.case for violation in second.violations] == [first.violations[0].case]
    assert second.violations[0].stored
    mended = audited("counter", corpus=corpus, cases=20)
    assert mended.verdict == "equivalent"


def test_without_a_spec_no_process_can_tell() -> None:
    kept: dict[str, tuple[int, ...]] = {}

    def last_eos(target: Any, draft: Any, request: Any) -> Any:
        namespace: dict[str, Any] = {}
        exec(DECODERS.split("kept =")[0], namespace)
        before = kept.get("eos", ())
        kept["eos"] = request.eos_token_ids
        return namespace["rows_of"](target, request, (*request.eos_token_ids, *before))

    result = audit(decoder(name="mine")(last_eos), Options(cases=40))
    assert (result.verdict, result.violations) == ("inconclusive", [])
    assert any("name the decoder by a spec" in warning for warning in result.warnings)


@pytest.mark.long
def test_assert_equivalent_takes_sequences(work: Path, leaking: tuple[Audit, Path]) -> None:
    result, _ = leaking
    case = result.violations[0].case
    forget()
    mine = registry.load("stateful.py:last_eos")
    assert_equivalent(mine, replace(case, before=()))
    with pytest.raises(Violation, match=LEAKS):
        assert_equivalent(mine, case)
    assert_equivalent(registry.load("stateful.py:counter"), case)


def test_only_the_last_is_judged() -> None:
    seen: list[int] = []

    def noting(target: Any, draft: Any, request: Any) -> Any:
        seen.append(len(request.prompts))
        return [[] for _ in request.prompts] if len(request.prompts) == 3 else [[0]]

    case = Case(prompts=((1,), (2,), (3,)), before=(Case(prompts=((1,),)), Case(prompts=((1,), (2,)))))
    verdict = judge(run(noting, case))
    assert seen == [1, 2, 3]
    assert [row.observed for row in verdict.rows] == [(), (), ()]


# A case with earlier ones, as data.


def test_as_data() -> None:
    earlier = Case(prompts=((5, 7), (9,)), max_new_tokens=6, eos_token_ids=(3,))
    case = Case(prompts=((1,),), before=(earlier, earlier))
    data = json.loads(json.dumps(case.to_dict()))
    assert Case.from_dict(data) == case
    assert case.id != replace(case, before=()).id
    assert "before" not in replace(case, before=()).to_dict()
    assert replace(case, before=()).id == Case(prompts=((1,),)).id
    assert hash(case) != hash(replace(case, before=(earlier,)))


def malformed() -> Iterator[tuple[Any, str]]:
    plain = Case(prompts=((1,),)).to_dict()
    yield 3, r"before: expected a tuple \(in JSON a list\), got 3"
    yield [3], r"before\[0\]: case: expected an object, got int"
    yield [{**plain, "prompts": []}], r"before\[0\]: prompts: expected at least one row, got none"
    yield [{**plain, "before": [plain]}], r"before\[0\]: expected a case without earlier ones"
    heavy = Case(prompts=((1,) * 256,), max_new_tokens=256, num_draft_tokens=31).to_dict()
    yield [heavy] * 5, "before: expected less work than 16777216 in all, got 20971520"
    yield [plain] * (MOST_BEFORE + 1), f"before: expected at most {MOST_BEFORE} cases, got {MOST_BEFORE + 1}"


@pytest.mark.parametrize(("before", "message"), list(malformed()))
def test_malformed(before: Any, message: str) -> None:
    with pytest.raises(CaseError, match=message):
        Case.from_dict({**Case(prompts=((1,),)).to_dict(), "before": before})


def test_malformed_in_python() -> None:
    case = Case(prompts=((1,),))
    with pytest.raises(CaseError, match=r"before\[0\]: expected a case without earlier ones"):
        replace(case, before=(replace(case, before=(case,)),))
    with pytest.raises(CaseError, match=r"before\[0\]: expected a Case, got 3"):
        replace(case, before=(3,))  # type: ignore[arg-type]
    with pytest.raises(CaseError, match="before: expected a tuple"):
        replace(case, before=[case])  # type: ignore[arg-type]


# The search, on functions.


def test_delta_debugging_finds_what_is_needed() -> None:
    tried: list[tuple[int, ...]] = []

    def fails(items: tuple[int, ...], needed: tuple[int, ...]) -> bool:
        tried.append(items)
        return set(needed) <= set(items)

    for needed in ((3,), (0, 40), (7, 8, 30)):
        tried.clear()
        assert fewest(tuple(range(41)), partial(fails, needed=needed)) == needed
        assert len(tried) < 120
    assert fewest((), lambda items: True) == ()
    assert fewest((1, 2), lambda items: True) == ()


@pytest.mark.rest
def test_a_script_without_a_guard_is_not_run_again(work: Path) -> None:
    """A worker is started without the main module: it may be a script that audits as it is imported."""
    (work / "script.py").write_text(
        "import torch\nfrom eqcheck.contract import registry\n"
        "from eqcheck.audit.loop import audit\nfrom eqcheck.core.result.findings import Options\n"
        "torch.set_num_threads(1)\nprint('begins')\n"
        "print(audit(registry.load('stateful.py:wrong'), Options(cases=10)).verdict)\n"
    )
    done = subprocess.run([sys.executable, "script.py"], capture_output=True, text=True, check=False)
    assert done.stdout == "begins\nviolation\n", done.stderr
