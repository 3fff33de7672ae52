"""What a campaign on Ray costs beside the same shards in one process: ``python tests/cluster/measure.py``.

The decoder is a right one of the catalogue, whose cases take milliseconds: for an engine, the overhead is less.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import ray

from eqcheck import registry
from eqcheck.campaign import cluster, shards
from eqcheck.campaign.merge import merged
from eqcheck.findings import Options

ADAPTER = """
import eqcheck
from eqcheck.catalogue import known_good

GOOD = known_good()

@eqcheck.decoder(name="mine")
def generate(target, draft, request):
    return GOOD["one_row"](target, draft, request)
"""
SHARDS, CASES = 8, 30
STORE = 80 * 2**20


def timed(task: Callable[[], object]) -> tuple[float, float]:
    """Seconds of the clock, and of this process: of the shards themselves, or of what coordinates them."""
    start, own = time.monotonic(), time.process_time()
    task()
    return time.monotonic() - start, time.process_time() - own


def main() -> None:
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"}
    folder = Path(tempfile.mkdtemp())
    (folder / "mine.py").write_text(ADAPTER)
    decoder = registry.load(str(folder / "mine.py"))
    options, cluster.SHARD_CASES = Options(cases=SHARDS * CASES), CASES

    def here() -> None:
        merged(decoder, options, (shards.run(decoder, options, number, CASES) for number in range(SHARDS)))

    here()  # what is imported once is not counted
    rows = [("one process, no Ray", timed(here))]
    for workers in (1, 2, 4):
        ray.init(
            address="local", num_cpus=workers, object_store_memory=STORE, include_dashboard=False, log_to_driver=False
        )
        on = cluster.Cluster("local")
        on.ray = ray
        on.audit(decoder, options, folder / f"warm-{workers}")  # workers have imported torch, and keep it
        rows.append((f"Ray, workers {workers}", timed(partial(on.audit, decoder, options, folder / f"{workers}"))))
        ray.shutdown()
    rows.append(("one process, no Ray, again", timed(here)))
    one = rows[1][1][0]
    for name, (seconds, own) in rows:
        each, of_it = 1000 * seconds / (SHARDS * CASES), 1000 * own / SHARDS
        print(f"{name:28} {seconds:6.1f} s  {each:6.1f} ms a case  {one / seconds:5.2f} times one worker  ", end="")
        print(f"{of_it:7.1f} ms of this process a shard", flush=True)
    print(f"load of the machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
