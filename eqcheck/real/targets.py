"""The families that a list of targets names: of what is the user's, after it was measured."""

from __future__ import annotations

import inspect
from typing import Any

import torch

from eqcheck.contract.architectures import ARCHITECTURES, family_of, is_class, is_own, split
from eqcheck.contract.errors import UsageError
from eqcheck.contract.escaping import one_line
from eqcheck.real.models import model_of

_SHIFT, _LENGTH = 11, 12
_SAME = 3e-3  # of the largest score: tables of angles are in float32, and sharp attention makes more of their rounding


def _known(target: str) -> str:
    name, _, dtype = target.partition("@")
    return family_of(name, dtype)


@torch.no_grad()
def like(model: Any) -> str:
    """The family that a model in float64 is like: ``learned``, ``rotary``, ``mask-order`` or ``window:N``.

    >>> from eqcheck.real.models import model_of
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
    """The family of cases on a target of the user's; builds the model. Raises `UsageError`, as `model_of` does."""
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
    """The families of a list of targets, as ``--target`` takes it; what is the user's is built, to see what it is like.

    >>> families_of("llama,gpt2@float32")
    ('rotary@llama', 'learned@gpt2@float32')
    """
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    if "all" in names:
        names = tuple(ARCHITECTURES)
    return tuple(own_family(*split(name)) if is_own(split(name)[0]) else _known(name) for name in names)
