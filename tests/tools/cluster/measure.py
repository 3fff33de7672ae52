"""What a campaign on Ray costs beside the same shards in plain processes: ``python tests/tools/cluster/measure.py``.

The decoder is a right one of the catalogue, whose cases take milliseconds: for an engine, the overhead is less. All
ways take turns, and each is held against the first of its turn. So the speed of the machine cancels out, unless it
changes within a turn. Plain processes say what the machine itself allows. CPU time is that of all processes of the way,
Ray's own included; it hardly depends on what else the machine does.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import ray

from eqcheck.audit import cluster, shards
from eqcheck.audit.shards import Shard, merged
from eqcheck.contract import registry
from eqcheck.core.result.findings import Options

ADAPTER = """
import eqcheck
from eqcheck.catalogue import known_good

GOOD = known_good()

@eqcheck.decoder(name="mine")
def generate(target, draft, request):
    return GOOD["one_row"](target, draft, request)
"""
SHARDS, CASES, TURNS = 8, 100, 5
WORKERS = (1, 2, 4)
STORE = 80 * 2**20
OPTIONS = Options(cases=SHARDS * CASES)


def shard(path: str, number: int) -> Shard:
    """One shard, in whichever process."""
    return shards.run(registry.load(path), OPTIONS, number, CASES)


def plain(path: str, pool: ProcessPoolExecutor | None) -> None:
    """All shards, here or in a pool of processes, merged."""
    run = pool.map if pool else map
    merged(registry.load(path), OPTIONS, run(partial(shard, path), range(SHARDS)))


def on_ray(path: str, workers: int) -> None:
    """All shards on the cluster, no more than so many side by side."""
    cluster.ClusterCampaign._slots = lambda self: workers  # type: ignore[method-assign]
    on = cluster.Cluster("local")
    on.ray = ray
    on.audit(registry.load(path), OPTIONS, Path(tempfile.mkdtemp()))


@dataclass(frozen=True)
class Took:
    """Seconds of the clock, of all processes, and of this one."""

    clock: float
    all: float
    own: float


def timed(task: Callable[[], object]) -> Took:
    before = time.monotonic(), cpu_seconds(), time.process_time()
    task()
    after = time.monotonic(), cpu_seconds(), time.process_time()
    return Took(*(later - earlier for later, earlier in zip(after, before, strict=True)))


def cpu_seconds() -> float:
    """CPU time of this process and of all that it began, those that have ended included."""
    parents, ticks = {}, {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            parents[int(path.parent.name)] = int(fields[1])
            ticks[int(path.parent.name)] = sum(map(int, fields[11:15]))
    ours = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in ours} - ours:
        ours |= more
    return sum(ticks[pid] for pid in ours) / os.sysconf("SC_CLK_TCK")


def shown(values: list[float]) -> str:
    return f"{statistics.median(values):7.2f} ({min(values):.2f} to {max(values):.2f})"


def main() -> None:
    # Ray's workers have niceness 15: whatever else the machine has to do would come first.
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1", "RAY_worker_niceness": "0"}
    path = str(Path(tempfile.mkdtemp()) / "mine.py")
    Path(path).write_text(ADAPTER)
    cluster.SHARD_CASES = CASES
    most = max(WORKERS)
    ray.init(address="local", num_cpus=most, object_store_memory=STORE, include_dashboard=False, log_to_driver=False)
    pools = {workers: ProcessPoolExecutor(workers, get_context("spawn")) for workers in WORKERS if workers > 1}
    ways: dict[str, Callable[[], object]] = {"one process": partial(plain, path, None)}
    ways |= {f"{workers} processes": partial(plain, path, pool) for workers, pool in pools.items()}
    ways |= {f"Ray, workers: {workers}": partial(on_ray, path, workers) for workers in WORKERS}
    for name in reversed(ways):  # what is imported once is not counted
        print(f"{name}: cold, {timed(ways[name]).clock:.1f} s", flush=True)
    turns: list[dict[str, Took]] = []
    for _ in range(TURNS):
        turns.append({name: timed(way) for name, way in ways.items()})
        print("  ".join(f"{name} {took.clock:.1f} s" for name, took in turns[-1].items()), flush=True)
    print(f"{SHARDS} shards of {CASES} cases, {TURNS} turns: median (range)")
    for name in ways:
        took = [turn[name] for turn in turns]
        faster = [turn["one process"].clock / turn[name].clock for turn in turns]
        print(f"{name:16} clock, ms a case {shown([1000 * one.clock / SHARDS / CASES for one in took])}", end="  ")
        print(f"CPU, ms a case {shown([1000 * one.all / SHARDS / CASES for one in took])}", end="  ")
        print(f"times one process {shown(faster)}  own ms a shard {shown([1000 * one.own / SHARDS for one in took])}")
    for workers in WORKERS:
        off, on = f"{workers} processes" if workers > 1 else "one process", f"Ray, workers: {workers}"
        print(
            f"Ray over plain, {workers}: clock {shown([turn[on].clock / turn[off].clock for turn in turns])}", end="  "
        )
        print(f"CPU {shown([turn[on].all / turn[off].all for turn in turns])}")
    print(f"load of the machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    for pool in pools.values():
        pool.shutdown()
    ray.shutdown()


if __name__ == "__main__":
    main()
