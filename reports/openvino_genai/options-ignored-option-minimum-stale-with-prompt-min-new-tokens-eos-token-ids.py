"""openvino_genai: EOS-too-early, found by eqcheck 0.3.0.

openvino_genai 2026.4.1.0-3408-ab01d1771e4. Needs min-new-tokens and eos-token-ids. Without speculation the engine is correct.
options/ignored-option:minimum-stale-with-prompt: a requested option is not applied. If min_new_tokens is
compared with the number of new tokens when the round began, or after a rejection with the number of all
tokens but one, those of the prompt included, the reference model gives exactly the 13 wrong tokens in 41
cases like this one (13 fail). The options forbid a returned token, so this is not an accident.

    python <this file>        # exit code 1: shown, 0: not shown; needs openvino-genai, optimum-intel[openvino], torch, and _engine.py and _checkpoint.py beside it
"""

from _checkpoint import main, row

ROWS = [
    row([16, 78, 20, 113, 97], 6, eos_token_ids=[111], min_new_tokens=6),
]
SETTINGS = {'num_draft_tokens': 3, 'drafting': 'model', 'token_budget': None, 'kv_blocks': None, 'prefix_caching': None}

# The tokens of the target alone, for each row.
EXPECTED = [[12, 116, 143, 221, 2, 170]]

if __name__ == "__main__":
    main(ROWS, SETTINGS, EXPECTED)
