"""Engines of very different build, all right: none may ever be in violation, and every query must be explained."""

from __future__ import annotations

import pytest
import torch

from eqcheck.catalogue import known_good
from eqcheck.contract.decoders import Decoder
from eqcheck.transparent.attribution.reading import Reader
from eqcheck.transparent.decoding import run
from eqcheck.transparent.oracle import judge
from eqcheck.transparent.search import Source


@pytest.mark.parametrize("decoder", known_good().values(), ids=lambda decoder: decoder.name)
@pytest.mark.tiers(quick=1, rest=7)
def test_no_false_alarm(decoder: Decoder) -> None:
    torch.set_num_threads(1)
    source = Source(11, decoder.families, decoder.padding_sides, decoder.cache_states)
    for case in source.chunk(0)[::2]:
        done = run(decoder, case)
        verdict = judge(done)
        assert verdict, f"{verdict.explain()}\n{done.failure_text}"
        assert Reader(done).unseen() is None
