"""The families that a list of targets names, and whether a target can be read: said before an audit, not after it."""

from __future__ import annotations

import inspect
from typing import Any

import torch

from eqcheck.contract.architectures import ARCHITECTURES, family_of, is_class, is_folder, is_own, split
from eqcheck.contract.errors import Unsupported, UsageError
from eqcheck.contract.escaping import one_line
from eqcheck.contract.family import FAMILY
from eqcheck.hashlm.parts import Script
from eqcheck.hashlm.trace import Trace
from eqcheck.real.built import in_folder
from eqcheck.real.decode import watched
from eqcheck.real.models import VOCAB_SIZE, model_of
from eqcheck.real.tap import NotRead

_NEXT = "audit it by its tokens with --python, or take another target"
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
