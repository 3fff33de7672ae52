"""What the draft side lost, of a draft model and of a head, and the warnings that say so."""

from __future__ import annotations

from collections import Counter

from eqcheck.attribution.heads import head_losses
from eqcheck.attribution.rounds import draft_losses, draft_warnings
from eqcheck.contract.kinds import HEAD_LOSSES
from eqcheck.decoding.run import Run
from eqcheck.explanation.notice import Notice


def all_losses(run: Run) -> Counter[str]:
    """What the draft side lost in a run whose output is right: of a draft model, and of a head."""
    return draft_losses(run) + head_losses(run)


def all_warnings(losses: Counter[str]) -> list[str]:
    """One warning per way in which the draft side lost, from the `all_losses` of many runs."""
    return draft_warnings(losses) + head_warnings(losses)


def head_warnings(losses: Counter[str]) -> list[str]:
    """One warning per kind of wrong input, the one that cost most first; none where inputs were right."""
    counts = Counter({name.removeprefix("head "): n for name, n in losses.items() if name.startswith("head ")})
    # A state of another row and of an earlier call: whichever of the two is seen elsewhere.
    doubtful = "stale" if counts["hit stale"] > counts["hit wrong-row"] else "wrong-row"
    for prefix in ("", "hit "):
        counts[f"{prefix}{doubtful}"] += counts.pop(f"{prefix}wrong-row?", 0)
    found: list[str] = []
    for name in sorted(HEAD_LOSSES, key=lambda name: (-counts[name], -counts[f"hit {name}"])):
        hits, lost = counts[f"hit {name}"], counts[name]
        if hits > 1 and hits * 100 >= counts["rounds"]:
            share = f"{100 * lost / max(1, counts['allowed']):.0f} %, {lost / counts['rounds']:.2f} per round"
            said = f"{lost} of {counts['allowed']} draft tokens that could have been accepted were lost ({share}), in"
            said += f" {hits} of {counts['rounds']} rounds of a head: {HEAD_LOSSES[name]}. This costs speed, not output"
            found.append(Notice(said, f"draft/{name}{'' if name == 'token-shift' else '-hidden'}"))
    lost = counts["unnamed"] + (0 if found else counts["unclear"])
    if lost > 1 and lost * 100 >= counts["allowed"]:
        said = f"{lost} of {counts['allowed']} draft tokens of a head that could have been accepted were lost"
        found.append(Notice(f"{said}: no cause was seen. This costs speed, not output", "draft"))
    return found
