"""openvino_genai: crash/exception:RuntimeError at sampler.cpp:1519, found by eqcheck 0.3.0.

openvino_genai 2026.4.1.0-3408-ab01d1771e4. Needs ngram and kv-blocks. Without speculation the engine is correct.
crash/exception:RuntimeError at sampler.cpp:1519: the decoder raised an exception. RuntimeError at
sampler.cpp:1519: Check 'sequence_group->get_max_new_tokens() >= generated_and_verified_len' failed at
/home/jenkins/agent/workspace/private-ci/ie/build-linux-
manylinux_2_28/b/repos/openvino.genai/src/cpp/src/sampling/sampler.cpp:1519

    python <this file>        # exit code 1: shown, 0: not shown; needs openvino-genai, optimum-intel[openvino], torch, and _engine.py and _checkpoint.py beside it
"""

from _checkpoint import main, row

ROWS = [
    row([230], 36),
    row([9, 220, 148, 84, 136, 241, 75, 172, 220, 67, 79, 246, 136, 37, 83, 39, 44, 59, 60, 217, 20, 52, 135, 11, 94, 221, 4], 37),
    row([253, 221, 149, 116, 41, 173, 41, 127, 154, 223, 8, 161, 25, 1, 142, 217, 177, 21, 39, 212, 110, 135, 203, 81], 37),
    row([31, 34, 91, 89, 179, 230, 144, 96, 196, 30, 69, 86, 114, 175, 15, 83, 97, 114, 254, 10, 90, 184, 13, 93, 105, 105, 199, 75, 214, 99], 37),
]
SETTINGS = {'num_draft_tokens': 6, 'drafting': 'ngram', 'token_budget': None, 'kv_blocks': 10, 'prefix_caching': None}

# The tokens of the target alone, for each row.
EXPECTED = [[40, 126, 255, 27, 164, 183, 31, 250, 183, 32, 250, 89, 113, 13, 65, 155, 39, 212, 185, 199, 209, 11, 150, 18, 236, 188, 126, 60, 126, 78, 70, 185, 27, 19, 210, 40], [102, 211, 227, 153, 246, 188, 206, 60, 60, 60, 60, 60, 227, 60, 10, 156, 187, 241, 105, 200, 227, 58, 241, 142, 47, 18, 37, 228, 95, 188, 41, 105, 180, 203, 176, 162, 176], [10, 98, 75, 147, 20, 202, 241, 61, 139, 12, 147, 80, 110, 2, 249, 213, 131, 41, 131, 8, 188, 222, 106, 253, 114, 3, 183, 17, 241, 126, 194, 16, 241, 197, 30, 3, 205], [180, 20, 115, 165, 213, 241, 126, 213, 131, 78, 165, 118, 77, 126, 213, 119, 4, 36, 108, 164, 185, 90, 60, 135, 119, 57, 141, 255, 53, 128, 180, 218, 185, 255, 199, 230, 30]]

if __name__ == "__main__":
    main(ROWS, SETTINGS, EXPECTED)
