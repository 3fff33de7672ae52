"""The things that a lane exercises, and what it cannot show, in words; no model is imported, so reports can say it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from eqcheck.contract.kinds import HEAD_LOSSES
from eqcheck.contract.sizes import BLOCKS


@dataclass(frozen=True)
class About:
    """The words of a lane, by the names under which a report counts.

    ``sampled`` are counters of cases with sampled rows, ``reached`` the largest of what cases held, ``axes`` those of
    the cases, ``losses`` the rounds and tokens that the draft side lost. ``clean_shows`` is what a clean audit does not
    show.
    """

    counters: Mapping[str, str]
    sampled: Mapping[str, str] = field(default_factory=dict)
    reached: Mapping[str, str] = field(default_factory=dict)
    axes: Mapping[str, str] = field(default_factory=dict)
    losses: Mapping[str, str] = field(default_factory=dict)
    clean_shows: str = ""


_HEADS = HEAD_LOSSES | {"wrong-row?": "it was given states of another row, of an earlier call"}

_OF_ROWS = {
    "sampled_rows": "rows are sampled",
    "greedy_among_sampled": "a greedy row among sampled ones",
    "unequal_options": "sampled rows with unequal options",
    "twins": "two rows that ask for the same and are drawn apart",
    "seeded_rows": "rows with seeds",
    "cut_laws": "laws that are cut by top-k, top-p or min-p",
}
_OF_STOPS = {
    "stops": "rows with stop sequences",
    "stopped": "a row ended by a stop sequence",
    "stop_in_prompt": "a stop sequence stands in the row's prompt",
    "finish_reason": "rows came with a finish reason",
    "usage": "rows came with counts of tokens",
    "logprobs": "rows came with log-probabilities",
    "prompt_logprobs": "rows came with those of their prompts",
    "to_cancel": "rows to be cancelled",
    "cancelled": "a row was cancelled before its end",
}
SAMPLING = About(
    counters={
        **_OF_ROWS,
        "pinned_rows": "sampled rows to which their options leave one token",
        "ended_by_eos": "a row ended by an EOS",
        "regime_std": "the draft's laws differ as usual",
        "regime_near": "the draft is close to the target, K = 1",
        "regime_near4": "the draft is close to the target, K from 3",
        "regime_far": "the draft proposes what the target seldom emits",
        "regime_peaked": "the laws are sharp",
        "regime_few": "few tokens have any probability",
        "regime_equal": "the draft's law is the target's",
        "regime_dead": "the draft proposes tokens that the target never emits",
    },
)
TRANSPARENT = About(
    counters={
        "several_rows": "more than one row",
        "ragged_prompts": "prompts of different lengths, so one is padded",
        "batched_call": "one target call over more than one row",
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
        "eos_before_others": "a row emits its EOS in an earlier round than another row ends",
        "limit_before_others": "a row reaches its limit in an earlier round than another row ends",
        "eos_in_prompt": "an EOS occurs in a prompt",
        "several_eos": "more than one EOS id",
        "pad_is_eos": "the pad id is an EOS",
        "pad_in_prompt": "the pad id occurs in a prompt",
        "pad_emitted": "the pad id is a token to emit",
        "pad_outside": "the pad id is one that the target never emits",
        "zero_in_prompt": "the id 0 occurs in a prompt",
        "zero_emitted": "the id 0 is a token to emit",
        "last_id_in_prompt": "the last id of the vocabulary occurs in a prompt",
        "last_id_emitted": "the last id of the vocabulary is a token to emit",
        "equal_prompts": "two prompts are equal",
        "prompt_begins_another": "a prompt is the beginning of another",
        **_OF_STOPS,
        "tree": "draft tokens of a round as a tree",
        "different_trees": "rows whose trees differ",
        "off_spine": "an accepted node that is not the draft's first choice",
        **{f"row_past_{size}": f"a row grows past {size} tokens, or its prompt does" for size in (*BLOCKS[1:], 128)},
    },
    sampled=SAMPLING.counters,
    reached={
        "rows": "rows of a batch",
        "prompt": "tokens of a prompt",
        "new_tokens": "new tokens asked for",
        "draft_tokens": "draft tokens a round (K)",
    },
    axes={
        "family": "family",
        "padding_side": "padding side",
        "rows": "rows",
        "cache_state": "cache state",
        "num_draft_tokens": "K",
    },
    losses={  # the counts of `eqcheck.attribution.losses` and `eqcheck.attribution.heads`
        "rounds": "rounds of rows, where the output was right",
        "ideal": "rounds that a draft needs which always sees its row",
        "allowed": "draft tokens that the script lets be accepted",
        "wrong-context": "rounds too many: the draft saw something other than its row",
        "altered": "rounds too many: another token was fed than the draft had proposed",
        "lost": "rounds too many: a right draft token was not proposed, and no cause was seen",
        "unasked": "rounds more: the decoder did not ask the draft model",
        "lost-bonus": "rounds too many: behind K accepted drafts the target's answer was asked again",
        "asked-again": "rounds too many: behind a rejection the target's answer was asked again",
        "policy": "rounds more: the decoder verified fewer drafts, or rows waited for each other",
        "spared": "rounds fewer than a right draft needs, by luck",
        "head rounds": "rounds of rows with draft tokens of a head, where the output was right",
        "head allowed": "draft tokens of a head that could have been accepted in them",
        **{f"head {name}": f"draft tokens of a head lost: {why}" for name, why in _HEADS.items()},
        **{f"head hit {name}": f"rounds of a head: {why}" for name, why in _HEADS.items()},
        "head unnamed": "draft tokens of a head lost, and no cause was seen",
        "head unclear": "draft tokens of a head lost with a wrong input, and it cannot be told which",
    },
    clean_shows=(
        "A clean audit shows that no case drawn from this seed broke the decoder on the families named. It does not "
        "show: sampling by a decoder that does not declare it, near-ties in dtypes and kernels other than those that "
        "were run (arithmetic on the transparent target is exact), speed or acceptance, other families, longer rows "
        "or larger batches than were drawn, or code paths of real models that the transparent target, or a tiny real "
        "one, does not have."
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
        "hundred_rows": "more than 100 rows",
        "deep_round": "more than 8 draft tokens a round (K)",
        "drafted": "the engine says that draft tokens were proposed",
        "accepted": "the engine says that some were accepted",
        "rejected": "the engine says that some were rejected",
        "ngram": "draft tokens are looked up in the row",
        "ngram_silent": "the engine says that fewer draft tokens were proposed than there were steps to propose in",
        "dictated": "draft tokens are dictated",
        "dictated_played": "every dictated round was seen to be played as asked",
        "ragged_round": "rows were seen to go on by different counts in one dictated round",
        "all_rejected": "a dictated round was seen in which all drafts were rejected",
        "all_accepted": "a dictated round was seen in which all K drafts were accepted",
        "eos_inside_block": "an EOS among accepted drafts, with more drafts behind it",
        "eos_rejected": "an EOS as the first rejected draft",
        "limit_inside_block": "a row's limit among accepted drafts",
        "contexts": "what queries saw was read inside the engine",
        "wrong_context": "a query was read to see something wrong",
        "harmless_context": "a query was read to see something wrong, and every row is right",
        "row_limits": "rows with limits of their own",
        "ended_by_eos": "a row ended by an EOS before its limit",
        "row_eos": "rows with EOS ids of their own",
        **_OF_STOPS,
        "switched": "an option of the engine that no target can be asked about",
        "switch_changed": "it changed a token, or something was returned beside tokens",
        "answers": "a request had several answers",
        "stop_of_several": "a stop sequence of several tokens ended a row",
        "stop_across_blocks": "it lay on both sides of the end of a block of 16 tokens",
        "stop_inside_block": "a stop sequence ended among accepted drafts, with more drafts behind it",
        "stop_left_open": "another stop sequence of an ended row began before, and was left open",
        "min_new_tokens": "an EOS held back by a minimum of new tokens",
        "penalty": "a repetition or presence penalty changed a token",
        "frequency_penalty": "a frequency penalty changed a token",
        "logit_bias": "a bias changed a token",
        "bad_words": "a token that would have ended a bad word was forbidden",
        "allowed_ids": "a token that is not among the allowed ones was forbidden",
        "no_repeat_ngram_size": "a token that would have ended an n-gram for the second time was forbidden",
        "grammar": "a token that a grammar does not allow there was forbidden",
        "grammar_beside_none": "a row with a grammar stood beside one without",
        "grammar_ended": "a row ended where its grammar allows nothing more",
        "token_budget": "a token budget per step",
        "budget_below_round": "the budget is smaller than one round of the batch",
        "prompt_beyond_budget": "a prompt longer than the budget",
        "least_budget": "a budget that holds one row's round and no more",
        "prefix_caching": "prefix caching with shared beginnings",
        "prefix_hits": "the engine says that a cached beginning was used",
        "goes_on": "a row goes on from an earlier row and its new tokens",
        "beginning_returns": "a cached beginning comes back after requests with others",
        "beginning_evicted": "it comes back after these took all KV blocks",
        "kv_blocks": "fewer KV blocks than the batch needs",
        "least_blocks": "6 KV blocks or fewer",
        "preemptions": "the engine says that rows were preempted",
        "late_rows": "rows handed over while others ran",
    },
    # Cases with sampled rows have no penalties, no minima and no settings of the engine.
    sampled={
        **_OF_ROWS,
        "ended_by_eos": "a row ended by an EOS before its limit",
        "drafted": "the engine says that draft tokens were proposed",
        "accepted": "the engine says that some were accepted",
        "rejected": "the engine says that some were rejected",
        "regime_std": "several draft tokens, usual temperatures",
        "regime_one": "one draft token in each round",
        "regime_peaked": "low temperatures: the laws are sharp",
        "regime_flat": "high temperatures: the draft is close to the target",
        "regime_ngram": "draft tokens are looked up in the row",
    },
    clean_shows=(
        "A clean audit shows that no case drawn from this seed made the engine emit a token that the target alone "
        "does not, on the checkpoints and axes counted above; of sampled rows, what their evidence excludes. It does "
        "not show: sampling by an engine that does not declare it, or together with penalties, minima and settings of "
        "the engine; other architectures and dtypes, several devices, speed, or lost draft tokens of an engine that "
        "does not count them."
    ),
)
_OF_LANES = {"transparent": TRANSPARENT, "sampling": SAMPLING}


def about(lane: str) -> About:
    """The words of a lane.

    >>> about("checkpoint-sampling") is CHECKPOINT
    True
    """
    return _OF_LANES.get(lane, CHECKPOINT)


def in_axis(axis: str, *values: str) -> str:
    """Name values of an axis of cases.

    >>> in_axis("rows", "2", "3+"), in_axis("num_draft_tokens", "1", "2-4"), in_axis("padding_side", "right")
    ('2 or more rows', 'K of 1 or 2-4', 'right padding')
    """
    text = " or ".join(values)
    for ranges, words in (("2 or 3+", "2 or more"), ("2-4 or 5+", "2 or more"), ("+", " or more")):
        text = text.replace(ranges, words)
    if axis == "rows":
        return "1 row" if values == ("1",) else f"{text} rows"
    name = {"family": "family", "cache_state": "cache state", "num_draft_tokens": "K of"}.get(axis)
    return f"{name} {text}" if name else f"{text} padding"
