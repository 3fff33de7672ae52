"""Check before a gate that prompts fit, that servers serve one model, and that the plain one does not speculate."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from eqcheck.contract.errors import UsageError
from eqcheck.gate.answers import Scored, ServerError, Untold
from eqcheck.gate.prompts import Prompt
from eqcheck.gate.rows import Completed, Row, Wanted

if TYPE_CHECKING:
    from eqcheck.gate.servers import Server

SAMPLE_TEXTS = ("The quick brown fox, 12345.", "def main():\n    return 0")  # tokenizers are compared on these
SAME_MODEL = 8  # prompts whose first token shows whether both serve one model
FOREIGN = 1.0  # nats: so far from the referee no first token of its own model is
DRAFTS = ("num_draft_tokens", "verify_calls")


def fitted(
    prompts: Sequence[Prompt], servers: Sequence[Server], max_tokens: int, at_once: int
) -> tuple[list[Prompt], list[str]]:
    """Return the prompts that fit into all servers, as ids where the plain one tokenizes, and their kinds."""

    def ids(prompt: Prompt) -> Prompt:
        return servers[0].tokenized(prompt) or prompt if isinstance(prompt, str) else prompt

    told = servers[0].each(ids, prompts, at_once)
    most = min((server.longest for server in servers if server.longest is not None), default=None)
    limit = max_tokens + 1  # the referee asks for a token more
    fits = [most is None or isinstance(prompt, str) or len(prompt) + limit <= most for prompt in told]
    kept = list(itertools.compress(told, fits))
    if not kept:
        raise UsageError(
            f"none of {len(told)} prompts fits into the context of {most} tokens with {limit} new ones; lower "
            "--max-tokens or give shorter prompts"
        )
    return kept, [getattr(prompt, "kind", "") for prompt in itertools.compress(prompts, fits)]


def check_models(
    prompts: Sequence[Prompt], plain: Server, others: Sequence[Server], seen: Callable[[Completed], tuple[Scored, ...]]
) -> Completed:
    """Raise `ServerError` where the plain server speculates, or where tokenizers or first tokens show other models.

    ``others``: the speculative server first. Returns an answer of it.
    """
    check_plain(plain)
    for text, other in itertools.product(SAMPLE_TEXTS, others):
        ids = other.tokenized(text), plain.tokenized(text)
        if None not in ids and ids[0] != ids[1]:
            each = f"{text[:40]!r} is {ids[0]} and {ids[1]}"
            raise ServerError(f"{other.url} and {plain.url} have different tokenizers: {each}")
    rows, untold, speculative = list[Row](), None, others[0]
    for asked in (Wanted(prompt, 1) for prompt in prompts[:SAME_MODEL]):
        try:
            answer = speculative.complete(asked)
        except Untold as error:
            untold = error
            continue
        rows.append(Row(0, asked, answer, seen(answer), 1, 0))
    if untold is not None and not rows:
        raise untold
    foreign = sum(row.gap > FOREIGN for row in rows)
    if 2 * foreign > len(rows):
        raise ServerError(
            f"the servers serve different models: of {len(rows)} first tokens of {speculative.url} "
            f"({speculative.model}) {foreign} are far from those of {plain.url} ({plain.model})"
        )
    return rows[0].answer


def check_plain(plain: Server) -> None:
    """Raise `ServerError` where the plain server counts drafts."""
    counts = plain.metrics()
    for name in DRAFTS:
        if counts[name]:
            told = f"{counts[name]} {name.removeprefix('num_').replace('_', ' ')}"
            raise ServerError(f"--plain {plain.url}: it speculates ({told}); start it without a draft")
