"""The installed ``transformers``' own assisted generation, ``generate(assistant_model=...)``.

Released versions accept batch 1 only; then the rows are decoded one by one, and the report says so. A version that
accepts more (a branch under review, say) gets the whole batch.
"""

from __future__ import annotations

from typing import Any

import torch
import transformers
from transformers.utils import logging

import eqcheck

_VERSION = tuple(int(part) for part in transformers.__version__.split(".")[:2])
# Seen on 4.57.6, gone in 5.23: when no draft token fits the limit and the prompt ends with an EOS id, the stopping
# criteria are asked about the prompt, and the row ends before its last token. 5.18 replaced that code.
EOS_ENDS_PROMPT = "https://github.com/huggingface/transformers/pull/48981"


@eqcheck.decoder(
    name="transformers",
    padding_sides=("left",),
    origin="https://github.com/huggingface/transformers",
    version=transformers.__version__,
    known={"bookkeeping/premature-stop": EOS_ENDS_PROMPT} if _VERSION < (5, 18) else {},
)
class AssistedGeneration:
    """One call of ``generate()`` for the batch, or one per row where the version refuses batches."""

    note = ""

    def open(self) -> None:
        self._verbosity = logging.get_verbosity()
        logging.set_verbosity_error()

    def close(self) -> None:
        logging.set_verbosity(self._verbosity)

    def __call__(self, target: Any, draft: Any, request: eqcheck.Request) -> list[list[int]]:
        if len(request.prompts) > 1 and not self.note:
            try:
                return self._generate(target, draft, request, request.prompts)
            except ValueError as error:
                if "batch_size = 1" not in str(error):
                    raise
                self.note = (
                    f"transformers {transformers.__version__} refuses assisted generation of more than one row "
                    f"({error}): rows were decoded one by one, so batching was not tested"
                )
        return [self._generate(target, draft, request, [prompt])[0] for prompt in request.prompts]

    def _generate(self, target: Any, draft: Any, request: eqcheck.Request, prompts: list[list[int]]) -> list[list[int]]:
        width = max(map(len, prompts))
        pads = [width - len(prompt) for prompt in prompts]
        draft.generation_config.num_assistant_tokens = request.num_draft_tokens
        draft.generation_config.num_assistant_tokens_schedule = "constant"
        draft.generation_config.assistant_confidence_threshold = 0.0  # else it drafts fewer where it is in doubt
        output = target.generate(
            torch.tensor([[request.pad_token_id] * n + p for n, p in zip(pads, prompts, strict=True)]),
            attention_mask=torch.tensor([[0] * n + [1] * (width - n) for n in pads]),
            assistant_model=draft,
            max_new_tokens=request.max_new_tokens,
            do_sample=False,
            eos_token_id=list(request.eos_token_ids) or None,
            pad_token_id=request.pad_token_id,
        )
        return [without_padding(row[width:].tolist(), request) for row in output]


def without_padding(row: list[int], request: eqcheck.Request) -> list[int]:
    """The row without the pads with which ``generate`` fills a finished row; anything else after an EOS stays."""
    for index, token in enumerate(row):
        if token in request.eos_token_ids:
            rest = row[index + 1 :]
            return row[: index + 1] if all(t == request.pad_token_id for t in rest) else row
    return row
