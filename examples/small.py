"""The idea of eqcheck in one file: is a batch speculative decoder's output the target's own, and if not, why not?

    python examples/small.py

A real model hides a wrong KV cache: with a wrong position id it often picks the same token, and where it does not,
nothing in the logits says why. So the target here is no language model. Its next token is a hash of the tokens and
position ids that the query sees: one wrong slot changes the next token, and the slot can be read back from the cache.
The decoder cannot tell the difference, it moves slots, masks and position ids as it would for a real model.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

VOCABULARY = 100
DRAFT_TOKENS = 3
NEW_TOKENS = 8
PROMPTS = [[11, 12, 13], [21], [31, 32]]


@dataclass
class Slot:
    """One slot of a row of the KV cache: what was fed there, and whether later queries attend to it."""

    token: int
    position: int
    attended: bool


def hash_of(seen: list[tuple[int, int]]) -> int:
    """Return the next token after the (position id, token) pairs that a query sees."""
    # Sorted: attention has no order but the position ids, so it must not matter which slot holds which token.
    digest = hashlib.blake2b(repr(sorted(seen)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % VOCABULARY


def target_alone(prompt: list[int], count: int) -> list[int]:
    """Return the tokens that the decoder has to return: one at a time, no batch, no cache, no draft."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(hash_of(list(enumerate(tokens))))
    return tokens[len(prompt) :]


def draft_of(tokens: list[int]) -> list[int]:
    """Return a draft after these tokens, wrong after about every third token, so that rows accept different numbers."""
    draft: list[int] = []
    for _ in range(DRAFT_TOKENS):
        guess = hash_of(list(enumerate(tokens + draft)))
        draft.append(guess if guess % 3 else (guess + 1) % VOCABULARY)
    return draft


@dataclass
class Choice:
    """One token that the target chose, and the slots of the cache that the query saw, by their number."""

    token: int
    seen: dict[int, Slot]


def feed(cache: list[Slot], token: int, position: int) -> Choice:
    """Write one token to a row of the cache, and return what the target chooses after it."""
    cache.append(Slot(token, position, attended=True))
    seen = {number: slot for number, slot in enumerate(cache) if slot.attended}
    return Choice(hash_of([(slot.position, slot.token) for slot in seen.values()]), seen)


# --- The decoder under test. Both functions give the position id of the next token of a row; one of them is the bug.


def slots_after_padding(cache: list[Slot], padding: int) -> int:
    """Wrong: rejected draft tokens in the middle of a row are masked like padding, but are still counted."""
    return len(cache) - padding


def attended_slots(cache: list[Slot], padding: int) -> int:
    """Right: only what the row really has counts, as in ``attention_mask.cumsum(-1) - 1``."""
    return sum(slot.attended for slot in cache)


def decode(prompts: list[list[int]], next_position: Callable[[list[Slot], int], int]) -> list[list[Choice]]:
    """Decode a batch: left padding, one block of draft tokens a round, each row accepts as many as it can."""
    width = max(map(len, prompts))
    paddings = [width - len(prompt) for prompt in prompts]
    caches = [[Slot(0, 0, attended=False) for _ in range(padding)] for padding in paddings]
    rows = [
        [[feed(cache, token, position) for position, token in enumerate(prompt)][-1]]
        for cache, prompt in zip(caches, prompts, strict=True)
    ]
    while any(len(row) < NEW_TOKENS for row in rows):
        accepted = []
        for row, cache, prompt, padding in zip(rows, caches, prompts, paddings, strict=True):
            tokens = prompt + [choice.token for choice in row]
            draft = draft_of(tokens)
            # The last token has not been fed yet. Fed with the draft, it says what the target wants in each place.
            block = [tokens[-1], *draft]
            choices = [feed(cache, token, next_position(cache, padding)) for token in block]
            count = 0
            while count < DRAFT_TOKENS and draft[count] == choices[count].token:
                count += 1
            row += choices[: count + 1]  # after the accepted tokens, the correction or the bonus token
            accepted.append(count)
        # All rows of a cache are equally long, so it can be cropped only to the row that accepted most. Rejected draft
        # tokens of the other rows stay as holes, which the mask hides. One row alone never has a hole.
        for cache, count in zip(caches, accepted, strict=True):
            for slot in cache[len(cache) - DRAFT_TOKENS + count :]:
                slot.attended = False
            del cache[len(cache) - DRAFT_TOKENS + max(accepted) :]
    return [row[:NEW_TOKENS] for row in rows]


# --- The check: compare with the target alone, then read from the cache what the first wrong token's query saw.


def first_wrong_slot(prompts: list[list[int]], rows: list[list[Choice]]) -> str:
    """Return "equal", or the first wrong token and the first slot of its context that is not as it must be."""
    for number, (prompt, row) in enumerate(zip(prompts, rows, strict=True)):
        expected, got = target_alone(prompt, NEW_TOKENS), [choice.token for choice in row]
        if got == expected:
            continue
        wrong = next(k for k in range(NEW_TOKENS) if got[k] != expected[k])
        lines = [
            f"WRONG in row {number}, new token {wrong}",
            "  expected  " + " ".join(f"{token:2}" for token in expected),
            "  got       " + " ".join(f"{token:2}" for token in got),
            "            " + "   " * wrong + "^^",
        ]
        # All tokens before the wrong one are right, so the context must hold each once, with its own position id.
        context = prompt + expected[:wrong]
        for place, (slot_number, slot) in enumerate(row[wrong].seen.items()):
            if (slot.position, slot.token) != (place, context[place]):
                lines.append(f"  slot {slot_number}  must hold  token {context[place]}, position id {place}")
                lines.append(f"          holds      token {slot.token}, position id {slot.position}")
                break
        return "\n".join(lines)
    return "equal"


if __name__ == "__main__":
    alone = [decode([prompt], slots_after_padding)[0] for prompt in PROMPTS]
    print("Each request alone:", first_wrong_slot(PROMPTS, alone))
    print("All in one batch:", first_wrong_slot(PROMPTS, decode(PROMPTS, slots_after_padding)))
    print("The batch with the right position ids:", first_wrong_slot(PROMPTS, decode(PROMPTS, attended_slots)))
