"""An environment for one version of a package, on top of one that is there: seconds and megabytes, and no second torch.

The new environment finds first what is installed into it, and then all that the one below has. Only wheels are
installed, so no build script runs; nothing is written to the environment below.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from eqcheck.contract.errors import EqcheckError, UsageError
from eqcheck.contract.escaping import one_line

_SITE = "eqcheck-history.pth"
_SHARED = "torch"  # a second one is gigabytes: whatever needs another version than the one below cannot be installed
_PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input")
_PATHS = """import json, sys
print(json.dumps([p for p in sys.path if p.endswith(("site-packages", "dist-packages"))]))"""
_VERSION = """import sys
from importlib.metadata import PackageNotFoundError, version
try: print(version(sys.argv[1]))
except PackageNotFoundError: pass"""
_OWN = "import sysconfig; print(sysconfig.get_path('purelib'))"


class NotInstalled(EqcheckError):
    """A version cannot be installed; the message is the reason."""


def package(text: str) -> str:
    """The name of a package; raises `UsageError` for anything else.

    >>> package("openvino-genai")
    'openvino-genai'
    """
    try:
        named = Requirement(text)
        plain = named.name == text
    except InvalidRequirement:
        plain = False
    if not plain:
        raise UsageError(f"--package {text!a:.80}: expected the name of a package, such as openvino-genai")
    return text


def versions(texts: Sequence[str]) -> list[str]:
    """Versions in their order, each once; raises `UsageError` for what is no version.

    >>> versions(["5.10.0", "5.9.0", "5.9.0"])
    ['5.9.0', '5.10.0']
    """
    released = {}
    for text in texts:
        try:
            if not re.fullmatch(r"[0-9A-Za-z.!+_-]+", text, re.ASCII):
                raise InvalidVersion
            released[Version(text)] = str(Version(text))
        except InvalidVersion:
            raise UsageError(f"version {text!a:.80}: expected one released version, such as 5.23.0") from None
    return [released[version] for version in sorted(released)]


@dataclass(frozen=True)
class Pins:
    """The packages to install for a version: ``name==version`` of each package, the engine's first."""

    package: str
    version: str
    pins: tuple[str, ...]

    def __str__(self) -> str:
        wanted = ", ".join(self.pins) or "nothing, it is there already"
        return f"{self.package} {self.version}: installs {wanted}"


class Environment:
    """A temporary environment over that of the Python ``base``; it is removed when its block ends.

    ``python`` runs it. ``folders`` are found behind what is installed here and before what ``base`` has.
    """

    def __init__(self, base: str, folders: Sequence[str] = ()) -> None:
        self._base, self._folders = base, folders

    def __enter__(self) -> Environment:
        self._folder = tempfile.TemporaryDirectory(prefix="eqcheck-history-", ignore_cleanup_errors=True)
        self._place = Path(self._folder.name).resolve()
        run([self._base, "-m", "venv", "--without-pip", str(self._place)])
        self.python = str(self._place / "bin" / "python")
        below = json.loads(run([self._base, "-c", _PATHS]))
        lines = [
            f"import sys; sys.path += {list(self._folders)!r}",
            *(f"import site; site.addsitedir({p!r})" for p in below),
        ]
        (Path(run([self.python, "-c", _OWN]).strip()) / _SITE).write_text("\n".join(lines) + "\n")
        shared = self.installed(_SHARED)
        self._constraints = self._place / "constraints.txt"
        self._constraints.write_text(f"{_SHARED}=={Version(shared).public}\n" if shared else "")
        return self

    def __exit__(self, *failure: object) -> None:
        self._folder.cleanup()

    def installed(self, package: str) -> str:
        """The version of a package that the environment finds; an empty text if there is none."""
        return run([self.python, "-c", _VERSION, package]).strip()

    def resolve(self, package: str, version: str) -> Pins:
        """The packages that a version needs; raises `NotInstalled` if there is no such set."""
        report = self._place / "resolved.json"
        self._pip("--dry-run", "--report", str(report), "--constraint", str(self._constraints), f"{package}=={version}")
        found = [one["metadata"] for one in json.loads(report.read_text())["install"]]
        found.sort(key=lambda one: canonicalize_name(one["name"]) != canonicalize_name(package))
        return Pins(package, version, tuple(f"{one['name']}=={one['version']}" for one in found))

    def install(self, pins: Pins) -> None:
        """Install exactly the pins; raises `NotInstalled`, also where another copy of the package is found first."""
        if pins.pins:
            self._pip("--no-deps", "--no-compile", *pins.pins)
        found = self.installed(pins.package)
        if not found or Version(found) != Version(pins.version):
            raise NotInstalled(f"the environment finds {pins.package} {found or 'nowhere'}, not {pins.version}")

    def _pip(self, *arguments: str) -> None:
        command = [*_PIP, "--python", self.python, "install", "--only-binary", ":all:", *arguments]
        run(command, cwd=str(self._place))


def without(pins: Pins, names: frozenset[str]) -> Pins:
    """The pins without the packages of these canonical names.

    >>> without(Pins("a", "1", ("a==1", "B_c==2")), frozenset({"b-c"})).pins
    ('a==1',)
    """
    kept = tuple(pin for pin in pins.pins if name_of(pin) not in names)
    return Pins(pins.package, pins.version, kept)


def name_of(pin: str) -> str:
    """The canonical name in a pin."""
    return canonicalize_name(pin.partition("==")[0])


def run(command: Sequence[str], **options: Any) -> str:
    """The output of a command; raises `NotInstalled` with its last words where it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, errors="replace", **options)
    if done.returncode:
        raise NotInstalled(_reason(done.stdout, done.stderr) or f"{command[0]} ended with {done.returncode}")
    printed: str = done.stdout
    return printed


def _reason(printed: str, failed: str) -> str:
    """Pip's complaint: its errors without its warnings, and which requirements contradict each other.

    >>> _reason("The conflict is caused by:\\n    a 1 depends on b<1\\n\\nTo fix", "ERROR: Cannot install a==1\\n")
    'Cannot install a==1 a 1 depends on b<1'
    """
    errors = [line.removeprefix("ERROR: ") for line in failed.splitlines() if line.startswith("ERROR: ")]
    errors = [line for line in errors if not line.startswith("ResolutionImpossible")]
    last = [line for line in failed.splitlines() if line.strip()][-1:]
    conflict = printed.partition("The conflict is caused by:\n")[2].partition("\n\n")[0]
    text = " ".join([*(errors or last), *conflict.split()])
    return one_line(re.sub(r" \(from versions: [^)]*\)", "", text), 400)
