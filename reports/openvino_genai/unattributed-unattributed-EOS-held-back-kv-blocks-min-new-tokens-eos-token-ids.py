"""openvino_genai: EOS-held-back, found by eqcheck 0.3.0.

openvino_genai 2026.4.1.0-3408-ab01d1771e4. Needs kv-blocks, min-new-tokens, eos-token-ids. Without speculation the engine is right.
no single edit of what the row saw, of those tried, makes the model emit these tokens

    eqcheck checkpoint write full target --draft draft --agreement 0.75
    python <this file> target draft        # exit code 1: shown, 0: not shown; needs openvino-genai, optimum-intel[openvino], torch, and _engine.py and _checkpoint.py beside it
"""

from _checkpoint import main, row

ROWS = [
    row([28], 1),
    row([245, 109, 98, 123, 83, 189, 209, 174, 213, 55, 214, 118, 177, 109, 53, 110, 171, 171, 148, 127, 36, 45, 190, 86, 171, 38, 255, 233, 227, 221, 155, 241, 196], 2),
    row([57, 37, 188, 19, 141, 219, 32, 205, 156, 250, 128, 89, 30, 75, 126, 42, 185, 85, 65, 238, 32, 94, 191, 133, 78, 83, 254, 186, 190, 185, 157, 141, 84, 29, 179, 185, 181, 125, 199, 228, 250, 253, 129, 186, 35, 45, 76, 244, 81, 62, 38, 223, 141, 222, 184, 103, 128, 64, 159, 24, 192, 32, 132, 195, 162, 46, 254, 233, 235, 78, 19, 224, 40, 255, 115, 99], 14, eos_token_ids=[212], min_new_tokens=14),
    row([239, 219, 65, 72, 95, 92, 83, 104, 67, 155, 154, 27, 224], 2),
    row([228, 239, 43, 2, 13, 136, 252, 170, 197, 65, 46, 233, 37, 7, 83, 144, 137, 209, 205, 0, 55, 150, 172, 124, 92, 36, 251, 231, 14, 68, 214, 197, 39, 201, 216, 166, 3, 6, 6, 117, 53, 184, 210, 215, 34, 133, 221, 220, 167, 75, 115, 105, 75, 250, 128, 109, 74, 102, 224], 7),
    row([70, 50, 204, 125, 251, 244, 54, 159, 22, 247, 231, 243, 206, 53, 55, 124, 120], 10, eos_token_ids=[139, 14], min_new_tokens=1),
]
SETTINGS = {'num_draft_tokens': 3, 'drafting': 'model', 'token_budget': None, 'kv_blocks': 9, 'prefix_caching': None}

# The tokens of the target alone, for each row.
EXPECTED = [[101], [217, 94], [105, 23, 99, 65, 32, 101, 139, 186, 42, 150, 3, 1, 36, 6], [7, 243], [182, 128, 108, 247, 48, 42, 23], [72, 139]]

if __name__ == "__main__":
    main(ROWS, SETTINGS, EXPECTED)
