"""openvino_genai_bfloat16: bookkeeping/past-eos, found by eqcheck 0.3.0.

openvino_genai_bfloat16 2026.4.1.0-3408-ab01d1771e4. Needs token-budget, eos-token-ids and logprobs.
bookkeeping/past-eos: tokens after the EOS. The row continues with 1 token after its EOS.

    eqcheck checkpoint write mistral target --draft draft --agreement 0.75 --dtype bfloat16
    python <this file> target draft        # exit code 1: shown, 0: not shown; needs openvino-genai, optimum-intel[openvino], torch, and _engine.py and _checkpoint.py beside it
"""

from _checkpoint import main, row

ROWS = [
    row([123, 128, 12, 209, 3, 50, 245, 226, 126, 93, 72, 236, 176, 46, 92, 129, 12, 253, 99, 185, 226, 136, 211], 10, eos_token_ids=[209], logprobs=True),
    row([61, 111, 113, 60, 9, 201, 45, 237, 252, 56, 64, 178, 7, 1, 206, 90, 54, 29, 230, 160, 171, 237, 231, 169, 148, 81, 104, 205, 47, 113, 139, 184, 49, 127, 81, 253, 188, 210], 4, eos_token_ids=[131], logprobs=True),
    row([68, 36, 10, 45, 68, 194, 24, 121, 0, 101, 239, 21, 94, 125, 193, 69, 182, 16, 214, 207, 77, 118, 240, 221, 172, 202, 243, 103, 44, 186, 206, 168, 38, 55, 107, 62, 51, 143, 135], 2, eos_token_ids=[229, 145], logprobs=True),
]
SETTINGS = {'num_draft_tokens': 5, 'drafting': 'model', 'token_budget': 16, 'kv_blocks': None, 'prefix_caching': None, 'dtype': 'bfloat16'}

# The tokens of the target alone, for each row.
EXPECTED = [[37, 187, 150, 139, 209], [131], [145]]

if __name__ == "__main__":
    main(ROWS, SETTINGS, EXPECTED, 'mistral')
