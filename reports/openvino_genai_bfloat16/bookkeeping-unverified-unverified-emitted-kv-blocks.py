"""openvino_genai_bfloat16: wrong token, found by eqcheck 0.3.0.

openvino_genai_bfloat16 2026.4.1.0-3408-ab01d1771e4. Needs kv-blocks. Without speculation the engine is right.
bookkeeping/unverified:unverified-emitted: a draft token is emitted that the target never verified. In a
larger case the reference emits 6 of 32 wrong tokens if draft tokens are emitted that the target never
verified, and its predictions for their places follow them. 714 edits were tried, and any of them does so by
chance with probability 2e-06.

    eqcheck checkpoint write full target --draft draft --agreement 0.75 --dtype bfloat16
    python <this file> target draft        # exit code 1: shown, 0: not shown; needs openvino-genai, optimum-intel[openvino], torch, and _engine.py and _checkpoint.py beside it
"""

from _checkpoint import main, row

ROWS = [
    row([105, 247, 60, 7, 29], 30),
    row([22, 166, 38, 127, 31, 234, 220, 120, 133, 54, 79, 197, 202, 252, 77, 20, 82, 93, 147, 210, 170, 224, 215, 199, 57, 53, 117, 181, 246, 156, 216, 104, 167, 156, 51, 170, 24, 16, 14, 174, 193, 107, 212, 135, 150, 60, 128, 253, 81, 255, 39, 62, 112, 29, 26, 128, 51, 29, 47, 7, 70, 93, 78, 252, 175, 94, 108, 9, 183, 157, 18, 59, 160, 85, 10, 134, 243], 30),
    row([239, 100, 189, 8, 122, 64, 85, 182, 21, 59, 25, 154, 239, 121, 127, 102, 85, 180, 93, 91], 30),
    row([247, 196, 230, 139, 172, 53, 44, 59, 246, 119, 115], 30),
]
SETTINGS = {'num_draft_tokens': 3, 'drafting': 'model', 'token_budget': None, 'kv_blocks': 9, 'prefix_caching': None, 'dtype': 'bfloat16'}

# The tokens of the target alone, for each row.
EXPECTED = [[202, 222, 27, 20, 84, 80, 249, 218, 9, 52, 214, 199, 135, 142, 137, 6, 247, 248, 213, 183, 214, 89, 84, 124, 186, 205, 91, 246, 133, 120], [119, 118, 201, 76, 200, 21, 87, 49, 155, 17, 245, 31, 29, 204, 38, 159, 250, 134, 47, 104, 154, 254, 226, 110, 109, 138, 245, 252, 132, 109], [118, 110, 89, 99, 244, 99, 23, 113, 215, 142, 22, 157, 47, 217, 3, 134, 7, 56, 184, 221, 104, 178, 152, 53, 168, 114, 115, 21, 142, 59], [13, 50, 243, 137, 211, 152, 123, 114, 30, 216, 15, 99, 0, 198, 33, 158, 59, 186, 38, 39, 148, 237, 233, 158, 230, 188, 138, 31, 185, 210]]

if __name__ == "__main__":
    main(ROWS, SETTINGS, EXPECTED)
