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
REACHED: dict[str, str] = {}
AXES: dict[str, str] = {}
CLEAN_SHOWS = (
    "A clean audit shows that no case drawn from this seed made the engine emit a token that the float64 target does "
    "not, on one tiny Llama and on the axes counted above. Every row was greedy. It does not show: sampling, other "
    "architectures, low precision, several devices, speed, or draft-side faults that cost acceptance alone."
)
