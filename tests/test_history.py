"""`eqcheck history`: in which version of a package a cause appears, what cannot be audited, and what is kept."""

from __future__ import annotations

import json
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from eqcheck.cli import main
from eqcheck.contract.errors import UsageError
from eqcheck.history import auditing
from eqcheck.history.auditing import AUDITED, NOT_AUDITED, NOT_INSTALLED, PENDING, Release, Trial, columns, read
from eqcheck.history.environments import Environment, NotInstalled, package, versions
from eqcheck.history.table import changes, history, to_markdown, write

DECODE = """
import torch

def decode(target, request):
    rows = []
    for prompt in request.prompts:
        ids = list(prompt)
        for _ in range(request.max_new_tokens):
            if set(ids[len(prompt):]) & set(request.eos_token_ids):
                break
            ids.append(int(target(torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
        rows.append(ids[len(prompt):])
    return rows
"""
PREMATURE = DECODE.replace("rows.append(ids[len(prompt):])", "rows.append(ids[len(prompt):-1])")
ADAPTER = """
import eqcheck
import fakeengine

@eqcheck.decoder(name="mine", environment="fake")
def mine(target, draft, request):
    return fakeengine.decode(target, request)
"""


def wheel(folder: Path, version: str, code: str, requires: str = "") -> None:
    """A wheel of the package ``fakeengine``."""
    info = f"fakeengine-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: fakeengine\nVersion: {version}\n{requires}\n"
    files = {
        "fakeengine.py": code,
        f"{info}/METADATA": metadata,
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{name},,\n" for name in [*files, f"{info}/RECORD"])
    with zipfile.ZipFile(folder / f"fakeengine-{version}-py3-none-any.whl", "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Wheels that are all that pip can find."""
    wheels = tmp_path_factory.mktemp("wheels")
    wheel(wheels, "1.0", DECODE)
    wheel(wheels, "2.0", PREMATURE)
    wheel(wheels, "2.5", "raise ImportError('built for another world')")
    wheel(wheels, "3.0", DECODE, "Requires-Dist: nowhere-to-be-found>=7\n")
    wheel(wheels, "4.0", DECODE, "Requires-Dist: torch<1\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PIP_NO_INDEX", "1")
        patch.setenv("PIP_FIND_LINKS", str(wheels))
        patch.setenv("PIP_CONFIG_FILE", "/dev/null")
        yield wheels


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wheels: Path) -> Path:
    """A working folder with an adapter."""
    (tmp_path / "mine.py").write_text(ADAPTER)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def base(wheels: Path) -> Iterator[str]:
    """The Python of an environment that has version 1.0."""
    with Environment(sys.executable) as environment:
        environment.install(environment.resolve("fakeengine", "1.0"))
        yield environment.python


ASKED = Trial("mine.py", "mine", "fakeengine", cases=6, seed=0, by_tokens=False)


def test_the_table_says_where_a_bug_appeared(base: str, place: Path) -> None:
    said: list[str] = []
    wanted = ["1.0", "2.0", "2.5", "3.0", "4.0"]
    begun = columns(ASKED, base, wanted, place, said.append)
    first = next(begun)
    begun.close()  # interrupted
    kept = place / "1.0" / "audited.json"
    before = kept.stat().st_mtime_ns
    found = list(columns(ASKED, base, wanted, place, said.append))
    assert found[0] == first
    assert kept.stat().st_mtime_ns == before
    assert [one.status for one in found] == [AUDITED, AUDITED, NOT_AUDITED, NOT_INSTALLED, NOT_INSTALLED]
    assert (found[0].verdict, found[0].causes) == ("equivalent", {})
    assert "bookkeeping/premature-stop" in found[1].causes
    assert "ImportError: built for another world" in found[2].reason
    assert "nowhere-to-be-found" in found[3].reason
    assert "torch" in found[4].reason  # never a second one
    assert found[1].installed == ("fakeengine==2.0",)

    assert said[0] == "fakeengine 1.0: installs nothing, it is there already"
    assert said[2:4] == ["fakeengine 1.0: audited before", "fakeengine 2.0: installs fakeengine==2.0"]
    assert said[4].startswith("fakeengine 2.0: violation, 6 cases: ")

    (change,) = [one for one in changes(tuple(found)) if one.fingerprint == "bookkeeping/premature-stop"]
    assert (change.change, change.version, change.before, change.doubts) == ("appeared", "2.0", "1.0", ())
    write(history(ASKED, found), place / "out")
    text = (place / "out" / "history.md").read_text()
    assert "- `bookkeeping/premature-stop` appeared in 2.0; 1.0 does not show it." in text
    assert "- 3.0: not installed. " in text
    data = json.loads((place / "out" / "history.json").read_text())
    assert data["format"] == "eqcheck-history/1"
    assert [one["status"] for one in data["versions"]] == [one.status for one in found]

    other = [Trial(**{**vars(ASKED), "seed": 1}), Trial(**{**vars(ASKED), "eqcheck": "0"})]
    assert not [asked for asked in other if read(asked, "1.0", place / "1.0")]  # that was asked something else
    (place / "1.0" / "audited.json").write_text('{"asked": {')
    assert read(ASKED, "1.0", place / "1.0") is None


def test_the_environment_below_is_left_alone(base: str, place: Path) -> None:
    with Environment(base) as above:
        above.install(above.resolve("fakeengine", "2.0"))
        assert above.installed("fakeengine") == "2.0"
        folder = Path(above.python).parents[1]
    assert not folder.exists()
    with Environment(base) as above:
        assert above.installed("fakeengine") == "1.0"
        assert above.installed("torch")


def test_another_copy_that_is_found_first_is_seen(base: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Environment(base) as above:
        pins = above.resolve("fakeengine", "2.0")
        (place / "first" / "fakeengine-1.0.dist-info").mkdir(parents=True)
        (place / "first" / "fakeengine-1.0.dist-info" / "METADATA").write_text("Name: fakeengine\nVersion: 1.0\n")
        monkeypatch.setenv("PYTHONPATH", str(place / "first"))
        with pytest.raises(NotInstalled, match=r"finds fakeengine 1\.0, not 2\.0"):
            above.install(pins)


def test_the_command_writes_after_each_version_and_keeps_what_is_there(
    base: str, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / ".venv-fake").symlink_to(Path(base).parents[1])

    def audited(asked: Trial, *_: object) -> Iterator[Release]:
        yield Release("1.0", AUDITED, verdict="equivalent", run=6)
        raise KeyboardInterrupt

    monkeypatch.setattr(auditing, "columns", audited)
    (place / "mine.py").write_text(ADAPTER.replace("import fakeengine\n", ""))
    assert main(["history", "--adapter", "mine.py", "--package", "fakeengine", "2.0", "1.0", "--out", "out"]) == 2
    assert "interrupted" in capsys.readouterr().err
    data = json.loads((place / "out" / "mine" / "history.json").read_text())
    assert [(one["version"], one["status"]) for one in data["versions"]] == [("1.0", AUDITED), ("2.0", PENDING)]
    assert "- 2.0: not audited yet." in (place / "out" / "mine" / "history.md").read_text()


def test_a_package_that_is_not_there_is_not_fetched(base: str, place: Path) -> None:
    asked = Trial(**{**vars(ASKED), "package": "fakeengin"})
    with pytest.raises(UsageError, match="so that nothing unknown is installed"):
        list(columns(asked, base, ["1.0"], place, print))


HOSTILE = [
    "../../etc",
    "1.0; rm -rf .",
    "1.0 --index-url=x",
    "1.0\n",
    "@file:///x",
    "1.*",
    "",
    "\x1b[31m1",
    "\uff11.0",
    ">=1",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_versions_are_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match="expected one released version"):
        versions([text])
    assert main(["history", "--adapter", "eqspec", "--package", "torch", "--", text]) == 4
    assert "\x1b" not in capsys.readouterr().err


@pytest.mark.parametrize("text", ["--index-url=x", "a b", "a @ file:///x", "../x", "a==1", "a[b]", "", "a\n"])
def test_hostile_packages_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="expected the name of a package"):
        package(text)


def column(version: str, *causes: str, run: int = 100, status: str = AUDITED) -> Release:
    return Release(version, status, run=run, causes=dict.fromkeys(causes, 1), verdict="violation" if causes else "tie")


def test_a_change_says_what_else_it_could_be() -> None:
    hidden = changes((column("1", "a/b"), column("2", "crash/exception")))
    assert [(one.fingerprint, one.change, one.doubts) for one in hidden] == [
        ("a/b", "vanished", ("it may hide behind `crash/exception` in 2",)),
        ("crash/exception", "appeared", ("it may hide behind `a/b` in 1",)),
    ]
    gap = (column("1"), column("2", status=NOT_INSTALLED), column("3", "a/b", run=200))
    (one,) = changes(gap)
    assert one.doubts == ("1 ran 100 cases, 3 ran 200", "no audit of 2 between them")
    assert not changes((column("1", "a/b"), column("2", "a/b")))
    again = changes((column("1", "a/b"), column("2"), column("3", "a/b")))
    assert [one.change for one in again] == ["vanished", "appeared"]


def test_hostile_texts_stay_in_their_places() -> None:
    hostile = "crash/exception:<script>|x\n# y\x1b[31m"
    found = history(ASKED, [column("1", hostile), Release("2", NOT_INSTALLED, "<b>\n# no\x1b")])
    text = to_markdown(found)
    assert "\x1b" not in text
    assert "<b>" not in text
    assert not [line for line in text.splitlines() if line.startswith(("# y", "# no"))]
    (row,) = [line for line in text.splitlines() if line.startswith("| `crash")]
    assert row.replace("\\|", "").count("|") == 4
