"""A decode on a real target: the models of a case, watched, with the truth's digests and the draft's script."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from transformers import GenerationConfig

from eqcheck.contract.cache_names import NAMES, cache_argument, cache_of, installed_name
from eqcheck.contract.family import Family
from eqcheck.hashlm.hashing import Words
from eqcheck.hashlm.model import copied
from eqcheck.hashlm.parts import Script
from eqcheck.hashlm.trace import DRAFT, TARGET, Call, Fix, Trace
from eqcheck.real.models import draft_of, model_of
from eqcheck.real.shadow import Shadow
from eqcheck.real.states import StateShadow
from eqcheck.real.tap import Watched, tapped


def fresh(family: Family, seed: int, made: Callable[[str, str, int], Any] = model_of) -> Any:
    """A model that shares only its numbers with others: hooks, attributes and configuration are its own."""
    assert family.target is not None
    model = copied(made(family.target.architecture, family.target.dtype, seed))
    shared, own = model.config, copy.deepcopy(model.config)
    for module in model.modules():
        if vars(module).get("config") is shared:
            module.config = own
    return model


def _called_as_others(model: Any, args: Any, options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Recurrent models have no use for positions, and before 5.24 a name of their own for the cache."""
    dropped = (*NAMES, "position_ids", "cache_position")
    kept = {name: value for name, value in options.items() if name not in dropped}
    cache = cache_of(options)
    return args, kept if cache is None else {**kept, **cache_argument(model, cache)}


def _answers_as_others(_: Any, __: Any, result: Any) -> None:
    if (cache := cache_of(result)) is not None:
        setattr(result, installed_name(), cache)


@contextmanager
def watched(
    family: Family,
    seed: int,
    trace: Trace,
    truth: tuple[tuple[tuple[int, ...], Words], ...],
    script: Script,
    generation: dict[str, Any],
    repair: Callable[[Call], Fix] | None = None,
) -> Iterator[tuple[Any, Any]]:
    """Target and draft of a seed, recorded into ``trace`` for as long as the context lasts.

    ``truth`` are the new tokens of each row and the digests of each query that saw exactly its row, one more than there
    are tokens; they say what a repaired query answers.
    """
    models = fresh(family, seed), fresh(family, seed, draft_of)
    answers: dict[int, int] = {}
    for tokens, digests in truth:
        begin = digests.shape[1] - len(tokens) - 1
        answers.update(zip(digests[-1, begin:-1].tolist(), tokens, strict=True))
    parts = [Watched.of(model, role) for model, role in zip(models, (TARGET, DRAFT), strict=True)]
    if family.stateful:
        for model in models:
            model.register_forward_pre_hook(_called_as_others, with_kwargs=True)
            model.register_forward_hook(_answers_as_others)
    for model in models:
        model.generation_config = GenerationConfig(**generation)
    shadow = (StateShadow if family.stateful else Shadow)(parts, family, trace, answers, script, repair)
    with tapped(parts, shadow):
        yield models
