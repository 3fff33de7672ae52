"""openvino_genai: crash/exception:RuntimeError at sampler.cpp:1519, found by eqcheck 0.3.0.

openvino_genai 2026.4.1.0-3408-ab01d1771e4. Needs ngram, kv-blocks. Without speculation the engine is right.
crash/exception:RuntimeError at sampler.cpp:1519: the decoder raised. RuntimeError at sampler.cpp:1519: Check
'sequence_group->get_max_new_tokens() >= generated_and_verified_len' failed at
/home/jenkins/agent/workspace/private-ci/ie/build-linux-
manylinux_2_28/b/repos/openvino.genai/src/cpp/src/sampling/sampler.cpp:1519

    eqcheck checkpoint write full target --draft draft --agreement 0.75
    python <this file> target draft        # exit code 1: shown, 0: not shown; needs openvino-genai, optimum-intel[openvino], torch, and _engine.py and _checkpoint.py beside it
"""

from _checkpoint import main, row

ROWS = [
    row([71], 8),
    row([17], 8),
    row([132, 76], 10),
    row([103], 10),
    row([231, 239, 141, 20, 81, 18, 231], 10),
    row([184, 35, 232, 181, 15, 39, 232, 42, 184, 35, 232], 10),
    row([135, 170, 212, 137, 11, 246, 92, 53, 181, 200, 75, 153, 25, 71, 44, 83, 169, 161, 228, 140, 15, 43, 250, 186, 134, 41, 151, 239, 164, 135, 170, 212, 137, 11, 246, 92, 53, 181, 200, 75, 153, 25, 71, 44, 83, 169, 161, 228, 140, 15, 43, 250, 186], 10),
    row([58, 191, 124, 249, 198, 25, 250, 190, 118, 147, 55, 93, 50, 147, 213, 248, 20, 103, 198, 184, 216, 73, 51, 58, 191, 124, 249, 198, 25, 250, 190, 118, 147, 55, 93, 50, 147, 213, 248, 20, 103], 10),
    row([196, 90, 46, 28, 13, 218, 252, 125, 30, 5, 70, 160, 162, 239, 78, 85, 134, 112, 12, 119, 203, 47], 10),
    row([165, 240, 25, 17, 73, 236, 101, 73, 142, 239], 10),
]
SETTINGS = {'num_draft_tokens': 5, 'drafting': 'ngram', 'token_budget': None, 'kv_blocks': 13, 'prefix_caching': None}

# The tokens of the target alone, for each row.
EXPECTED = [[150, 174, 197, 162, 229, 200, 227, 215], [250, 26, 251, 69, 75, 177, 147, 95], [212, 87, 82, 164, 114, 30, 170, 204, 145, 222], [130, 207, 238, 41, 207, 181, 9, 65, 35, 244], [4, 163, 240, 122, 37, 212, 60, 217, 174, 85], [27, 96, 195, 145, 215, 132, 222, 112, 223, 13], [45, 183, 162, 31, 73, 93, 232, 179, 84, 49], [234, 235, 11, 9, 120, 167, 27, 99, 165, 68], [48, 205, 84, 44, 175, 181, 58, 100, 210, 175], [6, 247, 86, 34, 191, 192, 101, 28, 27, 225]]

if __name__ == "__main__":
    main(ROWS, SETTINGS, EXPECTED)
