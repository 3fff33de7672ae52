"""Two tiers of tests: `make test` runs the quick one, `make test-all` the rest; ``python -m tiers LOG`` divides them.

A test function may take `SHARE` seconds of the quick tier. Its parameters fill that in their order, so a matrix of
engines and faults gives its first entries; a test that takes longer by itself belongs to the rest. `tiers.json` names
the tests of the rest. It is written from the log of a whole run, `make tiers`; a new test is quick until then.
`long.json` names tests of neither tier, which `make test-long` runs.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

REST = Path(__file__).with_name("tiers.json")
LONG = Path(__file__).with_name("long.json")
SHARE = 2.0
_LINE = re.compile(r"^([\d.]+)s (?:call|setup|teardown) +(\S.*)$")


def durations(lines: Iterable[str]) -> dict[str, float]:
    """Seconds of each test, set-up with it, in the lines that ``--durations=0`` prints.

    >>> durations(["0.50s call     tests/test_a.py::test_b[1]", "0.25s setup    tests/test_a.py::test_b[1]", "x"])
    {'tests/test_a.py::test_b[1]': 0.75}
    """
    seconds: dict[str, float] = {}
    for line in lines:
        if match := _LINE.match(line.rstrip("\n")):
            seconds[match[2]] = seconds.get(match[2], 0.0) + float(match[1])
    return seconds


def rest(seconds: Mapping[str, float], order: Iterable[str], share: float = SHARE) -> list[str]:
    """The tests of the rest: those beyond the share of their function, in the order in which they are collected.

    >>> rest({"a::f[1]": 2.0, "a::f[2]": 2.0, "a::g": 9.0}, ["a::f[1]", "a::f[2]", "a::f[3]", "a::g"])
    ['a::f[2]', 'a::g']
    """
    used: dict[str, float] = {}
    later = []
    for name in order:
        function, took = name.partition("[")[0], seconds.get(name, 0.0)
        if used.get(function, 0.0) + took > share:
            later.append(name)
        else:
            used[function] = used.get(function, 0.0) + took
    return later


def main(log: str, collected: str) -> None:
    """Write `tiers.json` from the log of a whole run and the names that ``--collect-only -q`` prints."""
    seconds = durations(Path(log).read_text().splitlines())
    order = [line for line in Path(collected).read_text().splitlines() if "::" in line]
    longest = set(json.loads(LONG.read_text()))
    later = rest(seconds, [name for name in order if name not in longest])
    REST.write_text(json.dumps(later, indent=0) + "\n")
    quick = sum(took for name, took in seconds.items() if name not in set(later))
    print(f"{len(order) - len(later)} quick tests, {quick:.0f} s; {len(later)} in the rest, of {len(order)}")


if __name__ == "__main__":
    main(*sys.argv[1:])
