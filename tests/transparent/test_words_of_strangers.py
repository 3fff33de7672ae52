"""Sentences that readers who did not know the project found false in published decoders, each with its whole kind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import DynamicCache

import eqcheck
from eqcheck.audit.loop import audit
from eqcheck.cli import main
from eqcheck.compat import legacy_cache
from eqcheck.contract.architectures import family_of
from eqcheck.contract.decoders import Request, decoder
from eqcheck.core.case.record import Case
from eqcheck.core.explanation.records import Explanation, Given
from eqcheck.core.explanation.text import render
from eqcheck.core.result.findings import Audit, Options
from eqcheck.sampling.betting.naming import Named
from eqcheck.sampling.betting.wealth import Wealth
from eqcheck.sampling.judge import wrong_law as law_explained
from eqcheck.transparent.attribution.witnesses import second_opinion, variants
from eqcheck.transparent.decoding import run
from eqcheck.transparent.oracle import judge
from eqcheck.transparent.real.models import model_of

Choose = Callable[[torch.Tensor, torch.Tensor], int]
WRONG = "bookkeeping/wrong-correction"


def one_row(choose: Choose, **claims: Any) -> Any:
    """A row alone, without caches; ``choose`` makes a correction from the probabilities p and q of a position."""

    def law(model: Any, text: list[int]) -> torch.Tensor:
        scores: torch.Tensor = model(input_ids=torch.tensor([text])).logits[0, -1]
        return scores.double().softmax(-1)

    def generate(target: Any, draft: Any, request: Request) -> list[list[int]]:
        rows = []
        for prompt, options in zip(request.prompts, request.rows, strict=True):
            new: list[int] = []
            while len(new) < options.max_new_tokens and not options.ended(new):
                p, q = law(target, prompt + new), law(draft, prompt + new)
                new.append(int(p.argmax()) if int(p.argmax()) == int(q.argmax()) else choose(p, q))
            rows.append(new)
        return rows

    return decoder(name="one_row", **claims)(generate)


def of_residual(p: torch.Tensor, q: torch.Tensor) -> int:
    return int((p - q).clamp(min=0).argmax())


def of_target(p: torch.Tensor, q: torch.Tensor) -> int:
    return int(p.argmax())


def test_a_greedy_correction_from_the_residual_is_caught_and_named() -> None:
    """A draft with the target's own probabilities, two of them exchanged, would hide it from every case."""
    wrong = audit(one_row(of_residual), Options(cases=150))
    (violation,) = wrong.violations
    assert violation.fingerprint == WRONG
    text = " ".join(render(violation.explanation).split())
    assert "The returned token is the likeliest of max(0, p - q), from which sampling draws" in text
    assert audit(one_row(of_target), Options(cases=150)).verdict == "equivalent"


def test_repair_leaves_the_scores_of_a_real_target_as_they_are() -> None:
    """Other scores in place of right ones mended the correction, and were told as right position ids."""
    case = Case(prompts=((10,),), max_new_tokens=6, accepts=((0,) * 6,), family=family_of("llama", ""))
    generate = one_row(of_residual).function
    done = run(generate, case)
    read = judge(done).explanation
    assert read is not None
    said = second_opinion(generate, done, read, variants=variants(case))
    assert said.fingerprint == WRONG
    assert said.repair is not None
    assert not said.repair.restores
    assert "coincidence" not in render(said)


def test_a_patch_that_ends_before_the_tap_is_not_put_back() -> None:
    with eqcheck.Oracle(model_of("llama", "float64", 0)).watch([[3, 1, 4]], max_new_tokens=1), legacy_cache():
        model_of("llama", "float64", 0)(torch.tensor([[3, 1, 4]]), use_cache=True)
    assert "update" not in vars(DynamicCache)


def refed(target: Any, draft: Any, request: Request) -> list[list[int]]:
    """The whole row is fed again in each step, behind what the cache holds already."""
    (prompt,), new, cache = request.prompts, list[int](), DynamicCache()
    while len(new) < request.max_new_tokens:
        new.append(int(target(torch.tensor([prompt + new]), past_key_values=cache).logits[0, -1].argmax()))
    return [new]


@pytest.mark.parametrize("prompt", [(60, 8, 20), (7,), (5, 6)])
def test_a_row_that_is_fed_again_has_no_changed_token(prompt: tuple[int, ...]) -> None:
    for limit in (4, 8, 12):
        found = judge(run(refed, Case(prompts=(prompt,), max_new_tokens=limit))).explanation
        assert found is not None
        assert found.kind != "changed-token"


def test_replay_claims_what_the_audit_claimed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    code = (
        "import eqcheck\n\n@eqcheck.decoder(name='short', families=('rotary',))\ndef short(target, draft, request):\n"
    )
    Path("short.py").write_text(code + "    return [[] for _ in request.prompts]\n")
    options = ["--target", "llama", "--cases", "4", "--no-corpus", "--out", "out"]
    assert main(["audit", "short.py", *options]) == 1
    (case,) = Path("out/short/cases").glob("*.json")
    assert main(["replay", str(case), "--adapter", "short.py"]) == 1
    assert "discovery" not in capsys.readouterr().out


def test_a_sampled_row_has_got_tokens_and_no_first_ones() -> None:
    given = Given((1, 2), requests=1)
    one = Explanation("sampling", "impossible-token", 0, 1, observed=8, observed_row=(9, 8), given=given)
    lines = [line.split() for line in render(one).splitlines()]
    assert ["got", "9", "8"] in lines
    assert not any(line[:1] in (["first"], ["again"], ["expected"]) for line in lines)
    twice = replace(one, kind="seed-ignored", expected_row=(9, 7), expected=7)
    assert "first" in render(twice)


def test_parts_without_content_are_left_out() -> None:
    lines = render(Explanation("sampling", "stray-law", facts={"evidence": "1e9"}), needs=()).splitlines()
    assert not [line for line in lines if line.strip() == "Smallest case"]


def test_every_draft_is_not_called_wrong_behind_the_rounds_that_the_case_dictates() -> None:
    given = Given((10,), num_draft_tokens=1, rows=(Given((10,), accepts=(0, 0)),), requests=1)
    short = Explanation("cache", "stale-entry", 0, 1, expected=4, observed=5, expected_row=(3, 4), observed_row=(3, 5))
    long = replace(short, component="bookkeeping", kind="over-length", expected=None, observed_row=(3, 4, 5))
    assert "every draft wrong" in render(replace(short, given=given))
    assert "every draft wrong" not in render(replace(long, token_index=2, given=given))


def test_evidence_is_not_called_the_cause() -> None:
    class Spent(Wealth):
        supremum, tokens = 1e9, 500

    outcome = audit(decoder(name="any")(of_nothing), Options(cases=1)).outcomes[0]
    read = law_explained(outcome, Spent(), Named("target-option", "", 40.0)).explanation
    assert read is not None
    lines = [line.strip() for line in render(read).splitlines()]
    assert "Evidence" in lines
    assert not {"Likely cause", "Cause unknown"} & set(lines)


def of_nothing(target: Any, draft: Any, request: Request) -> list[list[int]]:
    return [[] for _ in request.prompts]


def guessing(result: Audit) -> set[str]:
    return {finding.explanation.component for finding in result.findings if finding.standing == "inconclusive"}


def test_earlier_requests_are_not_blamed_where_nothing_fails_again(tmp_path: Path) -> None:
    (tmp_path / "drawn.py").write_text(
        "import random\nimport eqcheck\nfrom eqcheck.catalogue import known_good\nmade = known_good()\n\n"
        "@eqcheck.decoder(name='drawn')\ndef drawn(target, draft, request):\n"
        "    rows = [list(row) for row in made['one_row'](target, draft, request)]\n"
        "    if random.random() < 0.4:\n        rows[0][-1] = (rows[0][-1] + random.randrange(1, 9)) % 100\n"
        "    return rows\n"
    )
    result = audit(eqcheck.load(str(tmp_path / "drawn.py")), Options(cases=60))
    assert result.violations == []
    assert "state" not in guessing(result)


def alone(target: Any, draft: Any, request: Request) -> list[Any]:
    """Right rows with the target's own log-probabilities."""
    rows = []
    for prompt, options in zip(request.prompts, request.rows, strict=True):
        new, told = list[int](), list[float]()
        while len(new) < options.max_new_tokens and not options.ended(new):
            law = target(input_ids=torch.tensor([prompt + new])).logits[0, -1].log_softmax(-1)
            new.append(int(law.argmax()))
            told.append(float(law[new[-1]]))
        rows.append(eqcheck.Completion(new, logprobs=told if options.logprobs else None))
    return rows


def test_log_probabilities_of_a_built_checkpoint_are_not_those_of_its_function_to_the_last_digit() -> None:
    right = decoder(name="alone", capabilities=("logprobs", "row-limits"))(alone)
    result = audit(right, Options(cases=80))
    assert result.coverage["logprobs"]
    assert result.verdict == "equivalent"
