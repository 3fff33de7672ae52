# SPDX-License-Identifier: Apache-2.0
"""Greedy rows with a draft model emit exactly what the model emits alone: 200 requests, one engine, float32 on the CPU.

The checkpoint is written by arithmetic (no download); each of its tokens is a known function of those before, so no
tolerance is needed. A failing test prints the smallest cause and a command that decodes the same requests again.
"""

import pytest

pytest.importorskip("eqcheck")
from eqcheck.kit import Equivalence


class TestDraftModel(Equivalence):
    adapter = "vllm"  # comes with eqcheck, and starts LLM(..., speculative_config={"method": "draft_model", ...})
    profile = "ci-2026.12"  # a frozen draw: a newer eqcheck finds nothing new until this name is raised
    est_time = 70
    test_sampling = None  # the profile has no sampled rows of engines; vllm-project/vllm#55005 is open
