"""OpenVINO GenAI 2026.4: with a draft model two of three requests are given one another's first token, at the defaults.

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


def firsts(**properties: object) -> list[int]:
    pipeline = openvino_genai.ContinuousBatchingPipeline(target, openvino_genai.SchedulerConfig(), "CPU", properties)
    asked = openvino_genai.GenerationConfig(max_new_tokens=5, ignore_eos=True)
    asked.num_assistant_tokens = 3 if properties else 0
    prompts = [[(7 * n + 11 * size) % 250 for n in range(size)] for size in (255, 20, 1)]  # 256 tokens are a step
    given = [openvino.Tensor(numpy.array([prompt], dtype=numpy.int64)) for prompt in prompts]
    return [answer.m_generation_ids[0][0] for answer in pipeline.generate(given, [asked] * 3)]


target, draft = map(exported, sys.argv[1:3])
alone, drafted = firsts(), firsts(draft_model=openvino_genai.draft_model(draft, "CPU"))
print(f"the first tokens of three requests: {alone} without drafts, {drafted} with them")
raise SystemExit(drafted != alone)
