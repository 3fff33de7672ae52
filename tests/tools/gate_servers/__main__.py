"""Serve the trained pair: ``PYTHONPATH=.:tests/tools python -m gate_servers --port 8001 [--draft] [--fault NAME]``."""

from __future__ import annotations

import argparse

import torch

from gate_servers.engine import FAULTS, Engine
from gate_servers.server import Server, weights


def main() -> None:
    parser = argparse.ArgumentParser(description="Serve the trained pair as vLLM's completions.")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--draft", action="store_true", help="speculate")
    parser.add_argument("--fault", default="", choices=["", *FAULTS])
    parser.add_argument("--dtype", default="bfloat16", choices=["float32", "bfloat16", "float16", "int8"])
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--delay", type=float, default=0.0)
    parser.add_argument("--last-first", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    target, draft = weights(given.dtype)
    engine = Engine(
        target,
        draft if given.draft or given.fault else None,
        fault=given.fault,
        max_rows=given.rows,
        last_first=given.last_first,
        delay=given.delay,
    )
    Server(engine, given.port).serve_forever()


if __name__ == "__main__":
    main()
