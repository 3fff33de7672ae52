"""A campaign on a Ray cluster: shards as tasks, as many at a time as there are cores, until time or cases are over.

    with Cluster("10.0.0.1:6379") as cluster:
        audit = cluster.audit(decoder, options, folder)

Each shard that ends is stored at once in ``folder``. A machine that dies loses what it had not finished, and those
shards begin again elsewhere. Where this process dies, the same campaign goes on from what is stored. Workers get plain
data and return plain data; what runs there is the eqcheck that is installed there, if it is this one.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from eqcheck.audit import processes, shards
from eqcheck.audit.events import CaseDone, Finished, Listener, Settled, Started
from eqcheck.audit.shards import Shard, from_builtins, merged, read, write
from eqcheck.audit.workers.worker import child_environment
from eqcheck.contract.decoders import Decoder
from eqcheck.contract.errors import UsageError, one_line
from eqcheck.contract.extras import require
from eqcheck.core.result.findings import Audit, Finding, Options
from eqcheck.core.store.corpus import Corpus

HERE = "local"
ANSWERS_S = 20.0
SHARD_CASES = 500
SHARD_S, ENGINE_SHARD_S = 60.0, 600.0  # an engine has to start in each shard
_TRIES = 3  # of a shard whose worker is lost; what kills its worker time and again is no accident
_LOOK_S = 1.0  # how often to look for machines that came or went


def check_answers(address: str) -> None:
    """Connect in a process of its own first: ray itself waits for minutes, and may end the process that asks.

    Raises `UsageError` where ray is missing, or no cluster answers within `ANSWERS_S`. To `HERE`, one is started.
    """
    if not address.strip():  # a variable of the shell that is not set
        raise _no_answer("''", "the address is empty")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    require("--ray", "ray")
    if address == HERE:
        return
    code = "import ray, sys; ray.init(address=sys.argv[1], log_to_driver=False, logging_level='ERROR')"
    try:
        done = subprocess.run(
            [sys.executable, "-c", code, address],
            env=child_environment(PYTHONSAFEPATH="1"),
            capture_output=True,
            text=True,
            timeout=ANSWERS_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise _no_answer(address, f"no answer within {ANSWERS_S:g} s") from None
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        raise _no_answer(address, lines[-1] if lines else f"exit code {done.returncode}")


def _no_answer(address: str, why: str) -> UsageError:
    return UsageError(
        f"--ray {one_line(address, 100)}: expected a Ray cluster that answers, as `ray.init` takes its address, or "
        f"'{HERE}'; {one_line(why, 300)}. Everything stored stays; the same command goes on from it"
    )


class Cluster:
    """A connection to a Ray cluster at ``address``: what ``ray.init`` takes, or `HERE` to start one on this machine.

    Ask `check_answers` first. Raises `UsageError` where the connection fails all the same.
    """

    def __init__(self, address: str) -> None:
        self.address = address

    def __enter__(self) -> Cluster:
        import ray

        self.ray = ray
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
        if self.address == HERE:
            quiet["include_dashboard"] = False
        try:
            self.ray.init(address=self.address, **quiet)
        except Exception as error:
            raise _no_answer(self.address, str(error)) from error
        return self

    def __exit__(self, *_: object) -> None:
        self.ray.shutdown()

    def audit(self, decoder: Decoder, options: Options, folder: Path, listen: Listener = lambda event: None) -> Audit:
        """Audit a decoder in shards that are stored in ``folder``; see `eqcheck.audit.shards` for what comes out."""
        campaign = ClusterCampaign(self.ray, decoder, options, folder, listen)
        campaign.run()
        if not campaign.done:
            raise UsageError(f"--ray {self.address}: no shard was finished. {'; '.join(campaign.problems)}".rstrip())
        result = merged(decoder, options, read(folder))
        result.warnings[:0] = campaign.problems
        result.interrupted |= bool(campaign.problems)
        listen(Finished(decoder.name, result))
        return result


@dataclass
class ClusterCampaign:
    """One campaign while it runs. ``done`` are the cases of its shards by number, ``problems`` what was lost."""

    ray: Any
    decoder: Decoder
    options: Options
    folder: Path
    listen: Listener
    done: dict[int, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    flying: dict[Any, dict[str, Any]] = field(default_factory=dict)
    lost: list[dict[str, Any]] = field(default_factory=list)
    tries: Counter[int] = field(default_factory=Counter)
    refused: str = ""
    before_s: float = 0.0
    counted: int = 0
    failing: int = 0
    seen: set[tuple[str, ...]] = field(default_factory=set)

    def run(self) -> None:
        """Begin shards, take in what ends, until there is no more to begin and nothing under way."""
        self.terms = shards.terms_of(self.decoder, self.options)
        self.corpus = Corpus(self.options.corpus, self.decoder.name) if self.options.corpus else None
        engine = self.decoder.checkpoints or self.options.python
        self.listen(Started(self.decoder.name, "engine" if engine else "transparent", self.options.cases))
        self._resume()
        self.begun = time.monotonic()
        work = self._work()
        try:
            while True:
                while len(self.flying) < self._slots() and not self.refused and (one := self._next(work)):
                    self._begin(one)
                if not self.flying:
                    break
                ended, _ = self.ray.wait(list(self.flying), timeout=_LOOK_S)
                for reference in ended:
                    self._end(reference)
        except KeyboardInterrupt:
            for reference in self.flying:
                self.ray.cancel(reference, force=True)
            self.problems.append("interrupted; the same command goes on from what is stored")
        if self.refused:
            raise UsageError(self.refused)

    def _resume(self) -> None:
        """Take over what is stored of this very campaign; refuse what is stored of another."""
        for shard in read(self.folder):
            if difference := self.terms.differs(shard.terms):
                raise UsageError(
                    f"{self.folder}: holds shards of another campaign, {difference}; give another --out, or move that "
                    "folder away"
                )
            if shard.number in self.done:
                raise UsageError(f"{self.folder}: holds shard {shard.number} twice; move one of its files away")
            self.before_s = max(self.before_s, shard.until_s)
            self._count(shard)

    @property
    def elapsed(self) -> float:
        """Seconds of the whole campaign, those before it was resumed included."""
        return self.before_s + time.monotonic() - self.begun

    def _work(self) -> Iterator[dict[str, Any]]:
        """The shards to begin, with their bounds, as long as time and cases last."""
        cases, budget = self.options.cases, self.options.budget
        left = (cases or 0) - sum(self.done.values())
        longest = ENGINE_SHARD_S if self.decoder.checkpoints or self.options.python else SHARD_S
        number = 0
        while (not cases or left > 0) and (not budget or self.elapsed < budget):
            if number not in self.done:
                size = min(SHARD_CASES, left) if cases else None
                left -= size or 0
                seconds = max(1.0, min(longest, budget - self.elapsed)) if budget else None
                yield {"number": number, "cases": size, "budget": seconds}
            number += 1

    def _next(self, work: Iterator[dict[str, Any]]) -> dict[str, Any] | None:
        return self.lost.pop() if self.lost else next(work, None)

    def _slots(self) -> int:
        """Return how many shards the machines that are there now can run side by side."""
        return max(1, int(self.ray.cluster_resources().get("CPU", 1)) // self.options.jobs)

    def _begin(self, bounds: dict[str, Any]) -> None:
        described = processes.described(self.decoder)
        first = self.corpus.files() if self.corpus and bounds["number"] == 0 else None
        work = {
            **bounds,
            "terms": self.terms,
            "spec": self.decoder.spec,
            "described": self.decoder if described else None,
            "options": replace(self.options, corpus=Path() if self.options.corpus else None),
            "corpus": first,
        }
        import ray.cloudpickle

        task = self.ray.remote(_remotely()).options(num_cpus=self.options.jobs, max_retries=0)
        known = {"eqcheck": self.terms.eqcheck, "code": self.terms.code, "spec": self.decoder.spec}
        self.flying[task.remote(known, ray.cloudpickle.dumps(work))] = bounds

    def _end(self, reference: Any) -> None:
        bounds = self.flying.pop(reference)
        number = bounds["number"]
        try:
            answer = self.ray.get(reference)
        except self.ray.exceptions.RayTaskError as error:
            self.problems.append(f"shard {number}: eqcheck failed: {one_line(str(error.cause), 300)}")
            return
        except self.ray.exceptions.RayError as error:  # its worker, or the machine, is gone
            self.tries[number] += 1
            if self.tries[number] < _TRIES:
                self.lost.append(bounds)
                return
            why = one_line(f"{type(error).__name__}: {error}", 200)
            self.problems.append(
                f"shard {number} is missing: its process was lost {_TRIES} times ({why}); a decoder that ends its "
                "process is caught with --isolate"
            )
            return
        if "refused" in answer:
            self.refused = self.refused or one_line(answer["refused"], 600)
            return
        self._take(from_builtins(answer["shard"]))

    def _take(self, shard: Shard) -> None:
        """Store a shard before anything else is done with it."""
        try:
            write(replace(shard, until_s=round(self.elapsed, 3)), self.folder)
        except OSError as error:
            self.problems.append(f"shard {shard.number} could not be stored: {error.strerror or error}")
            return
        self._count(shard)
        self.listen(CaseDone(self.decoder.name, self.counted, self.options.cases, self.failing))

    def _count(self, shard: Shard) -> None:
        """Count a stored shard, tell what is new in it, and keep what it adds to the corpus."""
        self.done[shard.number] = shard.cases or shard.drawn
        for name, text in shard.stored.items() if self.corpus else ():
            assert self.corpus
            self.corpus.take(name, text)
        for part in shard.parts:
            self.counted += part.tally.drawn
            self.failing += sum(count for one, count in part.tally.alike.items() if one.claimed and one.symptom)
            self._tell_new(part.findings)

    def _tell_new(self, findings: Iterable[Finding]) -> None:
        """Tell the findings of which no shard before showed the symptoms."""
        for finding in findings:
            if finding.seen not in self.seen:
                self.seen.add(finding.seen)
                self.listen(Settled(self.decoder.name, finding))


def _remotely() -> Callable[[dict[str, str], bytes], dict[str, Any]]:
    """The task of a worker, by value: it can say what is wrong there also where eqcheck is missing or another one."""

    def shard(known: dict[str, str], work: bytes) -> dict[str, Any]:
        import platform

        where = f"machine {platform.node()}"
        try:
            from eqcheck.audit.shards import answered
        except ImportError as error:
            return {"refused": f"{where}: expected eqcheck {known['eqcheck']}, got none that runs shards: {error}"}
        return answered(where, known, work)

    return shard
