"""openvino_genai: bookkeeping/past-eos, found by eqcheck 0.1.0.

openvino_genai 2026.4.1.0-3408-ab01d1771e4. Needs token-budget, eos-token-ids. Without speculation the engine is right.
bookkeeping/past-eos: tokens follow the EOS. The row goes on with 1 token after its EOS.

    python <this file>        # exit code 1: shown, 0: not shown; needs openvino-genai, optimum-intel[openvino], torch, and _engine.py beside it
"""

from _engine import main, row

ROWS = [
    row([195], 5),
    row([110, 247, 135, 212, 147, 209, 185, 1, 160, 146, 43, 64, 104, 167, 95, 7, 232, 50, 246, 235, 203, 143, 18, 83, 130, 118, 136, 126, 202, 223, 224, 251, 243, 235, 177, 103, 95, 238, 143, 132, 69, 166, 44, 41, 138, 19], 15, eos_token_ids=(140, 37)),
]
SETTINGS = {'num_draft_tokens': 6, 'drafting': 'model', 'token_budget': 24, 'kv_blocks': None, 'prefix_caching': None}

# What the target emits for each row, in float64, alone.
EXPECTED = [[23, 151, 105, 238, 206], [37]]

if __name__ == "__main__":
    main(ROWS, SETTINGS, EXPECTED)
