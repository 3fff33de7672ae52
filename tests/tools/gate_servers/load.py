"""What a gate costs its client.

    PYTHONPATH=.:tests/tools:tests/gate python -m gate_servers.load [--tokens N] [--concurrency N]

Two toy servers answer at once, each in a process of its own, so that the client is the slowest part. Printed are the
tokens, the client's seconds of CPU a second, and its greatest memory.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import sys
import time
from multiprocessing.connection import Connection

from test_gate_bad_servers import Toy, serving

from eqcheck.cli import main as eqcheck

MEAN_TOKENS = 38  # of a row, if the limit is 64, and some have stops


def serve(told: Connection) -> None:
    """Serve a toy until the process is ended."""
    with serving(Toy()) as url:
        told.send(url)
        time.sleep(1e6)


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure what a gate costs its client.")
    parser.add_argument("--tokens", type=int, default=100_000)
    parser.add_argument("--concurrency", type=int, default=64)
    asked = parser.parse_args()
    context, servers, urls = multiprocessing.get_context("spawn"), [], []
    for _ in range(2):
        receiver, sender = context.Pipe()
        servers.append(context.Process(target=serve, args=(sender,), daemon=True))
        servers[-1].start()
        urls.append(receiver.recv())
    began, used = time.monotonic(), time.process_time()
    requests = str(asked.tokens // MEAN_TOKENS + 1)
    words = ["gate", "--speculative", urls[0], "--plain", urls[1], "--requests", requests]
    code = eqcheck([*words, "--concurrency", str(asked.concurrency)])
    seconds, cpu = time.monotonic() - began, time.process_time() - used
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(f"{seconds:.0f} s, {cpu:.0f} s of CPU: {cpu / seconds:.2f} cores; {most} MB")
    for server in servers:
        server.terminate()
    return code


if __name__ == "__main__":
    sys.exit(main())
