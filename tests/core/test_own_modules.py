"""Adapters that each have a top-level `utils` find their own; an audit of several gives each an interpreter."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from eqcheck import cli
from eqcheck.contract import registry
from eqcheck.contract.decoders import Decoder, Request
from eqcheck.contract.errors import UsageError

NOTHING = Request([[1]], 1, 1, (), 0, "left")
EAGER = """
import eqcheck
from utils import NAME, name_of_{name}
{more}
@eqcheck.decoder(name="{name}")
def generate(target, draft, request):
    return [NAME]
"""
LAZY = """
import eqcheck
{more}
@eqcheck.decoder(name="{name}")
def generate(target, draft, request):
    import utils
    from utils import name_of_{name}
    from helpers.deep import WHOSE
    assert WHOSE == "{name}"
    return [utils.NAME]
"""
OBJECT = """
import eqcheck
{more}
@eqcheck.decoder(name="{name}")
class Engine:
    def open(self):
        from utils import name_of_{name}

    def __call__(self, target, draft, request):
        from utils import NAME
        self.note = NAME
        return [NAME]

    def close(self):
        from helpers.deep import WHOSE
        assert WHOSE == "{name}"
"""


def repository(folder: Path, name: str) -> Path:
    """A folder with a module `utils` and a package `helpers`, which has no `__init__`."""
    (folder / "helpers").mkdir(parents=True)
    (folder / "utils.py").write_text(f"NAME = {name!r}\ndef name_of_{name}(): ...\n")
    (folder / "helpers" / "deep.py").write_text(f"WHOSE = {name!r}\n")
    return folder


def adapter(tmp_path: Path, name: str, text: str = EAGER, *, elsewhere: bool = False) -> Path:
    """An adapter beside its repository's modules, or one that puts the repository on ``sys.path``."""
    folder = repository(tmp_path / name, name)
    more = f"import sys\nsys.path.insert(0, {str(folder)!r})\n" if elsewhere else ""
    path = (tmp_path / f"of_{name}" if elsewhere else folder) / "mine.py"
    path.parent.mkdir(exist_ok=True)
    written = text.format(name=name, more=more)
    path.write_text(more + written if elsewhere else written)
    return path


def answers(*decoders: Decoder) -> list[str]:
    return [str(decoder(None, None, NOTHING)[0]) for decoder in decoders]


@pytest.fixture(autouse=True)
def untouched() -> Iterator[None]:
    """Whatever happens, path and modules are as before."""
    path = list(sys.path)
    yield
    assert sys.path == path
    assert not {"utils", "helpers", "helpers.deep"} & sys.modules.keys()


@pytest.mark.parametrize("elsewhere", [False, True])
@pytest.mark.parametrize("text", [EAGER, LAZY, OBJECT])
def test_each_finds_its_own(tmp_path: Path, text: str, elsewhere: bool) -> None:
    a, b = (registry.load(str(adapter(tmp_path, name, text, elsewhere=elsewhere))) for name in ("a", "b"))
    assert answers(a, b, a, b) == ["a", "b", "a", "b"]


def test_notes_and_nesting(tmp_path: Path) -> None:
    inner = adapter(tmp_path, "inner", OBJECT)
    outer = tmp_path / "outer"
    repository(outer, "outer")
    text = f"""
import eqcheck

@eqcheck.decoder(name="outer")
def generate(target, draft, request):
    import utils
    inner = eqcheck.load({str(inner)!r})(target, draft, request)
    import utils as again
    assert again is utils
    return [utils.NAME, *inner]
"""
    (outer / "mine.py").write_text(text)
    assert registry.load(str(outer / "mine.py"))(None, None, NOTHING) == ["outer", "inner"]
    with registry.load(str(inner)).running() as generate:
        generate(None, None, NOTHING)
        assert generate.note == "inner"  # type: ignore[attr-defined]


def test_a_module_is_executed_once(tmp_path: Path) -> None:
    path = adapter(tmp_path, "a", LAZY)
    count = tmp_path / "count"
    with (path.parent / "utils.py").open("a") as file:
        file.write(f"open({str(count)!r}, 'a').write('x')\n")
    assert answers(*[registry.load(str(path))] * 3) == ["a", "a", "a"]
    assert count.read_text() == "x"


@pytest.mark.parametrize("elsewhere", [False, True])
@pytest.mark.parametrize("text", [EAGER, LAZY])
def test_the_program_around_keeps_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, elsewhere: bool
) -> None:
    monkeypatch.syspath_prepend(repository(tmp_path / "tests", "tests"))
    import utils  # type: ignore[import-not-found]

    try:
        assert answers(registry.load(str(adapter(tmp_path, "a", text, elsewhere=elsewhere)))) == ["a"]
        assert sys.modules["utils"] is utils
        assert utils.NAME == "tests"
    finally:
        del sys.modules["utils"]


def test_what_the_program_finds_too_is_shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = adapter(tmp_path, "a", LAZY)
    monkeypatch.syspath_prepend(path.parent)
    loaded = registry.load(str(path))
    try:
        assert answers(loaded) == ["a"]
        import utils

        utils.NAME = "changed by a test"
        assert answers(loaded) == ["changed by a test"]
    finally:
        for name in ("utils", "helpers", "helpers.deep"):
            del sys.modules[name]


def test_the_interpreter_is_as_before_after_errors(tmp_path: Path) -> None:
    broken = adapter(tmp_path, "a", EAGER + "\nimport helpers.deep\nraise OSError('no device')\n", elsewhere=True)
    for _ in range(2):
        with pytest.raises(UsageError, match="no device"):
            registry.load(str(broken))
    raising = adapter(tmp_path, "b", LAZY.replace("return [utils.NAME]", "raise KeyError(utils.NAME)"))
    loaded = registry.load(str(raising))
    with pytest.raises(KeyError, match="b"):
        answers(loaded)


FAILING = """
import transformers
from utils import NAME

def refuse(*args, **kwargs):
    raise RuntimeError("patched by another adapter")

if NAME == "b":
    transformers.DynamicCache.update = refuse

@eqcheck.decoder(name=NAME)
def generate(target, draft, request):
    import utils
    assert utils.NAME == NAME
    rows = []
    for prompt in request.prompts:
        row = list(prompt)
        while len(row) < len(prompt) + request.max_new_tokens:
            row.append(int(target(torch.tensor([row]), use_cache=NAME == "a").logits[0, -1].argmax()))
            if row[-1] in request.eos_token_ids:
                break
        rows.append(row[len(prompt) : len(prompt) + 1] if NAME == "b" else row[len(prompt) :])
    return rows
"""


@pytest.fixture
def two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The options that name two adapters: a is right, b patches transformers and stops after one token."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    text = "import eqcheck\nimport torch\n" + FAILING.replace("{", "{{").replace("}", "}}")
    paths = [adapter(tmp_path, name, text) for name in ("a", "b")]
    return [f"--adapter={path.relative_to(tmp_path)}" for path in paths]


def eqcheck(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "eqcheck.cli", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.skipif(sys.platform != "linux", reason="needs fork servers")
@pytest.mark.long
def test_an_audit_gives_each_an_interpreter(two: list[str], tmp_path: Path) -> None:
    done = eqcheck("audit", *two, "--cases", "6", "--json", "--no-corpus")
    assert done.returncode == 1, done.stdout + done.stderr
    found = {report["decoder"]["name"]: report for report in json.loads(done.stdout)["reports"]}
    assert {name: report["verdict"] for name, report in found.items()} == {"a": "equivalent", "b": "violation"}
    (violation,) = found["b"]["violations"]
    assert violation["fingerprint"] == "bookkeeping/premature-stop"
    case = tmp_path / "reports" / "b" / "cases" / "bookkeeping-premature-stop.json"
    assert str(case.relative_to(tmp_path)) in violation["reproduce"]
    done = eqcheck(*shlex.split(violation["reproduce"])[1:])  # not here: b would patch the tests' own transformers
    assert done.returncode == 1, done.stdout + done.stderr
    assert "bookkeeping/premature-stop" in done.stdout


@pytest.mark.long
def test_two_adapters_in_one_run_of_pytest(two: list[str], tmp_path: Path) -> None:
    for path in tmp_path.glob("*/mine.py"):  # in one interpreter a patch is met by all
        path.write_text(path.read_text().replace("transformers.DynamicCache.update = refuse", "pass"))
    words = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rN", *two, "--eqcheck-cases=3"]
    done = subprocess.run([*words, "-k", "solo or mates"], capture_output=True, text=True, check=False)
    assert "1 failed, 2 passed, 3 skipped" in done.stdout, done.stdout  # one fault fails once
    assert "bookkeeping/premature-stop - " in done.stdout


def test_an_adapter_that_ends_the_process_that_loads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ends.py").write_text("import os\nos._exit(3)\n")
    assert cli.main(("audit", "--adapter", "eqspec", "--adapter", "ends.py")) == 4
    assert "ends.py': it ended the process that loaded it" in capsys.readouterr().err
