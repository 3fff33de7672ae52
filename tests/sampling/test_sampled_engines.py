"""The reference engines, sampling: each row from exactly the law of its target, greedy rows and seeds as promised."""

from __future__ import annotations

import importlib
import itertools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from tiny import noisy, tiny

from eqcheck.contract import registry
from eqcheck.contract.decoders import Request, RowOptions, decoder
from eqcheck.contract.errors import UsageError
from eqcheck.contract.options import ORDER
from eqcheck.core.law import Asked, law
from eqcheck.transparent.hashlm.model import HashConfig, HashLM

ENGINES = {
    name: getattr(importlib.import_module(f"eqcheck.reference_impls.{name}"), name.capitalize())
    for name in ("eqspec", "exspec", "ragged")
}
serving = importlib.import_module("eqcheck.reference_impls.serving")
sampling = importlib.import_module("eqcheck.reference_impls.serving.sampling")
FEW = 4  # tokens in the vocabulary where whole outputs are counted
TARGET, DRAFT = (HashLM(HashConfig(vocab_size=FEW, seed=seed)) for seed in (3, 8))
NEAR = HashLM(HashConfig(vocab_size=FEW, seed=3))
NEAR.lm_head.weight.data *= 0.6
PROMPT, NEW = (1, 2), 4
KINDS = (
    RowOptions(NEW, temperature=1.5),
    RowOptions(NEW, temperature=3.0, top_k=3),
    RowOptions(NEW, temperature=2.0, top_p=0.75),
    RowOptions(NEW, temperature=4.0, min_p=0.5),
)
GREEDY = RowOptions(NEW)


def logits_after(model: Any, tokens: Sequence[int]) -> torch.Tensor:
    with torch.no_grad():
        last: torch.Tensor = model(input_ids=torch.tensor([list(tokens)]), use_cache=False).logits[:, -1]
    return last


def joint(options: RowOptions) -> dict[tuple[int, ...], float]:
    """The probability of each output of `NEW` tokens."""
    found: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(NEW):
        found = {
            (*output, token): share * float(p)
            for output, share in found.items()
            for token, p in enumerate(law(logits_after(TARGET, (*PROMPT, *output)), options).probabilities[0])
        }
    return found


@cache
def laws() -> list[dict[tuple[int, ...], float]]:
    """The law of each kind of options; in no process that only collects tests."""
    return [joint(options) for options in KINDS]


def excess(outputs: Sequence[tuple[int, ...]], expected: dict[tuple[int, ...], float]) -> float:
    """How far the counts of outputs are from a law, beyond what happens once in a million times; infinite if never.

    Pearson's statistic of the cells that expect five or more and of the others together, held against a bound on the
    tail of chi square (Laurent and Massart, 2000, Lemma 1).
    """
    counts = Counter(outputs)
    if any(not expected[output] for output in counts):
        return math.inf
    small = [output for output, share in expected.items() if share * len(outputs) < 5]
    cells = [(counts[output], share) for output, share in expected.items() if output not in set(small)]
    cells.append((sum(counts[output] for output in small), sum(expected[output] for output in small)))
    statistic = sum((n - share * len(outputs)) ** 2 / (share * len(outputs)) for n, share in cells if share > 0)
    degrees, x = len(cells) - 1, math.log(1e6)
    return statistic - (degrees + 2 * math.sqrt(degrees * x) + 2 * x)


def worst(name: str, rows: int = 1500, draft: Any = DRAFT, **settings: Any) -> float:
    """The greatest excess of any kind of row, where rows of all kinds and greedy ones are decoded together."""
    torch.manual_seed(11)
    engine = ENGINES[name](TARGET, draft, **{"num_draft_tokens": 2, "batch_size": 500, **settings})
    asked = [serving.Prompt(PROMPT, NEW, sampling=kind) for _ in range(rows) for kind in (*KINDS, GREEDY)]
    outputs = [tuple(row) for row in engine.generate(asked)]
    assert 0.05 < engine.stats.acceptance < 0.95, "all draft tokens were one way: the check would be weak"
    assert set(outputs[len(KINDS) :: len(KINDS) + 1]) == {greedy(PROMPT)}
    return max(excess(outputs[i :: len(KINDS) + 1], expected) for i, expected in enumerate(laws()))


def greedy(prompt: Sequence[int], model: Any = TARGET, new: int = NEW) -> tuple[int, ...]:
    output: tuple[int, ...] = ()
    while len(output) < new:
        output = (*output, int(logits_after(model, (*prompt, *output)).argmax()))
    return output


@pytest.mark.parametrize("noise", sampling.NOISE)
@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.rest
def test_rows_of_unequal_options_are_of_their_laws(name: str, noise: str) -> None:
    assert worst(name, noise=noise) < 0


@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("draft", [DRAFT, NEAR], ids=["far", "near"])
@pytest.mark.rest
def test_at_any_number_of_draft_tokens_and_closeness_of_the_draft(k: int, draft: Any) -> None:
    assert worst("ragged", draft=draft, num_draft_tokens=k) < 0


class _Rejection(sampling.Rejection):  # type: ignore[misc, name-defined]
    """Each method replaces the one of the right rule and is wrong in one way."""

    def accepts_all(self, p: float, q: float, coin: float) -> bool:
        return p > 0

    def accepts_a_tenth_less(self, p: float, q: float, coin: float) -> bool:
        return 1.1 * coin * q < p

    def accepts_as_if_q_were_certain(self, p: float, q: float, coin: float) -> bool:
        return coin < p

    def left_is_p(self, p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
        return p

    def left_of_another_row(self, p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
        return (p - q.roll(1, 0)).clamp(min=0)

    def laws_of_the_first_row(self, logits: torch.Tensor) -> torch.Tensor:
        options = [self.rows[0].options if row.options.temperature else row.options for row in self.rows]
        return law(logits, Asked(options, logits)).probabilities

    def propose_the_likeliest(self, logits: torch.Tensor) -> torch.Tensor:
        self.q.append(self.laws(logits))
        return logits.argmax(-1)


@pytest.mark.parametrize("fault", [name for name in vars(_Rejection) if "_" in name.strip("_")])
@pytest.mark.rest
def test_a_wrong_rule_fails_the_same_check(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    replaced = fault.partition("_")[0]
    assert replaced in vars(sampling.Rejection) or replaced == "laws"
    monkeypatch.setattr(sampling.Rejection, replaced, getattr(_Rejection, fault))
    assert worst("ragged") > 0


@pytest.mark.rest
def test_noise_that_is_used_twice_fails_the_same_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """What rejected a draft token draws its correction; and clocks that do not know their place."""
    made = sampling.Rejection.__init__

    def same(self: Any, *given: Any) -> None:
        made(self, *given)
        self.final = self.coin

    monkeypatch.setattr(sampling.Rejection, "__init__", same)
    assert worst("ragged") > 0
    clock = sampling.clock
    monkeypatch.setattr(sampling, "clock", lambda seed, place, vocabulary: clock(seed, place // 2, vocabulary))
    assert worst("ragged", noise="position") > 0


def test_a_token_that_the_target_cannot_emit_is_never_accepted_and_nothing_left_is_no_failure() -> None:
    rows = [serving.Row(serving.Prompt(PROMPT, NEW, sampling=KINDS[0])) for _ in range(3)]
    choose = sampling.chooser("row", rows, [1, 1, 1], torch.device("cpu"))
    q = torch.tensor([[0.5, 0.5, 0, 0], [0.25, 0.25, 0.25, 0.25], [0.5, 0.5, 0, 0]]).double()
    p = torch.tensor([[0, 0, 0.5, 0.5], [0.25, 0.25, 0.25, 0.25], [0.5, 0.5, 0, 0]]).double()
    p[2] *= 1 - 1e-15  # as if rounded down everywhere
    choose.q, choose.laws = [q], lambda _: torch.stack([p, p], dim=1)
    choose.coin[:] = torch.tensor([0.0, 1 - 2.0**-53, 1 - 2.0**-53], dtype=torch.float64)[:, None]
    never, always, rounded = choose.blocks(torch.zeros(3, 2, FEW), torch.tensor([[0], [1], [1]]))
    assert never in ([2], [3])
    assert always[:-1] == [1]
    assert rounded in ([0], [1])
    edges = torch.tensor([0.0, 1 - 2.0**-53], dtype=torch.float64)
    assert sampling.drawn(torch.tensor([[0.0, 0.3, 0.7, 0.0]] * 2), edges).tolist() == [1, 2]


# Seeds, on a vocabulary in which chance agreement is rare.

WIDE, OTHER = (HashLM(HashConfig(seed=seed)) for seed in (3, 4))
LONG = 12


def near(agreement: float = 0.7) -> Any:
    """A draft whose law is near the target's."""
    from eqcheck.transparent.drafting import ScriptedDraft

    draft = ScriptedDraft.of(WIDE)
    draft.script(agreement=agreement)
    return draft


def asked(count: int = 6, seeded: bool = True) -> list[Any]:
    """Rows of unequal lengths, limits and options; every third is greedy."""
    options = [
        replace(
            KINDS[i % len(KINDS)],
            max_new_tokens=LONG - i % 3,
            temperature=0.0 if i % 3 == 1 else 30.0,
            top_k=(0, 40)[i % 2],
            seed=2**40 + i if seeded else None,
        )
        for i in range(count)
    ]
    return [
        serving.Prompt([(7 * i + j) % 128 for j in range(1 + (3 * i) % 5)], row.max_new_tokens, (i, 90 + i), i, row)
        for i, row in enumerate(options)
    ]


def reference(prompt: Any, model: Any = WIDE) -> list[int]:
    """What a row with a seed emits with noise by position: one token after the other, alone, without a draft."""
    output: list[int] = []
    while len(output) < prompt.max_new_tokens and not set(output) & set(prompt.stop_token_ids):
        p = law(logits_after(model, (*prompt.token_ids, *output)), prompt.sampling).probabilities[0]
        clock = torch.ones(len(p)).double()
        if prompt.sampling.temperature:
            clock = torch.from_numpy(sampling.clock(prompt.sampling.seed, len(output), len(p)))
        output.append(int((p / clock).argmax()))
    return output


def decoded(name: str, prompts: Sequence[Any], draft: Any = None, **settings: Any) -> list[list[int]]:
    engine = ENGINES[name](WIDE, draft or near(), **{"num_draft_tokens": 3, "batch_size": 3, **settings})
    outputs: list[list[int]] = engine.generate(prompts)
    return outputs


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.rest
def test_noise_by_position_is_the_same_with_and_without_speculation(name: str) -> None:
    prompts = asked()
    expected = [reference(prompt) for prompt in prompts]
    assert {len(row) for row in expected} != {LONG}
    for size, k, draft in itertools.product((1, 2, 6), (1, 4), (near(), OTHER, WIDE)):
        settings = {"draft": draft, "num_draft_tokens": k, "batch_size": size, "noise": "position"}
        assert decoded(name, prompts, **settings) == expected
        assert decoded(name, prompts[::-1], **settings) == expected[::-1]
        assert decoded(name, prompts[2:4], **settings) == expected[2:4]
    engine = ENGINES[name](WIDE, near(), num_draft_tokens=3, batch_size=6, noise="position")
    engine.generate(prompts)
    assert 0.3 < engine.stats.acceptance < 0.99, "nothing was accepted or all was: the check would be weak"


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.tiers(quick=2, rest=1)
def test_noise_by_position_on_a_real_architecture(name: str) -> None:
    target = tiny("llama")
    prompts = [
        serving.Prompt([1 + i] * (1 + 2 * i), 9, sampling=RowOptions(9, temperature=0.8 * (i != 2), top_p=0.9, seed=i))
        for i in range(5)
    ]
    engine = ENGINES[name](target, noisy(target), num_draft_tokens=3, batch_size=2, noise="position")
    assert engine.generate(prompts) == [reference(prompt, target) for prompt in prompts]
    assert 0.05 < engine.stats.acceptance < 0.98


@pytest.mark.parametrize("noise", sampling.NOISE)
@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.rest
def test_rows_with_seeds_repeat_whatever_their_mates(name: str, noise: str) -> None:
    prompts = asked()
    torch.manual_seed(1)
    first = decoded(name, prompts, noise=noise)
    torch.manual_seed(2)
    assert decoded(name, prompts, noise=noise) == first
    assert decoded(name, prompts[::-1], noise=noise) == first[::-1]
    for size in (1, 2, 6):
        assert decoded(name, prompts, batch_size=size, noise=noise) == first
    for i, prompt in enumerate(prompts):
        assert decoded(name, [prompt], noise=noise) == [first[i]]
        mates = [*asked(5, seeded=False), prompt]
        assert decoded(name, mates, noise=noise)[-1] == first[i]
    others = [replace(one, sampling=replace(one.sampling, seed=one.sampling.seed + 2**32)) for one in prompts]
    changed = [a != b for a, b in zip(decoded(name, others, noise=noise), first, strict=True)]
    assert changed == [bool(one.sampling.temperature) for one in prompts], "seeds differ above their lower half only"


def test_noise_by_row_does_not_promise_more() -> None:
    """Another number of draft tokens makes other tokens: what is declared is no less than what holds."""
    prompts = asked()
    assert decoded("ragged", prompts, num_draft_tokens=1) != decoded("ragged", prompts, num_draft_tokens=4)
    for name in ENGINES:
        loaded = registry.load(name)
        assert (loaded.seeds, loaded.lossless, loaded.option_order) == ("mates", True, ORDER)
        assert loaded.capabilities == ("temperature", "top-k", "top-p", "min-p", "seeds")


@pytest.mark.parametrize("noise", sampling.NOISE)
@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.tiers(quick=2, rest=4)
def test_greedy_rows_stay_greedy_and_rows_without_seeds_do_not_share_noise(name: str, noise: str) -> None:
    prompts = asked(seeded=False)
    twins = [replace(prompts[0], stop_token_ids=()) for _ in range(3)]
    torch.manual_seed(5)
    first = decoded(name, [*prompts, *twins], noise=noise)
    for i in (1, 4):
        truth = [*greedy(prompts[i].token_ids, WIDE, prompts[i].max_new_tokens)]
        ends = [place + 1 for place, token in enumerate(truth) if token in prompts[i].stop_token_ids]
        assert first[i] == truth[: min(ends, default=LONG)]
    assert len({tuple(row) for row in first[-3:]}) == 3
    assert decoded(name, [*prompts, *twins], noise=noise) != first
    torch.manual_seed(5)
    assert decoded(name, [*prompts, *twins], noise=noise) == first


@pytest.mark.parametrize("name", ENGINES)
def test_without_a_sampled_row_nothing_is_drawn_and_no_law_is_computed(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: Any) -> None:
        raise AssertionError("a law of greedy rows only")

    monkeypatch.setattr(sampling, "law", never)
    before = torch.get_rng_state()
    outputs = decoded(name, [serving.Prompt([1, 2], LONG, sampling=RowOptions(LONG, seed=4))])
    assert outputs == [[*greedy((1, 2), WIDE, LONG)]]
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.tiers(quick=2, rest=1)
def test_requests_of_decoders(name: str) -> None:
    """Options come from the request's rows; without any, rows are greedy."""
    prompts = asked()
    rows = tuple(replace(one.sampling, eos_token_ids=one.stop_token_ids) for one in prompts)
    request = Request([one.token_ids for one in prompts], LONG, 3, (), 0, "left")
    decode = registry.load(name).function
    assert decode(WIDE, near(), request) == [[*greedy(one.token_ids, WIDE, LONG)] for one in prompts]
    outputs = decode(WIDE, near(), replace(request, rows=rows))
    assert outputs == decoded(name, prompts)


BAD: dict[str, tuple[Any, ...]] = {
    "temperature": (-0.1, math.nan, math.inf, "1", True, None),
    "top_k": (-1, 2.0, 2**40, True),
    "top_p": (0.0, -0.5, 1.01, math.nan, "0.9"),
    "min_p": (-0.01, 1.5, math.nan),
    "seed": (-1, 2**64, 1.0, True, "7"),
}


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in BAD.items() for value in values], ids=str
)
def test_bad_options_are_one_error(name: str, value: Any) -> None:
    with pytest.raises(UsageError, match=rf"^{name}: expected .*, got ") as caught:
        RowOptions(4, **{name: value})
    assert str(caught.value).endswith(f"got {value!r}")


def test_the_limits_of_options_are_taken() -> None:
    for options in (
        RowOptions(4, temperature=1, top_k=2**31 - 1, top_p=1, min_p=1.0, seed=2**64 - 1),
        RowOptions(4, temperature=1e-6, top_p=1e-9, min_p=0, seed=0),
        RowOptions(4, temperature=1e6),
    ):
        prompt = serving.Prompt([1, 2], 4, sampling=options)
        assert [len(row) for row in decoded("ragged", [prompt, replace(prompt, token_ids=[3])])] == [4, 4]


Claims = dict[str, Any]


@pytest.mark.parametrize(
    ("claims", "message"),
    [
        ({"seeds": "mate"}, r"seeds: expected one of .*; did you mean 'mates'"),
        ({"seeds": None}, "seeds: expected one of"),
        ({"seeds": "mates"}, "add 'seeds' to its capabilities"),
        ({"capabilities": ("top-p",)}, "'top-p' means nothing without 'temperature'"),
        ({"capabilities": ("temprature",)}, "did you mean 'temperature'"),
        ({"lossless": False}, "lossless: expected True or the reason"),
        ({"lossless": " "}, "lossless: expected True or the reason"),
        ({"option_order": ("temperature", "top-p")}, "option_order: expected .* in some order"),
        ({"option_order": "temperature"}, "option_order: expected"),
        ({"option_order": (*ORDER, "top-k")}, "option_order: expected"),
    ],
)
def test_bad_claims_are_one_error(claims: Claims, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        decoder(**claims)


def test_claims_are_kept() -> None:
    made: Callable[[Any], Any] = decoder(
        capabilities=("temperature", "seeds"),
        seeds="repeatable",
        lossless="typical acceptance",
        option_order=ORDER[::-1],
    )
    found = made(lambda target, draft, request: [])
    assert (found.seeds, found.lossless, found.option_order) == ("repeatable", "typical acceptance", ORDER[::-1])
    plain = decoder()(lambda target, draft, request: [])
    assert (plain.seeds, plain.lossless, plain.option_order) == ("none", True, ORDER)


@pytest.mark.parametrize("name", ENGINES)
def test_what_engines_refuse(name: str) -> None:
    with pytest.raises(serving.Unsupported, match="noise: expected one of row, position, got 'rows'"):
        ENGINES[name](WIDE, near(), noise="rows")
    with pytest.raises(serving.PromptError, match=r"sampling: expected RowOptions or None, got 0\.7"):
        decoded(name, [serving.Prompt([1], sampling=0.7)])
