"""Weights change between requests: what outlives them is a fault of its own, and right decoders are not accused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from eqcheck.audit.loop import audit
from eqcheck.contract import registry
from eqcheck.contract.architectures import family_of
from eqcheck.contract.errors import Violation
from eqcheck.contract.requirements import unmet
from eqcheck.core.case.record import Case
from eqcheck.core.explanation.text import render
from eqcheck.core.result.findings import Audit, Options
from eqcheck.core.result.outcome import Loss
from eqcheck.transparent.decoding import truth_of
from eqcheck.transparent.hashlm import hashing
from eqcheck.transparent.oracle import assert_equivalent
from eqcheck.transparent.real.models import model_of
from eqcheck.transparent.search import Source

STALE, LEAKS = "state/stale-weights", "state/leaks-from-earlier-request"
DECODERS = '''
import copy
import eqcheck, torch
from transformers import DynamicCache

def fed(model, tokens, cache):
    return model(input_ids=torch.tensor([tokens]), past_key_values=cache).logits[0].argmax(-1).tolist()

class Server:
    """One row after the other. What is kept of a prompt is found again by `key`."""

    def __init__(self):
        self.kept, self.alive = {}, []

    open = close = __init__

    def key(self, model, which, tokens):
        return which, tuple(tokens)

    def models(self, target, draft):
        return target, draft

    def begun(self, model, which, prompt):
        """A cache of all but the last token of the prompt."""
        key = self.key(model, which, prompt[:-1])
        if key is None or key not in self.kept:
            cache = DynamicCache()
            if len(prompt) > 1:
                fed(model, prompt[:-1], cache)
            if key is None:
                return cache
            self.kept[key] = cache
            self.alive.append(model)
        return copy.deepcopy(self.kept[key])

    def __call__(self, target, draft, request):
        target, draft = self.models(target, draft)
        return [self.row(target, draft, request, prompt) for prompt in request.prompts]

    def row(self, target, draft, request, prompt):
        k, new, text = request.num_draft_tokens, [], list(prompt)
        big, small = self.begun(target, 0, prompt), self.begun(draft, 1, prompt)
        while len(new) < request.max_new_tokens and not set(new) & set(request.eos_token_ids):
            block = text[-1:]
            for _ in range(k):
                block.append(fed(draft, block[-1:], small)[-1])
            fed(draft, block[-1:], small)
            picks = fed(target, block, big)
            n = next((i for i in range(k) if block[i + 1] != picks[i]), k)
            text, new = text + picks[: n + 1], new + picks[: n + 1]
            for cache in (big, small):
                if extra := cache.get_seq_length() - len(text) + 1:
                    cache.crop(-extra)
        new = new[: request.max_new_tokens]
        return new[: next((i + 1 for i, token in enumerate(new) if token in request.eos_token_ids), len(new))]

@eqcheck.decoder(name="by_tokens")
class by_tokens(Server):
    """Keys and values of prompts are found by their tokens alone."""

@eqcheck.decoder(name="by_model", padding_sides=("left", "right"))
class by_model(Server):
    """Right: they are found by the model, too, which is kept alive."""

    def key(self, model, which, tokens):
        return which, tuple(tokens), id(model)

@eqcheck.decoder(name="flushed")
class flushed(Server):
    """Right: all is dropped when a model comes that was not there before."""

    last = None

    def models(self, target, draft):
        if (target, draft) != self.last:
            self.kept, self.last = {}, (target, draft)
        return target, draft

@eqcheck.decoder(name="by_blocks", families=("rotary",))
class by_blocks(Server):
    """Whole blocks of 64 tokens are found by their tokens, and the rest is computed."""

    def begun(self, model, which, prompt):
        size = (len(prompt) - 1) // 64 * 64
        if not size:
            cache = DynamicCache()
            if len(prompt) > 1:
                fed(model, prompt[:-1], cache)
            return cache
        cache = super().begun(model, which, prompt[: size + 1])
        if prompt[size:-1]:
            fed(model, prompt[size:-1], cache)
        return cache

@eqcheck.decoder(name="captured")
class captured(Server):
    """The first target of a family is captured, with the addresses of its weights, and run for all that come later."""

    def key(self, model, which, tokens):
        return None

    def models(self, target, draft):
        first = self.kept.setdefault(target.config.family, target)
        return first if first.config.vocab_size == target.config.vocab_size else target, draft

@eqcheck.decoder(name="old_head")
class old_head(Server):
    """The hidden states are those of the new weights, the head is kept."""

    def key(self, model, which, tokens):
        return None

    def models(self, target, draft):
        first = self.kept.setdefault((target.config.family, target.config.vocab_size), target)
        target.lm_head = first.lm_head
        return target, draft

@eqcheck.decoder(name="draft_kept")
class draft_kept(Server):
    """The draft's cache of a prompt is found by its tokens: that costs accepted drafts, and no token is wrong."""

    def key(self, model, which, tokens):
        return (which, tuple(tokens)) if which else None

@eqcheck.decoder(name="last_eos")
class last_eos(by_model.function):
    """A fault of state that has nothing to do with weights: the EOS ids of the request before end rows, too."""

    before = ()

    def __call__(self, target, draft, request):
        rows, before = super().__call__(target, draft, request), self.before
        self.before = request.eos_token_ids
        return [row[: next((i + 1 for i, token in enumerate(row) if token in before), len(row))] for row in rows]

@eqcheck.decoder(name="state_kept", families=("recurrent", "convolution"))
class state_kept(Server):
    """The state behind a prompt is found by the prompt's tokens."""

    def row(self, target, draft, request, prompt):
        new, big = [], self.begun(target, 0, prompt)
        while len(new) < request.max_new_tokens:
            new += fed(target, (prompt + new)[-1:], big)
        return new

@eqcheck.decoder(name="same_weights", requires=("same-weights",))
class same_weights(Server):
    """It cannot take new weights, and says so."""
'''


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "reweighted.py").write_text(DECODERS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def audited(name: str, cases: int = 60) -> Audit:
    return audit(registry.load(f"reweighted.py:{name}"), Options(cases=cases, corpus=None))


SEQUENCE = Case(prompts=((10, 11, 12),), max_new_tokens=6, num_draft_tokens=2, accepts=((1, 2),))
CHANGED = replace(SEQUENCE, seed=1, before=(SEQUENCE,))


def test_entries_of_other_weights_change_the_hash() -> None:
    tokens, positions = np.array([[5, 7]]), np.array([[0, 1]])
    entries = [hashing.entries(1, 0, tokens, positions, None, 1, weights)[:, :1] for weights in range(hashing.WEIGHTS)]
    words = {int(hashing.contents(one.astype(np.int64), 1, 0)[0][0, 0]) for one in entries}
    assert len(words) == hashing.WEIGHTS  # as the target of the first weights reads them
    own = {int(hashing.contents(one.astype(np.int64), 1, 0, n)[0][0, 0]) for n, one in enumerate(entries)}
    assert len(own) == 1  # and to each its own are the same, so what a row emits follows from its tokens alone
    fields = [int(hashing.decoded(one.astype(np.int64))[0, 0, 0, 0, hashing.MODEL]) for one in entries]
    assert fields == [1, hashing.OTHER_WEIGHTS, hashing.OTHER_WEIGHTS]


@pytest.mark.parametrize("name", ["by_tokens", "captured", "old_head"])
def test_what_outlives_weights_is_named(work: Path, name: str) -> None:
    with pytest.raises(Violation, match=STALE):
        assert_equivalent(registry.load(f"reweighted.py:{name}"), CHANGED)
    for right in ("by_model", "flushed", "draft_kept"):
        assert_equivalent(registry.load(f"reweighted.py:{right}"), CHANGED)


def test_the_words_say_what_is_old(work: Path) -> None:
    with pytest.raises(Violation) as told:
        assert_equivalent(registry.load("reweighted.py:by_tokens"), CHANGED)
    words = " ".join(str(told.value).split())
    assert "the target attends to 2 entries that were written under other weights (positions 0 to 1)" in words
    assert "would emit" not in words  # old keys under a new head give neither the old row nor the new one
    with pytest.raises(Violation) as told:
        assert_equivalent(registry.load("reweighted.py:captured"), CHANGED)
    words = " ".join(str(told.value).split())
    assert "Row 0 is what the target of the earlier request would emit: 6 of 6 tokens are those of" in words
    assert "attends to" not in words  # the new target was never called


@pytest.mark.parametrize("family", ["recurrent", "convolution"])
def test_layers_with_states_of_their_own_are_read_for_other_weights(work: Path, family: str) -> None:
    earlier = replace(SEQUENCE, prompts=(tuple(range(10, 17)),), family=family)
    with pytest.raises(Violation, match=STALE) as told:
        assert_equivalent(registry.load("reweighted.py:state_kept"), replace(earlier, seed=1, before=(earlier,)))
    words = " ".join(str(told.value).split())
    lowest = "3 entries that were written under other weights (positions 3 to 5)"  # its layer sees four inputs
    assert (lowest if family == "convolution" else "6 entries") in words


@pytest.mark.parametrize("target", ["full", "window", "learned"])
def test_built_checkpoints_get_another_function(work: Path, target: str) -> None:
    earlier = replace(SEQUENCE, family=family_of(target, ""), vocab_size=256)
    changed = replace(earlier, seed=1, before=(earlier,))
    (old,), (new,) = truth_of(earlier).rows, truth_of(changed.alone).rows
    assert old != new
    model = model_of(target, "bfloat16", 1)
    tokens = [*changed.prompts[0], *new]
    with torch.no_grad():
        chosen = model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0].argmax(-1).tolist()
    assert chosen[len(changed.prompts[0]) - 1 : -1] == list(new)
    with pytest.raises(Violation, match=STALE):
        assert_equivalent(registry.load("reweighted.py:by_tokens"), changed)
    for right in ("by_model", "flushed"):
        assert_equivalent(registry.load(f"reweighted.py:{right}"), changed)


@pytest.mark.parametrize(("name", "found"), [("by_tokens", [STALE]), ("by_model", [])])
@pytest.mark.rest
def test_audits_ask_built_checkpoints_again_with_other_weights(work: Path, name: str, found: list[str]) -> None:
    result = audit(registry.load(f"reweighted.py:{name}"), Options(cases=60, corpus=None, families=("rotary@full",)))
    assert [violation.fingerprint for violation in result.violations] == found


@pytest.mark.parametrize("name", ["by_tokens", "by_blocks", "captured", "old_head"])
@pytest.mark.rest
def test_audits_find_stale_weights_within_sixty_cases(work: Path, name: str) -> None:
    result = audited(name)
    assert [violation.fingerprint for violation in result.violations] == [STALE]
    (violation,) = result.violations
    assert result.doubtful == []
    assert len(violation.case.before) == 1
    assert violation.case.before[0].weights != violation.case.weights
    text = render(violation.explanation)
    assert "under the same weights as the last one, it is answered correctly" in " ".join(text.split())
    if name != "by_blocks":
        assert len(violation.case.prompts) == 1
        assert len(violation.case.prompts[0]) <= 2


@pytest.mark.parametrize("name", ["by_model", "flushed", "same_weights"])
@pytest.mark.rest
def test_right_decoders_are_not_accused(work: Path, name: str) -> None:
    assert audited(name).verdict == "equivalent"


@pytest.mark.rest
def test_a_stale_draft_is_a_loss_and_no_violation(work: Path) -> None:
    result = audited("draft_kept", cases=150)
    assert result.violations == []
    assert result.tally.losses[Loss("wrong-context")] > 0  # too few of all drafts for a warning: weights seldom change
    assert audited("by_model", cases=150).tally.losses[Loss("wrong-context")] == 0


@pytest.mark.rest
def test_a_leak_stays_a_leak_where_weights_change(work: Path) -> None:
    result = audited("last_eos")
    assert [violation.fingerprint for violation in result.violations] == [LEAKS]


def test_a_decoder_that_keeps_its_weights_is_asked_for_no_others() -> None:
    claims = registry.load("eqspec")
    given = (0, claims.families, claims.padding_sides, claims.cache_states)
    drawn = [Source(*given, requires, opening=True).chunk(0) for requires in ((), ("same-weights",))]
    free, bound = ([case for case in cases if case.unchanging != case] for cases in drawn)
    assert len(free) >= 2
    assert not bound
    assert unmet(CHANGED, ("same-weights",)) == ["same-weights"]
    assert unmet(replace(CHANGED, seed=0), ("same-weights",)) == []


def test_as_data() -> None:
    case = replace(CHANGED, draft_seed=2)
    assert Case.from_dict(case.to_dict()) == case
    assert "draft_seed" not in CHANGED.to_dict()
    assert truth_of(replace(CHANGED, before=(), draft_seed=0)).rows == truth_of(CHANGED.alone).rows
