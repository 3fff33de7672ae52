"""openvino_genai: wrong token, found by eqcheck 0.1.0.

openvino_genai 2026.4.1.0-3408-ab01d1771e4. Needs kv-blocks. Without speculation the engine is right.
bookkeeping/unverified:unverified-emitted: a draft token is emitted that the target never verified. In 11
cases like this one, of which 11 are wrong, the reference emits 27 of 46 wrong tokens if draft tokens are
emitted that the target never verified, and its predictions for their places follow them. 531 edits were
tried, and any of them does so by chance with probability 5e-33.

    python <this file>        # exit code 1: shown, 0: not shown; needs openvino-genai, optimum-intel[openvino], torch, and _engine.py beside it
"""

from _engine import main, row

ROWS = [
    row([102], 1),
    row([81], 2),
    row([129, 99, 125, 80, 57, 109, 8, 120, 190, 218, 63, 109, 140, 149, 208, 73, 93, 121, 151, 247, 82, 136, 179, 177, 187, 22, 136, 38, 37, 166, 51, 135, 90], 2),
    row([50, 14, 106, 76], 20),
    row([0, 218, 204, 25, 62, 73, 116, 100, 233, 36, 9, 152, 227, 208, 29, 107, 141, 173, 59, 154, 15, 33, 217, 164, 108, 68, 151, 101, 106], 8),
    row([20, 109, 84, 232, 63, 175, 59, 158, 89, 165, 197], 10),
    row([165, 188, 178, 121, 63, 228, 149, 19, 118, 250, 179, 125, 173, 235, 72, 237, 250], 1),
    row([215, 9, 27, 88, 130, 150], 2),
    row([252, 183, 131, 123, 134, 155, 151, 237, 20, 246, 211], 9),
    row([99, 178, 159, 203, 75, 16, 234, 130, 90, 100, 5, 140, 18, 208, 122, 29, 110, 145, 234, 129, 28, 202, 84, 116, 140, 187, 50, 206, 133, 235, 231, 223, 89, 117, 84, 126, 80, 176, 102, 154, 56, 103, 8, 169, 61], 20),
]
SETTINGS = {'num_draft_tokens': 3, 'drafting': 'model', 'token_budget': None, 'kv_blocks': 10, 'prefix_caching': None}

# What the target emits for each row, in float64, alone.
EXPECTED = [[255], [62, 214], [83, 98], [78, 141, 45, 200, 183, 139, 211, 183, 30, 198, 58, 100, 188, 113, 180, 66, 2, 73, 64, 17], [241, 49, 241, 119, 150, 110, 140, 241], [28, 213, 49, 213, 73, 120, 201, 12, 143, 41], [216], [110, 165], [115, 46, 71, 79, 150, 91, 187, 143, 134], [111, 135, 68, 114, 188, 44, 218, 83, 219, 3, 188, 44, 71, 223, 223, 63, 65, 127, 251, 250]]

if __name__ == "__main__":
    main(ROWS, SETTINGS, EXPECTED)
