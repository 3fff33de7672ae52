"""mlx_lm: wrong token, found by eqcheck 0.3.0.

mlx_lm 0.32.2. Needs prefix-caching. Without speculation the engine is right.
no single edit of what the row saw, of those tried, makes the model emit these tokens

    eqcheck checkpoint write full target --draft draft --agreement 0.75
    python <this file> target draft        # exit code 1: shown, 0: not shown; needs 'mlx[cpu]' mlx-lm, and _engine.py and _checkpoint.py beside it
"""

from _checkpoint import main, row

ROWS = [
    row([14], 2),
    row([14, 78], 1),
]
SETTINGS = {'num_draft_tokens': 1, 'drafting': 'model', 'token_budget': None, 'kv_blocks': None, 'prefix_caching': True}

# The tokens of the target alone, for each row.
EXPECTED = [[26, 14], [132]]

if __name__ == "__main__":
    main(ROWS, SETTINGS, EXPECTED)
