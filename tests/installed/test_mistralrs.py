"""mistral.rs: batches of streams are right with full attention, and what the scripts by hand show."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

from eqcheck.audit.workers.interpreter import environment
from eqcheck.cli import main
from eqcheck.contract import registry
from eqcheck.engines.drawing import EngineCases
from eqcheck.engines.lane import worker

ROOT = Path(__file__).parents[2]
SHOWN = [
    ("mistral", "batch", ("33", "32"), "together:"),
    ("mistral", "batch", ("33", "36"), "Received none"),
    ("hybrid", "batch", ("33", "32"), "shape mismatch in mul"),
    ("mistral", "prefix", ("40",), "by default:"),
    ("hybrid", "prefix", ("2",), "by default:"),
    ("mistral", "prefix", ("18", "0.7"), "by default:"),
    ("mistral", "choices", (), "usage: 6 completion tokens"),
]


@pytest.mark.parametrize("name", ["mistralrs", "mistralrs_bfloat16"])
def test_the_engine_is_right_where_attention_is_full(name: str) -> None:
    decoder = replace(registry.load(name), kinds=("full", "qwen3", "moe"))
    left = ("temperature", "top-k", "top-p", "min-p", "repetition-penalty")  # the last is wrong with a cached prefix
    greedy = tuple(one for one in decoder.capabilities if one not in left)
    cases = EngineCases(7, greedy, kinds=decoder.kinds, block=4).cases()
    with worker(decoder, environment(decoder, None)) as running:
        outcomes = [running.try_case(case) for case in islice(cases, 40)]
    assert [outcome for outcome in outcomes if outcome.failed] == []
    assert sum(outcome.status == "equivalent" for outcome in outcomes) > 30


@pytest.mark.parametrize(("kind", "name", "words", "said"), SHOWN, ids=lambda value: "-".join(value) or "none")
def test_a_script_that_was_written_by_hand_shows_its_fault(
    kind: str, name: str, words: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    assert main(["checkpoint", "write", kind, str(tmp_path / "target")]) == 0
    script = ROOT / "reports" / "by_hand" / f"mistralrs_{name}.py"
    command = [str(ROOT / ".venv-mistralrs" / "bin" / "python"), str(script), str(tmp_path / "target"), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1, done.stderr[-2000:]
    assert said in done.stdout + done.stderr
