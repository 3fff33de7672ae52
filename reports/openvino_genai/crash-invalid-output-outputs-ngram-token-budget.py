"""openvino_genai: crash/invalid-output:outputs, found by eqcheck 0.1.0.

openvino_genai 2026.4.1.0-3408-ab01d1771e4. Needs ngram, token-budget. Without speculation the engine is right.
crash/invalid-output:outputs: what the decoder returned, or left of its request, breaks the contract.
outputs[2][3]: expected a token in 0..255, got -1

    python <this file>        # exit code 1: shown, 0: not shown; needs openvino-genai, optimum-intel[openvino], torch, and _engine.py beside it
"""

from _engine import main, row

ROWS = [
    row([207], 3),
    row([183], 3),
    row([212], 4),
]
SETTINGS = {'num_draft_tokens': 6, 'drafting': 'ngram', 'token_budget': 16, 'kv_blocks': None, 'prefix_caching': None}

# What the target emits for each row, in float64, alone.
EXPECTED = [[40, 187, 40], [16, 20, 149], [37, 37, 37, 71]]

if __name__ == "__main__":
    main(ROWS, SETTINGS, EXPECTED)
