"""The ropes of transformers whose frequencies depend on the length of what a call feeds."""

from __future__ import annotations

from typing import Any, NamedTuple

GROWS, SWITCHES = "dynamic", "longrope"
"""Types of a rope: one whose frequencies change with each length beyond the original one, and one that has two sets."""


class Rope(NamedTuple):
    """A rope whose frequencies depend on the length of what is fed: its type, and up to which length they do not."""

    kind: str
    original: int


def ropes_of(config: Any) -> tuple[Rope, ...]:
    """Return the ropes of a configuration that depend on the length; kinds of layers may each have their own.

    >>> from transformers import LlamaConfig
    >>> scaled = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0}
    >>> ropes_of(LlamaConfig(max_position_embeddings=12, rope_parameters=scaled)), ropes_of(LlamaConfig())
    ((Rope(kind='dynamic', original=12),), ())
    """
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    ropes = list[Rope]()
    for name in ("rope_parameters", "rope_scaling"):  # the latter is the name before transformers 5
        given = getattr(text, name, None)
        given = given if isinstance(given, dict) else {}
        for rope in (given, *(part for part in given.values() if isinstance(part, dict))):
            kind = str(rope.get("rope_type") or rope.get("type") or "")
            kind = GROWS if GROWS in kind else SWITCHES if kind == "su" else kind
            if kind in (GROWS, SWITCHES):
                key = "original_max_position_embeddings"
                lengths = [rope.get(key), getattr(text, key, None), getattr(text, "max_position_embeddings", None)]
                known = [int(length) for length in lengths if isinstance(length, int | float)]
                ropes.append(Rope(kind, min(known, default=0)))
    return tuple(dict.fromkeys(ropes))
