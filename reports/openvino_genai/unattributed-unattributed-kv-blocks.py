"""openvino_genai: wrong token, found by eqcheck 0.3.0.

openvino_genai 2026.4.1.0-3408-ab01d1771e4. Needs kv-blocks. Without speculation the engine is correct.
none of the explanations that were tried gives exactly these tokens

    eqcheck checkpoint write full target --draft draft --agreement 0.75
    python <this file> target draft        # exit code 1: shown, 0: not shown; needs openvino-genai, optimum-intel[openvino], torch, and _engine.py and _checkpoint.py beside it
"""

from _checkpoint import main, row

ROWS = [
    row([197], 27),
    row([83, 30, 141, 86, 237], 29),
    row([244, 234, 212, 193, 18, 228, 121, 62, 24, 163, 148], 30),
    row([202, 117, 187, 28, 3, 75, 253], 30),
    row([98, 13, 84, 88, 111, 20, 18, 226, 252, 194, 203, 30, 46, 236, 182, 248, 102, 243, 166, 202, 119, 247, 1, 252, 143, 136, 5, 98, 140, 25, 18, 171, 41, 141, 164, 99, 239, 102, 199, 54, 159, 213, 218], 30),
]
SETTINGS = {'num_draft_tokens': 3, 'drafting': 'model', 'token_budget': None, 'kv_blocks': 9, 'prefix_caching': None}

# The tokens of the target alone, for each row.
EXPECTED = [[136, 134, 207, 224, 242, 44, 8, 44, 8, 60, 1, 236, 181, 16, 159, 239, 252, 33, 169, 52, 196, 32, 56, 91, 176, 86, 157], [86, 92, 251, 138, 8, 54, 156, 114, 104, 133, 188, 176, 149, 189, 106, 130, 58, 22, 247, 246, 222, 98, 209, 174, 126, 67, 15, 199, 132], [23, 156, 13, 79, 143, 24, 238, 121, 204, 158, 150, 231, 45, 62, 172, 155, 79, 205, 169, 171, 157, 145, 242, 171, 116, 74, 154, 110, 170, 48], [31, 168, 55, 36, 185, 101, 176, 59, 93, 186, 207, 133, 119, 200, 108, 53, 52, 89, 60, 190, 56, 21, 143, 86, 131, 43, 129, 18, 101, 218], [88, 184, 229, 246, 8, 7, 6, 253, 38, 84, 125, 134, 25, 196, 244, 175, 111, 235, 89, 156, 126, 216, 121, 132, 247, 166, 32, 248, 173, 86]]

if __name__ == "__main__":
    main(ROWS, SETTINGS, EXPECTED, 'full')
