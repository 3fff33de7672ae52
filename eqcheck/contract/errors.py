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

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any
from unicodedata import category

# Text that decoders and files bring along, made fit to be printed and written.


def printable(text: str) -> str:
    """Lines of text without what a terminal would obey or UTF-8 cannot hold; each such character becomes ``?``.

    >>> printable("a\\x1b[31mb\\ud800")
    'a?[31mb?'
    """
    if text.isprintable():  # as nearly all are
        return text
    return "\n".join(map(_plain, text.expandtabs(4).split("\n")))


def _plain(line: str) -> str:
    if line.isprintable():
        return line
    return "".join(c if c.isprintable() or category(c) == "Zs" else "?" for c in line)


def one_line(text: str, most: int = 500) -> str:
    """The same in one line, cut after ``most`` characters.

    >>> one_line("two\\nlines", 8)
    'two l...'
    """
    line = printable(re.sub(r"\s*\n\s*", " ", text.strip("\n")))
    return line if len(line) <= most else f"{line[: most - 3]}..."


def cleaned(data: Any) -> Any:
    """Plain data for JSON in which every text, also of keys, is `printable`.

    >>> cleaned({"note": ["\\x07!"], "count": 2})
    {'note': ['?!'], 'count': 2}
    """
    if isinstance(data, str):
        return printable(data)
    if isinstance(data, dict):
        return {cleaned(name): cleaned(value) for name, value in data.items()}
    return [cleaned(value) for value in data] if isinstance(data, list | tuple) else data


def inline(text: str) -> str:
    """Text for a line of Markdown: it opens no HTML, and no block.

    >>> inline("<b>\\n# x")
    '&lt;b> # x'
    """
    return re.sub(r"<(?!https?://)", "&lt;", one_line(text, 2000))


def code(text: str) -> str:
    """A span of code in Markdown that the text cannot end.

    >>> code("a`b")
    '``a`b``'
    """
    line = one_line(text, 10**6)
    ticks = _longer(line, 1)
    gap = " " if line.startswith("`") or line.endswith("`") else ""
    return f"{ticks}{gap}{line}{gap}{ticks}"


def fenced(text: str) -> list[str]:
    """The lines of a block of code in Markdown that the text cannot end.

    >>> fenced("x")
    ['```', 'x', '```']
    """
    fence = _longer(text, 3)
    return [fence, printable(text), fence]


def _longer(text: str, least: int) -> str:
    runs = (len(run) for run in re.findall("`+", text))
    return "`" * max(least, 1 + max(runs, default=0))


def listed(value: Any) -> str:
    """`describe`, and how a tensor, an array or a generator becomes a list."""
    if hasattr(value, "tolist"):
        pads = " and leave out the pads" * (len(value.shape) > 1)
        return f"{describe(value)}; call .tolist() on it{pads}"
    return f"a {type(value).__name__}; call list(...) on it" if isinstance(value, Iterator) else describe(value)


def describe(value: Any) -> str:
    """A value in an error message: its type, and its shape and device or its beginning."""
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        where = f" on {value.device}" if hasattr(value, "detach") else ""
        return f"a {type(value).__name__} of shape {list(value.shape)}{where}"
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 60 else text[:57] + '...'}"


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
