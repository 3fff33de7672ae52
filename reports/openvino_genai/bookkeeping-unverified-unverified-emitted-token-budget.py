"""openvino_genai: wrong token, found by eqcheck 0.3.0.

openvino_genai 2026.4.1.0-3408-ab01d1771e4. Needs token-budget.
bookkeeping/unverified:unverified-emitted: a draft token is emitted that the target never verified. The
reference emits 6 of 6 wrong tokens if draft tokens are emitted that the target never verified, and its
predictions for their places follow them. 427 edits were tried, and any of them does so by chance with
probability 4e-11.

    eqcheck checkpoint write mistral target --draft draft --agreement 0.75
    python <this file> target draft        # exit code 1: shown, 0: not shown; needs openvino-genai, optimum-intel[openvino], torch, and _engine.py and _checkpoint.py beside it
"""

from _checkpoint import main, row

ROWS = [
    row([201, 58, 43, 229, 242, 51], 9),
    row([72, 105, 165, 55, 93, 243, 222, 231, 164, 162, 73, 246, 37, 178, 128, 178, 217, 60], 9),
    row([105, 211, 177, 246, 163, 173, 53, 177, 162, 222, 135, 254, 233, 147, 96, 232, 132, 223, 125, 133, 37, 99, 212, 215, 152, 203, 80, 127, 108, 48, 229], 9),
    row([26, 63, 102, 61, 31, 143, 104, 213, 221, 29, 133, 197, 95, 255, 197], 9),
    row([169, 77, 200, 229, 55, 80, 163, 251, 58, 224, 36, 29, 164, 203, 55, 221, 235, 135, 41, 253, 170, 37, 229, 247, 34, 81, 11, 253, 130, 31, 11, 228, 119, 66, 163, 199, 53, 224, 56, 156, 143, 92, 57, 66, 152, 83], 9),
]
SETTINGS = {'num_draft_tokens': 6, 'drafting': 'model', 'token_budget': 24, 'kv_blocks': None, 'prefix_caching': None}

# The tokens of the target alone, for each row.
EXPECTED = [[252, 237, 103, 58, 240, 110, 245, 28, 87], [52, 168, 10, 85, 122, 73, 227, 2, 0], [90, 203, 227, 193, 39, 83, 56, 226, 121], [39, 221, 243, 192, 98, 20, 134, 200, 68], [135, 195, 130, 253, 0, 75, 134, 60, 178]]

if __name__ == "__main__":
    main(ROWS, SETTINGS, EXPECTED)
