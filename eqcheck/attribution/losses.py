"""The losses of the draft side: the rounds that the target would not have needed, and their causes.

A decoder whose output is right can still be slow: its draft may have lost its place, or it may throw away answers of
the target. Acceptance is scripted, so the rounds that an engine with a right draft needs are known (`Schedule`).

A *round* of a row is a target call that asks for a token of the row while the decoder has not committed all of them.
A call that only feeds again what a cache had lost is none, nor one that asks again for what the row was just asked.
Every engine emits the same tokens, and each round brings one that is the target's own: a round more is an accepted
draft token less. Let ``left(n)`` be the rounds that an engine needs behind the first ``n`` tokens of a row if its draft
always sees the row and it verifies K draft tokens a round, K being the most that this decoder did. A round that finds
``n`` tokens known and leaves ``m`` is one too many where ``left(m) == left(n)``; a needed one has
``left(m) == left(n) - 1``, and less only where the decoder was luckier than the script. Summed over a row, what lies
between cancels out:

    rounds == ideal + wrong-context + altered + lost + lost-bonus + asked-again + unasked + policy - spared

with ``ideal`` the sum of ``left(prompt)``, for every row and so for every sum of rows, once `settled`. A round too many
counts as one of

wrong-context  right draft tokens, as many as were fed, would have made it a needed one; a draft in a wrong context of
               the row proposed the token that was refused
altered        the same; but the draft was asked in its right context, and another token was fed
lost           the same; the draft was asked about the row, and nothing was seen of a cause
unasked        the same; the draft was not asked about the row: the decoder drafts by other means, too
lost-bonus     all draft tokens of the row's round before were accepted, and what the target had answered was drafted
               and asked again
asked-again    the same, where some were rejected
policy         anything else: the decoder verified fewer draft tokens than in other rounds, or none, or took back what
               other rows did not accept, or fed a prompt in a call of its own

``unasked`` and ``policy`` are no losses. ``allowed`` are the draft tokens that the script lets be accepted, ``tokens -
ideal``. So where nothing is policy or luck, the losses of a case are the rounds it took too many.

Rows that come to the same text, as those of equal prompts do, are left out where they do not fare alike: which of them
is which cannot be seen.

Some decoders have all rows go on with as many tokens as the one that accepts least. Then ``left`` is that of all rows
together, and a token of one is lost only where it costs them all. A run is counted both ways, and `settled` chooses.
"""

from __future__ import annotations

from collections import Counter

from eqcheck.attribution.draft_losses import DOUBTFUL, WAITING, draft_losses
from eqcheck.attribution.heads import head_losses
from eqcheck.contract.kinds import HEAD_LOSSES
from eqcheck.decoding.run import Run
from eqcheck.explanation.notice import Notice
from eqcheck.result.tally import Losing

_COINCIDENCES = 100  # a filler is the row's next token about once in a vocabulary of 128
# One row seen ahead refutes so many that are level: rows that wait are ahead only where a token is right by chance, and
# that happens far less often than once in so many rounds.
_ENOUGH_AHEAD = 10
# The kind of each warning, and what it says of each of its counts.
_WARNINGS = {
    "draft/desync": {
        "wrong-context": "the draft saw something other than its row",
        "altered": "the target was given another token than the draft had proposed in its right context",
    },
    "draft/lost-bonus": {
        "lost-bonus": "all draft tokens of a round were accepted, and what the target had answered was asked again"
    },
    "draft": {
        "asked-again": "draft tokens of a round were rejected, and what the target had answered was asked again",
        "lost": "no cause was seen",
    },
}


def all_losses(run: Run) -> Counter[str]:
    """The losses of the draft side in a run whose output is right: of a draft model, and of a head."""
    return draft_losses(run) + head_losses(run)


def all_warnings(losses: Counter[str]) -> list[str]:
    """One warning per way in which the draft side lost, from the `all_losses` of many runs."""
    return draft_warnings(losses) + head_warnings(losses)


def rows_wait(losses: Counter[str]) -> bool:
    """Return whether the rows of many runs are held to wait for the one that accepts least."""
    return losses["ahead"] * _ENOUGH_AHEAD < losses["level"]


def by_cause(losses: Counter[str], lost: Counter[Losing]) -> dict[str, int]:
    """The draft tokens that were lost by each cause that is told, the most first; ``losses`` as for `all_warnings`.

    Nothing is told where so little is lost that there is no warning. Left out is a single token, and a draft that
    always sees the same number of its row's newest tokens: that is how it was built.
    """
    waits, allowed = rows_wait(losses), settled(losses)["allowed"]
    tokens: Counter[str] = Counter()
    for one, count in lost.items():
        if one.waits == waits and (not one.doubtful or _likely(losses, waits)):
            tokens[one.fingerprint] += count
    designed = _by_design(lost)
    told = {name: count for name, count in tokens.most_common() if count > 1 and name not in designed}
    return told if sum(told.values()) * _COINCIDENCES >= allowed else {}


def _by_design(lost: Counter[Losing]) -> set[str]:
    """The causes for which each query at fault saw the same number of its row's newest tokens, and nothing else."""
    windows: dict[str, set[int]] = {}
    for one, count in lost.items():
        windows.setdefault(one.fingerprint, set()).update({one.window} if count else ())
    return {name for name, sizes in windows.items() if len(sizes) == 1 and 0 not in sizes}


def but_for_windows(losses: Counter[str], lost: Counter[Losing]) -> Counter[str]:
    """The losses of many runs without those of a draft that is built to see so many of its row's newest tokens."""
    left, designed = Counter(losses), _by_design(lost)
    for one, count in lost.items():
        if one.fingerprint in designed:
            begin = WAITING if one.waits else ""
            name = f"{begin}{DOUBTFUL if one.doubtful else 'wrong-context'}"
            meant = min(count, left[name])
            left.update({name: -meant, f"{begin}policy": meant})
    return +left


def _likely(losses: Counter[str], waits: bool) -> bool:
    """Return whether what may be a coincidence is the draft's: it is told more often than drafts by other means."""
    begin = WAITING if waits else ""
    return losses[f"{begin}{DOUBTFUL}"] >= losses[f"{begin}unasked"]


def settled(losses: Counter[str]) -> Counter[str]:
    """The counts of many runs, with what each run leaves open decided by what is seen in all of them.

    Rows that wait for the one that accepts least are level with it, and never ahead but for a coincidence; where no
    round tells, rows do not wait. A token that a draft in a wrong context predicted is a coincidence now and then where
    the decoder also drafts by other means; where such tokens are most, they are the draft's. A call behind the last
    token of a row asks for a bonus that was dropped, but for a decoder that is seen to make calls again.

        >>> settled(Counter({"rounds": 9, "ideal": 8, "wrong-context?": 1, "ahead": 2}))
        Counter({'rounds': 9, 'ideal': 8, 'wrong-context': 1})
    """
    waits = rows_wait(losses)
    counts = Counter({name.removeprefix(WAITING): n for name, n in losses.items() if name.startswith(WAITING) == waits})
    doubtful = counts.pop(DOUBTFUL, 0)
    counts["wrong-context" if _likely(losses, waits) else "unasked"] += doubtful
    dropped = counts.pop("lost-bonus?", 0)
    counts["policy" if losses["again"] > dropped else "lost-bonus"] += dropped
    return Counter({name: count for name, count in counts.items() if count and name not in ("ahead", "level", "again")})


def lost(losses: Counter[str]) -> tuple[int, int]:
    """Return how many draft tokens were lost in many runs, and of how many that the script lets be accepted.

    Losses that may be a coincidence, so that `all_warnings` does not tell them, do not count.

    >>> lost(Counter({"allowed": 9, "wrong-context": 2, "policy": 3}))
    (2, 9)
    >>> lost(Counter({"allowed": 999, "lost": 1})), lost(Counter({"head allowed": 9, "head rounds": 5}))
    ((0, 999), (0, 9))
    """
    counts, heads = settled(losses), sum(losses[f"head {name}"] for name in (*HEAD_LOSSES, "unnamed", "unclear"))
    drafts = [sum(counts[kind] for kind in kinds) for kinds in _WARNINGS.values()]
    told = sum(count for count in drafts if count > 1 and count * _COINCIDENCES >= counts["allowed"])
    return told + (heads if head_warnings(losses) else 0), counts["allowed"] + losses["head allowed"]


def draft_warnings(losses: Counter[str]) -> list[str]:
    """One warning per way in which the draft side lost, with how much and what was seen; none where it lost nothing.

    Nor where that is one token, or less than one in `_COINCIDENCES`: where something that only fills up a row happens
    to be the row's next token, it looks as if an answer had been thrown away.
    """
    counts = settled(losses)
    warnings: list[str] = []
    for name, kinds in _WARNINGS.items():
        lost = sum(counts[kind] for kind in kinds)
        if lost > 1 and lost * _COINCIDENCES >= counts["allowed"]:
            seen = max(((counts[kind], what) for kind, what in kinds.items()), key=lambda one: one[0])[1]
            said = f"{lost} of {counts['allowed']} draft tokens were lost ({100 * lost / counts['allowed']:.0f} %)"
            if lost > counts["allowed"]:  # each round that commits a token loses fewer than it could have
                said = f"{counts['rounds']} rounds where {counts['ideal']} do: some committed nothing"
            warnings.append(Notice(f"{said}: {seen}. This costs speed, not output", name))
    return warnings


def head_warnings(losses: Counter[str]) -> list[str]:
    """One warning per kind of wrong input, the one that cost most first; none where inputs were right."""
    counts = Counter({name.removeprefix("head "): n for name, n in losses.items() if name.startswith("head ")})
    # A state of another row and of an earlier call: whichever of the two is seen elsewhere.
    doubtful = "stale" if counts["hit stale"] > counts["hit wrong-row"] else "wrong-row"
    for prefix in ("", "hit "):
        counts[f"{prefix}{doubtful}"] += counts.pop(f"{prefix}wrong-row?", 0)
    warnings: list[str] = []
    for name in sorted(HEAD_LOSSES, key=lambda name: (-counts[name], -counts[f"hit {name}"])):
        hits, lost = counts[f"hit {name}"], counts[name]
        if hits > 1 and hits * 100 >= counts["rounds"]:
            said = f"{lost} of {counts['allowed']} draft tokens lost in {hits} of {counts['rounds']} rounds of a head: "
            said += f"{HEAD_LOSSES[name]}. This costs speed, not output"
            warnings.append(Notice(said, f"draft/{name}{'' if name == 'token-shift' else '-hidden'}"))
    lost = counts["unnamed"] + (0 if warnings else counts["unclear"])
    if lost > 1 and lost * 100 >= counts["allowed"]:
        said = f"{lost} of {counts['allowed']} draft tokens of a head were lost, and no cause was seen"
        warnings.append(Notice(f"{said}. This costs speed, not output", "draft"))
    return warnings
