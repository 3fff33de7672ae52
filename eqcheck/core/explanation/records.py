"""Explanations as data: the slots, the query and the deviations of one; `eqcheck.contract.kinds` has the kinds."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any

from eqcheck.contract.errors import one_line
from eqcheck.contract.trees import Nodes

BY_TOKENS = "judged by the tokens alone"


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
    """A wrong row's prompt and options; ``accepts`` by round, other options in words.

    ``trees`` are its trees of draft tokens by round, behind the last one of which it stays the same, and ``paths`` the
    ranks of the target's own tokens in them; None in a case without trees. ``rows`` are all rows of its case, where
    they matter, and ``requests`` says how many there are, 0 where that is not known.
    """

    prompt: tuple[int, ...]
    pad_token_id: int | None = None
    eos_token_ids: tuple[int, ...] | None = None
    num_draft_tokens: int | None = None
    limit: int | None = None
    accepts: tuple[int, ...] | None = None
    sampling: str = ""
    rows: tuple[Given, ...] = ()
    requests: int = 0
    trees: tuple[Nodes, ...] | None = None
    paths: tuple[tuple[int, ...], ...] | None = None


@dataclass(frozen=True)
class Search:
    """The result of a search for the cause: the edit of a reference's run that yields an engine's wrong tokens.

    ``edit`` is its id, ``words`` says what is wrong if it is the cause. ``surprising`` counts the wrong tokens,
    ``explained`` those of them that the reference emits under the edit, both 0 where rows only end wrongly. ``chance``
    is the probability that any of the ``tried`` edits does so by accident; 0 where options forbid a token that was
    emitted. It was found ``of``: "this case", "cases like this one" or "a larger case"; in that many ``cases``, and
    ``wrong_cases`` of them are wrong. ``rivals`` are fingerprints whose edits explain as much.
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
        """The opinion as a clause.

        >>> str(Opinion((("position",),), ()))
        'with the correct position ids in every target call, the output is correct'
        """
        both = ((self.restores, "the output is correct"), (self.mends, "the target predicts the correct token here"))
        for sets, does in both:
            if sets:
                first, *others = [" and ".join(_REPAIRED.get(part, part) for part in parts) for parts in sets]
                also = f"; the correct {' or the correct '.join(others)} have the same effect" if others else ""
                return f"with the correct {first} in every target call, {does}{also}"
        if self.failed:
            return f"eqcheck could not repair the run ({self.failed})"
        return "no repair of position ids, attention mask or cache makes the output correct"


_REPAIRED = {"position": "position ids", "place": "positions", "mask": "attention mask", "cache": "cache entries"}


@dataclass(frozen=True)
class Explanation:
    """Hold why a row is wrong: the first fault in causal order, what it was seen in, and what followed.

    ``round`` counts the target forwards that asked for new tokens of the row, from 1; 0 when none is concerned.
    ``expected`` and ``observed`` are the tokens at ``token_index`` of the row's output, None past its end.
    ``subject`` says what is concerned, where a kind has several: what was raised, which option, which edit of a search.
    ``detail`` adds to the kind, ``clauses`` are its parts where several are told apart, and ``facts`` the data in it
    (`eqcheck.core.explanation.statements`); ``basis`` says what a cause without a query rests on; ``repair`` is the
    second opinion, None where none was sought. ``tied``: what was seen ties the wrong token to the cause
    (`eqcheck.transparent.attribution.witnesses`). ``search`` says how the cause was found where nothing could be read.
    ``permuted`` counts the cases with other ids that show the same cause, another one, and nothing wrong. ``drafted``
    are the ids that a draft which saw its row proposed at ``token_index``.
    """

    component: str
    kind: str
    row: int | None = None
    token_index: int | None = None
    round: int | None = None
    expected: int | None = None
    observed: int | None = None
    detail: str = ""
    clauses: tuple[str, ...] = ()
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

    @property
    def harmless(self) -> bool:
        """Return whether it is about a wrong context in spite of which every token of the row is right so far."""
        return self.query is not None and bool(self.expected_row) and self.expected_row == self.observed_row

    @property
    def of_law(self) -> bool:
        """Return whether all sampled tokens together show it, by their evidence against the law."""
        return self.component in ("sampling", "unattributed") and "evidence" in self.facts

    @property
    def said(self) -> list[str]:
        """The detail as clauses."""
        return list(self.clauses) or [self.detail] * bool(self.detail)

    def saying(self, *clauses: str) -> Explanation:
        """The explanation with other clauses as its detail.

        >>> Explanation("sampling", "residual").saying("one", "two").detail
        'one; two'
        """
        return replace(self, detail="; ".join(clauses), clauses=clauses if len(clauses) > 1 else ())

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


def many(count: int, what: str) -> str:
    """A count and its noun.

    >>> many(1, "token"), many(2, "token")
    ('1 token', '2 tokens')
    """
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
