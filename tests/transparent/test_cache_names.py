"""The cache of a model call, under each name that a transformers has for it; and releases that are not out yet."""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from packaging.version import Version
from transformers import DynamicCache
from transformers.modeling_outputs import CausalLMOutputWithPast

import eqcheck
from eqcheck.contract import cache_names, extras
from eqcheck.contract.cache_names import (
    CACHE,
    OLD,
    OLD_RECURRENT,
    arguments,
    cache_argument,
    cache_name,
    cache_of,
    cache_output,
    named_as_installed,
    takes_cache,
)
from eqcheck.contract.decoders import Decoder
from eqcheck.transparent.hashlm.model import HashConfig, HashLM
from eqcheck.transparent.real.models import model_of

NEW = Version(transformers.__version__) >= Version("5.24")
IDS = torch.tensor([[3, 1, 4]])


class Takes:
    """A model whose ``forward`` has one of the names, as code that does not come with transformers may."""

    def __init__(self, name: str) -> None:
        def forward(input_ids: Any, **options: Any) -> Any: ...

        its = inspect.signature(forward)
        parameters = list(its.parameters.values())
        cache = inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None)
        forward.__signature__ = its.replace(parameters=[parameters[0], cache, parameters[1]])  # type: ignore[attr-defined]
        self.forward = forward


def test_the_name_is_the_one_of_the_installed_transformers() -> None:
    assert cache_names.installed_name() == (CACHE if NEW else OLD)
    target = HashLM(HashConfig(seed=1))
    llama, mamba = model_of("llama", "float64", 0), "mamba2" if Version(transformers.__version__).major >= 5 else None
    assert cache_name(target) == cache_name(llama) == (CACHE if NEW else OLD)
    assert takes_cache(target)
    assert takes_cache(llama)
    assert not takes_cache(target.lm_head)
    if mamba:
        assert cache_name(model_of(mamba, "float64", 0)) == (CACHE if NEW else OLD_RECURRENT)


@pytest.mark.parametrize("name", cache_names.NAMES)
def test_the_argument_has_the_name_that_the_model_takes_and_is_read_again(name: str) -> None:
    model, cache = Takes(name), DynamicCache()
    assert cache_argument(model, cache) == {name: cache}
    for positional, options in (((IDS, cache), {}), ((IDS,), {name: cache}), ((), {"input_ids": IDS, name: cache})):
        passed = arguments(model, positional, options)
        assert passed["input_ids"] is IDS
        assert cache_of(passed) is cache
    assert cache_of(arguments(model, (IDS,), {})) is None
    assert cache_of(arguments(model, (IDS,), {name: None})) is None


def test_the_cache_is_read_out_of_each_kind_of_output() -> None:
    cache, logits = DynamicCache(), torch.zeros(1, 1, 4)
    assert cache_of(CausalLMOutputWithPast(logits=logits, **cache_output(cache))) is cache
    assert cache_of(CausalLMOutputWithPast(logits=logits)) is None
    assert cache_of((logits, cache)) is cache
    assert cache_of((logits,)) is None
    for name in cache_names.NAMES:
        assert cache_of(SimpleNamespace(logits=logits, **{name: cache})) is cache


def test_reading_an_output_calls_no_deprecated_name(caplog: pytest.LogCaptureFixture) -> None:
    with torch.no_grad():
        output = HashLM(HashConfig(seed=1))(IDS)
    for one in (output, CausalLMOutputWithPast(logits=output.logits)):
        cache_of(one)
    assert not caplog.records


@pytest.mark.parametrize("name", [OLD, CACHE])
def test_the_transparent_target_takes_the_names_of_the_installed_transformers(name: str) -> None:
    target = HashLM(HashConfig(seed=1))
    assert next(one for one in inspect.signature(target.forward).parameters if one in cache_names.NAMES) == (
        CACHE if NEW else OLD
    )
    with torch.no_grad():
        if name == CACHE and not NEW:
            with pytest.raises(TypeError, match="cache: the installed transformers calls it past_key_values"):
                target(IDS, cache=DynamicCache())
            return
        first = target(IDS, **{name: DynamicCache()})
        assert isinstance(getattr(first, name), DynamicCache)
        again = target(torch.tensor([[1]]), **{name: getattr(first, name)})
        whole = target(torch.tensor([[3, 1, 4, 1]]))
        assert torch.equal(again.logits[0, -1], whole.logits[0, -1])
        with pytest.raises(TypeError, match="expected one of the two" if NEW else "the installed transformers"):
            target(IDS, past_key_values=DynamicCache(), cache=DynamicCache())


def test_a_forward_is_named_for_a_release_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def forward(ids: Any, cache: Any = None) -> Any:
        return ids, cache

    for installed in (OLD, CACHE):
        monkeypatch.setattr(cache_names, "installed_name", lambda installed=installed: installed)
        named = named_as_installed(forward)
        assert list(inspect.signature(named).parameters) == ["ids", installed]
        old: dict[str, Any] = {OLD: 2}
        assert named(1, **old) == named(1, 2) == (1, 2)


def passes(name: str) -> Decoder:
    """A right decoder of one row that passes the cache under a name, and reads it out of outputs by that name."""

    @eqcheck.decoder(name=f"passes-{name}", requires=("batch-1",))
    @torch.no_grad()
    def generate(target: Any, draft: Any, request: Any) -> list[list[int]]:
        (prompt,), new = request.prompts, list[int]()
        block, cache = list(prompt), None
        while len(new) < request.max_new_tokens and not set(new) & set(request.eos_token_ids):
            output = target(torch.tensor([block]), use_cache=True, **{name: cache})
            cache = getattr(output, name)
            block = [int(output.logits[0, -1].argmax())]
            new += block
        return [new]

    return generate


@pytest.mark.parametrize("family", ["rotary", "recurrent"])
@pytest.mark.parametrize("name", [CACHE, OLD] if NEW else [OLD])
def test_a_decoder_that_passes_either_name_is_right(name: str, family: str) -> None:
    case = eqcheck.Case(prompts=((3, 1, 4),), max_new_tokens=6, num_draft_tokens=2, family=family)
    eqcheck.assert_equivalent(passes(name), case)


def test_a_newer_transformers_is_a_line_and_no_refusal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Any
) -> None:
    from eqcheck import cli

    for faked in ("5.25.0", "5.40.0.dev0", "6.0.0rc1"):
        monkeypatch.setattr("eqcheck.contract.extras.version", lambda name, faked=faked: faked)
        assert f"transformers {faked} is newer" in extras.untested()
        assert len(f"eqcheck: {extras.untested()}") <= 200
        assert "\n" not in extras.untested()
    words = ["audit", "eqspec", "--cases", "3", "--no-corpus", "--quiet", "--out", str(tmp_path)]
    under_newer = cli.main(words)
    told = capsys.readouterr()
    assert "transformers 6.0.0rc1 is newer" in told.err
    assert "pip install 'transformers==5.24.*'" in told.err
    monkeypatch.undo()
    assert not extras.untested()  # none that CI runs is called new
    assert under_newer == cli.main(words)
    assert "is newer" not in capsys.readouterr().err
    monkeypatch.setattr("eqcheck.contract.extras.version", lambda name: "5.24.3")
    assert not extras.untested()
