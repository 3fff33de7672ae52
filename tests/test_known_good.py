"""Engines of very different build, all right: none may ever be in violation, and every query must be explained."""

from __future__ import annotations

import pytest
import torch
from builds import BUILDS

from eqcheck.contract import FAMILIES
from eqcheck.harness import run
from eqcheck.oracle import judge
from eqcheck.reading import Reader
from eqcheck.search import Source


@pytest.mark.parametrize("build", BUILDS)
def test_no_false_alarm(build: str) -> None:
    torch.set_num_threads(1)
    engine, source = BUILDS[build](), Source(11, FAMILIES, ("left",))
    for case in (case for chunk in range(3) for case in source.chunk(chunk)):
        done = run(engine, case)
        verdict = judge(done)
        assert verdict, f"{verdict.explain()}\n{done.failure_text}"
        assert Reader(done).unseen() is None
