"""One decode of a case: its trace and outputs, beside the truth."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from eqcheck.contract.completion import Completion
from eqcheck.contract.trees import REJECTED, Nodes, chain, walk
from eqcheck.core.case.record import Case
from eqcheck.core.explanation.records import Explanation
from eqcheck.core.result.outcome import NearTie, RowVerdict
from eqcheck.transparent.decoding.rounds import Rounds
from eqcheck.transparent.hashlm.hashing import Words
from eqcheck.transparent.hashlm.model import Script
from eqcheck.transparent.hashlm.trace import Trace


@dataclass(frozen=True)
class Truth:
    """The output of the target alone, per row.

    ``rows`` end at the first EOS or stop sequence, or at the limit; ``uncut`` go on to the limit regardless.
    ``digests[row]`` ``[layers, positions]`` are the hashes of a query at each logical position that saw just its row.
    """

    rows: tuple[tuple[int, ...], ...]
    uncut: tuple[tuple[int, ...], ...]
    digests: tuple[Words, ...]


@dataclass(frozen=True)
class Run:
    """One decode of one case.

    ``outputs`` is None when the decoder failed, and then ``failure`` says how, or when it ``declined``, which says why.
    ``ties`` are the tokens that rounding decided, where the target computes in less than float64; the truth goes on
    after them. ``completions`` are the rows that came as such, None for others.
    """

    case: Case
    truth: Truth
    trace: Trace
    outputs: tuple[tuple[int, ...], ...] | None
    failure: Explanation | None = None
    failure_text: str = ""
    declined: str = ""
    ties: tuple[NearTie, ...] = ()
    completions: tuple[Completion | None, ...] = ()

    @cached_property
    def rounds(self) -> Rounds:
        """The rounds of its rows, as far as contexts were right."""
        return Rounds(self.case.prompts, self.case.pad_token_id, self.truth.digests, self.trace)

    @property
    def verdicts(self) -> tuple[RowVerdict, ...]:
        """Each row beside its truth; rows that were not returned count as right."""
        outputs = self.truth.rows if self.outputs is None else self.outputs
        return tuple(RowVerdict(row, *pair) for row, pair in enumerate(zip(self.truth.rows, outputs, strict=True)))


def cut(row: tuple[int, ...] | list[int], eos_token_ids: tuple[int, ...]) -> tuple[int, ...]:
    """A row up to and including its first EOS."""
    end = next((i for i, token in enumerate(row) if token in eos_token_ids), len(row))
    return tuple(row[: end + 1])


# Compute how far a right draft gets: a case dictates where its draft is wrong,
# so the rounds that rows need are known.


def script_of(case: Case, truth: Truth) -> Script:
    """The script of a case's draft: the contexts where it is wrong, and how far down the target's token is then."""
    if case.agreement is not None:
        return Script(agreement=case.agreement)
    wrong = _ranks(case, truth)
    return Script(frozenset(wrong), 1.0, {digest: rank for digest, rank in wrong.items() if rank > 1})


def _ranks(case: Case, truth: Truth) -> dict[int, int]:
    """The contexts (by digest) after which the case has the draft be wrong, with the rank of the target's token there.

    Rows whose contexts coincide cannot be told apart by a draft; the first of them decides.
    """
    ranks: dict[int, int] = {}
    for row, (prompt, digests) in enumerate(zip(case.prompts, truth.digests, strict=True)):
        dictated = _dictated(case, row)
        for index in range(case.max_new_tokens):
            digest = int(digests[-1, len(prompt) + index - 1])
            ranks.setdefault(digest, dictated[index] if index < len(dictated) else REJECTED if case.tree else 1)
    return {digest: rank for digest, rank in ranks.items() if rank}


def _dictated(case: Case, row: int) -> list[int]:
    """The rank of the target's token among the draft's choices, for the first new tokens of a row."""
    if case.tree:
        paths = case.paths[row] if row < len(case.paths) else ()
        return [rank for path in paths for rank in (*path, REJECTED)]
    rounds = case.accepts[row] if row < len(case.accepts) else ()
    return [rank for n in rounds for rank in (*[0] * n, int(n < case.num_draft_tokens))]


def continuations(case: Case, truth: Truth, second: Callable[[Words], Sequence[int]] | None = None) -> list[list[int]]:
    """The ids that a draft which sees its row proposes after each new token of the target, by row.

    ``second`` says what it proposes in place of the target's token after contexts of these digests; without it that is
    just another id.
    """
    rows = []
    for tokens, digests, ranks in zip(truth.uncut, truth.digests, Schedule(case, truth).ranks, strict=True):
        contexts = digests[-1, -len(tokens) - 1 : -1]
        wrong = second(contexts) if second else [(token + 1) % case.vocab_size for token in tokens]
        each = zip(tokens, wrong, ranks, strict=True)
        rows.append([int(other) if rank else token for token, other, rank in each])
    return rows


class ScriptedRound(NamedTuple):
    """A row's part in a round: ``accepted`` draft tokens, ``emitted`` new ones, ``ends`` says why the row is done."""

    accepted: int
    emitted: int
    ends: str = ""  # "eos-inside-the-block", "eos-not-drafted", "limit"


class Schedule:
    """The rounds of an engine that accepts what the draft gets right.

    ``ranks`` has, for each row and new token up to the limit, the rank of the target's token among the choices of a
    draft that sees its row: 0 where the draft proposes it.
    """

    def __init__(self, case: Case, truth: Truth) -> None:
        self._case, self._truth = case, truth
        self.needed = [len(row) for row in truth.rows]
        script = script_of(case, truth)
        self.ranks: list[list[int]] = []
        for prompt, digests in zip(case.prompts, truth.digests, strict=True):
            contexts = digests[-1, len(prompt) - 1 : -1]
            wrong = zip(contexts.tolist(), script.disagrees(contexts).tolist(), strict=True)
            self.ranks.append([script.lower.get(digest, 1) if one else 0 for digest, one in wrong])

    def accepted(self, row: int, tokens: int, nodes: Nodes) -> int:
        """Return how many of these draft tokens of a right draft are accepted behind so many new tokens of a row."""
        return len(walk(nodes, self.ranks[row][tokens:]))

    def reach(self, row: int, tokens: int, count: int) -> int:
        """Return how many new tokens are known after a round that verifies a chain of so many right draft tokens."""
        return tokens + self.accepted(row, tokens, chain(count)) + 1

    @cached_property
    def rows(self) -> list[list[ScriptedRound]]:
        """Return the rounds of each row."""
        return [self._row(row) for row in range(len(self.needed))]

    @property
    def rounds(self) -> list[list[ScriptedRound]]:
        """Return per round the part of each row that is not done."""
        longest = max(map(len, self.rows))
        return [[of_row[number] for of_row in self.rows if number < len(of_row)] for number in range(longest)]

    def _row(self, row: int) -> list[ScriptedRound]:
        case, tokens, needed = self._case, self._truth.rows[row], self.needed[row]
        at, rounds = 0, list[ScriptedRound]()
        while at < needed:
            accepted = self.accepted(row, at, case.nodes(row, len(rounds)) or chain(case.num_draft_tokens))
            emitted = min(accepted + 1, needed - at)
            at += emitted
            drafted = "eos-inside-the-block" if emitted <= accepted else "eos-not-drafted"
            ends = drafted if tokens[-1] in case.eos_token_ids else "limit"
            rounds.append(ScriptedRound(accepted, emitted, ends if at == needed else ""))
        return rounds
