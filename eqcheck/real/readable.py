"""Whether a real target can be read, said before an audit and not after it."""

from __future__ import annotations

import torch

from eqcheck.contract.errors import Unsupported, UsageError
from eqcheck.contract.family import FAMILY
from eqcheck.hashlm.parts import Script
from eqcheck.hashlm.trace import Trace
from eqcheck.real.decode import watched
from eqcheck.real.models import VOCAB_SIZE
from eqcheck.real.tap import NotRead

_NEXT = "audit it by its tokens with --python, or take another target"


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
