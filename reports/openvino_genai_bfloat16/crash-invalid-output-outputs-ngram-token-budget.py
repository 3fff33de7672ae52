"""openvino_genai_bfloat16: crash/invalid-output:outputs, found by eqcheck 0.3.0.

openvino_genai_bfloat16 2026.4.1.0-3408-ab01d1771e4. Needs ngram and token-budget. Without speculation the engine is correct.
crash/invalid-output:outputs: the decoder returned an invalid output or changed its request. outputs[5][1]:
expected a token in 0..255, got -1

    eqcheck checkpoint write mistral target --draft draft --agreement 0.75 --dtype bfloat16
    python <this file> target draft        # exit code 1: shown, 0: not shown; needs openvino-genai, optimum-intel[openvino], torch, and _engine.py and _checkpoint.py beside it
"""

from _checkpoint import main, row

ROWS = [
    row([154, 91, 48, 171, 95, 149, 219, 242, 6, 8], 10),
    row([81, 146, 183, 219, 212, 238, 238, 234, 19], 10),
    row([132, 153, 17, 226, 182, 213], 10),
    row([152, 73, 27, 251, 188, 142, 200, 30, 52, 248, 78, 2, 183, 235, 16], 10),
    row([221, 200, 36, 146, 48, 149], 10),
    row([248, 45, 122], 10),
]
SETTINGS = {'num_draft_tokens': 2, 'drafting': 'ngram', 'token_budget': 16, 'kv_blocks': None, 'prefix_caching': None, 'dtype': 'bfloat16'}

# The tokens of the target alone, for each row.
EXPECTED = [[254, 178, 78, 38, 181, 144, 247, 69, 217, 243], [193, 70, 33, 179, 204, 52, 0, 134, 130, 209], [102, 210, 200, 120, 220, 255, 233, 87, 252, 0], [185, 108, 181, 243, 183, 85, 108, 114, 249, 66], [138, 133, 44, 39, 250, 63, 7, 214, 129, 64], [99, 100, 199, 204, 97, 150, 243, 183, 10, 5]]

if __name__ == "__main__":
    main(ROWS, SETTINGS, EXPECTED, 'mistral')
