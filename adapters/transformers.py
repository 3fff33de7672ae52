"""The installed ``transformers``' own assisted generation: with a draft model, or with prompt lookup.

Released versions accept batch 1 only; then the rows are decoded one by one, and the report says so. A version that
accepts more (a branch under review, say) gets the whole batch, where all rows ask for the same. Sampled rows draw from
torch's global generator; there is no seed of a row's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import transformers
from transformers import (
    AutoModelForCausalLM,
    DynamicCache,
    StopStringCriteria,
    WatermarkingConfig,
)
from transformers.utils import logging

import eqcheck
from eqcheck.contract.cache_names import cache_argument, cache_of
from eqcheck.contract.decoders import RowOptions

_VERSION = tuple(int(part) for part in transformers.__version__.split(".")[:2])
# Seen on 4.57.6, gone in 5.23: when no draft token fits the limit and the prompt ends with an EOS id, the stopping
# criteria are asked about the prompt, and the row ends before its last token. 5.18 replaced that code.
EOS_ENDS_PROMPT = "https://github.com/huggingface/transformers/pull/48981"

# Seen on 5.23: stopping criteria other than limit and EOS are asked once a round, about its last token.
STOPS_AT_ROUND_ENDS = "https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/generation/utils.py"


@eqcheck.decoder(
    name="transformers",
    padding_sides=("left",),
    origin="https://github.com/huggingface/transformers",
    version=transformers.__version__,
    known={"bookkeeping/premature-stop": EOS_ENDS_PROMPT} if _VERSION < (5, 18) else {},
    dtype="float32",  # scores are rounded to that before anything is chosen
    capabilities=("temperature", "top-k", "top-p", "min-p", "ngram"),
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
        asked = [_sampling(row) for row in request.rows] or [_sampling(None)] * len(request.prompts)
        alike = all(one == asked[0] for one in asked)
        if len(request.prompts) > 1 and not self.note and alike:
            try:
                return self._generate(target, draft, request, request.prompts, asked[0])
            except ValueError as error:
                if "batch_size = 1" not in str(error):
                    raise
                self.note = (
                    f"transformers {transformers.__version__} refuses assisted generation of more than one row "
                    f"({error}): rows were decoded one by one, so batching was not tested"
                )
        rows = zip(request.prompts, asked, strict=True)
        return [self._generate(target, draft, request, [prompt], row)[0] for prompt, row in rows]

    def _generate(
        self, target: Any, draft: Any, request: eqcheck.Request, prompts: list[list[int]], asked: dict[str, Any]
    ) -> list[list[int]]:
        width = max(map(len, prompts))
        pads = [width - len(prompt) for prompt in prompts]
        output = target.generate(
            torch.tensor([[request.pad_token_id] * n + p for n, p in zip(pads, prompts, strict=True)]),
            attention_mask=torch.tensor([[0] * n + [1] * (width - n) for n in pads]),
            max_new_tokens=request.max_new_tokens,
            eos_token_id=list(request.eos_token_ids) or None,
            pad_token_id=request.pad_token_id,
            **_drafting(draft, request),
            **asked,
        )
        return [without_padding(row[width:].tolist(), request) for row in output]


def _drafting(draft: Any, request: eqcheck.Request) -> dict[str, Any]:
    """The options that make ``generate`` speculate."""
    if request.drafting == "ngram":
        return {"prompt_lookup_num_tokens": request.num_draft_tokens}
    if request.drafting == "none" or not request.num_draft_tokens:
        return {}
    draft.generation_config.num_assistant_tokens = request.num_draft_tokens
    draft.generation_config.num_assistant_tokens_schedule = "constant"
    draft.generation_config.assistant_confidence_threshold = 0.0  # else it drafts fewer where it is in doubt
    return {"assistant_model": draft}


def _sampling(row: RowOptions | None) -> dict[str, Any]:
    """Return how the tokens of a row are chosen."""
    if row is None or not row.temperature:
        return {"do_sample": False}
    cuts = {"top_k": row.top_k, "top_p": row.top_p, "min_p": row.min_p or None}
    return {"do_sample": True, "temperature": row.temperature, **cuts}


def _scoring(row: RowOptions, prompt: list[int], vocabulary: int) -> dict[str, Any]:
    """The options on the scores of a row. The engine finds the beginning of a bad word in the prompt as well."""
    begun = any(tuple(prompt[-n:]) == word[:n] for word in row.bad_words for n in range(1, len(word)))
    if begun or any((token,) in row.bad_words for token in row.eos_token_ids):
        raise eqcheck.Unsupported("a bad word that begins in the prompt, or is an EOS: the engine means another thing")
    asked: dict[str, Any] = {"repetition_penalty": row.repetition_penalty, "min_new_tokens": row.min_new_tokens or None}
    if row.logit_bias:
        asked["sequence_bias"] = [[[token], float(bias)] for token, bias in row.logit_bias]
    if row.no_repeat_ngram_size:
        asked["no_repeat_ngram_size"] = row.no_repeat_ngram_size
    if row.bad_words:
        asked["bad_words_ids"] = list(map(list, row.bad_words))
    if row.grammar:
        asked["prefix_allowed_tokens_fn"] = lambda _, ids: next(row.ruled(ids[len(prompt) :].tolist(), len(ids), 1))
    if row.allowed_ids:
        asked["suppress_tokens"] = sorted({*range(vocabulary)} - {*row.allowed_ids})
    return asked


def without_padding(row: list[int], request: eqcheck.Request) -> list[int]:
    """The row without the pads with which ``generate`` fills a finished row; anything else after an EOS stays."""
    for index, token in enumerate(row):
        if token in request.eos_token_ids:
            rest = row[index + 1 :]
            return row[: index + 1] if all(t == request.pad_token_id for t in rest) else row
    return row


class _Texts:
    """The texts of a checkpoint's tokens, as far as stop strings ask: its own tokenizer has none for other letters."""

    def __init__(self, size: int) -> None:
        self._vocabulary = {f"[{token}]": token for token in range(size)}

    def get_vocab(self) -> dict[str, int]:
        return self._vocabulary

    def __call__(self, text: str, **options: Any) -> dict[str, list[int]]:
        self._before = text
        return {"input_ids": []}

    def convert_tokens_to_string(self, tokens: list[str]) -> str:
        return self._before + "".join(tokens)


class _Streamed:
    """A streamer that keeps what it is given."""

    def __init__(self) -> None:
        self.tokens: list[int] = []

    def put(self, tokens: Any) -> None:
        self.tokens += tokens.flatten().tolist()

    def end(self) -> None: ...


def _begun(target: Any, prompt: torch.Tensor) -> dict[str, Any]:
    """A cache of the caller's, with the first half of a prompt."""
    half = prompt.shape[1] // 2
    cache = DynamicCache(config=target.config)
    if half:
        target(prompt[:, :half], **cache_argument(target, cache))
    return cache_argument(target, cache)


def _padded(target: Any, prompt: torch.Tensor) -> dict[str, Any]:
    """The prompt behind three pads."""
    mask = torch.ones(1, prompt.shape[1] + 3, dtype=torch.long)
    mask[:, :3] = 0
    return {"input_ids": torch.cat([torch.zeros(1, 3, dtype=torch.long), prompt], 1), "attention_mask": mask}


def _third(target: Any, prompt: torch.Tensor) -> dict[str, Any]:
    """A criterion of the caller's: three new tokens."""
    end = prompt.shape[1] + 3
    return {"stopping_criteria": [lambda tokens, scores, **options: torch.tensor([tokens.shape[1] >= end])]}


def _embedded(target: Any, prompt: torch.Tensor) -> dict[str, Any]:
    """The prompt and its embeddings, which say the same."""
    return {"input_ids": prompt, "inputs_embeds": target.get_input_embeddings()(prompt)}


def _asked(**options: Any) -> Any:
    return lambda target, prompt: options


def _allowed(batch: int, tokens: torch.Tensor) -> list[int]:
    return [token for token in range(256) if (token + len(tokens)) % 3]


def _processed(tokens: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    """A processor of the caller's: some ids are forbidden, others after each number of tokens."""
    every = torch.arange(scores.shape[1]) + tokens.shape[1]
    return scores.masked_fill(every % 4 == 0, float("-inf"))


_OF_DRAFTS = {"num_assistant_tokens_schedule": "heuristic", "assistant_confidence_threshold": 0.4}
"""Settings of a draft model, by which the number of its drafts changes."""

_SWITCHES: dict[str, Any] = {
    "guidance_scale": _asked(guidance_scale=0.317),  # more of what is seen without the prompt
    "output_hidden_states": _asked(output_hidden_states=True),
    "past_key_values": _begun,
    "stopping_criteria": _third,
    "output_scores": _asked(output_scores=True, output_logits=True, repetition_penalty=1.3),
    "left_padding": _padded,
    "streamer": lambda target, prompt: {"streamer": _Streamed()},
    "top_k_1": _asked(do_sample=True, top_k=1),
    "min_p_1": _asked(do_sample=True, top_k=0, min_p=1.0),
    "top_p_0": _asked(do_sample=True, top_k=0, top_p=1e-9),
    "assistant_early_exit": _asked(assistant_early_exit=1),
    "position_ids": lambda target, prompt: {"position_ids": torch.arange(prompt.shape[1])[None] + 3},
    "prefill_chunk_size": _asked(prefill_chunk_size=3),
    "sequence_bias": lambda target, prompt: {"sequence_bias": [[prompt[0, -2:].tolist(), -9.0], [[7], 3.0]]},
    "begin_suppress_tokens": _asked(begin_suppress_tokens=list(range(0, 256, 2))),
    "forced_eos_token_id": _asked(forced_eos_token_id=9),
    "watermarking_config": lambda target, prompt: {"watermarking_config": WatermarkingConfig(bias=5.0)},
    "prefix_allowed_tokens_fn": _asked(prefix_allowed_tokens_fn=_allowed),
    "renormalize_logits": _asked(renormalize_logits=True, output_scores=True),
    **dict.fromkeys(_OF_DRAFTS, _asked()),
    "max_matching_ngram_size": _asked(max_matching_ngram_size=4),
    "cache_implementation": _asked(cache_implementation="dynamic"),
    "logits_processor": _asked(logits_processor=[_processed]),
    "inputs_embeds": _embedded,
    "max_length": lambda target, prompt: {"max_new_tokens": None, "max_length": prompt.shape[1] + 7},
    "min_length": lambda target, prompt: {"min_length": prompt.shape[1] + 9, "eos_token_id": list(range(0, 256, 3))},
    "exponential_decay_length_penalty": _asked(exponential_decay_length_penalty=(3, 1.4), eos_token_id=[9, 17]),
    "output_attentions": _asked(output_attentions=True),
    "encoder_repetition_penalty": _asked(encoder_repetition_penalty=0.6),
    "encoder_no_repeat_ngram_size": _asked(encoder_no_repeat_ngram_size=1),
    "typical_p_0": _asked(do_sample=True, top_k=0, typical_p=1e-9),
    "epsilon_cutoff_1": _asked(do_sample=True, top_k=0, epsilon_cutoff=0.99),
    "top_h_0": _asked(do_sample=True, top_k=0, top_h=1e-9),
}
"""Arguments of ``generate()`` that no target can be asked about; made anew for each call."""


def _beside(output: Any, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Things that are returned beside tokens, by name: of a tensor its shape and how large its numbers are."""

    def size(tensor: torch.Tensor) -> list[float]:
        return [*map(float, tensor.shape), float(tensor.double().clamp(-1e9, 1e9).abs().mean())]

    told: dict[str, Any] = {}
    if "output_scores" in asked:
        told = {name: list(map(size, getattr(output, name) or ())) for name in ("scores", "logits")}
    if hidden := output.hidden_states:
        told["hidden_states"] = [[size(layer) for layer in step] for step in hidden]
    told["cache_length"] = cache_of(output).get_seq_length()
    if "streamer" in asked:
        told["streamed"] = asked["streamer"].tokens
    return told


class Served:
    """``generate()`` on the models of two folders, one row at a time, in the dtype of the request.

    Stop strings are handed over as a criterion: as ``stop_strings`` they raise together with a draft model, which is
    asked for a tokenizer of its own (5.23). Drafts for a Qwen 3.5 and a Granite 4 are refused, for their states cannot
    be rewound: so they are not among the kinds.
    """

    switches = tuple(_SWITCHES)

    def open(self) -> None:
        self.version = transformers.__version__
        self.models: dict[tuple[str, str], Any] = {}
        torch.set_num_threads(1)
        logging.set_verbosity_error()

    def close(self) -> None: ...

    def renew(self) -> None:
        """Load the models anew: what ``generate()`` keeps between calls, it keeps in them."""
        self.models.clear()

    def load(self, target: str, draft: str, request: eqcheck.Request) -> list[Any]:
        """The two models."""
        return [self._loaded(folder, request.dtype) for folder in (target, draft)]

    def __call__(self, target: str, draft: str, request: eqcheck.Request) -> list[Any]:
        loaded, drafting = self.load(target, draft, request)
        answer = self._switched if request.switch else self._row
        try:
            return [answer(loaded, drafting, request, number) for number in range(len(request.prompts))]
        except Exception:  # an early exit that raises leaves the model with fewer layers
            self.models.clear()
            raise

    @torch.no_grad()
    def _row(self, target: Any, draft: Any, request: eqcheck.Request, number: int) -> list[int]:
        row, prompt = request.rows[number], request.prompts[number]
        if any(tuple(prompt[-n:]) == stop[:n] for stop in row.stop_sequences for n in range(1, len(stop))):
            raise eqcheck.Unsupported("a stop string that may begin in the prompt: there it is matched as well")
        stops = ["".join(f"[{token}]" for token in stop) for stop in row.stop_sequences]  # the tokenizer's texts
        try:
            output = target.generate(
                torch.tensor([prompt]),
                attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
                max_new_tokens=row.max_new_tokens,
                eos_token_id=list(row.eos_token_ids) or None,
                pad_token_id=request.pad_token_id,
                do_sample=False,
                **(
                    {"stopping_criteria": [StopStringCriteria(_Texts(target.config.vocab_size), stops)]}
                    if stops
                    else {}
                ),
                **_scoring(row, prompt, target.config.vocab_size),
                **_drafting(draft, request),
            )
        except ValueError as error:
            if "stateful" in str(error) or "not supported" in str(error):
                raise eqcheck.Unsupported(str(error)) from None
            raise
        new: list[int] = output[0, len(prompt) :].tolist()
        return new

    @torch.no_grad()
    def _switched(self, target: Any, draft: Any, request: eqcheck.Request, number: int) -> eqcheck.Completion:
        """A row with a switch on, with drafts and without: the same call, but for the arguments that speculate."""
        row, prompt = request.rows[number], torch.tensor([request.prompts[number]])
        early = {"assistant_early_exit": 1} if request.switch == "assistant_early_exit" else {}
        answers, margins = list[Any](), list[float]()
        drafts = {} if request.drafting == "none" else early or _drafting(draft, request)
        if request.switch in _OF_DRAFTS and "assistant_model" in drafts:
            setattr(draft.generation_config, request.switch, _OF_DRAFTS[request.switch])
        for drafting in ({}, drafts):
            own = {} if early else _SWITCHES[str(request.switch)](target, prompt)
            given: dict[str, Any] = {"input_ids": prompt, "attention_mask": torch.ones_like(prompt), "do_sample": False}
            given |= {"max_new_tokens": row.max_new_tokens, "eos_token_id": list(row.eos_token_ids) or None}
            given |= {"output_scores": not answers, **own}
            try:
                output = target.generate(
                    **given,
                    pad_token_id=request.pad_token_id,
                    return_dict_in_generate=True,
                    **drafting,
                )
            except Exception as error:
                if answers:
                    raise
                raise eqcheck.Unsupported(f"{request.switch}, without drafts: {error}") from error
            answers.append((output.sequences[0, given["input_ids"].shape[1] :].tolist(), _beside(output, own)))
            if len(answers) == 1:  # the scores were asked for
                margins = [(s.topk(2).values @ torch.tensor([1.0, -1.0])).item() for s in output.scores]
        (alone, own_beside), (tokens, beside) = answers
        return eqcheck.Completion(tokens, beside=beside, alone={"tokens": alone, "margins": margins, **own_beside})

    def _loaded(self, folder: str, dtype: str) -> Any:
        if (folder, dtype) not in self.models:
            model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()
            self.models[folder, dtype] = model
        return self.models[folder, dtype]


_ORIGIN = "https://github.com/huggingface/transformers"
_CLAIMS: dict[str, Any] = {
    "kinds": ("full", "window", "mistral", "hybrid", "qwen3", "moe", "learned", "opt", "mla", "softcap", "sinks"),
    "capabilities": (
        "row-limits",
        "row-eos",
        "min-new-tokens",
        "repetition-penalty",
        "logit-bias",
        "bad-words",
        "allowed-ids",
        "no-repeat-ngram-size",
        "grammar",
        "stop-sequences",
        "ngram",
    ),
    "known": {"options/ignored-option:stop-sequences": STOPS_AT_ROUND_ENDS},
}
in_float32 = eqcheck.decoder(name="transformers_float32", checkpoints=True, origin=_ORIGIN, dtype="float32", **_CLAIMS)(
    Served
)
in_bfloat16 = eqcheck.decoder(
    name="transformers_bfloat16", checkpoints=True, origin=_ORIGIN, dtype="bfloat16", **_CLAIMS
)(Served)
