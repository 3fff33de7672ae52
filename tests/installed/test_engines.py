"""The engines in environments of their own (`make engines`), and the scripts of what was found in them."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from signal import SIGABRT, SIGKILL

import pytest
from committed import committed

from eqcheck.audit.loop import audit
from eqcheck.audit.workers.interpreter import environment
from eqcheck.cli import main
from eqcheck.contract import registry
from eqcheck.core.result.findings import Options
from eqcheck.engines.checkpoints.folders import checkpoint
from eqcheck.engines.drawing import EngineCases
from eqcheck.engines.lane import worker as worker_of
from eqcheck.sampling.engine_target import EngineTarget
from eqcheck.sampling.judge import Gathered
from eqcheck.sampling.lane import SampledLane

ROOT = Path(__file__).parents[2]
ENGINES = ("openvino_genai", "vllm", "mlx_vlm", "llama_cpp")
SAMPLING = ("openvino_genai", "vllm")
REPORTED = [path.parent.name for path in committed("reports/*/report.json")]
SCRIPTS = [path for name in REPORTED for path in committed(f"reports/{name}/[!_]*.py")]
PAIR, GGUF = ("target", "draft"), ("target.gguf", "draft.gguf")
EXPORT = """import runpy, sys, pathlib
export = runpy.run_path(sys.argv[1])["export"]
for name in ("target", "draft"):
    export(pathlib.Path(name), pathlib.Path(f"{name}.gguf"))"""
BY_HAND = [
    ("vllm", "vllm_seed", ()),
    ("vllm", "vllm_certain_law", ()),
    ("vllm", "vllm_top_k", ()),
    *(("vllm", "vllm_lfm2", (word,)) for word in ("plain", "drafts", "cache")),
    ("openvino_genai", "openvino_seed", PAIR),
    ("mlx_lm", "mlx_lm_cache", PAIR),
    *(("onnxruntime_genai", f"onnxruntime_genai_{name}", PAIR) for name in ("append", "pad", "top_p")),
    ("llama_cpp", "llama_cpp_logprobs", GGUF),
    ("llama_cpp", "llama_cpp_batch", GGUF),
    *(("", path.stem, ()) for path in committed("reports/by_hand/transformers_*.py")),
]


@pytest.mark.parametrize("name", ENGINES)
def test_without_speculation_the_engine_is_the_float64_model_and_nothing_is_near_a_tie(name: str) -> None:
    decoder = registry.load(name)
    cases = [replace(case, drafting="none") for case in islice(EngineCases(7, decoder.capabilities).cases(), 40)]
    with worker_of(decoder, environment(decoder, None)) as worker:
        outcomes = [worker.try_case(case) for case in cases]
    assert [outcome.status for outcome in outcomes] == ["equivalent"] * len(cases)


@pytest.mark.parametrize("name", ENGINES)
def test_the_default_settings_speculate_and_are_right_where_no_minimum_is_asked(name: str) -> None:
    decoder = registry.load(name)
    capabilities = {"row-limits", "row-eos", "repetition-penalty", "presence-penalty", "arrivals"}
    if "only-dictated-drafts" in decoder.capabilities:
        capabilities = {"only-dictated-drafts", "row-limits", "arrivals"}
    decoder = replace(decoder, capabilities=tuple(sorted(capabilities)))
    found = audit(decoder, Options(cases=50, seed=11))
    assert found.verdict == "equivalent"
    assert found.coverage["accepted"] > 30
    assert found.coverage["rejected"] > 30
    assert found.facts["ties"] == 0


@pytest.mark.parametrize(
    ("name", "drafting"), [("openvino_genai", "none"), ("openvino_genai", "ngram"), ("vllm", "none")]
)
def test_sampled_rows_follow_the_law_without_a_draft_model(name: str, drafting: str) -> None:
    lane = SampledLane(registry.load(name), Options(cases=30, seed=21), EngineTarget)
    gathered = Gathered()
    drawn = (case for case in lane.target.source.cases() if drafting == "none" or case.drafting == drafting)
    with lane.drawing():
        for case in islice(drawn, 30):
            gathered.add(lane.running.try_case(replace(case, drafting=drafting)))
    assert not any(outcome.failed for outcome in gathered.outcomes)
    assert gathered.wealth.tokens > 1200
    assert gathered.wealth.verdict() == "equivalent"
    assert gathered.wealth.supremum < 1000


@pytest.mark.parametrize("name", SAMPLING)
def test_sampling_with_a_draft_model_is_seen_to_leave_the_law(name: str) -> None:
    lane = SampledLane(registry.load(name), Options(cases=12, seed=3), EngineTarget)
    gathered = Gathered()
    with lane.drawing():
        for case in islice(lane.target.source.cases(), 12):
            gathered.add(lane.running.try_case(case))
    assert gathered.violated


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_script_shows_what_it_claims(script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write = re.search(r"eqcheck (checkpoint write .*)", script.read_text())
    if write:
        assert main(write[1].split()) == 0
    done = _run(registry.load(script.parent.name).environment, script, *(PAIR if write else ()))
    assert done.returncode == 1, done.stderr[-2000:]
    assert "WRONG" in done.stdout


@pytest.mark.parametrize("time", range(3))
@pytest.mark.parametrize(("engine", "name", "words"), BY_HAND, ids=lambda value: "-".join(value) or "none")
def test_a_script_that_was_written_by_hand_shows_its_fault(
    engine: str, name: str, words: tuple[str, ...], time: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if words in (PAIR, GGUF):
        assert main(["checkpoint", "write", "full", "target", "--draft", "draft"]) == 0
    if words == GGUF:
        python, adapter = ROOT / ".venv-llama_cpp" / "bin" / "python", ROOT / "adapters" / "llama_cpp.py"
        subprocess.run([python, "-c", EXPORT, adapter], check=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
    done = _run(engine, ROOT / "reports" / "by_hand" / f"{name}.py", *words)
    assert done.returncode == (-SIGABRT if name == "llama_cpp_batch" else 1), done.stderr[-2000:]


def _run(environment: str, script: Path, *words: str) -> subprocess.CompletedProcess[str]:
    python = ROOT / f".venv-{environment}".removesuffix("-") / "bin" / "python"
    return subprocess.run([python, script, *words], capture_output=True, text=True, timeout=300)


def test_a_real_pair_of_servers_is_audited_over_http(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pair = checkpoint()
    speculation = f'{{"method": "draft_model", "model": "{pair.draft}", "num_speculative_tokens": 4}}'
    with ExitStack() as stack:
        urls = [
            stack.enter_context(_server(tmp_path / name, str(pair.target), *options))
            for name, options in (("speculative", ("--speculative-config", speculation)), ("plain", ()))
        ]
        monkeypatch.setenv("EQCHECK_SPECULATIVE_URL", urls[0])
        monkeypatch.setenv("EQCHECK_PLAIN_URL", urls[1])
        decoder = registry.load("openai_http")
        decoder = replace(decoder, capabilities=("row-limits", "row-eos", "presence-penalty"))
        found = audit(decoder, Options(cases=40, seed=2))
    assert found.verdict == "equivalent"
    assert len(found.claimed) == 40
    assert "vllm" in found.version


@contextmanager
def _server(log: Path, model: str, *options: str) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        str(ROOT / ".venv-vllm" / "bin" / "python"),
        *("-m", "vllm.entrypoints.openai.api_server", "--host", "127.0.0.1", "--port", str(port)),
        *("--model", model, "--dtype", "float32", "--enforce-eager", "--max-model-len", "512", "--block-size", "32"),
        *options,
    ]
    environ = {
        **os.environ,
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "OMP_NUM_THREADS": "1",
    }
    with log.open("w") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, env=environ, start_new_session=True)
    try:
        url = f"http://127.0.0.1:{port}/v1"
        end = time.monotonic() + 240
        while not _answers(f"{url}/models"):
            assert process.poll() is None, log.read_text()[-2000:]
            assert time.monotonic() < end, log.read_text()[-2000:]
            time.sleep(0.5)
        yield url
    finally:
        with suppress(OSError):
            os.killpg(process.pid, SIGKILL)
        process.wait()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5):
            return True
    except OSError:
        return False
