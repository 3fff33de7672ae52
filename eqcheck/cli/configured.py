"""The options of an audit that ``[tool.eqcheck]`` gives, as words before those of the command line, which win."""

from __future__ import annotations

import argparse
from pathlib import Path

from eqcheck.contract import configuration

DRAW = ("cases", "budget", "seed", "max_rows", "max_prompt", "max_new_tokens", "max_draft_tokens")
"""Options that say what is drawn: with a profile they have no place."""


def drawn(options: argparse.Namespace) -> list[str]:
    """The options given that say what is drawn."""
    return [f"--{name.replace('_', '-')}" for name in DRAW if getattr(options, name) is not None]


def configured(options: argparse.Namespace) -> list[str]:
    """The words of the file for an audit; those left out are said otherwise on the command line."""
    file = configuration.read(Path.cwd())
    more = list(file.options)
    if not (options.specs or options.adapter):
        more += [word for spec in file.adapter for word in ("--adapter", spec)]
    instead = {"profile": bool(drawn(options)), "target": bool(options.families)}
    for name in ("profile", "known", "out", "target"):
        if (value := getattr(file, name)) and not instead.get(name):
            more += [f"--{name}", value]
    return more
