"""A warning of an audit: its words, and as a field the kind that a reader of them would have to guess."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, MutableSequence, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from eqcheck.contract.errors import EqcheckError, SetupError, UsageError, one_line, printable

VACUOUS, INCONCLUSIVE = "VACUOUS", "INCONCLUSIVE"
LIMIT = 200  # characters of a warning: it is read in a line or two, and says what to do


class Notice(str):
    """A warning in words; ``kind`` is `VACUOUS`, `INCONCLUSIVE`, a fingerprint such as ``draft/desync``, or empty.

    >>> Notice("rejected draft tokens stay", "memory/rejected-kept")
    'memory/rejected-kept: rejected draft tokens stay'
    """

    __slots__ = ("kind",)
    kind: str

    def __new__(cls, words: str, kind: str = "") -> Notice:
        self = super().__new__(cls, f"{kind}: {words}" if kind else words)
        self.kind = kind
        return self

    @property
    def words(self) -> str:
        """The warning without its kind."""
        return self.removeprefix(f"{self.kind}:").lstrip() if self.kind else str(self)


def kind_of(warning: str) -> str:
    """The kind of a warning; empty for one in words alone."""
    return warning.kind if isinstance(warning, Notice) else ""


def with_kinds(warnings: Sequence[str], kinds: Sequence[str]) -> list[Notice]:
    """The warnings of a file, which has words and kinds apart; a file of eqcheck 0.2 has words alone."""
    found = [Notice(words) for words in warnings]
    for notice, kind in zip(found, kinds or map(kind_in_words, warnings), strict=True):
        notice.kind = kind
    return found


def kind_in_words(words: object) -> str:
    """The kind with which a warning of eqcheck 0.2 begins, which has none as a field.

    >>> kind_in_words("VACUOUS: no case was seen to exercise: batched_call")
    'VACUOUS'
    """
    return next((kind for kind in (VACUOUS, INCONCLUSIVE) if str(words).startswith(kind)), "")


# An error of eqcheck itself in the work on one case: the record, its words, and the guard that makes one of it.
#
# Such an error says nothing about the decoder, and must not end an audit: the case is recorded, and the audit goes
# on.

_LINES = 60  # of a traceback; the last ones say where it was raised
_DOING = {
    "draw": "drew cases",
    "judge": "judged a case",
    "explain": "looked for the cause of a failing case",
    "name": "looked for the wrong part of a sampler",
    "conclude": "drew conclusions from all cases",
    "render": "wrote what is wrong in a case",
    "report": "wrote the report",
}
STEPS = tuple(_DOING)
UNEXPLAINED = "an internal error of eqcheck ended the search for a cause"


@dataclass(frozen=True)
class InternalError:
    """An exception that eqcheck's own code raised: in which ``step`` of `STEPS`, and in which lane.

    ``error`` is the type of the exception and ``message`` the first line of its text; ``place`` is the file and line
    that raised it, ``traceback`` the last lines of its traceback. ``case`` is the case that eqcheck was at work on, as
    data; None where it was no single one. ``count`` cases met the same error, and ``case`` is the first of them.
    ``reproduce`` is the command that decodes it again, where the case is stored.
    """

    step: str
    lane: str
    error: str
    message: str
    place: str
    traceback: str
    case: dict[str, Any] | None = None
    count: int = 1
    reproduce: str = ""

    @property
    def headline(self) -> str:
        """The error in one line.

        >>> InternalError("judge", "sampling", "IndexError", "list index out of range", "law.py:90", "").headline
        'eqcheck failed when it judged a case (sampling lane): IndexError: list index out of range'
        """
        where = f" ({self.lane} lane)" if self.lane else ""
        raised = f"{self.error}: {self.message}" if self.message else self.error
        more = f"; the same in {self.count} cases" if self.count > 1 else ""
        return f"eqcheck failed when it {_DOING[self.step]}{where}: {raised}{more}"

    @property
    def text(self) -> str:
        """The error with its traceback, and how to see it again."""
        lines = [f"INTERNAL ERROR: {self.headline}", *self.traceback.rstrip().splitlines()]
        lines += [f"  Reproduce: {self.reproduce}"] if self.reproduce else []
        return printable("\n".join([*lines, NOTE]))


NOTE = (
    "This is an error of eqcheck and says nothing about the decoder. Report it with the lines above and the case file."
)


class EqcheckFailed(EqcheckError):
    """Report that eqcheck's own code failed in the work on one case; the message has the traceback of where."""

    def __init__(self, internal: InternalError) -> None:
        super().__init__(internal.text)
        self.internal = internal

    def __reduce__(self) -> tuple[type[EqcheckFailed], tuple[InternalError]]:
        return EqcheckFailed, (self.internal,)


def internal_error(step: str, error: BaseException, case: Any = None, lane: str = "") -> InternalError:
    """The record of an exception; of one that a worker recorded already, that record."""
    if isinstance(error, EqcheckFailed):
        return error.internal
    frames = traceback.extract_tb(error.__traceback__)
    lines = _text(error).splitlines()
    left_out = [f"  ({len(lines) - _LINES} lines are left out)"] if len(lines) > _LINES else []
    return InternalError(
        step,
        lane or (case.lane if case is not None else ""),
        one_line(type(error).__name__, 80),
        one_line(next(iter(_message(error).splitlines()), ""), 300),
        f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "",
        printable("\n".join([*left_out, *lines[-_LINES:]])),
        case.to_dict() if case is not None else None,
    )


def _message(error: BaseException) -> str:
    """The text of an exception, even where to ask for it raises: it may quote an object of the decoder's."""
    try:
        return str(error)
    except Exception:
        return ""


def _text(error: BaseException) -> str:
    try:
        return "".join(traceback.format_exception(error))
    except Exception:
        return "".join([*traceback.format_tb(error.__traceback__), type(error).__name__])


def note(errors: MutableSequence[InternalError], new: InternalError) -> None:
    """Add an error to those in a list; one that was raised at the same place before is counted."""
    for number, known in enumerate(errors):
        if (known.step, known.lane, known.error, known.place) == (new.step, new.lane, new.error, new.place):
            errors[number] = replace(known, count=known.count + new.count)
            return
    errors.append(new)


@contextmanager
def guarded(errors: MutableSequence[InternalError], step: str, case: Any = None, lane: str = "") -> Iterator[None]:
    """Record what is raised inside, and go on behind it.

    A `UsageError` is for the user and passes, unless a case is at work, which no user wrote; a `SetupError` always
    does, and so does what is no ``Exception``.

    >>> found = []
    >>> with guarded(found, "conclude"):
    ...     {}["mask"]
    >>> found[0].headline
    "eqcheck failed when it drew conclusions from all cases: KeyError: 'mask'"
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, SetupError) or (isinstance(error, UsageError) and case is None):
            raise
        note(errors, internal_error(step, error, case, lane))
