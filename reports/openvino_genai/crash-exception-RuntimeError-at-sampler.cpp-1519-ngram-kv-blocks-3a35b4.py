"""openvino_genai: crash/exception:RuntimeError at sampler.cpp:1519, found by eqcheck 0.3.0.

openvino_genai 2026.4.1.0-3408-ab01d1771e4. Needs ngram, kv-blocks. Without speculation the engine is right.
crash/exception:RuntimeError at sampler.cpp:1519: the decoder raised. RuntimeError at sampler.cpp:1519: Check
'sequence_group->get_max_new_tokens() >= generated_and_verified_len' failed at
/home/jenkins/agent/workspace/private-ci/ie/build-linux-
manylinux_2_28/b/repos/openvino.genai/src/cpp/src/sampling/sampler.cpp:1519

    eqcheck checkpoint write mistral target --draft draft --agreement 0.75
    python <this file> target draft        # exit code 1: shown, 0: not shown; needs openvino-genai, optimum-intel[openvino], torch, and _engine.py and _checkpoint.py beside it
"""

from _checkpoint import main, row

ROWS = [
    row([230], 36),
    row([84, 136, 241, 75, 172, 220, 67, 79, 246, 136, 37, 83, 39, 44, 59, 60, 217, 20, 52, 135, 11, 94, 221, 4], 36),
    row([253, 221, 149, 116, 41, 173, 41, 127, 154, 223, 8, 161, 25, 1, 142, 217, 177, 21, 39, 212, 110, 135, 203, 81], 36),
    row([89, 179, 230, 144, 96, 196, 30, 69, 86, 114, 175, 15, 83, 97, 114, 254, 10, 90, 184, 13, 93, 105, 105, 199, 75, 214, 99], 37),
]
SETTINGS = {'num_draft_tokens': 6, 'drafting': 'ngram', 'token_budget': None, 'kv_blocks': 10, 'prefix_caching': None}

# The tokens of the target alone, for each row.
EXPECTED = [[213, 25, 132, 203, 205, 90, 237, 153, 253, 107, 212, 117, 176, 76, 183, 38, 87, 67, 186, 34, 67, 206, 64, 240, 250, 111, 159, 41, 230, 4, 20, 221, 70, 31, 113, 90], [123, 100, 184, 204, 202, 29, 73, 150, 120, 182, 113, 131, 9, 237, 246, 70, 212, 129, 7, 79, 212, 206, 161, 108, 228, 85, 67, 77, 242, 0, 112, 21, 131, 73, 187, 21], [69, 72, 75, 143, 15, 171, 58, 43, 242, 140, 194, 234, 1, 238, 21, 145, 79, 194, 224, 131, 171, 49, 193, 6, 49, 221, 219, 2, 15, 145, 135, 66, 179, 102, 231, 237], [160, 227, 41, 233, 27, 94, 235, 80, 137, 176, 149, 9, 244, 102, 33, 86, 10, 219, 137, 173, 235, 81, 113, 160, 12, 179, 149, 22, 222, 175, 162, 240, 52, 136, 17, 142, 71]]

if __name__ == "__main__":
    main(ROWS, SETTINGS, EXPECTED, 'mistral')
