"""OpenVINO GenAI 2026.4: a choice of 40 texts that begin alike lets other texts through, with and without drafts.

eqcheck checkpoint write full target && python <this file> target
"""

import sys
import tempfile

import numpy
import openvino
import openvino_genai
from openvino_tokenizers import convert_tokenizer
from optimum.intel import OVModelForCausalLM
from transformers import AutoTokenizer

made = tempfile.mkdtemp()
OVModelForCausalLM.from_pretrained(sys.argv[1], export=True, load_in_8bit=False, compile=False).save_pretrained(made)
pair = convert_tokenizer(AutoTokenizer.from_pretrained(sys.argv[1]), with_detokenizer=True)
for name, model in zip(("tokenizer", "detokenizer"), pair, strict=True):
    openvino.save_model(model, f"{made}/openvino_{name}.xml")
scheduler = openvino_genai.SchedulerConfig()
scheduler.num_kv_blocks = 100
pipeline = openvino_genai.ContinuousBatchingPipeline(made, scheduler, "CPU", {})
wrong = 0
for first in range(20):
    chosen = [(first + 37 * step) % 250 for step in range(40)]  # the text of id 17 is " [17]"
    texts = "|".join(rf" \[{token}\]" for token in chosen)
    asked = openvino_genai.GenerationConfig(max_new_tokens=1, ignore_eos=True)
    asked.structured_output_config = openvino_genai.StructuredOutputConfig(regex=f"({texts})")
    prompt = openvino.Tensor(numpy.array([[first, 5, 6]], dtype=numpy.int64))
    (token,) = pipeline.generate([prompt], [asked])[0].m_generation_ids[0]
    wrong += token not in chosen
    print(f"{pipeline.get_tokenizer().decode([token])} is {'one' if token in chosen else 'none'} of 40 texts")
raise SystemExit(wrong > 0)
