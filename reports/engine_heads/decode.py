"""Cases decoded by a head method of an engine, under its Python: ``python decode.py ENGINE METHOD FOLDER K``.

Lists of cases come as JSON on standard input. For each list, rows and the engine's own counts of draft tokens go to
standard output, all in a line.
"""

from __future__ import annotations

import json
import os
import random
import sys
from pathlib import Path
from typing import Any


class OpenVINO:
    """Its continuous batching pipeline in float32."""

    def __init__(self, method: str, folder: Path, k: int) -> None:
        import openvino_genai

        target, head = exported(folder)
        precise = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32", "INFERENCE_NUM_THREADS": 1}
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.num_kv_blocks = 500
        properties: dict[str, Any] = dict(precise)
        if method != "none":
            properties["draft_model"] = openvino_genai.draft_model(head, "CPU", **precise)
        self.pipeline = openvino_genai.ContinuousBatchingPipeline(target, scheduler, "CPU", properties)
        self.k, self.version = k if method != "none" else 0, openvino_genai.get_version()
        self.drafted = self.accepted = 0

    def __call__(self, case: dict[str, Any]) -> list[list[int]]:
        import numpy
        import openvino
        import openvino_genai

        configs = []
        for limit in case["limits"]:
            config = openvino_genai.GenerationConfig()
            config.max_new_tokens, config.ignore_eos = limit, True
            if temperature := case.get("temperature"):
                config.do_sample, config.temperature = True, temperature
                config.rng_seed = random.getrandbits(31)
            if self.k:
                config.num_assistant_tokens = self.k
            configs.append(config)
        prompts = [openvino.Tensor(numpy.array([prompt], dtype=numpy.int64)) for prompt in case["prompts"]]
        results = self.pipeline.generate(prompts, configs)
        if self.k:
            counts = results[0].extended_perf_metrics
            self.drafted += counts.get_num_draft_tokens()
            self.accepted += counts.get_num_accepted_tokens()
        return [list(result.m_generation_ids[0]) for result in results]


def exported(folder: Path) -> tuple[str, str]:
    """Target and EAGLE3 head in OpenVINO's format, with the tokenizers that the pipeline asks for."""
    import openvino
    import torch
    from openvino_tokenizers import convert_tokenizer
    from optimum.exporters.openvino import export_from_model, main_export
    from optimum.exporters.openvino.model_patcher import LlamaEagle3ForCausalLM
    from transformers import AutoTokenizer

    made = [folder / f"openvino-{name}" for name in ("target", "eagle3")]
    if not made[1].is_dir():
        task = "text-generation-with-past"
        main_export(str(folder / "target"), made[0], task=task)
        # As the exporter would load it from remote code, for which it asks for packages that are not needed.
        head = LlamaEagle3ForCausalLM.from_pretrained(folder / "eagle3", dtype=torch.float32)
        for kind in (type(head), type(head.model)):
            kind.__module__ = "transformers.models.llama.modeling_llama"  # by which the exporter knows the library
        export_from_model(head, made[1], task=task, stateful=True)
        for one in made:
            tokenizers = convert_tokenizer(AutoTokenizer.from_pretrained(folder / "target"), with_detokenizer=True)
            for name, converted in zip(("tokenizer", "detokenizer"), tokenizers, strict=True):
                openvino.save_model(converted, one / f"openvino_{name}.xml")
    return str(made[0]), str(made[1])


class VLLM:
    """Its V1 engine in float32."""

    def __init__(self, method: str, folder: Path, k: int) -> None:
        os.environ.update(
            VLLM_ENABLE_V1_MULTIPROCESSING="0",
            VLLM_CPU_KVCACHE_SPACE="1",
            VLLM_CPU_OMP_THREADS_BIND="nobind",
            VLLM_LOGGING_LEVEL="ERROR",
            VLLM_NO_USAGE_STATS="1",
            HF_HUB_OFFLINE="1",
        )
        import vllm

        if os.environ.get("MEND"):
            mend()
        target = folder / ("mtp" if method in ("mtp", "mtp-none") else "target")
        unpadded, method = method.endswith("-unpadded"), method.removesuffix("-unpadded")
        settings: dict[str, Any] = {"method": method, "num_speculative_tokens": k}
        if unpadded:
            settings["disable_padded_drafter_batch"] = True
        if method not in ("mtp", "suffix"):  # one is in the target's own folder, the other has no weights
            settings["model"] = str(folder / method)
        self.llm = vllm.LLM(
            model=str(target),
            speculative_config=None if method.endswith("none") else settings,
            dtype="float32",
            skip_tokenizer_init=True,
            enforce_eager=True,
            max_model_len=256,
            max_num_seqs=16,
            block_size=32,
            disable_log_stats=False,
        )
        self.version = vllm.__version__

    def __call__(self, case: dict[str, Any]) -> list[list[int]]:
        import torch
        from vllm import SamplingParams

        torch.manual_seed(random.getrandbits(48))  # an engine that is started again begins with the seed 0
        options = [
            SamplingParams(
                temperature=case.get("temperature", 0), max_tokens=limit, ignore_eos=True, detokenize=False
            )
            for limit in case["limits"]
        ]
        prompts = [{"prompt_token_ids": prompt} for prompt in case["prompts"]]
        results = self.llm.generate(prompts, options, use_tqdm=False)
        return [list(result.outputs[0].token_ids) for result in results]

    def _counted(self, what: str) -> int:
        return sum(metric.value for metric in self.llm.get_metrics() if metric.name == f"vllm:spec_decode_num_{what}")

    @property
    def drafted(self) -> int:
        return self._counted("draft_tokens")

    @property
    def accepted(self) -> int:
        return self._counted("accepted_tokens")


def mend() -> None:
    """Repair what vLLM 0.32 does on a CPU: its kernel writes the temperatures of rows into a copy of its output."""
    import torch
    import vllm.v1.sample.rejection_sampler as sampler

    def expanded(x: Any, ends: Any, count: int, replace_from: int = 0, replace_to: int = 0) -> Any:
        rows = torch.diff(ends, prepend=ends.new_zeros(1)).long()
        return torch.where(x == replace_from, torch.full_like(x, replace_to), x).repeat_interleave(rows)

    sampler.expand_batch_to_tokens = expanded


def decoded(running: Any, start: Any, case: dict[str, Any]) -> tuple[Any, Any]:
    """The engine to go on with, and the rows of a case; or what went wrong. Then it is started anew."""
    try:
        return running, running(case)
    except Exception as error:
        return start(), f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    engine, method, folder, k = sys.argv[1:]
    out, sys.stdout = sys.stdout, sys.stderr  # what engines print is no part of the answer

    def start() -> Any:
        return {"openvino_genai": OpenVINO, "vllm": VLLM}[engine](method, Path(folder), int(k))

    running, answers = start(), []
    for cases in json.load(sys.stdin):
        rows, drafted, accepted = [], -running.drafted, -running.accepted
        for case in cases:
            was = running
            running, found = decoded(running, start, case)
            rows.append(found)
            if was is not running:
                drafted, accepted = drafted + was.drafted, accepted + was.accepted
        answer = {"version": running.version, "rows": rows}
        answers.append(answer | {"drafted": drafted + running.drafted, "accepted": accepted + running.accepted})
    print(json.dumps(answers), file=out, flush=True)
    os._exit(0)  # an engine may take long to end
