"""One round over caches with a write offset per row: draft, verify, commit."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .requests import Row
from .row_cache import RowModel
from .sampling import Greedy, chooser
from .stats import Stats


def speculate(
    target: RowModel, draft: RowModel, rows: Sequence[Row], num_draft_tokens: int, stats: Stats, noise: str
) -> None:
    """Draft, verify and commit for all rows at once; row i is in cache row i.

    Invariant, before and after: the first ``row.cached`` slots of the target's cache hold all tokens of the row but
    the newest, the first ``row.cached - row.behind`` of the draft's hold the same. Slots behind are overwritten
    before anything sees it. Before, the target's may hold ``row.unfed`` less, the same number in all rows.
    """
    unfed = rows[0].unfed
    budgets = [row.budget(num_draft_tokens) for row in rows]
    k = max(budgets)
    choose = chooser(noise, rows, budgets, target.device)
    waiting = torch.tensor([row.tokens[-1 - unfed :] for row in rows], device=target.device)  # [rows, unfed + 1]
    drafts = propose(draft, rows, k, choose) if k else waiting[:, :0]  # [rows, k]
    starts = [row.cached - unfed for row in rows]
    logits = target.feed(torch.cat([waiting, drafts], dim=1), starts, logits_to_keep=k + 1)
    for row, budget, block in zip(rows, budgets, choose.blocks(logits, drafts), strict=True):
        committed = row.commit(block)
        # The draft was not fed its last token: after full acceptance its cache is one token shorter.
        # Where there were no draft tokens it was fed nothing.
        row.behind, row.unfed = int(committed == k + 1) if k else row.behind + committed, 0
        stats.count(budget, len(block) - 1, committed)


def propose(draft: RowModel, rows: Sequence[Row], k: int, choose: Greedy) -> torch.Tensor:
    """``k`` draft tokens for each row, ``[rows, k]``.

    If the draft's cache is behind in any row, all feed as many tokens again: equally long rows stay so. Where a row has
    fewer, what stands in its surplus columns is overwritten by its first draft tokens.
    """
    behind = max(row.behind for row in rows)
    starts = [max(0, row.cached - behind) for row in rows]
    waiting = [row.tokens[start:] for row, start in zip(rows, starts, strict=True)]
    block = torch.tensor([tokens + tokens[-1:] * (behind + 1 - len(tokens)) for tokens in waiting], device=draft.device)
    fewest = min(len(tokens) for tokens in waiting)
    logits = draft.feed(block, starts, logits_to_keep=behind + 2 - fewest)
    last = torch.tensor([len(tokens) - fewest for tokens in waiting], device=draft.device)
    drafts = [choose.propose(logits[torch.arange(len(rows), device=draft.device), last])]  # k times [rows]
    for step in range(k - 1):
        logits = draft.feed(drafts[-1][:, None], [len(row.tokens) + step for row in rows])
        drafts.append(choose.propose(logits[:, -1]))
    return torch.stack(drafts, dim=1)
