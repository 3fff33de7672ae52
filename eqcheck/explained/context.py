"""What a query saw was wrong: positions, masks and caches, those of the draft among them."""

from __future__ import annotations

from eqcheck.explained.record import ROUND, Cause, Explained

_BASELINES = "https://github.com/eBay/spec_dec/blob/main/src/baselines"

RECORDS: dict[str, Explained] = {
    "position/query-position": Explained(
        example=f"{ROUND} The mask hides the entries of ids 8 and 9. The next call feeds id 4, which stands at "
        "position 3, and gives it position 5: the two rejected slots were counted.",
        causes=(
            Cause(
                "Rejected slots are hidden by the mask, but no position ids are passed. The positions go on counting "
                "the holes.",
                (f"{_BASELINES}/bsp.py",),
            ),
            Cause(
                "A buffer of positions is kept for a captured graph and not reset when fewer rows come than it was "
                "captured for. The report saw an illegal memory access.",
                ("sgl-project/sglang#10892",),
            ),
            Cause("Positions advance by the most accepted tokens of the batch, not by those of each row."),
            Cause("Pads are counted, or the positions of row 0 are used for all rows."),
        ),
        fix="Pass position ids with every call. Count the tokens of each row itself: the first token fed stands at "
        "the number of the row's committed tokens that are in the cache. Pads, holes and rejected draft tokens do not "
        "count.",
    ),
    "position/key-position": Explained(
        example="A row is realigned: the entry of position 2 moves from slot 2 to slot 4. Its key was rotated for "
        "position 2 and is rotated again for the new slot. A query then sees a key that says position 4.",
        causes=(
            Cause("An earlier call fed the token with a wrong position, and its key keeps it."),
            Cause("Entries that are only moved to other slots are given new positions."),
        ),
        fix="A key keeps the position with which it was written. Where entries move to other slots, move keys and "
        "values as they are. If an earlier query carried the wrong position, mend that one.",
    ),
    "mask/pad-visible": Explained(
        example="Two rows have prompts of 2 and 4 tokens. The first is padded on the left by two pads. After a round "
        "the rows are padded anew, and the mask is made of ones only. Every query of the first row sees two pads.",
        causes=(
            Cause("After realignment the mask is made of ones for all slots.", (f"{_BASELINES}/dsd.py",)),
            Cause(
                "Padded requests of a captured graph keep what an earlier batch left in their metadata.",
                ("vllm-project/vllm-ascend#15461",),
            ),
            Cause(
                "A kernel takes padded rows for real ones and advances their lengths. The report saw an illegal "
                "memory access.",
                ("vllm-project/vllm#43682",),
            ),
            Cause(
                "A rejected entry is zeroed and stays visible. A zero still counts in the softmax.",
                ("Blaizzy/mlx-vlm#1962",),
            ),
        ),
        fix="Build the mask from each row's number of pads and of committed tokens, and build it again whenever rows "
        "are padded anew. Zeroing an entry does not hide it: the mask must.",
    ),
    "mask/token-hidden": Explained(
        example=f"{ROUND} The rollback hides three slots instead of two. Id 7 is in the cache, but the next query "
        "does not see it.",
        causes=(
            Cause("The newest accepted token is hidden together with the rejected ones: an error by one."),
            Cause("The mask is made from the tokens, so a prompt token that equals the pad id is hidden."),
            Cause("A row keeps its old number of pads in the mask when realignment gives it another."),
        ),
        fix="Derive the mask from counts (pads, committed tokens), never from token ids. Hide exactly the slots of "
        "draft tokens that were rejected.",
    ),
    "mask/future-visible": Explained(
        example=f"{ROUND} While the block 6 7 8 9 is verified, the query of id 6 also sees the entry of id 7. It "
        "answers knowing what it should predict.",
        causes=(
            Cause(
                "A mask is shifted against its block by one column. Reported on the draft side, where it costs "
                "acceptance.",
                ("sgl-project/SpecForge#244", "sgl-project/SpecForge#245"),
            ),
            Cause("The mask of a verified block lets its tokens see each other, as in a prompt encoder."),
        ),
        fix="Within a block, query i sees the committed tokens and the block's tokens 0 to i. Check the offset "
        "between the block's first column and the mask's column.",
    ),
    "mask/sibling-visible": Explained(
        example="The draft proposes a tree: behind id 5 either 6 or 7, and behind 7 an 8. The block is 5 6 7 8, and it "
        "is verified with the causal mask of a chain. The query of id 8 then sees id 6, which is on another branch.",
        causes=(
            Cause(
                "Levels of a tree are verified without a mask of their own, so nodes of one level see each other.",
                ("vllm-project/vllm#17560",),
            ),
            Cause(
                "The mask of a tree is addressed with the widths of another row: right for row 0 alone.",
                ("NVIDIA/TensorRT-LLM#13006", "NVIDIA/TensorRT-LLM#13426"),
            ),
            Cause("The mask says which nodes come earlier in the block, not which are ancestors."),
        ),
        fix="Build the mask from parents: a node sees what its parent sees, and itself. Build it for each row, and "
        "again in each round where the tree differs.",
    ),
    "mask/other-row-visible": Explained(
        example="Prompts 5 6 and 7 8 9 lie behind one another in one row of the call, as 5 6 7 8 9 with the positions "
        "0 1 0 1 2. The causal mask of one row is used. The query of id 7 then sees ids 5 and 6.",
        causes=(
            Cause("No mask keeps the requests apart: that of a causal row is used."),
            Cause("The lengths that say where a request begins are off by one, or those of another call."),
            Cause("A request has ended, and its entries stay visible in the cache that the others go on with."),
        ),
        fix="A query sees the entries of its own request up to itself. Build the mask, or the cumulative lengths, from "
        "the tokens that this call feeds and from those that the cache kept.",
    ),
    "mask/of-another-row": Explained(
        example="Rows 0 and 1 are decoded in batch rows 0 and 1. Row 0 ends, and row 1 moves to batch row 0. The mask "
        "still has in batch row 0 the slots of row 0. Row 1 sees a rejected draft token where row 0 had accepted one.",
        causes=(
            Cause("Rows are moved in the cache when one ends, and not in the mask."),
            Cause("The mask is looked up by the row of the batch where it is kept by request, or the other way round."),
            Cause("A new request takes the place of one that ended, and its mask or length is not set anew."),
        ),
        fix="Keep everything of a request under one number: cache, mask, lengths and positions. When rows are moved, "
        "move all of it.",
    ),
    "mask/window": Explained(
        example="The attention window is 4 tokens. A block begins at position 1, and its last query stands at "
        "position 4. It should see positions 1 to 4. The window was computed for the first query of the block, so "
        "the last one still sees position 0.",
        causes=(
            Cause(
                "The cache of a sliding layer returns more columns than the mask has, as soon as a block of draft "
                "tokens crosses the window.",
                ("huggingface/transformers#48280",),
            ),
            Cause(
                "The cache is trimmed as if each call brought one new token.",
                ("ml-explore/mlx-lm#1914",),
            ),
            Cause("The start of the window is computed once per block."),
        ),
        fix="Compute the window for each query from its own position. A sliding layer needs room for the window and "
        "a whole block, or a rollback loses tokens that come back into the window.",
    ),
    "cache/wrong-row": Explained(
        example="Three rows are decoded. The second one ends and leaves the batch. The cache keeps its three rows, "
        "and the third request now reads the second one's entries.",
        causes=(
            Cause(
                "Slots of a block are computed as one contiguous range. With prefix caching they are not contiguous, "
                "so entries are written into the slots of other requests.",
                ("huggingface/text-generation-inference#2711",),
            ),
            Cause("One rollback is applied to a buffer that all rows share.", ("Blaizzy/mlx-vlm#1155",)),
            Cause(
                "Rows are reordered or leave, and the cache, the block table or an index is not reordered with them."
            ),
            Cause("A slot is given to a new request and not cleared."),
        ),
        fix="Address slots by the request's own table, not by an offset. Reorder everything that has a row dimension "
        "in one place: cache, mask, positions, lengths, pending draft tokens.",
    ),
    "cache/torn-entry": Explained(
        example="A rollback moves the keys of a row by two slots, and leaves its values. Slot 3 now has the key of "
        "position 3 and the value of position 1.",
        causes=(
            Cause("The speculative update of the value cache uses another index.", ("alibaba/MNN#4600",)),
            Cause("Only the first layer, or the first head, is realigned."),
            Cause("Keys and values are viewed with heads and slots exchanged where a transposition is needed."),
        ),
        fix="Do every operation on keys and values of all layers through one function. Compare their shapes and "
        "slots after each rollback.",
    ),
    "cache/misaligned": Explained(
        example=f"{ROUND} Rows are realigned to the right. Mask and positions move by two slots, the cache does not. "
        "Each query sees its row shifted by two.",
        causes=(
            Cause("Tokens, mask and positions are realigned, and the cache is forgotten."),
            Cause("The cache is moved in the wrong direction, or aligned to the other edge."),
        ),
        fix="Realign cache, mask, positions and tokens from the same numbers, in one place. Assert that the cache has "
        "as many slots as the mask has columns.",
    ),
    "cache/wrong-path": Explained(
        example="The draft proposes a tree: behind id 5 either 6 or 7. The block is 5 6 7, and the target answers 7. "
        "The cache is cut behind the second slot of the block. It keeps the entry of id 6 where that of id 7 belongs.",
        causes=(
            Cause(
                "The accepted nodes are never moved to the front of their block, or only in a temporary copy.",
                ("sgl-project/sglang#26866", "openvinotoolkit/openvino#38079"),
            ),
            Cause(
                "The slots of accepted nodes are taken for the first ones of the block: the tree is rolled back by a "
                "count.",
                ("sgl-project/sglang#15360", "NVIDIA/TensorRT-LLM#10343"),
            ),
            Cause("The path of one row is used for all rows."),
        ),
        fix="After each round gather keys and values of all layers along the path of each row, by the slots of its "
        "nodes. Read before you write where source and destination overlap.",
    ),
    "cache/stale-entry": Explained(
        example=f"{ROUND} The entries of ids 8 and 9 stay in the cache. The next query, id 4 at position 3, sees the "
        "entry of id 8 as well.",
        causes=(
            Cause(
                "The rollback has no effect on this kind of cache, and says nothing: trimming is ignored where the "
                "cache cannot be trimmed.",
                ("ml-explore/mlx-lm#1109", "ml-explore/mlx-lm#1423"),
            ),
            Cause(
                "A recurrent state keeps what rejected draft tokens did to it: only the state at the end of the block "
                "was stored, or the state of the wrong column is read.",
                ("vllm-project/tpu-inference#3178", "vllm-project/vllm#52942"),
            ),
            Cause(
                "An evicted request is prefilled again with draft tokens that were never verified.",
                ("InternLM/lmdeploy#4564",),
            ),
            Cause("The rejected tail is zeroed but attended.", ("Blaizzy/mlx-vlm#1962", "Blaizzy/mlx-vlm#2113")),
            Cause("All rows are rolled back as the row that accepted most."),
        ),
        fix="Roll each row back to its own number of committed tokens, and check that the rollback did something. "
        "Where a cache cannot be trimmed, keep a copy of its state for every column of the block, or refuse to "
        "speculate.",
    ),
    "cache/duplicate-entry": Explained(
        example="The prompt's ids 5 6 are prefilled. The first round feeds id 6 again, and its old entry stays. "
        "Every later query sees id 6 twice.",
        causes=(
            Cause("The newest token is fed again, though its entry is in the cache already."),
            Cause("Each chunk of a prefilled prompt begins one token early."),
            Cause("A cached prefix is used and fed once more."),
        ),
        fix="Decide who feeds the newest token. If the prefill did, crop its entry before the first round, or begin "
        "the block behind it.",
    ),
    "cache/missing-entry": Explained(
        example=f"{ROUND} The rollback drops three entries instead of two. Id 7 is in the output, and no later query "
        "can see it.",
        causes=(
            Cause(
                "The cache is cut to the batch's least accepted count, while rows keep all their accepted tokens.",
                (f"{_BASELINES}/dsd.py",),
            ),
            Cause(
                "One lookahead block too many is allocated on the prefill side, and trimming drops the first block of "
                "data.",
                ("vllm-project/vllm#43996",),
            ),
            Cause(
                "The rollback drops one token more than was rejected. Reported of a draft's cache.",
                ("lablup/mlxcel#994",),
            ),
            Cause("The last token of the prompt, or the last accepted draft token, is never fed."),
        ),
        fix="After each round the cache must hold all committed tokens but the newest, which the next block feeds. "
        "Assert that length for every row. Tokens that are cut from the cache must be fed again.",
    ),
    "cache/poisoned-entry": Explained(
        example="A query saw a pad when its token was fed. The mask is right afterwards. But the upper layers' entry "
        "of that token was computed with the pad in sight, and stays wrong.",
        causes=(Cause("A mask, a position or an entry was wrong in an earlier call, and was mended afterwards."),),
        fix="Look for the earlier fault. The entry itself is only mended by computing it again.",
    ),
    "draft/desync": Explained(
        example=f"{ROUND} The target's cache is rolled back, the draft's is not. In the next round the draft sees "
        "ids 8 and 9 as if they were part of the row, and its draft tokens are rejected. The output stays right.",
        causes=(
            Cause(
                "The draft's cache gets an entry of a token that is not the one emitted, once K is greater than 1.",
                ("vllm-project/vllm#9730",),
            ),
            Cause(
                "Entries that the drafter wrote from approximated hidden states are not overwritten after the "
                "verification.",
                ("vllm-project/vllm#14649",),
            ),
            Cause("The draft's rollback trims one token too many.", ("lablup/mlxcel#994",)),
            Cause(
                "The draft's context does not follow the target's prefill or window, so its positions have a gap.",
                ("ggml-org/llama.cpp#18039", "ggml-org/llama.cpp#26478"),
            ),
            Cause(
                "A prefix is found in the target's cache, and the draft's entries of it were never written.",
                ("sgl-project/sglang#19796",),
            ),
            Cause(
                "Slots of the draft's cache are addressed wrongly: by a rotary position of several axes, or without "
                "the factor for several candidates.",
                ("vllm-project/vllm#54498", "sgl-project/sglang#27338"),
            ),
        ),
        fix="Treat the draft's cache like the target's: same rows, same rollback, same positions. After full "
        "acceptance the draft has not yet seen its own last token: feed it. Watch acceptance by position, for no "
        "output shows this.",
    ),
    "draft/lost-bonus": Explained(
        example="K is 3, and the target agrees with all three draft tokens. Its answer behind them, the bonus, is "
        "not committed. The next round asks for it again.",
        causes=(
            Cause("After full acceptance the bonus token is dropped."),
            Cause("Full acceptance is read as none: the first mismatch is looked for and not found, which gives 0."),
        ),
        fix="A round commits the accepted draft tokens and one more: the correction, or the bonus if all were "
        "accepted. Give the case without a mismatch the count K.",
    ),
}
