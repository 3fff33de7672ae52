"""The families that a list of targets names, and whether a target can be read: said before an audit, not after it."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import GenerationConfig

from eqcheck.contract.architectures import ARCHITECTURES, family_of, is_class, is_folder, is_own, split
from eqcheck.contract.cache_names import NAMES, cache_argument, cache_of, installed_name
from eqcheck.contract.errors import Unsupported, UsageError, one_line
from eqcheck.contract.family import FAMILY, Family
from eqcheck.transparent.hashlm.hashing import Words
from eqcheck.transparent.hashlm.model import copied
from eqcheck.transparent.hashlm.parts import Script
from eqcheck.transparent.hashlm.trace import DRAFT, TARGET, Call, Fix, Trace
from eqcheck.transparent.real.models import VOCAB_SIZE, draft_of, in_folder, model_of
from eqcheck.transparent.real.shadow import Shadow, StateShadow
from eqcheck.transparent.real.tap import NotRead, Watched, tapped

# A decode on a real target: the models of a case, watched, with the truth's digests and the draft's script.


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


_NEXT = "audit it by its tokens with --python, or take another target"
_SHIFT, _LENGTH = 11, 12
_SAME = 3e-3  # of the largest score: tables of angles are in float32, and sharp attention makes more of their rounding


def _known(target: str) -> str:
    name, _, dtype = target.partition("@")
    return family_of(name, dtype)


@torch.no_grad()
def like(model: Any) -> str:
    """The family that a model in float64 is like: ``learned``, ``rotary``, ``mask-order`` or ``window:N``.

    >>> from eqcheck.transparent.real.models import model_of
    >>> [like(model_of(name, "float64", 0)) for name in ("llama", "gpt2", "mistral", "bloom")]
    ['rotary', 'learned', 'window:8', 'mask-order']
    """
    if "position_ids" not in inspect.signature(model.forward).parameters:
        return "mask-order"
    ids = torch.arange(1, _LENGTH + 1)[None]
    mask = torch.ones_like(ids)
    places = torch.arange(_LENGTH)[None]
    scores, shifted = (model(input_ids=ids, attention_mask=mask, position_ids=places + by).logits for by in (0, _SHIFT))
    if float((scores - shifted).abs().max()) > _SAME * float(scores.abs().max()):
        return "learned"
    kinds = set(getattr(model.config, "layer_types", None) or ["sliding_attention"])
    window = getattr(model.config, "sliding_window", None)
    used = getattr(model.config, "use_sliding_window", True)
    return f"window:{window}" if window and used and kinds == {"sliding_attention"} else "rotary"


def own_family(spec: str, dtype: str) -> str:
    """The family of cases on a target of the user's; builds the model. Raises `UsageError`, as `model_of` does.

    A built checkpoint in a folder is the target of its name, in the dtype in which it is saved if none is asked for.
    """
    name, saved = in_folder(spec) if is_folder(spec) else ("", "")
    if name:
        return family_of(name, dtype or saved)
    try:
        base = like(model_of(spec, "float64", 0))
    except UsageError:
        raise
    except Exception as error:
        what = "built" if is_class(spec) else "run"
        raise UsageError(
            f"--target {spec}: it cannot be {what}: {type(error).__name__}: {one_line(str(error))}"
        ) from error
    return f"{base}@{spec}" + (f"@{dtype}" if dtype not in ("", "float64") else "")


def families_of(text: str) -> tuple[str, ...]:
    """The families of a list of targets, as ``--target`` takes it; a target of the user's is built, to measure it.

    >>> families_of("llama,gpt2@float32")
    ('rotary@llama', 'learned@gpt2@float32')
    """
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    if "all" in names:
        names = tuple(ARCHITECTURES)
    return tuple(own_family(*split(name)) if is_own(split(name)[0]) else _known(name) for name in names)


def check(family: str, seed: int = 0) -> None:
    """Read a padded forward of a target; `UsageError` says why one cannot be read, and what can be done instead.

    >>> check("rotary@llama")
    """
    trace = Trace()
    name = family.partition("@")[2]
    mask = torch.tensor([[0, 1, 1, 1], [1, 1, 1, 1]])
    with watched(FAMILY[family], seed, trace, (), Script(), {"pad_token_id": VOCAB_SIZE}) as (target, _):
        try:
            with torch.no_grad():
                logits = target(
                    input_ids=torch.tensor([[VOCAB_SIZE, 3, 1, 4], [1, 5, 9, 2]]), attention_mask=mask
                ).logits
        except (NotRead, Unsupported) as unread:
            raise UsageError(f"--target {name}: it cannot be read: {unread}; {_NEXT}") from unread
        except RuntimeError as error:
            first = str(error).partition("\n")[0]
            raise UsageError(
                f"--target {name}: it does not compute in {FAMILY[family].target.dtype} here: {first}; "  # type: ignore[union-attr]
                f"ask for another dtype, as {name.partition('@')[0]}@float32"
            ) from error
    if not trace.calls:
        raise UsageError(f"--target {name}: it cannot be read: no attention of a forward was seen; {_NEXT}")
    if not bool(logits[:, -1].isfinite().all()):
        raise UsageError(
            f"--target {name}: a pad that sees nothing becomes NaN and spreads to its row, in this dtype; "
            f"ask for {name.partition('@')[0]}@float32"
        )
