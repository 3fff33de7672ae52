"""Marks the tests of the tiers (`tests/tiers.py`): ``-m "not rest and not long"`` is the quick one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# A busy machine is slow, and no test here is about its speed.
settings.register_profile("eqcheck", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("eqcheck")

# `tests/conformance` lies below, and is run from other projects too: nothing of this folder is imported here.
collect_ignore = ["conftest.py"]  # as a module for doctests it would be taken for that of `browser`
TIERS = {
    marker: frozenset(json.loads(Path(__file__).with_name(name).read_text()))
    for marker, name in (("rest", "tiers.json"), ("long", "long.json"))
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for marker, names in TIERS.items():
            if item.nodeid in names:
                item.add_marker(marker)
