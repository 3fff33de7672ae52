"""The list of what a release still needs from a person: `make release` prints it when everything is built and checked.

python docs/release.py        prints the list
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

from eqcheck import __version__

ROOT = Path(__file__).resolve().parent.parent
_TEXTS = (".md", ".toml", ".yml", ".yaml", ".cff", "cli/new.py")  # the last writes workflows that install it


def remaining(texts: Mapping[str, str], tools: Iterable[str], version: str = __version__) -> list[str]:
    """The steps that are left; ``texts`` are the files of the repository, ``tools`` the versions that reports name."""
    steps = []
    if owned := sorted(name for name, text in texts.items() if "OWNER/eqcheck" in text):
        steps.append(f"Replace OWNER by the account that publishes, in {', '.join(owned)}.")
    unreleased = texts.get("CHANGELOG.md", "").partition("## Unreleased")[2]
    if re.split(r"(?m)^## ", unreleased)[0].strip():
        steps.append('Give the entries under "Unreleased" in CHANGELOG.md a version and a date.')
    if others := sorted({*tools} - {version}):
        steps.append(f"Audit again with {version}: docs/scoreboard.md has reports of {', '.join(others)}.")
    return [
        *steps,
        f"Commit, then tag: git tag --sign v{version}, and git push --tags.",
        "Upload: twine upload dist/*",
    ]


def main() -> None:
    from scoreboard import committed

    names = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")
    texts = {name: (ROOT / name).read_text(encoding="utf-8") for name in names if name.endswith(_TEXTS)}
    print(f"dist/ holds eqcheck {__version__}, built and checked. These steps remain for a person:")
    for number, step in enumerate(remaining(texts, [one.versions["eqcheck"] for one in committed()]), start=1):
        print(f"{number}. {step}")


if __name__ == "__main__":
    main()
