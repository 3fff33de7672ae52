"""mlx_lm: wrong token, found by eqcheck 0.3.0.

mlx_lm 0.32.2. Needs no option. Without speculation the engine is right.
cache/stale-entry:nothing-rolled-back: a rejected draft token is seen. In a larger case the reference emits 53
of 53 wrong tokens if rejected draft tokens are still seen, and positions go on behind them once there are 32
tokens. 615 edits were tried, and any of them does so by chance with probability 7e-133.

    eqcheck checkpoint write window target --draft draft --agreement 0.75
    python <this file> target draft        # exit code 1: shown, 0: not shown; needs 'mlx[cpu]' mlx-lm, and _engine.py and _checkpoint.py beside it
"""

from _checkpoint import main, row

ROWS = [
    row([228, 182, 15, 160, 53, 164, 223, 11, 197, 244, 70, 52, 98], 19),
]
SETTINGS = {'num_draft_tokens': 3, 'drafting': 'model', 'token_budget': None, 'kv_blocks': None, 'prefix_caching': None}

# The tokens of the target alone, for each row.
EXPECTED = [[108, 178, 170, 40, 2, 210, 65, 228, 113, 142, 79, 18, 233, 81, 225, 240, 146, 13, 203]]

if __name__ == "__main__":
    main(ROWS, SETTINGS, EXPECTED)
