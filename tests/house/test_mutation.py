"""The mutator, the real models and the table of truth, on a handful of mutants; all of them by `python -m mutation`."""

from __future__ import annotations

from functools import lru_cache

import pytest
from mutation import mutator, real, trial, truth
from mutation.mutator import Mutant, mutants

from eqcheck.contract import registry


@lru_cache(maxsize=16)
def of(file: str) -> dict[str, Mutant]:
    """The first mutant of each operator and text."""
    return {f"{m.operator} {m.before.strip()}": m for m in reversed(mutants(file)[0])}


def test_mutants_are_many_distinct_and_always_the_same() -> None:
    everything = [mutant for file in ("ragged.py", "serving/requests.py") for mutant in mutants(file)[0]]
    assert len(everything) > 80
    assert len({mutant.id for mutant in everything}) == len(everything)
    assert len({(mutant.file, mutant.source) for mutant in everything}) == len(everything)
    order = mutator.spread(everything, 7)
    assert order == mutator.spread(everything, 7) != mutator.spread(everything, 8)
    assert {mutant.file for mutant in order[:6]} == {"ragged.py", "serving/requests.py"}


def test_each_place_of_the_table_is_found_and_every_mutant_has_its_answers() -> None:
    for file in mutator.files():
        assert truth.places(file)
    assert truth.answers(of("serving/requests.py")["drop self.stop = frozenset(prompt.stop_token_ids)"])


@pytest.mark.parametrize("engine", mutator.ENGINES)
@pytest.mark.tiers(quick=1, rest=1)
def test_right_engines_are_right_on_real_models(engine: str) -> None:
    assert real.changes(registry.load(engine).function, 8) is None


@pytest.mark.parametrize(
    ("file", "change", "component"),
    [
        ("serving/sampling.py", "twin argmax", "bookkeeping"),
        ("eqspec.py", "drop-keyword position_ids=torch.tensor(positions, device=device),", "position"),
    ],
)
@pytest.mark.tiers(quick=0, rest=1)
def test_a_mutant_changes_a_real_model_and_is_caught(file: str, change: str, component: str) -> None:
    mutant = of(file)[change]
    with trial.loaded(mutant) as decoder:
        assert real.changes(decoder.function, 8) is not None
        found = trial.seen(decoder, seed=0)
    assert found["caught"]
    assert found["component"] == component


def test_what_is_said_outside_the_table_waits_for_a_person() -> None:
    record = {"id": "a.py:1:drop:1", "caught": 1, "component": "mask", "kind": "window", "answers": ["cache"]}
    record["case_id"] = "0123456789ab"
    assert truth.judged(record)["judgement"] == "to judge"
    assert not truth.judged(record)["component_right"]
    assert "judgement" not in truth.judged({**record, "component": "cache"})
    assert "judgement" not in truth.judged({**record, "component": "unattributed", "kind": "unattributed"})


@pytest.mark.parametrize("change", ["swap-elements [waiting, drafts]"])
@pytest.mark.long
def test_an_answer_of_unknown_source_is_not_called_bookkeeping(change: str) -> None:
    """The tokens are fed in the wrong order; what is emitted was answered by a query that is not the row's next."""
    with trial.loaded(of("serving/rounds.py")[change]) as decoder:
        found = trial.seen(decoder, seed=0)
    assert found["caught"]
    assert found["component"] in ("position", "cache", "unattributed")
