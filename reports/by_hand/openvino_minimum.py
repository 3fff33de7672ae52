"""OpenVINO GenAI 2026.4: with a draft model an EOS comes before `min_new_tokens`; a rejection adds the prompt to the count.

eqcheck checkpoint write mistral target --draft draft --agreement 0.75 && python <this file> target draft
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


def answer(**properties: object) -> list[int]:
    pipeline = openvino_genai.ContinuousBatchingPipeline(target, openvino_genai.SchedulerConfig(), "CPU", properties)
    asked = openvino_genai.GenerationConfig(max_new_tokens=14, min_new_tokens=9, stop_token_ids={108})
    asked.num_assistant_tokens = 3 if properties else 0
    ids = [23, 193, 169, 142, 120, 18, 158, 3, 39, 55, 16, 101]
    prompt = openvino.Tensor(numpy.array([ids], dtype=numpy.int64))
    return pipeline.generate([prompt], [asked])[0].m_generation_ids[0]


target, draft = map(exported, sys.argv[1:3])
alone, drafted = answer(), answer(draft_model=openvino_genai.draft_model(draft, "CPU"))
print(f"with 108 as an end and a minimum of 9 tokens: {alone} without drafts, {drafted} with them")
raise SystemExit(len(drafted) < 9 <= len(alone))
