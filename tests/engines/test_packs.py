"""Cases of an engine that share a batch: what is asked, judged by the row, and asked again alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any

from eqcheck.audit.workers.worker import Lost, Worker
from eqcheck.contract.decoders import Decoder, RowOptions
from eqcheck.contract.profiles import WIDE
from eqcheck.core.case.engine import EngineCase, EngineRow
from eqcheck.core.result.outcome import HANG, Outcome
from eqcheck.engines.checkpoints.folders import checkpoint
from eqcheck.engines.checkpoints.row_judge import Judge, truth
from eqcheck.engines.drawing import EngineCases
from eqcheck.engines.engine_outcome import judged
from eqcheck.engines.packs import CASES, Pack, Packed, packs

TAKES = ("row-limits", "row-eos", "stop-sequences", "many-rows", "arrivals")
Rows = list[list[int]]


def right(case: EngineCase) -> Rows:
    rows = truth(case.checkpoint).emitted(case.rows, max(row.options.max_new_tokens for row in case.rows))
    limits = [row.options.max_new_tokens for row in case.rows]
    return [list(o.cut(tuple(row[:most]))) for o, row, most in zip(case.options, rows, limits, strict=True)]


class Answering(Worker):
    """An engine in this process; ``asked`` are the numbers of rows of its batches."""

    def __init__(self, answer: Callable[[EngineCase], Any]) -> None:
        super().__init__(60.0)
        self.answer, self.asked = answer, list[int]()

    def exchange(self, case: Any, timeout: float, opinion: bool) -> Any:
        self.asked.append(len(case.rows))
        return self.answer(case)

    def judge(self, case: Any, answer: Any) -> Outcome:
        if "declined" in answer:
            return Outcome(case, "skipped", declined=answer["declined"])
        return judged(Judge("float32"), case, answer)


def decoder(*takes: str) -> Decoder:
    return Decoder("mine", print, checkpoints=True, capabilities=takes or TAKES)


def drawn(count: int, *takes: str) -> list[EngineCase]:
    return list(islice(EngineCases(5, takes or TAKES, bounds=WIDE, latest=True).cases(), count))


def outcomes(answer: Callable[[EngineCase], Any], cases: Sequence[EngineCase]) -> tuple[list[Outcome], Answering]:
    worker = Answering(answer)
    return list(Packed(worker, decoder()).outcomes(cases)), worker


def plain(answer: Callable[[EngineCase], Rows]) -> Callable[[EngineCase], dict[str, Any]]:
    def answered(case: EngineCase) -> dict[str, Any]:
        rows = answer(case)
        return {"outputs": rows, "observed": {"drafted": 2 * len(rows), "accepted": len(rows)}}

    return answered


def test_a_right_engine_gets_fewer_batches_and_each_case_its_outcome() -> None:
    cases = drawn(80)
    told, worker = outcomes(plain(right), cases)
    assert [one.case for one in told] == cases
    assert {one.status for one in told} == {"equivalent"}
    assert [one.outputs for one in told] == [tuple(map(tuple, right(case))) for case in cases]
    assert len(worker.asked) < 40
    assert min(worker.asked) < 4, "some are alone"
    assert max(worker.asked) > 20
    rows = sum(len(case.rows) for case in cases)
    assert sum(one.observed.get("drafted", 0) for one in told) == 2 * rows, "counts of batches add up"


def test_every_row_of_a_pack_is_a_row_of_its_case() -> None:
    cases = drawn(60)
    for pack in packs(cases, decoder()):
        for case, place in zip(pack.cases, pack.places, strict=True):
            own = pack.joined.rows[place]
            delays = {row.options.arrival - asked.options.arrival for row, asked in zip(own, case.rows, strict=True)}
            assert len(delays) == 1
            assert min(delays) >= 0
            back = [replace(row.options, arrival=each.arrival) for row, each in zip(own, case.options, strict=True)]
            assert pack.joined.of(range(len(pack.joined.rows))[place]).with_options(back) == case


def test_packs_are_of_one_setting_and_no_larger_than_the_engine_takes() -> None:
    case = EngineCase((EngineRow((1, 2), RowOptions(4)),), checkpoint=checkpoint("full").name)

    def sizes(cases: Sequence[EngineCase], *takes: str) -> list[int]:
        return [len(pack.cases) for pack in packs(cases, decoder(*takes))]

    assert sizes([case] * 2) == [2]
    assert sizes([case] * 20) == [8, 8, 4]
    assert sizes([case, *[replace(case, token_budget=16)] * 2, case]) == [1, 2, 1]
    assert sizes([case, replace(case, num_draft_tokens=3)]) == [1, 1]
    assert sizes([replace(case, switch="stop")] * 2) == [1, 1]
    long = replace(case, rows=(EngineRow((1,) * 500, RowOptions(4)),))
    assert sizes([long, long]) == [1, 1]
    other = case.with_options([RowOptions(5)])
    assert sizes([case, other], "n") == [1, 1], "rows share their limit"
    assert sizes([case, other], "row-limits") == [2]
    wide = case.of([0] * 7)
    assert sizes([wide] * 3, "n") == [1, 1, 1], "of one that takes twelve rows"
    assert sizes([wide] * 8) == [6, 2]
    assert sizes([replace(wide, kv_blocks=9)] * 4) == [2, 2]
    one = Decoder("mine", print, checkpoints=True, capabilities=TAKES, requires=("batch-1",))
    assert [len(pack.cases) for pack in packs([case, case], one)] == [1, 1]


def spoiled(rows: Rows, number: int) -> Rows:
    return [[*row[:-1], row[-1] ^ 1] if at == number else row for at, row in enumerate(rows)]


def test_a_fault_of_one_row_fails_its_own_case_alone() -> None:
    """Every prompt that ends with an even token has a wrong row."""

    def wrong(case: EngineCase) -> Rows:
        rows = right(case)
        for number, prompt in enumerate(case.prompts):
            rows = spoiled(rows, number) if prompt[-1] % 8 == 0 else rows
        return rows

    cases = drawn(40)
    told, _ = outcomes(plain(wrong), cases)
    assert [one.case for one in told] == cases
    assert [one.failed for one in told] == [any(prompt[-1] % 8 == 0 for prompt in case.prompts) for case in cases]


def test_a_fault_of_the_company_fails_the_pack() -> None:
    """The fifteenth row of a batch is wrong, whosever it is."""
    cases = [case for case in drawn(80) if len(case.rows) < 12]
    told, _ = outcomes(plain(lambda case: spoiled(right(case), 14)), cases)
    failed = [one for one in told if one.failed]
    assert len(told) == len(cases)
    assert failed
    assert all(len(one.case.rows) > 14 and one.case not in cases for one in failed)
    others = [one.case for one in told if not one.failed]
    assert [case for case in cases if case in others] == others


def crashing(case: EngineCase) -> Any:
    if any(prompt[0] % 32 == 3 for prompt in case.prompts):
        raise Lost("exception", "ProcessExit-SIGKILL", "the decoder's process was ended by SIGKILL")
    return plain(right)(case)


def test_the_case_that_crashes_is_found_in_halves() -> None:
    cases = drawn(40)
    told, worker = outcomes(crashing, cases)
    assert [one.case for one in told] == cases
    assert [one.failed for one in told] == [any(prompt[0] % 32 == 3 for prompt in case.prompts) for case in cases]
    assert max(worker.asked[-6:]) <= 12, "behind some crashes each case is alone"


def test_a_crash_of_the_company_is_the_packs() -> None:
    def many(case: EngineCase) -> Any:
        if len(case.rows) > 12:
            raise Lost("exception", "ProcessExit-SIGKILL", "the decoder's process was ended by SIGKILL")
        return plain(right)(case)

    told, _ = outcomes(many, drawn(24))
    failed = [one for one in told if one.failed]
    assert failed
    assert all(len(one.case.rows) > 12 for one in failed)


def test_a_hang_is_not_waited_for_in_every_half() -> None:
    def hanging(case: EngineCase) -> Any:
        raise Lost("hang", "", "no answer within 60 s")

    told, worker = outcomes(hanging, drawn(CASES)[:CASES])
    assert {one.symptom for one in told} == {HANG}
    assert len(worker.asked) <= CASES + 2


def test_a_batch_that_is_declined_is_asked_case_by_case() -> None:
    def declining(case: EngineCase) -> Any:
        return {"declined": "too many rows"} if len(case.rows) > 8 else plain(right)(case)

    cases = drawn(40)
    told, _ = outcomes(declining, cases)
    assert [one.case for one in told] == cases
    assert [one.status == "skipped" for one in told] == [len(case.rows) > 8 for case in cases]


def test_what_is_told_wrongly_of_a_row_is_that_rows() -> None:
    """Rows with some prompts are told to have ended by an EOS."""

    def told_of(case: EngineCase) -> Any:
        rows = right(case)
        ends = [{"finish_reason": "stop" if prompt[0] % 16 == 1 else None} for prompt in case.prompts]
        return {"outputs": rows, "told": ends}

    cases = [case for case in drawn(60) if not any(o.eos_token_ids or o.stop_sequences for o in case.options)]
    told, _ = outcomes(told_of, cases)
    assert [one.case for one in told] == cases
    assert [one.failed for one in told] == [any(prompt[0] % 16 == 1 for prompt in case.prompts) for case in cases]


def test_a_pack_of_one_is_the_case() -> None:
    case = drawn(1)[0]
    assert packs([case], decoder()) == [Pack((case,), case)]
    assert partial(packs, [])(decoder()) == []
