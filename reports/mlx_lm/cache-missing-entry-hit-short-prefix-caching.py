"""mlx_lm: wrong token, found by eqcheck 0.3.0.

mlx_lm 0.32.2. Needs prefix-caching. Without speculation the engine is correct.
cache/missing-entry:hit-short: a token of the row is missing from the KV cache. If a prefix cache hit restores
one or two tokens too few, and position ids continue without them, the reference model gives exactly the 15
wrong tokens in 3 cases like this one (3 fail). 177 explanations were tried; the chance that any of them fits
by accident is 1 in 10^26.

    eqcheck checkpoint write mla target --draft draft --agreement 0.75
    python <this file> target draft        # exit code 1: shown, 0: not shown; needs 'mlx[cpu]' mlx-lm, and _engine.py and _checkpoint.py beside it
"""

from _checkpoint import main, row

ROWS = [
    row([144, 155, 48, 188, 80, 51, 4, 167, 192, 152, 10, 211, 54, 240, 86, 233, 70, 72, 125, 90, 246, 13, 127, 57, 24, 202, 86, 165, 217, 45, 42, 155, 243, 52, 118, 246, 24, 75, 44, 86, 66, 234, 103, 23, 208, 179, 150, 126], 1),
    row([144, 155, 48, 188, 80, 51, 4, 167, 192, 152, 10, 211, 54, 240, 86, 233, 70, 72, 125, 90, 246, 13, 127], 1),
]
SETTINGS = {'num_draft_tokens': 6, 'drafting': 'model', 'token_budget': None, 'kv_blocks': None, 'prefix_caching': True}

# The tokens of the target alone, for each row.
EXPECTED = [[211], [209]]

if __name__ == "__main__":
    main(ROWS, SETTINGS, EXPECTED, 'mla')
