"""The truth of rows: what it was, whether rows are continued one by one or several at once."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from eqcheck.contract.decoders import FAMILIES
from eqcheck.transparent.truth import continuation as alone
from eqcheck.transparent.truth.continuation import continue_row, continue_rows

# What the first release said; stored cases rest on it.
KNOWN = {
    "rotary": ((76, 76, 83, 32, 50, 33), 11300489853353225588),
    "learned": ((44, 75, 39, 116, 78, 118), 18231240257646021712),
    "mask-order": ((76, 76, 83, 32, 50, 33), 11300489853353225588),
    "slot-distance": ((76, 76, 83, 32, 50, 33), 11300489853353225588),
    "window": ((45, 36, 94, 6, 101, 44), 15132342730087602052),
    "recurrent": ((76, 76, 83, 32, 50, 33), 11300489853353225588),
    "hybrid-window": ((83, 87, 97, 97, 81, 2), 3712897525296539034),
    "convolution": ((93, 109, 3, 85, 28, 96), 4792737707343411025),
    "masked-recurrent": ((76, 76, 83, 32, 50, 33), 11300489853353225588),
}
PROMPT = tuple(range(3, 40, 4))


@pytest.mark.parametrize("family", FAMILIES)
def test_the_truth_stays_what_it_was(family: str) -> None:
    tokens, digests = continue_row(family, 128, 0, PROMPT, 6)
    assert (tokens, int(digests[-1, -1])) == KNOWN[family]


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_continued_together_are_those_continued_alone(family: str) -> None:
    random = Random(family)
    prompts = [tuple(random.randrange(64) for _ in range(length)) for length in (1, 2, 15, 16, 17, 3, 70, 16)]
    prompts += [prompts[2], prompts[2][:9]]
    alone._CONTINUED.clear()
    together = continue_rows(family, 64, 3, prompts, 5)
    for prompt, (tokens, digests) in zip(prompts, together, strict=True):
        alone._CONTINUED.clear()
        one, its = continue_row(family, 64, 3, prompt, 5)
        assert tokens == one
        assert np.array_equal(digests, its)
        assert digests.shape == (2, len(prompt) + 5)


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alone, "_REMEMBERED", 3)
    alone._CONTINUED.clear()
    rows = continue_rows("rotary", 64, 0, [(n,) for n in range(9)], 2)
    assert len(rows) == 9
    assert len(alone._CONTINUED) == 3
