"""Marks the tests of the rest (`tests/tiers.py`): ``-m "not rest"`` is the quick tier, and ``-m rest`` the other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

# `tests/conformance` lies below, and is run from other projects too: nothing of this folder is imported here.
collect_ignore = ["conftest.py"]  # as a module for doctests it would be taken for that of `browser`
REST = frozenset(json.loads(Path(__file__).with_name("tiers.json").read_text()))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid in REST:
            item.add_marker("rest")
