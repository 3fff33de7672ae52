"""Settings of all tests here, and their three tiers, which markers in the files name.

`make test` runs tests without a marker, `make test-all` those marked ``rest``, `make test-long` those marked ``long``.
A function may take a second and a half of CPU in `make test`. Of one with many parameters ``tiers(quick=3, rest=8)``
leaves the first three there, gives the next eight to `make test-all`, and what is left to `make test-long`.
"""

from __future__ import annotations

import signal
from collections import Counter

import pytest
from hypothesis import HealthCheck, settings

# A busy machine is slow, and no test here is about its speed.
settings.register_profile("eqcheck", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("eqcheck")

# A shell without job control lets what it starts in the background ignore Ctrl-C, which some tests send or raise.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    met = Counter[str]()
    for item in items:
        if divided := item.get_closest_marker("tiers"):
            function = item.nodeid.partition("[")[0]
            tier = tier_of(met[function], **divided.kwargs)
            met[function] += 1
            if tier:
                item.add_marker(tier)


def tier_of(number: int, quick: int, rest: int) -> str:
    """The marker of a function's parameters with this number; none where they are in `make test`."""
    if number < quick:
        return ""
    return "rest" if number < quick + rest else "long"
