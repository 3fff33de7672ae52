"""Engines and the ends of rows: each fault of a stop, a reason or a count is named, and the right engine is clean."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from eqcheck.audit.loop import audit
from eqcheck.contract import registry
from eqcheck.contract.decoders import RowOptions
from eqcheck.core.case.engine import EngineCase, EngineRow
from eqcheck.core.explanation.text import render
from eqcheck.core.result.findings import Audit, Options
from eqcheck.engines.checkpoints.continuations import row_with
from eqcheck.engines.checkpoints.row_judge import Judge, truth
from eqcheck.engines.drawing import BLOCK, EngineCases, alike
from eqcheck.engines.engine_outcome import UNEXPLAINED, EngineOutcome, abduced, explain, judged
from eqcheck.engines.lane import worker

ENGINE = '''
import eqcheck
from eqcheck.checkpoints import built

CAPABILITIES = ("row-limits", "row-eos", "stop-sequences", "finish-reason", "cancel")

@eqcheck.decoder(name="ends", checkpoints=True, capabilities=CAPABILITIES)
class Engine:
    def open(self):
        self.target = built("full").function

    def __call__(self, target, draft, request):
        rows = zip(request.prompts, request.rows, strict=True)
        return [self.row(prompt, options, request.num_draft_tokens + 1) for prompt, options in rows]

    def row(self, prompt, options, block):
        """Rounds of one length; behind a stop the rest of the round is cut."""
        new, limit = self.target.emitted(prompt, options.max_new_tokens), options.max_new_tokens
        ends = [n for n in range(1, len(new) + 1) if options.ended(new[:n])]
        end = min([*ends, limit])
        if options.cancel_after:
            end = min(end, -(-options.cancel_after // block) * block)
        rounds = -(-end // block)
        FAULT
        row = new[:end]
        stops = options.stops_of(row)
        told = "stop" if options.ended(row) else "length"
        usage = {"prompt_tokens": len(prompt), "completion_tokens": len(row)}
        completion = eqcheck.Completion(row, told, stops[0] if stops else None, usage=usage)
        TOLD
        return completion
'''
FAULTS = {
    "right": ("", "", set()),
    "stop in the middle of a round": (
        "end = min([n for n in ends if n % block == 0 or new[n - 1] in options.eos_token_ids] + [limit])",
        "",
        {"options/ignored-option:stop-sequences"},
    ),
    "stop over the prompt": (
        "text = [*prompt, *new]\n"
        "        matches = [n for n in range(1, end) if options.stops_of(text[: len(prompt) + n])]\n"
        "        end = min([*matches, end])",
        "completion = row",
        {"bookkeeping/premature-stop"},
    ),
    "tokens behind the stop": (
        "end = end if new[end - 1] in options.eos_token_ids else min(rounds * block, limit)",
        "completion = row",
        {"options/ignored-option:stop-sequences"},
    ),
    "stop taken away": (
        "",
        "completion = row[: end - max(map(len, stops), default=0)]",
        {"bookkeeping/premature-stop"},
    ),
    "length at the last token": (
        "",
        "completion = eqcheck.Completion(row, 'length', usage=usage) if end == limit else completion",
        {"bookkeeping/finish-reason"},
    ),
    "another stop": (
        "",
        "completion = eqcheck.Completion(row, told, options.stop_sequences[-1] if stops else None)",
        {"bookkeeping/finish-reason"},
    ),
    "cancelled too early": (
        "end = min(end, options.cancel_after - 1) if options.cancel_after else end",
        "",
        {"bookkeeping/premature-stop"},
    ),
    "cancelled with a draft": (
        "new[end - 1] ^= bool(options.cancel_after and end < min([*ends, limit]))",
        "completion = row",
        {"unattributed/unattributed"},
    ),
    "refused in the middle": (
        "",
        "early = options.stop_sequences and end > block + 1\n"
        "        completion = eqcheck.Completion(row[: block + 1], 'error') if early else row",
        {"bookkeeping/premature-stop:error"},
    ),
    "error at the end": (
        "",
        "completion = eqcheck.Completion(row, 'error') if end == limit else completion",
        {"bookkeeping/finish-reason"},
    ),
    "rejected drafts counted": (
        "",
        "completion = eqcheck.Completion(row, told, completion.stop, usage={'completion_tokens': rounds * block})",
        {"bookkeeping/usage"},
    ),
}


def audited(folder: Path, fault: str = "", told: str = "", cases: int = 60) -> Audit:
    (folder / "ends.py").write_text(ENGINE.replace("FAULT", fault or "pass").replace("TOLD", told or "pass"))
    return audit(registry.load(str(folder / "ends.py")), Options(cases=cases, python=sys.executable))


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.tiers(quick=1, rest=1)
def test_a_fault_of_ends_is_named(tmp_path: Path, name: str) -> None:
    fault, told, named = FAULTS[name]
    found = audited(tmp_path, fault, told)
    assert {finding.fingerprint for finding in found.findings} == named
    if not named:
        assert found.verdict == "equivalent"
        for counter in ("stopped", "stop_of_several", "stop_in_prompt", "stop_left_open", "finish_reason", "cancelled"):
            assert found.coverage[counter] > 2, counter


def test_a_decoder_that_tells_no_reason_is_told_so_in_one_line(tmp_path: Path) -> None:
    found = audited(tmp_path, told="completion = row", cases=20)
    (said,) = (warning for warning in found.warnings if "finish-reason is declared" in warning)
    assert "return eqcheck.Completion(tokens, finish_reason=...)" in said
    assert found.verdict == "equivalent"


NEW = truth("full").row(EngineRow((1, 2, 3), RowOptions(8)))


def case_with(*stops: tuple[int, ...], limit: int = 8) -> EngineCase:
    return EngineCase((EngineRow((1, 2, 3), RowOptions(limit, stop_sequences=stops)),), checkpoint="full")


def test_the_truth_ends_rows_at_stops_and_a_row_behind_one_is_wrong() -> None:
    case = case_with(tuple(NEW[2:4]), (3, NEW[0]))
    assert truth("full").row(case.rows[0]) == NEW[:4]
    judge = Judge("bfloat16")
    for output, end, first in ((NEW[:4], "", None), (NEW, "past-stop", 4), (NEW[:3], "premature-stop", 3)):
        row = judge.rows(case, [output])[0]
        assert (row.end, row.first) == (end, first)


def test_prompts_that_begin_alike_do_so_in_cases_alike() -> None:
    rows = tuple(EngineRow((*range(9), last), RowOptions(4)) for last in (40, 50))
    for number in range(4):
        one, other = (row.prompt for row in alike(EngineCase(rows, 3, "dictated"), number).rows)
        assert one[:9] == other[:9] != tuple(range(9))
        assert one[9] != other[9]


def test_cases_alike_have_stops_that_end_rows() -> None:
    other = alike(case_with(tuple(NEW[2:4])), 0)
    assert len(truth("full").row(other.rows[0])) == 4


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ({"finish_reason": "eos"}, "outputs[0].finish_reason: expected one of ('stop', 'length', 'error'), got 'eos'"),
        ({"finish_reason": 3}, "outputs[0].finish_reason: expected one of ('stop', 'length', 'error'), got 3"),
        ({"usage": [3]}, "outputs[0].usage: expected a mapping, got list"),
    ],
)
def test_completions_that_cannot_be_meant(told: dict[str, object], said: str) -> None:
    outcome = judged(Judge("float32"), case_with(limit=8), {"outputs": [NEW], "told": [told]})
    assert outcome.explanation is not None
    assert (outcome.explanation.kind, outcome.explanation.detail) == ("invalid-output", said)


def test_tokens_before_an_error_are_judged() -> None:
    """An error of the engine is told beside the fault; where all tokens are right, it is the fault."""
    case, judge = case_with(), Judge("float32")
    wrong = [*NEW[:2], NEW[2] ^ 1]
    for tokens, first, symptom, said in (
        (NEW[:3], 3, "bookkeeping/premature-stop:error", "the engine ended the row with an error after 3 tokens, all"),
        (wrong, 2, "wrong token", f"{UNEXPLAINED}; the engine ended the row with an error, after 3 tokens"),
    ):
        outcome = judged(judge, case, {"outputs": [tokens], "told": [{"finish_reason": "error"}]})
        assert isinstance(outcome, EngineOutcome)
        assert (outcome.rows[0].first, outcome.symptom, outcome.refused) == (first, symptom, (0,))
        explanation = explain(outcome, abduced(outcome))
        assert explanation.detail.startswith(said)
        assert "error" in render(explanation)
    whole = judged(judge, case, {"outputs": [NEW], "told": [{"finish_reason": "error"}]}).explanation
    assert whole is not None
    assert whole.fingerprint == "bookkeeping/finish-reason"


LOGPROBS = """
import torch, eqcheck
from transformers import AutoModelForCausalLM

@eqcheck.decoder(name="tells", checkpoints=True, capabilities=("row-limits", "row-eos", "logprobs", "prompt-logprobs"))
class Engine:
    def open(self):
        torch.set_num_threads(1)
        self.models = {}

    def __call__(self, target, draft, request):
        for folder in (target, draft):
            if folder not in self.models:
                self.models[folder] = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        rows = zip(request.prompts, request.rows, strict=True)
        return [self.row(self.models[target], self.models[draft], *row, request.num_draft_tokens) for row in rows]

    @torch.no_grad()
    def row(self, target, draft, prompt, options, k):
        out = target.generate(torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            max_new_tokens=options.max_new_tokens, eos_token_id=list(options.eos_token_ids) or None, pad_token_id=0,
            do_sample=False)[0]
        new = out[len(prompt):].tolist()
        law = target(out[None]).logits[0].log_softmax(-1)
        told = [float(law[len(prompt) - 1 + i, token]) for i, token in enumerate(new)]
        law = draft(out[None]).logits[0].log_softmax(-1)
        drafted = [float(law[len(prompt) - 1 + i, token]) for i, token in enumerate(new)]
        law = target(out[None]).logits[0].log_softmax(-1)
        of_prompt = [None, *(float(law[i, token]) for i, token in enumerate(prompt[1:]))]
        FAULT
        return eqcheck.Completion(new, logprobs=told if options.logprobs else None,
            prompt_logprobs=of_prompt if options.prompt_logprobs else None)
"""


@pytest.mark.parametrize(
    ("fault", "named"),
    [
        ("pass", set()),
        ("told = [told[0], *told[:-1]]", {"bookkeeping/logprobs"}),
        ("told = [drafted[i] if i % (k + 1) else one for i, one in enumerate(told)]", {"bookkeeping/logprobs"}),
        ("of_prompt = [None, *of_prompt[2:], 0.0][:len(prompt)]", {"bookkeeping/logprobs"}),
        ("of_prompt = of_prompt[:8]", {"bookkeeping/logprobs"}),
        ("of_prompt = of_prompt[1:] or [0.0]", {"crash/invalid-output:outputs"}),
    ],
)
@pytest.mark.tiers(quick=3, rest=0)
def test_log_probabilities_of_an_engine_are_the_targets_own(tmp_path: Path, fault: str, named: set[str]) -> None:
    (tmp_path / "tells.py").write_text(LOGPROBS.replace("FAULT", fault))
    claimed = registry.load(str(tmp_path / "tells.py"))
    cases = EngineCases(0, claimed.capabilities, varied=True)
    some = [cases.case(number) for number in (*range(4), *range(BLOCK, BLOCK + 8))]
    assert any(options.prompt_logprobs for case in some for options in case.options)
    with worker(claimed, sys.executable) as running:
        outcomes = [running.try_case(case) for case in some]
    assert {one.explanation.fingerprint for one in outcomes if one.explanation} == named
    assert all(one.status == "equivalent" for one in outcomes) or named
    assert any("logprobs" in one.coverage for one in outcomes)


def test_log_probabilities_are_told_with_a_rows_option_or_without() -> None:
    """An engine may do either; what it does at some places and not at others is wrong, and other values say nothing."""
    row = EngineRow((3, 1, 2), RowOptions(6, logprobs=True))
    tokens = truth("full").row(row)
    row = row_with(row, logit_bias=((tokens[0], 5.0), (tokens[1], 2.0)))
    case = EngineCase((row,), checkpoint="full")
    output = truth("full").row(row)
    judge = Judge("float32")
    law = judge.logprobs(case, 0, output)
    assert law is not None
    assert law.asked is not None

    def said(told: list[float]) -> str:
        answer = {"outputs": [output], "told": [{"logprobs": told}]}
        return getattr(judged(judge, case, answer).explanation, "detail", "")

    assert said(law.own) == said(law.asked) == ""
    mixed = [*law.asked[:1], *law.own[1:]]
    begin = "the log-probability of new token 0 is computed with the row's option, that of new token"
    assert said(mixed).startswith(begin)
    assert said([one - 9.0 for one in mixed]) == ""
    several = replace(case, rows=(row_with(row, presence_penalty=0.5),))
    assert judge.logprobs(several, 0, output) is None
