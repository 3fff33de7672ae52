"""Verdicts, and explanations as data.

equivalent < tie < inconclusive < violation        (verdicts merge to the highest)

`eqcheck.kinds` has the components and kinds of violations.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from eqcheck.errors import OutputError
from eqcheck.plain import listed, one_line

BY_TOKENS = "judged by the tokens alone"
VERDICTS = ("equivalent", "tie", "inconclusive", "violation")


def merge(verdicts: Iterable[str]) -> str:
    """The gravest of several verdicts; of none, ``"inconclusive"``, because nothing was shown.

    >>> merge(["equivalent", "violation", "tie"])
    'violation'
    """
    found = list(verdicts)
    return max(found, key=VERDICTS.index) if found else "inconclusive"


@dataclass(frozen=True)
class Slot:
    """One column of a row's cache at the query that went wrong, observed beside expected.

    ``holds`` says in words what is stored: ``position 3`` (the row's token at logical position 3), ``row 1, position
    3``, ``pad``. ``kind`` says it without numbers: ``token``, ``draft`` (rejected), ``cut-draft`` (the target agreed
    with it, behind the row's end), each with ``other-`` before it where it is another row's, ``pad``, ``filler``,
    ``blank``, ``draft model``, ``target model`` or ``unknown``; empty in reports of eqcheck 0.2. ``of_row`` and
    ``of_position`` are the row and logical position of a token. ``token`` is its id, ``position`` the one that it
    carries. ``expected_position`` is None for a slot that should be hidden; ``index`` and ``position`` are None for a
    token that is in no slot. ``torn``: its copies in K and V, heads and layers disagree.
    """

    index: int | None
    holds: str
    token: int
    position: int | None
    expected_position: int | None
    visible: bool
    expected_visible: bool
    torn: bool = False
    of_row: int | None = None
    of_position: int | None = None
    kind: str = ""


@dataclass(frozen=True)
class Deviation:
    """One difference between what a query saw and what it should have seen.

    ``token`` is the id and ``token_position`` the logical position concerned; ``expected`` and ``observed`` are
    positions, or numbers of entries where several requests share a row. ``origin`` says in words, and ``source``
    without numbers, how an entry or a position came to be; of a surplus entry ``source`` is the kind of a `Slot`.
    ``of_row`` and ``of_position`` are those of a surplus entry, ``held_by`` is the batch row that holds an absent one,
    ``shift`` the slots by which a row was moved.
    """

    component: str
    kind: str
    call: int
    column: int
    row: int
    slot: int | None = None
    token: int | None = None
    token_position: int | None = None
    origin: str = ""
    expected: int | None = None
    observed: int | None = None
    of_row: int | None = None
    of_position: int | None = None
    held_by: int | None = None
    shift: int | None = None
    source: str = ""

    @property
    def fingerprint(self) -> str:
        return f"{self.component}/{self.kind}"


@dataclass(frozen=True)
class Query:
    """The query whose context was wrong: which call, which row and column of it, which id it feeds.

    It stands for ``logical_position`` of its row and carries ``position``; ``sees_from`` is the first position that it
    should see, 0 but for a window.
    """

    call: int
    call_row: int
    column: int
    token: int
    logical_position: int
    position: int
    predicted: int
    sees_from: int = 0


@dataclass(frozen=True)
class Given:
    """A wrong row's prompt and options; all ``rows`` of its request; ``accepts`` by round; ``sampling`` in words."""

    prompt: tuple[int, ...]
    pad_token_id: int | None = None
    eos_token_ids: tuple[int, ...] | None = None
    num_draft_tokens: int | None = None
    limit: int | None = None
    accepts: tuple[int, ...] | None = None
    sampling: str = ""
    rows: tuple[Given, ...] = ()


@dataclass(frozen=True)
class Search:
    """What a search for the cause found: the edit of what a reference saw or did that yields an engine's wrong tokens.

    ``edit`` is its id, ``words`` says what is wrong if it is the cause. ``surprising`` counts the wrong tokens,
    ``explained`` those of them that the reference emits under the edit, both 0 where rows only end wrongly. ``chance``
    is the probability that any of the ``tried`` edits does so by accident; 0 where options forbid a token that was
    emitted. It was found ``of``: "this case", "cases like this one" or "a larger case"; that many ``cases``, of which
    ``wrong_cases`` are wrong. ``rivals`` are fingerprints of which another edit explains as much.
    """

    edit: str
    words: str
    explained: int = 0
    surprising: int = 0
    chance: float = 0.0
    tried: int = 0
    cases: int = 1
    wrong_cases: int = 1
    rivals: tuple[str, ...] = ()
    of: str = "this case"


@dataclass(frozen=True)
class Opinion:
    """The second opinion: the sets of components whose repair ``restores`` the output, none larger than need be.

    Where none does, ``mends`` are those under which the target answers for the first wrong token as it should and did
    not before, whatever the decoder makes of that. ``failed`` says how repair itself did, which says nothing else.
    """

    restores: tuple[tuple[str, ...], ...]
    mends: tuple[tuple[str, ...], ...]
    failed: str = ""

    def __str__(self) -> str:
        for sets, does in ((self.restores, "restores the output"), (self.mends, "makes the target's answer right")):
            if sets:
                return f"right {' or '.join(' with '.join(parts) for parts in sets)} {does}"
        if self.failed:
            return f"nothing, because eqcheck could not carry it out ({self.failed})"
        return "no right positions, mask or cache restore the output"


@dataclass(frozen=True)
class Explanation:
    """Why a row is wrong: the first fault in causal order, what it was seen in, and what followed.

    ``round`` counts the target forwards that asked for new tokens of the row, from 1; 0 when none is concerned.
    ``expected`` and ``observed`` are the tokens at ``token_index`` of the row's output, None past its end.
    ``subject`` says what is concerned, where a kind has several: what was raised, which option, which edit of a search.
    ``detail`` adds what the kind alone does not say, and ``facts`` are what it is made of (`eqcheck.statements`);
    ``basis`` says what a cause without a query rests on; ``repair`` is the second opinion, None where none was sought.
    ``tied``: what was seen ties the wrong token to the cause (`eqcheck.attribution.witnesses`). ``search`` says how the
    cause was found where nothing could be read. ``permuted`` counts the cases with other ids that show the same cause,
    another one, and nothing wrong. ``drafted`` are the ids that a draft which saw its row proposed at ``token_index``.
    """

    component: str
    kind: str
    row: int | None = None
    token_index: int | None = None
    round: int | None = None
    expected: int | None = None
    observed: int | None = None
    detail: str = ""
    facts: dict[str, int | str] = field(default_factory=dict, hash=False)
    query: Query | None = None
    deviations: tuple[Deviation, ...] = ()
    consequences: tuple[Deviation, ...] = ()
    slots: tuple[Slot, ...] = ()
    expected_row: tuple[int, ...] = ()
    observed_row: tuple[int, ...] = ()
    wrong_rows: tuple[int, ...] = ()
    repair: Opinion | None = None
    repair_confirms: bool = False
    tied: bool = False
    permuted: tuple[int, int, int] = (0, 0, 0)
    basis: str = ""
    given: Given | None = None
    drafted: tuple[int, ...] = ()
    subject: str = ""
    search: Search | None = None

    @property
    def fingerprint(self) -> str:
        """``component/kind``, and the subject where there is one: two violations with one fingerprint are one bug."""
        base = f"{self.component}/{self.kind}"
        return f"{base}:{self.subject}" if self.subject else base

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {"fingerprint": self.fingerprint, **asdict(self)}


def crash(kind: str, subject: str, message: str) -> Explanation:
    """The explanation of a decoder that failed: what failed, and what it said.

    >>> crash("exception", "KeyError", "'x'").fingerprint
    'crash/exception:KeyError'
    """
    subject = one_line(subject, 80)
    return Explanation("crash", kind, detail=f"{subject}: {message}", subject=subject)


@dataclass(frozen=True)
class RowVerdict:
    """One row of output beside the truth; ``first`` is the index of the first difference, None when equal."""

    row: int
    expected: tuple[int, ...]
    observed: tuple[int, ...]

    @property
    def first(self) -> int | None:
        if self.expected == self.observed:
            return None
        same = zip(self.expected, self.observed, strict=False)
        return next((i for i, (a, b) in enumerate(same) if a != b), min(len(self.expected), len(self.observed)))

    @property
    def prefix_match(self) -> float:
        """Leading equal tokens as a share of the expected ones; 1 when equal or only too long."""
        if self.first is None:
            return 1.0
        return self.first / len(self.expected) if self.expected else 1.0


@dataclass(frozen=True, repr=False)
class Verdict:
    """The oracle's answer for one batch; truthy when every row is what the target emits alone, near-ties included.

    ``status`` is one of `VERDICTS`, or ``skipped`` where the decoder ``declined``, which says why. ``str()`` of it is
    the explanation.

    >>> verdict = Verdict("violation", (RowVerdict(0, expected=(4, 5), observed=(4,)), RowVerdict(1, (6,), (6,))))
    >>> bool(verdict), verdict.exact_match, verdict.prefix_match
    (False, 0.5, 0.75)
    """

    status: str
    rows: tuple[RowVerdict, ...]
    explanation: Explanation | None = None
    declined: str = ""

    def __bool__(self) -> bool:
        return self.status in ("equivalent", "tie")

    def __str__(self) -> str:
        return self.explain()

    def __repr__(self) -> str:
        """The verdict in one short line: pytest writes it after a failed ``assert``, and cuts longer ones."""
        e = self.explanation
        if e is None:
            return f"<{self.status}>"
        right, got = ("the row's end" if token is None else token for token in (e.expected, e.observed))
        at = f": row {e.row}, new token {e.token_index}: expected {right}, got {got}"
        return one_line(f"<{self.status}: {e.fingerprint}{'' if e.row is None else at}>", 200)

    @property
    def exact_match(self) -> float:
        """Share of rows that are equal in full; 0 when the decoder returned no rows."""
        return sum(row.first is None for row in self.rows) / max(len(self.rows), 1)

    @property
    def prefix_match(self) -> float:
        """Mean over rows of the leading equal tokens as a share of the expected ones."""
        return sum(row.prefix_match for row in self.rows) / max(len(self.rows), 1)

    def explain(self) -> str:
        """The explanation as text; for an equivalent batch one line that says so."""
        from eqcheck.text import render

        if self.declined:
            return f"declined: {self.declined}"
        if self.explanation is None:
            but = "; near-ties, which rounding decides, are passed over" if self.status == "tie" else ""
            return f"equivalent: {many(len(self.rows), 'row')}, every token as the target alone emits it{but}"
        return render(self.explanation)


def check_rows(outputs: Any, count: int, vocab_size: int, name: str = "outputs") -> tuple[tuple[int, ...], ...]:
    """``outputs`` as tuples of ints; `OutputError` says what was expected and what came, under this ``name``.

    Lists and tuples of integers (numpy's too) are taken; tensors are not, because a rectangle of tensors cannot say
    where a row ends.
    """
    expectation = f"expected list[list[int]] with {count} rows"
    if not isinstance(outputs, list | tuple):
        raise OutputError(f"{name}: {expectation}, got {listed(outputs)}")
    if len(outputs) != count:
        raise OutputError(f"{name}: {expectation}, got {len(outputs)} rows")
    return tuple(check_row(row, vocab_size, f"{name}[{index}]") for index, row in enumerate(outputs))


def check_row(row: Any, vocab_size: int, name: str) -> tuple[int, ...]:
    """One row as a tuple of ints; `OutputError` says under this ``name`` what was expected and what came."""
    if not isinstance(row, list | tuple):
        raise OutputError(f"{name}: expected a list of token ids, got {listed(row)}")
    tokens: list[int] = []
    for at, token in enumerate(row):
        value = as_int(token)
        if value is None:
            raise OutputError(f"{name}[{at}]: expected a token id (int), got {listed(token)}")
        if not 0 <= value < vocab_size:
            raise OutputError(f"{name}[{at}]: expected a token in 0..{vocab_size - 1}, got {value}")
        tokens.append(value)
    return tuple(tokens)


def as_int(value: Any) -> int | None:
    """A Python or numpy integer as ``int``; None for anything else, also for bools and tensors."""
    if isinstance(value, bool) or hasattr(value, "detach"):
        return None
    try:
        return int(operator.index(value))
    except TypeError:
        return None


def many(count: int, what: str) -> str:
    """A count and its noun.

    >>> many(1, "token"), many(2, "token")
    ('1 token', '2 tokens')
    """
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
