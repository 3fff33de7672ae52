"""Two tiers of tests: `make test` runs the quick one, `make test-all` the rest; ``python -m tiers LOG`` divides them.

A function may take `QUICK_SHARE` seconds of the quick tier. Its parameters fill that in their order, so a matrix of
engines and faults gives its first entries; a test that takes longer by itself belongs to the rest. There a function may
take `REST_SHARE` seconds, and its first test `FIRST`. `tiers.json` names the tests of the rest, `long.json` those
beyond both, which `make test-long` runs. They are written from the log of a whole run, `make tiers`; a new test is
quick until then, and a test that the log lacks stays in its tier.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

REST = Path(__file__).with_name("tiers.json")
LONG = Path(__file__).with_name("long.json")
QUICK_SHARE, REST_SHARE, FIRST = 1.5, 3.0, 5.0
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


def beyond(seconds: Mapping[str, float], order: Iterable[str], share: float, first: float = 0.0) -> list[str]:
    """The tests beyond the share of their function, in the order in which they are collected.

    >>> beyond({"a::f[1]": 2.0, "a::f[2]": 2.0, "a::g": 9.0}, ["a::f[1]", "a::f[2]", "a::f[3]", "a::g"], share=2.0)
    ['a::f[2]', 'a::g']
    """
    used: dict[str, float] = {}
    later = []
    for name in order:
        function, took = name.partition("[")[0], seconds.get(name, 0.0)
        if used.get(function, 0.0) + took > (share if function in used else max(share, first)):
            later.append(name)
        else:
            used[function] = used.get(function, 0.0) + took
    return later


def main(log: str, collected: str) -> None:
    """Write both files from the log of a whole run and the names that ``--collect-only -q`` prints."""
    seconds = durations(Path(log).read_text().splitlines())
    order = [line for line in Path(collected).read_text().splitlines() if "::" in line]
    before = {tier: set(json.loads(tier.read_text())) for tier in (REST, LONG)}
    later = [name for name in order if name not in seconds and name in before[REST] | before[LONG]]
    later += beyond(seconds, [name for name in order if name not in later], QUICK_SHARE)
    longest = [name for name in later if name not in seconds and name in before[LONG]]
    longest += beyond(seconds, [name for name in later if name not in longest], REST_SHARE, FIRST)
    tiers = {"quick": set(order) - set(later), "rest": set(later) - set(longest), "longest": set(longest)}
    for path, tier in ((REST, tiers["rest"]), (LONG, tiers["longest"])):
        path.write_text(json.dumps([name for name in order if name in tier], indent=0) + "\n")
    for name, tier in tiers.items():
        print(f"{name}: {len(tier)} tests, {sum(seconds.get(test, 0.0) for test in tier):.0f} s")


if __name__ == "__main__":
    main(*sys.argv[1:])
