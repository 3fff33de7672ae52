"""``python -m benchmarks``: the same as ``eqcheck bench``."""

from __future__ import annotations

import sys

from eqcheck.cli import main

if __name__ == "__main__":
    sys.exit(main(["bench", *sys.argv[1:]]))
