"""openvino_genai_bfloat16: EOS-held-back, found by eqcheck 0.3.0.

openvino_genai_bfloat16 2026.4.1.0-3408-ab01d1771e4. Needs min-new-tokens and eos-token-ids. Without speculation the engine is correct.
options/ignored-option:minimum-stale-with-prompt: a requested option is not applied. If min_new_tokens is
compared with the number of new tokens when the round began, or after a rejection with the number of all
tokens but one, those of the prompt included, the reference model gives exactly the 11 wrong tokens in 41
cases like this one (11 fail). The options forbid a returned token, so this is not an accident.

    eqcheck checkpoint write mistral target --draft draft --agreement 0.75 --dtype bfloat16
    python <this file> target draft        # exit code 1: shown, 0: not shown; needs openvino-genai, optimum-intel[openvino], torch, and _engine.py and _checkpoint.py beside it
"""

from _checkpoint import main, row

ROWS = [
    row([218], 11, eos_token_ids=[48], min_new_tokens=9),
]
SETTINGS = {'num_draft_tokens': 2, 'drafting': 'model', 'token_budget': None, 'kv_blocks': None, 'prefix_caching': None, 'dtype': 'bfloat16'}

# The tokens of the target alone, for each row.
EXPECTED = [[49, 102, 198, 132, 133, 220, 44, 74, 54, 221, 48]]

if __name__ == "__main__":
    main(ROWS, SETTINGS, EXPECTED, 'mistral')
