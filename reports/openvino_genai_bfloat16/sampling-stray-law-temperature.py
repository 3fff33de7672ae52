"""openvino_genai_bfloat16: sampling/stray-law, found by eqcheck 0.3.0.

openvino_genai_bfloat16 2026.4.1.0-3408-ab01d1771e4. Needs temperature. Without speculation the engine is correct.
sampling/stray-law: sampled tokens do not follow the target's distribution. after 108 tokens the evidence
(e-value) against the target's distribution is 10^7; a correct decoder reaches 10^6 in one audit of a million;
a hint, but no proof: most of the evidence comes from tokens drawn with earlier random numbers of the row;
these tokens are of this request alone, sampled again and again; in the whole audit the evidence is 10^147
after 3,175 tokens; in 41 cases a token was returned that has probability 0 under its request's options

    eqcheck checkpoint write full target --draft draft --agreement 0.75 --dtype bfloat16
    python <this file> target draft        # exit code 1: shown, 0: not shown; needs openvino-genai, optimum-intel[openvino], torch, and _engine.py, _checkpoint.py, _sampling.py and _law.py beside it
"""

from _checkpoint import row
from _sampling import main

ROWS = [
    row([18], 3, temperature=1.0),
]
SETTINGS = {'num_draft_tokens': 1, 'drafting': 'model', 'token_budget': None, 'kv_blocks': None, 'prefix_caching': None, 'dtype': 'bfloat16'}
ORDER = ('temperature', 'top-k', 'top-p', 'min-p')
MOST = 1500  # tokens: ten times as many as the evidence took when this was written, or more

if __name__ == "__main__":
    main(ROWS, SETTINGS, ORDER, MOST)
