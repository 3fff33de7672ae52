"""Planted faults that the self-check leaves out as yet: they are not met, or not named as declared.

A name leaves this list when its fault is caught and named; the list is to become empty, and this module with it.
"""

from __future__ import annotations

AWAITED = frozenset(  # switches in every build, and single faults
    {
        "K20-table-before-new-block.paged",
        "K24-not-cropped-from-k-7",
        "K25-rows-grow-out-of-one-cache",
        "K27-prompt-cut",
        "P11-positions-end-at-16",
        "T25-answers-cut-at-seven",
        "T26-ten-tokens-kept",
        "X10-equal-prompts-once",
        "X11-four-rows-at-once",
        "X12-answers-by-first-token",
        "T21-answers-from-wrong-end",
        "M12-rows-not-kept-apart",
        "K14-first-token-skipped.static",
        "K18-keys-scaled.realigned",
        "T10-correction-twice.packed",
    }
)
