"""The pytest plugin: ``--adapter SPEC`` and the ``decoder`` fixture; torch is imported only for a named decoder."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Generator, Iterator
from importlib.metadata import version
from pathlib import Path
from platform import python_version
from typing import TYPE_CHECKING, Any

import pytest

from eqcheck import __version__

if TYPE_CHECKING:
    from datetime import date

    from eqcheck.contract.decoders import Decoder
    from eqcheck.contract.known_violations import Known
    from eqcheck.contract.profiles import Profile

PASSED_OVER = "eqcheck: cases passed over"
KNOWN = "eqcheck: known faults"
INTERNAL_ERRORS = "eqcheck: internal errors"
CASES = 30  # of a law, if nothing else is given: eleven laws have as many cases as an audit
_OPTIONS = (
    "--adapter",
    "--eqcheck-cases",
    "--eqcheck-profile",
    "--eqcheck-target",
    "--eqcheck-known",
    "--eqcheck-known-strict",
)
_DECIDED = "eqcheck"  # of a worker's input: the values of these options
SEED = 0  # the laws draw the same cases in every run
_STILL_SHOWS = "test_known_faults_still_show"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("eqcheck", "equivalence of batch speculative decoders")
    try:
        group.addoption(
            "--adapter",
            action="append",
            default=[],
            metavar="SPEC",
            help="decoder under test: NAME, package.module:attr or path/to/file.py:attr; repeatable. "
            "Without paths the conformance suite runs.",
        )
    except ValueError as error:
        raise pytest.UsageError(f"eqcheck: another plugin already owns --adapter: {error}") from error
    group.addoption("--eqcheck-cases", type=int, metavar="N", help=f"cases per conformance law (default: {CASES})")
    group.addoption(
        "--eqcheck-profile",
        metavar="ci|nightly",
        help="fixed cases of the conformance laws: of a date (ci-2026.12), or the newest (ci)",
    )
    group.addoption(
        "--eqcheck-target",
        default="",
        metavar="NAME",
        help="test on a tiny real model, which is read while it runs: llama, gpt2, ... (`eqcheck audit --target`)",
    )
    group.addoption(
        "--eqcheck-known", metavar="FILE", help="a TOML file of faults that are known: expected failures until a day"
    )
    group.addoption(
        "--eqcheck-known-strict",
        action="store_true",
        help="fail where an entry of --eqcheck-known is past its day or does not show any more; on where CI is set",
    )


def pytest_configure(config: pytest.Config) -> None:
    decided: dict[str, Any] | None = getattr(config, "workerinput", {}).get(_DECIDED)
    if decided is not None:  # a worker of xdist, which has the words of the command line and nothing else
        for name, value in decided.items():
            setattr(config.option, name, value)
    if not any(config.getoption(name) not in (None, "", [], False) for name in _OPTIONS):
        return  # which pays for nothing, and reads no file
    from eqcheck.contract.errors import UsageError

    try:
        if decided is None:
            _configure(config)
        if not (specs := config.getoption("--adapter")):
            return
        decoders = _loaded(config, specs)
        if target := config.getoption("--eqcheck-target"):
            _check_target(target, decoders)
        _entries(config)  # a file that is wrong is told at once
    except UsageError as error:
        raise pytest.UsageError(str(error)) from error
    config.option.adapter = [decoder.spec for decoder in decoders]  # absolute, for workers in other directories
    if known := config.getoption("--eqcheck-known"):
        config.option.eqcheck_known = str(Path(known).resolve())
    if config.args_source is not pytest.Config.ArgsSource.ARGS:
        config.args = [str(_conformance())]


def _loaded(config: pytest.Config, specs: list[str]) -> list[Decoder]:
    """Load the decoders, and say before each step what is loaded: all of it takes seconds, before pytest's header."""
    from eqcheck.cli.common import import_models
    from eqcheck.contract import registry

    worker = hasattr(config, "workerinput")
    quiet = worker or config.getoption("verbose") < 0 or config.getoption("no_header")

    def say(what: str) -> None:
        if not quiet:
            print(f"eqcheck: loading {what}", flush=True)

    for spec in specs:
        registry.named(spec)  # a name that is misspelt is told at once
    if "torch" not in sys.modules:
        say("torch")
        import torch  # noqa: F401
    decoders = []
    for spec in specs:
        if registry.names_code(spec):
            say(spec)
        decoders.append(registry.load(spec))
    decodes = worker or getattr(config.option, "dist", "no") == "no"  # the first process of xdist runs no test
    if decodes and "transformers.generation.utils" not in sys.modules:
        say("transformers")
        import_models()
    return decoders


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Hand what was decided here to a worker of xdist: it reads neither ``[tool.eqcheck]`` nor a profile again."""
    option = node.config.option
    node.workerinput[_DECIDED] = {name: getattr(option, name) for name in map(_destination, _OPTIONS)}


def _destination(option: str) -> str:
    return option.lstrip("-").replace("-", "_")


def _configure(config: pytest.Config) -> None:
    """Take from ``[tool.eqcheck]`` what the command line leaves open, and look the profile up."""
    from eqcheck.contract.configuration import read
    from eqcheck.contract.errors import UsageError
    from eqcheck.contract.profiles import profile

    option, file = config.option, read(config.invocation_params.dir)
    option.adapter = option.adapter or list(file.adapter)
    option.eqcheck_target = option.eqcheck_target or file.target
    option.eqcheck_known = option.eqcheck_known or file.known or None
    named, cases = option.eqcheck_profile, option.eqcheck_cases
    if cases is not None and cases < 1:
        raise UsageError(f"--eqcheck-cases: expected an integer of at least 1, got {cases}")
    if named and cases:
        raise UsageError("--eqcheck-profile, --eqcheck-cases: a profile says what is drawn; leave out one of the two")
    if named and not option.adapter:
        raise UsageError("--eqcheck-profile: no decoder is named; add --adapter=SPEC, or adapter to [tool.eqcheck]")
    named = named or ("" if cases else file.profile)
    chosen = profile(named, __version__) if named else None
    option.eqcheck_profile = chosen.name if chosen else ""
    option.eqcheck_cases = cases or (chosen.cases_of_law if chosen else CASES)


def profile_of(config: pytest.Config) -> Profile | None:
    """The profile that says what is drawn; None where none does."""
    from eqcheck.contract.profiles import profile

    named = config.getoption("--eqcheck-profile")
    return profile(named, __version__) if named else None


def pytest_report_header(config: pytest.Config) -> list[str]:
    """The decoders and versions under test, for a reader of the log."""
    lines = []
    for decoder in _decoders(config):
        named = " ".join(filter(None, (decoder.name, decoder.version)))
        lines.append(f"eqcheck: decoder under test: {named}{decoder.origin and f', {decoder.origin}'}")
    if lines:
        from eqcheck.contract.extras import untested
        from eqcheck.core.explanation import layout

        reporter = config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None and reporter.isatty:
            layout.within = config.get_terminal_writer().fullwidth
        versions = [f"{name} {version(name)}" for name in ("torch", "transformers")]
        target = config.getoption("--eqcheck-target")
        named = config.getoption("--eqcheck-profile")
        laws = f"{config.getoption('--eqcheck-cases')} cases per law"
        drawn = f"profile {named}, {laws}, the same in every release" if named else f"{laws}, seed {SEED}"
        cases = f"{drawn}{target and f', target {target}'}"
        lines.append(f"eqcheck: {', '.join([__version__, *versions, f'Python {python_version()}', cases])}")
        newer = filter(None, [untested()])
        lines += [f"eqcheck: {line}" for line in (*newer, *_past(config), *_older(config))]
    return lines


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """The conformance suite has nothing to test when no decoder is named."""
    return True if not config.getoption("--adapter") and collection_path == _conformance() else None


class _Undirected(pytest.Module):
    """A module of the conformance suite where no decoder is named: ten skips would pass for a clean run."""

    def collect(self) -> Iterator[pytest.Item]:
        raise self.CollectError("the conformance suite tests nothing without --adapter=SPEC: name a decoder")


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    """Without a decoder the conformance suite, and torch with it, is not even imported."""
    undirected = not parent.config.getoption("--adapter") and module_path.parent == _conformance()
    return _Undirected.from_parent(parent, path=module_path) if undirected else None


def pytest_pycollect_makeitem(collector: pytest.Collector, name: str) -> list[pytest.Item] | None:
    """Where no decoder has a known fault, there is none to look for; a profile has the laws that it names."""
    profile = profile_of(collector.config)
    of_suite = profile and collector.path.parent == _conformance() and name.startswith("test_")
    if profile and of_suite and name not in (*profile.laws, _STILL_SHOWS):
        return []
    return [] if name == _STILL_SHOWS and not _known_faults(collector.config) else None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "decoder" not in metafunc.fixturenames:
        return
    decoders = _decoders(metafunc.config)
    if decoders and metafunc.definition.name == _STILL_SHOWS:
        faults = _known_faults(metafunc.config)
        both, ids = ("decoder", "known_fault"), [f"{decoder.name}-{known}" for decoder, known in faults]
        values = [(decoder.spec, known) for decoder, known in faults]
        metafunc.parametrize(both, values, indirect=["decoder"], ids=ids, scope="session")
    elif decoders:
        specs, names = [decoder.spec for decoder in decoders], [decoder.name for decoder in decoders]
        metafunc.parametrize("decoder", specs, indirect=True, ids=names, scope="session")


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Iterator[None]:
    """A test of a decoder that declines what the test asks is skipped, with the decoder's reason."""
    if "decoder" not in pyfuncitem.fixturenames or not pyfuncitem.config.getoption("--adapter"):
        return (yield)
    from eqcheck.contract.errors import Unsupported

    try:
        return (yield)
    except Unsupported as declined:
        pytest.skip(str(declined))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    """An ``assert`` of a verdict that fails gets its whole explanation; pytest's own message has one line of it."""
    report = yield
    known = sys.modules.get("eqcheck.core.result.outcome")
    if known and call.excinfo and call.excinfo.errisinstance(AssertionError):
        message, frame = str(call.excinfo.value), call.excinfo.traceback[-1].frame
        verdicts = [one for one in frame.f_locals.values() if isinstance(one, known.Verdict)]
        for told in dict.fromkeys(str(one) for one in verdicts if not one and repr(one) in message):
            report.sections.append(("eqcheck: the verdict", told))
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say which laws passed over cases, and why, which known faults were seen, and where eqcheck itself failed."""
    shown: dict[str, dict[str, None]] = {KNOWN: {}, PASSED_OVER: {}, INTERNAL_ERRORS: {}}
    for report in itertools.chain.from_iterable(terminalreporter.stats.values()):
        for name, text in getattr(report, "user_properties", ()):
            if name in shown and report.when == "call":  # a fault that several laws show is shown once
                shown[name][f"{report.nodeid.rpartition('::')[2]}: {text}" if name == PASSED_OVER else text] = None
    for title, lines in shown.items():
        if lines:
            terminalreporter.section(title)
        for line in lines:
            terminalreporter.write_line(line)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A conformance suite has tested nothing if every law was skipped; where eqcheck itself failed, pytest says so."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if session.config.getoption("--adapter") and reporter is not None and _broken(reporter):
        session.exitstatus = pytest.ExitCode.INTERNAL_ERROR  # as `eqcheck audit` does, whatever else was found
        return
    if not session.config.getoption("--adapter") or session.exitstatus or reporter is None:
        return
    conformance = session.config.args == [str(_conformance())]
    if conformance and reporter.stats.get("skipped") and not reporter.stats.get("passed"):
        session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED


def _broken(reporter: pytest.TerminalReporter) -> bool:
    """Return whether a law met an error of eqcheck itself."""
    reports = itertools.chain.from_iterable(reporter.stats.values())
    return any(name == INTERNAL_ERRORS for one in reports for name, _ in getattr(one, "user_properties", ()))


@pytest.fixture(scope="session")
def decoder(request: pytest.FixtureRequest) -> Iterator[Decoder]:
    """The decoder named by ``--adapter``, set up once; call it with ``(target, draft, request)``."""
    if not hasattr(request, "param"):
        pytest.skip("needs --adapter=SPEC")
    from dataclasses import replace

    import torch

    from eqcheck.contract import registry

    torch.set_num_threads(1)
    loaded = registry.load(request.param)
    target = request.config.getoption("--eqcheck-target")
    with loaded.running() as generate:
        known = {**loaded.known, **_listed(request.config, loaded.name)}
        prepared = replace(loaded, function=generate, known=known)
        yield _on_target(prepared, target) if target else prepared


def _on_target(decoder: Decoder, target: str) -> Decoder:
    """A decoder that claims a real model instead of families; what no real model can be told to do it is not asked."""
    from dataclasses import replace

    from eqcheck.contract.decoders import POISONED
    from eqcheck.transparent.real.targets import families_of

    states = tuple(state for state in decoder.cache_states if state not in POISONED)
    return replace(decoder, families=families_of(target), cache_states=states, capabilities=())


def _check_target(target: str, decoders: list[Decoder]) -> None:
    """Build and read a real target before any test; `UsageError` where that, or a claim to it, is missing."""
    from eqcheck.contract.errors import UsageError
    from eqcheck.contract.family import asked_by, claimed_by
    from eqcheck.transparent.real.targets import check, families_of

    for family in families_of(target):
        check(family)
        for decoder in decoders:
            if not claimed_by(decoder.families, family):
                raise UsageError(
                    f"--eqcheck-target {target}: {decoder.name} claims the families {', '.join(decoder.families)}, and "
                    f"{target} asks for {' and '.join(asked_by(family))}; take another target, "
                    f"or audit it with --target {target}"
                )


def _decoders(config: pytest.Config) -> list[Decoder]:
    """The decoders under test."""
    specs = config.getoption("--adapter")
    if not specs:
        return []
    from eqcheck.contract import registry

    return [registry.load(spec) for spec in specs]


def _listed(config: pytest.Config, decoder: str) -> dict[str, str]:
    """The entries of ``--eqcheck-known`` for a decoder today: fingerprints with their links, and until when."""
    entries, today = _entries(config)
    listed = [entry for entry in entries if entry.until >= today and entry.of(decoder)]
    return {entry.fingerprint: f"{entry.link}, until {entry.until}" for entry in listed}


def _past(config: pytest.Config) -> list[str]:
    """The entries of ``--eqcheck-known`` in vain, as lines."""
    entries, today = _entries(config)
    return list(filter(None, (entry.outdated(today) for entry in entries)))


def _older(config: pytest.Config) -> list[str]:
    from eqcheck.contract import known_violations, registry

    said = known_violations.older(_decoders(config), registry.shipped())
    return [said] if said else []


def _known_faults(config: pytest.Config) -> list[tuple[Decoder, str]]:
    """Decoders with the faults whose showing is a test: declared ones, and where it is strict the listed ones too."""
    from eqcheck.contract.known_violations import in_ci

    entries = _entries(config)[0] if config.getoption("--eqcheck-known-strict") or in_ci() else ()
    params = []
    for decoder in _decoders(config):
        listed = [entry.fingerprint for entry in entries if entry.of(decoder.name)]
        params += [(decoder, fault) for fault in dict.fromkeys((*decoder.known, *listed))]
    return params


def outdated(config: pytest.Config, decoder: str, fault: str, cases: str | None) -> str:
    """Return why an entry of ``--eqcheck-known`` fails; empty where it stands,
    or there is none. See `Known.outdated`.
    """
    entries, today = _entries(config)
    own = [entry for entry in entries if entry.of(decoder) and entry.fingerprint == fault]
    return next(filter(None, (entry.outdated(today, cases) for entry in own)), "")


def _entries(config: pytest.Config) -> tuple[tuple[Known, ...], date]:
    from datetime import datetime, timezone

    from eqcheck.contract.known_violations import load

    path = config.getoption("--eqcheck-known")
    return (load(Path(path)) if path else ()), datetime.now(timezone.utc).date()


def _conformance() -> Path:
    from importlib.util import find_spec

    spec = find_spec("eqcheck.conformance")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent
