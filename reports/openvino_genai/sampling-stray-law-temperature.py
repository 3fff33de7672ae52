"""openvino_genai: sampling/stray-law, found by eqcheck 0.1.0.

openvino_genai 2026.4.1.0-3408-ab01d1771e4. Without speculation the engine is right.
rows are not drawn from the law of the target, and no part of a round leads clearly. the evidence against the
target's law is 9.6e+06 after 126 tokens, which a right decoder exceeds once in 9.6e+06 audits; no part of a
round leads clearly; of the bets own-uniform-1:0.3 earns most. That is of the request below, drawn again and
again; in the audit the evidence reached 2.6e+149 within 3206 tokens (at the end, by regime: std 1e18, one
1e65, peaked 1e74, flat 1e4, ngram 1e0); in 39 cases of it a token was emitted that has no probability under
the options of its row

    python <this file>        # exit code 1: shown, 0: not shown; needs openvino-genai, optimum-intel[openvino], torch; _engine.py and _sampling.py beside it
"""

from _engine import row
from _sampling import main

ROWS = [
    row([18], 3, temperature=1.0),
]
SETTINGS = {'num_draft_tokens': 1, 'drafting': 'model', 'token_budget': None, 'kv_blocks': None, 'prefix_caching': None}
ORDER = ('temperature', 'top-k', 'top-p', 'min-p')
MOST = 1500  # tokens: ten times as many as the evidence took when this was written, or more

if __name__ == "__main__":
    main(ROWS, SETTINGS, ORDER, MOST)
