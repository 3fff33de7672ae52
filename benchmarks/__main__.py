"""``python -m benchmarks``, or ``make bench``: time decoders on the small trained pair, and verify their output."""

from __future__ import annotations

import sys

from benchmarks.command import main

if __name__ == "__main__":
    sys.exit(main())
