"""One mutant, tried in a process of its own: does it change a real model's output, and what does an audit say of it?"""

from __future__ import annotations

import multiprocessing
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from itertools import islice
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from shutil import copytree, ignore_patterns
from typing import Any

import torch

from eqcheck.audit.loop import audit
from eqcheck.contract import registry
from eqcheck.contract.decoders import Decoder
from eqcheck.core.case.record import Case
from eqcheck.core.explanation.text import render
from eqcheck.core.result.findings import Options
from eqcheck.transparent.coverage import try_case
from eqcheck.transparent.search import CHUNK, Source
from mutation import real
from mutation.mutator import ENGINES, FOLDER, Mutant, files, outside_functions

FAMILIES = ("rotary", "learned")
MOST_CASES = 300
CASE_TIMEOUT = 4.0
TRIAL_TIMEOUT = 240.0
PACKAGE = "mutated_impls"

Found = dict[str, Any]


@contextmanager
def loaded(mutant: Mutant | None) -> Iterator[Decoder]:
    """The engine of a mutant (of None: eqspec as it is) as a decoder, from a temporary copy of the sources."""
    engine = mutant.engine if mutant else "eqspec"
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        copy = Path(folder) / PACKAGE
        copytree(FOLDER, copy, ignore=ignore_patterns("__pycache__"))
        if mutant:
            (copy / mutant.file).write_text(mutant.source, encoding="utf-8")
        sys.path.insert(0, folder)
        try:
            found = vars(import_module(f"{PACKAGE}.{engine}")).values()
            yield next(one for one in found if isinstance(one, Decoder))
        finally:
            sys.path.remove(folder)
            for name in [name for name in sys.modules if name.partition(".")[0] == PACKAGE]:
                del sys.modules[name]


def source(decoder: Decoder, seed: int) -> Source:
    """Where an audit of the decoder draws its cases."""
    return Source(seed, FAMILIES, decoder.padding_sides, decoder.cache_states)


def drawn(source: Source) -> Iterator[Case]:
    """The cases of an audit; the source remembers those it has drawn."""
    for index in range(MOST_CASES // CHUNK):
        yield from source.chunk(index)


def prepare(seed: int) -> None:
    """Have at hand what every trial needs, before processes are forked."""
    torch.set_num_threads(1)
    real.cases()
    for engine in ENGINES:
        source(registry.load(engine), seed).chunk(MOST_CASES // CHUNK - 1)


def attempt(mutant: Mutant, seed: int, whole: int) -> Found:
    """Both verdicts on a mutant, as plain data."""
    start = time.monotonic()
    try:
        with real.within(CASE_TIMEOUT), loaded(mutant):
            pass
    except (Exception, real.TimeUp) as error:
        return {"status": "not importable", "why": f"{type(error).__name__}: {error}"}
    with loaded(mutant) as decoder:
        changed = real.changes(decoder.function)
        between = time.monotonic()
        found: Found = {"status": "ran", "real": changed, "real_s": round(between - start, 2)}
        found.update(seen(decoder, seed, whole))
        found["audit_s"] = round(time.monotonic() - between, 2)
    return found


def seen(decoder: Decoder, seed: int, whole: int = 0) -> Found:
    """What an audit that ends with the first violation says; as ``also`` what else one of ``whole`` cases says."""
    for number, case in enumerate(drawn(source(decoder, seed)), start=1):
        if try_case(decoder.function, case, CASE_TIMEOUT).fingerprint:
            first, *_ = _shown(decoder, number, seed)
            also = _shown(decoder, max(whole, number), seed) if whole else []
            names = (first["component"], first["kind"])
            others = [one for one in also if (one["component"], one["kind"]) != names]
            return {"caught": number, **first, "also": others}
    return {"caught": None}


def _shown(decoder: Decoder, cases: int, seed: int) -> list[Found]:
    """What the reader of an audit is shown, in order."""
    result = audit(decoder, Options(cases=cases, seed=seed, families=FAMILIES, case_timeout=CASE_TIMEOUT))
    return [
        {
            "component": record.explanation.component,
            "kind": record.explanation.kind,
            "verdict": result.verdict,
            "count": record.count,
            "text": render(record.explanation),
            "case": record.case.to_dict(),
            "case_id": record.case.id,
            "warnings": result.warnings,
        }
        for record in [*result.violations, *result.doubtful]
    ]


def run(chosen: Sequence[Mutant], seed: int, jobs: int, whole: int = 0) -> Iterator[tuple[Mutant, Found]]:
    """Attempt the mutants in processes of their own, as they end; one that takes too long is ended."""
    context = multiprocessing.get_context("fork")  # so that nothing is imported, built or drawn again
    waiting = list(reversed(chosen))
    running: dict[Connection, tuple[Mutant, BaseProcess, float]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                mutant = waiting.pop()
                ours, theirs = context.Pipe(duplex=False)
                process: BaseProcess = context.Process(target=_child, args=(theirs, mutant, seed, whole), daemon=True)
                process.start()
                theirs.close()
                running[ours] = (mutant, process, time.monotonic() + TRIAL_TIMEOUT)
            ended = set(wait(list(running), timeout=1.0))
            for connection, (mutant, process, limit) in list(running.items()):
                if connection not in ended and time.monotonic() < limit:
                    continue
                found: Found = {"status": "did not end"}
                if connection in ended:
                    try:
                        found = connection.recv()
                    except EOFError:
                        found = {"status": "died"}
                process.kill()
                process.join()
                connection.close()
                del running[connection]
                yield mutant, found
    finally:
        for _, process, _ in running.values():
            process.kill()


def _child(connection: Connection, mutant: Mutant, seed: int, whole: int) -> None:
    try:
        found = attempt(mutant, seed, whole)
    except Exception as error:  # a fault of eqcheck or of this package
        import traceback

        found = {"status": "checker failed", "why": "".join(traceback.format_exception(error))}
    connection.send(found)
    connection.close()


def reached(seed: int, count: int = 60) -> dict[str, dict[str, set[int]]]:
    """By file and engine, the lines that matter: those run over real cases and cases of an audit, or when imported."""
    lines = {file: {engine: outside_functions(file) for engine in ENGINES} for file in files()}
    for engine in ENGINES:
        decoder = registry.load(engine)
        with _traced() as hit:
            assert real.changes(decoder.function) is None, f"{engine} is wrong on a real model"
            for case in islice(drawn(source(decoder, seed)), count):
                assert try_case(decoder.function, case, None).status == "equivalent", f"{engine} is wrong on {case.id}"
        for file, numbers in hit.items():
            lines[file][engine] |= numbers
    return lines


@contextmanager
def _traced() -> Iterator[dict[str, set[int]]]:
    """Which lines of which files below `FOLDER` run."""
    hit: dict[str, set[int]] = defaultdict(set)
    names = {str(FOLDER / file): file for file in files()}

    def local(frame: Any, event: str, argument: Any) -> Any:
        if event == "line":
            hit[names[frame.f_code.co_filename]].add(frame.f_lineno)
        return local

    def every(frame: Any, event: str, argument: Any) -> Callable[..., Any] | None:
        if frame.f_code.co_filename in names:
            hit[names[frame.f_code.co_filename]].add(frame.f_lineno)
            return local
        return None

    before = sys.gettrace()
    sys.settrace(every)
    try:
        yield hit
    finally:
        sys.settrace(before)
