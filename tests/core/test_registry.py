"""From a spec to a decoder: every form of spec, what each wrong one says, and what `decoder` rejects."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import eqcheck
from eqcheck.contract import registry
from eqcheck.contract.decoders import Decoder, Request, decoder
from eqcheck.contract.errors import UsageError

# These need an environment or a server of their own.
ENGINES = [
    "llama_cpp",
    "llama_cpp_bfloat16",
    "llama_cpp_float16",
    "mistralrs",
    "mistralrs_bfloat16",
    "mlx_lm",
    "mlx_lm_bfloat16",
    "mlx_vlm",
    "onnxruntime_genai",
    "openai_http",
    "openvino_genai",
    "openvino_genai_bfloat16",
    "transformers_batch",
    "transformers_bfloat16",
    "transformers_float32",
    "vllm",
    "vllm_bfloat16",
]
OWN = ["bsp", "dsd", "eagle", "eqspec", "exspec", "heads", "hf_pr", "medusa", "ragged", "transformers", "tree"]
SHIPPED = sorted([*OWN, *ENGINES])
ONE = """
import eqcheck

@eqcheck.decoder(name="first")
def one(target, draft, request):
    return [[] for _ in request.prompts]
"""
TWO = (
    ONE
    + """
@eqcheck.decoder(name="second")
def two(target, draft, request):
    return [[] for _ in request.prompts]

def plain(target, draft, request):
    return []
"""
)
NONE = "def one(target, draft, request):\n    return []\n"


def empty(target: Any, draft: Any, request: Request) -> list[list[int]]:
    return [[] for _ in request.prompts]


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def refusal(spec: str) -> str:
    with pytest.raises(UsageError) as caught:
        registry.load(spec)
    return str(caught.value)


def test_shipped_decoders_load_under_their_names() -> None:
    assert sorted(registry.shipped()) == SHIPPED
    for name in SHIPPED:
        loaded = registry.load(name)
        assert (loaded.name, loaded.spec) == (name, name)
        assert loaded.origin
        assert loaded.checkpoints == (name in ENGINES)
    assert sorted(registry.self_contained()) == sorted(set(SHIPPED) - set(ENGINES))


def test_names_are_sorted_and_public() -> None:
    assert set(SHIPPED) <= set(registry.names())
    assert registry.names() == sorted(registry.names())
    assert eqcheck.names is registry.names
    assert eqcheck.load is registry.load


def test_module_and_attribute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert registry.load("eqcheck.adapters.hf_pr:generate").name == "hf_pr"
    write(tmp_path / "registry_pack" / "__init__.py", "")
    write(tmp_path / "registry_pack" / "inner.py", TWO)
    monkeypatch.syspath_prepend(tmp_path)
    loaded = registry.load("registry_pack.inner:two")
    assert (loaded.name, loaded.spec) == ("second", "registry_pack.inner:two")


@pytest.mark.parametrize("suffix", ["", ":one"])
def test_file_is_remembered_by_its_absolute_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str) -> None:
    write(tmp_path / "sub dir" / "mine.py", ONE)
    monkeypatch.chdir(tmp_path)
    loaded = registry.load(f"sub dir/mine.py{suffix}")
    assert loaded.name == "first"
    assert loaded.spec == f"{tmp_path / 'sub dir' / 'mine.py'}{suffix}"
    monkeypatch.chdir("/")
    assert registry.load(loaded.spec) == loaded


def test_file_is_imported_once(tmp_path: Path) -> None:
    count = tmp_path / "count"
    path = write(tmp_path / "mine.py", f"open({str(count)!r}, 'a').write('x')\n{ONE}")
    assert registry.load(str(path)).function is registry.load(f"{path}:one").function
    assert count.read_text() == "x"


def test_files_of_one_name_do_not_mix(tmp_path: Path) -> None:
    left = write(tmp_path / "left" / "mine.py", ONE)
    right = write(tmp_path / "right" / "mine.py", ONE.replace("first", "other"))
    assert [registry.load(str(path)).name for path in (left, right, left)] == ["first", "other", "first"]


def test_file_with_two_decoders_needs_an_attribute(tmp_path: Path) -> None:
    path = write(tmp_path / "mine.py", TWO)
    message = refusal(str(path))
    assert "2 decoders" in message
    assert "one, two" in message
    assert ":attr" in message
    assert [registry.load(f"{path}:{attr}").name for attr in ("one", "two")] == ["first", "second"]


def test_a_second_name_is_not_a_second_decoder(tmp_path: Path) -> None:
    assert registry.load(str(write(tmp_path / "mine.py", ONE + "\nalias = one\n"))).name == "first"


def test_file_without_decoder(tmp_path: Path) -> None:
    path = write(tmp_path / "mine.py", NONE)
    assert "no decoder; put @eqcheck.decoder() on a function" in refusal(str(path))
    assert "'one' is not registered as a decoder; put @eqcheck.decoder() on it" in refusal(f"{path}:one")


def test_wrong_attribute(tmp_path: Path) -> None:
    path = write(tmp_path / "mine.py", TWO)
    assert "did you mean 'two'?" in refusal(f"{path}:twoo")
    assert "found: one, two" in refusal(f"{path}:elsewhere")
    assert "'plain' is not registered" in refusal(f"{path}:plain")


def test_missing_file_and_folder(tmp_path: Path) -> None:
    assert "there is no such file" in refusal(str(tmp_path / "absent.py"))
    assert "there is no such file" in refusal(f"{tmp_path / 'absent.py'}:one")
    (tmp_path / "folder.py").mkdir()
    assert "there is no such file" in refusal(str(tmp_path / "folder.py"))


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("def (", "SyntaxError"),
        ("import no_such_engine", "no_such_engine"),
        ("raise RuntimeError('needs a device')", "needs a device"),
        ("import sys; sys.exit(0)", "SystemExit"),
    ],
)
def test_file_that_cannot_be_imported(tmp_path: Path, text: str, what: str) -> None:
    path = write(tmp_path / "mine.py", text)
    for _ in range(2):
        message = refusal(str(path))
        assert str(path) in message
        assert what in message
    write(path, ONE)
    assert registry.load(str(path)).name == "first"


@pytest.mark.parametrize("text", ["def (", "import no_such_engine", "raise RuntimeError('needs a device')"])
def test_module_that_cannot_be_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    write(tmp_path / "registry_broken.py", text)
    monkeypatch.syspath_prepend(tmp_path)
    assert "registry_broken" in refusal("registry_broken:one")


@pytest.mark.parametrize("spec", ["no_such_module:one", "eqcheck.adapters.nothing:generate", "..:one", ".a:one"])
def test_unknown_module(spec: str) -> None:
    assert f"adapter {spec!r}" in refusal(spec)


@pytest.mark.parametrize("spec", ["hf_prr", "hf-pr"])
def test_unknown_name_suggests_a_near_one(spec: str) -> None:
    near = refusal(spec)
    assert f"unknown adapter {spec!r}" in near
    assert "did you mean 'hf_pr'?" in near
    assert ", ".join(SHIPPED) in near


@pytest.mark.parametrize("spec", ["", ":", ":one", "zzzzzzzz", "eqcheck.adapters.hf_pr"])
def test_unknown_name_says_what_a_spec_is(spec: str) -> None:
    message = refusal(spec)
    assert f"unknown adapter {spec!r}" in message
    assert "package.module:attr or path/to/file.py:attr" in message


@pytest.fixture
def publish(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Install a package that publishes the given entry point, whose module has the given text."""

    def install(entry: str, text: str) -> None:
        info = tmp_path / "fake_engine-1.0.dist-info"
        write(info / "METADATA", "Metadata-Version: 2.1\nName: fake-engine\nVersion: 1.0\n")
        write(info / "entry_points.txt", f"[eqcheck.adapters]\n{entry}\n")
        write(tmp_path / f"{entry.split('= ')[1].partition(':')[0]}.py", text)
        monkeypatch.syspath_prepend(tmp_path)

    return install


@pytest.mark.parametrize("value", ["fake_engine_a:one", "fake_engine_b"])
def test_entry_point(publish: Callable[[str, str], None], value: str) -> None:
    publish(f"published = {value}", ONE)
    assert "published" in registry.names()
    assert "published" not in registry.shipped()
    loaded = registry.load("published")
    assert (loaded.name, loaded.spec) == ("first", "published")
    assert "did you mean 'published'?" in refusal("publishd")


def test_shipped_name_is_not_taken_over(publish: Callable[[str, str], None]) -> None:
    publish("eqspec = fake_engine_c:one", ONE)
    assert registry.load("eqspec").origin == registry.load("eqcheck.reference_impls.eqspec:generate").origin


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("fake_engine_d:one", NONE),
        ("fake_engine_e", TWO),
        ("fake_engine_f:absent", ONE),
        ("fake_engine_g:one", "import no_such_engine"),
        ("fake_engine_h:one", "one = 5"),
    ],
)
def test_broken_entry_point(publish: Callable[[str, str], None], value: str, text: str) -> None:
    publish(f"published = {value}", text)
    assert "published" in refusal("published")


@pytest.mark.parametrize(
    ("claims", "what"),
    [
        ({"families": ("rotory",)}, "did you mean 'rotary'?"),
        ({"families": "rotary"}, "families: expected a tuple"),
        ({"families": ()}, "families: expected a tuple"),
        ({"padding_sides": ("middle",)}, "padding_sides: expected some of ('left', 'right'), got 'middle'"),
        ({"padding_sides": ("lefft",)}, "did you mean 'left'?"),
        ({"padding_sides": "left"}, "padding_sides: expected a tuple"),
        ({"padding_sides": ()}, "padding_sides: expected a tuple"),
    ],
)
def test_decorator_rejects_claims(claims: dict[str, Any], what: str) -> None:
    with pytest.raises(UsageError) as caught:
        decoder(**claims)
    assert what in str(caught.value)


class Uncallable:
    """A class without ``__call__``."""


@pytest.mark.parametrize("function", [5, "generate", None, Uncallable])
def test_decorator_rejects_what_cannot_be_called(function: object) -> None:
    with pytest.raises(UsageError, match="expected a function or a class with __call__"):
        decoder()(function)


def test_decorator_keeps_what_it_is_told() -> None:
    sides: Any = ["left", "right"]
    made = decoder(padding_sides=sides, families=("learned",), known={"crash/hang": "https://x"}, note="slow")(empty)
    assert made == Decoder(
        "empty", empty, ("left", "right"), ("learned",), known={"crash/hang": "https://x"}, note="slow"
    )
    assert made.named("a:b").spec == "a:b"
    assert decoder(name="partial")(functools.partial(empty)).name == "partial"
    assert made(None, None, Request([[1], [2]], 1, 1, (), 0, "left")) == [[], []]


@pytest.mark.parametrize("code", ["import hidden_engine", "def later():\n    from hidden_engine.core import run"])
def test_a_file_that_hides_the_package_it_imports(tmp_path: Path, code: str) -> None:
    (tmp_path / "hidden_engine.py").write_text(code)
    with pytest.raises(UsageError, match=r"it imports 'hidden_engine' and gets itself.*hidden_engine_adapter\.py"):
        registry.load(str(tmp_path / "hidden_engine.py"))


def test_a_file_named_as_what_is_imported_already(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text(
        "import torch\nimport eqcheck\n@eqcheck.decoder()\ndef mine(*_):\n    return torch.ones(1)\n"
    )
    import torch

    assert isinstance(registry.load(str(tmp_path / "torch.py")).function(None, None, None), torch.Tensor)
