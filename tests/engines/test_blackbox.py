"""Decoders judged by their tokens: the worker, the checkpoint, the policy on numbers, cases, minimising."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
import torch

from eqcheck.audit.loop import audit
from eqcheck.audit.workers.interpreter import environment
from eqcheck.contract import registry
from eqcheck.contract.decoders import CAPABILITIES, Decoder, RowOptions
from eqcheck.contract.errors import CaseError, UsageError
from eqcheck.core.case.engine import EngineCase, EngineRow
from eqcheck.core.result.findings import Options
from eqcheck.engines.checkpoints.continuations import ModelTruth
from eqcheck.engines.checkpoints.folders import checkpoint
from eqcheck.engines.checkpoints.row_judge import Judge, truth
from eqcheck.engines.drawing import BLOCK, EngineCases, exercised
from eqcheck.engines.investigate import minimise, needs, without
from eqcheck.engines.lane import worker as worker_of

CASE = EngineCase((EngineRow((1, 2, 3), RowOptions(4)), EngineRow((9,), RowOptions(4))), num_draft_tokens=2)
ENGINE = """
import os, signal, sys, time
import eqcheck

@eqcheck.decoder(name="engine", checkpoints=True, dtype="float32")
class Engine:
    def open(self):
        print("noise on standard output")
        self.version = "7.1"

    def __call__(self, target, draft, request):
        token = request.prompts[0][0]
        if token == 1:
            print("more noise")
            os.write(1, b"and below Python\\n")
        if token == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        if token == 3:
            time.sleep(600)
        if token == 4:
            raise KeyError(str(target))
        if token == 5:
            return [[10**6]]
        if token == 6:
            raise eqcheck.contract.errors.Unsupported("six is too much")
        if token == 7:
            os.spawnlp(os.P_NOWAIT, "sleep", "sleep", "600")
            time.sleep(600)
        self.observed = {"pid": os.getpid()}
        return [[prompt[-1]] for prompt in request.prompts]
"""


@pytest.fixture
def engine(tmp_path: Path) -> Decoder:
    (tmp_path / "engine.py").write_text(ENGINE)
    return registry.load(str(tmp_path / "engine.py"))


def _asking(token: int) -> EngineCase:
    return EngineCase((EngineRow((token, 8), RowOptions(1)),))


def test_a_worker_survives_many_cases_and_what_the_decoder_prints(engine: Decoder) -> None:
    with worker_of(engine, sys.executable) as worker:
        answers = [worker.try_case(_asking(token)) for token in (1, 1, 8)]
    assert [answer.outputs for answer in answers] == [((8,),)] * 3
    assert len({answer.observed["pid"] for answer in answers}) == 1
    assert worker.version == "7.1"


RENEWED = """
import os
import eqcheck

@eqcheck.decoder(name="renewed", checkpoints=True, dtype="float32")
class Engine:
    decoded = 0

    def renew(self):
        if self.decoded > 2:
            raise RuntimeError("too late")
        self.decoded = 0

    def __call__(self, target, draft, request):
        self.decoded += 1
        self.observed = {"pid": os.getpid()}
        return [[self.decoded] for _ in request.prompts]
"""


def test_a_decoder_that_forgets_needs_no_new_process(tmp_path: Path) -> None:
    (tmp_path / "renewed.py").write_text(RENEWED)
    with worker_of(registry.load(str(tmp_path / "renewed.py")), sys.executable) as worker:
        first, second = worker.try_case(_asking(8)), worker.try_case(_asking(8))
        assert worker.renew()
        third = worker.try_case(_asking(8))
        assert [answer.outputs for answer in (first, second, third)] == [((1,),), ((2,),), ((1,),)]
        assert first.observed == second.observed == third.observed  # the same process
        assert (second.history.done, third.history.done) == (1, 0)
        for _ in range(2):
            worker.try_case(_asking(8))
        assert worker.renew()  # it fails to forget: then there is a new process
        last = worker.try_case(_asking(8))
        assert (last.outputs, last.history.done) == (((1,),), 0)
        assert last.observed != first.observed


def test_a_worker_that_dies_hangs_or_raises_is_the_decoders_failure_and_is_replaced(engine: Decoder) -> None:
    with worker_of(engine, sys.executable, timeout=600.0) as worker:
        found = {}
        for token in (2, 3, 4, 5):
            answer = worker.try_case(_asking(token), 1.0 if token == 3 else None)
            assert answer.outputs is None
            assert answer.explanation is not None
            found[token] = answer.explanation.fingerprint
            assert token != 4 or 'File "eqcheck/audit/workers/serve.py"' in answer.traceback
            assert worker.try_case(_asking(8)).outputs == ((8,),)
        refused = worker.try_case(_asking(6))
    assert found[2] == "crash/exception:ProcessExit-SIGKILL"
    assert found[3] == "crash/hang"
    assert found[4] == "crash/exception:KeyError"
    assert found[5].startswith("crash/invalid-output")
    assert (refused.explanation, refused.declined) == (None, "six is too much")


def test_no_process_is_left_behind_by_a_hanging_decoder(engine: Decoder) -> None:
    with worker_of(engine, sys.executable, timeout=600.0) as worker:
        worker.try_case(_asking(8))
        assert worker._process is not None
        group = worker._process.pid
        assert _alive(group)
        worker.try_case(_asking(7), 1.0)
    assert not _alive(group)


@pytest.mark.long
def test_a_worker_ends_when_its_parent_is_killed(engine: Decoder, tmp_path: Path) -> None:
    program = (
        "import sys\nfrom eqcheck.contract import registry\n"
        "from eqcheck.engines.lane import worker as worker_of\n"
        "from eqcheck.core.case.engine import EngineCase, EngineRow\nfrom eqcheck.contract.decoders import RowOptions\n"
        "worker = worker_of(registry.load(sys.argv[1]), sys.executable)\n"
        "worker.try_case(EngineCase((EngineRow((8,), RowOptions(1)),)))\n"
        "print(worker._process.pid, flush=True)\n"
        "worker.try_case(EngineCase((EngineRow((3,), RowOptions(1)),)))\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, engine.spec], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as parent:
        assert parent.stdout is not None
        group = int(parent.stdout.readline())
        assert _alive(group)
        parent.kill()
    end = time.monotonic() + 600
    while _alive(group) and time.monotonic() < end:
        time.sleep(0.05)
    assert not _alive(group)


def _alive(group: int) -> bool:
    """Whether any process of the group runs; one that only waits to be reaped does not."""
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, its_group = status.read_text().rpartition(")")[2].split()[:3]
        except (OSError, ValueError):
            continue
        if int(its_group) == group and state != "Z":
            return True
    return False


def test_a_decoder_that_cannot_be_set_up_is_no_violation_but_an_error(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(ENGINE.replace("print(", "raise RuntimeError('no engine here') #("))
    broken = registry.load(str(tmp_path / "broken.py"))
    with pytest.raises(UsageError, match="no engine here"):
        audit(broken, Options(cases=3, python=sys.executable))


def test_an_environment_is_named_given_or_this_one(
    engine: Decoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert environment(engine, None) == sys.executable
    with pytest.raises(UsageError, match="--python /no/such: expected the Python"):
        environment(engine, "/no/such")
    foreign = replace(engine, environment="elsewhere")
    with pytest.raises(UsageError, match="make engines"):
        environment(foreign, None)
    python = tmp_path / ".venv-elsewhere" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    assert environment(foreign, None) == str(python)


@torch.no_grad()
def measure() -> dict[str, float]:
    """How fit the pair is for finding faults, over 32 random prompts of 12 tokens with 32 new ones.

    ``distinct`` of the 32 new tokens of a row; ``sensitivity``: how often the next token changes when one token of the
    context does, the least over all places; ``agreement``: how often the draft's choice is the target's, and of one row
    the ``least`` and ``most``.
    """
    target, draft = checkpoint().models()
    generator = torch.Generator().manual_seed(7)
    rows, new = 32, 32
    tokens = torch.randint(256, (rows, 12), generator=generator)
    for _ in range(new):
        tokens = torch.cat([tokens, target(tokens).logits[:, -1].argmax(-1, keepdim=True)], 1)
    emitted = tokens[:, -new:]
    after = target(tokens).logits[:, -1].argmax(-1)
    changed = []
    for place in range(tokens.shape[1]):
        other = tokens.clone()
        other[:, place] = (other[:, place] + torch.randint(1, 256, (rows,), generator=generator)) % 256
        changed.append((target(other).logits[:, -1].argmax(-1) != after).double().mean().item())
    agrees = (draft(tokens).logits[:, -new - 1 : -1].argmax(-1) == emitted).double().mean(1)
    return {
        "distinct": sum(len(set(row.tolist())) for row in emitted) / rows,
        "sensitivity": min(changed),
        "agreement": agrees.mean().item(),
        "least": agrees.min().item(),
        "most": agrees.max().item(),
    }


@pytest.mark.rest
def test_the_checkpoint_is_varied_sensitive_and_partly_agreed_on() -> None:
    figures = measure()
    assert figures["distinct"] > 24  # of 32 new tokens
    assert figures["sensitivity"] > 0.15  # at the least effective place of the context
    assert 0.3 < figures["least"] < figures["agreement"] < figures["most"] < 0.9


def test_truth_with_a_cache_is_what_every_token_says_without_one() -> None:
    truth = ModelTruth(checkpoint().models()[0])
    options = RowOptions(12, (3, 77), 4, 1.3, 0.7)
    for row in (EngineRow((5, 6, 7), RowOptions(12)), EngineRow((5, 6, 7), options)):
        tokens = truth.row(row)
        assert truth.choices(row, tokens).tolist()[: len(tokens)] == tokens


def test_what_is_emitted_together_is_what_each_row_emits_alone() -> None:
    truth = ModelTruth(checkpoint().models()[0])
    rows = [EngineRow(tuple(range(3, 3 + size)), RowOptions(9, (1,), 3, 1.2)) for size in (1, 17, 60)]
    free = [EngineRow(row.prompt, RowOptions(9)) for row in rows]
    emitted = truth.emitted(rows, 9)
    assert emitted == [truth.row(row) for row in free]
    for row, output, scores in zip(free, emitted, truth.together(free, emitted), strict=True):
        torch.testing.assert_close(scores, truth.scores(row, output))


def test_penalties_and_minimum_are_applied_as_the_libraries_do() -> None:
    truth = ModelTruth(checkpoint().models()[0])
    plain, row = EngineRow((5, 6, 5), RowOptions(2)), EngineRow((5, 6, 5), RowOptions(2, (9,), 2, 2.0, 0.5))
    before, after = truth.scores(plain, [8]), truth.scores(row, [8])
    for token, seen, emitted in ((5, True, False), (8, True, True), (100, False, False)):
        score = before[1, token]
        expected = (score / 2 if score > 0 else score * 2) if seen else score
        assert after[1, token] == expected - (0.5 if emitted else 0.0)
    assert after[1, 9] == float("-inf")
    assert after[0, 8] == before[0, 8]


def test_a_near_tie_is_a_tie_and_the_rest_is_judged_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    judge = Judge("float32")
    row = CASE.rows[0]
    scores = truth().scores(row, ())[0]
    best, second = scores.topk(2).indices.tolist()
    output = truth().row(row, [second])
    case = EngineCase((row,))
    (judgement,) = judge.rows(case, [output])
    assert (judgement.first, judgement.expected) == (0, best)
    margin = float(scores[best] - scores[second])
    monkeypatch.setattr(Judge, "_bound", lambda *_: 1.01 * margin)
    (judgement,) = judge.rows(case, [output])
    assert (judgement.first, [tie.index for tie in judgement.ties]) == (None, [0])
    wrong = [*output[:-1], (output[-1] + 1) % 256]
    (judgement,) = judge.rows(case, [wrong])
    assert (judgement.first, [tie.index for tie in judgement.ties]) == (len(wrong) - 1, [0])


def test_the_bound_is_far_below_what_separates_tokens_and_covers_another_order_of_adding() -> None:
    judge = Judge("float32")
    row = EngineRow(tuple(range(40)), RowOptions(24))
    outputs = [truth().row(row)]
    scores = truth().scores(row, outputs[0])
    bound = judge._bound(EngineCase((row,)), outputs, [scores])
    top = scores.topk(2).values
    assert 0 < bound < 0.01 * float((top[:, 0] - top[:, 1]).median())
    assert Judge("float64")._bound(EngineCase((row,)), outputs, [scores]) == 0
    for less in ("bfloat16", "float16"):  # the random checkpoint cannot be judged in them, a built one can
        judge.dtype = getattr(torch, less)
        assert judge._bound(EngineCase((row,)), outputs, [scores]) > float((top[:, 0] - top[:, 1]).median())
        assert judge._bound(EngineCase((row,), checkpoint="full"), outputs, [scores]) == 0


@pytest.mark.parametrize(
    ("output", "first", "expected_end"),
    [([], 0, False), ("short", 3, False), ("long", 4, True)],
)
def test_rows_that_end_early_or_late_are_wrong(output: object, first: int, expected_end: bool) -> None:
    judge = Judge("float32")
    row = CASE.rows[0]
    right = truth().row(row)
    rows = {"short": right[:3], "long": [*right, 1]}
    (judgement,) = judge.rows(EngineCase((row,)), [rows.get(str(output), [])])
    assert judgement.first == first
    assert (judgement.expected is None) == expected_end
    ends = EngineRow(row.prompt, RowOptions(4, (right[1],)))
    (judgement,) = judge.rows(EngineCase((ends,)), [right])
    assert (judgement.first, judgement.expected) == (2, None)


def test_a_case_is_what_it_was_after_a_round_trip_and_malformed_ones_are_refused() -> None:
    case = EngineCases(3, tuple(CAPABILITIES)).case(BLOCK + 1)
    assert EngineCase.from_dict(case.to_dict()) == case
    assert case.id != CASE.id
    for broken, message in (
        ({"format": "eqcheck-case/1"}, "expected format"),
        ({**CASE.to_dict(), "kvblocks": 3}, "did you mean 'kv_blocks'"),
        ({**CASE.to_dict(), "rows": []}, "at least one"),
        ({**CASE.to_dict(), "rows": [{"prompt": [], "max_new_tokens": 1}]}, "at least one token"),
        ({**CASE.to_dict(), "rows": [{"prompt": [1]}]}, "max_new_tokens"),
    ):
        with pytest.raises(CaseError, match=message):
            EngineCase.from_dict(broken)


@pytest.mark.rest
def test_cases_stay_within_the_capabilities_and_reach_each_of_them() -> None:
    for case in islice(EngineCases(1, ()).cases(), 20):
        assert set(needs(case)) <= {"eos-token-ids"}
        assert len({row.options for row in case.rows}) == 1
    found = set()
    axes = EngineCases(1, tuple(CAPABILITIES))
    for number in range(60):
        case = axes.case(number * BLOCK)
        found |= set(needs(case))
        found |= {"row-limits"} if len({row.options.max_new_tokens for row in case.rows}) > 1 else set()
    assert found >= {"ngram", "token-budget", "kv-blocks", "prefix-caching", "arrival", "min-new-tokens", "many-rows"}
    assert found >= {"repetition-penalty", "presence-penalty", "eos-token-ids", "row-limits"}


def test_triggers_are_recorded_only_where_they_fired() -> None:
    truth = ModelTruth(checkpoint().models()[0])
    free = EngineRow((5, 6, 7), RowOptions(6))
    eos = truth.row(free)[2]
    held, late = (EngineRow((5, 6, 7), RowOptions(6, (eos,), minimum)) for minimum in (4, 1))
    for row, fired in ((held, True), (late, False)):
        case = EngineCase((row,))
        assert ("min_new_tokens" in exercised(case, (tuple(truth.row(row)),), {})) == fired
    case = replace(CASE, kv_blocks=9)
    assert "preemptions" not in exercised(case, ((1,), (1,)), {"preemptions": 0})
    assert "preemptions" in exercised(case, ((1,), (1,)), {"preemptions": 2})
    assert "kv_blocks" not in exercised(case, ((1,), (1,)), {})
    ngram = replace(CASE, drafting="ngram")
    for drafted, fired in ((3, False), (2, True)):  # of six tokens two are first ones, and one was accepted
        assert ("ngram_silent" in exercised(ngram, ((1,) * 3, (1,) * 3), {"drafted": drafted, "accepted": 1})) == fired
    assert "ngram_silent" not in exercised(ngram, ((1,) * 3, (1,) * 3), {})


def test_minimising_walks_options_back_and_keeps_what_the_failure_needs() -> None:
    rows = tuple(EngineRow(tuple(range(20)), RowOptions(20, (1, 2), 3, 1.3, 0.5, 2)) for _ in range(20))
    case = EngineCase(rows, 8, "ngram", 32, 9, True)

    def fails(one: EngineCase) -> bool:
        return one.kv_blocks is not None and any(row.options.min_new_tokens > 1 for row in one.rows)

    smallest = minimise(case, fails, 20.0)
    assert needs(smallest) == ("kv-blocks", "min-new-tokens")
    assert len(smallest.rows) == 1
    assert len(smallest.rows[0].prompt) == 1
    assert needs(without(smallest, needs(smallest))) == ()


def test_rows_that_share_options_still_do_after_minimising() -> None:
    eos = ModelTruth(checkpoint().models()[0]).row(EngineRow((1, 2, 0), RowOptions(9)))[3]
    case = EngineCase(tuple(EngineRow((1, 2, number), RowOptions(9, (eos,))) for number in range(3)), 3)
    seen: list[EngineCase] = []

    def fails(one: EngineCase) -> bool:
        seen.append(one)
        first = one.rows[0]
        return len(one.rows) > 1 and first.options == case.rows[0].options and len(first.prompt) == 3

    smallest = minimise(case, fails, 20.0, capabilities=())
    assert all(len({row.options for row in one.rows}) == 1 for one in seen)
    assert len(smallest.rows) == 2
