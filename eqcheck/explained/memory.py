"""Memory that is kept for nothing: warnings, for what is emitted is right."""

from __future__ import annotations

from eqcheck.explained.record import ROUND, Cause, Explained

RECORDS: dict[str, Explained] = {
    "memory/rejected-kept": Explained(
        example=f"{ROUND} The entries of ids 8 and 9 are hidden by the mask and stay in the cache. After a hundred "
        "rounds it holds two hundred entries that nobody will see again.",
        causes=(
            Cause(
                "Slots that were allocated for draft tokens are not given back when these are rejected.",
                ("sgl-project/sglang#19518",),
            ),
            Cause("A batch has no common column to crop at, so rejected entries are only masked."),
        ),
        fix="Overwrite rejected entries with the next block of the row, or gather what is kept. A bound that a longer "
        "answer does not move is no leak.",
    ),
    "memory/storage-kept": Explained(
        example="A cache grows by concatenation: each round makes new tensors and drops the old ones. A list keeps "
        "one column of each old tensor. A view keeps all of the storage that it was cut from.",
        causes=(
            Cause(
                "A list that is appended to in every step is emptied only where speculation is on.",
                ("vllm-project/vllm#15506", "vllm-project/vllm#12751"),
            ),
            Cause("A mask or a buffer only ever grows by concatenation.", ("sgl-project/sglang#37120",)),
            Cause("Caches of earlier rounds are kept to go back to, and never dropped."),
        ),
        fix="Clone what is small before it is kept: a slice holds the whole storage. Keep no cache that no rollback "
        "can ask for.",
    ),
    "memory/finished-row-kept": Explained(
        example="Three rows are decoded. The first meets its EOS after eight tokens. Its cache stays until the last "
        "row has ended.",
        causes=(
            Cause(
                "The draft's cache of a slot is not freed when its request ends.",
                ("ggml-org/llama.cpp#27692",),
            ),
            Cause("Rows that ended stay in a batch of fixed shape, and are copied along."),
            Cause("There is one cache for each row in a list that lives as long as the batch."),
        ),
        fix="Let go of the row's entries in the round in which it ends, in the cache of the target and in that of the "
        "draft. Where shapes are fixed, let the next request have the place.",
    ),
    "memory/kept-after-return": Explained(
        example="A request is answered, and its caches hang on an attribute of the engine. The next request makes new "
        "ones, and the old ones stay.",
        causes=(
            Cause("A static cache stays on the model as an attribute.", ("huggingface/transformers#47731",)),
            Cause("A cache of prompts has no bound."),
        ),
        fix="Drop what belongs to a request when it is answered, also where it ends with an error. A pool is kept, "
        "but it does not grow when the same request comes again.",
    ),
    "memory/growth": Explained(
        example="Each round makes the cache sixteen columns wider than it has to be. The columns hold nothing.",
        causes=(
            Cause(
                "The allocated length is never updated, so every round allocates anew.",
                ("sgl-project/sglang-jax#1147", "sgl-project/sglang-jax#1098"),
            ),
            Cause("Pages are allocated one by one and not found again.", ("sgl-project/sglang#27789",)),
            Cause("Pads are kept when rows are realigned."),
        ),
        fix="Compute what a round needs from the committed tokens of its rows, and allocate the difference to what "
        "is there.",
    ),
}
