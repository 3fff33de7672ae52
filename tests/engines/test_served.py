"""Audits on checkpoints say in which dtype, on which kinds, and with which drafters an engine was served."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest

from eqcheck.audit.lanes import lanes_of
from eqcheck.audit.loop import audit
from eqcheck.cli import main
from eqcheck.contract import registry
from eqcheck.contract.decoders import Decoder, decoder
from eqcheck.core.result.findings import Options
from eqcheck.engines import drawing
from eqcheck.engines.conclusions import conclusions
from eqcheck.report.build import report_of, write
from eqcheck.report.markdown import to_markdown
from eqcheck.report.page import to_html
from eqcheck.report.schema import Served, from_builtins, to_builtins
from eqcheck.report.terminal import summary

RIGHT = """
from pathlib import Path
import eqcheck
from eqcheck.engines.checkpoints.row_judge import truth

@eqcheck.decoder(name="right", checkpoints=True, dtype="bfloat16", kinds=("full", "window", "mla"))
class Right:
    def open(self):
        self.version = "1"

    def __call__(self, target, draft, request):
        kind = Path(target).parent.name.partition("-")[0]
        if kind == "mla":
            raise eqcheck.Unsupported("no compressed keys")
        if kind == "window":
            raise RuntimeError("this architecture is not known")
        from eqcheck.core.case.engine import EngineRow
        rows = zip(request.prompts, request.rows)
        return [truth(kind).row(EngineRow(tuple(prompt), options)) for prompt, options in rows]
"""


def engine(folder: Path, text: str = RIGHT) -> Decoder:
    (folder / "engine.py").write_text(text)
    return registry.load(str(folder / "engine.py"))


@pytest.mark.long
def test_a_kind_that_an_engine_refuses_is_told_in_a_line_and_the_audit_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drawing, "BLOCK", 2)
    monkeypatch.setattr("eqcheck.engines.investigate.MINIMISE_S", 1.0)
    found = audit(engine(tmp_path), Options(cases=8, python=sys.executable))
    told = [warning for warning in found.warnings if "every case on the checkpoint" in warning]
    assert told == [
        "every case on the checkpoint window in bfloat16 crashed (crash/exception:RuntimeError); "
        "take it out of kinds= if the engine cannot load it",
        "VACUOUS: every case on the checkpoint mla in bfloat16 was declined (no compressed keys); "
        "take it out of kinds= if the engine cannot load it",
    ]
    report = report_of(found, tmp_path)
    assert report.served == (
        Served("bfloat16", "full", "model", 4, 0),
        Served("bfloat16", "window", "model", 2, 2),
    )
    assert to_builtins(report)["served"][1] == {
        "dtype": "bfloat16",
        "kind": "window",
        "drafter": "model",
        "cases": 2,
        "violations": 2,
    }
    assert "| window       | 2 of 2  |" in to_markdown(report)
    assert "As served" in to_html(report)
    assert "Failing cases by checkpoint and drafter (bfloat16)" in summary([report], [str(tmp_path)])


@pytest.mark.rest
def test_a_report_without_what_was_served_is_read(tmp_path: Path) -> None:
    data = to_builtins(write(audit(registry.load("eqspec"), Options(cases=5)), tmp_path))
    assert data.pop("served") == []
    assert from_builtins(data).served == ()


def test_a_kind_that_does_not_exist_is_told_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engine(tmp_path, RIGHT.replace('"window"', '"windoww"'))
    assert main(["audit", str(tmp_path / "engine.py"), "--out", str(tmp_path)]) == 4
    told = [line for line in capsys.readouterr().err.splitlines() if "windoww" in line]
    assert told == [
        "eqcheck: right: kinds: there is no checkpoint 'windoww'; did you mean 'window'?; "
        "`eqcheck checkpoint list` has all"
    ]


def test_the_list_says_in_which_dtype_and_on_which_checkpoints(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("llama_cpp_bfloat16 ")]
    assert "bfloat16" in line.split()[1:]
    assert "full, window" in line


@pytest.mark.parametrize(
    ("dtype", "kind", "lanes"),
    [("bfloat16", "window", 1), ("float16", "window", 1), ("float32", "window", 2), ("bfloat16", "full", 2)],
)
def test_rows_sample_in_less_than_float32_where_laws_are_exact(dtype: str, kind: str, lanes: int) -> None:
    @decoder(name="samples", checkpoints=True, dtype=dtype, kinds=(kind,), capabilities=("temperature",))
    def samples(target: object, draft: object, request: object) -> list[list[int]]:
        return []

    audited = lanes_of(samples, Options(cases=2))
    assert len(audited) == lanes
    first = audited[0].result
    conclusions(first)
    assert any(warning.startswith("no sampled rows were tested") for warning in first.warnings) == (lanes == 1)


def test_prompts_end_where_blocks_do_and_cases_share_beginnings_with_earlier_ones() -> None:
    cases = drawing.EngineCases(seed=3, capabilities=("prefix-caching",))
    drawn = [cases.case(number) for number in range(600)]
    lengths = {len(row.prompt) for case in drawn for row in case.rows}
    assert {1, 16, 32} <= lengths
    assert any(len(row.prompt) == case.num_draft_tokens + 1 for case in drawn for row in case.rows)
    for block in range(12):
        ordinary = drawn[block * drawing.BLOCK :][: drawing.BLOCK - drawing.REACHING]
        cached = [case for case in ordinary if case.prefix_caching]
        begins = Counter(row.prompt[:15] for case in cached for row in case.rows)
        assert not cached or begins.most_common(1)[0][1] > len(cached), "later cases hit what earlier ones left"
