"""openvino_genai: wrong token, found by eqcheck 0.1.0.

openvino_genai 2026.4.1.0-3408-ab01d1771e4. Needs token-budget. Without speculation the engine is right.
bookkeeping/unverified:unverified-emitted: a draft token is emitted that the target never verified. In a
larger case the reference emits 10 of 29 wrong tokens if draft tokens are emitted that the target never
verified, and its predictions for their places follow them. 456 edits were tried, and any of them does so by
chance with probability 3e-11.

    python <this file>        # exit code 1: shown, 0: not shown; needs openvino-genai, optimum-intel[openvino], torch, and _engine.py beside it
"""

from _engine import main, row

ROWS = [
    row([168], 6),
    row([90], 7),
    row([237], 16),
]
SETTINGS = {'num_draft_tokens': 5, 'drafting': 'model', 'token_budget': 16, 'kv_blocks': None, 'prefix_caching': None}

# What the target emits for each row, in float64, alone.
EXPECTED = [[154, 11, 109, 248, 19, 20], [8, 96, 121, 228, 209, 110, 150], [41, 241, 131, 41, 114, 64, 134, 255, 249, 84, 101, 241, 130, 150, 155, 11]]

if __name__ == "__main__":
    main(ROWS, SETTINGS, EXPECTED)
