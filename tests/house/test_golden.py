"""The golden net holds, it can fail, and what makes its texts alike hides nothing that an explanation says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
from golden import CASES, NET, ROOT, access, alike, as_json, compared, joined, plain, split
from golden.__main__ import GROUPS, main

# Five small groups in `make test`, and the others in `make test-all`: of each test so many that two workers share them.
SMALL = ("commands", "conformance", "cases-sampled", "cases-sequences", "cases-engine-pooled")
LARGE = ("audits-", "cases-checkpoint", "cases-target-", "cases-engine-[a-o]", "cases-engine", "")
# The stored net is that of a processor with wide registers; here it is given by kernels without.
NARROW = "audits-sampled"
ENTRIES = {"first": "exit 1\nFAILS: mine\ncall 5 feeds id 104\n", "second": "exit 0\nFIXED: mine\n"}


def given(groups: Iterable[str], **environment: str) -> None:
    """Compare these groups in a process of their own: the net stops clocks and replaces names of its process."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    path = os.pathsep.join(map(str, (ROOT / "tests" / "tools", ROOT / "tests", ROOT)))
    done = subprocess.run(
        [sys.executable, "-m", "golden", *groups],
        cwd=ROOT,
        env={**inherited, "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}{done.stderr}make golden-write stores what is given now"


def shares() -> dict[str, list[str]]:
    """The groups that `make test-all` compares, by how their names begin; each is in one share."""
    left = [group for group in GROUPS if group not in (*SMALL, NARROW)]
    divided = {begin: [group for group in left if re.match(begin, group)] for begin in LARGE}
    earlier: set[str] = set()
    for begin, groups in divided.items():
        divided[begin] = [group for group in groups if group not in earlier]
        earlier |= set(groups)
    return divided


def test_five_groups_are_as_stored() -> None:
    given(SMALL)


@pytest.mark.rest
@pytest.mark.parametrize("begin", LARGE, ids=lambda begin: begin or "others")
def test_the_other_groups_are_as_stored(begin: str) -> None:
    given(shares()[begin])


@pytest.mark.rest
def test_sampled_evidence_is_as_stored_on_another_processor() -> None:
    given([NARROW], ATEN_CPU_CAPABILITY="default")


def test_every_group_is_compared_once() -> None:
    assert sorted([*SMALL, NARROW, *(group for groups in shares().values() for group in groups)]) == sorted(GROUPS)


def test_a_net_that_differs_is_a_failure_with_the_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    differs = subprocess.CompletedProcess([], 1, "-call 5 feeds id 105\n+call 5 feeds id 104\n", "")
    monkeypatch.setattr(subprocess, "run", lambda *words, **options: differs)
    with pytest.raises(AssertionError, match=r"\+call 5 feeds id 104\s+make golden-write"):
        given(["commands"])


@pytest.mark.parametrize(
    ("now", "said"),
    [
        ({**ENTRIES, "first": ENTRIES["first"].replace("feeds", "is fed")}, "+call 5 is fed id 104"),
        ({**ENTRIES, "second": ENTRIES["second"].replace("exit 0", "exit 1")}, "+exit 1"),
        ({"first": ENTRIES["first"]}, "group: second: missing, it is stored"),
        ({**ENTRIES, "third": "exit 0\n"}, "group: third: new, it is not stored"),
        (dict(reversed(ENTRIES.items())), "group: the order of the entries differs"),
    ],
)
def test_what_differs_is_reported(now: dict[str, str], said: str) -> None:
    assert said in compared("group", joined(ENTRIES), joined(now))
    assert compared("group", joined(ENTRIES), joined(ENTRIES)) == []


def test_entries_are_read_as_they_were_joined() -> None:
    hostile = {"a": "=== b\nno entry\n", "c": "\n"}
    assert list(split(joined(hostile))) == ["a", "c"]
    assert split(joined(ENTRIES)) == ENTRIES


def test_a_group_that_differs_ends_with_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("golden.__main__.NET", tmp_path)
    monkeypatch.setattr("golden.access.ready", lambda: None)
    monkeypatch.setattr("golden.__main__._alike", lambda: None)
    monkeypatch.setitem(GROUPS, "few", lambda work: iter(ENTRIES.items()))
    monkeypatch.chdir(tmp_path)
    assert main(["few"]) == 1
    assert main(["few", "--write"]) == 0
    assert main(["few"]) == 0
    (tmp_path / "few.txt").write_text(joined(ENTRIES).replace("104", "105"))
    capsys.readouterr()
    assert main(["few"]) == 1
    assert "-call 5 feeds id 105\n+call 5 feeds id 104\n" in capsys.readouterr().out


def test_every_group_is_stored_and_no_other() -> None:
    assert {file.stem for file in NET.glob("*.txt")} == set(GROUPS)
    assert {f"cases-{file.stem}" for file in CASES.glob("*.json")} <= set(GROUPS)


def test_small_evidence_is_no_number_and_large_evidence_is_one() -> None:
    assert [f"{access.Shown(value):.2g}" for value in (0.75, 6.1, 999.0, 96803374.14, 7.195e86)] == [
        "1",
        "1",
        "1",
        "9.7e+07",
        "7.2e+86",
    ]
    assert access.Shown(6.1) > 6.0  # what is decided by it is decided as ever
    report = {"evidence": 0.75, "greatest": 6.1, "course": [[4, 0.4], [8, 0.79]], "verdict": "equivalent"}
    assert alike(report) == alike({**report, "evidence": 0.76, "course": [[4, 0.41], [8, 0.8]]})
    assert alike(report) != alike({**report, "greatest": 2e6})
    assert alike(report) != alike({**report, "verdict": "violation"})


def test_no_token_id_and_no_position_is_hidden() -> None:
    """Each number of each stored explanation is still told from the next one."""
    seen = 0
    for file in sorted(NET.glob("cases-*.txt")):
        for text in split(file.read_text()).values():
            said = text.partition("--- as data")[0]
            assert plain(said) == said
            places = list(re.finditer(r"\d", said))
            for place in places[:: max(1, len(places) // 5)]:
                at = place.start()
                assert plain(f"{said[:at]}{(int(said[at]) + 1) % 10}{said[at + 1 :]}") != said
                seen += 1
    assert seen > 1000


def test_what_depends_on_day_and_machine_is_hidden() -> None:
    report = '"elapsed_s": 16.0, "torch": "2.13.0+cpu", "written": "2026-01-02 03:04 UTC"'
    later = '"elapsed_s": 0.5, "torch": "2.14.0", "written": "2027-11-12 13:14 UTC"'
    assert plain(report) == plain(later)
    assert plain("2 passed in 3.21s") == plain("2 passed in 71.20s (0:01:11)")
    assert plain("call 5, 16.0 s") == plain("call 5, 3.5 s") != plain("call 6, 3.5 s")


def test_json_is_short_and_whole() -> None:
    assert as_json({"row": [1, 2]}) == '{"row": [1, 2]}'
    long = as_json({"rows": [list(range(30)), list(range(30))]}).splitlines()
    assert [line[:4] for line in long] == ["{", ' "ro', "  [0", "  [0", " ]", "}"]
    rows = [[number, "position"] for number in range(100)]
    assert '"and 68 more; all: ' in as_json(rows)
    assert as_json(rows) != as_json([*rows[:-1], [99, "positions"]])
