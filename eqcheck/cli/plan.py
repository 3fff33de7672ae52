"""The plan of an audit: all that the options of the command decide, before torch or any decoder is loaded.

`Plan.of` looks at nothing but the options and the files that they name, so a mistake in them is told at once.
`eqcheck.cli.audit` executes the plan.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime, timezone
from pathlib import Path

from eqcheck import __version__
from eqcheck.cli.common import bounded, bounds_of, junit_writable, writable
from eqcheck.contract import configuration, known_violations, profiles, registry
from eqcheck.contract.decoders import Decoder
from eqcheck.contract.errors import UsageError, did_you_mean
from eqcheck.core.result.findings import Options

# The options of an audit that ``[tool.eqcheck]`` gives, as words before those of the command line, which win.

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


_LISTED = "`eqcheck checkpoint list` has all"


@dataclass(frozen=True)
class Plan:
    """An audit as it was asked for.

    ``specs`` name the decoders, none of them every shipped one that needs nothing else; ``target`` the real models;
    ``corpus`` the place of stored cases, if any; ``cluster`` the address of Ray's. ``known`` are the entries of
    ``known_file``. ``written`` and ``command`` say in a report when and how it was made. Once they are loaded, it has
    the ``decoders``, and the ``folders`` of their reports by name.
    """

    specs: tuple[str, ...]
    asked: Options
    target: str
    out: Path
    corpus: str | None
    cluster: str | None
    known_file: Path | None
    known: tuple[known_violations.Known, ...]
    known_strict: bool
    allow_known: bool
    max_draft_loss: float | None
    json: bool
    quiet: bool
    junit: Path | None
    ndjson: Path | None
    today: date
    written: str
    command: str
    decoders: tuple[Decoder, ...] = ()
    folders: Mapping[str, Path] = field(default_factory=dict)

    @classmethod
    def of(cls, options: argparse.Namespace) -> Plan:
        """The plan of parsed options; raises `UsageError` for options that exclude each other or name no file."""
        _check_outputs(options)
        if options.target and options.families:
            raise UsageError("--target, --families: expected one of the two; a target has its family")
        profile = profiles.profile(options.profile, __version__) if options.profile is not None else None
        if profile and (more := drawn(options)):
            raise UsageError(f"--profile, {', '.join(more)}: a profile says what is drawn; leave out one of the two")
        specs = (*options.specs, *options.adapter)
        for spec in specs:
            registry.named(spec)
        now = datetime.now(timezone.utc)
        known = known_violations.load(options.known) if options.known else ()
        return cls(
            specs=specs,
            asked=Options(
                cases=options.cases or (None if options.budget else 300),
                budget=profile.budget if profile else options.budget,
                seed=profile.seed if profile else options.seed or 0,
                jobs=options.jobs or (profile.jobs if profile else 1),
                families=options.families,
                case_timeout=options.case_timeout,
                isolate=options.isolate,
                bounds=bounds_of(options),
                bounded=bounded(options),
                python=options.python or "",
                memory=options.memory,
                profile=profile,
                usual=not (options.cases or options.budget or profile),
                fail_fast=frozenset(one.fingerprint for one in known if one.until >= now.date())
                if options.fail_fast
                else None,
            ),
            target=options.target,
            out=options.out,
            corpus=None if options.no_corpus else options.corpus,
            cluster=options.ray,
            known_file=options.known,
            known=known,
            known_strict=options.known_strict or known_violations.in_ci(),
            allow_known=options.allow_known,
            max_draft_loss=options.max_draft_loss,
            json=options.json,
            quiet=options.quiet,
            junit=options.junit,
            ndjson=options.ndjson,
            today=now.date(),
            written=f"{now:%Y-%m-%d %H:%M} UTC",
            command=shlex.join(["eqcheck", *options.words]),
        )

    def with_folders(self) -> Plan:
        """The plan with a folder for each decoder's report; `UsageError` if two share one, or it cannot be made."""
        names = [decoder.name for decoder in self.decoders]
        for name in names:
            if names.count(name) > 1:
                raise UsageError(f"two adapters are named {name!r}; audit them into different --out folders")
            if not name or "/" in name or name.startswith("."):
                raise UsageError(f"adapter name {name!r} cannot name a folder; use letters, digits, '-' and '_'")
        for name in names:
            writable(self.out, name)
        return replace(self, folders={name: self.out / name for name in names})

    def loaded(self, decoders: Sequence[Decoder]) -> Plan:
        """The plan with its decoders; `UsageError` for an unknown checkpoint, or an option that no engine heeds."""
        from eqcheck.audit.workers.interpreter import environment
        from eqcheck.engines.construction.layouts import LAYOUTS

        for decoder in decoders:
            for kind in decoder.kinds:
                if kind not in (*LAYOUTS, "llama"):  # the random checkpoint is a Llama
                    near = did_you_mean(kind, LAYOUTS)
                    raise UsageError(f"{decoder.name}: kinds: there is no checkpoint {kind!r}{near}; {_LISTED}")
        python = self.asked.python
        engines = [environment(decoder, python) for decoder in decoders if decoder.checkpoints or python]
        if engines and self.target:
            raise UsageError("--target: an engine that loads a checkpoint has models of its own; leave it out")
        return replace(self, decoders=tuple(decoders))


def _check_outputs(options: argparse.Namespace) -> None:
    """`UsageError` for an output that cannot be written, before anything runs."""
    if str(options.ndjson) == "-" and options.json:
        raise UsageError("--json and --ndjson -: both want standard output; give --ndjson a file")
    if options.ndjson and not options.ndjson.parent.is_dir():
        raise UsageError(f"--ndjson {options.ndjson}: cannot write there: No such file or directory")
    junit_writable(options.junit)
