"""Whether a Ray cluster answers at an address, asked before anything else is begun."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec

from eqcheck.contract.errors import UsageError
from eqcheck.contract.escaping import one_line

HERE = "local"
ANSWERS_S = 20.0


def check_answers(address: str) -> None:
    """Connect in a process of its own first: ray itself waits for minutes, and may end the process that asks.

    Raises `UsageError` where ray is missing, or no cluster answers within `ANSWERS_S`. To `HERE`, one is started.
    """
    if not address.strip():  # a variable of the shell that is not set
        raise no_answer("''", "the address is empty")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if find_spec("ray") is None:
        raise UsageError("--ray: ray is not installed; pip install 'eqcheck[ray]'")
    if address == HERE:
        return
    code = "import ray, sys; ray.init(address=sys.argv[1], log_to_driver=False, logging_level='ERROR')"
    environment = {**os.environ, "PYTHONSAFEPATH": "1"}
    try:
        done = subprocess.run(
            [sys.executable, "-c", code, address],
            env=environment,
            capture_output=True,
            text=True,
            timeout=ANSWERS_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise no_answer(address, f"no answer within {ANSWERS_S:g} s") from None
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        raise no_answer(address, lines[-1] if lines else f"exit code {done.returncode}")


def no_answer(address: str, why: str) -> UsageError:
    return UsageError(
        f"--ray {one_line(address, 100)}: expected a Ray cluster that answers, as `ray.init` takes its address, or "
        f"'{HERE}'; {one_line(why, 300)}. What is stored stays; the same command goes on from it"
    )
