"""Every kind is explained, in sentences, with links that lead somewhere."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from eqcheck.explained import EXPLAINED, Cause, Explained
from eqcheck.kinds import FINGERPRINTS

LINK = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+#[1-9]\d*|https://[\w./-]+")


def flaws(explained: Explained) -> list[str]:
    """What is amiss with an explanation."""
    texts = [explained.example, explained.fix, *(cause.what for cause in explained.causes)]
    found = [f"no sentence: {text!r}" for text in texts if not re.fullmatch(r"[A-Z`].*\.", text)]
    found += [f"no plain text: {text!r}" for text in texts if not text.isprintable() or "  " in text]
    links = [link for cause in explained.causes for link in cause.links]
    found += [f"no link: {link!r}" for link in links if not LINK.fullmatch(link)]
    return found + ["no cause"] * (not explained.causes)


def test_every_kind_is_explained_and_nothing_else() -> None:
    assert set(EXPLAINED) == set(FINGERPRINTS)


@pytest.mark.parametrize("fingerprint", FINGERPRINTS)
def test_explanations_are_sentences_and_links(fingerprint: str) -> None:
    assert not flaws(EXPLAINED[fingerprint])


def test_a_flaw_is_seen() -> None:
    right = Explained("Id 7 is lost.", (Cause("A slot is cleared.", ("vllm-project/vllm#1",)),), "Keep it.")
    assert not flaws(right)
    assert flaws(Explained("", (), "Keep it.")) == ["no sentence: ''", "no cause"]
    assert flaws(Explained("Lost", right.causes, "Keep\x1bit."))
    assert flaws(Explained("Lost.", (Cause("Why.", ("vllm#1",)),), "Keep it."))


def test_causes_that_were_reported_come_first() -> None:
    for fingerprint, explained in EXPLAINED.items():
        reported = [bool(cause.links) for cause in explained.causes]
        assert reported == sorted(reported, reverse=True), fingerprint


def test_explanations_need_no_model() -> None:
    code = "import sys, eqcheck.explained; sys.exit(bool({'torch', 'transformers', 'numpy'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
