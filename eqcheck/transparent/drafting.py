"""The scripted draft: a model that proposes the target's next token except where the case says otherwise."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import count, pairwise
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from transformers import PretrainedConfig
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast

from eqcheck.contract.cache_names import cache_output, named_as_installed
from eqcheck.transparent.hashlm import hashing
from eqcheck.transparent.hashlm.hashing import LAYERS, Bools, Ints, States, Words, mix, states_in, table_row
from eqcheck.transparent.hashlm.model import HashConfig, HashLM, Script
from eqcheck.transparent.hashlm.parts import integers, numbers
from eqcheck.transparent.hashlm.trace import DRAFT, TARGET, HeadCall
from eqcheck.transparent.truth.continuation import continue_rows

if TYPE_CHECKING:
    from eqcheck.core.case.record import Case


class ScriptedDraft(HashLM):
    """A draft whose acceptance is dictated, by the contexts at which it is wrong or by an agreement rate.

    It has its own cache and never knows which row it is in, except through the context it is given: a context
    is identified by the hash of what the query sees. With a damaged context of its own it proposes something
    else and loses acceptance, as a real draft does. In a case ``head`` is its `ScriptedHead`, for decoders that draft
    from the target's hidden states instead, and ``continuations()`` are its proposals for those that look drafts up
    (`eqcheck.compat.drafts_of`).

        >>> from eqcheck.transparent.hashlm.model import HashLM, HashConfig
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


# The scripted head: it drafts from the target's hidden states, in the three shapes in which systems have heads.
#
# ``column``    reads one hidden state of a row, that of the newest token but one, and has no cache (Medusa)
# ``accepted``  attends to the hidden states of all tokens but the newest, which it keeps in a cache of its own; `step`
#               goes on from there with the newest token, and then with its own proposals (Hydra, Clover). `step` also
#               goes on from a hidden state of the target (MLPSpeculator)
# ``pairs``     attends to hidden states, each with the token at the *next* position, in a cache of its own; for its
#               later steps it is given its own states (EAGLE, multi-token prediction)
#
# A head that is given what is due proposes what the case's script has a draft propose. One wrong state or token
# changes its proposals with probability 1 - 1/vocab_size, as with the models of `eqcheck.transparent.hashlm.model`; so
# a wrong input costs the draft tokens of that round. Every call is recorded in the trace, with everything that was
# seen.

_TOKEN, _RANK, _OWN, _STEP, _STRANGE = hashing.multipliers(5, 5)
_MARK = 7  # of a written slot


class Contexts:
    """The contexts of the truth: of each row its tokens, and the digests of a query at each of their positions."""

    def __init__(
        self, draft: ScriptedDraft, case: Case, rows: Sequence[Sequence[int]], digests: Sequence[Words]
    ) -> None:
        self._draft, self._case = draft, case
        self._starts = [len(prompt) for prompt in case.prompts]
        texts = [np.array([*prompt, *row], np.int64) for prompt, row in zip(case.prompts, rows, strict=True)]
        self._rows = [(text, known[: len(text)]) for text, known in zip(texts, digests, strict=True)]
        self.tree = bool(case.tree)

    @cached_property
    def _strays(self) -> list[tuple[Ints, Words]]:
        """Texts that leave a row with a wrong proposal and go on as the target does, each with its digests.

        A draft model agrees with the target again behind its own wrong token. A head without these texts would agree
        there by chance only, and a decoder that accepts a token behind a rejected one would go unseen.
        """
        case, starts = self._case, list[tuple[int, ...]]()
        for start, (tokens, digests) in zip(self._starts, self._rows, strict=True):
            contexts = digests[start - 1 : -1]
            left = np.flatnonzero(self._draft.disagrees(contexts) | self.tree)
            second = self._draft.model.choices[1][table_row(contexts)]
            starts += [(*tokens[: start + at].tolist(), int(second[at])) for at in left.tolist()]
        go_on = max(case.num_draft_tokens - 1, 1)
        ends = continue_rows(case.family, case.vocab_size, case.seed, starts, go_on)
        return [(np.array([*text, *new], np.int64), known[-1]) for text, (new, known) in zip(starts, ends, strict=True)]

    @cached_property
    def behind(self) -> dict[tuple[int, int | None], int]:
        """The digest of a context by the one before and the token between; None is for the target's answer.

        Rows that begin alike go on differently from one context: with their prompts, or with the answers.
        """
        digest_of: dict[tuple[int, int | None], int] = {}
        for tokens, digests in (*self._strays, *self._rows):
            known = digests.tolist()
            digest_of.update(zip(zip(known, tokens[1:].tolist()), known[1:]))  # noqa: B905 (none is behind the last)
        for start, (_, digests) in zip(self._starts, self._rows, strict=True):
            digest_of.update(((before, None), digest) for before, digest in pairwise(digests[start - 1 :].tolist()))
        return digest_of

    @cached_property
    def accepted(self) -> dict[int, int]:
        """The digest of a context by the hash of all states up to its position."""
        digest_of: dict[int, int] = {}
        for _, digests in self._rows:
            ranks = np.arange(len(digests), dtype=np.uint64)
            hashes = mix(mix(mix(digests) + ranks * _RANK).cumsum(dtype=np.uint64))
            digest_of.update(zip(hashes.tolist(), digests.tolist(), strict=True))
        return digest_of

    @cached_property
    def pairs(self) -> dict[int, int]:
        """The digest of a context by the hash of all pairs before it; the last pairs may have own states."""
        digest_of: dict[int, int] = {}
        for tokens, digests in (*self._strays, *self._rows):
            ranks = np.arange(len(digests) - 1, dtype=np.uint64)
            words = digests[:-1] + tokens[1:].astype(np.uint64) * _TOKEN
            of_target, of_own = (
                np.concatenate([np.zeros(1, np.uint64), mix(mix(one) + ranks * _RANK).cumsum(dtype=np.uint64)])
                for one in (words, words + _OWN)
            )
            for own in range(self._case.num_draft_tokens + 1):
                ends = np.arange(own + 1, len(digests))
                hashes = mix(of_target[ends - own] + of_own[ends] - of_own[ends - own])
                digest_of.update(zip(hashes.tolist(), digests[ends].tolist(), strict=True))
        return digest_of


class ScriptedHead:
    """A head on the target's hidden states whose acceptance is that of the scripted draft it belongs to.

    A decoder finds it as ``draft.head``. The states that it gives are its own, in the same digits as those of the
    target. ``hidden`` is always ``[..., hidden_size]``, what the target gives as ``hidden_states[-1]``.
    """

    def __init__(self, draft: ScriptedDraft, contexts: Contexts) -> None:
        self.draft, self.contexts = draft, contexts
        self.vocab_size, self.hidden_size = draft.config.vocab_size, draft.config.hidden_size
        self._clock = count(1)

    @cached_property
    def accepted(self) -> AttendingHead:
        """Called with ``hidden_states``, mask and cache, it gives ``last_hidden_state``; `step` goes on from it."""
        return AttendingHead(self, "accepted")

    @cached_property
    def pairs(self) -> AttendingHead:
        """Called with ``input_ids`` (each the token behind), ``hidden_states``, mask and cache: logits and states."""
        return AttendingHead(self, "pairs")

    def column(self, hidden: torch.Tensor, num_draft_tokens: int) -> torch.Tensor:
        """Logits ``[rows, num_draft_tokens, vocab_size]`` behind the token that each of ``hidden`` predicts."""
        states = self.states(hidden, 2)
        if num_draft_tokens < 1:
            raise ValueError(f"num_draft_tokens: expected 1 or more, got {num_draft_tokens}")
        digests = np.zeros((len(hidden), num_draft_tokens), np.uint64)
        at, tokens = due(states), [None] * len(hidden)
        for place in range(num_draft_tokens):
            at = np.array([self._next(*one) for one in zip(at.tolist(), tokens, strict=True)], np.uint64)
            digests[:, place] = at
            if not self.contexts.tree:  # one column serves all paths of a tree: there it keeps to the target's
                tokens = self.proposed(at).tolist()
        self.record("column", _column(states), None, digests)
        return self.logits(digests)

    def step(self, state: torch.Tensor, token: torch.Tensor, place: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits ``[rows, vocab_size]`` and the next state, from a state ``[rows, size]`` and the token behind it.

        ``place`` is which of a round's steps this is, for heads whose steps have weights of their own; this one's are
        all alike.
        """
        states, tokens = self.states(state, 2), self.tokens(token, "token")
        if tokens.shape != (len(state),):
            raise ValueError(f"token: expected [{len(state)}], one for each state, got shape {list(tokens.shape)}")
        given = due(states)
        if "accepted" in vars(self):  # what it attended to is due, and no state of the target in its place
            given = mix(given)
        at = np.where(_own(states), states.digests, given)
        digests = np.array([self._next(*one) for one in zip(at.tolist(), tokens.tolist(), strict=True)], np.uint64)
        number = self.record("step", _column(states), tokens[:, None], digests[:, None])
        return self.logits(digests[:, None])[:, 0], self.given(digests[:, None], number)[:, 0]

    def _next(self, digest: int, token: int | None) -> int:
        """The context behind one, with a token; of the truth where both are, else some other."""
        follows = self.contexts.behind.get((digest, token))
        if follows is not None:
            return follows
        word = np.array([digest], np.uint64) + np.array([(token or 0) + 1], np.uint64) * _STEP
        return int(mix(word)[0])

    # Shared by the shapes:

    def states(self, hidden: torch.Tensor, dims: int) -> States:
        """The fields of hidden states; ``ValueError`` or ``TypeError`` for a tensor that no target can have given."""
        if not isinstance(hidden, torch.Tensor) or not hidden.is_floating_point():
            what = hidden.dtype if isinstance(hidden, torch.Tensor) else type(hidden).__name__
            raise TypeError(f"hidden states: expected a tensor of floating point numbers, got {what}")
        if hidden.dim() != dims or hidden.shape[-1] != self.hidden_size:
            expected = f"[rows, {self.hidden_size}]" if dims == 2 else f"[rows, block, {self.hidden_size}]"
            raise ValueError(f"hidden states: expected {expected}, got {list(hidden.shape)}")
        return states_in(numbers(hidden))

    def tokens(self, ids: torch.Tensor, name: str) -> Ints:
        """Token ids; ``TypeError`` or ``ValueError`` for others than ids of the vocabulary."""
        if not isinstance(ids, torch.Tensor) or ids.is_floating_point():
            what = ids.dtype if isinstance(ids, torch.Tensor) else type(ids).__name__
            raise TypeError(f"{name}: expected a tensor of token ids, got {what}")
        found = integers(ids)
        if found.size and not (found.min() >= 0 and found.max() < self.vocab_size):
            raise ValueError(f"{name}: expected tokens in 0..{self.vocab_size - 1}, got {found.min()}..{found.max()}")
        return found

    def logits(self, digests: Words) -> torch.Tensor:
        """The answers of a draft in these contexts, as the script has them."""
        return cast(torch.Tensor, self.draft.lm_head(self.given(digests, 0)))

    def given(self, digests: Words, number: int) -> torch.Tensor:
        """The head's own states ``[rows, block, size]`` for these contexts."""
        weight = self.draft.lm_head.weight
        spelled = hashing.hidden(DRAFT, LAYERS, digests, number, self.hidden_size)
        return torch.from_numpy(spelled).to(weight.device, weight.dtype)

    def record(self, shape: str, given: States, tokens: Ints | None, digests: Words, **seen: Any) -> int:
        """Note a call in the trace, and number it."""
        trace = self.draft.trace
        number = next(self._clock if trace is None else trace.clock)
        if trace is not None:
            trace.record_head(HeadCall(number, shape, given, tokens, digests, self.proposed(digests), **seen))
        return number

    def proposed(self, digests: Words) -> Ints:
        """The first choice of a draft in these contexts, as the script has it."""
        first, second = (choice[table_row(digests)] for choice in self.draft.model.choices)
        return cast(Ints, np.where(self.draft.disagrees(digests), second, first))


class AttendingHead:
    """The part of a head that attends, with the interface of a causal LM of one layer; see `ScriptedHead`.

    Its cache is any of ``transformers``, with keys and values ``[rows, 1, slots, hidden_size]``. Only the order of what
    is seen counts; ``position_ids`` are taken and not read.
    """

    def __init__(self, head: ScriptedHead, shape: str) -> None:
        self.head, self.shape = head, shape
        size = head.hidden_size
        self.config = PretrainedConfig(
            vocab_size=head.vocab_size,
            hidden_size=size,
            num_hidden_layers=1,
            num_attention_heads=1,
            num_key_value_heads=1,
            head_dim=size,
        )
        self.device, self.dtype = head.draft.lm_head.weight.device, head.draft.lm_head.weight.dtype

    def __call__(self, **given: Any) -> Any:
        return self.forward(**given)

    @named_as_installed
    def forward(
        self,
        hidden_states: torch.Tensor,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        cache: Any = None,
        use_cache: bool | None = None,
    ) -> Any:
        """States of ``hidden_states`` ``[rows, block, hidden_size]``, with logits where the shape has tokens.

        ``attention_mask`` is ``[rows, slots]`` or ``[rows, 1, block, slots]``, as for the target.
        """
        head, pairs = self.head, self.shape == "pairs"
        given = head.states(hidden_states, 3)
        rows, block = given.words.shape
        tokens = head.tokens(input_ids, "input_ids") if pairs and input_ids is not None else None
        if pairs and (tokens is None or tokens.shape != (rows, block)):
            got = None if tokens is None else list(tokens.shape)
            raise ValueError(f"input_ids: expected [{rows}, {block}], the token behind each hidden state, got {got}")
        past = int(cache.get_seq_length()) if cache is not None else 0
        keys = hidden_states.to(self.device, self.dtype)[:, None]
        values = self._marked(tokens, (rows, block))
        if cache is not None:
            keys, values = cache.update(keys, values, 0)
        held, marks = states_in(numbers(keys[:, 0])), numbers(values[:, 0]).astype(np.int64)
        visible = _visible(attention_mask, past, rows, block, held.words.shape[1])
        held_tokens = np.where(marks[..., 0] == _MARK, (marks[..., 1:4] * [1, 256, 65536]).sum(-1), -1)
        words = due(held) + (_OWN * _own(held) if pairs else np.uint64(0))
        words = np.where(_own(held) & pairs, held.digests + _OWN, words)
        words = words + held_tokens.astype(np.uint64) * _TOKEN if pairs else words
        words = np.where(held_tokens >= 0, mix(words), mix(held.words))
        ranks = (visible.cumsum(-1) - 1).astype(np.uint64)
        hashes = mix(np.where(visible, mix(words[:, None] + ranks * _RANK), np.uint64(0)).sum(-1, dtype=np.uint64))
        table = head.contexts.pairs if pairs else head.contexts.accepted
        digests = np.array([table.get(one, one) for one in hashes.ravel().tolist()], np.uint64).reshape(rows, block)
        seen = {"held": held, "held_tokens": held_tokens, "visible": visible}
        number = head.record(self.shape, given, tokens, digests, **seen)
        states = head.given(digests, number)
        if pairs:
            return CausalLMOutputWithPast(
                logits=cast(torch.FloatTensor, head.logits(digests)),
                hidden_states=(cast(torch.FloatTensor, states),),
                **cache_output(cache),
            )
        return BaseModelOutputWithPast(last_hidden_state=cast(torch.FloatTensor, states), **cache_output(cache))

    def _marked(self, tokens: Ints | None, shape: tuple[int, int]) -> torch.Tensor:
        """Values of a block: a mark, and the tokens."""
        marks = np.zeros((*shape, self.head.hidden_size))
        marks[..., 0] = _MARK
        if tokens is not None:
            marks[..., 1], marks[..., 2], marks[..., 3] = tokens & 255, tokens >> 8 & 255, tokens >> 16
        return torch.from_numpy(marks).to(self.device, self.dtype)[:, None]


def due(states: States) -> Words:
    """The digests of states of the target's last layer; of any others, some other words."""
    right = states.intact & (states.model == TARGET) & (states.layer == LAYERS)
    return np.where(right, states.digests, mix(states.words + _STRANGE))


def _own(states: States) -> Bools:
    return cast(Bools, states.intact & (states.model == DRAFT))


def _column(states: States) -> States:
    """The states of rows as those of blocks of one."""
    return States(*(cast(Any, field)[:, None] for field in states))


def _visible(mask: torch.Tensor | None, past: int, rows: int, block: int, slots: int) -> Bools:
    """The slots that each query sees, ``[rows, block, slots]``."""
    causal = np.arange(slots) <= past + np.arange(block)[:, None]
    seen: Bools = np.broadcast_to(causal, (rows, block, slots))
    if mask is None:
        return seen
    if mask.dim() == 4:
        given = numbers(mask[:, 0].float())
        given = np.pad(given, ((0, 0), (0, 0), (0, max(0, slots - given.shape[2]))))[:, :, :slots]
        shown = given > 0 if mask.dtype == torch.bool else given > -1
        return cast(Bools, np.broadcast_to(shown, (rows, block, slots)))
    if mask.dim() != 2 or len(mask) != rows or mask.shape[1] < slots:
        raise ValueError(f"attention_mask: expected [{rows}, {slots}] or 4-D, got {list(mask.shape)}")
    return cast(Bools, seen & (integers(mask)[:, None, :slots] != 0))
