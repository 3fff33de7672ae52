"""OpenVINO GenAI 2026.4: a request with a seed is not always answered alike, if a draft model speculates.

eqcheck checkpoint write full target --draft draft && python <this file> target draft
"""

import sys
import tempfile

import numpy
import openvino
import openvino_genai
from openvino_tokenizers import convert_tokenizer
from optimum.intel import OVModelForCausalLM
from transformers import AutoTokenizer


def exported(folder: str) -> str:
    made = tempfile.mkdtemp()
    OVModelForCausalLM.from_pretrained(folder, export=True, load_in_8bit=False, compile=False).save_pretrained(made)
    pair = convert_tokenizer(AutoTokenizer.from_pretrained(folder), with_detokenizer=True)
    for name, model in zip(("tokenizer", "detokenizer"), pair, strict=True):
        openvino.save_model(model, f"{made}/openvino_{name}.xml")
    return made


def answers(**properties: object) -> int:
    scheduler = openvino_genai.SchedulerConfig()
    scheduler.num_kv_blocks = 100
    pipeline = openvino_genai.ContinuousBatchingPipeline(target, scheduler, "CPU", properties)
    asked = openvino_genai.GenerationConfig(max_new_tokens=20, do_sample=True, temperature=2.0, rng_seed=7)
    asked.ignore_eos, asked.num_assistant_tokens = True, 3 if properties else 0
    prompt = openvino.Tensor(numpy.array([[5, 6, 7, 8]], dtype=numpy.int64))
    return len({tuple(pipeline.generate([prompt], [asked])[0].m_generation_ids[0]) for _ in range(6)})


target, draft = map(exported, sys.argv[1:3])
alone, drafted = answers(), answers(draft_model=openvino_genai.draft_model(draft, "CPU"))
print(f"six requests with one seed: {alone} answer without drafts, {drafted} with them")
raise SystemExit(drafted > alone)
