"""mlx_lm: wrong token, found by eqcheck 0.3.0.

mlx_lm 0.32.2. Needs no option. Without speculation the engine is right.
cache/stale-entry:nothing-rolled-back: a rejected draft token is seen. In a larger case the reference emits 40
of 44 wrong tokens if rejected draft tokens are still seen, and positions go on behind them once there are 32
tokens. 730 edits were tried, and any of them does so by chance with probability 1e-97.

    eqcheck checkpoint write window target --draft draft --agreement 0.75
    python <this file> target draft        # exit code 1: shown, 0: not shown; needs 'mlx[cpu]' mlx-lm, and _engine.py and _checkpoint.py beside it
"""

from _checkpoint import main, row

ROWS = [
    row([47, 225, 1, 33, 149, 246, 170, 122, 197, 18, 197, 2, 21, 102, 147, 27, 43, 221], 15),
]
SETTINGS = {'num_draft_tokens': 1, 'drafting': 'model', 'token_budget': None, 'kv_blocks': None, 'prefix_caching': None}

# The tokens of the target alone, for each row.
EXPECTED = [[132, 244, 179, 8, 166, 172, 93, 100, 143, 7, 12, 112, 221, 131, 224]]

if __name__ == "__main__":
    main(ROWS, SETTINGS, EXPECTED)
