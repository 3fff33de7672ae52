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
        "P10-positions-not-restarted",
        "T20-one-more-after-rejection",
        "T21-answers-from-wrong-end",
        "T22-no-verification",
        "T22-verified-by-draft",
        "T23-models-exchanged",
        "M12-rows-not-kept-apart",
        "M12-first-token-hidden.packed",
        "K2-one-too-many-dropped.packed",
        "K3-never-cropped.packed",
        "K14-first-token-skipped.static",
        "K15-values-as-keys.packed",
        "K16-head-0-everywhere.packed",
        "K18-keys-scaled.realigned",
        "K18-values-negated.packed",
        "T10-correction-twice.packed",
    }
)
