"""The scripted draft: a model that proposes the target's next token except where the case says otherwise."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

from eqcheck.hashlm.hashing import Bools, Words
from eqcheck.hashlm.model import HashConfig, HashLM, Script
from eqcheck.hashlm.trace import DRAFT


class ScriptedDraft(HashLM):
    """A draft whose acceptance is dictated, by the contexts at which it is wrong or by an agreement rate.

    It has its own cache and never knows which row it is in, except through the context it is given: a context
    is identified by the hash of what the query sees. With a damaged context of its own it proposes something
    else and loses acceptance, as a real draft does. In a case ``head`` is its `eqcheck.drafting.head.ScriptedHead`, for
    decoders that draft from the target's hidden states instead, and ``continuations()`` are its proposals for those
    that look drafts up (`eqcheck.compat.drafts_of`).

        >>> from eqcheck.hashlm.model import HashLM, HashConfig
        >>> draft = ScriptedDraft.of(HashLM(HashConfig(seed=1)))
        >>> draft.script(agreement=0.5)
    """

    head: Any
    continuations: Any

    def __init__(self, config: HashConfig) -> None:
        super().__init__(config)
        self.script()

    @classmethod
    def of(cls, target: HashLM, **kwargs: Any) -> ScriptedDraft:
        """A draft of ``target``: the same family, vocabulary and seed, and a cache of its own."""
        c = target.config
        config = HashConfig(
            vocab_size=c.vocab_size, seed=c.seed, family=c.family, role=DRAFT, extra_pad=c.extra_pad, **kwargs
        )
        return cast(ScriptedDraft, cls(config).eval())

    def script(
        self, wrong_after: Iterable[int] = (), *, agreement: float = 1.0, lower: Mapping[int, int] | None = None
    ) -> None:
        """Propose the second choice after the contexts with these final digests, and at random elsewhere.

        ``agreement`` is the probability, 0 to 1, of proposing the target's own choice at any other context;
        the choice is a fixed function of the context. ``lower`` has, for some of ``wrong_after``, the rank of the
        target's choice among the draft's; it is 1 elsewhere.
        """
        self.model.script = self.lm_head.script = Script(frozenset(wrong_after), agreement, lower or {})

    def disagrees(self, digests: Words) -> Bools:
        """Return whether the second choice is proposed after each of these final digests."""
        assert self.lm_head.script is not None
        return self.lm_head.script.disagrees(digests)
