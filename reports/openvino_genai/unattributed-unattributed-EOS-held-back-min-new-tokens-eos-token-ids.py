"""openvino_genai: EOS-held-back, found by eqcheck 0.3.0.

openvino_genai 2026.4.1.0-3408-ab01d1771e4. Needs min-new-tokens and eos-token-ids. Without speculation the engine is correct.
the time ended before a cause was searched for

    eqcheck checkpoint write mistral target --draft draft --agreement 0.75
    python <this file> target draft        # exit code 1: shown, 0: not shown; needs openvino-genai, optimum-intel[openvino], torch, and _engine.py and _checkpoint.py beside it
"""

from _checkpoint import main, row

ROWS = [
    row([218], 13, eos_token_ids=[48], min_new_tokens=9),
]
SETTINGS = {'num_draft_tokens': 2, 'drafting': 'model', 'token_budget': None, 'kv_blocks': None, 'prefix_caching': None}

# The tokens of the target alone, for each row.
EXPECTED = [[49, 102, 198, 132, 133, 220, 44, 74, 54, 221, 48]]

if __name__ == "__main__":
    main(ROWS, SETTINGS, EXPECTED, 'mistral')
