"""Scripts of a wrong law: the same evidence with fewer bets, drawn by an engine alone."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from eqcheck.contract import registry
from eqcheck.contract.decoders import RowOptions
from eqcheck.core.case.engine import EngineRow
from eqcheck.core.case.sampling import SampledEngineCase
from eqcheck.core.explanation.records import Explanation
from eqcheck.core.law import law
from eqcheck.core.result.findings import Finding
from eqcheck.core.result.outcome import Outcome
from eqcheck.engines.checkpoints.folders import checkpoint
from eqcheck.engines.script import checked_script, script, shared
from eqcheck.engines.script_sampling import CROSSES, earned, evidence, names

ORDER = ("temperature", "top-k", "top-p", "min-p")
ENGINE = """
import eqcheck

def prepare():
    pass

def start(target, draft, request):
    import torch
    from transformers import AutoModelForCausalLM
    return AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)

def decode(model, request, observed=None):
    import random
    import torch
    torch.manual_seed(random.getrandbits(40))
    rows = []
    for prompt, asked in zip(request.prompts, request.rows):
        ids = list(prompt)
        while len(ids) < len(prompt) + asked.max_new_tokens:
            with torch.no_grad():
                p = (model(torch.tensor([ids])).logits[0, -1] / asked.temperature * FACTOR).softmax(-1)
            ids.append(int(torch.multinomial(p, 1)))
        rows.append(ids[len(prompt):])
    return rows

@eqcheck.decoder(name="colder", checkpoints=True, capabilities=("temperature",))
class Colder:
    script = (prepare, start, decode)
    requirements = "transformers"
    def __call__(self, target, draft, request):
        return decode(start(target, draft, request), request)
"""


def drawn(power: float, times: int, **options: float) -> tuple[float, int, bool]:
    """The evidence when a row is drawn from the law to this power, so many times."""
    models = [*checkpoint().models(), checkpoint().models(torch.float32)[0]]
    asked = RowOptions(6, temperature=1.0, **options)  # type: ignore[arg-type]
    generator = torch.Generator().manual_seed(3)
    logs, tokens, odd = np.zeros(len(names())), 0, False
    for _ in range(times):
        text: list[int] = []
        for _ in range(6):
            with torch.no_grad():
                scores = models[0](torch.tensor([[7, *text]])).logits[0, -1:]
            p = law(scores, [asked], ORDER)[0][0] ** power
            text.append(int(torch.multinomial(p, 1, generator=generator)))
        gains, count, impossible = earned(models, [(7,)], [asked], [text], ORDER)
        logs, tokens, odd = logs + gains, tokens + count, odd or impossible
    return evidence(logs), tokens, odd


@pytest.mark.rest
def test_the_evidence_of_a_right_row_stays_low_and_that_of_a_wrong_one_crosses() -> None:
    right, tokens, odd = drawn(1.0, 60)
    assert (right < 20, tokens, odd) == (True, 360, False)
    assert drawn(2.0, 60)[0] > CROSSES


def test_a_twin_that_repeats_its_row_crosses() -> None:
    models = [*checkpoint().models(), checkpoint().models(torch.float32)[0]]
    asked = RowOptions(6, temperature=1.0)
    text = np.random.default_rng(1).integers(0, 256, 6).tolist()
    alone, _, _ = earned(models, [(7,)], [asked], [text], ORDER)
    both, _, _ = earned(models, [(7,), (7,)], [asked, replace(asked, seed=4)], [text, text], ORDER)
    twin = names().index("twin 0.9")
    assert both[twin] - alone[twin] > 6


def test_a_token_outside_a_cut_is_impossible() -> None:
    models = [*checkpoint().models(), checkpoint().models(torch.float32)[0]]
    asked = RowOptions(1, temperature=1.0, top_k=2)
    with torch.no_grad():
        least = int(models[0](torch.tensor([[7]])).logits[0, -1].argmin())
    assert earned(models, [(7,)], [asked], [[least]], ORDER)[2]


def finding() -> Finding:
    case = SampledEngineCase((EngineRow((7,), RowOptions(6, temperature=1.0)),), crosses_after=60)
    explanation = Explanation("sampling", "stray-law", detail="no part of a round leads clearly")
    return Finding(Outcome(case, "violation", explanation=explanation, outputs=((8,),)), explanation, plain="right")


@pytest.mark.parametrize(("factor", "shown"), [("(2 if request.drafting != 'none' else 1)", True), ("1", False)])
@pytest.mark.rest
def test_a_script_is_handed_out_if_it_draws_until_it_crosses(factor: str, shown: bool, tmp_path: Path) -> None:
    (tmp_path / "colder.py").write_text(ENGINE.replace("FACTOR", factor))
    decoder = registry.load(str(tmp_path / "colder.py"))
    text = checked_script(decoder, "1", sys.executable, finding())
    assert (text is not None) == shown
    assert text is None or "sampling/stray-law" in text


def test_what_scripts_share_compiles_and_names_no_module_of_eqcheck(tmp_path: Path) -> None:
    (tmp_path / "colder.py").write_text(ENGINE.replace("FACTOR", "1"))
    decoder = registry.load(str(tmp_path / "colder.py"))
    for text in (*shared(decoder, finding().case).values(), script(decoder, "1", finding())):
        compile(text, "script", "exec")
        assert "import eqcheck" not in text
        assert "from eqcheck" not in text
