"""What a run exercised, read from its case and trace, so that a vacuous audit can say so."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from eqcheck.attribution.packed import packs
from eqcheck.attribution.parts import parts
from eqcheck.contract.sizes import BLOCKS
from eqcheck.decoding.harness import ranked
from eqcheck.decoding.run import Run
from eqcheck.explanation.notice import VACUOUS, Notice
from eqcheck.hashlm.trace import DRAFT, TARGET
from eqcheck.lanes.about_transparent import COUNTERS
from eqcheck.lanes.transparent.features import alike
from eqcheck.result.declining import unseen

ESSENTIAL = (
    "target_called",
    "ragged_prompts",
    "batched_call",
    "draft_called",
    "ragged_round",
    "all_rejected",
    "eos_inside_block",
)


def exercised(run: Run) -> set[str]:
    """The counters that one run raises."""
    case, truth = run.case, run.truth
    eos, pad = set(case.eos_token_ids), case.pad_token_id
    found = set()
    lengths = {len(prompt) for prompt in case.prompts}
    fed, emitted = (set().union(*rows) for rows in (case.prompts, truth.rows))
    last, relation = case.vocab_size - 1, alike(case.prompts)
    checks = {
        "several_rows": len(case.prompts) > 1,
        "ragged_prompts": len(lengths) > 1,
        "target_called": bool(run.trace.made(TARGET)),
        "draft_called": bool(run.trace.made(DRAFT) or run.trace.heads),
        "batched_call": any(len(call.tokens) > 1 for call in run.trace.made(TARGET)) or packs(run),
        "eos_first": any(row[0] in eos for row in truth.rows),
        "eos_at_limit": any(len(row) == case.max_new_tokens and row[-1] in eos for row in truth.rows),
        "eos_absent": any(row[-1] not in eos for row in truth.rows),
        "eos_in_prompt": any(eos & set(prompt) for prompt in case.prompts),
        "several_eos": len(eos) > 1,
        "pad_is_eos": pad in eos,
        "pad_in_prompt": pad in fed,
        "pad_emitted": pad in emitted,
        "pad_outside": pad == case.vocab_size,
        "zero_in_prompt": 0 in fed,
        "zero_emitted": 0 in emitted,
        "last_id_in_prompt": last in fed,
        "last_id_emitted": last in emitted,
        "equal_prompts": relation == "equal",
        "prompt_begins_another": relation == "beginning",
        "tree": bool(case.tree),
        "different_trees": len(set(case.tree)) > 1,
    }
    longest = max(n + len(row) for n, row in zip(map(len, case.prompts), truth.rows, strict=True))
    checks |= {f"row_past_{size}": longest > size for size in (*BLOCKS[1:], 128)}
    found = {name for name, holds in checks.items() if holds}
    return found | _rounds(run)


def _rounds(run: Run) -> set[str]:
    """What the rounds show; a query with a right context is an accepted token fed, whatever row it is in."""
    case, truth = run.case, run.truth
    found = set()
    drafted_eos = set()
    answered: dict[int, int] = {}  # by row, the call that answers for its last token
    counts: dict[int, set[int]] = defaultdict(set)
    ranks = ranked(case, truth) if case.tree else []
    off_spine = False
    for part in parts(run):
        start = len(case.prompts[part.request])
        if ranks and part.accepted:
            off_spine |= any(ranks[part.request][max(0, part.known - start) : part.last + 1 - start])
        if part.proposed:
            counts[part.call.number].add(part.accepted)
            found |= {"all_rejected"} if part.accepted == 0 else set()
            found |= {"all_accepted"} if part.accepted == case.num_draft_tokens else set()
        row = part.request
        end = len(case.prompts[row]) + len(truth.rows[row]) - 1
        if part.last >= end - 1:
            answered.setdefault(row, part.call.number)
        if part.last - part.accepted < end <= part.last and truth.rows[row][-1] in case.eos_token_ids:
            drafted_eos.add(row)
    drafted = [call.number for call in run.trace.made(DRAFT)] + [call.number for call in run.trace.heads]
    for row, call in answered.items():
        later = max(answered.values())
        if call < later and (not drafted or any(call < number < later for number in drafted)):
            found.add("eos_before_others" if truth.rows[row][-1] in case.eos_token_ids else "limit_before_others")
    found |= {"off_spine"} if off_spine else set()
    found |= {"ragged_round"} if any(len(accepted) > 1 for accepted in counts.values()) else set()
    found |= {"eos_inside_block"} if drafted_eos else set()
    ended = {row for row, tokens in enumerate(truth.rows) if tokens[-1] in case.eos_token_ids}
    return found | ({"eos_not_drafted"} if ended - drafted_eos else set())


def vacuous(coverage: dict[str, int], requires: Sequence[str] = ()) -> list[str]:
    """A warning that names the essential counters that stayed at zero; none when there are none.

    The decoder ``requires`` something of all cases: counters that this keeps at zero are not essential.
    """
    missing = [f"{name} ({COUNTERS[name]})" for name in unseen(ESSENTIAL, coverage, requires)]
    found = [Notice(f"no case was seen to exercise: {'; '.join(missing)}", VACUOUS)] if missing else []
    if coverage.get("tree") and not coverage.get("off_spine"):
        said = (
            f"no case was seen to exercise: off_spine ({COUNTERS['off_spine']}); where only first choices are accepted"
        )
        found.append(Notice(f"{said}, a tree is a chain, and nothing has to be moved in a cache", VACUOUS))
    return list(found)
