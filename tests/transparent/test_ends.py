"""Rows that begin or end wrongly, and calls made twice: what is said of them, and what only seems to be wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
import torch
from drafting import DraftSeesNoPrompt, losses_and_rounds, twice

import eqcheck
from eqcheck.audit.loop import audit
from eqcheck.catalogue import BUILDS, FAULTS, known_good
from eqcheck.catalogue.engines.batch import RolledBack
from eqcheck.catalogue.engines.engine import RoundEngine, Rows
from eqcheck.catalogue.engines.rows import PerRow, Uncached
from eqcheck.contract.decoders import Decoder
from eqcheck.core.case.record import Case
from eqcheck.core.explanation.records import Explanation
from eqcheck.core.explanation.statements import said
from eqcheck.core.result.findings import Options
from eqcheck.core.result.outcome import Loss
from eqcheck.transparent.attribution.lost_drafts import draft_warnings
from eqcheck.transparent.attribution.witnesses import second_opinion, variants
from eqcheck.transparent.decoding import run, truth_of
from eqcheck.transparent.oracle import Oracle, judge
from eqcheck.transparent.search import Source

PROMPTS = ((5, 7, 11), (9, 3, 4, 8), (21, 17))


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def explained(decoder: Decoder, case: Case) -> Explanation:
    """The explanation with what all witnesses say."""
    done = run(decoder.function, case)
    found = judge(done).explanation
    assert found is not None
    return second_opinion(decoder.function, done, found, None, variants(case))


def planted(switch: str) -> list[Decoder]:
    found = [fault.decoder() for fault in FAULTS if fault.switch == switch]
    assert len(found) > 1
    return found


def build(engine: type[RoundEngine], base: str) -> Decoder:
    mixed = type(engine.__name__, (engine, BUILDS[base].engine), {"__doc__": "Broken."})
    return replace(BUILDS[base], engine=mixed).decoder(engine.__name__)


# Calls made twice:


def test_a_draft_that_is_out_of_step_is_told_where_calls_are_made_twice() -> None:
    total = Counter[Loss]()
    for case in Source(8, ("rotary",), ("left",)).chunk(0, 12):
        total.update(losses_and_rounds(twice(DraftSeesNoPrompt), case)[0])
    (warning,) = draft_warnings(total)
    assert warning.startswith("draft/desync: ")


def test_no_share_is_more_than_the_whole() -> None:
    (warning,) = draft_warnings(Counter({Loss("rounds"): 90, Loss("ideal"): 20, Loss("allowed"): 40, Loss("lost"): 50}))
    assert "%" not in warning
    assert "90 rounds where 20 do: some committed nothing" in warning


# Answers to a part of the prompt:


@pytest.mark.parametrize("decoder", planted("T29-first-piece-answered"), ids=lambda one: one.name)
def test_an_answer_to_a_part_of_the_prompt_is_told(decoder: Decoder) -> None:
    case = Case(PROMPTS, 4, 2, accepts=((1,), (0,), (2,)), cache_state="chunked", prefill_chunk=2)
    found = explained(decoder, case)
    assert found.fingerprint == "bookkeeping/unfinished-prompt"
    assert (found.facts["last"], found.facts["position"]) == (1, 1)
    assert "the prompt was not completely prefilled" in found.detail
    assert found.detail.endswith("the returned token is its prediction after position 1")


def test_where_no_draft_proposed_a_token_it_is_no_rejected_one() -> None:
    """A prompt is fed two tokens a round, each answer is committed, and all is fed anew each round."""

    class TwoARound(PerRow):
        def verify(self, drafts: Rows) -> Rows:
            found = []
            for place, i in enumerate(self.active):
                pending = self.rows[i][self.lengths[i] :]
                whole = len(pending) <= 2 or self.lengths[i] >= self.starts[i]
                block = pending + drafts[place] if whole else pending[:2]
                answers = self.feed(i, block).argmax(-1).tolist()
                drafts[place][:] = drafts[place] if whole else []
                found.append(answers[-len(drafts[place]) - 1 :])
            return found

        def cached_after(self, place: int, count: int) -> int:
            i = self.active[place]
            return min(self.lengths[i], super().cached_after(place, count) if self.lengths[i] > self.starts[i] else 99)

    decoder = build(TwoARound, "per_row")
    wrong = [judge(run(decoder.function, case)) for case in Source(4, ("rotary", "learned"), ("left",)).chunk(0, 30)]
    found = [one.explanation.fingerprint for one in wrong if one.explanation]
    assert len(found) > 9
    assert set(found) == {"bookkeeping/unfinished-prompt"}


# Starts that are too early:


@pytest.mark.parametrize("decoder", planted("T17-start-counted-without-pads"), ids=lambda one: one.name)
def test_a_start_that_is_short_by_the_pads_of_the_prompt_is_told(decoder: Decoder) -> None:
    case = Case(((5, 7, 6, 7, 12), (9, 3)), 4, 2, accepts=((1,), (2,)), pad_token_id=7)
    found = explained(decoder, case)
    assert (found.fingerprint, found.row) == ("bookkeeping/prompt-in-output", 0)
    assert found.detail == (
        "the output starts 2 tokens too early, with the end of the prompt; exactly as many tokens of the prompt are "
        "equal to the pad id"
    )


def test_a_start_that_is_short_for_another_reason_names_none() -> None:
    class ShortestForAll(RoundEngine):
        def outputs(self) -> Rows:
            return [row[min(self.starts) :] for row in self.rows]

    found = explained(build(ShortestForAll, "uncached"), Case(PROMPTS, 4, pad_token_id=3))
    assert found.fingerprint == "bookkeeping/prompt-in-output"
    assert found.detail == "the output starts 1 token too early, with the end of the prompt"


def test_the_oracle_tells_it_from_outputs_alone() -> None:
    from eqcheck.transparent.hashlm.model import HashConfig, HashLM

    oracle = Oracle(HashLM(HashConfig(seed=1)))
    truth = oracle.truth([3, 0, 4], max_new_tokens=3)
    found = oracle.check([[3, 0, 4]], [[4, *truth]], max_new_tokens=3, pad_token_id=0).explanation
    assert found is not None
    assert found.detail.endswith("exactly as many tokens of the prompt are equal to the pad id and to id 0")


# Rows that end early:


class StripsEos(RoundEngine):
    def outputs(self) -> Rows:
        return [row[:-1] if row[-1] in self.eos else row for row in super().outputs()]


class EndsWithOne(RoundEngine):
    def retire(self, counts: list[int], going: list[int]) -> None:  # type: ignore[override]
        super().retire(counts, going if len(going) == len(self.active) else [])


def ending(row: int, index: int, limit: int = 6) -> Case:
    """A case in which a row ends at a new token by its EOS."""
    case = Case(PROMPTS, limit, 2, accepts=((1, 2), (0, 2), (2, 0)))
    return replace(case, eos_token_ids=(truth_of(case).uncut[row][index],))


@pytest.mark.parametrize("base", ["realigned", "per_row", "rolled_back", "uncached"])
@pytest.mark.tiers(quick=3, rest=1)
def test_an_eos_that_is_not_written_is_told(base: str) -> None:
    found = explained(build(StripsEos, base), ending(1, 2))
    assert found.fingerprint == "bookkeeping/premature-stop"
    assert "the target predicted the EOS" in found.detail
    assert str(found.facts["also"]).startswith("eos-answered")


@pytest.mark.parametrize("base", ["realigned", "per_row", "uncached"])
def test_the_row_that_ended_in_the_round_is_said(base: str) -> None:
    found = explained(build(EndsWithOne, base), ending(1, 0))
    assert (found.fingerprint, found.facts["eos_rows"]) == ("bookkeeping/premature-stop", "1")
    assert "row 1 reached an EOS in this round" in found.detail
    assert "the target is not called after this round" in found.detail


def test_the_row_that_reached_its_limit_in_the_round_is_said() -> None:
    case = Case(PROMPTS, 5, 2, accepts=((2, 2), (0,), (0,)))
    found = explained(build(EndsWithOne, "realigned"), case)
    assert (found.row, found.facts["limit_rows"]) == (1, "0")
    assert "row 0 reached max_new_tokens in this round" in found.detail


def test_an_answer_that_was_taken_back_when_the_batch_ended_is_no_missing_eos() -> None:
    """Rows wait for the one that accepts least; the EOS of row 0 is answered, and row 1 ends the batch."""
    case = Case(((5, 7, 11), (9, 3, 4, 8)), 2, 2, accepts=((2,), (0, 0)))
    truth = truth_of(case).uncut
    case = replace(case, eos_token_ids=(truth[0][1], truth[1][0]))
    engine = type("Ends", (EndsWithOne, RolledBack), {"__doc__": "Broken."})
    found = explained(replace(BUILDS["rolled_back"], engine=engine).decoder("ends"), case)
    assert found.fingerprint == "bookkeeping/premature-stop"
    assert (found.facts["statement"], found.facts["eos_rows"]) == ("eos-missing", "1")


def test_a_block_without_room_is_said() -> None:
    for decoder in planted("T28-no-room-for-a-block"):
        found = explained(decoder, Case(PROMPTS, 5, 2, accepts=((2,), (0, 0), (1,))))
        assert found.fingerprint == "bookkeeping/premature-stop"
        assert "while a round returns up to K + 1 = 3" in found.detail


@pytest.mark.rest
def test_what_all_failing_cases_share_and_no_right_one_has_is_said() -> None:
    result = audit(build(EndsWithOne, "uncached"), Options(cases=60, seed=3))
    (finding,) = result.violations
    assert finding.fingerprint == "bookkeeping/premature-stop"
    assert any(
        one.startswith("fails whenever another row ended in the same round (all ")
        and one.endswith(" correct cases no row ended before the last round of the others")
        for one in finding.only
    )
    (other,) = audit(build(StripsEos, "uncached"), Options(cases=60, seed=3)).violations
    assert other.fingerprint == "bookkeeping/premature-stop"
    assert not any("another row" in one for one in other.only)
    assert any(one.startswith("in all ") and one.endswith(" only the row's own EOS is missing") for one in other.only)


class EndsByPrompt(RoundEngine):
    """The prompt is searched for an EOS, too; and the EOS of other rows is cut off."""

    def outputs(self) -> Rows:
        rows = super().outputs()
        fed = [bool(set(prompt) & set(self.eos)) for prompt in self.request.prompts]
        return [
            row[:1] if inside else row[:-1] if row[-1] in self.eos else row
            for row, inside in zip(rows, fed, strict=True)
        ]


@pytest.mark.rest
def test_two_faults_that_end_rows_are_told_apart() -> None:
    (finding,) = audit(build(EndsByPrompt, "uncached"), Options(cases=150)).violations
    said = "\n".join(finding.only)
    assert "failing cases only the row's own EOS is missing; in " in said
    assert "others the prompt contains an EOS" in said


@pytest.mark.rest
def test_a_last_token_that_is_cut_off_is_one_fault() -> None:
    """Some rows lack an EOS then, and others one token of max_new_tokens."""
    short = eqcheck.decoder(name="short")(lambda *asked: [row[:-1] for row in known_good()["one_row"](*asked)])
    (finding,) = audit(short, Options(cases=60)).violations
    (said,) = finding.only
    assert said == "in all 60 failing cases only the last token of the row is missing, an EOS or not"


@pytest.mark.parametrize(
    ("engine", "case", "by"),
    [
        (StripsEos, ending(1, 2), "own-eos"),
        (EndsWithOne, ending(1, 0), "another-row"),
        (EndsByPrompt, replace(Case(((5, 7, 11),), 4), eos_token_ids=(7,)), "prompt-eos"),
    ],
)
def test_what_ended_a_row_is_a_fact(engine: type[RoundEngine], case: Case, by: str) -> None:
    found = explained(build(engine, "uncached"), case)
    assert found.fingerprint == "bookkeeping/premature-stop"
    assert by in str(found.facts["may_end_by"]).split()


def test_a_miscounted_limit_is_a_fact() -> None:
    short = eqcheck.decoder(name="short")(lambda *asked: [row[:-1] for row in known_good()["one_row"](*asked)])
    found = explained(short, Case(((5, 7, 11),), 4))
    assert (found.facts["may_end_by"], found.facts["short"], found.facts["limit"]) == ("limit", 1, 4)
    assert "the row is 1 token short of max_new_tokens, which is 4" in said(found.facts)


def test_a_prompt_that_is_fed_at_once_is_never_unfinished() -> None:
    """The answer behind another id of the prompt is emitted, from the call that was fed all of it."""

    class OneEarly(Uncached):
        def answers(self, logits: Iterable[torch.Tensor], drafts: Rows) -> Rows:
            found = [row.argmax(-1).tolist() for row in logits]
            return [
                row[-len(d) - 2 : -1] if len(row) > len(d) + 1 else row for row, d in zip(found, drafts, strict=True)
            ]

    found = judge(run(build(OneEarly, "uncached").function, Case(PROMPTS, 4, 2, accepts=((2,), (1,))))).explanation
    assert found is not None
    assert found.kind != "unfinished-prompt"


# Rows that go on:


def going_on(target: Any, draft: Any, request: Any) -> list[list[int]]:
    """One row at a time, without a cache; a row that has ended goes on for two rounds."""
    outputs = []
    for prompt in request.prompts:
        row, late = list(prompt), 0
        while late < 3:
            drafts = list[int]()
            for _ in range(request.num_draft_tokens):
                drafts.append(int(draft(input_ids=torch.tensor([[*row, *drafts]])).logits[0, -1].argmax()))
            answers = target(input_ids=torch.tensor([[*row, *drafts]])).logits[0].argmax(-1).tolist()[len(row) - 1 :]
            agreed = next((n for n, token in enumerate(drafts) if token != answers[n]), len(drafts))
            row += answers[: agreed + 1]
            late += late > 0 or len(row) - len(prompt) >= request.max_new_tokens
        outputs.append(row[len(prompt) :])
    return outputs


def test_a_row_that_goes_on_for_rounds_is_wrong_in_the_first_of_them() -> None:
    case = Case(prompts=((10,),), max_new_tokens=2, num_draft_tokens=1, accepts=((0,) * 9,))
    found = explained(eqcheck.decoder(name="going-on")(going_on), case)
    assert (found.fingerprint, found.token_index, found.round) == ("bookkeeping/over-length", 2, 3)
    assert len(found.observed_row) > 3, "the row has more rounds behind that one"
    assert found.repair is not None
    assert not found.repair.failed, "a token behind the end of a row has no right context to be given"


def with_prompt(target: Any, draft: Any, request: Any) -> list[list[int]]:
    """Each row ends where its prompt and new tokens together end with a stop sequence."""
    outputs = []
    for prompt, options in zip(request.prompts, request.rows, strict=True):
        row = list(prompt)
        while len(row) - len(prompt) < options.max_new_tokens and not (len(row) > len(prompt) and options.ended(row)):
            row.append(int(target(input_ids=torch.tensor([row])).logits[0, -1].argmax()))
        outputs.append(row[len(prompt) :])
    return outputs


def test_a_stop_that_begins_in_the_prompt_is_told() -> None:
    first = truth_of(Case(prompts=((10, 11),), max_new_tokens=1)).rows[0][0]
    stopping = Case(prompts=((10, 11),), max_new_tokens=4, stop_sequences=(((11, first),),))
    found = explained(eqcheck.decoder(name="with-prompt", capabilities=("stop-sequences",))(with_prompt), stopping)
    assert found.fingerprint == "bookkeeping/premature-stop"
    assert f"the stop sequence 11 {first} matches across the end of the prompt and the new tokens" in said(found.facts)
    plain = replace(stopping, stop_sequences=(((12, first),),))
    assert judge(run(with_prompt, plain)).status == "equivalent"
