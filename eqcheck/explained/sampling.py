"""Rows that are not drawn from the target's law, or not independently. In these texts p is the target's law of the next
token, options applied, and q the law from which the draft token was drawn.
"""

from __future__ import annotations

from eqcheck.explained.record import Cause, Explained

RECORDS: dict[str, Explained] = {
    "sampling/impossible-token": Explained(
        example="A row has `top_k` 20. It emits the token that ranks 40th in the target's law. No chance is needed "
        "to call that wrong.",
        causes=(
            Cause(
                "A cut or bias is applied to the bonus token only, and not where draft tokens are verified.",
                ("vllm-project/vllm#42744", "vllm-project/vllm#42802"),
            ),
            Cause(
                "The comparison is inclusive: a draft token with p = 0 is accepted when the coin is exactly 0.",
                ("sgl-project/sglang#35771",),
            ),
            Cause(
                "Rows with and without seeds are mixed. A write goes into a copy, and id 0 is emitted.",
                ("vllm-project/vllm#10863",),
            ),
            Cause("The batch has rows with and without `top_k`.", ("vllm-project/vllm#14301",)),
        ),
        fix="Apply temperature, cuts and biases of the row to the target's logits in every column, before anything "
        "is accepted or drawn. Accept where coin < p/q, not where coin <= p/q.",
    ),
    "sampling/over-acceptance": Explained(
        example="The draft token has p = 0.2 and q = 0.4. It should be accepted half of the time, and is always "
        "accepted.",
        causes=(
            Cause(
                "The coin is a constant 0.",
                ("vllm-project/vllm-ascend#13730", "vllm-project/vllm-ascend#13470", "vllm-project/vllm-ascend#13766"),
            ),
            Cause("The random numbers for the coins degenerate to 0 and 1.", ("vllm-project/vllm#13196",)),
            Cause(
                "Candidates of a prompt lookup are given probability 1, so all of them are accepted.",
                ("openvinotoolkit/openvino.genai#2331",),
            ),
            Cause("The first draft token is committed without being verified.", ("ohdearquant/lattice#243",)),
        ),
        fix="Accept a draft token with probability min(1, p/q), with a fresh uniform coin in [0, 1) for each draft "
        "token. q must be the law from which the token was really drawn.",
    ),
    "sampling/under-acceptance": Explained(
        example="The draft token has p = 0.4 and q = 0.4, and is accepted in seven of ten rounds only. Corrections "
        "are drawn as if all of it had been accepted, so other tokens become too frequent.",
        causes=(
            Cause(
                "Probabilities are handed to a function that expects logits. Acceptance and rejection were wrong.",
                ("vllm-project/vllm-ascend#6685",),
            ),
            Cause("The ratio is scaled, or compared with a coin that is not uniform."),
        ),
        fix="Accept with probability min(1, p/q) exactly. If fewer tokens shall be accepted, the residual must be "
        "that of the smaller acceptance.",
    ),
    "sampling/threshold-acceptance": Explained(
        example="The coin is 0.5 in every column. A draft token with p/q = 0.6 is accepted always, one with p/q = 0.4 "
        "never; right is six times and four times in ten.",
        causes=(
            Cause("A ratio is compared with a fixed number in place of a fresh uniform number."),
            Cause("The buffer of random numbers is filled once with one value, and never drawn anew."),
        ),
        fix="Draw a number from [0, 1) for every draft token, and accept where it is below p/q. An engine that accepts "
        "by a threshold on purpose does not keep the target's law: declare lossless as the reason.",
    ),
    "sampling/residual": Explained(
        example="Two tokens have p = 0.6, 0.4 and q = 0.9, 0.1. A rejected first token must be corrected to the "
        "second: the residual max(p - q, 0) has nothing else. The correction is drawn from p, and is the first token "
        "again in six of ten corrections.",
        causes=(
            Cause("The correction is drawn from p itself.", ("jaymody/speculative-sampling#3",)),
            Cause("The residual of a tree of candidates is wrong.", ("SafeAILab/EAGLE#47",)),
            Cause(
                "The target draws a token, and where it is not the draft's it draws again.",
                ("ml-explore/mlx-swift-lm#459",),
            ),
            Cause(
                "The difference of logarithms cancels where q/p is small.",
                ("vllm-project/vllm#46665",),
            ),
            Cause("The residual is zero everywhere where p equals q.", ("jaymody/speculative-sampling#5",)),
        ),
        fix="Draw corrections from max(p - q, 0), normalised, with the same p and q as acceptance. A draft that "
        "proposes one token for certain has q = 1 there: the residual is p without that token.",
    ),
    "sampling/correction-column": Explained(
        example="The second of three draft tokens is rejected. The correction is drawn from the law behind the third "
        "draft token.",
        causes=(
            Cause(
                "The logits of the wrong columns are taken when a tree is verified.",
                ("NVIDIA/TensorRT-LLM#15098",),
            ),
            Cause("The index of the rejected token counts from the block's first column, or from the next."),
        ),
        fix="After n accepted draft tokens the correction follows the law in column n of the row's block, counted "
        "from the last committed token.",
    ),
    "sampling/bonus-column": Explained(
        example="All three draft tokens are accepted. The bonus is drawn from the law in the column of the second, "
        "where the third was verified.",
        causes=(Cause("The bonus is read from column K - 1 instead of column K."),),
        fix="A block of K draft tokens has K + 1 columns. The bonus follows the law of the last, behind all accepted "
        "draft tokens.",
    ),
    "sampling/stale-bonus": Explained(
        example="All draft tokens of the second round are accepted. The bonus is drawn from the law that the last "
        "column had in the first round.",
        causes=(
            Cause("The buffer of the bonus's logits is read before the new call has filled it."),
            Cause("The law of the bonus is computed once per row, and kept over rounds."),
        ),
        fix="Take the law of the bonus from the call that verified the draft tokens of the same round.",
    ),
    "sampling/greedy-drawn": Explained(
        example="Three rows ask for temperature 0.8, one for temperature 0. The one emits another answer each time.",
        causes=(
            Cause("A temperature of 0 is replaced by 1 so that nothing is divided by zero, and the row is drawn then."),
            Cause("The batch is drawn as a whole as soon as one of its rows is to be."),
        ),
        fix="Take the argmax in rows with temperature 0, at draft tokens, corrections and the bonus alike.",
    ),
    "sampling/bonus-law": Explained(
        example="A row has temperature 0.8. Its bonus tokens are always the target's most likely ones.",
        causes=(
            Cause("The bonus is an argmax, whatever the temperature.", ("Luce-Org/lucebox#374",)),
            Cause("The bonus is drawn without the row's temperature or cuts."),
        ),
        fix="Draw the bonus as a plain decode step would: with the options of the row.",
    ),
    "sampling/draft-law": Explained(
        example="The draft draws with `top_k` 20. Acceptance uses its softmax over the whole vocabulary as q, which "
        "is smaller. So p/q is too large, and draft tokens are accepted too often.",
        causes=(
            Cause(
                "The q that is returned is not the q that was sampled: logits before and after the cuts.",
                ("huggingface/transformers#47932", "huggingface/transformers#47961"),
            ),
            Cause(
                "The draft is greedy, and the ratio uses its softmax.",
                ("huggingface/transformers#32867", "huggingface/transformers#33534"),
            ),
            Cause(
                "The draft is not given the target's options.",
                ("huggingface/transformers#28166", "huggingface/transformers#28508"),
            ),
            Cause("The ratio is taken at temperature 1, whatever was asked.", ("ohdearquant/lattice#388",)),
            Cause(
                "Tokens are drawn in bfloat16, and the ratio is computed in float32.",
                ("deepseek-ai/DeepSpec#31",),
            ),
        ),
        fix="Keep the very probabilities from which the draft token was drawn, and hand them to acceptance and "
        "residual. A greedy draft has q = 1 for its token.",
    ),
    "sampling/wrong-draft-row": Explained(
        example="A row leaves the batch. The draft's probabilities keep their old order, so each row behind it is "
        "verified with q of its neighbour.",
        causes=(
            Cause(
                "Draft probabilities are stale, or not reordered with the batch.",
                ("vllm-project/vllm#41044", "vllm-project/vllm#44869"),
            ),
            Cause("Acceptance or residual takes q one column late."),
        ),
        fix="Store draft probabilities with the request and reorder them with it. Index q by row and column with the "
        "same indices as the draft tokens.",
    ),
    "sampling/target-option": Explained(
        example="Row 0 has temperature 0.5, row 1 has 1.5. Where draft tokens are verified, both use 0.5.",
        causes=(
            Cause(
                "The target's probabilities are taken without the request's options when it verifies.",
                ("vllm-project/vllm#9834", "vllm-project/vllm#10198", "vllm-project/vllm#18902"),
            ),
            Cause(
                "Options of one row are used for others: parameters per token are sliced as if they were per request, "
                "or row 0's serve all.",
                ("NVIDIA/TensorRT-LLM#12588", "Blaizzy/mlx-vlm#1647"),
            ),
            Cause(
                "Verification falls back to argmax on one platform.",
                ("sgl-project/sglang#39253", "sgl-project/sglang#31214", "ROCm/ATOM#2318"),
            ),
            Cause(
                "A temperature that was not given becomes nearly 0.",
                ("NVIDIA/TensorRT-LLM#19390",),
            ),
            Cause("Temperature and cuts are applied in another order than the decoder declares."),
        ),
        fix="Repeat each row's options for each of its K + 1 columns, and apply them before acceptance. Declare the "
        "order with `option_order=` if it is not that of transformers.",
    ),
    "sampling/first-token": Explained(
        example="A row has temperature 1. Its first new token is always the most likely one, and all later ones are "
        "drawn.",
        causes=(
            Cause("The token after the prefill is an argmax.", ("Luce-Org/lucebox#374",)),
            Cause("The prefill applies no options."),
        ),
        fix="Draw the token after the prefill with the options of the row, as any other.",
    ),
    "sampling/seed-ignored": Explained(
        example="A row has seed 7 and emits 12 40 3. Asked again, alone and first, it emits 12 9 77.",
        causes=(
            Cause("The seed of the request is ignored.", ("vllm-project/vllm#6034",)),
            Cause(
                "All rows draw from one stream, whatever their seeds.",
                ("NVIDIA/TensorRT-LLM#17599", "NVIDIA/TensorRT-LLM#17172"),
            ),
            Cause("The draft's own draws are not seeded.", ("sgl-project/sglang#33395",)),
            Cause("The generator is seeded by the clock.", ("ohdearquant/lattice#388",)),
        ),
        fix="Give each row with a seed a generator of its own, for the draft, the coins, the corrections and the "
        'bonus. Or declare `seeds="none"`.',
    ),
    "sampling/batch-dependent": Explained(
        example="A row has seed 7. Alone it emits 12 40 3. Beside a longer row it emits 12 9 77, though the decoder "
        'declares `seeds="mates"`.',
        causes=(
            Cause(
                "A row without draft tokens still takes numbers from its generator.",
                ("vllm-project/vllm-ascend#13608",),
            ),
            Cause(
                "A step of K + 1 tokens is computed by other kernels than a step of one, and rounds otherwise.",
                ("vllm-project/vllm#54506",),
            ),
            Cause("One global generator serves all rows, so a row's numbers depend on how many the others take."),
        ),
        fix="Derive random numbers from the row's seed and the token's position, not from a running stream. Else "
        'declare the weaker promise: `seeds="repeatable"` or `"none"`.',
    ),
    "sampling/shared-noise": Explained(
        example="Two rows have the same prompt and no seed. They emit the same tokens throughout: they share their "
        "random numbers.",
        causes=(
            Cause(
                "Requests without a seed share one stream per place in the batch.",
                ("NVIDIA/TensorRT-LLM#19487", "NVIDIA/TensorRT-LLM#19505"),
            ),
            Cause(
                "Noise depends on the seed and the position alone, so rows with one seed draw the same.",
                ("tenstorrent/tt-metal#53166",),
            ),
            Cause("One number is drawn for a column and used for all rows."),
        ),
        fix="Draw noise with a row dimension. If it is computed from a key, the key must tell requests apart: give "
        "each request without a seed a seed of its own.",
    ),
    "sampling/reused-noise": Explained(
        example="The noise that drew the draft token also draws its correction. A token that came second in the "
        "draft's draw is then emitted too seldom.",
        causes=(
            Cause(
                "Draft and correction use noise from the same seed and position.",
                ("vllm-project/vllm#54282", "vllm-project/vllm#47386", "vllm-project/vllm-ascend#15739"),
            ),
            Cause("The coin that rejected the draft token also draws the correction."),
        ),
        fix="Use fresh random numbers for draft, coin, correction and bonus. If noise is computed from a key, put the "
        "purpose into the key.",
    ),
    "sampling/stray-law": Explained(
        example="The evidence against the target's law reaches a million after 900 tokens. No part of a round "
        "explains the tokens much better than the others. So only the fact is reported.",
        causes=(
            Cause(
                "The rule of acceptance changes the law on purpose, as typical acceptance does.",
                ("vllm-project/vllm#5131",),
            ),
            Cause(
                "Ranks of a tensor-parallel engine seem to draw different random numbers.",
                ("vllm-project/vllm#17498",),
            ),
            Cause("Several parts are wrong at once, or too few tokens were drawn to tell them apart."),
        ),
        fix="Audit longer (`--budget 10m`): to name takes two to three times the tokens that it takes to see. If the "
        'law is changed on purpose, declare it: `lossless="typical acceptance"`.',
    ),
}
