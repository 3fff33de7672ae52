"""The functions that are built: which heads each layer has, by the name of the checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from eqcheck.engines.construction import (
    deepseek,
    gemma,
    gemma2,
    gpt_oss,
    granite,
    learned,
    lfm2,
    llama,
    mistral,
    qwen3_moe,
    qwen35,
)
from eqcheck.engines.construction.function import BITS, CODES, VOCABULARY, DeltaRule, Function, Head, shuffled
from eqcheck.engines.construction.pointers import (
    CAPPED,
    COMPRESSED,
    FAR,
    FAR_KEYED,
    KEYED,
    LEARNED,
    MARGIN,
    NEAR,
    NEAR_KEYED,
    PAIRS,
    PLAIN,
    ROTARY,
    WINDOW,
    Reads,
    Rotation,
    added,
    beyond,
    keyed,
    levels,
    plain,
)
from eqcheck.engines.construction.weights import Array

LAYERS, GROUPS = 3, 4

Written = tuple[dict[str, Any], dict[str, Array]]  # a configuration, and weights by name


@dataclass(frozen=True)
class Construction:
    """A built checkpoint: its layers of heads, the architecture that computes them, and its description in a line."""

    layers: Callable[[], Sequence[Sequence[Head | DeltaRule]]]
    write: Callable[[Function], Written]
    about: str
    rotation: Rotation = ROTARY
    cap: float | None = None


def flagged(agreement: float) -> Iterable[int]:
    """The ids after which a draft of this agreement errs: so large a share of all ids."""
    ranges = ((0, CODES), (CODES, VOCABULARY - CODES))
    return [first + i for first, n in ranges for i in shuffled(n, "flagged", first)[: round((1 - agreement) * n)]]


def head(reads: Reads, layer: int, bit: int, window: int | None = None) -> Head:
    """A head with a shuffle of its own."""
    flips = shuffled(BITS, "flips", layer, reads)
    return Head(reads, bit, shuffled(BITS, "order", layer, reads), tuple(bool(n % 2) for n in flips), window)


def layer(number: int, straight: Sequence[Reads], choosing: Sequence[Reads], window: int | None = None) -> list[Head]:
    """A layer of heads, by key head: plain pointers and a keyed one. Keys carry a bit of their own code."""
    share, bits = len(straight) // GROUPS, shuffled(BITS, "bit", number)
    return [
        head(reads, number, bits[group], window)
        for group in range(GROUPS)
        for reads in (*straight[group * share : (group + 1) * share], choosing[group])
    ]


def full(choosing: Callable[[int, int], Reads] = keyed) -> list[list[Head]]:
    """Three layers of 16 pointers: most distances to 64 stand in some layer, and six beyond, to 256."""
    return [
        layer(n, [plain(d) for d in PLAIN[n::LAYERS]], [choosing(*pair) for pair in KEYED[n::LAYERS]])
        for n in range(LAYERS)
    ]


def sinks() -> list[list[Head]]:
    """The heads of `full`, each with a sink. A keyed one reads a slot whose bit is set, and else its sink.

    The sinks of the others score less than any slot that they read, each by another number.
    """
    layers = []
    for heads in full():
        made = []
        for number, pointer in enumerate(heads):
            choosing = bool(pointer.reads[0][1])
            first, *others = levels(pointer.reads)
            low = (first + others[0]) / 2 if choosing else others[-1] - MARGIN - number
            made.append(replace(pointer, sink=2.0 * round(low / 2), choosing=choosing))  # bfloat16 holds even numbers
        layers.append(made)
    return layers


def softcap() -> list[list[Head]]:
    """Three layers of 8 pairs of pointers: most distances to 63, and 126. Two that read at once have one shuffle."""
    layers = []
    for number in range(LAYERS):
        made = []
        for near, far in PAIRS[number::LAYERS]:
            farther = replace(head(beyond(far, near), number, 0), scored=beyond(far, near))
            made += [replace(farther, reads=beyond(near)), farther]
        layers.append(made)
    return layers


def window() -> list[list[Head]]:
    """A layer with a window, one without, and one with. Distances in the window, but 28, stand in a windowed layer.

    Most windowed pointers aim behind the window first, at slots that a window too wide would show: at the first such
    slot, and the last that is seen, in each windowed layer.
    """
    far = layer(1, [plain(d) for d in FAR], [keyed(*pair) for pair in FAR_KEYED])
    return [near(0, 0), far, near(2, 1)]


def mistral_window() -> list[list[Head]]:
    """Three layers with a window: the tokens before the last 94 are not seen."""
    return [near(0, 0), near(1, 1), near(2, 0)]


def near(number: int, which: int) -> list[Head]:
    """A layer with a window, of one of two sets of pointers."""
    return layer(
        number, [beyond(*distances) for distances in NEAR[which]], [keyed(*pair) for pair in NEAR_KEYED[which]], WINDOW
    )


def hybrid() -> list[list[Head]]:
    """Twice a convolution and two layers of 8 pointers: the nearest distances, most others to 64, and 126 and 256.

    A convolution taps the codes of the last two tokens. By key head of attention two plain pointers, or a plain and a
    keyed one.
    """
    distances = (*range(3, 13), 14, 17, 20, 24, 31, 42, 49, 56, 126, 256)
    layers = []
    for number in range(6):
        if number % 3 == 0:
            layers.append([head(((distance, 0),), number, 0) for distance in (1, 2)])
            continue
        share, bits = number // 3 * 2 + number % 3 - 1, shuffled(BITS, "bit", number)
        straight, choosing = [plain(d) for d in distances[share::4]], [keyed(*pair) for pair in KEYED[share::4]]
        reads = [read for pair in zip(straight, choosing, strict=False) for read in pair] + straight[-2:]
        layers.append([head(read, number, bits[i // 2]) for i, read in enumerate(reads)])
    return layers


def delta() -> list[Sequence[Head | DeltaRule]]:
    """Twice a layer of 8 delta rules and one of 16 pointers: most distances to 64, and 126 and 256."""
    distances = (*range(1, 13), 14, 17, 20, 24, 31, 36, 42, 49, 56, 62, 126, 256)
    straight, choosing = [plain(d) for d in distances], [keyed(*pair) for pair in KEYED[4:]]
    return [rules(0), layer(1, straight[::2], choosing[::2]), rules(2), layer(3, straight[1::2], choosing[1::2])]


def rules(number: int) -> list[DeltaRule]:
    """Four pairs of rules with 8, 16, 16 and 32 classes. Values stand 0 to 3 tokens back: all that a convolution holds.

    Two pairs keep codes for the token's own class, so a token that is rejected, but stays, is not overwritten by the
    token that stands in its place. They ask with other bits than they keep for. Of one pair a rule writes at every
    second token, of another one forgets all at one in 32.
    """
    made = []
    for pair, (size, key, values) in enumerate(((3, 0, (1, 2)), (4, 0, (1, 3)), (4, 1, (0, 2)), (5, 2, (0, 3)))):
        bits = shuffled(BITS, "classes", number, pair)
        for which, value in enumerate(values):
            order = shuffled(BITS, "order", number, pair, which)
            flips = tuple(bool(n % 2) for n in shuffled(BITS, "flips", number, pair, which))
            writing, forgetting = (
                bits[-1] if (pair, which) == (1, 1) else None,
                bits[:5] if (pair, which) == (3, 0) else (),
            )
            made.append(DeltaRule(bits[:size], bits[-size:], key, value, order, flips, writing, forgetting))
    return made


def mamba() -> list[Sequence[Head | DeltaRule]]:
    """The layers of `hybrid`, with eight rules in place of each convolution, which keep codes for 8 classes each."""
    return [[latch(number, n) for n in range(8)] if number % 3 == 0 else heads for number, heads in enumerate(hybrid())]


def latch(number: int, which: int) -> DeltaRule:
    """A rule that keeps codes for the token's own class, 0 to 3 tokens back. Some write at every second token."""
    bits = shuffled(BITS, "classes", number, which)
    order = shuffled(BITS, "order", number, which)
    flips = tuple(bool(n % 2) for n in shuffled(BITS, "flips", number, which))
    return DeltaRule(bits[:3], bits[-3:], 0, which % 4, order, flips, bits[3] if which > 5 else None)


LAYOUTS = {
    "full": Construction(full, llama.llama, "a Llama: full attention, grouped key heads, rotary positions"),
    "qwen3": Construction(full, llama.qwen3, "the same as a Qwen 3, which norms queries and keys"),
    "moe": Construction(full, qwen3_moe.qwen3_moe, "the same with experts: a token's code chooses one of eight"),
    "sinks": Construction(sinks, gpt_oss.gpt_oss, "a gpt-oss: a sink in each head, biases, experts with a limit"),
    "learned": Construction(partial(full, added), learned.gpt2, "a GPT-2: learned positions, no gate", LEARNED),
    "opt": Construction(partial(full, added), learned.opt, "the same as an OPT", LEARNED),
    "mla": Construction(
        partial(full, added), deepseek.deepseek, "a DeepSeek V3: compressed keys and values", COMPRESSED
    ),
    "window": Construction(window, gemma.gemma, "a Gemma 3: a window of 32 in two layers of three, tied embeddings"),
    "softcap": Construction(
        softcap, gemma2.gemma2, "a Gemma 2: scores and logits are capped, so heads read twice", CAPPED, gemma2.LOGIT_CAP
    ),
    "mistral": Construction(mistral_window, mistral.mistral, "a Mistral: a window of 32 in each layer"),
    "hybrid": Construction(hybrid, lfm2.lfm2, "an LFM2: short convolutions beside full attention"),
    "delta": Construction(delta, qwen35.qwen35, "a Qwen 3.5: gated delta rules beside gated full attention"),
    "mamba": Construction(mamba, granite.granite, "a dense Granite 4: Mamba 2 beside full attention"),
}
