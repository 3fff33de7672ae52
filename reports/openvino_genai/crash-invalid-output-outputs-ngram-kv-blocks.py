"""openvino_genai: crash/invalid-output:outputs, found by eqcheck 0.1.0.

openvino_genai 2026.4.1.0-3408-ab01d1771e4. Needs ngram, kv-blocks. Without speculation the engine is right.
crash/invalid-output:outputs: what the decoder returned, or left of its request, breaks the contract.
outputs[5][1]: expected a token in 0..255, got -1

    python <this file>        # exit code 1: shown, 0: not shown; needs openvino-genai, optimum-intel[openvino], torch, and _engine.py beside it
"""

from _engine import main, row

ROWS = [
    row([164], 2),
    row([174, 0, 45, 7, 245, 98, 249, 68, 0, 247, 119, 34, 171, 138, 93, 1, 84, 211, 15, 24, 122, 152, 124, 77, 219, 12, 2, 11, 241, 41, 10, 188, 75, 209, 61, 141, 11, 76, 165, 174, 0, 45, 7, 245, 98, 249, 68, 0, 247, 119, 34, 171, 138, 93, 1, 84, 211, 15, 24, 122, 152], 2),
    row([31, 1, 116, 72, 90, 200, 175, 173, 205, 126, 12, 84, 63, 17, 53, 128, 162, 121, 148, 55, 78, 177, 41, 255, 64, 9, 41, 154, 250, 185, 228, 159, 150, 224, 217, 182, 238, 154, 215, 197, 31, 1, 116, 72, 90, 200, 175, 173, 205, 126, 12, 84, 63, 17, 53, 128, 162, 121, 148, 55, 78], 2),
    row([25, 98, 20, 72, 155, 33, 137, 157, 162, 179, 209, 201, 162, 133, 239, 23, 96, 163, 151, 34, 73, 8, 29, 245, 140, 37, 129, 235, 176], 2),
    row([9], 2),
    row([220], 4),
]
SETTINGS = {'num_draft_tokens': 3, 'drafting': 'ngram', 'token_budget': None, 'kv_blocks': 10, 'prefix_caching': None}

# What the target emits for each row, in float64, alone.
EXPECTED = [[41, 124], [132, 113], [25, 139], [165, 145], [1, 123], [200, 39, 187, 41]]

if __name__ == "__main__":
    main(ROWS, SETTINGS, EXPECTED)
