"""Describe in words what each lane exercises and what it cannot show; imports no model, so reports can use it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from eqcheck.contract.kinds import HEAD_LOSSES
from eqcheck.contract.profiles import SIZES


@dataclass(frozen=True)
class About:
    """Hold the words of a lane for each name that a report counts by.

    ``sampled`` are counters of cases with sampled rows, ``reached`` the largest sizes of cases, ``axes`` the axes of
    cases, ``losses`` rounds and tokens lost on the draft side. ``clean_shows`` says what a clean audit does and does
    not show.
    """

    counters: Mapping[str, str]
    sampled: Mapping[str, str] = field(default_factory=dict)
    reached: Mapping[str, str] = field(default_factory=dict)
    axes: Mapping[str, str] = field(default_factory=dict)
    losses: Mapping[str, str] = field(default_factory=dict)
    clean_shows: str = ""


_HEADS = HEAD_LOSSES | {"wrong-row?": "its input is another row's hidden state, of an earlier call"}

_OF_ROWS = {
    "sampled_rows": "sampled rows",
    "greedy_among_sampled": "a greedy row among sampled ones",
    "unequal_options": "sampled rows with different options",
    "twins": "two rows with the same prompt and options, sampled independently",
    "seeded_rows": "rows with seeds",
    "cut_laws": "rows with top-k, top-p or min-p",
}
_OF_STOPS = {
    "stops": "rows with stop sequences",
    "stopped": "a row ended by a stop sequence",
    "stop_in_prompt": "a stop sequence occurs in the row's prompt",
    "finish_reason": "rows returned with a finish reason",
    "usage": "rows returned with token counts",
    "logprobs": "rows returned with log-probabilities",
    "prompt_logprobs": "rows returned with log-probabilities of their prompts",
    "to_cancel": "rows to be cancelled",
    "cancelled": "a row was cancelled before its end",
}
SAMPLING = About(
    counters={
        **_OF_ROWS,
        "pinned_rows": "sampled rows whose options leave a single token",
        "ended_by_eos": "a row ended by an EOS",
        "regime_std": "draft and target differ as usual",
        "regime_near": "the draft is close to the target, K = 1",
        "regime_near4": "the draft is close to the target, K of 3 or more",
        "regime_far": "the draft proposes tokens that the target rarely samples",
        "regime_peaked": "sharp distributions",
        "regime_few": "few tokens have any probability",
        "regime_equal": "the draft has the target's distribution",
        "regime_dead": "the draft proposes tokens that the target never samples",
    },
)
TRANSPARENT = About(
    counters={
        "several_rows": "more than one row",
        "ragged_prompts": "prompts of different lengths, so one is padded",
        "batched_call": "a target call with more than one row",
        "target_called": "the target was called",
        "draft_called": "the draft or its head was called",
        "ragged_round": "rows of one target call accepted different counts",
        "all_rejected": "a row's drafts were all rejected",
        "all_accepted": "K drafts of a row were accepted",
        "eos_inside_block": "an EOS among accepted drafts",
        "eos_not_drafted": "an EOS as correction or bonus",
        "eos_first": "an EOS as the first new token",
        "eos_at_limit": "an EOS as the last token the limit allows",
        "eos_absent": "a row that ends at its limit",
        "eos_before_others": "a row ends at its EOS in an earlier round than another row",
        "limit_before_others": "a row reaches its limit in an earlier round than another row ends",
        "eos_in_prompt": "an EOS occurs in a prompt",
        "several_eos": "more than one EOS id",
        "pad_is_eos": "the pad id is an EOS",
        "pad_in_prompt": "the pad id occurs in a prompt",
        "pad_emitted": "the pad id is a token of an output",
        "pad_outside": "the target never generates the pad id",
        "zero_in_prompt": "id 0 occurs in a prompt",
        "zero_emitted": "id 0 is a token of an output",
        "last_id_in_prompt": "the last id of the vocabulary occurs in a prompt",
        "last_id_emitted": "the last id of the vocabulary is a token of an output",
        "equal_prompts": "two prompts are equal",
        "prompt_begins_another": "a prompt is a prefix of another",
        **_OF_STOPS,
        "tree": "draft tokens of a round form a tree",
        "different_trees": "rows with different trees",
        "off_spine": "an accepted node that is not the draft's first choice",
        **{f"row_past_{size}": f"a row grows past {size} tokens, or its prompt does" for size in SIZES[2:]},
        **{f"at_end_of_{size}": f"a prompt or a row ends within a token of blocks of {size}" for size in SIZES[2:]},
        "between_buckets": "a number of rows that is no power of two",
        "shares_first_block": "two prompts share their first block, and not the second",
        "shares_later_block": "two prompts share their second block, and not the first",
        "repeats_a_token": "a row emits the token before it again",
        "weights_changed": "the weights of target or draft changed after an earlier request",
    },
    sampled=SAMPLING.counters,
    reached={
        "rows": "rows of a batch",
        "prompt": "tokens of a prompt",
        "new_tokens": "new tokens (limit)",
        "draft_tokens": "draft tokens per round (K)",
    },
    axes={
        "family": "family",
        "padding_side": "padding side",
        "rows": "rows",
        "cache_state": "cache state",
        "num_draft_tokens": "K",
    },
    losses={  # the counts of `eqcheck.transparent.attribution.lost_drafts`
        "rounds": "rounds of rows with correct output",
        "ideal": "rounds that a draft in sync with its row would need",
        "allowed": "draft tokens that should be accepted",
        "wrong-context": "extra rounds: the draft saw another context than its row",
        "altered": "extra rounds: another token was fed than the draft had proposed",
        "lost": "extra rounds: a correct draft token was not proposed, cause unknown",
        "unasked": "extra rounds: the decoder did not call the draft model (not a loss)",
        "lost-bonus": "extra rounds: after K accepted drafts the bonus token was computed again",
        "asked-again": "extra rounds: after a rejection the correction was computed again",
        "policy": "extra rounds: fewer drafts verified, or rows waited for each other (not a loss)",
        "spared": "rounds saved by chance",
        "head rounds": "rounds of rows with drafts of a head and correct output",
        "head allowed": "draft tokens of a head that should be accepted",
        **{f"head {name}": f"draft tokens of a head lost: {why}" for name, why in _HEADS.items()},
        **{f"head hit {name}": f"rounds of a head: {why}" for name, why in _HEADS.items()},
        "head unnamed": "draft tokens of a head lost, cause unknown",
        "head unclear": "draft tokens of a head lost with a wrong input of no known kind",
    },
    clean_shows=(
        "No case drawn from this seed broke the decoder on the families named. Not shown: sampling, if the decoder "
        "does not declare it; near-ties in dtypes and kernels that were not run (HashLM computes exactly); speed and "
        "acceptance; other families; longer rows or larger batches; code paths that neither HashLM nor a tiny real "
        "model has."
    ),
)
CHECKPOINT = About(
    counters={
        "several_rows": "more than one row",
        "many_rows": "32 rows or more",
        "ragged_prompts": "prompts of different lengths",
        "prompt_of_one": "a prompt of one token",
        "prompt_of_round": "a prompt of K + 1 tokens",
        "prompt_of_blocks": "a prompt that ends with a block of 16 tokens",
        "long_prompt": "a prompt of more than 1,000 tokens",
        "end_of_model": "a row ends within a round of the model's last position",
        "hundred_rows": "more than 100 rows",
        "deep_round": "more than 8 draft tokens per round (K)",
        "drafted": "the engine reports draft tokens",
        "accepted": "the engine reports accepted draft tokens",
        "rejected": "the engine reports rejected draft tokens",
        "ngram": "draft tokens are looked up in the row (prompt lookup)",
        "ngram_silent": "the engine reports fewer draft tokens than steps",
        "dictated": "the case names the draft tokens",
        "dictated_played": "every round used the named draft tokens",
        "ragged_round": "rows were seen to go on by different counts in one dictated round",
        "all_rejected": "a dictated round was seen in which all drafts were rejected",
        "all_accepted": "a dictated round was seen in which all K drafts were accepted",
        "silent_round": "a round without drafts was seen among dictated ones",
        "silent_for_all": "all rows had no drafts in the same round",
        "eos_inside_block": "an EOS among accepted drafts, with more drafts behind it",
        "eos_rejected": "an EOS as the first rejected draft",
        "limit_inside_block": "a row's limit among accepted drafts",
        "contexts": "queries were read inside the engine",
        "wrong_context": "a query had a wrong position, mask or cache entry",
        "harmless_context": "a query had a wrong position, mask or cache entry, but the output is correct",
        "row_limits": "rows with their own limits",
        "ended_by_eos": "a row ended by an EOS before its limit",
        "row_eos": "rows with their own EOS ids",
        **_OF_STOPS,
        "switched": "an engine option that the target cannot judge",
        "switch_changed": "that option changed a token or another returned value",
        "answers": "a request with several outputs",
        "stop_of_several": "a stop sequence of several tokens ended a row",
        "stop_across_blocks": "a stop sequence crossed the end of a 16-token block",
        "stop_inside_block": "a stop sequence ended among accepted drafts, with more drafts after it",
        "stop_left_open": "a row ended inside another stop sequence that had begun",
        "min_new_tokens": "min_new_tokens held back an EOS",
        "penalty": "a repetition or presence penalty changed a token",
        "frequency_penalty": "a frequency penalty changed a token",
        "logit_bias": "a bias changed a token",
        "bad_words": "a bad word was prevented",
        "allowed_ids": "a token outside allowed_ids was prevented",
        "no_repeat_ngram_size": "a repeated n-gram was prevented",
        "grammar": "a token that the grammar forbids was prevented",
        "grammar_beside_none": "a row with a grammar next to one without",
        "grammar_ended": "a row ended because its grammar allows nothing more",
        "token_budget": "a token budget per step",
        "budget_below_round": "the budget is smaller than one round of the batch",
        "prompt_beyond_budget": "a prompt longer than the budget",
        "least_budget": "a budget of exactly one row's round",
        "prefix_caching": "prefix caching with shared prefixes",
        "prefix_hits": "the engine reports prefix cache hits",
        "goes_on": "a prompt continues an earlier row and its output",
        "beginning_returns": "a cached prefix is used again after requests with others",
        "beginning_evicted": "a cached prefix is used again after others took all KV blocks",
        "kv_blocks": "fewer KV blocks than the batch needs",
        "least_blocks": "6 KV blocks or fewer",
        "preemptions": "the engine reports preempted rows",
        "late_rows": "requests arrived while others ran",
    },
    # Cases with sampled rows have no penalties, no minima and no settings of the engine.
    sampled={
        **_OF_ROWS,
        "ended_by_eos": "a row ended by an EOS before its limit",
        "drafted": "the engine reports draft tokens",
        "accepted": "the engine reports accepted draft tokens",
        "rejected": "the engine reports rejected draft tokens",
        "regime_std": "several draft tokens, usual temperatures",
        "regime_one": "one draft token per round",
        "regime_peaked": "low temperatures (sharp distributions)",
        "regime_flat": "high temperatures (draft close to target)",
        "regime_ngram": "draft tokens are looked up in the row (prompt lookup)",
    },
    clean_shows=(
        "No case drawn from this seed made the engine return a token that the target alone does not, on the "
        "checkpoints and axes counted above; for sampled rows, see what their evidence excludes. Not shown: sampling, "
        "if the engine does not declare it, or together with penalties, minima or engine settings; other architectures "
        "and dtypes; several devices; speed; lost draft tokens, if the engine does not count them."
    ),
)
_OF_LANES = {"transparent": TRANSPARENT, "sampling": SAMPLING}


def about(lane: str) -> About:
    """Return the words of a lane.

    >>> about("engine-sampling") is CHECKPOINT
    True
    """
    return _OF_LANES.get(lane, CHECKPOINT)


def in_axis(axis: str, *values: str) -> str:
    """Name values of an axis of cases.

    >>> in_axis("rows", "2", "3+"), in_axis("num_draft_tokens", "1", "3", "4", "5+"), in_axis("padding_side", "right")
    ('2 or more rows', 'K of 1 or 3 or more', 'right padding')
    """
    known = list(values)
    while len(known) > 1 and known[-1].endswith("+") and known[-2] == str(int(known[-1][:-1]) - 1):
        known[-2:] = [f"{known[-2]}+"]
    text = " or ".join(known).replace("+", " or more")
    if axis == "rows":
        return "1 row" if values == ("1",) else f"{text} rows"
    name = {"family": "family", "cache_state": "cache state", "num_draft_tokens": "K of"}.get(axis)
    return f"{name} {text}" if name else f"{text} padding"
