"""mlx_lm: wrong token, found by eqcheck 0.3.0.

mlx_lm 0.32.2. Needs prefix-caching, eos-token-ids. Without speculation the engine is right.
no single edit of what the row saw, of those tried, makes the model emit these tokens

    eqcheck checkpoint write mla target --draft draft --agreement 0.75
    python <this file> target draft        # exit code 1: shown, 0: not shown; needs 'mlx[cpu]' mlx-lm, and _engine.py and _checkpoint.py beside it
"""

from _checkpoint import main, row

ROWS = [
    row([128, 49, 204, 130, 129, 106, 227, 207, 36, 159, 5, 31, 240, 4, 178], 13, eos_token_ids=[215, 193]),
    row([128, 49, 204, 130, 129, 106, 227, 207, 36, 159, 5, 31, 240, 4, 178, 172], 13, eos_token_ids=[115]),
]
SETTINGS = {'num_draft_tokens': 6, 'drafting': 'model', 'token_budget': None, 'kv_blocks': None, 'prefix_caching': True}

# The tokens of the target alone, for each row.
EXPECTED = [[240, 221, 140, 171, 229, 30, 215], [171, 0, 221, 247, 115]]

if __name__ == "__main__":
    main(ROWS, SETTINGS, EXPECTED)
