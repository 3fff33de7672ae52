"""Every kind is explained, in sentences, with links that lead somewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from eqcheck.contract.errors import EqcheckError
from eqcheck.contract.kinds import FINGERPRINTS
from eqcheck.core.explanation import handbook
from eqcheck.core.explanation.handbook import Chapter, RootCause, about, parsed

FOLDER = Path(handbook.__file__).parent
LINK = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+#[1-9]\d*|https://[\w./-]+")
FILE = """+++
kind = "mask/window"

[reports]
1 = ["vllm-project/vllm#1"]
+++

## What happens

Token 7 is
lost.

```
> 7  lost
```

## Usual causes

1. A slot is cleared.
2. A
   `b` is lost.

## How to tell

`b` is gone.

## How to fix it

Keep it.
"""


def fits(line: str) -> bool:
    """Whether a line of a sample is plain and leaves room for an indent in 80 columns."""
    return line.isprintable() and len(line) <= 76 and line == line.rstrip()


def flaws(explained: Chapter) -> list[str]:
    """List what is wrong with a chapter."""
    texts = [explained.what, explained.signs, explained.fix, *(cause.what for cause in explained.causes)]
    found = [f"no sentence: {text!r}" for text in texts if not re.fullmatch(r"(?:[A-Z`]|eqcheck ).*\.", text)]
    found += [f"no plain text: {text!r}" for text in texts if not text.isprintable() or "  " in text]
    found += [f"no sample: {line!r}" for line in explained.sample.splitlines() if not fits(line)]
    links = [link for cause in explained.causes for link in cause.links]
    found += [f"no link: {link!r}" for link in links if not LINK.fullmatch(link)]
    return found + ["no cause"] * (not explained.causes)


def test_every_kind_is_explained_and_nothing_else() -> None:
    assert {path.relative_to(FOLDER).with_suffix("").as_posix() for path in FOLDER.rglob("*.md")} == set(FINGERPRINTS)


def test_explanations_are_sentences_and_links() -> None:
    broken = [f"{one}: {flaw}" for one in FINGERPRINTS for flaw in flaws(about(one))]
    assert not broken, "\n".join(broken)


def test_a_flaw_is_seen() -> None:
    right = Chapter(
        "Token 7 is lost.", (RootCause("A slot is cleared.", ("vllm-project/vllm#1",)),), "It is gone.", "Keep it."
    )
    assert not flaws(right)
    assert flaws(Chapter("", (), "It is gone.", "Keep it.")) == ["no sentence: ''", "no cause"]
    assert flaws(Chapter("Lost", right.causes, "It is gone.", "Keep\x1bit."))
    assert flaws(Chapter("Lost.", (RootCause("Why.", ("vllm#1",)),), "It is gone.", "Keep it."))
    assert flaws(replace(right, sample="x" * 77)) == [f"no sample: {'x' * 77!r}"]


def test_causes_that_were_reported_come_first() -> None:
    for fingerprint in FINGERPRINTS:
        reported = [bool(cause.links) for cause in about(fingerprint).causes]
        assert reported == sorted(reported, reverse=True), fingerprint


def test_a_file_is_read_into_its_record() -> None:
    causes = (RootCause("A slot is cleared.", ("vllm-project/vllm#1",)), RootCause("A `b` is lost."))
    assert parsed("mask/window", FILE) == Chapter("Token 7 is lost.", causes, "`b` is gone.", "Keep it.", "> 7  lost")
    assert parsed("mask/window", FILE.replace("```\n> 7  lost\n```\n\n", "")).sample == ""


@pytest.mark.parametrize(
    ("right", "wrong", "said"),
    [
        ("+++\n\n", "\n", "expected front matter, then the sections What happens,"),
        ("## How to fix it", "## Remedy", "expected front matter, then the sections What happens,"),
        ("Token 7 is", "Token 7 is\n\nnot", "expected front matter, then the sections What happens,"),
        ("Token 7 is", "Token 7 is\n## Remedy", "expected front matter, then the sections What happens,"),
        ("> 7  lost\n```", "> 7  lost", "expected front matter, then the sections What happens,"),
        ("## How to tell", "## How", "expected front matter, then the sections What happens,"),
        ("1. A slot is cleared.", "A slot is cleared.", "expected front matter, then the sections What happens,"),
        ("   `b`", "`b`", "expected front matter, then the sections What happens,"),
        ("2. A", "1. A", "expected causes numbered from 1, got [1, 1]"),
        ("2. A", "3. A", "expected causes numbered from 1, got [1, 3]"),
        ("1 = [", "3 = [", "there are reports of the causes [3], and the causes [1, 2]"),
        ("1 = [", "one = [", "Expected `int`, got `str` - at `key` in `$.reports`"),
        ('["vllm-project/vllm#1"]', '"vllm-project/vllm#1"', "Expected `array`, got `str`"),
        ("[reports]", "[links]", "Object contains unknown field `links`"),
        ("kind =", "kind", "Expected '=' after a key"),
        ("mask/window", "mask/token-hidden", "expected the kind 'mask/window', got 'mask/token-hidden'"),
    ],
)
def test_a_malformed_file_is_one_clear_error(
    right: str, wrong: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert FILE.count(right) == 1
    monkeypatch.setattr(handbook, "_HERE", tmp_path)
    (tmp_path / "mask").mkdir()
    (tmp_path / "mask" / "window.md").write_text(FILE.replace(right, wrong))
    with pytest.raises(EqcheckError, match=re.escape(f"eqcheck/core/explanation/handbook/mask/window.md: {said}")):
        about("mask/window")


def test_only_the_kind_that_is_asked_for_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Path] = []
    read_text = Path.read_text

    def counted(path: Path, **how: str) -> str:
        opened.append(path)
        return read_text(path, **how)

    monkeypatch.setattr(Path, "read_text", counted)
    about("mask/window")
    assert opened == [FOLDER / "mask" / "window.md"]


@pytest.mark.parametrize(
    ("code", "unneeded"),
    [
        ("import eqcheck.core.explanation.handbook", {"torch", "transformers", "numpy", "msgspec"}),
        (
            "import eqcheck.core.explanation.handbook; eqcheck.core.explanation.handbook.about('mask/window')",
            {"torch", "transformers", "numpy"},
        ),
    ],
)
def test_explanations_need_no_model(code: str, unneeded: set[str]) -> None:
    code += f"; import sys; sys.exit(bool({unneeded!r} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
