"""Run the commands of README and of the start page as a newcomer does: in a fresh clone, an empty HOME, without uv.

PYTHONPATH=tests/tools python -m newcomer        all of them, with the installation, `make audit` and `make test`

Each command runs in the order in which it stands, in one shell for each page. A block of Python whose first line names
a file is that file. It prints each command with its exit code and its seconds. `test_newcomer.py` does the same
with the packages of the environment that runs the tests; there `make` only says what it would do.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

ROOT = Path(__file__).resolve().parents[2]
PAGES = {"README.md": ROOT / "README.md", "start.md": ROOT / "docs" / "start.md"}
# These have a violation to show; every other command ends with 0.
SHOWS_A_VIOLATION = ("eqcheck audit bsp", "eqcheck replay")
KEPT = re.compile(r"LANG|TMPDIR|PIP_\w+|SSL_\w+|REQUESTS_\w+|\w+_(?:PROXY|proxy)")
BLOCK = re.compile(r"^```(console|python)\n(.*?)^```", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Step:
    """A command, or a file that the page has the reader write."""

    text: str
    file: str = ""


@dataclass(frozen=True)
class Done:
    """A command that was run: its exit code, its seconds of wall time and its output."""

    command: str
    code: int
    seconds: float
    output: str

    @property
    def expected(self) -> int:
        """The exit code that it should have."""
        return 1 if self.command.startswith(SHOWS_A_VIOLATION) else 0


def steps(page: str) -> Iterator[Step]:
    """The commands and files of a page, in their order.

    >>> list(steps("```console\\n$ make audit   # minutes\\n```\\n```python\\n# a.py\\nx\\n```\\n"))
    [Step(text='make audit', file=''), Step(text='# a.py\\nx\\n', file='a.py')]
    """
    for language, block in BLOCK.findall(page):
        if language == "console":
            yield from (Step(line) for line in re.findall(r"^\$ (.*?)(?:\s+#.*)?$", block, re.MULTILINE))
        elif name := re.match(r"# (\S+\.py)\n", block):
            yield Step(block, name[1])


def run(page: str, folder: Path, environment: Mapping[str, str] | None = None) -> list[Done]:
    """Run a page in an empty folder; ``environment`` are packages to take in place of an installation."""
    commands = [step for step in steps(PAGES[page].read_text(encoding="utf-8")) if environment is None or _short(step)]
    source = _copy(folder / "source")
    lines = ["seconds() { date +%s.%N; }", "mkdir -p steps home work", "cd work"]
    for number, step in enumerate(commands):
        if step.file:
            lines.append(f"cat > {step.file} <<'END OF FILE'\n{step.text}END OF FILE")
            continue
        command = re.sub(r"^git clone \S+", f"git clone --quiet {source} eqcheck", step.text)
        if environment is not None:
            command = re.sub(r"^make ", "make --dry-run ", command)
        log = folder / "steps" / str(number)
        lines += [
            f"begin=$(seconds); {{ {command}; }} > {log} 2>&1",
            f'echo "{number} $? $begin $(seconds)" >> {folder}/steps/done',
        ]
        if environment is not None and command == "cd eqcheck":
            lines.append(environment["reuse"])
    shell = {name: value for name, value in os.environ.items() if KEPT.fullmatch(name)}
    shell |= {"HOME": str(folder / "home"), "PATH": _path_without_uv(folder / "bin")}
    subprocess.run(["bash", "-c", "\n".join(lines)], cwd=folder, env=shell, check=True)
    return [_done(commands, line.split(), folder) for line in (folder / "steps" / "done").read_text().splitlines()]


def _done(commands: list[Step], line: list[str], folder: Path) -> Done:
    number, code, begin, end = line
    output = (folder / "steps" / number).read_text(errors="replace")
    return Done(commands[int(number)].text, int(code), float(end) - float(begin), output)


def _short(step: Step) -> bool:
    """Whether a step is one that needs no installation of its own."""
    return not step.text.startswith("pip install")


def _copy(folder: Path) -> Path:
    """A repository to clone: the last commit with the changes of the working tree, committed."""
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(folder)], check=True)
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    ).stdout.decode()
    for name in filter(None, listed.split("\0")):
        old, new = ROOT / name, folder / name
        if old.is_file():
            new.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(old, new)
        else:
            new.unlink(missing_ok=True)
    git = ["git", "-c", "user.name=newcomer", "-c", "user.email=newcomer@example.org"]
    subprocess.run([*git, "add", "--all"], cwd=folder, check=True)
    subprocess.run([*git, "commit", "--quiet", "--allow-empty", "-m", "The working tree"], cwd=folder, check=True)
    return folder


def _path_without_uv(folder: Path) -> str:
    """The folders of the system and the tools that the page names; none of them has uv."""
    folder.mkdir()
    for tool in ("git", "make"):
        (folder / tool).symlink_to(str(shutil.which(tool)))
    (folder / "python3").symlink_to(sys.executable if sys.prefix == sys.base_prefix else _base_python())
    path = [str(folder), *(one for one in ("/usr/bin", "/bin") if not (Path(one) / "uv").exists())]
    return os.pathsep.join(path)


def _base_python() -> str:
    """The Python that the environment of the tests was made with."""
    return str(Path(sys.base_prefix) / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}")


def reused(packages: Path) -> dict[str, str]:
    """What to do in a clone so that `.venv` has these packages, the package of the clone, and its commands."""
    script = """
        python3 -m venv --without-pip .venv
        site=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
        printf '%s\\n' "$PWD" "import site; site.addsitedir('{packages}')" > "$site/reused.pth"
        for pair in eqcheck:eqcheck.cli pytest:pytest; do
          command=.venv/bin/${pair%:*}
          lines=("#!$PWD/.venv/bin/python" "import sys" "from ${pair#*:} import main" "sys.exit(main())")
          printf '%s\\n' "${lines[@]}" > $command
          chmod +x $command
        done
        touch .venv/.installed
    """
    return {"reuse": dedent(script).replace("{packages}", str(packages))}


def main() -> int:
    """Run both pages in full; 1 where a command ended otherwise than it should."""
    failed = 0
    for page in PAGES:
        with tempfile.TemporaryDirectory() as folder:
            for done in run(page, Path(folder)):
                wrong = done.code != done.expected
                failed += wrong
                print(f"{page}: {done.seconds:7.1f} s, exit code {done.code}: {done.command}", flush=True)
                if wrong:
                    print(f"  expected {done.expected}; the end of its output:\n{done.output[-3000:]}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
