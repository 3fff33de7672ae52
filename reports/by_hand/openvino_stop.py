"""OpenVINO GenAI 2026.4: with a draft model a row goes on behind a stop string that stands at its beginning.

eqcheck checkpoint write full target --draft draft --agreement 0.75 && python <this file> target draft
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
    asked = openvino_genai.GenerationConfig(max_new_tokens=20, stop_strings={STOP}, include_stop_str_in_output=True)
    asked.num_assistant_tokens = 5 if properties else 0
    prompt = openvino.Tensor(numpy.array([[162]], dtype=numpy.int64))
    return pipeline.generate([prompt], [asked])[0].m_generation_ids[0]


STOP = "[195] [12] [114]"
target, draft = map(exported, sys.argv[1:3])
alone, drafted = answer(), answer(draft_model=openvino_genai.draft_model(draft, "CPU"))
print(f"with the stop string {STOP}: {alone} without drafts, {drafted} with them")
raise SystemExit(len(alone) == 3 < len(drafted))
