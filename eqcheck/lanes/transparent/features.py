"""What a case is going to exercise, read from the case and its truth alone, before any decoder has seen it.

The search prefers cases with features that are still rare. Nothing here depends on a decoder, so that the same seed
gives the same cases to all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise

from eqcheck.case.record import Case
from eqcheck.contract.sizes import BLOCKS
from eqcheck.contract.trees import chain, walk
from eqcheck.decoding.harness import ranked
from eqcheck.decoding.run import Truth

_SIZES = (*BLOCKS, 128)  # that a row may grow past
Feature = str | tuple[str, str]


@dataclass(frozen=True)
class Step:
    """A row's part of a round: ``accepted`` draft tokens, ``emitted`` new ones, ``ends`` says why the row is done."""

    accepted: int
    emitted: int
    ends: str = ""  # "eos inside the block", "eos not drafted", "limit"


def script(case: Case, truth: Truth) -> list[list[Step]]:
    """The rounds of an engine that accepts what the draft gets right: per round, one step of each row not yet done."""
    rows = steps_of(case, truth)
    return [[steps[number] for steps in rows if number < len(steps)] for number in range(max(map(len, rows)))]


def steps_of(case: Case, truth: Truth) -> list[list[Step]]:
    """The same by row: its steps, round by round."""
    rows: list[list[Step]] = []
    for number, (row, ranks) in enumerate(zip(truth.rows, ranked(case, truth), strict=True)):
        at, steps = 0, list[Step]()
        while at < len(row):
            nodes = case.nodes(number, len(steps)) or chain(case.num_draft_tokens)
            accepted = len(walk(nodes, ranks[at:]))
            emitted = min(accepted + 1, len(row) - at)
            at += emitted
            ends = ""
            if at == len(row):
                drafted = "eos inside the block" if emitted <= accepted else "eos not drafted"
                ends = drafted if row[-1] in case.eos_token_ids else "limit"
            steps.append(Step(accepted, emitted, ends))
        rows.append(steps)
    return rows


def raggedness(rounds: list[list[Step]]) -> int:
    """How far apart the rows of a round accept, summed over rounds."""
    return sum(max(step.accepted for step in steps) - min(step.accepted for step in steps) for steps in rounds)


def features(case: Case, truth: Truth, rounds: list[list[Step]]) -> list[Feature]:
    """What a case exercises: one name for each trait with its value, and every pair of those names."""
    prompts, eos, pad = case.prompts, set(case.eos_token_ids), case.pad_token_id
    lengths = [len(prompt) for prompt in prompts]
    spread = max((max(s.accepted for s in steps) - min(s.accepted for s in steps) for steps in rounds), default=0)
    ragged = sum(len({step.accepted for step in steps}) > 1 for steps in rounds)
    ending = [[step.ends for step in steps if step.ends] for steps in rounds]
    left = [len(steps) - len(ends) for steps, ends in zip(rounds, ending, strict=True)]
    traits = {
        "family": case.family,
        "side": case.padding_side,
        "state": case.cache_state,
        "rows": _step(len(prompts), 1, 2, 3, 4, 8),
        "k": _step(case.num_draft_tokens, 1, 2, 3, 4, 6, 7),
        "rounds": min(len(rounds), 4),
        "lengths": "equal" if len(set(lengths)) == 1 else "near" if max(lengths) - min(lengths) < 3 else "far",
        "spread": min(spread, 3),
        "ragged rounds": min(ragged, 3),
        "extremes": ("none" if any(s.accepted == 0 for steps in rounds for s in steps) else "")
        + ("all" if any(s.accepted == case.num_draft_tokens for steps in rounds for s in steps) else ""),
        "eos ids": len(eos),
        "eos in prompt": any(eos & set(prompt) for prompt in prompts),
        "eos first": any(row[0] in eos for row in truth.rows),
        "eos at limit": any(len(row) == case.max_new_tokens and row[-1] in eos for row in truth.rows),
        "ends early": next((e[0] for e, n in zip(ending, left, strict=True) if e and n), "together"),
        "eos inside": any("eos inside the block" in ends for ends in ending),
        "limit inside": any(s.ends == "limit" and s.emitted <= s.accepted for steps in rounds for s in steps),
        "pad": "eos" if pad in eos else "".join(
            name for name, rows in (("p", prompts), ("e", truth.rows)) if any(pad in row for row in rows)
        ),
        "agreement": case.agreement is not None,
        "new": case.max_new_tokens > 10,
        "crossed": tuple(
            size for size in _SIZES if any(n <= size < n + len(row) for n, row in zip(lengths, truth.rows, strict=True))
        ),
        "blocks filled": any(n % 8 == 0 for n in lengths),
        "alike": alike(prompts),
        "special ids": tuple(
            any(token in row for row in rows)
            for token in (0, case.vocab_size - 1)
            for rows in (prompts, truth.rows)
        ),
    }  # fmt: skip
    singles = [f"{name}={value}" for name, value in traits.items()]
    return [*singles, *combinations(singles, 2)]


def alike(prompts: Sequence[tuple[int, ...]]) -> str:
    """``equal`` where two prompts are, ``beginning`` where one is the beginning of another; else nothing."""
    ordered = sorted(prompts)  # what begins like a prompt stands right behind it
    pairs = list(pairwise(ordered))
    if any(one == other for one, other in pairs):
        return "equal"
    return "beginning" if any(one == other[: len(one)] for one, other in pairs) else ""


def _step(number: int, *ends: int) -> str:
    """Which of the ranges up to each of ``ends`` a number is in."""
    return next((f"<={end}" for end in ends if number <= end), f">{ends[-1]}")
