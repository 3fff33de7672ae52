"""openvino_genai_bfloat16: crash/exception:RuntimeError at sampler.cpp:1519, found by eqcheck 0.3.0.

openvino_genai_bfloat16 2026.4.1.0-3408-ab01d1771e4. Needs ngram and kv-blocks. Without speculation the engine is correct.
crash/exception:RuntimeError at sampler.cpp:1519: the decoder raised an exception. RuntimeError at
sampler.cpp:1519: Check 'sequence_group->get_max_new_tokens() >= generated_and_verified_len' failed at
/home/jenkins/agent/workspace/private-ci/ie/build-linux-
manylinux_2_28/b/repos/openvino.genai/src/cpp/src/sampling/sampler.cpp:1519

    eqcheck checkpoint write mistral target --draft draft --agreement 0.75 --dtype bfloat16
    python <this file> target draft        # exit code 1: shown, 0: not shown; needs openvino-genai, optimum-intel[openvino], torch, and _engine.py and _checkpoint.py beside it
"""

from _checkpoint import main, row

ROWS = [
    row([186, 230], 37),
    row([9, 220, 148, 84, 136, 241, 75, 172, 220, 67, 79, 246, 136, 37, 83, 39, 44, 59, 60, 217, 20, 52, 135, 11, 94, 221, 4], 37),
    row([253, 221, 149, 116, 41, 173, 41, 127, 154, 223, 8, 161, 25, 1, 142, 217, 177, 21, 39, 212, 110, 135, 203, 81], 37),
    row([31, 34, 91, 89, 179, 230, 144, 96, 196, 30, 69, 86, 114, 175, 15, 83, 97, 114, 254, 10, 90, 184, 13, 93, 105, 105, 199, 75, 214, 99], 37),
]
SETTINGS = {'num_draft_tokens': 6, 'drafting': 'ngram', 'token_budget': None, 'kv_blocks': 10, 'prefix_caching': None, 'dtype': 'bfloat16'}

# The tokens of the target alone, for each row.
EXPECTED = [[178, 192, 235, 203, 159, 232, 182, 132, 217, 3, 29, 167, 171, 46, 25, 31, 162, 43, 54, 153, 212, 98, 107, 176, 43, 142, 75, 95, 85, 102, 26, 6, 76, 50, 16, 129, 59], [175, 171, 27, 147, 0, 156, 216, 9, 188, 61, 169, 161, 148, 219, 82, 103, 70, 229, 227, 201, 192, 228, 169, 61, 134, 179, 60, 22, 171, 197, 211, 151, 121, 49, 148, 249, 149], [69, 72, 75, 143, 15, 171, 58, 43, 242, 140, 194, 234, 1, 238, 21, 145, 79, 194, 224, 131, 171, 49, 193, 6, 49, 221, 219, 2, 15, 145, 135, 66, 179, 102, 231, 237, 178], [181, 92, 157, 160, 180, 205, 42, 151, 172, 253, 206, 52, 107, 210, 200, 244, 203, 205, 170, 58, 79, 183, 94, 120, 119, 1, 182, 127, 58, 245, 82, 233, 72, 43, 27, 144, 246]]

if __name__ == "__main__":
    main(ROWS, SETTINGS, EXPECTED, 'mistral')
