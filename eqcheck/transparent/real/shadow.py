"""The shadow: from a forward of a real model to an `eqcheck.transparent.hashlm.trace.Call`, with HashLM's hash over it.

Tokens come from the block that was fed, positions from the keys that were written, visibility from the mask that
reached attention, contents from the bytes of the slots. On exactly these the hash of
`eqcheck.transparent.hashlm.hashing` is computed, layer by layer; so the truth's digests, the reader, repair and the
script of a draft apply unchanged.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import torch

from eqcheck.contract.cache_names import NAMES, cache_name, cache_of, installed_name
from eqcheck.contract.family import Family
from eqcheck.transparent.hashlm import hashing
from eqcheck.transparent.hashlm.hashing import HEADS, LAYERS, PLACES, WIDTH, Bools, Ints, Words
from eqcheck.transparent.hashlm.parts import Script
from eqcheck.transparent.hashlm.trace import DRAFT, TARGET, Call, Fix, Trace
from eqcheck.transparent.hashlm.visibility import Feed, View, _masked
from eqcheck.transparent.real.loading import ropes_of
from eqcheck.transparent.real.provenance import GARBAGE, Held, Provenance, two_heads, vectors, written
from eqcheck.transparent.real.tap import AttentionInput, NotRead, Positions, Stop, Watched, entries


@dataclass
class Opened:
    """A forward that is under way; by number of the two layers, what was written, handed out by caches, and seen."""

    watched: Watched
    tokens: Ints
    said: torch.Tensor | None
    mask: torch.Tensor | None
    past: int
    loose: bool
    written: dict[int, tuple[Any, Any, torch.Tensor]] = field(default_factory=dict)
    caches: dict[int, tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)
    seen: dict[int, AttentionInput] = field(default_factory=dict)
    others: list[AttentionInput] = field(default_factory=list)


class Shadow:
    """Makes calls of what the tap hears, and has models answer as a case wants them to.

    ``answers`` are the tokens that follow the true contexts, by digest; ``script`` is the draft's. Where ``repair`` is
    set, the target's queries are taken to see the contexts that it gives, and answer so.
    """

    def __init__(
        self,
        models: list[Watched],
        family: Family,
        trace: Trace,
        answers: dict[int, int],
        script: Script | None = None,
        repair: Callable[[Call], Fix] | None = None,
    ) -> None:
        self.models = {one.role: one for one in models}
        self.family, self.trace, self.answers, self.script, self.repair = family, trace, answers, script, repair
        self.provenance = Provenance(next(models[0].model.parameters()).dtype)
        self.positions: dict[int, Positions] = {}
        self.open: Opened | None = None
        self._asked: dict[int, dict[bytes, int]] = {TARGET: {}, DRAFT: {}}  # digests by hidden state

    # The calls of the tap.

    def fed(self, watched: Watched, tokens: Any, embeds: Any, options: dict[str, Any]) -> None:
        if self._probing():
            return
        if options.get("loose"):
            if self.open is None or self.open.loose:
                self.open = Opened(watched, _whole(tokens), None, None, -1, True)
            return
        cache = cache_of(options)
        past = int(cache.get_seq_length()) if hasattr(cache, "get_seq_length") else 0
        ids = _whole(tokens) if tokens is not None else self._embedded(watched, embeds)
        mask = options.get("attention_mask")
        self.open = Opened(watched, ids, options.get("position_ids"), mask, past, False)

    def wrote(self, layer: int, new: tuple[torch.Tensor, ...], all_of_them: tuple[torch.Tensor, ...]) -> None:
        if (positions := self._probing()) is not None:
            assert positions.probing is not None
            positions.probing.append(entries(*new))
            raise Stop
        now = self.open
        if now is None or layer not in now.watched.layers:
            return
        now.written[layer] = (*(vectors(two_heads(one)) for one in new), entries(*new))  # type: ignore[assignment]
        keys, values = (two_heads(one).detach().clone() for one in all_of_them)
        now.caches[layer] = (keys, values)

    def saw(self, watched: Watched | None, layer: int, seen: AttentionInput) -> None:
        now = self.open
        if now is None or self._probing() or (watched is not None and watched is not now.watched):
            return
        kept = (layer in now.watched.layers) if watched else len(now.others) in now.watched.layers
        copy = self._kept(now.watched, seen) if kept else seen
        if watched is None:
            now.others.append(copy)
        elif kept:
            now.seen[layer] = copy

    def left(self, watched: Watched, states: torch.Tensor, cache: Any) -> None:
        if self._probing() or self.open is None or self.open.watched is not watched:
            return
        now, self.open = self.open, None
        self._close(now, states, cache)

    def asked(self, watched: Watched, states: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        if self._probing():
            return logits
        now = self.open
        if now is not None and now.loose and now.watched is watched and (now.seen or now.others):
            self.open = None
            self._close(now, states if states.dim() == 3 else states[:, None], None)
        flat, answer = states.reshape(-1, states.shape[-1]), logits.reshape(-1, logits.shape[-1])
        known = self._asked[watched.role]
        digests = [known.get(data) for data in vectors(flat[None, None])[0][0]]
        forced = [self._forced(watched.role, digest, answer[n]) for n, digest in enumerate(digests)]
        if all(one is None for one in forced):
            return logits
        answer = answer.clone()
        for number, order in enumerate(forced):
            if order is not None:  # clear steps from choice to choice, or trees of a draft's own would be all breadth
                top = min(len(order), 256)  # bfloat16 holds no greater number exactly with the next one
                steps = torch.arange(top, top - len(order), -1, dtype=answer.dtype, device=answer.device)
                answer[number, order] = steps
        return answer.reshape(logits.shape)

    # The making of a call.

    def _probing(self) -> Positions | None:
        return next((one for one in self.positions.values() if one.probing is not None), None)

    @staticmethod
    def _kept(watched: Watched, seen: AttentionInput) -> AttentionInput:
        """A copy of the input that attention saw, as it is now: a cache may be changed at once."""
        keys, values = (
            two_heads(one, one.shape[1] // watched.key_heads or 1).detach().clone() for one in (seen.keys, seen.values)
        )
        mask = None if seen.mask is None else seen.mask.detach().clone()
        return AttentionInput(keys, values, mask, seen.queries, seen.causal)

    def _embedded(self, watched: Watched, embeds: torch.Tensor) -> Ints:
        """The tokens of embeddings, by their bytes; -1 for a vector that is no row of the table."""
        table = {data: token for token, data in enumerate(vectors(watched.embeddings.weight[None, None])[0][0])}
        rows = vectors(embeds[:, None])
        return np.array([[table.get(data, -1) for data in row[0]] for row in rows], np.int64)

    def _close(self, now: Opened, states: torch.Tensor, cache: Any) -> None:
        """Record the call that a forward was, at its end; ``cache`` is the one that it hands back."""
        if now.tokens.size == 0:
            return
        low, high = now.watched.layers
        if len(now.others) > now.watched.count and not now.seen:
            raise NotRead(
                f"{type(now.watched.model).__name__}: expected one call of attention in each layer of a forward, got "
                "several; attend once, with a mask that keeps requests apart, or audit it by its tokens with --python"
            )
        if len(now.others) == now.watched.count:
            for layer in {low, high} - set(now.seen):
                now.seen[layer] = now.others[layer]
        for layer, (keys, values) in now.caches.items():
            if layer in now.seen:  # what a cache hands out may be expanded before attention sees it
                now.seen[layer] = now.seen[layer]._replace(keys=keys, values=values)
        if not {low, high} <= set(now.seen):
            raise NotRead(
                f"{type(now.watched.model).__name__}: the attention of a forward was not seen (implementation "
                f"{getattr(now.watched.model.config, '_attn_implementation', None)!r}); use sdpa or eager, not compiled"
            )
        # First what was written, then what is held: an entry can only be found by its bytes once these are remembered.
        # The clock goes on before, so that both have the number of this call.
        number = next(self.trace.clock)
        positions = self._placed(now, number)
        layers = [now.seen[layer] for layer in now.watched.layers]
        if any(len(one.keys) != len(now.tokens) for one in layers):
            raise NotRead(f"{installed_name()}: expected a cache of {len(now.tokens)} rows like input_ids")
        held = self.provenance.held(now.watched.role, [(vectors(one.keys), vectors(one.values)) for one in layers])
        self.trace.rounded = self.provenance.rounded
        call = self._attend(now, number, positions, held, None)
        self._answer(now, call, states)
        if self.repair is not None and now.watched.role == TARGET:
            fix, unmended = self.repair(call), call.digests
            call = self._attend(now, number, positions, held, fix)
            # Where entries are rounded, a right context as it is answers wrongly, and only right entries mend that.
            self._answer(now, call, states, self.trace.rounded > 0 and not fix.entries, unmended)
        self.trace.record(call)

    def _placed(self, now: Opened, number: int) -> Ints:
        """Remember what was written, and say at which positions."""
        batch, block = now.tokens.shape
        role, low = now.watched.role, now.watched.layers[0]
        if not set(now.watched.layers) <= set(now.written):
            self._unheard(now)
        keys = now.written[low][2]
        said = self._said(now)
        if now.past < 0:  # nobody said anything
            said += now.seen[low].keys.shape[2] - block
        positions = said
        # With a rope by length the same token and position has other keys in a longer call, and asking for keys is a
        # long call: it would change what a dynamic rope keeps.
        if self.family.fed and not ropes_of(now.watched.model.config):
            look = self.positions.setdefault(role, Positions(now.watched))
            positions = look.read(np.maximum(now.tokens, 0), said, keys)
        nothing: Words = np.zeros((batch, block), np.uint64)
        for shadow in range(LAYERS):
            self.provenance.spell(shadow, role, number, now.tokens, positions, nothing if shadow else None)
            layer = now.watched.layers[shadow]
            self.provenance.remember(shadow, role, number, list(now.written[layer][:2]))
        return positions

    @staticmethod
    def _said(now: Opened) -> Ints:
        """The positions that a model was told, or counts where it was told none."""
        batch, block = now.tokens.shape
        counted = np.arange(max(now.past, 0), max(now.past, 0) + block)
        given = counted if now.said is None else _whole(now.said)
        return np.broadcast_to(given[None] if given.ndim == 1 else given[:batch], (batch, block)).copy()

    def _unheard(self, now: Opened) -> None:
        """Note what was written where no cache was told, as attention saw it."""
        layers = sorted(set(now.watched.layers))
        if any(now.seen[layer].queries != now.tokens.shape[1] for layer in layers):
            raise NotRead(f"{type(now.watched.model).__name__}: expected each layer to attend for all tokens of a call")
        both = {layer: (now.seen[layer].keys, now.seen[layer].values) for layer in layers}
        seen = [(layer, kind, both[layer][kind]) for layer in layers for kind in (0, 1)]
        held = [vectors(tensor) for _, _, tensor in seen]
        visible = {layer: visible_of(now.seen[layer], len(now.tokens)) for layer in layers}
        # K and V of all layers are looked at together, since one alone may have the bytes of an earlier write.
        chosen: list[list[torch.Tensor]] = [[] for _ in seen]
        for row, tokens in enumerate(now.tokens.tolist()):
            parts = [
                (layers.index(layer), kind, held[n][row][0], visible[layer][row])
                for n, (layer, kind, _) in enumerate(seen)
            ]
            for n, slots in enumerate(written(tokens, parts, now.watched.role, self.provenance)):
                chosen[n].append(seen[n][2][row][:, slots])
        for number, layer in enumerate(layers):
            new = [torch.stack(rows) for rows in chosen[2 * number : 2 * number + 2]]
            now.written.setdefault(layer, (*map(vectors, new), entries(*new)))  # type: ignore[arg-type]

    def _attend(self, now: Opened, number: int, positions: Ints, which: Held, fix: Fix | None) -> Call:
        family, role = self.family, now.watched.role
        batch, block = now.tokens.shape
        carry: Words = np.zeros((batch, block), np.uint64)
        held: list[Ints] = []
        digests: list[Words] = []
        written = positions if fix is None else fix.positions
        view = None
        for shadow in range(LAYERS):
            below = digests[-1] if shadow else None
            self.provenance.spell(shadow, role, number, now.tokens, written, below)
            digits = self.provenance.digits(shadow, which)
            contents, at = hashing.contents(digits, role, shadow)
            if view is None:
                view = self._view(now, shadow, at, written, digits)
            visible, key_places, places = view
            if visible.shape[2] != digits.shape[3]:
                visible, _, _ = self._view(now, shadow, at, written, digits)
            where = at if family.fed else key_places
            carry = hashing.attend(family, shadow, contents, where, visible, now.tokens, places, carry)
            if fix is not None:
                carry = np.where(fix.known, fix.digests[shadow], carry)
            digests.append(carry)
            held.append(digits)
        assert view is not None
        nothing = np.zeros(0, np.int64)
        none = (None,) * LAYERS
        return Call(number, role, now.tokens, positions, *view, tuple(held), none, carry, (nothing, nothing), None)

    def _view(self, now: Opened, shadow: int, at: Ints, positions: Ints, digits: Ints) -> View:
        visible = visible_of(now.seen[now.watched.layers[shadow]], len(now.tokens))
        if self.family.fed:
            return View(visible, at, positions)
        block, slots = now.tokens.shape[1], visible.shape[2]
        mask = now.mask if now.mask is None or now.mask.dim() == 2 else None
        feed = Feed(self.family, mask, positions, np.arange(max(now.past, 0), max(now.past, 0) + block), False, None)
        _, key_places, places = feed.view(np.zeros((len(now.tokens), slots), np.int64), np.ones((1, 1), np.bool_))
        return View(visible, key_places, places)

    # The answers of the models.

    def _answer(
        self, now: Opened, call: Call, states: torch.Tensor, rounded: bool = False, unmended: Words | None = None
    ) -> None:
        """Note which hidden state belongs to which digest, and what the model predicts.

        Where it is ``rounded``, a query whose digest was so ``unmended`` already keeps the answer of the model.
        """
        role, last = call.role, call.digests
        if rounded:
            last = np.where(last == unmended, np.uint64(0), last)
        batch, block = call.tokens.shape
        if states.shape[1] < block:  # a head that is asked for the last columns alone
            last = last[:, block - states.shape[1] :]
        known = self._asked[role]
        held = vectors(states[:, None])
        for row, heads in enumerate(held):
            for column, data in enumerate(heads[0]):
                digest = int(last[row, column])
                # A token alone leaves the hidden state that it leaves behind itself: a draft takes it for a row's own.
                if role == TARGET or digest in self.answers or known.get(data) not in self.answers:
                    known[data] = digest
        # -1 is no prediction: of columns whose states were not asked for, and where scores are not numbers. An id there
        # would be taken for an answer of the target.
        predictions = np.full((batch, block), -1, np.int64)
        head = now.watched.head
        if head.weight.shape[-1] != states.shape[-1]:
            raise NotRead(
                f"{type(now.watched.model).__name__}: expected a head of {states.shape[-1]} columns, the width of the "
                f"last hidden state, got one of {head.weight.shape[-1]}"
            )
        logits = torch.nn.functional.linear(states, head.weight, getattr(head, "bias", None))
        if cap := getattr(now.watched.model.config.get_text_config(), "final_logit_softcapping", None):
            logits = torch.tanh(logits / cap) * cap  # scores far beyond the cap become equal
        start = block - states.shape[1]
        for row, column in np.ndindex(batch, states.shape[1]):
            scores = logits[row, column]
            forced = self._forced(role, known[held[row][0][column]], scores)
            if forced is None and bool(scores.max().isnan()):  # no choice, though argmax gives an id
                self.trace.undefined.add((call.number, row, start + column))
                continue
            predictions[row, start + column] = int(scores.argmax()) if forced is None else forced[0]
            if forced is None and len(level := _level(scores)) > 1:
                self.trace.level[call.number, row, start + column] = level
        call.__dict__["predictions"] = predictions

    def _forced(self, role: int, digest: int | None, scores: torch.Tensor) -> list[int] | None:
        """All tokens in the order in which a query is to prefer them instead of in its own, or None.

        A draft prefers the truth, or where the script says so as many other tokens to it as its rank says.
        """
        right = None if digest is None else self.answers.get(digest)
        if digest is None or right is None or (role == TARGET and self.repair is None):
            return None
        if role == TARGET and int(scores.argmax()) == right:  # other scores would mend a decoder that compares them
            return None
        rank = 0
        if role != TARGET and self.script is not None and self.script.disagrees(np.array([digest], np.uint64))[0]:
            rank = self.script.lower.get(digest, 1)
        order: list[int] = scores.argsort(descending=True).tolist()
        order.remove(right)
        return [*order[:rank], right, *order[rank:]]


def _level(scores: torch.Tensor) -> frozenset[int]:
    """Return the tokens that may be the greedy choice: all whose scores are the highest, but for the last bits.

    In bfloat16 several scores are often equal. Which of them is chosen depends on the shape of the tensor, and a soft
    cap or a head in another dtype makes equal what is not.
    """
    highest = scores.max()
    least = highest - 2 * torch.finfo(scores.dtype).eps * highest.abs()
    return frozenset((scores >= least).nonzero()[:, 0].tolist())


def visible_of(seen: AttentionInput, batch: int) -> Bools:
    """The slots that each query may see, ``[batch, block, slots]``."""
    slots, queries = seen.keys.shape[2], seen.queries
    if seen.mask is None:
        index = np.arange(slots)
        one = (
            index <= np.arange(queries)[:, None] if seen.causal and queries > 1 else np.ones((queries, slots), np.bool_)
        )
        return np.broadcast_to(one, (batch, queries, slots)).copy()
    mask = seen.mask
    if mask.dim() == 2:
        mask = mask[:, None, None].bool()
    mask = mask[..., :slots].expand(-1, -1, queries, -1)
    return _masked(mask, np.arange(slots)[:queries], batch, slots, 0)


def _whole(tensor: torch.Tensor) -> Ints:
    return cast(Ints, tensor.detach().cpu().numpy().astype(np.int64))


# The shadow of a recurrent model: the tokens that a state has taken in, told by its bytes.
#
# A state has no slots that could name what was written. But it changes in forwards alone, and a state after one of
# them follows from the state before it and the block. So the bytes of each row's state are remembered with the tokens
# that it has taken in, and whatever a decoder saves, restores or exchanges is known again. The recurrent state stands
# for keys, the state of the convolution for values; the latter is equal after many texts, so of these the one counts
# that the former agrees with.

History = tuple[int, ...]  # the writes that a state has taken in, oldest first; `_PAD` for a pad
_PAD, _UNKNOWN = -1, -2  # of the digits in `_STRANGE`
_STRANGE = np.stack([np.zeros(WIDTH, np.int64), np.full(WIDTH, GARBAGE, np.int64)])
_KINDS = ("recurrent_states", "conv_states")


class StateShadow(Shadow):
    """Work like `Shadow`, for models whose layers all have a state instead of keys and values."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._known: dict[tuple[int, int, int], dict[bytes, list[History]]] = defaultdict(lambda: defaultdict(list))
        self._before: list[list[History]] = []

    def fed(self, watched: Watched, tokens: Any, embeds: Any, options: dict[str, Any]) -> None:
        without = {name: value for name, value in options.items() if name not in NAMES}
        super().fed(watched, tokens, embeds, without)
        if self.open is not None and not options.get("loose"):
            self._before = self._histories(self.open, cache_of(options))

    def wrote(self, layer: int, new: tuple[torch.Tensor, ...], all_of_them: tuple[torch.Tensor, ...]) -> None:
        """Do nothing: nothing goes into caches here."""

    def saw(self, watched: Watched | None, layer: int, seen: AttentionInput) -> None:
        """There is no attention."""

    def asked(self, watched: Watched, states: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        if self.open is not None and self.open.loose and self.open.watched is watched:
            raise NotRead("the layers were called by themselves, and states are read when the whole model is called")
        return super().asked(watched, states, logits)

    def _close(self, now: Opened, states: torch.Tensor, cache: Any) -> None:
        if now.tokens.size == 0:
            return
        number, role = next(self.trace.clock), now.watched.role
        positions, taken = self._said(now), self._feed(now).absorbed()
        nothing: Words = np.zeros(now.tokens.shape, np.uint64)
        for shadow in range(LAYERS):
            self.provenance.spell(shadow, role, number, now.tokens, positions, nothing if shadow else None)
        call = self._attend(now, number, positions, self._held(now, number, taken), None)
        self._answer(now, call, states)
        if self.repair is not None and role == TARGET:
            fix = self.repair(call)
            taken = taken if fix.pads is None else ~fix.pads
            call = self._attend(now, number, positions, self._held(now, number, taken), fix)
            self._answer(now, call, states)
        self.trace.record(call)
        self._remember(now, number, taken, cache)

    def _feed(self, now: Opened) -> Feed:
        mask = now.mask if now.mask is None or now.mask.dim() == 2 else None
        positions = self._said(now)
        return Feed(self.family, mask, positions, np.arange(positions.shape[1]), False, None)

    def _view(self, now: Opened, shadow: int, at: Ints, positions: Ints, digits: Ints) -> View:
        return self._feed(now).view(at, hashing.written(digits))

    def _histories(self, now: Opened, cache: Any) -> list[list[History]]:
        """The histories of the states of each row, by row and by layer and kind."""
        rows = len(now.tokens)
        copies = [self._bytes(now.watched, cache, layer, kind) for layer in range(LAYERS) for kind in range(2)]
        if any(copy is not None and len(copy) != rows for copy in copies):
            raise NotRead(f"{cache_name(now.watched.base)}: expected the states of {rows} rows like input_ids")
        # The bytes of one state may fit several histories. A history that all layers share is the row's; where none is
        # shared, layers hold states of different rows, and each is read for itself.
        histories = []
        for row in range(rows):
            options = [
                [()] if copy is None else self._found(now.watched.role, number, copy[row])
                for number, copy in enumerate(copies)
            ]
            shared = [one for one in options[0] if all(one in others for others in options)]
            histories.append([(shared or of_copy)[-1] for of_copy in options])
        return histories

    def _found(self, role: int, number: int, data: bytes) -> list[History]:
        if not any(data):
            return [()]
        return self._known[(role, *divmod(number, 2))].get(data) or [(_UNKNOWN,)]

    @staticmethod
    def _bytes(watched: Watched, cache: Any, layer: int, kind: int) -> list[bytes] | None:
        """The bytes of each row's state; None where there is none yet."""
        layers, number = getattr(cache, "layers", None), watched.layers[layer]
        if cache is None or (layers is not None and number >= len(layers)):
            return None
        states = None if layers is None else getattr(layers[number], _KINDS[kind], None)
        if not isinstance(states, dict):
            raise NotRead(
                f"{cache_name(watched.base)}: no states are found in {type(cache).__name__} of this transformers"
            )
        states = states[0]
        return None if states is None else [row[0][0] for row in vectors(states.flatten(1)[:, None, None])]

    def _held(self, now: Opened, number: int, taken: Bools) -> Held:
        """The content of the states once the block was taken in, as slots that end with it."""
        batch, block = now.tokens.shape
        new = self._new(now, number, taken)
        longest = max(len(one) for row in self._before for one in row)
        writes = np.full((PLACES, batch, longest + block), _PAD, np.int64)
        for row, histories in enumerate(self._before):
            for copy in range(PLACES):
                whole = (*histories[copy // HEADS], *new[row])
                writes[copy, row, writes.shape[2] - len(whole) :] = whole
        places = np.arange(PLACES)[:, None, None] + (now.watched.role - 1) * PLACES
        return Held(writes, np.broadcast_to(places, writes.shape), _STRANGE)

    def _new(self, now: Opened, number: int, taken: Bools) -> Sequence[History]:
        first = self.provenance.first(now.watched.role, number)
        numbers = first + np.arange(now.tokens.size).reshape(now.tokens.shape)
        return [tuple(row) for row in np.where(taken, numbers, _PAD).tolist()]

    def _remember(self, now: Opened, number: int, taken: Bools, cache: Any) -> None:
        new = self._new(now, number, taken)
        for layer in range(LAYERS):
            for kind in range(2):
                for row, data in enumerate(self._bytes(now.watched, cache, layer, kind) or ()):
                    histories = self._known[now.watched.role, layer, kind][data]
                    whole = (*self._before[row][2 * layer + kind], *new[row])
                    if whole in histories:
                        histories.remove(whole)
                    histories.append(whole)  # the newest last
