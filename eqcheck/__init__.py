"""Check that a batch speculative decoder returns exactly what its target model generates alone.

>>> import eqcheck
>>> "eqspec" in eqcheck.names()
True
"""

from __future__ import annotations

import sys as _sys
from importlib import import_module as _import_module
from importlib.machinery import PathFinder as _PathFinder
from pathlib import Path as _Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from eqcheck import strategies as strategies
    from eqcheck.contract.completion import Completion as Completion
    from eqcheck.contract.decoders import Decoder as Decoder
    from eqcheck.contract.decoders import Request as Request
    from eqcheck.contract.decoders import decoder as decoder
    from eqcheck.contract.errors import EqcheckError as EqcheckError
    from eqcheck.contract.errors import Unsupported as Unsupported
    from eqcheck.contract.errors import Violation as Violation
    from eqcheck.contract.registry import load as load
    from eqcheck.contract.registry import names as names
    from eqcheck.core.case.record import Case as Case
    from eqcheck.core.result.outcome import Verdict as Verdict
    from eqcheck.transparent.oracle import Oracle as Oracle
    from eqcheck.transparent.oracle import assert_equivalent as assert_equivalent

__version__ = "0.3.0"

_LAZY = {
    "Case": "eqcheck.core.case.record",
    "Completion": "eqcheck.contract.completion",
    "Decoder": "eqcheck.contract.decoders",
    "EqcheckError": "eqcheck.contract.errors",
    "Oracle": "eqcheck.transparent.oracle",
    "Request": "eqcheck.contract.decoders",
    "Unsupported": "eqcheck.contract.errors",
    "Verdict": "eqcheck.core.result.outcome",
    "Violation": "eqcheck.contract.errors",
    "assert_equivalent": "eqcheck.transparent.oracle",
    "decoder": "eqcheck.contract.decoders",
    "load": "eqcheck.contract.registry",
    "names": "eqcheck.contract.registry",
}
_MODULES = ("kit", "strategies")
__all__ = ["__version__", "kit", "strategies", *_LAZY]

_checkout = _Path(__file__).resolve().parent.parent
_BESIDE = {"adapters": _checkout, "reference_impls": _checkout}
_BESIDE |= {"catalogue": _checkout / "tests", "conformance": _checkout / "tests"}


class _Beside:
    """Find four sub-packages that a wheel has inside this package, but a checkout has next to it.

    The link `eqcheck/catalogue` of a checkout is for editors and type checkers, and need not be there.

    Only these: with the checkout on ``__path__``, ``eqcheck.eqcheck`` would be a second copy of every class.
    """

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> Any:
        package, _, name_inside = name.partition(".")
        folder = _BESIDE.get(name_inside) if package == "eqcheck" else None
        return folder and _PathFinder.find_spec(name, [str(folder)])


if not (_Path(__file__).parent / "adapters").is_dir():
    _sys.meta_path.insert(0, _Beside)  # first: the finder of another checkout's editable install may come later


def __getattr__(name: str) -> object:
    """Import the public names on first use, so that neither `import eqcheck` nor pytest's start pays for torch."""
    if name in _MODULES:
        return _import_module(f"eqcheck.{name}")
    if name in _LAZY:
        return getattr(_import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the public names, also those not imported yet."""
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
