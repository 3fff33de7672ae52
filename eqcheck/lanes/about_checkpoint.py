"""What this lane exercises, and what it cannot show, in words; it imports no model, so that reports can say it."""

from __future__ import annotations

COUNTERS = {
    "several_rows": "more than one row",
    "many_rows": "32 rows or more",
    "ragged_prompts": "prompts of different lengths",
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
    "min_new_tokens": "an EOS held back by a minimum of new tokens",
    "penalty": "a penalty changed a token",
    "token_budget": "a token budget per step",
    "budget_below_round": "the budget is smaller than one round of the batch",
    "prompt_beyond_budget": "a prompt longer than the budget",
    "prefix_caching": "prefix caching with shared beginnings",
    "prefix_hits": "the engine says that a cached beginning was used",
    "kv_blocks": "fewer KV blocks than the batch needs",
    "preemptions": "the engine says that rows were preempted",
    "late_rows": "rows handed over while others ran",
}
SAMPLED = {
    "sampled_rows": "rows are sampled",
    "greedy_among_sampled": "a greedy row among sampled ones",
    "unequal_options": "sampled rows with unequal options",
    "twins": "two rows that ask for the same and are drawn apart",
    "seeded_rows": "rows with seeds",
    "cut_laws": "laws that are cut by top-k, top-p or min-p",
    "ended_by_eos": "a row ended by an EOS before its limit",
    "drafted": "the engine says that draft tokens were proposed",
    "accepted": "the engine says that some were accepted",
    "rejected": "the engine says that some were rejected",
    "regime_std": "several draft tokens, usual temperatures",
    "regime_one": "one draft token in each round",
    "regime_peaked": "low temperatures: the laws are sharp",
    "regime_flat": "high temperatures: the draft is close to the target",
    "regime_ngram": "draft tokens are looked up in the row",
}
"""Of cases with sampled rows: these have no penalties, no minima and no settings of the engine."""
REACHED: dict[str, str] = {}
AXES: dict[str, str] = {}
CLEAN_SHOWS = (
    "A clean audit shows that no case drawn from this seed made the engine emit a token that the float64 target does "
    "not, on one tiny Llama and on the axes counted above; of sampled rows, what their evidence excludes. It does not "
    "show: sampling by an engine that does not declare it, or together with penalties, minima and settings of the "
    "engine; other architectures, low precision, several devices, speed, or draft-side faults that cost acceptance "
    "alone."
)
