"""`make release` lists the steps that are left, and no step that was done."""

from __future__ import annotations

from test_docs_site import ROOT, loaded

RELEASE = loaded("release")
ALWAYS = ["Commit, then tag: git tag --sign v1.0, and git push --tags.", "Upload: twine upload dist/*"]


def test_what_is_left_is_listed() -> None:
    texts = {"a.md": "OWNER/eqcheck", "CHANGELOG.md": "## Unreleased\n\n- More.\n\n## 0.9\n"}
    owner, changelog, reports, *rest = RELEASE.remaining(texts, ["0.9", "1.0"], "1.0")
    assert "in a.md" in owner
    assert "a version and a date" in changelog
    assert reports.endswith("reports of 0.9.")
    assert rest == ALWAYS


def test_what_is_done_is_not() -> None:
    texts = {"a.md": "somebody/eqcheck", "CHANGELOG.md": "## Unreleased\n\n## 1.0 - 2026-12-01\n\n- More.\n"}
    assert RELEASE.remaining(texts, ["1.0"], "1.0") == ALWAYS


def test_make_release_builds_and_checks_first() -> None:
    assert "\nrelease: lint dist\n\t$(VENV)/bin/python docs/release.py\n" in (ROOT / "Makefile").read_text()
