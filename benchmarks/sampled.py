"""What sampling costs an engine: sampled rows against greedy rows that emit the same tokens.

At the lowest temperature a law has all on the greedy token, in float32 as well, near-ties aside. So the rounds and the
outputs are those of greedy rows and can be verified like theirs, while all of sampling is done: the laws of draft and
target, cut as the options say, the draws, the judging of draft tokens. The ratio is the cost of that alone; what a
higher temperature does to the acceptance is not in it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from benchmarks.measure import Failure, Timed, judged
from benchmarks.workload import Job, Workload
from eqcheck.contract.decoders import RowOptions

LOWEST = 1e-6
WAYS = {
    "temperature alone": RowOptions(1, temperature=LOWEST),
    "top-p 0.9": RowOptions(1, temperature=LOWEST, top_p=0.9),
    "top-k 50, top-p 0.9, min-p 0.02": RowOptions(1, temperature=LOWEST, top_k=50, top_p=0.9, min_p=0.02),
}


def cost(
    workload: Workload, prompts: Sequence[Job], make: Callable[[], Timed], way: RowOptions, *, sampled_first: bool
) -> float | Failure:
    """The throughput of these prompts sampled in a way, over that of greedy ones just before or after; or a failure.

    Who is first should change from turn to turn, so that a machine that becomes slower favours nobody.
    """
    speeds: dict[bool, float] = {}
    for sampled in (sampled_first, not sampled_first):
        some = [one._replace(sampling=way) for one in prompts] if sampled else prompts
        row = judged(workload, some, make, Timed.measure)
        if isinstance(row, Failure):
            return row
        speeds[sampled] = row["tokens"] / row["seconds"]
    return speeds[True] / speeds[False]
