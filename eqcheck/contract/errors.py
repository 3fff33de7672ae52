"""Define the errors, as one tree.

EqcheckError
|-- UsageError    a spec, option or argument is wrong; exit code 4
|   |-- CaseError     a case (or a case file) is malformed
|   |-- OutputError   prompts or outputs given to the oracle are malformed
|   `-- SetupError    a file that cases need is torn: no case can be judged, whichever it is
|-- Unsupported   (also a ValueError) a decoder or an engine declines a request, with the reason
`-- Violation     (also an AssertionError) a decoder is not equivalent to its target
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches

from eqcheck.contract.escaping import one_line

# Exit codes.
EQUIVALENT, VIOLATION, INCONCLUSIVE, INTERNAL, USAGE, NOTHING = range(6)

_CLOSE = 0.65  # of two names: bf16 and bfloat16 are closer, --nosuch and --out are not


class EqcheckError(Exception):
    """Serve as the base of every error that eqcheck raises on purpose.

    >>> issubclass(UsageError, EqcheckError), issubclass(Violation, EqcheckError)
    (True, True)
    """


class UsageError(EqcheckError, ValueError):
    """Report a wrong spec, option or argument; the message says what was expected and what came.

    >>> from eqcheck import decoder
    >>> decoder(padding_sides=("top",))
    Traceback (most recent call last):
    eqcheck.contract.errors.UsageError: padding_sides: expected some of ('left', 'right'), got 'top'
    """


class CaseError(UsageError):
    """Report a malformed case or case file."""


class OutputError(UsageError):
    """Report malformed prompts or outputs."""


class SetupError(UsageError):
    """Report a file that cases need and that is torn or was changed; it ends an audit, whatever case met it."""


class Unsupported(EqcheckError, ValueError):
    """Decline a request: a decoder raises it with the reason, and the case is skipped instead of failing.

    >>> raise Unsupported("one row at a time")
    Traceback (most recent call last):
    eqcheck.contract.errors.Unsupported: one row at a time
    """


class Violation(EqcheckError, AssertionError):
    """Report that a decoder is not equivalent to its target; the message is the explanation.

    >>> issubclass(Violation, AssertionError)
    True
    """


Violation.__module__ = "eqcheck"  # its public name, which pytest and tracebacks show


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return ``"; did you mean 'x'?"``, or an empty text when no known name is close.

    >>> did_you_mean("--bugdet", ["--budget", "--out"]), did_you_mean("--nosuch", ["--budget", "--out"])
    ("; did you mean '--budget'?", '')
    """
    bare = {one.lstrip("-"): one for one in known}  # or all options would look alike by their dashes
    near = [bare[one] for one in get_close_matches(name.lstrip("-"), bare, n=1, cutoff=_CLOSE)]
    return f"; did you mean {near[0]!r}?" if near else ""


def of_a_library(error: Exception) -> bool:
    """Return whether only library code lies between the function that caught an error and the line that raised it."""
    trace = error.__traceback__ and error.__traceback__.tb_next
    modules = []
    while trace is not None:
        modules.append(str(trace.tb_frame.f_globals.get("__name__", "")))
        trace = trace.tb_next
    return all(module.partition(".")[0] in ("torch", "transformers") for module in modules)


@contextmanager
def without_drafts(switch: str | None) -> Iterator[None]:
    """Decline a request whose switch fails in the engine without speculation too, which is no fault of speculation.

    >>> with without_drafts("echo"):
    ...     raise ValueError("not with this model")
    Traceback (most recent call last):
    eqcheck.contract.errors.Unsupported: echo, without drafts: not with this model
    """
    try:
        yield
    except Unsupported:
        raise
    except Exception as error:
        raise Unsupported(f"{switch}, without drafts: {one_line(str(error), 200)}") from error
