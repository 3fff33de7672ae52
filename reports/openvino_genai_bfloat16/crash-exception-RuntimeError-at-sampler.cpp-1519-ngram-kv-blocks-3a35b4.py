"""openvino_genai_bfloat16: crash/exception:RuntimeError at sampler.cpp:1519, found by eqcheck 0.3.0.

openvino_genai_bfloat16 2026.4.1.0-3408-ab01d1771e4. Needs ngram, kv-blocks. Without speculation the engine is right.
crash/exception:RuntimeError at sampler.cpp:1519: the decoder raised. RuntimeError at sampler.cpp:1519: Check
'sequence_group->get_max_new_tokens() >= generated_and_verified_len' failed at
/home/jenkins/agent/workspace/private-ci/ie/build-linux-
manylinux_2_28/b/repos/openvino.genai/src/cpp/src/sampling/sampler.cpp:1519

    eqcheck checkpoint write full target --draft draft --agreement 0.75 --dtype bfloat16
    python <this file> target draft        # exit code 1: shown, 0: not shown; needs openvino-genai, optimum-intel[openvino], torch, and _engine.py and _checkpoint.py beside it
"""

from _checkpoint import main, row

ROWS = [
    row([65, 39, 243, 37, 136, 106, 113, 129, 203, 138, 216, 2, 8, 139, 185, 226, 177, 84, 164, 113, 239, 98, 118, 77, 243, 157, 80, 6, 166, 147, 198, 188, 126, 165, 254, 155, 222, 159, 112, 1, 129, 176, 28, 47, 198, 249, 109, 14, 170, 165, 124, 156, 202, 19, 142, 144, 74, 24, 179, 132, 121, 105, 59, 228, 143, 236, 236, 150, 85, 89, 90, 222, 179, 42, 243, 157, 80, 6, 166, 147, 198, 188, 126, 165, 254, 155, 222, 159, 112, 1, 129, 176, 28, 47, 198, 249, 109, 14, 170, 165, 124, 156, 202, 19, 142, 144, 74, 24, 179, 132, 121, 105, 59, 228, 143, 236, 236, 150, 85, 89], 17),
    row([197, 48, 148, 171, 171, 152, 141, 122, 148, 159, 175, 39, 242, 119, 132, 193, 163, 124, 18, 216, 188, 21, 180, 209, 58, 135, 172, 23, 153, 246, 4, 192, 46, 218, 26, 211, 27, 145, 137, 207, 154, 98, 93, 142, 154, 125, 37, 12, 61, 137, 199, 237, 216, 216, 118, 210, 9, 8, 56, 16, 196, 156], 17),
    row([127, 79, 34, 214, 133, 234, 70, 166, 202, 144, 215, 176, 5, 202, 67, 23, 17, 217, 104, 224, 43, 155, 177, 134, 123, 17, 179, 163, 189, 157, 40, 124, 46, 117, 28, 143, 225, 196, 9, 65, 239, 103, 9, 71, 57], 17),
    row([145, 252, 75, 75, 204, 228, 133, 65, 39, 243, 37, 136, 106, 113, 129, 203, 138, 216, 2, 8, 139, 185, 226, 177, 84, 164, 113, 239, 98, 118, 77, 79, 105, 19, 43, 227, 56, 239, 206, 49, 25, 32, 79, 105, 19, 43, 227, 56, 239], 17),
]
SETTINGS = {'num_draft_tokens': 5, 'drafting': 'ngram', 'token_budget': None, 'kv_blocks': 13, 'prefix_caching': None, 'dtype': 'bfloat16'}

# The tokens of the target alone, for each row.
EXPECTED = [[138, 115, 114, 20, 50, 253, 95, 169, 182, 4, 22, 4, 158, 123, 152, 155, 69], [73, 214, 250, 101, 243, 232, 42, 185, 137, 122, 0, 159, 45, 145, 44, 149, 81], [146, 96, 58, 64, 208, 62, 248, 101, 118, 251, 29, 109, 164, 66, 57, 135, 249], [66, 171, 184, 11, 148, 94, 222, 106, 70, 70, 102, 176, 194, 58, 249, 9, 141]]

if __name__ == "__main__":
    main(ROWS, SETTINGS, EXPECTED, 'full')
