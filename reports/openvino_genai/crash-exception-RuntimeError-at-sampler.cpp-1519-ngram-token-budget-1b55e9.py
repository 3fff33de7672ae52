"""openvino_genai: crash/exception:RuntimeError at sampler.cpp:1519, found by eqcheck 0.1.0.

openvino_genai 2026.4.1.0-3408-ab01d1771e4. Needs ngram, token-budget. Without speculation the engine is right.
crash/exception:RuntimeError at sampler.cpp:1519: the decoder raised. RuntimeError at sampler.cpp:1519: Check
'sequence_group->get_max_new_tokens() >= generated_and_verified_len' failed at
/home/jenkins/agent/workspace/private-ci/ie/build-linux-
manylinux_2_28/b/repos/openvino.genai/src/cpp/src/sampling/sampler.cpp:1519

    python <this file>        # exit code 1: shown, 0: not shown; needs openvino-genai, optimum-intel[openvino], torch, and _engine.py beside it
"""

from _engine import main, row

ROWS = [
    row([112], 2),
    row([133], 2),
    row([197], 2),
    row([73], 2),
]
SETTINGS = {'num_draft_tokens': 5, 'drafting': 'ngram', 'token_budget': 16, 'kv_blocks': None, 'prefix_caching': None}

# What the target emits for each row, in float64, alone.
EXPECTED = [[252, 87], [168, 192], [239, 111], [129, 6]]

if __name__ == "__main__":
    main(ROWS, SETTINGS, EXPECTED)
