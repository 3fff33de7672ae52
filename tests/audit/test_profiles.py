"""Profiles: their cases are fixed by digests, a decoder that is wrong fails, and bad names are told in a line."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from hashlib import sha256
from importlib import import_module
from itertools import islice
from pathlib import Path
from random import Random

import pytest

from eqcheck.audit.lanes import lanes_of
from eqcheck.cli import main
from eqcheck.contract import registry
from eqcheck.contract.configuration import Configuration, read
from eqcheck.contract.decoders import CACHE_STATES, CLAIMED, TAKEN, Decoder
from eqcheck.contract.errors import USAGE, UsageError
from eqcheck.contract.profiles import PROFILES, Profile, profile
from eqcheck.core.result.findings import Options
from eqcheck.transparent.drawing import Chance

ROOT = Path(__file__).parents[2]
DIGESTS: dict[str, str] = json.loads((Path(__file__).parent / "profile_digests.json").read_text())
SHORT = """
import torch, eqcheck

@eqcheck.decoder(name="short")
def short(target, draft, request):
    rows = []
    for prompt in request.prompts:
        ids = list(prompt)
        while len(ids) < len(prompt) + request.max_new_tokens and ids[-1:] not in [[e] for e in request.eos_token_ids]:
            ids.append(int(target(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
        rows.append(ids[len(prompt):])
    return [row[:max(1, min(map(len, rows)))] for row in rows]
"""


def claims() -> dict[str, Decoder]:
    """Decoders with the usual claims, and with all there were when the profiles were made."""
    usual = registry.load("eqspec")
    states = tuple(state for state in CACHE_STATES if state in ("empty", *TAKEN))
    every = replace(usual, padding_sides=("left", "right"), cache_states=states, families=CLAIMED)
    plain = replace(usual, capabilities=(), seeds="none")
    served = registry.load("openvino_genai")
    without = type("Engine", (served.function,), {"switches": ()})  # it had none then
    engine = replace(served, function=without, capabilities=("row-eos", "row-limits"), seeds="none")
    return {"usual": usual, "every": every, "plain": plain, "stops": replace(plain, capabilities=("stop-sequences",)),
            "engine": engine}  # fmt: skip


def digests(most: int = 10**9) -> dict[str, str]:
    """Digests of the cases that each profile draws for each of the claims, by lane."""
    found = {}
    for one in PROFILES:
        for name, decoder in claims().items():
            asked = Options(seed=one.seed, profile=one, python=sys.executable if decoder.checkpoints else "")
            for lane in lanes_of(decoder, asked):
                draw = one.draw(lane.result.lane)
                assert draw
                cases = lane.target.source.cases() if hasattr(lane, "target") else lane.cases()
                listed = [case.to_dict() for case in islice(cases, min(draw.cases, most))]
                text = json.dumps(listed, sort_keys=True)
                found[f"{one.name} {name} {draw.lane}"] = sha256(text.encode()).hexdigest()[:16]
    return found


def law_digest(one: Profile) -> str:
    """A digest of the cases that the laws of a profile derive."""
    Examination = import_module("eqcheck.conformance.examination").Examination  # noqa: N806
    LAWS = import_module("eqcheck.conformance.test_laws").LAWS  # noqa: N806
    decoder = registry.load("eqspec")
    laws = {name: LAWS[name] for name in one.laws if name in LAWS}
    examined = Examination(decoder, laws, one.cases_of_law, one)
    found = sha256()
    for law in laws.values():
        for number, case in enumerate(examined._source(law).chunk(0, min(one.cases_of_law, 20))):
            choose = Chance(Random(f"eqcheck {one.seed} {law.name} {number}"))
            found.update(json.dumps(law.derive(case, choose, decoder).to_dict()).encode())
    return found.hexdigest()[:16]


@pytest.mark.rest
def test_released_profiles_draw_what_they_drew() -> None:
    """If this fails, a drawing has changed: keep the old one for the old profile, or take it out and add a new one."""
    assert digests(60) == {name: digest for name, digest in DIGESTS.items() if not name.endswith(" laws")}


@pytest.mark.parametrize("one", PROFILES, ids=lambda one: one.name)
@pytest.mark.tiers(quick=1, rest=1)
def test_the_laws_of_a_profile_derive_what_they_derived(one: Profile) -> None:
    assert law_digest(one) == DIGESTS[f"{one.name} laws"]


def test_a_short_name_is_the_newest_and_each_covers_enough() -> None:
    assert profile("ci", "0").name == max(one.name for one in PROFILES if one.name.startswith("ci-"))
    assert all(draw.cases >= 200 for one in PROFILES for draw in one.lanes if "sampling" not in draw.lane)


def test_the_line_of_a_profile_promises_sampled_cases_to_decoders_that_sample_alone() -> None:
    one = profile("ci", "0")
    assert one.line == "profile ci-2026.12: 200 greedy cases, the same in every release"
    assert one.line_of(samples=True) == "profile ci-2026.12: 200 greedy cases and 24 sampled, the same in every release"
    assert profile("nightly", "0").line.endswith("3,000 greedy cases, the same in every release, in at most 20 minutes")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("cii", "did you mean 'ci'"),
        ("ci-2031.01", "newer than eqcheck 9"),
        ("ci-2020.01", "unknown profile"),
        ("", "unknown profile"),
    ],
)
def test_a_profile_that_there_is_not(name: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match=said):
        profile(name, "9")
    assert main(["audit", "eqspec", f"--profile={name}"]) == USAGE
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_profile_excludes_options_that_draw(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", "eqspec", "--profile", "ci", "--seed", "0"]) == USAGE
    assert "--profile, --seed" in capsys.readouterr().err


@pytest.mark.long
def test_a_wrong_decoder_fails_and_the_first_line_says_the_draw(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(SHORT)
    (tmp_path / "pyproject.toml").write_text('[tool.eqcheck]\nadapter = "mine.py"\nprofile = "ci"\nout = "r"\n')
    done = subprocess.run(
        [sys.executable, "-m", "eqcheck.cli", "audit", "--no-corpus"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 1, done.stderr
    assert profile("ci", "").line in done.stderr.splitlines()[0]
    report = json.loads((tmp_path / "r" / "short" / "report.json").read_text())
    assert report["cases"]["run"] == 200
    assert "--profile ci" in report["command"], "what the file says is in the command"
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--eqcheck-profile", "ci"]
    tests = subprocess.run([*words, "-k", "solo"], cwd=tmp_path, capture_output=True, text=True)
    assert tests.returncode == 1, tests.stdout
    assert "premature-stop" in tests.stdout


def test_a_quiet_audit_shows_its_result_alone(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", "eqspec", "--cases=2", "--no-corpus", "--quiet", f"--out={tmp_path}"]) in (0, 2)
    said = capfd.readouterr()
    assert (said.err, "eqspec" in said.out) == ("", True)


def test_the_command_line_wins_over_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from eqcheck.cli import _parsed, _parser

    (tmp_path / "pyproject.toml").write_text(
        '[tool.eqcheck]\nadapter = ["mine.py"]\nprofile = "ci"\nout = "r"\noptions = ["--isolate", "--jobs", "2"]\n'
    )
    inner = tmp_path / "inner"
    inner.mkdir()
    monkeypatch.chdir(inner)
    found = _parsed(_parser(), ["audit"])
    assert (found.adapter, found.profile, str(found.out), found.jobs) == (["../mine.py"], "ci", "../r", 2)
    other = _parsed(_parser(), ["audit", "eqspec", "--cases", "3", "--out", "o", "--jobs", "1"])
    assert (other.specs, other.adapter, other.profile, str(other.out), other.jobs) == (["eqspec"], [], None, "o", 1)
    assert other.isolate


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ('adaptor = "mine.py"', "unknown key 'adaptor'; did you mean 'adapter'"),
        ("profile = 3", "profile: expected a string, got 3"),
        ('profile = "nihgtly"', "unknown profile 'nihgtly'; did you mean 'nightly'?"),
        ('options = "--isolate"', "options: expected a list of strings"),
        ("adapter = [1]", "adapter: expected a list of strings"),
        ("adapter = ", "not TOML"),
    ],
)
def test_a_file_that_is_wrong_is_told_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], table: str, said: str
) -> None:
    (tmp_path / "pyproject.toml").write_text(f"[tool.eqcheck]\n{table}\n")
    monkeypatch.chdir(tmp_path)
    for words in (["audit"], ["audit", "eqspec", "--cases", "2"]):
        assert main(words) == USAGE, "also where the command line says the same thing"
        assert said in capsys.readouterr().err.replace("\n", "")


def test_a_file_without_the_table_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    assert read(tmp_path) == Configuration()


def test_a_table_of_a_misspelt_name_is_told_and_another_tool_is_not(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.eqchek]\nprofile = 'ci'\n")
    with pytest.raises(UsageError, match=r"no table \[tool.eqchek\]; did you mean 'eqcheck'"):
        read(tmp_path)
    (tmp_path / "pyproject.toml").write_text("[tool.equinox]\n[tool.black]\n")
    assert read(tmp_path) == Configuration()


if __name__ == "__main__":  # writes the digests of profiles that are new: never those of one that is released
    written = {**digests(60), **{f"{one.name} laws": law_digest(one) for one in PROFILES}}
    (Path(__file__).parent / "profile_digests.json").write_text(json.dumps(written, indent=1) + "\n")
