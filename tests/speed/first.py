"""Seconds of a command until its first line and its first violation: ``python tests/speed/first.py eqcheck audit bsp``.

The CPU seconds are those of the command and of all processes below it. It ends the command at the first violation.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path


def cpu(process: int) -> float:
    """The CPU seconds that a process and those below it have used, as far as they live."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        below = [path.read_text().split() for path in Path(f"/proc/{process}/task").glob("*/children")]
    except OSError:
        return 0.0
    ticks = sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK") + sum(cpu(int(child)) for children in below for child in children)


def main(command: list[str]) -> None:
    """Run the command and print when each of its first lines came."""
    start = time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as running:
        assert running.stdout is not None
        for line in running.stdout:
            print(f"{time.monotonic() - start:6.2f} s, CPU {cpu(running.pid):5.2f} s: {line.rstrip()}")
            if "not confirmed yet" in line:
                break
        running.kill()


if __name__ == "__main__":
    main(sys.argv[1:])
