"""`eqcheck report`: a stored report in the terminal and as a page; two audits compared; bad input in one clear line."""

from __future__ import annotations

import json
import shutil
import socket
import threading
import urllib.error
import urllib.request
import webbrowser
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from pages import HOSTILE, ROOT, filled, told

from eqcheck import cli
from eqcheck.cli import report as command
from eqcheck.contract.errors import EQUIVALENT, USAGE, VIOLATION
from eqcheck.report.compare import compare, to_text
from eqcheck.report.schema import Report

BSP, DSD, SHOWCASE = (str(ROOT / "reports" / name) for name in ("showcase/bsp", "showcase/dsd", "showcase"))
Printed = pytest.CaptureFixture[str]


def stored(report: Report, folder: Path) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "report.json").write_text(json.dumps(msgspec.to_builtins(report)))
    return str(folder)


def test_a_stored_report_is_printed_and_its_page_written(tmp_path: Path, capsys: Printed) -> None:
    page = tmp_path / "page.html"
    assert cli.main(["report", BSP, "--html", str(page)]) == EQUIVALENT
    said = capsys.readouterr().out
    assert "FAIL position/query-position: wrong position id" in said
    assert said.endswith(f"{page}\n")
    assert page.read_text().startswith("<!doctype html>")


def test_all_reports_of_a_folder_are_shown_on_one_page(tmp_path: Path, capsys: Printed) -> None:
    page = tmp_path / "page.html"
    assert cli.main(["report", SHOWCASE, "--html", str(page)]) == EQUIVALENT
    assert {line.split()[0] for line in capsys.readouterr().out.splitlines()[-5:-2]} == {"bsp", "dsd", "hf_pr"}
    assert page.read_text().count("<h1>") == 3


def test_without_a_display_the_page_is_named(tmp_path: Path, capsys: Printed) -> None:
    folder = stored(told("showcase/bsp"), tmp_path / "bsp")
    assert cli.main(["report", folder]) == EQUIVALENT
    assert capsys.readouterr().out.endswith("page: none; write one with --html FILE\n")
    (tmp_path / "bsp" / "report.html").write_text("a page")
    assert cli.main(["report", folder]) == EQUIVALENT
    assert capsys.readouterr().out.endswith(f"bsp: report: {tmp_path / 'bsp' / 'report.html'}\n")


def test_where_there_is_a_display_what_is_opened_is_made_of_the_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    monkeypatch.setattr(command, "_display", lambda: True)
    folder = stored(told("showcase/bsp"), tmp_path / "bsp")
    page = tmp_path / "bsp" / "report.html"
    page.write_text("<script>not ours</script>")
    assert cli.main(["report", folder]) == EQUIVALENT
    assert opened == [page.as_uri()]
    assert "not ours" not in page.read_text()


BAD: dict[str, tuple[Callable[[str], str], str]] = {
    "older": (lambda text: text.replace("eqcheck-report/2", "eqcheck-report/1"), "got 'eqcheck-report/1'; audit"),
    "newer": (lambda text: text.replace("eqcheck-report/2", "eqcheck-report/3"), "read it with the newer eqcheck"),
    "much newer": (lambda text: text.replace("eqcheck-report/2", "eqcheck-report/12"), "read it with the newer"),
    "truncated": (lambda text: text[: len(text) // 2], "line 1"),
    "empty": (lambda text: "", "line 1"),
    "list": (lambda text: f"[{text}]", "got None"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_report_that_cannot_be_read_is_one_clear_line(name: str, tmp_path: Path, capsys: Printed) -> None:
    change, said = BAD[name]
    folder = Path(stored(told("showcase/bsp"), tmp_path / "bsp"))
    before = change((folder / "report.json").read_text())
    (folder / "report.json").write_text(before)
    for words in (["report", str(folder)], ["report", BSP, str(folder)], ["report", str(tmp_path)]):
        assert cli.main(words) == USAGE
        printed = capsys.readouterr()
        assert (printed.out, printed.err.count("\n")) == ("", 1)
        assert said in printed.err
        assert "audit the decoder again" in printed.err
        assert str(folder / "report.json") in printed.err
    assert (folder / "report.json").read_text() == before
    assert [file.name for file in folder.iterdir()] == ["report.json"]


def test_one_report_that_cannot_be_read_does_not_hide_the_others(tmp_path: Path, capsys: Printed) -> None:
    shutil.copytree(BSP, tmp_path / "bsp")
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "report.json").write_text('{"format": "eqcheck-report/1"}')
    assert cli.main(["report", str(tmp_path)]) == USAGE
    printed = capsys.readouterr()
    assert f"bsp: report: {tmp_path / 'bsp' / 'report.html'}" in printed.out
    assert "eqcheck-report/1" in printed.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["report", "nowhere"], "there is no such folder"),
        (["report", "."], "has no report.json, and no folder in it has one"),
        (["report", BSP, "--html", "no/such/folder/page.html"], "cannot write the page"),
        (["report", BSP, "--serve", "70000"], "expected a port from 0 to 65535, got '70000'"),
        (["report", BSP, "--serve", "http"], "expected a port from 0 to 65535, got 'http'"),
    ],
)
def test_what_cannot_be_done_is_said(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Printed
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(words) == USAGE
    assert said in capsys.readouterr().err


def test_a_port_in_use_is_one_clear_line(capsys: Printed) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert cli.main(["report", BSP, "--serve", str(port)]) == USAGE
    assert f"--serve {port}: Address already in use; name another port" in capsys.readouterr().err


def test_the_page_is_served_and_nothing_else(monkeypatch: pytest.MonkeyPatch, capsys: Printed) -> None:
    seen: list[object] = []

    def ask(server: object) -> None:
        address = f"http://127.0.0.1:{server.server_port}"  # type: ignore[attr-defined]
        thread = threading.Thread(target=lambda: [server.handle_request() for _ in range(2)])  # type: ignore[attr-defined]
        thread.start()
        seen.append(urllib.request.urlopen(f"{address}/").read())
        try:
            urllib.request.urlopen(f"{address}/report.json")
        except urllib.error.HTTPError as error:
            seen.append(error.code)
        thread.join()
        raise KeyboardInterrupt

    monkeypatch.setattr("http.server.HTTPServer.serve_forever", ask)
    assert cli.main(["report", BSP, "--serve", "0"]) == EQUIVALENT
    assert isinstance(seen[0], bytes)
    assert seen[0].startswith(b"<!doctype html>")
    assert seen[1] == 404
    assert "page: http://127.0.0.1:" in capsys.readouterr().out


def test_hostile_text_reaches_no_terminal(tmp_path: Path, capsys: Printed) -> None:
    broken = stored(filled("openvino_genai", HOSTILE), tmp_path / "broken")
    assert cli.main(["report", broken]) == USAGE, "UTF-8 cannot hold one half of a pair"
    folder = stored(filled("openvino_genai", HOSTILE.replace("\ud800", ""), ("kind",)), tmp_path / "hostile")
    assert cli.main(["report", folder]) == EQUIVALENT
    assert cli.main(["report", BSP, folder]) == VIOLATION
    said = capsys.readouterr().out
    assert "<img src=x" in said
    assert not {"\x1b", "\x07", "\u202e", "\ud800"} & set(said)


def test_new_and_gone_causes_are_told_apart() -> None:
    before, now = told("showcase/bsp"), told("showcase/dsd")
    found = compare(before, now)
    assert {(one.state, one.fingerprint) for one in found.changes} == {
        ("new", "mask/pad-visible"),
        ("new", "bookkeeping/over-accept"),
        ("still there", "bookkeeping/past-eos"),
        ("gone", "position/query-position"),
    }
    assert found.worse
    assert not compare(before, before).worse
    assert not compare(before, replace(now, violations=())).worse


def test_a_cause_that_is_now_in_doubt_is_not_gone_and_one_that_was_in_doubt_is_new() -> None:
    sure = told("showcase/bsp")
    doubted = replace(sure, verdict="inconclusive", violations=(), inconclusive=sure.violations)
    assert {one.state for one in compare(sure, doubted).changes} == {"in doubt"}
    assert {one.state for one in compare(doubted, sure).changes} == {"new"}
    assert {one.state for one in compare(doubted, doubted).changes} == {"no violation"}


def test_a_cause_that_may_have_been_missed_is_not_called_gone() -> None:
    before = told("showcase/bsp")
    now = replace(before, violations=before.violations[:1], cases=replace(before.cases, run=10))
    (gone,) = [one for one in compare(before, now).changes if one.state == "not seen"]
    count = before.violations[1].count
    assert gone.missed == pytest.approx((1 - count / before.cases.run) ** 10)
    assert f"would miss it with probability {gone.missed:.1g}" in to_text([compare(before, now)])
    empty = replace(now, violations=(), cases=replace(before.cases, run=0))
    assert {one.missed for one in compare(before, empty).changes} == {1.0}, "what ran nothing shows nothing"


def test_the_versions_and_what_is_not_alike_stand_in_the_comparison() -> None:
    before = replace(told("vllm"), warnings=(), warning_kinds=())
    now = replace(before, seed=7, interrupted=True, versions={**before.versions, "vllm": "0.33.0"})
    text = to_text([compare(before, now)])
    assert "NOTE seed: 0 before, 7 now" in text
    assert "NOTE the audit now was interrupted" in text
    assert " ".join(next(line for line in text.splitlines() if line.startswith("vllm  ")).split()) in (
        "vllm before now",
        "vllm 0.32.0 0.33.0",
    )
    assert "0.33.0" in text
    assert "NOTE" not in to_text([compare(before, before)])


def test_two_folders_are_compared_and_a_new_violation_is_exit_code_1(tmp_path: Path, capsys: Printed) -> None:
    page = tmp_path / "page.html"
    assert cli.main(["report", BSP, BSP]) == EQUIVALENT
    assert "bsp: 2 causes are still there." in capsys.readouterr().out
    assert cli.main(["report", BSP, DSD, "--html", str(page)]) == VIOLATION
    assert "2 causes are new, 1 cause is still there, 1 cause is gone." in page.read_text()
    assert cli.main(["report", SHOWCASE, SHOWCASE]) == EQUIVALENT
    assert cli.main(["report", SHOWCASE, stored(told("vllm"), tmp_path / "vllm")]) == USAGE
    said = "expected a decoder that is in both folders, got bsp, dsd, hf_pr in the first and vllm in the second"
    assert said in capsys.readouterr().err
