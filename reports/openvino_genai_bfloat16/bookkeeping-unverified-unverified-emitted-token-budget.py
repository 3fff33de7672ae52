"""openvino_genai_bfloat16: wrong token, found by eqcheck 0.3.0.

openvino_genai_bfloat16 2026.4.1.0-3408-ab01d1771e4. Needs token-budget. Without speculation the engine is right.
bookkeeping/unverified:unverified-emitted: a draft token is emitted that the target never verified. In a
larger case the reference emits 7 of 7 wrong tokens if draft tokens are emitted that the target never
verified, and its predictions for their places follow them. 469 edits were tried, and any of them does so by
chance with probability 1e-10.

    eqcheck checkpoint write mistral target --draft draft --agreement 0.75 --dtype bfloat16
    python <this file> target draft        # exit code 1: shown, 0: not shown; needs openvino-genai, optimum-intel[openvino], torch, and _engine.py and _checkpoint.py beside it
"""

from _checkpoint import main, row

ROWS = [
    row([243, 18, 142, 140], 7),
    row([237, 118, 59, 193, 129, 56, 241, 143, 59, 65, 96, 156, 51, 187, 163, 101, 97, 194, 49, 114, 13, 204], 3),
]
SETTINGS = {'num_draft_tokens': 5, 'drafting': 'model', 'token_budget': 16, 'kv_blocks': None, 'prefix_caching': None, 'dtype': 'bfloat16'}

# The tokens of the target alone, for each row.
EXPECTED = [[67, 84, 118, 86, 87, 93, 247], [29, 78, 22]]

if __name__ == "__main__":
    main(ROWS, SETTINGS, EXPECTED)
