"""Read prompts from a file, or draw some in which a wrong position or a wrong cache entry shows at once."""

from __future__ import annotations

import json
import random
from itertools import pairwise
from pathlib import Path
from typing import Any

from eqcheck.contract.errors import UsageError

Prompt = str | tuple[int, ...]


class DrawnText(str):
    """A text that was drawn, and the name of its kind."""

    kind: str = ""


LARGEST_FILE = 256 * 2**20

_WORDS = [
    "amber",
    "basil",
    "cedar",
    "delta",
    "ember",
    "fable",
    "grove",
    "hazel",
    "ivory",
    "jade",
    "kelp",
    "lilac",
    "maple",
    "north",
    "olive",
    "pearl",
    "quartz",
    "river",
]


def read(path: Path) -> list[Prompt]:
    """Read the prompts of a file: JSON lines with ``"prompt"``, a string or a list of ids; else one prompt per line.

    Raises `UsageError` with the line that is none.
    """
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise UsageError(f"{path}: expected at most {LARGEST_FILE // 2**20} MiB of prompts")
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: {getattr(error, 'strerror', None) or 'expected text in UTF-8'}") from None
    as_json = path.suffix in (".jsonl", ".ndjson", ".json")
    prompts = [_prompt(line, f"{path}:{number}", as_json) for number, line in enumerate(lines, 1) if line.strip()]
    if not prompts:
        raise UsageError(f"{path}: expected at least one prompt, got none")
    return prompts


def _prompt(line: str, place: str, as_json: bool) -> Prompt:
    if not as_json and not line.lstrip().startswith('{"prompt"'):
        return line
    try:
        value: Any = json.loads(line)["prompt"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise UsageError(f'{place}: expected a line of JSON with "prompt", got {line[:60]!r}') from None
    if isinstance(value, str) and value:
        return value
    if isinstance(value, list) and value and all(type(one) is int and 0 <= one < 2**31 for one in value):
        return tuple(value)
    raise UsageError(f"{place}: prompt: expected a text or a list of token ids, got {value!r:.60}")


def drawn(count: int, seed: int) -> list[Prompt]:
    """Draw texts: lists that are copied, counting, look-ups of earlier pairs, code, shared beginnings, one word.

    A model attends to exact places in these, so a place that is off by one changes its choice.

    >>> drawn(7, 0) == drawn(7, 0), len(drawn(7, 0)), len(set(drawn(14, 0)))
    (True, 7, 14)
    """
    rng = random.Random(f"eqcheck gate {seed}")
    kinds = (_copied, _counting, _looked_up, _code, _shared, _short, _copied)
    texts = list[Prompt]()
    for number in range(count):
        make = kinds[number % len(kinds)]
        text = DrawnText(make(rng))
        text.kind = make.__name__.strip("_").replace("_", " ")
        texts.append(text)
    return texts


def _words(rng: random.Random, least: int, most: int) -> list[str]:
    return [rng.choice(_WORDS) for _ in range(rng.randint(least, most))]


def _copied(rng: random.Random) -> str:
    words = _words(rng, 4, 24)
    return f"{' '.join(words)}\n{' '.join(words[: rng.randint(1, len(words) - 1)])}"


def _counting(rng: random.Random) -> str:
    first, by = rng.randint(1, 90), rng.randint(1, 9)
    return ", ".join(str(first + by * n) for n in range(rng.randint(3, 20))) + ","


def _looked_up(rng: random.Random) -> str:
    keys = rng.sample(_WORDS, rng.randint(3, 12))
    lines = [f"{key} = {rng.randint(10, 99)}" for key in keys]
    return "\n".join([*lines, f"{rng.choice(keys)} ="])


def _code(rng: random.Random) -> str:
    names = rng.sample(_WORDS, 3)
    lines = [f"    def {name}(self, {other}):\n        return self.{other}\n" for name, other in pairwise(names)]
    return (
        f"class {rng.choice(_WORDS).title()}{rng.randint(1, 999)}:\n"
        + "\n".join(lines)
        + f"\n    def {names[-1]}(self, "
    )


def _shared(rng: random.Random) -> str:
    """Draw a beginning that many prompts share, so that prefix caches are hit in and between blocks."""
    text = "The following list holds the names of all rooms, each with the number of its door.\n" * 4
    return text[: rng.randint(20, len(text))] + f"{rng.choice(_WORDS)} {rng.randint(1, 99)}, "


def _short(rng: random.Random) -> str:
    return rng.choice(_WORDS) + (f" {rng.randint(1, 99)}" if rng.random() < 0.5 else "")
