"""What a decoder prints through eqcheck: no terminal escape, no broken report; and a full disk loses no verdict."""

from __future__ import annotations

import ast
import errno
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from as_data import write
from markdown_it import MarkdownIt

from eqcheck import cli
from eqcheck.contract import registry
from eqcheck.contract.decoders import RowOptions, decoder
from eqcheck.contract.errors import UsageError, cleaned, code, fenced, inline, one_line, printable
from eqcheck.core.case.engine import EngineCase, EngineRow
from eqcheck.core.result.findings import Audit, Finding, Options
from eqcheck.engines.checkpoints.continuations import ModelTruth
from eqcheck.engines.lane import worker as worker_of
from eqcheck.engines.script import script
from eqcheck.report import build
from eqcheck.selfcheck.faults import SelfCheck

HOSTILE = """
import eqcheck

TEXT = "\\x1b]0;owned\\x07\\x1b[2J\\u202e\\ud800\\u2028"
# ```
# ````
# # all is well: equivalent

@eqcheck.decoder(
    name="hostile",
    origin=TEXT + "<script>x</script>\\n# equivalent\\n```",
    version=TEXT,
    note=TEXT + "\\n## note heading",
    known={"bookkeeping/past-eos": TEXT},
)
class Hostile:
    note = "\\x1b[31mred\\r\\n# instance heading"

    def __call__(self, target, draft, request):
        name = f"Bad\\x1b[31m\\n# class heading\\u202e```{'long' * 100}"
        fail(type(name, (Exception,), {}))

def fail(kind):  # ``````
    try:
        raise kind("\\x1b[1A\\n```\\n# message heading\\n```\\n<img src=x>")
    finally:  # ```
        pass
"""
Printed = pytest.CaptureFixture[str]


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("eqcheck.selfcheck.faults.short", lambda: SelfCheck((), ()))
    (tmp_path / "mine.py").write_text(HOSTILE)
    return tmp_path


def texts(data: Any) -> list[str]:
    if isinstance(data, dict):
        return [text for item in data.items() for text in texts(item)]
    if isinstance(data, list | tuple):
        return [text for item in data for text in texts(item)]
    return [data] if isinstance(data, str) else []


def harmless(text: str) -> bool:
    return text == printable(text)


def check_markdown(text: str, begin: str) -> None:
    """A CommonMark parser finds the headings of a report, one block of code that holds what was said, and no HTML."""
    assert harmless(text)
    tokens = MarkdownIt().parse(text)
    headings = [tokens[at + 1].content for at, token in enumerate(tokens) if token.type == "heading_open"]
    (own,) = [heading for heading in headings if heading.startswith(begin)]
    assert not [heading for heading in headings if "heading" in heading and heading != own]
    assert not [token for token in tokens if token.type == "html_block"]
    assert not [child for token in tokens for child in token.children or [] if child.type == "html_inline"]
    (block,) = [token for token in tokens if token.type == "fence"]
    assert "message heading" in block.content


@pytest.mark.parametrize("words", [(), ("--isolate",)], ids=str)
@pytest.mark.tiers(quick=1, rest=1)
def test_nothing_a_decoder_says_reaches_the_terminal_or_a_report_as_it_is(
    work: Path, capsys: Printed, words: tuple[str, ...]
) -> None:
    assert cli.main(["audit", "--adapter", "mine.py", "--cases", "3", *words]) == 1
    printed = capsys.readouterr()
    assert harmless(printed.out)
    assert harmless(printed.err)
    folder = work / "reports" / "hostile"
    report = json.loads((folder / "report.json").read_text())
    assert all(map(harmless, texts(report)))
    (violation,) = report["violations"]
    assert violation["fingerprint"].startswith("crash/exception:Bad")
    assert len(violation["fingerprint"]) < 120
    assert "\n" not in violation["fingerprint"]
    for path in work.rglob("cases/*.json"):
        assert all(map(harmless, texts(json.loads(path.read_text()))))
    check_markdown((folder / "report.md").read_text(), "FAIL crash/exception:Bad")
    assert cli.main(shlex.split(violation["reproduce"])[1:]) == 1
    replayed = capsys.readouterr()
    assert harmless(replayed.out)
    assert "fails differently" not in replayed.out


def test_why_a_decoder_declines_stays_in_its_place(work: Path, capsys: Printed) -> None:
    said = "\\x1b[31m<script>\\n# equivalent"
    name = '@eqcheck.decoder(name="declines")\ndef declines(target, draft, request):\n'
    (work / "declines.py").write_text(f'import eqcheck\n\n{name}    raise eqcheck.Unsupported("{said}")\n')
    assert cli.main(["audit", "--adapter", "declines.py", "--cases", "3"]) == 5
    assert harmless(capsys.readouterr().out)
    markdown = (work / "reports" / "declines" / "report.md").read_text()
    assert harmless(markdown)
    assert "&lt;script>" in markdown
    assert "<script>" not in markdown


@pytest.mark.rest
def test_an_engine_s_texts_stay_in_their_places(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded = registry.load("mine.py")
    case = EngineCase((EngineRow((1, 2), RowOptions(2)),))
    with worker_of(decoded, sys.executable) as worker:
        outcome = worker.try_case(case)
    assert outcome.explanation is not None
    assert outcome.explanation.fingerprint.startswith("crash/exception:Bad")
    finding = Finding(outcome, outcome.explanation, needs=("ngram",), plain="right")
    found = Audit(decoded, Options(), "engine", ("rotary",), ("rotary",), version='7\x1b[31m"""\nimport os')
    found.outcomes, found.findings = [outcome], [finding]
    found.warnings.append("\x1b]0;owned\x07\n## warning heading")
    report = write(found, work / "out")
    assert all(map(harmless, texts(report)))
    assert report == json.loads((work / "out" / "report.json").read_text())
    check_markdown((work / "out" / "report.md").read_text(), "FAIL crash/exception:Bad")
    monkeypatch.setattr("eqcheck.engines.script.truth", lambda *_: ModelTruth(None))
    monkeypatch.setattr(ModelTruth, "row", lambda *_: [1])
    monkeypatch.setattr(decoded.function, "script", (), raising=False)
    parsed = ast.parse(script(decoded, found.version, finding))
    assert "import os" in str(ast.get_docstring(parsed))
    assert harmless(script(decoded, found.version, finding))

    kept = (work / "out" / "report.json").read_text()

    def full(path: Path, text: str) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(build, "write_whole", full)
    (*_, warning) = write(found, work / "out")["warnings"]
    assert warning.startswith(f"the report could not be written to {work / 'out'}: No space left on device")
    assert (work / "out" / "report.json").read_text() == kept


def test_names_that_cannot_be_printed_are_refused() -> None:
    for name in ("a\x1b[31m", "a\nb", "\ud800", "x" * 101, "a\u202eb"):
        with pytest.raises(UsageError, match=r"^name: expected"):
            decoder(name=name)(lambda target, draft, request: [])


def test_usage_errors_are_printable(work: Path, capsys: Printed) -> None:
    (work / "raises.py").write_text('raise ValueError("\\x1b[31m\\ud800")')
    assert cli.main(["audit", "--adapter", "raises.py"]) == 4
    assert harmless(capsys.readouterr().err)
    assert cli.main(["audit", "--adapter", "\x1b[31m.py"]) == 4
    assert harmless(capsys.readouterr().err)


@pytest.mark.parametrize("text", ["`", "``", "a`b", "```\n# x", "`````", "~~~\n# x", "    ", "<b>", "\x1b"])
def test_text_cannot_leave_its_place_in_markdown(text: str) -> None:
    """A CommonMark parser finds one block, and in it the text."""
    block = MarkdownIt().parse("\n".join(["before", "", *fenced(text), "", "after"]))
    assert [token.type for token in block] == [
        *("paragraph_open", "inline", "paragraph_close", "fence", "paragraph_open", "inline", "paragraph_close")
    ]
    assert block[3].content == printable(text) + "\n"
    line = MarkdownIt().parse(f"Reproduce: {code(text)}, and {inline(text)}")
    assert [token.type for token in line] == ["paragraph_open", "inline", "paragraph_close"]
    assert "html_inline" not in [child.type for child in line[1].children or []]
    spans = [child.content for child in line[1].children or [] if child.type == "code_inline"]
    assert spans[:1] == [one_line(text)] or not text.strip()


def test_plain_text_stays_as_it_is() -> None:
    text = "café 日本 \u00a0 \u3000 € → C:\\x {'a': 1}"
    assert printable(text) == text
    assert inline("see <https://example.org/1> and a < b") == "see <https://example.org/1> and a &lt; b"
    assert code("eqcheck replay 'a  b'") == "`eqcheck replay 'a  b'`"
    assert cleaned({"a": [1, None, 2.5, True, "x"]}) == {"a": [1, None, 2.5, True, "x"]}


SHORT = """
import eqcheck

@eqcheck.decoder(name="mine")
def mine(target, draft, request):
    limits = {"max_new_tokens": request.max_new_tokens, "eos_token_ids": request.eos_token_ids}
    return [eqcheck.Oracle(target).truth(prompt, **limits)[:-1] for prompt in request.prompts]
"""


# The command without the self-check that comes before an audit.
AUDIT = """
import resource, sys
from eqcheck import cli
from eqcheck.selfcheck import faults as selfcheck

selfcheck.short = lambda: selfcheck.SelfCheck((), ())
if limit := int(sys.argv.pop(1)):
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
sys.exit(cli.main(["audit", "--adapter", "mine.py", "--cases", "2", *sys.argv[1:]]))
"""


def audited(folder: Path, limit: int, *words: str, **where: Any) -> subprocess.CompletedProcess[str]:
    """An audit whose files may not grow beyond so many bytes, which is how a full disk looks to a program."""
    (folder / "mine.py").write_text(SHORT)
    given = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "cwd": folder, "text": True, **where}
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run([sys.executable, "-c", AUDIT, str(limit), *words], env=environment, **given)


@pytest.mark.long
def test_a_full_disk_loses_no_verdict(tmp_path: Path) -> None:
    kept = [tmp_path / "reports/mine" / name for name in ("report.json", "report.md", "cases/old.json")]
    kept.append(tmp_path / ".eqcheck/1/mine/old.json")
    for path in kept:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("what an earlier audit wrote")
    full = audited(tmp_path, 700)
    assert full.returncode == 1, full.stderr
    assert "Traceback" not in full.stderr
    assert "bookkeeping/premature-stop" in full.stdout
    assert full.stdout.count("the report could not be written to reports/mine: ") == 1
    assert full.stdout.count("new cases could not be stored in .eqcheck/1/mine: ") == 1
    assert {path.read_text() for path in kept} == {"what an earlier audit wrote"}
    assert not list(tmp_path.rglob("*.tmp"))


@pytest.mark.long
def test_a_full_disk_under_standard_output_keeps_the_exit_code(tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:
        done = audited(tmp_path, 0, stdout=full)
    assert done.returncode == 1
    assert "bookkeeping/premature-stop" in done.stderr
    assert "Traceback" not in done.stderr
