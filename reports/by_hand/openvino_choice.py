"""OpenVINO GenAI 2026.4: a choice of 40 texts that begin alike lets other texts through, with and without drafts.

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


target, draft = map(exported, sys.argv[1:3])
scheduler, wrong = openvino_genai.SchedulerConfig(), {}
scheduler.num_kv_blocks = 100
for name, properties in {"without": {}, "with": {"draft_model": openvino_genai.draft_model(draft, "CPU")}}.items():
    pipeline = openvino_genai.ContinuousBatchingPipeline(target, scheduler, "CPU", properties)
    for first in range(20):
        chosen = [(first + 37 * step) % 250 for step in range(40)]  # the text of id 17 is " [17]"
        texts = "|".join(rf" \[{token}\]" for token in chosen)
        asked = openvino_genai.GenerationConfig(max_new_tokens=1, ignore_eos=True, num_assistant_tokens=len(properties))
        asked.structured_output_config = openvino_genai.StructuredOutputConfig(regex=f"({texts})")
        prompt = openvino.Tensor(numpy.array([[first, 5, 6]], dtype=numpy.int64))
        (token,) = pipeline.generate([prompt], [asked])[0].m_generation_ids[0]
        wrong[name] = wrong.get(name, 0) + (token not in chosen)
print(f"of 20 tokens so many are none of the 40 texts: {wrong['without']} without drafts, {wrong['with']} with them")
raise SystemExit(wrong["without"] > 0 and wrong["with"] > 0)
