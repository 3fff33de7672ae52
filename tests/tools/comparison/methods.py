"""The tests in use, each as its source describes it and at its best: what they run, and when a decoder passes.

Each compares the tokens of a decoder with those of the target alone and knows nothing else about the decoder.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import product
from typing import Any

import torch

from comparison.models import CUSTOMARY, EOS, SPREAD, VOCAB, Limited, Network, Remembering, draft, finite_masks, greedy
from comparison.models import target as build_target
from eqcheck.contract.decoders import Generate, Request
from eqcheck.transparent.decoding import cut

Rows = list[list[int]]


@dataclass(frozen=True)
class Score:
    """How ``rows`` outputs compare: how many are equal, and the leading equal tokens of each row as shares, summed."""

    rows: int
    equal: float
    prefix: float


Rule = Callable[[Score], bool]


def all_equal(score: Score) -> bool:
    return score.equal == score.rows


def over_60_percent(score: Score) -> bool:
    return score.equal > int(0.6 * score.rows)


def over_80_percent(score: Score) -> bool:
    return score.equal > int(0.8 * score.rows)


def as_published(score: Score) -> bool:
    """At least the exact and the prefix match of the worst result that the paper takes for right, rounded down."""
    return score.equal >= 0.9 * score.rows and score.prefix >= 0.95 * score.rows


@dataclass(frozen=True)
class Setting:
    """One configuration of a test: it is run with every architecture, drafter, seed and way to end rows.

    ``eos``: rows end at no token, at the model's ``default``, at two tokens from the ``middle`` of outputs, or at the
    two that are ``common`` to most outputs. ``repeats``: half of the prompts are one text with one word changed.
    """

    rule: Rule
    prompts: int
    batch: int
    max_new_tokens: int
    num_draft_tokens: int
    lengths: tuple[int, int]
    drafters: tuple[str, ...] = ("noisy",)
    architectures: tuple[str, ...] = ("llama",)
    deviation: float = SPREAD
    eos: tuple[str, ...] = ("default",)
    seeds: tuple[int, ...] = (0,)
    dtype: str = "float32"
    repeats: bool = False


@dataclass(frozen=True)
class Method:
    """A test in use; ``settings`` are ``as used`` and ``at its best``."""

    name: str
    source: str
    settings: dict[str, Setting]


AS_USED, BEST = "as used", "at its best"
BOTH = ("gpt2", "llama")


def _both(used: Setting, **best: Any) -> dict[str, Setting]:
    return {AS_USED: used, BEST: replace(used, architectures=BOTH, dtype="float64", **best)}


_TRANSFORMERS = Setting(all_equal, 1, 1, 4, 2, (7, 7), drafters=("random", "same"), deviation=CUSTOMARY, eos=("none",))
_VLLM = Setting(over_60_percent, 100, 100, 10, 3, (8, 24), repeats=True)
_SGLANG = Setting(all_equal, 4, 1, 48, 3, (5, 8))
_PAPER = Setting(as_published, 8, 4, 50, 5, (4, 16))

METHODS = (
    Method(
        "transformers: matches greedy",
        "https://github.com/huggingface/transformers/blob/main/tests/generation/test_utils.py",
        _both(
            _TRANSFORMERS,
            prompts=4,
            batch=4,
            lengths=(1, 12),
            drafters=("noisy", "random", "same"),
            deviation=SPREAD,
            eos=("middle", "none"),
        ),
    ),
    Method(
        "vLLM: 60 % of 100 prompts",
        "https://github.com/vllm-project/vllm/tree/main/tests/v1/e2e",
        _both(_VLLM, rule=over_80_percent, lengths=(1, 24), eos=("common",)),
    ),
    Method(
        "SGLang: exact text of 4 prompts",
        "https://github.com/sgl-project/sglang/blob/main/python/sglang/test/kits/spec_server_kits.py",
        _both(_SGLANG, batch=4, lengths=(1, 12), eos=("middle", "none")),
    ),
    Method(
        "EQSPEC: E and P, customary weights",
        "https://arxiv.org/abs/2510.22876",
        _both(replace(_PAPER, deviation=CUSTOMARY), rule=all_equal, lengths=(1, 16), eos=("middle",)),
    ),
    Method(
        "EQSPEC: E and P, well-spread weights",
        "https://arxiv.org/abs/2510.22876",
        _both(_PAPER, rule=all_equal, lengths=(1, 16), eos=("middle",)),
    ),
)


@dataclass(frozen=True)
class Run:
    """Requests to one pair of models, with what the target alone answers; ``seconds`` is what finding that took."""

    network: Network
    drafter: str
    requests: tuple[Request, ...]
    expected: tuple[Rows, ...]
    seconds: float
    memory: dict[tuple[int, ...], Any] = field(default_factory=dict)


def runs(setting: Setting) -> Iterator[Run]:
    """All runs of a setting, prepared when they are asked for."""
    for seed, architecture, eos, drafter in product(
        setting.seeds, setting.architectures, setting.eos, setting.drafters
    ):
        yield _run(replace(setting, seeds=(seed,), architectures=(architecture,), eos=(eos,), drafters=(drafter,)))


@lru_cache(maxsize=256)
def _run(setting: Setting) -> Run:
    start = time.perf_counter()
    (seed,), (architecture,), (drafter,) = setting.seeds, setting.architectures, setting.drafters
    network = Network(architecture, setting.deviation, seed, setting.dtype)
    texts = prompts(setting, random.Random(seed))
    uncut = [greedy(build_target(network), text, setting.max_new_tokens) for text in texts]
    eos = _eos(setting.eos[0], uncut)
    batches = [slice(at, at + setting.batch) for at in range(0, len(texts), setting.batch)]
    requests = tuple(
        Request(
            prompts=texts[batch],
            max_new_tokens=setting.max_new_tokens,
            num_draft_tokens=setting.num_draft_tokens,
            eos_token_ids=eos,
            pad_token_id=eos[0] if eos else 0,
            padding_side="left",
        )
        for batch in batches
    )
    rows = [list(cut(row, eos)) for row in uncut]
    expected = tuple(rows[batch] for batch in batches)
    return Run(network, drafter, requests, expected, time.perf_counter() - start)


def prompts(setting: Setting, rng: random.Random) -> Rows:
    """Random tokens, any of the vocabulary."""

    def text(length: int) -> list[int]:
        return [rng.randrange(VOCAB) for _ in range(length)]

    repeated = setting.prompts // 2 if setting.repeats else 0
    before, after, words = text(4), text(12), text(4)
    same = [[*before, rng.choice(words), *after] for _ in range(repeated)]
    return same + [text(rng.randint(*setting.lengths)) for _ in range(setting.prompts - repeated)]


def _eos(kind: str, outputs: Rows) -> tuple[int, ...]:
    if kind == "none":
        return ()
    if kind == "default":
        return (EOS,)
    if kind == "common":
        held = Counter(token for row in outputs for token in dict.fromkeys(row))
        return tuple(token for token, _ in held.most_common(2))
    middle = len(outputs[0]) // 2
    return tuple(dict.fromkeys((outputs[0][middle], outputs[1][middle])))


@dataclass(frozen=True)
class Outcome:
    """What a test said of a decoder: ``failed``, in what way (``tokens`` or ``crash``), after how many seconds."""

    failed: bool
    way: str
    seconds: float


def try_on(setting: Setting, generate: Generate, *, remember: bool = False) -> Outcome:
    """Run a test on a decoder, up to the first run that fails.

    ``seconds`` counts what finding the target's own outputs took, also where they are known from an earlier test.
    ``remember`` saves time by not computing again what the draft answers without a cache.
    """
    seconds = 0.0
    for run in runs(setting):
        start = time.perf_counter()
        way = _fails(run, setting, generate, remember)
        seconds += run.seconds + time.perf_counter() - start
        if way:
            return Outcome(True, way, seconds)
    return Outcome(False, "", seconds)


def _fails(run: Run, setting: Setting, generate: Generate, remember: bool) -> str:
    equal, prefix, left = 0, 0.0, setting.prompts
    model, drafter = build_target(run.network), draft(run.network, run.drafter)
    if remember:
        drafter = Remembering(drafter, run.memory)
    for request, expected in zip(run.requests, run.expected, strict=True):
        rows = len(expected)
        most = 50 + rows * (request.max_new_tokens + 2) * (request.num_draft_tokens + 1)
        try:
            with torch.no_grad(), finite_masks():
                outputs = generate(Limited(model, most), drafter, replace(request, prompts=list(request.prompts)))
            if len(outputs) != rows:
                return "crash"
        except Exception:
            return "crash"
        left -= rows
        equal += sum(list(a) == b for a, b in zip(outputs, expected, strict=True))
        prefix += sum(_prefix(a, b) for a, b in zip(outputs, expected, strict=True))
        # Stop where the rest, were it right, could not save it.
        if not setting.rule(Score(setting.prompts, equal + left, prefix + left)):
            return "tokens"
    return ""


def _prefix(observed: Sequence[int], expected: Sequence[int]) -> float:
    """Leading equal tokens as a share of what is expected."""
    same = [a == b for a, b in zip(observed, expected, strict=False)]
    return (same.index(False) if False in same else len(same)) / len(expected)


def agreement(setting: Setting) -> list[float]:
    """At what share of places the draft of each run agrees with the target, given the target's own tokens."""
    shares = []
    for run in runs(setting):
        same = total = 0
        with torch.no_grad():
            for request, expected in zip(run.requests, run.expected, strict=True):
                for prompt, row in zip(request.prompts, expected, strict=True):
                    ids = torch.tensor([[*prompt, *row[:-1]]])
                    proposed = draft(run.network, run.drafter)(input_ids=ids).logits[0, len(prompt) - 1 :].argmax(-1)
                    same += sum(a == b for a, b in zip(proposed.tolist(), row, strict=True))
                    total += len(row)
        shares.append(same / total)
    return shares
