"""Faults in what is verified, what is committed of it, and what is returned (T)."""

from __future__ import annotations

from eqcheck.catalogue.fault import EQSPEC, issue, plant

COMMITS = [
    *plant(
        "T14-correction-one-column-late",
        "bookkeeping/wrong-correction",
        "the correction is read one column late, after the rejected draft token",
        issue("NVIDIA/TensorRT-LLM", 15098),
        "uncached per_row",
        "packed staged",
        rows=1,
    ),
    *plant(
        "T20-one-more-after-rejection",
        "bookkeeping/wrong-correction",
        "after a rejection what the target predicted after the rejected draft token is committed, too",
        issue("huggingface/transformers", 47433),
        "realigned per_row static",
        "paged",
        rows=1,
    ),
    *plant(
        "T21-answers-from-wrong-end",
        "bookkeeping/wrong-correction",
        "where a block begins with tokens of the row, the first answers are taken for the last",
        issue("NVIDIA/TensorRT-LLM", 15098),
        "realigned uncached paged_small",
        "per_row",
        rows=1,
    ),
    *plant(
        "T22-no-verification",
        "bookkeeping/over-accept",
        "all draft tokens are committed, whatever the target predicts",
        issue("vllm-project/vllm-ascend", 13766),
        "realigned per_row",
        "paged_small",
        rows=1,
    ),
    *plant(
        "T22-verified-by-draft",
        "bookkeeping/over-accept",
        "draft tokens are verified by the draft itself",
        EQSPEC,
        "uncached static",
        "continuous",
        rows=1,
    ),
    *plant(
        "T23-models-exchanged",
        "bookkeeping/unverified",
        "target and draft are exchanged: the target drafts, and the draft verifies",
        EQSPEC,
        "realigned per_row",
        "packed",
        rows=1,
    ),
    *plant(
        "T24-prompt-returned",
        "bookkeeping/prompt-in-output",
        "rows are returned with their prompts",
        EQSPEC,
        "realigned per_row",
        "paged static",
        rows=1,
    ),
]
