"""mlx_lm: wrong token, found by eqcheck 0.3.0.

mlx_lm 0.32.2. Needs prefix-caching, logit-bias. Without speculation the engine is right.
there was no time to look for a cause

    eqcheck checkpoint write mla target --draft draft --agreement 0.75
    python <this file> target draft        # exit code 1: shown, 0: not shown; needs 'mlx[cpu]' mlx-lm, and _engine.py and _checkpoint.py beside it
"""

from _checkpoint import main, row

ROWS = [
    row([255, 162, 82, 2, 8, 61, 34, 201, 169, 187, 224, 107, 35, 7, 158, 90, 70, 72, 125, 90, 246, 13, 127, 57, 24, 202, 86, 165, 217, 45, 42, 155, 87, 11, 219, 228], 20, logit_bias=[[244, 2.0], [246, -1.5]]),
    row([255, 162, 82, 2, 8, 61, 34, 201, 169, 187, 224, 107, 35, 7, 158, 90, 70, 72, 125, 90, 246, 13, 127, 57, 24, 202, 86, 165, 217, 45, 42, 155, 87, 11, 219, 228], 20, logit_bias=[[179, 0.7], [251, -4.0]]),
]
SETTINGS = {'num_draft_tokens': 6, 'drafting': 'model', 'token_budget': None, 'kv_blocks': None, 'prefix_caching': True}

# The tokens of the target alone, for each row.
EXPECTED = [[244, 175, 13, 53, 101, 167, 22, 38, 132, 158, 39, 39, 83, 73, 93, 192, 165, 152, 9, 65], [174, 119, 3, 62, 12, 108, 39, 69, 42, 13, 224, 150, 53, 16, 2, 72, 114, 126, 127, 20]]

if __name__ == "__main__":
    main(ROWS, SETTINGS, EXPECTED)
