"""A campaign in shards: ordinary audits, each with a seed of its own, whose results are stored and merged.

A shard is bounded by its cases or by a time, draws its cases with a search of its own, and knows nothing of the others.
What it leaves is one file (`eqcheck.campaign.shardfile`): counts, findings with their smallest cases, and what its
evidence is made of. `eqcheck.campaign.merge` makes one audit of all of them.
"""

from __future__ import annotations

import hashlib
import pickle
import platform
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from eqcheck import __version__
from eqcheck.campaign import apart
from eqcheck.campaign.loop import audits
from eqcheck.campaign.shardfile import Shard, Terms, part_of, to_builtins
from eqcheck.contract import registry
from eqcheck.contract.decoder import Decoder
from eqcheck.contract.errors import UsageError
from eqcheck.result.findings import Audit, Options
from eqcheck.store.corpus import Corpus

_PER_SHARD = ("cases", "budget", "seed", "jobs", "corpus")  # options that are no terms of a campaign


def terms_of(decoder: Decoder, options: Options) -> Terms:
    """The terms of a campaign of this decoder."""
    kept = {name: value for name, value in asdict(options).items() if name not in _PER_SHARD}
    kept = msgspec.json.decode(msgspec.json.encode(kept))
    return Terms(code_of_eqcheck(), decoder.name, code_of(decoder.spec), options.seed, kept)


def code_of_eqcheck() -> str:
    """The version of eqcheck, with a hash of its modules: two checkouts may call themselves by one version."""
    root = Path(__file__).resolve().parents[1]
    found = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        found.update(path.relative_to(root).as_posix().encode() + path.read_bytes())
    return f"{__version__} ({found.hexdigest()[:12]})"


def code_of(spec: str) -> str:
    """A hash of the file that registers a decoder, so that it is the same on all machines; empty without one."""
    source, _, attribute = spec.rpartition(":")
    source = source if source and "/" not in attribute else spec
    if source.endswith(".py"):
        path = Path(source)
    else:
        entries = {point.name: point.value.partition(":")[0] for point in entry_points(group=registry.GROUP)}
        try:
            found = find_spec(registry.shipped().get(source) or entries.get(source) or source) if source else None
        except (ImportError, ValueError):
            found = None
        path = Path(found.origin) if found and found.origin else Path()
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16] if path.is_file() else ""


def seed_of(seed: int, number: int) -> int:
    """The seed of a shard.

    >>> seed_of(1, 0) != seed_of(0, 1) != seed_of(0, 2)
    True
    """
    return int.from_bytes(hashlib.sha256(f"eqcheck {seed} shard {number}".encode()).digest()[:6], "big")


def run(
    decoder: Decoder,
    options: Options,
    number: int,
    cases: int | None,
    budget: float | None = None,
    corpus: Mapping[str, str] | None = None,
) -> Shard:
    """Run one shard here: an audit of so many ``cases`` or seconds. ``corpus`` are case files to decode first.

    >>> from eqcheck.contract.registry import load
    >>> run(load("eqspec"), Options(seed=3), 0, cases=5).drawn
    5
    """
    start = time.monotonic()
    with TemporaryDirectory(prefix="eqcheck-shard-") as folder:
        own = Corpus(Path(folder), decoder.name)
        for name, text in (corpus or {}).items():
            own.take(name, text)
        mine = replace(options, seed=seed_of(options.seed, number), cases=cases, budget=budget)
        mine = replace(mine, corpus=Path(folder) if options.corpus else None)
        parts = audits(decoder, mine)
        stored = {name: text for name, text in own.files().items() if text != (corpus or {}).get(name)}
    return Shard(
        terms=terms_of(decoder, options),
        number=number,
        cases=cases,
        budget=budget,
        parts=tuple(map(part_of, parts)),
        versions=_versions(parts),
        stored=stored,
        machine=platform.node(),
        elapsed_s=round(time.monotonic() - start, 3),
    )


def answered(where: str, known: Mapping[str, str], work: bytes) -> dict[str, Any]:
    """What a worker answers: ``{"shard": ...}``, or ``{"refused": ...}`` where it is not what the coordinator expects.

    ``work`` is unpickled only by the eqcheck that pickled it.
    """
    if known["eqcheck"] != (mine := code_of_eqcheck()):
        return {
            "refused": f"{where}: expected eqcheck {known['eqcheck']} as here, got {mine}; install the same there. "
            "What is stored stays; the same command goes on from it"
        }
    if known["code"] != (code := code_of(known["spec"])):
        got = f"one with other content ({code})" if code else "no such file"
        return {
            "refused": f"{where}: adapter {known['spec']}: expected the same file as here ({known['code']}), got "
            f"{got}; put it at the same path on every machine, or install it there as a package"
        }
    asked = pickle.loads(work)
    try:
        decoder = asked["described"] or registry.load(known["spec"])
        options = apart.options(decoder, asked["options"])
        shard = run(decoder, options, asked["number"], asked["cases"], asked["budget"], asked["corpus"])
    except UsageError as error:
        return {"refused": f"{where}: {error}"}
    return {"shard": to_builtins(replace(shard, terms=asked["terms"]))}


def _versions(parts: list[Audit]) -> dict[str, str]:
    import torch
    import transformers

    found = {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "transformers": transformers.__version__,
    }
    return found | {part.decoder.name: part.version for part in parts if part.version}
