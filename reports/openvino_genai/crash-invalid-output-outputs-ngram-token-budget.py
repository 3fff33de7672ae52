"""openvino_genai: crash/invalid-output:outputs, found by eqcheck 0.3.0.

openvino_genai 2026.4.1.0-3408-ab01d1771e4. Needs ngram and token-budget. Without speculation the engine is correct.
crash/invalid-output:outputs: the decoder returned an invalid output or changed its request. outputs[5][1]:
expected a token in 0..255, got -1

    eqcheck checkpoint write mistral target --draft draft --agreement 0.75
    python <this file> target draft        # exit code 1: shown, 0: not shown; needs openvino-genai, optimum-intel[openvino], torch, and _engine.py and _checkpoint.py beside it
"""

from _checkpoint import main, row

ROWS = [
    row([154, 91, 48, 171, 95, 149, 219, 242, 6, 8], 10),
    row([81, 146, 183, 219, 212, 238, 238, 234, 19], 10),
    row([132, 153, 17, 226, 182, 213], 10),
    row([152, 73, 27, 251, 188, 142, 200, 30, 52, 248, 78, 2, 183, 235, 16], 10),
    row([221, 200, 36, 146, 48, 149], 10),
    row([248, 45, 122], 10),
    row([181, 127, 18, 133, 48, 243, 155, 214, 46, 203, 115], 10),
    row([115, 47, 109, 106, 181, 84, 154, 74, 88], 10),
    row([176, 46, 148, 150, 152, 134, 178], 10),
    row([242, 203, 178, 236, 40, 234], 10),
    row([94, 25, 148, 33, 234, 234, 162, 184, 16, 92, 49, 243, 48, 86, 222, 26], 10),
    row([199, 100, 89, 116, 194, 242, 121, 114, 35, 76, 214, 99], 10),
    row([133, 239, 102, 236, 252, 187, 103, 61, 77, 61, 203, 27, 230], 10),
    row([198], 10),
    row([58, 14, 49, 217, 147, 160, 8, 109, 154, 19], 10),
]
SETTINGS = {'num_draft_tokens': 2, 'drafting': 'ngram', 'token_budget': 16, 'kv_blocks': None, 'prefix_caching': None}

# The tokens of the target alone, for each row.
EXPECTED = [[254, 178, 78, 38, 181, 144, 247, 69, 217, 243], [193, 70, 33, 179, 204, 52, 0, 134, 130, 209], [102, 210, 200, 120, 220, 255, 233, 87, 252, 0], [185, 108, 181, 243, 183, 85, 108, 114, 249, 66], [138, 133, 44, 39, 250, 63, 7, 214, 129, 64], [99, 100, 199, 204, 97, 150, 243, 183, 10, 5], [58, 69, 150, 26, 135, 14, 91, 211, 254, 76], [65, 145, 25, 236, 229, 243, 104, 222, 96, 120], [94, 215, 133, 178, 164, 161, 50, 79, 159, 105], [200, 28, 67, 170, 174, 143, 142, 130, 108, 214], [44, 188, 38, 154, 121, 186, 209, 111, 104, 195], [181, 216, 203, 85, 149, 47, 206, 122, 124, 123], [13, 210, 41, 113, 90, 204, 94, 7, 254, 253], [231, 128, 250, 170, 190, 62, 160, 141, 150, 179], [181, 203, 88, 1, 142, 54, 226, 89, 157, 51]]

if __name__ == "__main__":
    main(ROWS, SETTINGS, EXPECTED, 'mistral')
