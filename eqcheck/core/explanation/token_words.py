"""Rows of tokens as text: shortened, one above the other, the first difference marked."""

from __future__ import annotations

from collections.abc import Sequence

_WHOLE = 24  # tokens of a row without a mark that are shown in full
_ENDS = 3  # of a longer one, at each end
_AROUND = (12, 8, 6, 4, 3, 2, 1)  # tokens on each side of the mark: as many as fit


def shortened(row: Sequence[int], mark: int | None = None, room: int = 10_000) -> str:
    """Write a row of tokens in one line, a long one without its middle; the token at ``mark`` in brackets.

    >>> shortened((10, 106, 104), 2), shortened((10,), 1), shortened(range(100, 200))
    ('10 106 [104]', '10 [end]', '100 101 102 ... 197 198 199 (100 tokens)')
    """
    shown = [f"[{token}]" if at == mark else str(token) for at, token in enumerate(row)]
    if mark is not None and mark >= len(row):
        shown.append("[end]")
    if len(shown) <= _WHOLE and len(" ".join(shown)) <= room:
        return " ".join(shown)
    if len(shown) <= 2 * _ENDS + 1:  # nothing can be left out
        return " ".join(shown)
    kept = shown_of(len(shown), mark, _ENDS, 6)
    return f"{_joined(shown, kept)} ({len(row)} tokens)"


def compared(
    expected: Sequence[int] | None,
    got: Sequence[int],
    at: int,
    room: int,
    note: str = "",
    names: tuple[str, str] = ("expected", "got"),
) -> list[tuple[str, str]]:
    """Set the expected row above the row that came, aligned, with the token at index ``at`` of both marked.

    Returns pairs of a label and a line of at most ``room`` characters, where that is possible. ``expected`` is None
    where nothing is expected, as of a sampled row. ``note`` follows the mark, ``names`` are the labels.

    >>> for label, line in compared((106, 104, 12), (106, 104, 73), 2, 60):
    ...     print(f"{label:10}{line}")
    expected  106 104 12
    got       106 104 73
                      ^^ new token 2
    """
    rows = [row for row in (expected, got) if row is not None]
    length = max(at + 1, *map(len, rows))
    cells = [[_cell(row, index, length) for index in range(length)] for row in rows]
    widths = [max(1, *(len(row[index]) for row in cells)) for index in range(length)]
    aligned = [[cell.rjust(width) for cell, width in zip(row, widths, strict=True)] for row in cells]
    counts = [f" ({len(row)} tokens)" for row in rows]
    kept = list(range(length))
    if length > _WHOLE or len(" ".join(aligned[0])) > room:
        for around in _AROUND:
            kept = shown_of(length, at, min(_ENDS, around), around)
            if len(_joined(aligned[0], kept)) + max(map(len, counts)) <= room:
                break
    whole = len(kept) == length
    lines = [_joined(row, kept).rstrip() + ("" if whole else count) for row, count in zip(aligned, counts, strict=True)]
    before = _joined(aligned[0], [index for index in kept if index <= at])
    marked = max(len(row[at].strip()) for row in cells) or 1
    mark = " " * (len(before) - marked) + "^" * marked
    labels = names[-len(rows) :]
    return [*zip(labels, lines, strict=True), ("", f"{mark} new token {at}{note}")]


def _cell(row: Sequence[int], index: int, length: int) -> str:
    """The token at an index; ``end`` where the row ends before the longer one does."""
    return str(row[index]) if index < len(row) else "end" if index == len(row) < length else ""


def shown_of(length: int, mark: int | None, ends: int, around: int) -> list[int]:
    """The indices that are shown of a long row: its ends, and what is around the mark; a gap hides two at least."""
    near = range(0) if mark is None else range(mark - around, mark + around + 1)
    kept = [at for at in range(length) if at < ends or at >= length - ends or at in near]
    return [at for at in range(length) if at in kept or (at - 1 in kept and at + 1 in kept)]


def _joined(shown: Sequence[str], kept: Sequence[int]) -> str:
    return " ".join(f"... {shown[at]}" if at and at - 1 not in kept else shown[at] for at in kept)
