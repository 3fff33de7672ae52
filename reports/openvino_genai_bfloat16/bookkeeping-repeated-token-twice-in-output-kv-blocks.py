"""openvino_genai_bfloat16: wrong token, found by eqcheck 0.3.0.

openvino_genai_bfloat16 2026.4.1.0-3408-ab01d1771e4. Needs kv-blocks. Without speculation the engine is correct.
bookkeeping/repeated-token:twice-in-output: a token is returned twice. If the output has 3 tokens twice, the
reference model gives 4 of the 13 wrong tokens. 653 explanations were tried; the chance that any of them fits
by accident is 1 in 20,000,000. Another explanation fits as well: bookkeeping/unverified.

    eqcheck checkpoint write full target --draft draft --agreement 0.75 --dtype bfloat16
    python <this file> target draft        # exit code 1: shown, 0: not shown; needs openvino-genai, optimum-intel[openvino], torch, and _engine.py and _checkpoint.py beside it
"""

from _checkpoint import main, row

ROWS = [
    row([74, 250, 42, 47, 73, 93, 120, 55, 242, 138, 91, 54, 136, 245, 141, 194, 39, 11, 76, 165, 156, 149, 45, 100, 12, 0, 48, 91, 171, 85, 92, 11, 78, 54, 169, 93, 144, 116, 57, 129, 242, 189, 163, 143, 132, 117, 194, 149, 92, 216, 186, 244, 61, 56, 32, 48, 58, 144, 224, 255, 83, 88], 21),
    row([74, 250, 42, 47, 73, 93, 120, 55, 242, 138, 91, 54, 136, 245, 141, 194, 92, 25, 20, 85, 177, 15, 149, 157, 47, 51, 191, 169, 188, 204, 135, 214, 220, 146, 204, 125, 15, 101, 191, 165, 59, 163, 195, 255, 212, 194, 24, 66, 200, 120, 34, 217, 130, 230, 90, 231, 167, 173, 233, 155, 110, 248, 226, 166, 188, 249, 145, 4, 40, 96, 178, 242, 211, 235, 70, 142, 233, 163, 224, 116, 210, 110, 26, 158, 219, 170, 240, 81, 232, 209, 30, 6, 200, 120, 34, 217, 130, 230, 90, 231, 167, 173, 233, 155, 110, 248, 226, 166, 188, 249, 145, 4, 40, 96, 178, 242, 211, 235, 70, 142, 233, 163, 224, 116, 210, 110, 26, 158, 219, 170, 240, 81, 232], 21),
    row([74, 250, 42, 47, 73, 93, 120, 55, 242, 138, 91, 54, 136, 245, 141, 194, 39, 11, 76, 165, 156, 149, 45, 100, 12, 0, 48, 91, 171, 85, 92, 11, 78, 54, 169, 93, 144, 116, 57, 129, 242, 189, 163, 143, 132, 117, 194, 149, 73, 157, 162, 31, 218, 53, 73, 157, 162], 21),
]
SETTINGS = {'num_draft_tokens': 3, 'drafting': 'model', 'token_budget': None, 'kv_blocks': 10, 'prefix_caching': None, 'dtype': 'bfloat16'}

# The tokens of the target alone, for each row.
EXPECTED = [[104, 5, 87, 24, 226, 158, 91, 55, 108, 173, 153, 145, 43, 98, 159, 216, 125, 117, 205, 131, 95], [165, 218, 103, 218, 60, 38, 71, 56, 224, 87, 134, 200, 135, 162, 219, 192, 66, 180, 52, 200, 239], [107, 112, 43, 141, 101, 208, 213, 194, 164, 3, 17, 166, 105, 9, 174, 17, 108, 30, 90, 79, 151]]

if __name__ == "__main__":
    main(ROWS, SETTINGS, EXPECTED, 'full')
