"""openvino_genai: wrong token, found by eqcheck 0.1.0.

openvino_genai 2026.4.1.0-3408-ab01d1771e4. Needs token-budget. Without speculation the engine is right.
bookkeeping/unverified:unverified-emitted: a draft token is emitted that the target never verified. In a
larger case the reference emits 6 of 6 wrong tokens if draft tokens are emitted that the target never
verified, and its predictions for their places follow them. 276 edits were tried, and any of them does so by
chance with probability 2e-06.

    python <this file>        # exit code 1: shown, 0: not shown; needs openvino-genai, optimum-intel[openvino], torch, and _engine.py beside it
"""

from _engine import main, row

ROWS = [
    row([16], 9),
    row([94, 236, 87, 183, 185, 26, 94, 141, 220, 173, 207, 4, 32, 95, 253, 129, 203, 107, 80, 189, 170, 128, 182], 2),
]
SETTINGS = {'num_draft_tokens': 7, 'drafting': 'model', 'token_budget': 16, 'kv_blocks': None, 'prefix_caching': None}

# What the target emits for each row, in float64, alone.
EXPECTED = [[188, 49, 188, 121, 85, 188, 92, 172, 92], [180, 219]]

if __name__ == "__main__":
    main(ROWS, SETTINGS, EXPECTED)
