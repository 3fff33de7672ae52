"""openvino_genai: wrong token, found by eqcheck 0.3.0.

openvino_genai 2026.4.1.0-3408-ab01d1771e4. Needs token-budget and presence-penalty.
bookkeeping/unverified:unverified-emitted: draft tokens are returned without verification. If draft tokens are
returned before the target has verified them, and then its predictions for the same positions, the reference
model gives exactly the 7 wrong tokens. 589 explanations were tried; the chance that any of them fits by
accident is 1 in 500,000,000.

    eqcheck checkpoint write mistral target --draft draft --agreement 0.75
    python <this file> target draft        # exit code 1: shown, 0: not shown; needs openvino-genai, optimum-intel[openvino], torch, and _engine.py and _checkpoint.py beside it
"""

from _checkpoint import main, row

ROWS = [
    row([127, 78, 83, 58], 15, presence_penalty=1.0),
    row([4, 116, 239, 79, 245, 204, 150, 124, 44, 174, 151, 176, 169, 66, 27], 15),
    row([218, 197, 143, 194, 67, 9, 144, 101, 138, 160], 15, presence_penalty=1.0),
    row([133, 15, 250, 151, 146, 45, 46, 116, 170, 181], 15),
    row([248, 133, 123, 44, 19, 187, 121, 252], 15, presence_penalty=2.0),
    row([58, 200, 129, 5, 195, 208, 26, 38, 57, 14, 194, 82, 66], 15),
]
SETTINGS = {'num_draft_tokens': 5, 'drafting': 'model', 'token_budget': 16, 'kv_blocks': None, 'prefix_caching': None}

# The tokens of the target alone, for each row.
EXPECTED = [[211, 90, 144, 51, 102, 100, 188, 252, 121, 45, 83, 152, 133, 251, 101], [111, 250, 187, 56, 124, 205, 158, 60, 44, 127, 173, 224, 131, 83, 225], [11, 132, 114, 238, 81, 91, 149, 158, 20, 188, 134, 213, 139, 247, 244], [118, 182, 15, 84, 41, 220, 9, 45, 96, 10, 121, 45, 77, 27, 75], [241, 251, 82, 153, 252, 178, 84, 54, 7, 113, 90, 3, 63, 200, 243], [117, 240, 2, 191, 24, 43, 192, 248, 198, 62, 89, 127, 31, 168, 176]]

if __name__ == "__main__":
    main(ROWS, SETTINGS, EXPECTED, 'mistral')
