"""mlx_lm_bfloat16: wrong token, found by eqcheck 0.3.0.

mlx_lm_bfloat16 0.32.2. Fails at default settings. Without speculation the engine is correct.
cache/stale-entry:nothing-rolled-back: attends to a rejected draft token. If rejected draft tokens are still
attended to, and position ids continue after them from 32 tokens (prompt and output) on, the reference model
gives exactly the 70 wrong tokens in a larger case. 390 explanations were tried; the chance that any of them
fits by accident is 1 in 10^172.

    eqcheck checkpoint write window target --draft draft --agreement 0.75 --dtype bfloat16
    python <this file> target draft        # exit code 1: shown, 0: not shown; needs 'mlx[cpu]' mlx-lm, and _engine.py and _checkpoint.py beside it
"""

from _checkpoint import main, row

ROWS = [
    row([7, 2, 180, 95, 10, 139, 74, 232, 130], 24),
]
SETTINGS = {'num_draft_tokens': 1, 'drafting': 'model', 'token_budget': None, 'kv_blocks': None, 'prefix_caching': None, 'dtype': 'bfloat16'}

# The tokens of the target alone, for each row.
EXPECTED = [[50, 141, 196, 81, 166, 95, 246, 244, 133, 219, 235, 11, 184, 62, 241, 233, 255, 225, 38, 226, 24, 59, 70, 77]]

if __name__ == "__main__":
    main(ROWS, SETTINGS, EXPECTED, 'window')
