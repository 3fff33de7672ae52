"""Parse the values of command-line options; each error says in one line what was expected and what came."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace

from eqcheck.contract.decoders import FAMILIES
from eqcheck.contract.errors import did_you_mean
from eqcheck.contract.limits import MEMORY, MOST_DRAFT_TOKENS, MOST_ROWS, MOST_TOKENS_OF_ROW, TIMEOUTS
from eqcheck.contract.sizes import SERVED, WIDE, Bounds


def positive(text: str) -> int:
    """Parse an integer of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected an integer of at least 1, got {text!r}")
    return int(text)


def natural(text: str) -> int:
    """Parse an integer of at least 0."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"expected an integer of at least 0, got {text!r}")
    return int(text)


def _up_to(most: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        if not text.isdecimal() or not 1 <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"expected an integer from 1 to {most}, got {text!r}")
        return int(text)

    return number


_BOUNDS = {
    "rows": ("rows per batch", MOST_ROWS),
    "prompt": ("tokens per prompt", MOST_TOKENS_OF_ROW - 1),
    "new_tokens": ("max_new_tokens", MOST_TOKENS_OF_ROW - 1),
    "draft_tokens": ("draft tokens per round (K)", MOST_DRAFT_TOKENS),
}


def add_bounds(parser: argparse._ActionsContainer) -> None:
    """Add the options ``--max-rows`` and so on, which bound the size of cases."""
    for name, (what, most) in _BOUNDS.items():
        usual = f"{getattr(WIDE, name)}; engines {getattr(SERVED, name)}"
        option = f"--max-{name.replace('_', '-')}"
        parser.add_argument(option, type=_up_to(most), metavar="N", help=f"{what}, at most (default {usual})")


def bounded(options: argparse.Namespace) -> tuple[str, ...]:
    """List the bounds that were given."""
    return tuple(name for name in _BOUNDS if getattr(options, f"max_{name}") is not None)


def bounds_of(options: argparse.Namespace) -> Bounds:
    """Return the bounds on the size of cases."""
    return replace(WIDE, **{name: getattr(options, f"max_{name}") for name in bounded(options)})


def seconds(text: str) -> float:
    """Parse a time in seconds, minutes or hours."""
    units = {"s": 1, "m": 60, "h": 3600}
    number, unit = (text[:-1], units[text[-1]]) if text[-1:] in units else (text, 1)
    try:
        value = float(number) * unit
    except ValueError:
        value = -1.0
    if not 0 < value < 1e7:
        raise argparse.ArgumentTypeError(f"expected a time such as 90, 60s or 5m, got {text!r}")
    return value


def share(text: str) -> float:
    """Parse a share in percent.

    >>> share("2.5%")
    0.025
    """
    try:
        value = float(text.removesuffix("%")) / 100 if text.endswith("%") else -1.0
    except ValueError:
        value = -1.0
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"expected a share such as 1% or 0.5%, got {text!r}")
    return value


def case_seconds(text: str) -> float:
    """Parse the time limit of a case."""
    found = seconds(text)
    if not TIMEOUTS[0] <= found <= TIMEOUTS[1]:
        raise argparse.ArgumentTypeError(f"expected a time of 1s to 24h, got {text!r}")
    return found


def size(text: str) -> int:
    """Parse the memory limit of a case."""
    units = {"M": 2**20, "G": 2**30}
    number, unit = text[:-1], text[-1:].upper()
    if unit not in units or not number.isdecimal() or int(number) < 1:
        raise argparse.ArgumentTypeError(f"expected a size such as 500M or 2G, got {text!r}")
    found = int(number) * units[unit]
    if not MEMORY[0] <= found <= MEMORY[1]:
        raise argparse.ArgumentTypeError(f"expected a size of 64M to 1048576G, got {text!r}")
    return found


def families(text: str) -> tuple[str, ...]:
    """Parse names of families, or ``all``."""
    names = tuple(dict.fromkeys(text.split(",")))
    if "all" in names:
        return FAMILIES
    for name in names:
        if name not in FAMILIES:
            raise argparse.ArgumentTypeError(
                f"unknown family {name!r}{did_you_mean(name, FAMILIES) or '.'} Known: all, {', '.join(FAMILIES)}"
            )
    return names
