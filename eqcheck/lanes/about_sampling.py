"""What this lane exercises, and what it cannot show, in words; it imports no model, so that reports can say it."""

from __future__ import annotations

COUNTERS = {
    "sampled_rows": "rows are sampled",
    "greedy_among_sampled": "a greedy row among sampled ones",
    "unequal_options": "sampled rows with unequal options",
    "twins": "two rows that ask for the same and are drawn apart",
    "seeded_rows": "rows with seeds",
    "cut_laws": "laws that are cut by top-k, top-p or min-p",
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
}
