"""Seconds of an audit until its first line and its first violation: ``python tests/tools/speed/first.py bsp``.

The CPU seconds are those of the command and of all processes below it. The audit is ended at its first violation.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SOON = 0.02  # seconds between two looks


def cpu(process: int) -> float:
    """Return the CPU seconds that a process and those below it have used, as far as they live or were waited for."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        below = [path.read_text().split() for path in Path(f"/proc/{process}/task").glob("*/children")]
    except OSError:
        return 0.0
    ticks = sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK") + sum(cpu(int(child)) for children in below for child in children)


def first(words: list[str]) -> tuple[float, float, float]:
    """Return the seconds of ``eqcheck audit`` until its first line and violation, and the CPU seconds of the latter."""
    with tempfile.TemporaryDirectory() as folder:
        events, said = Path(folder) / "events.ndjson", Path(folder) / "said"
        command = [sys.executable, "-m", "eqcheck.cli", "audit", *words, "--no-corpus", "--out", folder]
        start, line = time.monotonic(), 0.0
        with said.open("w") as out:
            running = subprocess.Popen([*command, "--ndjson", str(events)], stdout=out, stderr=subprocess.STDOUT)
        try:
            while not (events.exists() and '"event": "violation-seen"' in events.read_text()):
                if running.poll() is not None:
                    raise RuntimeError(f"{' '.join(command)} ended without a violation:\n{said.read_text()}")
                if not line and "\n" in said.read_text():
                    line = time.monotonic() - start
                time.sleep(SOON)
            return line, time.monotonic() - start, cpu(running.pid)
        finally:
            running.kill()
            running.wait()


if __name__ == "__main__":
    line, violation, used = first(sys.argv[1:])
    print(f"first line after {line:.2f} s; first violation after {violation:.1f} s, {used:.1f} s of CPU")
