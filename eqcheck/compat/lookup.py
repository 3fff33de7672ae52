"""Give a store of n-grams, or any draft that is looked up and not computed, what the draft of a case would propose."""

from __future__ import annotations

from typing import Any

from eqcheck.contract.errors import Unsupported
from eqcheck.drafting.draft import ScriptedDraft


def drafts_of(draft: Any) -> list[list[int]]:
    """Return for each row of the request what its draft proposes: up to ``max_new_tokens`` ids, one for each new token.

    Id ``n`` is the draft's proposal after the prompt and the first ``n`` new tokens of the target. So a store that is
    filled with ``prompt + drafts`` finds drafts that are accepted and rejected as the case has it: a wrong id is never
    the target's, and behind it the store finds nothing until the row agrees with it again.

    The models are not called, so this is none of the decoder's calls. Raises `Unsupported` for a draft that is not of a
    case of `eqcheck`.

        >>> import eqcheck
        >>> from eqcheck.decoding.harness import run
        >>> seen = []
        >>> case = eqcheck.Case(prompts=((5, 7),), max_new_tokens=3, num_draft_tokens=2, accepts=((1,),))
        >>> done = run(lambda target, draft, request: seen.extend(drafts_of(draft)), case)
        >>> [one == right for one, right in zip(seen[0], done.truth.uncut[0])]
        [True, False, False]
    """
    made = getattr(draft, "continuations", None)
    if made is None and isinstance(draft, ScriptedDraft):
        raise Unsupported("the drafts of sampled rows are not known beforehand")
    if made is None:
        raise Unsupported(f"expected the draft that eqcheck hands over, got {type(draft).__name__}")
    rows: list[list[int]] = made()
    return rows
