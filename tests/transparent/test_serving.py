"""The calling convention of the engines: streams, limits, ageing, memory, what they report of themselves."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tiny import noisy, tiny

from eqcheck.contract import registry
from eqcheck.contract.decoders import Request
from eqcheck.core.case.record import Case
from eqcheck.core.result.outcome import Loss
from eqcheck.transparent.attribution.lost_drafts import draft_losses, draft_warnings
from eqcheck.transparent.decoding import run
from eqcheck.transparent.drafting import ScriptedDraft
from eqcheck.transparent.hashlm.model import HashConfig, HashLM
from eqcheck.transparent.oracle import Oracle

NAMES = ("eqspec", "exspec", "ragged")
MODULES = {name: importlib.import_module(f"eqcheck.reference_impls.{name}") for name in NAMES}
ENGINES = {name: getattr(module, name.capitalize()) for name, module in MODULES.items()}
serving = importlib.import_module("eqcheck.reference_impls.serving")
TARGET = HashLM(HashConfig(seed=3))
ORACLE = Oracle(TARGET)


def draft(agreement: float = 0.7) -> ScriptedDraft:
    made = ScriptedDraft.of(TARGET)
    made.script(agreement=agreement)
    return made


def prompts(count: int) -> list[list[int]]:
    return [[(7 * i + j) % 128 for j in range(1 + (3 * i) % 5)] for i in range(count)]


@pytest.mark.parametrize("name", NAMES)
def test_stream_takes_prompts_as_they_come(name: str) -> None:
    """Rows that join late are right, tokens come as they are committed, and no more is taken than there is room for."""
    engine = ENGINES[name](TARGET, draft(), num_draft_tokens=2, batch_size=2)
    given = prompts(9)
    taken: list[int] = []
    finished: list[int] = []

    def arriving() -> Iterator[Any]:
        for i, ids in enumerate(given):
            if i in (3, 6):
                yield None
                yield None
            taken.append(i)
            yield serving.Prompt(ids, 3 + i, id=f"row {i}")

    outputs: dict[Any, list[int]] = {f"row {i}": [] for i in range(len(given))}
    updates = 0
    for update in engine.stream(arriving()):
        assert update.token_ids
        assert len(taken) - len(finished) <= engine.batch_size * (1 if name != "exspec" else 4) + 1
        outputs[update.id] += update.token_ids
        updates += 1
        if update.finish_reason:
            assert update.finish_reason == "length"
            finished.append(update.id)
    assert sorted(finished) == sorted(outputs)
    assert updates > len(given), "tokens came at the end only"
    for i, ids in enumerate(given):
        assert outputs[f"row {i}"] == ORACLE.truth(ids, max_new_tokens=3 + i)
    assert engine.rows == []


@pytest.mark.parametrize("name", NAMES)
def test_a_bad_prompt_does_not_stop_the_others(name: str) -> None:
    engine = ENGINES[name](TARGET, draft(), batch_size=2)
    asked = [serving.Prompt([1, 2], 5, id="a"), serving.Prompt([999], 5, id="b"), serving.Prompt([3], 5, id="c")]
    updates = list(engine.stream(asked))
    (error,) = [update for update in updates if update.finish_reason == "error"]
    assert error.id == "b"
    assert "prompt 'b': expected token ids 0..127, Python's integers, got 999" in str(error.error)
    rows = {i: [t for update in updates if update.id == i for t in update.token_ids] for i in "ac"}
    assert rows == {"a": ORACLE.truth([1, 2], max_new_tokens=5), "c": ORACLE.truth([3], max_new_tokens=5)}


@pytest.mark.parametrize("name", NAMES)
def test_one_stream_at_a_time_and_usable_afterwards(name: str) -> None:
    engine = ENGINES[name](TARGET, draft(), batch_size=2)
    first = engine.stream([serving.Prompt([1, 2], 30)])
    next(first)
    with pytest.raises(RuntimeError, match="decoding another stream"):
        next(engine.stream([serving.Prompt([3], 4)]))
    first.close()
    assert engine.generate([[3]], max_new_tokens=4) == [ORACLE.truth([3], max_new_tokens=4)]
    assert engine.generate([[1, 2]], max_new_tokens=4) == [ORACLE.truth([1, 2], max_new_tokens=4)]


@pytest.mark.parametrize("name", NAMES)
def test_stop_ids_of_a_row_are_its_own(name: str) -> None:
    truth = ORACLE.truth([1, 2], max_new_tokens=10)
    asked = [serving.Prompt([1, 2], 10, truth[4:5]), serving.Prompt([1, 2], 10), serving.Prompt([1, 2], 3, truth[4:5])]
    outputs = ENGINES[name](TARGET, draft(), batch_size=3).generate(asked)
    assert outputs == [truth[: truth.index(truth[4]) + 1], truth, truth[:3]]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("chunk", [1, 3])
def test_chunked_prefill(name: str, chunk: int) -> None:
    seen: list[int] = []
    target = tiny("llama")
    hook = target.register_forward_pre_hook(
        lambda _, args, kwargs: seen.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    )
    given = [[5] * 11, [6, 7], [8]]
    engine = ENGINES[name](target, noisy(target), num_draft_tokens=2, batch_size=3, prefill_chunk=chunk)
    outputs = engine.generate(given, max_new_tokens=6)
    hook.remove()
    assert max(seen) == 3, "a forward took more than a chunk and a round's block"
    assert Oracle(target).check(given, outputs, max_new_tokens=6)


@pytest.mark.parametrize("name", NAMES)
def test_late_rows_join_late(name: str) -> None:
    """A row joins after as many target calls as the request says, or when nobody else is there."""
    joined: list[tuple[int, bool]] = []

    class Watched(ENGINES[name]):  # type: ignore[misc, valid-type]
        def join(self, rows: list[Any]) -> None:
            joined.extend((self.stats.target_calls, bool(self.rows) or place > 0) for place in range(len(rows)))
            super().join(rows)

    arrivals = (0, 2, 4, 90)
    request = Request([[1, 2], [3], [4, 5], [6]], 12, 2, (), 0, "left", arrivals=arrivals)
    outputs = serving.decode(Watched, TARGET, draft(0.0), request, batch_size=4)
    assert outputs == [ORACLE.truth(prompt, max_new_tokens=12) for prompt in request.prompts]
    for late, (calls, in_company) in zip(arrivals, joined, strict=True):
        assert calls >= late or not in_company
    calls, in_company = joined[3]
    assert not in_company
    assert calls < 90, "nobody waits for target calls that never come"


def test_a_group_that_does_not_fill_the_batch_takes_others_in() -> None:
    engine = ENGINES["exspec"](TARGET, draft(0.0), num_draft_tokens=1, batch_size=4)
    rounds: list[tuple[int, int]] = []
    decode = engine.round

    def watched() -> Any:
        there = len(engine.rows)
        rows = decode()
        rounds.append((len(rows), there))
        return rows

    engine.round = watched

    def arriving() -> Iterator[Any]:
        yield serving.Prompt([1, 2], 20)
        yield None
        yield from (serving.Prompt([3] * (5 + 4 * i), 20) for i in range(3))

    list(engine.stream(arriving()))
    assert rounds[0] == (1, 1)
    assert rounds[1] == (4, 4)


def longest_wait(engine: Any, asked: list[Any]) -> int:
    """The most rounds that a row of the pool was passed over in a row."""
    waited: dict[int, int] = {}
    worst = 0
    decode = engine.round

    def watched() -> Any:
        nonlocal worst
        before = list(engine.rows)
        took_part = decode()
        for row in before:
            waited[id(row)] = 0 if row in took_part else waited.get(id(row), 0) + 1
            worst = max(worst, waited[id(row)])
        return took_part

    engine.round = watched
    list(engine.stream(asked))
    return worst


@pytest.mark.parametrize("batch_size", [2, 3])
def test_no_row_of_exspec_starves(batch_size: int) -> None:
    """A full group of equally long rows could go on for ever; ageing lets the others in, within the bound."""
    twins = [serving.Prompt([i], 60) for i in range(batch_size)]
    others = [serving.Prompt([9] * (2 + i), 20) for i in range(3 * batch_size)]
    engine = ENGINES["exspec"](TARGET, draft(1.0), num_draft_tokens=1, batch_size=batch_size)
    bound = 5 * MODULES["exspec"].POOL - 1  # passed over while patience and the batches of a pool last
    assert 4 < longest_wait(engine, [*twins, *others]) <= bound
    engine = ENGINES["exspec"](TARGET, draft(1.0), num_draft_tokens=1, batch_size=batch_size)
    begin = engine.begin

    def patient() -> None:
        begin()
        engine.patience = 10**9

    engine.begin = patient
    assert longest_wait(engine, [*twins, *others]) > bound, "nothing would starve here: the check would be weak"


@pytest.mark.rest
def test_the_bound_holds_in_any_schedule() -> None:
    """Lengths that grow as they like, rows that end when they like, others that join at once: 200 random schedules."""
    module = MODULES["exspec"]
    worst = 0
    for seed in range(200):
        random = torch.Generator().manual_seed(seed)
        batch_size = 1 + seed % 4
        engine = module.Exspec(TARGET, draft(), batch_size=batch_size)
        engine.begin()
        engine.rows[:] = [SimpleNamespace(cached=1, waiting_since=0) for _ in range(module.POOL * batch_size)]
        steps = 1 + seed % 3  # few lengths make full groups, which could go on for ever
        for _ in range(80):
            rows = engine.choose()
            worst = max(worst, *(engine.stats.rounds - row.waiting_since for row in rows))
            engine.group = SimpleNamespace(rows=rows)
            for row in rows:
                row.cached += int(torch.randint(1, 1 + steps, (), generator=random))
                row.waiting_since = engine.stats.rounds + 1
                if torch.rand((), generator=random) < 0.1:
                    row.cached, engine.group = 1, None
            engine.stats.rounds += 1
    assert engine.patience < worst <= engine.patience + module.POOL - 1


def test_exspec_groups_equally_long_rows() -> None:
    engine = ENGINES["exspec"](TARGET, draft(1.0), num_draft_tokens=3, batch_size=2)
    engine.generate([[1, 2], [3, 4], [5, 6], [7, 8]], max_new_tokens=12)
    assert engine.stats.grouping_rate == 1.0
    assert engine.stats.realignments == 0
    assert engine.stats.seconds["realign"] == 0.0
    assert engine.stats.tokens_per_verify == 8.0
    engine.generate([[1]], max_new_tokens=12)
    alone = engine.stats
    assert alone.grouping_rate is None, "a row alone is no group"
    engine = ENGINES["exspec"](TARGET, draft(1.0), num_draft_tokens=3, batch_size=1)
    engine.generate([[1], [3, 4], [5, 6, 1]], max_new_tokens=12)
    assert engine.stats.prefill_calls == engine.stats.realignments == 0, "with one row a round nobody need wait"
    engine = ENGINES["exspec"](TARGET, draft(1.0), num_draft_tokens=3, batch_size=2)
    engine.generate([[1], [3, 4], [5, 6, 1], [7, 8, 9, 2]], max_new_tokens=12)
    assert engine.stats.grouping_rate < 1.0
    assert engine.stats.realignments > 0
    assert 0 < engine.stats.realign_share < 1


@pytest.mark.parametrize("name", ["exspec", "ragged"])
@pytest.mark.tiers(quick=1, rest=1)
def test_memory_stays_within_its_bound(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """At every forward and between rounds: at most so many slots as the bound says, for the rows in flight."""
    k = 3
    target = tiny("llama")
    long_then_short = [serving.Prompt([5] * 80, 4), *(serving.Prompt([6] * (1 + i % 3), 3) for i in range(24))]
    mixed = [serving.Prompt([5] * (1 + 11 * (i % 5)), 1 + 7 * (i % 4)) for i in range(20)]
    feed = serving.RowModel.feed
    for asked in (long_then_short, mixed):
        engine = ENGINES[name](target, noisy(target), num_draft_tokens=k, batch_size=4)
        ratios: list[float] = []
        groups: list[tuple[float, float, int]] = []

        def look(engine: Any = engine, ratios: list[float] = ratios, groups: list[Any] = groups) -> None:
            pool = engine.pool
            need = len(pool.rows) * (max((len(row.tokens) for row in pool.rows), default=0) + k + 1)
            ratios.extend(
                layer.keys.shape[0] * layer.keys.shape[2] / need if need else layer.keys.numel()
                for model in pool.models
                for layer in model.cache.layers
                if layer.is_initialized
            )
            group = getattr(engine, "group", None)
            if group is not None:
                longest = max(len(row.tokens) for row in group.rows) + k + 1
                groups.extend(
                    (
                        layer.keys.shape[0] / engine.batch_size,
                        layer.keys.shape[2] / longest,
                        layer.keys.shape[2] - longest,
                    )
                    for model in group.models
                    for layer in model.cache.layers
                    if layer.is_initialized
                )

        def watched(self: Any, *args: Any, look: Any = look, **kwargs: Any) -> Any:
            look()
            return feed(self, *args, **kwargs)

        monkeypatch.setattr(serving.RowModel, "feed", watched)
        for _ in engine.stream(asked):
            look()
        assert 1 < max(ratios) <= 4
        assert bool(groups) == (name == "exspec")
        for rows, share, more in groups:
            assert rows <= 1
            assert share <= 1.5 or more <= MODULES["exspec"].AHEAD * (k + 1)
        assert engine.pool.rows == []


def test_fit_keeps_what_lies_within_and_its_bound() -> None:
    generator = torch.Generator().manual_seed(0)
    model = serving.RowModel(tiny("llama"))
    model.fit(1, 1)
    model.feed(torch.tensor([[5]]), [0])
    layer = model.cache.layers[0]
    first = layer.keys[0, :, 0].clone()
    for _ in range(300):
        rows, slots = (int(n) for n in torch.randint(1, 60, (2,), generator=generator))
        model.fit(rows, slots)
        have = layer.keys.shape[0], layer.keys.shape[2]
        assert have[0] >= rows
        assert have[1] >= slots
        assert have[0] * have[1] <= 4 * rows * slots
        assert torch.equal(layer.keys[0, :, 0], first)
    model.fit(0, 4)
    assert layer.keys.numel() == 0


def test_stats_count_what_happened() -> None:
    calls = 0

    def count(*_: Any) -> None:
        nonlocal calls
        calls += 1

    target = tiny("llama")
    handle = target.register_forward_pre_hook(count)
    for name in NAMES:
        calls = 0
        engine = ENGINES[name](target, noisy(target), num_draft_tokens=3, batch_size=2)
        outputs = engine.generate([[1, 2, 3], [4], [5, 6]], max_new_tokens=9)
        stats = engine.stats
        assert stats.target_calls == calls
        assert stats.tokens == sum(map(len, outputs)) == 27
        assert 0 < stats.accepted < stats.drafted
        assert stats.accepted + sum(1 for _ in outputs) <= stats.tokens
    handle.remove()


@pytest.mark.parametrize("name", NAMES)
def test_full_acceptance_is_k_plus_one_tokens(name: str) -> None:
    engine = ENGINES[name](TARGET, draft(1.0), num_draft_tokens=3, batch_size=2)
    engine.generate([[1, 2], [3, 4]], max_new_tokens=16)
    assert engine.stats.verify_calls == 4
    assert engine.stats.acceptance == 1.0
    assert engine.stats.prefill_calls == 0, "equally long rows are fed by their first round"
    engine.generate([[1, 2], [3]], max_new_tokens=4)
    assert engine.stats.prefill_calls == (name != "eqspec")


def test_a_prefill_is_no_round_of_draft_tokens() -> None:
    """What stands behind the tokens of a prefill was not proposed by anybody, whatever the draft predicts."""
    case = Case(
        prompts=((62, 9, 100, 10, 31), (114, 36, 27), (76, 46, 36), (118, 55, 1, 28, 57, 106)),
        max_new_tokens=2,
        num_draft_tokens=3,
        accepts=((0,), (), (), ()),
        eos_token_ids=(78,),
        pad_token_id=127,
        padding_side="right",
        family="learned",
    )
    one_token = Case(
        prompts=((96, 120), (27, 48, 76), (67,), (67, 3, 80)),
        max_new_tokens=6,
        num_draft_tokens=2,
        accepts=((), (), (1,), (2,)),
        eos_token_ids=(44,),
        pad_token_id=44,
        family="window",
    )
    for name, given in (("ragged", case), ("exspec", one_token)):
        losses = draft_losses(run(registry.load(name).function, given))
        assert losses[Loss("rounds")] > 0
        assert draft_warnings(losses) == []


def test_engines_join_and_leave_in_an_audit() -> None:
    """As decoders they hold fewer rows than a request has, so that rows wait, join and leave."""
    case = Case(prompts=tuple((i, i + 1, i + 2)[: 1 + i % 3] for i in range(5)), max_new_tokens=6, agreement=0.6)
    for name in ("exspec", "ragged"):
        done = run(registry.load(name).function, case)
        assert done.outputs == done.truth.rows
        assert max(len(call.tokens) for call in done.trace.calls) == 2
