"""Does a batch speculative decoder emit exactly what its target model would emit alone?

>>> import eqcheck
>>> "eqspec" in eqcheck.names()
True
"""

from __future__ import annotations

from importlib import import_module as _import_module
from pathlib import Path as _Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from eqcheck import strategies as strategies
    from eqcheck.case import Case as Case
    from eqcheck.contract import Decoder as Decoder
    from eqcheck.contract import Request as Request
    from eqcheck.contract import decoder as decoder
    from eqcheck.errors import EqcheckError as EqcheckError
    from eqcheck.errors import Unsupported as Unsupported
    from eqcheck.errors import Violation as Violation
    from eqcheck.oracle import Oracle as Oracle
    from eqcheck.oracle import assert_equivalent as assert_equivalent
    from eqcheck.registry import load as load
    from eqcheck.registry import names as names
    from eqcheck.verdict import Verdict as Verdict

__version__ = "0.1.0"

_LAZY = {
    "Case": "eqcheck.case",
    "Decoder": "eqcheck.contract",
    "EqcheckError": "eqcheck.errors",
    "Oracle": "eqcheck.oracle",
    "Request": "eqcheck.contract",
    "Unsupported": "eqcheck.errors",
    "Verdict": "eqcheck.verdict",
    "Violation": "eqcheck.errors",
    "assert_equivalent": "eqcheck.oracle",
    "decoder": "eqcheck.contract",
    "load": "eqcheck.registry",
    "names": "eqcheck.registry",
}
__all__ = ["__version__", "strategies", *_LAZY]

# In a wheel `adapters/`, `reference_impls/` and `tests/conformance/` are sub-packages of this one; in a
# checkout they are its neighbours. One name for both places:
_here = _Path(__file__).parent
if not (_here / "adapters").is_dir():
    __path__ += [str(_here.parent), str(_here.parent / "tests")]


def __getattr__(name: str) -> object:
    """Import the public names on first use, so that neither `import eqcheck` nor pytest's start pays for torch."""
    if name == "strategies":
        return _import_module("eqcheck.strategies")
    if name in _LAZY:
        return getattr(_import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
