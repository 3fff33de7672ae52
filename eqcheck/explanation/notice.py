"""A warning of an audit: its words, and as a field the kind that a reader of them would have to guess."""

from __future__ import annotations

from collections.abc import Sequence

VACUOUS, INCONCLUSIVE = "VACUOUS", "INCONCLUSIVE"
LIMIT = 200  # characters of a warning: it is read in a line or two, and says what to do


class Notice(str):
    """A warning in words; ``kind`` is `VACUOUS`, `INCONCLUSIVE`, a fingerprint such as ``draft/desync``, or empty.

    >>> Notice("rejected draft tokens stay", "memory/rejected-kept")
    'memory/rejected-kept: rejected draft tokens stay'
    """

    __slots__ = ("kind",)
    kind: str

    def __new__(cls, words: str, kind: str = "") -> Notice:
        self = super().__new__(cls, f"{kind}: {words}" if kind else words)
        self.kind = kind
        return self

    @property
    def words(self) -> str:
        """The warning without its kind."""
        return self.removeprefix(f"{self.kind}:").lstrip() if self.kind else str(self)


def kind_of(warning: str) -> str:
    """The kind of a warning; empty for one in words alone."""
    return warning.kind if isinstance(warning, Notice) else ""


def with_kinds(warnings: Sequence[str], kinds: Sequence[str]) -> list[Notice]:
    """The warnings of a file, which has words and kinds apart; a file of eqcheck 0.2 has words alone."""
    found = [Notice(words) for words in warnings]
    for notice, kind in zip(found, kinds or map(kind_in_words, warnings), strict=True):
        notice.kind = kind
    return found


def kind_in_words(words: object) -> str:
    """The kind with which a warning of eqcheck 0.2 begins, which has none as a field.

    >>> kind_in_words("VACUOUS: no case was seen to exercise: batched_call")
    'VACUOUS'
    """
    return next((kind for kind in (VACUOUS, INCONCLUSIVE) if str(words).startswith(kind)), "")
