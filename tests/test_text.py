"""Explanations as text: every kind has a meaning, and every number says what it counts."""

from __future__ import annotations

import pytest

from eqcheck import verdict
from eqcheck.contract import decoder
from eqcheck.text import meaning
from eqcheck.verdict import KINDS

ALL = [(component, kind) for component, kinds in KINDS.items() for kind in kinds]


@pytest.mark.parametrize(("component", "kind"), ALL)
def test_every_kind_has_a_meaning_and_stands_in_the_list(component: str, kind: str) -> None:
    assert meaning(kind)
    lines = [line.split() for line in (verdict.__doc__ or "").splitlines()]
    assert any(kind in words for words in lines)
    assert any(words[:1] == [component] for words in lines)
    if component not in ("crash", "draft", "unattributed"):
        decoder(name="mine", known={f"{component}/{kind}": "https://example.org/1"})(lambda *_: [])
