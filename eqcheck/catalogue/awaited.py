"""Planted faults that the self-check leaves out as yet: the models do not show them, or they are not named as declared.

A name leaves this list when its fault is caught and named; the list is to become empty, and this module with it.
"""

from __future__ import annotations

AWAITED = frozenset(  # switches in every build, and single faults
    {
        "K15-keys-and-values-exchanged",
        "K15-values-as-keys",
        "K15-one-buffer",
        "K16-heads-rolled",
        "K16-head-0-everywhere",
        "K16-keys-heads-reversed",
        "K17-layers-exchanged",
        "P9-pads-before-table",
        "P9-pads-behind-table",
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
        "K5-cache-not-moved.static",
        "K18-keys-scaled.realigned",
        "K18-values-negated.packed",
        "K20-table-before-new-block.paged",
        "T10-correction-twice.packed",
    }
)
