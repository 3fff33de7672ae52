"""What this lane exercises, and what it cannot show, in words; it imports no model, so that reports can say it."""

from __future__ import annotations

from eqcheck.contract.kinds import HEAD_LOSSES
from eqcheck.contract.sizes import BLOCKS
from eqcheck.lanes.about_sampling import COUNTERS as SAMPLED

__all__ = ["AXES", "CLEAN_SHOWS", "COUNTERS", "LOSSES", "REACHED", "SAMPLED"]

COUNTERS = {
    "several_rows": "more than one row",
    "ragged_prompts": "prompts of different lengths, so one is padded",
    "batched_call": "one target call over more than one row",
    "target_called": "the target was called",
    "draft_called": "the draft or its head was called",
    "ragged_round": "rows of one target call accepted different counts",
    "all_rejected": "a row's drafts were all rejected",
    "all_accepted": "K drafts of a row were accepted",
    "eos_inside_block": "an EOS among accepted drafts",
    "eos_not_drafted": "an EOS as correction or bonus",
    "eos_first": "an EOS as the first new token",
    "eos_at_limit": "an EOS as the last token the limit allows",
    "eos_absent": "a row that ends at its limit",
    "eos_before_others": "a row emits its EOS in an earlier round than another row ends",
    "limit_before_others": "a row reaches its limit in an earlier round than another row ends",
    "eos_in_prompt": "an EOS occurs in a prompt",
    "several_eos": "more than one EOS id",
    "pad_is_eos": "the pad id is an EOS",
    "pad_in_prompt": "the pad id occurs in a prompt",
    "pad_emitted": "the pad id is a token to emit",
    "pad_outside": "the pad id is one that the target never emits",
    "zero_in_prompt": "the id 0 occurs in a prompt",
    "zero_emitted": "the id 0 is a token to emit",
    "last_id_in_prompt": "the last id of the vocabulary occurs in a prompt",
    "last_id_emitted": "the last id of the vocabulary is a token to emit",
    "equal_prompts": "two prompts are equal",
    "prompt_begins_another": "a prompt is the beginning of another",
    "tree": "draft tokens of a round as a tree",
    "different_trees": "rows whose trees differ",
    "off_spine": "an accepted node that is not the draft's first choice",
    **{f"row_past_{size}": f"a row grows past {size} tokens, or its prompt does" for size in (*BLOCKS[1:], 128)},
}
_HEADS = HEAD_LOSSES | {"wrong-row?": "it was given states of another row, of an earlier call"}
REACHED = {
    "rows": "rows of a batch",
    "prompt": "tokens of a prompt",
    "new_tokens": "new tokens asked for",
    "draft_tokens": "draft tokens a round (K)",
}
AXES = {
    "family": "family",
    "padding_side": "padding side",
    "rows": "rows",
    "cache_state": "cache state",
    "num_draft_tokens": "K",
}
LOSSES = {  # the counts of `eqcheck.attribution.losses` and `eqcheck.attribution.heads`
    "rounds": "rounds of rows, where the output was right",
    "ideal": "rounds that a draft needs which always sees its row",
    "allowed": "draft tokens that the script lets be accepted",
    "wrong-context": "rounds too many: the draft saw something other than its row",
    "altered": "rounds too many: another token was fed than the draft had proposed",
    "lost": "rounds too many: a right draft token was not proposed, and no cause was seen",
    "unasked": "rounds more: the decoder did not ask the draft model",
    "lost-bonus": "rounds too many: behind K accepted drafts the target's answer was asked again",
    "asked-again": "rounds too many: behind a rejection the target's answer was asked again",
    "policy": "rounds more: the decoder verified fewer drafts, or rows waited for each other",
    "spared": "rounds fewer than a right draft needs, by luck",
    "head rounds": "rounds of rows with draft tokens of a head, where the output was right",
    "head allowed": "draft tokens of a head that could have been accepted in them",
    **{f"head {name}": f"draft tokens of a head lost: {why}" for name, why in _HEADS.items()},
    **{f"head hit {name}": f"rounds of a head: {why}" for name, why in _HEADS.items()},
    "head unnamed": "draft tokens of a head lost, and no cause was seen",
    "head unclear": "draft tokens of a head lost with a wrong input, and it cannot be told which",
}
CLEAN_SHOWS = (
    "A clean audit shows that no case drawn from this seed broke the decoder on the families named. It does not "
    "show: sampling by a decoder that does not declare it, near-ties in dtypes and kernels other than those that were "
    "run (arithmetic on the transparent target is exact), speed or acceptance, other families, longer rows or larger "
    "batches than were drawn, or code paths of real models that the transparent target, or a tiny real one, does not "
    "have."
)
