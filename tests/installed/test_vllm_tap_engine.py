"""The tap inside vLLM itself: right rows are read as right, patched ones as what they are; the plug-in is found."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from eqcheck.audit.workers.interpreter import environment
from eqcheck.contract import registry
from eqcheck.contract.decoders import RowOptions
from eqcheck.core.case.engine import EngineCase, EngineRow
from eqcheck.engines.checkpoints.folders import checkpoint
from eqcheck.engines.engine_outcome import abduced, explain
from eqcheck.engines.lane import worker

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-vllm" / "bin" / "python"

# Decodes three rows with a draft model, twice, so that the second time finds cached beginnings; then with a fault.
PROGRAM = """
import importlib.util, json, random, sys
from types import SimpleNamespace

ROOT, TARGET, DRAFT, FAULT = sys.argv[1:]
spec = importlib.util.spec_from_file_location("eqcheck", ROOT + "/eqcheck/__init__.py",
                                              submodule_search_locations=[ROOT + "/eqcheck"])
sys.modules["eqcheck"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sys.modules["eqcheck"])
from eqcheck.adapters import vllm as adapter
from eqcheck.adapters.taps.vllm_tap import tapped
from eqcheck.contract.decoders import RowOptions

adapter.prepare()
rng = random.Random(1)
prompts = [[rng.randrange(256) for _ in range(count)] for count in (70, 7, 40)]
request = SimpleNamespace(prompts=prompts, rows=[RowOptions(20), RowOptions(12), RowOptions(16)], num_draft_tokens=3,
                          drafting="model", token_budget=None, kv_blocks=None, prefix_caching=True, drafts=())
llm = adapter.start(TARGET, DRAFT, request)
if FAULT == "table":
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionMetadataBuilder as Builder
    right = Builder.build

    def build(self, *given, **named):
        metadata = right(self, *given, **named)
        table = metadata.block_table.clone()
        table[0, :2] = table[0, :2].flip(0)
        metadata.block_table = table
        return metadata

    Builder.build = build
if FAULT == "write":
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackendImpl as Attention
    write = Attention.do_kv_cache_update

    def lost(self, layer, key, value, cache, slots):
        keep = slice(0, len(slots) - 1) if len(slots) > 20 else slice(0, None)
        write(self, layer, key[keep], value[keep], cache, slots[keep])

    Attention.do_kv_cache_update = lost
with tapped() as tap:
    adapter.decode(llm, request)
    adapter.decode(llm, request)
queries = [query for step in tap.steps for query in step.queries]
others = {write.request for query in queries for seen in query.seen for write in seen.writes} - {queries[-1].request}
print(json.dumps({"queries": len(queries), "layers": len({query.layer for query in queries}), "others": len(others),
                  "faults": tap.faults()[:3]}))
"""


def _run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    return subprocess.run([str(PYTHON), *arguments], capture_output=True, text=True, timeout=300, env=environ)


@pytest.mark.parametrize(
    ("fault", "said"),
    [("", ""), ("table", "slot 0 holds another position: of request 0-"), ("write", "holds nothing that was written")],
)
def test_what_the_target_sees_is_read(fault: str, said: str) -> None:
    pair = checkpoint()
    done = _run("-c", PROGRAM, str(ROOT), str(pair.target), str(pair.draft), fault)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["layers"], found["queries"] > 300) == (3, True)
    assert found["others"] > 1
    assert len(found["faults"]) == (3 if fault else 0)
    assert not fault or said in found["faults"][0][1], found["faults"]


SERVED = """
import os, sys
from vllm import LLM, SamplingParams

if __name__ == "__main__":
    llm = LLM(model=sys.argv[1], dtype="float32", skip_tokenizer_init=True, enforce_eager=True, max_model_len=256)
    prompts = [{"prompt_token_ids": list(range(1, count))} for count in (9, 30)]
    llm.generate(prompts, SamplingParams(temperature=0.0, max_tokens=8, detokenize=False), use_tqdm=False)
"""


def test_as_a_plug_in_it_reads_in_the_engines_own_process(tmp_path: Path) -> None:
    info = tmp_path / "site" / "vllm_tap-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm-tap\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[vllm.general_plugins]\ntap = vllm_tap:plug_in\n")
    (tmp_path / "site" / "vllm_tap.py").write_text((ROOT / "adapters" / "taps" / "vllm_tap.py").read_text())
    (tmp_path / "served.py").write_text(SERVED)
    steps = tmp_path / "steps.ndjson"
    done = _run(
        str(tmp_path / "served.py"),
        str(checkpoint().target),
        PYTHONPATH=str(tmp_path / "site"),
        EQCHECK_VLLM_TAP=str(steps),
        VLLM_CPU_KVCACHE_SPACE="1",
        VLLM_CPU_OMP_THREADS_BIND="nobind",
        VLLM_NO_USAGE_STATS="1",
        HF_HUB_OFFLINE="1",
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = [json.loads(line) for line in steps.read_text().splitlines()]
    queries = [query for step in found for query in step["queries"]]
    assert len(queries) > 3 * (8 + 29)
    assert {query["fault"] for query in queries} == {None}


PATCHED = """
import eqcheck

eqcheck_vllm = __import__("eqcheck.adapters.vllm", fromlist=["prepare"])
eqcheck_vllm.prepare()
try:
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionMetadataBuilder as Builder
except ImportError:
    pass  # in the audit's own process
else:
    right = Builder.build

    def build(self, *given, **named):
        metadata = right(self, *given, **named)
        table = metadata.block_table.clone()
        for row, length in enumerate(metadata.seq_lens.tolist()):
            if length > 32:  # tokens of a block
                table[row, :2] = table[row, :2].flip(0)
        metadata.block_table = table
        return metadata

    Builder.build = build
decoder = eqcheck.load("vllm")
"""


@pytest.mark.parametrize("drafting", ["model", "dictated"])
def test_a_patched_block_table_is_named_by_reading(
    drafting: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EQCHECK_TAP", "1")
    (tmp_path / "patched.py").write_text(PATCHED)
    decoder = registry.load(str(tmp_path / "patched.py") + ":decoder")
    rows = tuple(EngineRow(tuple(range(7, 7 + count)), RowOptions(20), (3, 0, 2)) for count in (28, 5))
    with worker(decoder, environment(decoder, None)) as running:
        outcome = running.try_case(EngineCase(rows, 3, drafting=drafting))
    assert outcome.status == "violation"
    assert [row.row for row in outcome.wrong] == [0]
    found = explain(outcome, abduced(outcome))
    assert found.fingerprint == "cache/misaligned"
    assert "slot 0 holds another position: of request 0" in found.detail


@pytest.mark.parametrize("drafting", ["model", "dictated"])
def test_cached_beginnings_and_preempted_rows_are_read_as_right(drafting: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EQCHECK_TAP", "1")
    decoder, beginning = registry.load("vllm"), tuple(range(64))
    rows = [EngineRow((*beginning, row, 7), RowOptions(90), (3, 0, 2)) for row in range(5)]
    rows[-1] = EngineRow(rows[0].prompt, RowOptions(90, arrival=6), (1, 3))
    case = EngineCase(tuple(rows), 3, drafting=drafting, kv_blocks=9, prefix_caching=True)
    with worker(decoder, environment(decoder, None)) as running:
        outcome = running.try_case(case)
    assert outcome.status == "equivalent"
    assert outcome.observed["preemptions"] > 0
    assert outcome.observed["prefix_hits"] > 0
    assert outcome.observed["contexts"] > 5 * 90
    assert not outcome.observed["wrong_context"]
