"""Every kind of fault explained: an example, what usually causes it, and how it is mended; one Markdown file a kind.

    >>> said = about("mask/window")
    >>> print(said.causes[0].urls[0])
    https://github.com/huggingface/transformers/issues/48280

`eqcheck.contract.kinds` says what a kind means. Its file is named after its fingerprint, and is read when it is asked
for.
"""

from __future__ import annotations

from eqcheck.explanation.handbook.record import Cause, Explained

__all__ = ["Cause", "Explained", "about"]


def about(fingerprint: str) -> Explained:
    """The explanation of a kind; a malformed file is an `EqcheckError` that names the kind.

    >>> len(about("crash/hang").causes)
    3
    """
    from eqcheck.explanation.handbook.reading import read  # msgspec takes longer to import than a file takes to read

    return read(fingerprint)
