"""Provide a test class for the suite of another project: one audit, and a test for each group of kinds."""

from __future__ import annotations

import importlib
import os
import shlex
import warnings
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar
from unittest import SkipTest, mock

if TYPE_CHECKING:
    from eqcheck.contract.decoders import Decoder
    from eqcheck.core.result.findings import Audit, Finding

__unittest = True  # unittest shows no line of this file
CONTEXT = ("position", "mask", "cache", "state", "draft", "memory")


class Equivalence:
    """Test that a decoder returns exactly the tokens of its target alone, with ``unittest`` or pytest.

    A subclass names the decoder: ``adapter`` is a spec as for `eqcheck.load`, or a decoder made by `eqcheck.decoder`.
    Or ``base_url`` is the address of a completions server that speculates, and ``plain_url`` (optional) of the same
    server without speculation; both serve the built checkpoint ``checkpoint`` in ``dtype`` (`eqcheck checkpoint
    write`). A base class that starts the servers may set these names.

    The first test audits the cases of a ``profile``, or so many ``cases`` where that is set, and all tests share the
    result. Cases that earlier audits stored are not run. A failing test stores its smallest case in ``.eqcheck/``.
    ``est_time`` is how many seconds that takes a decoder that needs no engine; set your own.
    ``known`` is the path of a TOML file of violations that are known. A test is switched off by its name:
    ``test_options = None``.

        >>> class TestMine(Equivalence):
        ...     adapter, cases = "eqspec", 20
        ...     test_options = None
        >>> TestMine().test_ends()
    """

    adapter: Any
    base_url: str
    plain_url: str
    checkpoint: str
    dtype: str
    profile: ClassVar[str] = "ci"
    cases: ClassVar[int | None] = None
    known: ClassVar[str] = ""
    est_time: ClassVar[int] = 30

    def test_context(self) -> None:
        """Each target query attends to its own row, all of it, at the right positions."""
        self._told(lambda finding: finding.explanation.component in CONTEXT)

    def test_ends(self) -> None:
        """Check that rows return their own tokens and end where the target ends them."""
        self._told(lambda finding: finding.explanation.component == "bookkeeping")

    def test_options(self) -> None:
        """Check that the options of each row are applied."""
        self._told(lambda finding: finding.explanation.component == "options")

    def test_sampling(self) -> None:
        """Sampled tokens follow the target's distribution."""
        self._told(lambda finding: finding.explanation.component == "sampling")

    def test_crashes(self) -> None:
        """No request raises, hangs or gets an invalid answer."""
        self._told(lambda finding: finding.explanation.component == "crash")

    def test_unattributed(self) -> None:
        """No output is wrong for an unknown cause."""
        self._told(lambda finding: finding.explanation.component == "unattributed")

    def test_conclusive(self) -> None:
        """The audit reached a verdict, and each violation listed as known still shows."""
        __tracebackhide__ = True
        audit = self._audited()
        if audit.internal:
            raise AssertionError("\n\n".join(error.text for error in audit.internal))
        if audit.verdict == "inconclusive":
            raise AssertionError("\n".join(["the audit could not tell:", *audit.warnings]))
        if audit.outdated:
            raise AssertionError("\n".join(audit.outdated))

    def _told(self, mine: Callable[[Finding], bool]) -> None:
        """Fail with each violation that is ``mine`` and is not known: its counts, its explanation, how to see it again.

        The first line has the fingerprint, for runners show that line alone in their summary.
        """
        from eqcheck.contract.errors import Violation
        from eqcheck.core.explanation.records import many
        from eqcheck.core.explanation.text import render

        __tracebackhide__ = True
        audit = self._audited()
        failing = [finding for finding in audit.failing(allow_declared=True) if mine(finding)]
        for finding in audit.violations:
            if mine(finding) and finding not in failing:
                warnings.warn(f"{finding.fingerprint} shows, and is listed as known", stacklevel=3)
        run = many(audit.tally.run, "case")
        told = [
            f"{finding.fingerprint} in {finding.count} of {run}\n{render(finding.explanation)}\n"
            f"  Reproduce: {self._command(audit, finding)}"
            for finding in failing
        ]
        if told:
            raise Violation("\n\n".join(told))

    @classmethod
    def _audited(cls) -> Audit:
        """The audit of this class; it is done once."""
        from eqcheck.contract.errors import UsageError

        __tracebackhide__ = True
        if "_refused" in vars(cls):
            raise SkipTest(cls._refused)
        if "_audit" not in vars(cls):
            try:
                cls._audit = cls._audit_now()
            except UsageError as error:
                cls._refused = f"nothing was audited: {error}"
                raise AssertionError(cls._refused) from None
        return cls._audit

    _audit: ClassVar[Audit]
    _refused: ClassVar[str]

    @classmethod
    def _audit_now(cls) -> Audit:
        from eqcheck import __version__
        from eqcheck.audit.loop import audit
        from eqcheck.contract import profiles
        from eqcheck.contract.known_violations import in_ci, load
        from eqcheck.core.result.findings import Options

        entries = load(Path(cls.known)) if cls.known else ()  # a file that is wrong is told before anything runs
        options = Options(cases=cls.cases)
        if cls.cases is None:
            drawn = profiles.profile(cls.profile, __version__)
            options = Options(profile=drawn, budget=drawn.budget, seed=drawn.seed, jobs=drawn.jobs)
        with mock.patch.dict(os.environ, cls._environment()):
            result = audit(cls._decoder(), options)
        before = len(result.warnings)
        result.list_known(entries, datetime.now(timezone.utc).date(), in_ci())
        for said in result.warnings[before:]:  # a day that is past, or a violation that shows no more
            warnings.warn(str(said), stacklevel=2)
        return result

    @classmethod
    def _decoder(cls) -> Decoder:
        """The decoder under test; `UsageError` where the class names none."""
        from eqcheck.contract import registry
        from eqcheck.contract.decoders import Decoder
        from eqcheck.contract.errors import UsageError, describe

        adapter = getattr(cls, "adapter", None)
        if adapter is None and getattr(cls, "base_url", None):
            importlib.reload(importlib.import_module("eqcheck.adapters.openai_http"))  # it claims what is served now
            adapter = "openai_http"
        if isinstance(adapter, str):
            return registry.load(adapter)
        if not isinstance(adapter, Decoder):
            raise UsageError(
                f"{cls.__name__}: expected adapter = a SPEC or a decoder made by eqcheck.decoder, or base_url = the "
                f"address of a server, got {describe(adapter)}"
            )
        return adapter

    @classmethod
    def _environment(cls) -> dict[str, str]:
        """The variables that tell the adapter of servers where they are."""
        names = {
            "base_url": "EQCHECK_SPECULATIVE_URL",
            "plain_url": "EQCHECK_PLAIN_URL",
            "checkpoint": "EQCHECK_CHECKPOINT",
            "dtype": "EQCHECK_DTYPE",
        }
        if getattr(cls, "adapter", None) is not None:
            return {}
        given = {variable: str(getattr(cls, name, None) or "") for name, variable in names.items()}
        return {variable: _versioned(text) if "URL" in variable else text for variable, text in given.items() if text}

    def _command(self, audit: Audit, finding: Finding) -> str:
        """The command that decodes the smallest case again; the case is stored."""
        from eqcheck.core.store.casefile import command, stored_violation
        from eqcheck.core.store.corpus import kept

        decoder = audit.decoder
        if not decoder.spec:
            return "run this test; of a decoder that a SPEC names, one case is replayed"
        path = kept(stored_violation(audit, finding, finding.fingerprint), decoder.name)
        spec = decoder.spec.removeprefix(f"{Path.cwd()}{os.sep}")
        variables = [f"{name}={shlex.quote(value)}" for name, value in self._environment().items()]
        return " ".join([*variables, command(path, spec)])


def _versioned(url: str) -> str:
    """The address of a server's interface, where that of the server alone is given.

    >>> _versioned("http://127.0.0.1:8000"), _versioned("http://127.0.0.1:8000/v1/")
    ('http://127.0.0.1:8000/v1', 'http://127.0.0.1:8000/v1')
    """
    host = url.rstrip("/")
    return host if "/" in host.partition("://")[2] else f"{host}/v1"
