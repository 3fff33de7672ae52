"""openvino_genai: wrong token, found by eqcheck 0.3.0.

openvino_genai 2026.4.1.0-3408-ab01d1771e4. Needs kv-blocks, presence-penalty, eos-token-ids.
bookkeeping/unverified:unverified-emitted: a draft token is emitted that the target never verified. The
reference emits 4 of 5 wrong tokens if draft tokens are emitted that the target never verified, and its
predictions for their places follow them. 1019 edits were tried, and any of them does so by chance with
probability 3e-05.

    eqcheck checkpoint write full target --draft draft --agreement 0.75
    python <this file> target draft        # exit code 1: shown, 0: not shown; needs openvino-genai, optimum-intel[openvino], torch, and _engine.py and _checkpoint.py beside it
"""

from _checkpoint import main, row

ROWS = [
    row([172, 210, 223, 53, 8, 176, 4, 60, 134, 180, 157, 160, 64, 95, 105, 66, 179, 67, 90, 19, 209, 42, 181, 196, 70, 163, 52, 170, 52, 169], 4, presence_penalty=1.0),
    row([205, 10, 61, 208, 129, 24, 126, 86, 141, 155, 108, 190, 196, 105, 249, 18, 126, 95, 229, 83, 35, 128, 62, 194, 84, 211], 4, eos_token_ids=[217, 229]),
    row([53, 216, 202, 52, 113, 247, 33, 229, 179, 177, 181, 167, 36, 235, 237, 197, 67, 101, 147, 135, 6, 90, 103, 179, 128, 134, 5, 170, 4, 223, 232, 209, 154, 155], 4, presence_penalty=1.0),
    row([237, 228, 46, 56, 43, 167, 43, 222, 106, 228, 114, 97, 163, 125, 74, 41, 8, 220, 223, 186, 151, 169, 151, 227, 91, 6, 72, 236, 22, 221, 86, 69], 4),
    row([90, 111, 136, 147, 56, 24, 116, 101, 38, 75, 154, 128, 216, 203, 185, 154, 125, 35, 105, 145, 221, 137, 5, 103, 22, 130, 99, 111, 218, 62, 48, 111, 232, 168, 144, 220, 70, 108, 53, 191, 226, 222, 86, 171, 79, 248, 104], 4, presence_penalty=1.0),
    row([189, 102, 26, 26, 23, 57, 40, 254, 56, 202, 218, 200, 56, 169, 211, 154, 157, 224, 82, 62, 51, 125, 117, 133, 176], 4),
    row([132, 221, 214, 1, 255, 67, 49, 43, 59, 98, 49, 127, 190, 51, 125, 205, 165, 207, 8, 242, 201, 201, 138, 135, 99, 26, 19, 187, 177, 149, 30, 174, 216, 114, 6, 134, 242], 4, eos_token_ids=[89], presence_penalty=-1.0),
    row([203, 142, 144, 29, 122, 75, 8, 23, 2, 237, 106, 15, 28, 170, 43, 202, 244, 77, 217, 102], 4),
    row([112, 21, 101, 215, 58, 56, 177, 84, 136, 230, 119, 59, 127, 92, 151, 130, 24, 54, 144, 255, 209, 148, 216, 120, 157, 221, 193, 13, 107, 141, 149, 132, 26, 213, 201, 114, 111, 86, 13, 178, 189, 40], 4, presence_penalty=2.0),
    row([175, 185, 233, 55, 163, 182, 211], 4, eos_token_ids=[102, 165]),
    row([126, 130, 62, 219, 237, 174, 29, 6, 142, 22, 172, 129, 93, 138, 8, 30, 31, 214, 142, 67, 122, 125, 76, 93, 204, 2], 4, eos_token_ids=[143], presence_penalty=1.0),
    row([225, 235, 113, 53, 9, 164, 87, 104, 190, 5, 16, 36, 95, 133, 52, 228, 138, 202, 232, 254, 214, 142, 64, 255, 27, 238, 122, 83, 172, 53, 247, 32, 241, 248, 46, 231, 129, 67, 237, 134, 9, 104, 189, 67, 164, 58], 4, presence_penalty=1.0),
]
SETTINGS = {'num_draft_tokens': 3, 'drafting': 'model', 'token_budget': None, 'kv_blocks': 9, 'prefix_caching': None}

# The tokens of the target alone, for each row.
EXPECTED = [[140, 31, 211, 78], [178, 217], [109, 14, 76, 235], [126, 215, 136, 89], [106, 255, 246, 2], [168, 190, 205, 129], [61, 89], [59, 124, 178, 142], [190, 80, 237, 95], [67, 102], [243, 163, 143], [161, 74, 244, 176]]

if __name__ == "__main__":
    main(ROWS, SETTINGS, EXPECTED)
