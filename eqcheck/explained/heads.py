"""What is said of wrong inputs of a head: faults that cost speed only."""

from __future__ import annotations

from eqcheck.explained.record import Cause, Explained

# What the examples are about.
_ROUND = (
    "A row has five tokens, positions 0 to 4, and the newest is the bonus. K is 3 and the target accepted one draft "
    "token in the last call. So the head is to be given the target's state of position 3, from column 1 of that call."
)
_SEEN_BY_NOBODY = "The output stays right, because the target verifies. Only acceptance shows it."

RECORDS = {
    "draft/torn-hidden": Explained(
        example=f"{_ROUND} It is given the mean of two columns, or zeros. {_SEEN_BY_NOBODY}",
        causes=(
            Cause(
                "A normalisation is left out, and the sum that was part of it is left out with it.",
                ("vllm-project/vllm#14464",),
            ),
            Cause("The buffer of the states is never written for a row, so the head reads zeros."),
            Cause("A copy in pieces takes the pieces from two states."),
        ),
        fix="Hand over the numbers as the target gave them. Compare the head's input with the target's output, number "
        "by number.",
    ),
    "draft/wrong-layer-hidden": Explained(
        example=f"{_ROUND} It is given the right position's state, from the layer before the last. {_SEEN_BY_NOBODY}",
        causes=(
            Cause(
                "Numbers of layers are off by one, or the state behind the last layer is never kept.",
                ("sgl-project/sglang#32334",),
            ),
            Cause(
                "The state behind the last normalisation is taken for the one before it, or the halves of the input "
                "are exchanged.",
                ("ml-explore/mlx-lm#1469",),
            ),
        ),
        fix="Read in the head's own training code which layer it saw, and on which side of the normalisation.",
    ),
    "draft/own-hidden": Explained(
        example=f"{_ROUND} The entry of position 3 in the head's cache is still the one that the head wrote from its "
        f"own state while it drafted. {_SEEN_BY_NOBODY}",
        causes=(
            Cause(
                "Entries of accepted draft tokens are kept as the head wrote them. They are to be written again from "
                "the target's states.",
                ("vllm-project/vllm#14649",),
            ),
            Cause(
                "The cache of a later module is rolled back by the number of rejected tokens, and what stays is of "
                "the modules before it.",
                ("vllm-project/vllm#33561",),
            ),
        ),
        fix="After each round write the head's entries of all newly accepted tokens again, from the target's states.",
    ),
    "draft/wrong-row-hidden": Explained(
        example=f"{_ROUND} Another row of the batch accepted three. The flat list of states is cut as if every row "
        f"had accepted one, so the head is given the other row's state. {_SEEN_BY_NOBODY}",
        causes=(
            Cause(
                "The states of all rows lie in one flat tensor, and a row's part is looked up by its number.",
                ("sgl-project/sglang#28496", "sgl-project/sglang#26217"),
            ),
            Cause(
                "Rows are regrouped or leave, and their states keep the old order.",
                ("vllm-project/vllm#7505", "vllm-project/vllm#7508", "ggml-org/llama.cpp#29019"),
            ),
            Cause(
                "Offsets count the whole prompt, where a part of it was found in a cache and not computed.",
                ("sgl-project/sglang#4997", "sgl-project/sglang#6551"),
            ),
            Cause("What is carried over is kept under the number of the first row.", ("turbo-tan/llama.cpp-tq3#79",)),
            Cause("Training data has the states of another row.", ("vllm-project/speculators#279",)),
        ),
        fix="Keep a row's states under the row's own id, and cut the flat tensor by what each row was really fed.",
    ),
    "draft/stale-hidden": Explained(
        example=f"{_ROUND} It is given the state of position 2 once more, from the call before. {_SEEN_BY_NOBODY}",
        causes=(
            Cause(
                "Recorded graphs read a buffer that was not written in this round, or that the next replay overwrites.",
                ("sgl-project/sglang#22832", "sgl-project/sglang#18647", "sgl-project/sglang#22958"),
            ),
            Cause(
                "From the second step on the head is given the target's state again, where its own is due.",
                ("vllm-project/vllm#36531", "sgl-project/sglang#10059", "sgl-project/sglang#10801"),
            ),
            Cause("A round without draft tokens does not write the states down."),
        ),
        fix="Take the states from the call that committed the row's newest token, also after a round without draft "
        "tokens. From its second step on give the head its own state.",
    ),
    "draft/wrong-column-hidden": Explained(
        example=f"{_ROUND} It is given the last column, which holds a rejected draft token, or column 0. It looks "
        f"right where all or none of the draft tokens are accepted. {_SEEN_BY_NOBODY}",
        causes=(
            Cause(
                "The number of accepted tokens is not updated, so the column is right only after full acceptance.",
                ("charlie12345/ROCmFPX#15",),
            ),
            Cause("One state is kept where several are due.", ("sgl-project/sglang#16974",)),
            Cause(
                "Rows of the tensor are taken for positions, which images or skipped tokens shift.",
                ("ggml-org/llama.cpp#22881", "ikawrakow/ik_llama.cpp#1894"),
            ),
            Cause("All rows use the column of one of them, or the last column."),
        ),
        fix="The newest state stands in the column of the last accepted token: column 0 if none was accepted, column K "
        "if all were. Take it by row. Test with rows that accept different numbers, and neither none nor all.",
    ),
    "draft/token-shift": Explained(
        example=f"{_ROUND} A head that reads pairs is given that state with the token at position 3. The token at "
        f"position 4 is due: the one that the state predicts. {_SEEN_BY_NOBODY}",
        causes=(
            Cause(
                "The first token of the prompt is not dropped, so every state meets its own token.",
                ("vllm-project/vllm#14647", "mlc-ai/mlc-llm#2266"),
            ),
            Cause(
                "The bonus never reaches the head.",
                ("ikawrakow/ik_llama.cpp#1979", "ikawrakow/ik_llama.cpp#1718"),
            ),
        ),
        fix="Shift the tokens by one against the states: the state of position p goes with the token at p + 1. The "
        "last pair of a round has the correction or the bonus.",
    ),
}
