"""openvino_genai: crash/exception:RuntimeError at sampler.cpp:1519, found by eqcheck 0.1.0.

openvino_genai 2026.4.1.0-3408-ab01d1771e4. Needs ngram, kv-blocks. Without speculation the engine is right.
crash/exception:RuntimeError at sampler.cpp:1519: the decoder raised. RuntimeError at sampler.cpp:1519: Check
'sequence_group->get_max_new_tokens() >= generated_and_verified_len' failed at
/home/jenkins/agent/workspace/private-ci/ie/build-linux-
manylinux_2_28/b/repos/openvino.genai/src/cpp/src/sampling/sampler.cpp:1519

    python <this file>        # exit code 1: shown, 0: not shown; needs openvino-genai, optimum-intel[openvino], torch, and _engine.py beside it
"""

from _engine import main, row

ROWS = [
    row([109, 31, 222, 133, 126, 70, 10, 12, 178, 162, 9, 7, 98, 77, 250, 148, 250, 130, 10, 139, 32, 94, 235, 118, 182, 26, 120, 193, 54, 232, 9, 166, 12, 197, 36, 142, 140, 212, 197, 222, 98, 105, 182, 37, 20, 209, 222, 55, 24, 109, 31, 222, 133, 126, 70, 10, 12, 178, 162, 9, 7, 98, 77, 250, 148, 250, 130, 10, 139, 32, 94, 235, 118, 182, 26, 120, 193, 54, 232, 9, 166, 12, 197, 36, 142, 140, 212, 197, 222, 98, 105, 182, 37], 2),
    row([131, 134, 169, 39, 10, 218, 146, 189, 169, 191, 34, 78, 52, 28, 62, 240, 102, 216, 54, 235, 234, 62, 21, 202, 251, 65, 247, 115, 127], 3),
    row([131, 69, 141, 147, 152, 154, 239, 169, 161, 189, 95, 177, 247, 217, 187, 167, 78, 170, 173, 108, 25, 56, 47, 228, 180, 101, 238, 238, 233], 3),
    row([116], 3),
    row([135, 255, 108, 84, 153, 109, 22, 138, 234, 120, 22, 187, 250, 11, 247, 143, 49, 111, 69, 40, 55, 64, 248, 71, 47, 193, 25, 73, 71], 2),
]
SETTINGS = {'num_draft_tokens': 3, 'drafting': 'ngram', 'token_budget': None, 'kv_blocks': 10, 'prefix_caching': None}

# What the target emits for each row, in float64, alone.
EXPECTED = [[51, 217], [52, 19, 80], [227, 250, 241], [200, 253, 3], [47, 216]]

if __name__ == "__main__":
    main(ROWS, SETTINGS, EXPECTED)
