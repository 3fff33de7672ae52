"""Wrong uses of options by mechanisms that no rule was written for: ``python -m option_unseen [FAULT]``.

A line for each says whether a row is wrong, what explains it, and whether that is true of the fault: no other sentence
is, and none at all is honest. Only uses of options are searched, so a wrong component cannot show here.
"""

from __future__ import annotations

import sys
from dataclasses import replace

import torch
from option_causes import BUILDS, cause
from option_faults import FAULTS, Fault, Place

from eqcheck.contract.decoders import RowOptions


def _shifted(at: Place) -> RowOptions:
    return replace(at.row.options, allowed_ids=tuple((token + 1) % 256 for token in at.row.options.allowed_ids))


def _of_any(at: Place) -> RowOptions:
    ids = {token for row in at.rows for token in row.options.allowed_ids}
    return replace(at.row.options, allowed_ids=tuple(sorted(ids)))


def _as_frequency(at: Place) -> RowOptions:
    return replace(at.row.options, presence_penalty=0.0, frequency_penalty=at.row.options.presence_penalty)


# The option, the sentences that are true, and the fault.
UNSEEN: dict[str, tuple[str, tuple[str, ...], Fault]] = {
    "sign-after-rejection": ("logit-bias", (), lambda at: (at.scaled(-1 if at.row.rejected else 1), at.before)),
    "counted-twice": ("frequency-penalty", (), lambda at: (at.row.options, [*at.before, *at.before])),
    "ids-off-by-one": ("allowed-ids", (), lambda at: (_shifted(at), at.before)),
    "begun-in-prompt": (
        "bad-words",
        ("option-over-prompt",),
        lambda at: (at.row.options, [*at.row.prompt, *at.before]),
    ),
    "twice-as-strong": ("logit-bias", (), lambda at: (at.scaled(2), at.before)),
    "last-four-count": ("frequency-penalty", (), lambda at: (at.row.options, at.before[-4:])),
    "lost-after-eight": (
        "logit-bias",
        ("option-missing-at-times",),
        lambda at: (at.row.options if len(at.before) < 8 else at.off(), at.before),
    ),
    "late-by-a-round": (
        "allowed-ids",
        ("option-missing-at-times",),
        lambda at: (at.row.options if at.row.output else at.off(), at.before),
    ),
    "presence-as-frequency": ("presence-penalty", (), lambda at: (_as_frequency(at), at.before)),
    "next-ids-of-any": ("allowed-ids", ("option-of-others",), lambda at: (_of_any(at), at.before)),
    "next-in-odd-rounds": (
        "logit-bias",
        ("option-of-others",),
        lambda at: (at.neighbour(len(at.row.last) % 2), at.before),
    ),
    "missing-in-odd-columns": (
        "allowed-ids",
        ("option-missing-at-times",),
        lambda at: (at.off() if at.offset % 2 else at.row.options, at.before),
    ),
}


def main(only: str = "") -> int:
    """Print the lines and the score; 1 if any explanation is false."""
    torch.set_num_threads(1)
    score = dict.fromkeys(("right", "not named", "false"), 0)
    for number, (name, (option, edits, fault)) in enumerate(UNSEEN.items()):
        if only in name:
            FAULTS[name] = fault
            found = cause(BUILDS[number % len(BUILDS)], "full", name, option)
            edit = found.search.edit.partition(":")[0] if found else ""
            said = "not named" if not edit else "right" if edit in edits else "false"
            score[said] += 1
            print(name, option, edit, said, flush=True)
    print(score)
    return int(score["false"] > 0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
