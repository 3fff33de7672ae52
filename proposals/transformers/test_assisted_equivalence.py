"""Assisted generation emits exactly what the model emits alone: 200 greedy requests, 24 that sample, no download, CPU.

The answer of the target says which tokens it saw at which positions, so a wrong cache, mask or position changes a
token. A failing test prints the first wrong query, and a command that decodes the smallest request again.
"""

import unittest

import pytest

pytest.importorskip("eqcheck")

from eqcheck.kit import Equivalence


class AssistedEquivalenceTest(Equivalence, unittest.TestCase):
    adapter = "transformers"  # comes with eqcheck: model.generate(..., assistant_model=...), one row at a time
    profile = "ci-2026.12"  # a frozen draw: a newer eqcheck finds nothing new until this name is raised
    est_time = 40
