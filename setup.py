"""The description that an index shows: README.md, with links that lead to the repository."""

from __future__ import annotations

import re
from pathlib import Path

from setuptools import setup

HERE = Path(__file__).resolve().parent
LINK = re.compile(r"(!?)\[([^]]*)\]\((?!https?:|#)([^)]+)\)")


def described(readme: str, repository: str) -> str:
    """The text with absolute links: a file's page, or the picture itself."""
    return LINK.sub(lambda m: f"{m[1]}[{m[2]}]({repository}/{'raw' if m[1] else 'blob'}/main/{m[3]})", readme)


project = (HERE / "pyproject.toml").read_text(encoding="utf-8")
(repository,) = re.findall(r'^Repository = "(.*)"$', project, re.MULTILINE)
readme = (HERE / "README.md").read_text(encoding="utf-8")
setup(long_description=described(readme, repository), long_description_content_type="text/markdown")
