"""openvino_genai: wrong token, found by eqcheck 0.3.0.

openvino_genai 2026.4.1.0-3408-ab01d1771e4. Needs kv-blocks. Without speculation the engine is right.
bookkeeping/unverified:unverified-emitted: a draft token is emitted that the target never verified. In a
larger case the reference emits 4 of 47 wrong tokens if draft tokens are emitted that the target never
verified, and its predictions for their places follow them. 565 edits were tried, and any of them does so by
chance with probability 8e-08.

    eqcheck checkpoint write full target --draft draft --agreement 0.75
    python <this file> target draft        # exit code 1: shown, 0: not shown; needs openvino-genai, optimum-intel[openvino], torch, and _engine.py and _checkpoint.py beside it
"""

from _checkpoint import main, row

ROWS = [
    row([10, 0, 31, 193, 168, 45, 60, 85, 240], 25),
    row([174, 76, 229, 170, 87, 73, 247, 10, 65, 50, 188, 120], 28),
    row([1, 58, 146, 35, 164, 179, 43, 125, 241, 191, 37, 85, 174, 6, 226, 39, 121, 12, 109, 131, 151, 151, 31, 133, 161], 28),
    row([22, 205, 168, 176, 41, 137, 35, 6, 175, 51, 238, 135, 143, 145, 14, 206, 117, 41, 210, 245, 128, 170], 28),
    row([221, 53, 15, 84, 78, 211, 209, 169, 97, 103, 195, 129, 247, 42, 224, 104, 76, 178, 233, 62, 160, 227, 140, 122, 162], 28),
]
SETTINGS = {'num_draft_tokens': 1, 'drafting': 'model', 'token_budget': None, 'kv_blocks': 9, 'prefix_caching': None}

# The tokens of the target alone, for each row.
EXPECTED = [[0, 29, 64, 208, 59, 74, 18, 34, 118, 158, 3, 74, 178, 232, 23, 107, 204, 169, 216, 189, 25, 182, 253, 174, 31], [46, 239, 20, 71, 23, 145, 50, 4, 53, 105, 99, 16, 135, 105, 142, 172, 156, 147, 158, 239, 175, 99, 71, 120, 105, 94, 237, 144], [166, 219, 248, 149, 146, 4, 251, 102, 172, 206, 208, 119, 189, 166, 158, 194, 254, 101, 95, 247, 108, 19, 185, 75, 133, 240, 88, 20], [74, 3, 229, 238, 230, 165, 84, 121, 205, 67, 138, 43, 31, 6, 184, 198, 68, 83, 46, 244, 171, 97, 10, 108, 111, 8, 42, 84], [50, 155, 151, 180, 103, 48, 254, 234, 180, 16, 18, 34, 65, 104, 6, 203, 187, 231, 143, 155, 115, 40, 218, 238, 252, 205, 90, 148]]

if __name__ == "__main__":
    main(ROWS, SETTINGS, EXPECTED, 'full')
