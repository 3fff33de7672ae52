"""openvino_genai_bfloat16: sampling/stray-law, found by eqcheck 0.3.0.

openvino_genai_bfloat16 2026.4.1.0-3408-ab01d1771e4. Needs temperature. Without speculation the engine is right.
sampling/stray-law: rows are not drawn from the law of the target, and no part of a round leads clearly. the
evidence against the target's law reached 1.9e+07 within 108 tokens: with a right decoder that happens in 1 of
1.9e+07 audits at most; no part of a round leads clearly; the bet that earns most is on tokens drawn with
earlier random numbers of the row. That is of the request below, drawn again and again; in the audit the
evidence reached 1.6e+147 within 3175 tokens (at the end, by regime: std 1e11, one 1e41, peaked 1e101, flat
1e2, ngram 1e0); in 41 cases of it a token was emitted that has no probability under the options of its row

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
