"""openvino_genai: wrong token, found by eqcheck 0.3.0.

openvino_genai 2026.4.1.0-3408-ab01d1771e4. Needs token-budget. Without speculation the engine is correct.
bookkeeping/unverified:unverified-emitted: draft tokens are returned without verification. If draft tokens are
returned before the target has verified them, and then its predictions for the same positions, the reference
model gives exactly the 2 wrong tokens. 174 explanations were tried; the chance that any of them fits by
accident is 1 in 100.

    eqcheck checkpoint write full target --draft draft --agreement 0.75
    python <this file> target draft        # exit code 1: shown, 0: not shown; needs openvino-genai, optimum-intel[openvino], torch, and _engine.py and _checkpoint.py beside it
"""

from _checkpoint import main, row

ROWS = [
    row([210], 4),
    row([229, 88, 159, 29, 82, 204, 97, 151, 18, 157, 159, 65, 224, 187, 197, 112, 24, 196, 244, 145, 5, 16, 170, 144, 237, 54, 35, 95, 222, 2, 38, 138, 149, 185, 141, 146, 197, 154, 73, 11, 206, 128, 21, 75, 11, 61, 185, 195, 246, 108, 235, 54, 182, 130, 140, 53, 46, 198, 132, 168, 213, 180, 199, 251, 201, 205, 75, 248, 129, 202, 224, 246, 70, 239, 82, 144, 93, 217, 93, 239, 92, 87, 73, 139, 193, 30, 109, 243, 79, 251, 242, 183, 204, 88, 159, 179, 40, 91, 117, 47, 8, 3, 15, 100, 33, 233, 227, 23], 7),
]
SETTINGS = {'num_draft_tokens': 4, 'drafting': 'model', 'token_budget': 16, 'kv_blocks': None, 'prefix_caching': None}

# The tokens of the target alone, for each row.
EXPECTED = [[66, 102, 0, 25], [160, 235, 250, 171, 209, 249, 68]]

if __name__ == "__main__":
    main(ROWS, SETTINGS, EXPECTED, 'full')
