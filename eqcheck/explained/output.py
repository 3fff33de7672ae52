"""What is wrong with the tokens that are emitted, where every context was right; and decoders that fail."""

from __future__ import annotations

from eqcheck.explained.record import ROUND, Cause, Explained

RECORDS: dict[str, Explained] = {
    "bookkeeping/over-accept": Explained(
        example=f"{ROUND} The row emits 7 8, though the target answered 4 where the draft proposed 8.",
        causes=(
            Cause(
                "When steps overlap, the accepted counts of the step before are mishandled.",
                ("NVIDIA/TensorRT-LLM#11175",),
            ),
            Cause("Draft tokens that agree are counted, not those before the first that does not."),
            Cause("The correction is taken from the draft's tokens instead of the target's."),
        ),
        fix="Accept up to the first mismatch: the cumulative product of the comparisons, summed. Everything behind "
        "the first mismatch is rejected, whether it agrees or not.",
    ),
    "bookkeeping/unverified": Explained(
        example=f"{ROUND} This time the step has no room for the draft tokens: the target is fed id 6 alone. The row "
        "emits 7 8 9 all the same.",
        causes=(
            Cause(
                "Verification is off by one, so that the first draft token is emitted as it is.",
                ("ohdearquant/lattice#243",),
            ),
            Cause("A scheduler cuts the block short, and the commit still takes all draft tokens."),
            Cause("Draft tokens are compared with the draft's own answers, or the two models are exchanged."),
        ),
        fix="Commit by what was fed in this call, not by what was proposed. Drop draft tokens that were not "
        "scheduled before the commit.",
    ),
    "bookkeeping/wrong-correction": Explained(
        example=f"{ROUND} The row emits 7 and then the target's answer in the column of id 8, which stands behind a "
        "rejected token. Id 4, from the column before it, is right.",
        causes=(
            Cause("The logits of the wrong columns are taken for the verification.", ("NVIDIA/TensorRT-LLM#15098",)),
            Cause(
                "Bonus tokens are read with a wrong stride, or beyond a row's accepted tokens, in batches of trees.",
                ("sgl-project/sglang#26866",),
            ),
            Cause(
                "Tensors are indexed by a request's place in the draft's batch instead of the target's.",
                ("NVIDIA/TensorRT-LLM#7803",),
            ),
            Cause(
                "Greedy rows beside sampled ones emit an index among candidates instead of a token id.",
                ("vllm-project/vllm-ascend#16396",),
            ),
            Cause(
                "Ties are broken otherwise than by the target alone: the last of equal logits wins.",
                ("ohdearquant/lattice#280",),
            ),
        ),
        fix="The correction of a row that accepted n draft tokens is the target's answer in column n of its block, "
        "counted from the last committed token. Index columns and rows with the same tables that fed them.",
    ),
    "bookkeeping/unfinished-prompt": Explained(
        example="A prompt of 6 ids is fed in pieces of 4. The target's answer behind the fourth id is emitted as new "
        "token 0.",
        causes=(
            Cause("Each row of a step is sampled, also one whose prompt goes on in the next step."),
            Cause("Prefill and decode share a step, and rows are told apart by the number of their columns."),
            Cause("The prompt is fed without its last token, and its last answer is taken for the first new token."),
        ),
        fix="Keep how many tokens of the prompt are fed. Take an answer only from the call that feeds the last one.",
    ),
    "bookkeeping/lost-token": Explained(
        example=f"{ROUND} The row emits 4 without the accepted id 7 before it.",
        causes=(
            Cause(
                "When steps overlap, the accepted counts of the step before are mishandled.",
                ("NVIDIA/TensorRT-LLM#11175",),
            ),
            Cause("The last accepted draft token is dropped when the correction is appended."),
            Cause("Tokens of a row are cut when it is padded anew or returned."),
        ),
        fix="Append n + 1 tokens to a row that accepted n. Check that the output grows by that number in each round.",
    ),
    "bookkeeping/repeated-token": Explained(
        example=f"{ROUND} The row emits 7 4 4.",
        causes=(
            Cause("The correction or bonus token is committed by two places in the code."),
            Cause("The newest token is returned with the round that made it and with the next one."),
            Cause("A buffer of answers is too short, and its last entry is used again."),
        ),
        fix="Commit tokens in one place. Keep the newest token, which is fed next, apart from the tokens that are "
        "still to be emitted.",
    ),
    "bookkeeping/past-eos": Explained(
        example="The EOS id is 7. The draft proposes 7 8 9, and the target agrees with 7 and 8. The row emits 7 8: it "
        "should have ended after 7.",
        causes=(
            Cause(
                "A whole block is committed, and only its last token is compared with the EOS.",
                (
                    "huggingface/transformers#47912",
                    "HabanaAI/vllm-fork#1435",
                    "LostRuins/koboldcpp#1276",
                ),
            ),
            Cause(
                "The same with stop strings that are completed within a block.",
                ("huggingface/transformers#48039", "snowflakedb/ArcticInference#161"),
            ),
            Cause(
                "The number of tokens to roll back is computed before the block is cut at its end. The report saw "
                "tokens left in the slot's state.",
                ("ggml-org/llama.cpp#28049",),
            ),
            Cause("Of several EOS ids only the first ends a row."),
        ),
        fix="Search the whole committed block for the first EOS, cut the block behind it, and only then compute "
        "lengths and rollbacks.",
    ),
    "bookkeeping/premature-stop": Explained(
        example=f"{ROUND} The EOS id is 9. It was only proposed behind a rejected token. The row ends after 7 4, "
        "though the target goes on.",
        causes=(
            Cause("EOS is looked for in all draft tokens, not in the accepted ones."),
            Cause("EOS is looked for in the prompt, too; where pad and EOS share an id, in the pads."),
            Cause("Generation ends for all rows when one is done or has reached its limit."),
            Cause("Rows that wait for a place in a full batch are dropped."),
            Cause("A row ends where a whole block no longer fits below its limit."),
            Cause("The EOS ends the row and is not appended to it."),
        ),
        fix="Look for EOS in the tokens that a round commits to the row, and nowhere else. Keep a finished flag and a "
        "limit for each row. Append the EOS before the row is marked as finished.",
    ),
    "bookkeeping/over-length": Explained(
        example=f"{ROUND} The limit is one new token. The row emits 7 4.",
        causes=(
            Cause("The limit is tested after a block is committed, and the block is not cut."),
            Cause("One limit is used for rows that have limits of their own."),
        ),
        fix="Cut each committed block at the row's own limit. It does no harm to draft fewer tokens near the limit, "
        "but the cut must not rely on it: the bonus token comes on top.",
    ),
    "bookkeeping/pad-in-output": Explained(
        example="The pad id is 0. Of two rows one commits three tokens in a round and one commits two. The shorter "
        "one is filled up to three, and emits 7 4 0.",
        causes=(
            Cause(
                "A round's tokens are kept in a tensor as wide as the longest row. What fills the others is taken for "
                "tokens.",
                ("HabanaAI/vllm-fork#1435",),
            ),
            Cause("The pad that fills up a short draft is accepted, because the target answers the pad id there."),
            Cause("Rows that are done are appended pads until the last one is done."),
        ),
        fix="Take each row's tokens by its own count. Never tell pads from tokens by their id: the target may emit "
        "the pad id.",
    ),
    "bookkeeping/row-swap": Explained(
        example="Rows are sorted by length for decoding. Row 0 is returned what belongs to row 1.",
        causes=(
            Cause(
                "Rows with and without draft tokens are computed apart and put together in the wrong order.",
                ("HabanaAI/vllm-fork#523",),
            ),
            Cause("Rows come back in the order in which they ended, or in the order of their lengths."),
        ),
        fix="Carry the request's index with the row through every reordering, and sort by it at the end.",
    ),
    "bookkeeping/prompt-in-output": Explained(
        example="The prompt is 5 6, and the target continues it with 7 4. The row is returned as 5 6 7 4.",
        causes=(
            Cause(
                "`generate()` of a decoder-only model returns the prompt with the new tokens, and it is not cut off."
            ),
            Cause("The prompt is cut off by counting from the first token that is not the pad id."),
            Cause("The prompt's length is counted in ids that are not the pad id. The prompt may hold that id."),
        ),
        fix="Return `sequence[len(prompt):]`. Behind left padding the prompt ends at the padded width. Keep lengths as "
        "numbers, and never count them from ids.",
    ),
    "options/ignored-option": Explained(
        example="`min_new_tokens` is 3, and the EOS id is 7. The target alone masks id 7 for three tokens. The row "
        "emits 7 as new token 0, and ends.",
        causes=(
            Cause(
                "The verification of draft tokens goes around the code that applies minima.",
                ("vllm-project/vllm#21987", "vllm-project/vllm#26317", "vllm-project/vllm#32642"),
            ),
            Cause(
                "Penalties are not applied where draft tokens are verified.",
                ("vllm-project/vllm#18902", "vllm-project/vllm#19482"),
            ),
            Cause(
                "A penalty counts the wrong tokens, or the last one twice.",
                ("ml-explore/mlx-examples#1291", "vllm-project/vllm#33251"),
            ),
        ),
        fix="Each column of a block needs the options applied as if the tokens before it, accepted in this round, "
        "were emitted already. Count minima and penalties per column, not per round.",
    ),
    "state/leaks-from-earlier-request": Explained(
        example="A request is right when it is the first. After another request of twice its length it emits other "
        "tokens. The smallest sequence of requests that shows it is the case.",
        causes=(
            Cause(
                "A buffer for captured graphs is not reset when a smaller batch follows a larger one.",
                ("sgl-project/sglang#10892", "vllm-project/vllm-ascend#15461"),
            ),
            Cause(
                "The result of a step that began before a preemption is applied to the request after it.",
                ("vllm-project/vllm#49620",),
            ),
            Cause(
                "A cache of n-grams is kept from one request to the next. The report saw acceptance fall.",
                ("ggml-org/llama.cpp#27852",),
            ),
            Cause("Slots are given to a new request without being cleared."),
        ),
        fix="Look for what lives longer than a request: buffers, caches, counters, class attributes. Reset it where "
        "a request begins, not where one ends.",
    ),
    "crash/exception": Explained(
        example="The decoder raises `IndexError` as soon as a row has one token and another has five.",
        causes=(
            Cause(
                "Speculation meets another feature (penalties with structured output, scoring), and their tensors have "
                "other shapes.",
                ("vllm-project/vllm#26586", "vllm-project/vllm#42936"),
            ),
            Cause(
                "What belongs to a row is not carried along when rows are retracted, filtered or merged.",
                ("sgl-project/sglang#2711", "sgl-project/sglang#14180", "sgl-project/sglang#18984"),
            ),
            Cause("Too little room is reserved for draft tokens.", ("NVIDIA/TensorRT-LLM#16101",)),
            Cause(
                "A residual is zero everywhere, where draft and target agree. Dividing by its sum gives NaN.",
                ("jaymody/speculative-sampling#5",),
            ),
        ),
        fix="Replay the case: its traceback is the decoder's own. If the decoder cannot do what is asked, it should "
        "raise `eqcheck.Unsupported` with the reason.",
    ),
    "crash/hang": Explained(
        example="A row commits no token in a round, and the loop waits for it to become longer.",
        causes=(
            Cause("A row that reached its limit stays in the batch, and nothing ends the loop."),
            Cause("A round can commit nothing, where neither correction nor bonus token is committed."),
            Cause("Rows wait for memory that no row gives back."),
        ),
        fix="Every round commits at least one token to each row that is not done. Assert that, and the loop ends. A "
        "slow decoder needs a longer `--case-timeout`.",
    ),
    "crash/invalid-output": Explained(
        example="The vocabulary has 128 ids. The decoder returns a row with id 128.",
        causes=(
            Cause(
                "Logits are NaN, and the argmax of such a row is the index of padding behind the vocabulary.",
                ("vllm-project/vllm#53029", "vllm-project/vllm#50183", "vllm-project/vllm#21876"),
            ),
            Cause(
                "Random noise becomes infinite for a token that is masked out.",
                ("vllm-project/vllm#43249",),
            ),
            Cause(
                "Placeholders (-1) of steps that have not ended survive a gap in scheduling.",
                ("vllm-project/vllm#46899",),
            ),
            Cause("The decoder returns a tensor, texts, or fewer rows than were asked for."),
        ),
        fix="Return a list with one list of `int` for each prompt, in the order of the prompts. Leave the request as "
        "it came. If ids are outside the vocabulary, look for NaN.",
    ),
    "unattributed/unattributed": Explained(
        example="Reading finds a wrong position. The case stays wrong when that position is repaired. So no cause is "
        "named, and the report shows both opinions.",
        causes=(
            Cause("Two faults act at once, and the repair of one does not restore the output."),
            Cause("The fault lies where nothing is read: in a kernel, or between the logits and the output."),
            Cause("An engine gives back tokens only, and no single edit of what a row saw explains them."),
        ),
        fix="`eqcheck replay -v CASE` prints every call. Look at the first wrong token of the row, and at what the "
        "two opinions have in common. Mend the other violations first, and audit again.",
    ),
}
