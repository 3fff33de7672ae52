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
    row([97, 239, 245, 27, 204, 79, 63, 195, 155, 115, 143, 7, 138, 159], 19),
    row([174, 41, 250, 27, 78, 119, 233, 30, 202, 235, 58, 169, 175, 80, 173, 122, 213, 91, 198, 236, 239, 184, 174, 41, 250, 27, 78, 119, 233, 30, 202, 235, 58, 169, 175, 80, 173, 122], 19),
    row([168, 141, 30, 9, 254, 105, 214, 84, 179, 161, 197, 64, 135, 247, 13, 210, 163, 129, 8, 123, 244, 168, 141, 30, 9, 254, 105, 214, 84, 179, 161, 197, 64, 135, 247, 13], 19),
    row([183, 19, 72, 39, 26, 159, 148, 90, 149, 183, 19, 72], 19),
    row([207, 66, 2, 138, 252, 89, 12, 207], 19),
    row([62, 10, 105, 232, 181, 51, 158, 244, 215, 97, 125, 147, 106, 115, 106, 101], 19),
    row([62], 19),
    row([165, 53, 102, 159, 99, 138, 230, 154, 163, 17, 231, 205, 198, 5, 165, 95, 240, 143, 149], 19),
]
SETTINGS = {'num_draft_tokens': 7, 'drafting': 'ngram', 'token_budget': None, 'kv_blocks': 12, 'prefix_caching': None, 'dtype': 'bfloat16'}

# The tokens of the target alone, for each row.
EXPECTED = [[127, 159, 209, 246, 116, 253, 156, 190, 206, 168, 122, 130, 66, 166, 224, 3, 91, 20, 147], [129, 195, 189, 201, 174, 118, 242, 164, 92, 153, 145, 115, 62, 28, 83, 92, 89, 191, 130], [175, 37, 118, 113, 26, 69, 117, 216, 121, 236, 12, 231, 158, 242, 47, 86, 219, 159, 121], [191, 95, 108, 206, 207, 174, 196, 122, 147, 220, 132, 218, 59, 211, 248, 166, 156, 19, 187], [23, 245, 250, 182, 38, 167, 193, 0, 197, 49, 76, 235, 145, 158, 193, 245, 184, 108, 232], [10, 93, 189, 146, 163, 71, 193, 215, 180, 122, 150, 190, 225, 66, 188, 145, 201, 26, 173], [40, 234, 124, 173, 28, 28, 131, 105, 139, 218, 72, 160, 204, 158, 149, 54, 188, 248, 69], [120, 242, 172, 209, 97, 217, 209, 225, 25, 131, 237, 232, 183, 9, 198, 242, 106, 82, 237]]

if __name__ == "__main__":
    main(ROWS, SETTINGS, EXPECTED)
