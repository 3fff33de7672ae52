"""Run both sides of a gate in this process: a model of `transformers` as the plain server, a decoder as the other.

They have the methods of `eqcheck.gate.servers.Server` that a gate uses.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

import torch

from eqcheck.contract.cache_names import cache_argument, cache_of
from eqcheck.contract.decoders import Decoder, Request, RowOptions
from eqcheck.contract.errors import UsageError, one_line
from eqcheck.gate.compared_rows import LIKELIEST, PIECE, Completed, Scored, ServerError, Wanted, as_ids
from eqcheck.gate.servers import SAMPLE_TEXTS
from eqcheck.transparent.truth.rounded import in_pieces

A = TypeVar("A")
PLAIN = "hf:"
NUM_DRAFT_TOKENS = 4


def loaded(folder: Path) -> Any:
    """Load the model of a folder in its stored dtype, on a CUDA device where there is one."""
    from transformers import AutoModelForCausalLM

    if not folder.is_dir():
        raise UsageError(f"{folder}: expected the folder of a model, got {'a file' if folder.exists() else 'none'}")
    try:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto", local_files_only=True)
    except (OSError, ValueError) as error:
        raise UsageError(f"{folder}: no model can be loaded: {one_line(str(error), 200)}") from None
    return model.eval().to("cuda" if torch.cuda.is_available() else "cpu")


class _Local:
    """Decodes batches of ``at_once`` rows; everything else goes one by one."""

    def __init__(self, name: str, role: str, model: Any) -> None:
        self.url = self.model = name
        self.role, self.target, self.likeliest, self.scoring = role, model, LIKELIEST, "forward"
        self.calls = self.retried = 0
        longest = getattr(model.config, "max_position_embeddings", None)
        self.longest = longest if isinstance(longest, int) else None
        ends = model.generation_config.eos_token_id
        self.ends: tuple[int, ...] = tuple(ends) if isinstance(ends, list) else () if ends is None else (ends,)

    def each(self, function: Callable[[A], Any], items: Sequence[A], at_once: int) -> list[Any]:
        """Return the function's value for each item, in order."""
        if function != self.complete:
            return [function(item) for item in items]
        batches: Sequence[Any] = [items[at : at + at_once] for at in range(0, len(items), at_once)]
        return [answer for batch in batches for answer in self.completed(batch)]

    def complete(self, asked: Wanted) -> Completed:
        """Return the row's new tokens."""
        return self.completed([asked])[0]

    def completed(self, asked: Sequence[Wanted]) -> list[Completed]:
        """Return the new tokens of a batch."""
        self.calls += 1
        return [
            Completed(tuple(tokens), self._reason(one, tokens), self._ids(one.prompt))
            for one, tokens in zip(asked, self._decoded(asked), strict=True)
        ]

    def _decoded(self, asked: Sequence[Wanted]) -> Sequence[Sequence[int]]:
        raise NotImplementedError

    def _reason(self, asked: Wanted, tokens: Sequence[int]) -> str:
        return "stop" if tokens and tokens[-1] in (*asked.stops, *self.ends) else "length"

    def _ids(self, prompt: tuple[int, ...] | str) -> tuple[int, ...]:
        if isinstance(prompt, str):
            raise ServerError(f"{self.url}: expected a tokenizer in the folder, or prompts of token ids (--prompts)")
        return prompt

    def tokenized(self, text: str) -> tuple[int, ...] | None:
        """Return no ids: this side cannot tokenize."""
        return None

    def metrics(self) -> Counter[str]:
        """Return no counts."""
        return Counter()

    def in_pieces(self, prompt: Sequence[int], tokens: Sequence[int]) -> list[Scored]:
        """Score some tokens at a time; empty where that is not possible."""
        return []

    def close(self) -> None:
        """Nothing is held."""


class Plain(_Local):
    """A model that decodes without a draft, several rows in a call, and scores rows; so does a draft model."""

    def __init__(self, folder: Path, role: str) -> None:
        from transformers import AutoTokenizer

        super().__init__(f"{PLAIN}{folder}", role, loaded(folder))
        try:
            self._tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        except (OSError, ValueError, KeyError):
            self._tokenizer = None

    def tokenized(self, text: str) -> tuple[int, ...] | None:
        """Return the ids of a text, or None if the folder has no tokenizer."""
        return None if self._tokenizer is None else as_ids(self._tokenizer(text)["input_ids"])

    @torch.no_grad()
    def scored(self, prompt: Sequence[int], tokens: Sequence[int]) -> list[Scored]:
        """Score each token after the prompt and the tokens before it, in one call."""
        if not tokens:
            return []
        known = int(self.target.config.get_text_config().vocab_size)
        if (largest := max(*prompt, *tokens)) >= known:
            raise ServerError(f"{self.url}: expected ids below {known}, got {largest}")
        ids = torch.tensor([[*prompt, *tokens]], device=self.target.device)
        return self._places(tokens, self.target(input_ids=ids).logits[0, len(prompt) - 1 : -1])

    def in_pieces(self, prompt: Sequence[int], tokens: Sequence[int]) -> list[Scored]:
        """Score `PIECE` tokens at a time with a cache; empty where the model takes none."""
        logits = in_pieces(self.target, prompt, tokens, (PIECE,))
        return [] if logits is None else self._places(tokens, logits[len(prompt) - 1 : -1])

    def _places(self, tokens: Sequence[int], logits: torch.Tensor) -> list[Scored]:
        laws = logits.float().log_softmax(-1).cpu()
        best = laws.topk(min(self.likeliest, laws.shape[-1])).indices.tolist()
        places = []
        for token, law, its in zip(tokens, laws, best, strict=True):
            seen = {one: float(law[one]) for one in dict.fromkeys([*its, token])}
            places.append(Scored(token, seen[token], its[0] if seen[token] < seen[its[0]] else token, seen))
        return places

    @torch.no_grad()
    def _decoded(self, asked: Sequence[Wanted]) -> Sequence[Sequence[int]]:
        prompts = [self._ids(wanted.prompt) for wanted in asked]
        width, device = max(map(len, prompts)), self.target.device
        ids = torch.tensor([[0] * (width - len(its)) + list(its) for its in prompts], device=device)
        mask = torch.tensor([[0] * (width - len(its)) + [1] * len(its) for its in prompts], device=device)
        positions, cache, tokens = (mask.cumsum(-1) - 1).clamp(min=0), None, list[list[int]]([] for _ in asked)
        draws = [
            torch.Generator().manual_seed(wanted.seed if wanted.seed is not None else torch.seed()) for wanted in asked
        ]
        while not all(self._ended(*pair) for pair in zip(asked, tokens, strict=True)):
            told = self.target(
                input_ids=ids,
                attention_mask=mask,
                position_ids=positions,
                use_cache=True,
                **cache_argument(self.target, cache),
            )
            cache, scores = cache_of(told), told.logits[:, -1].float().cpu()
            new = [
                _drawn(law, wanted.temperature, draw) for law, wanted, draw in zip(scores, asked, draws, strict=True)
            ]
            for wanted, row, token in zip(asked, tokens, new, strict=True):
                row += [] if self._ended(wanted, row) else [token]
            ids, positions = torch.tensor(new, device=device)[:, None], mask.sum(-1, keepdim=True)
            mask = torch.cat([mask, torch.ones_like(ids)], -1)
        return tokens

    def _ended(self, asked: Wanted, tokens: Sequence[int]) -> bool:
        return len(tokens) >= asked.max_tokens or bool(tokens and tokens[-1] in (*asked.stops, *self.ends))


class Decoding(_Local):
    """A registered decoder (`eqcheck.decoder`) that is handed the model and the draft, or their folders."""

    def __init__(self, decoder: Decoder, role: str, plain: Plain, models: tuple[Any, Any]) -> None:
        super().__init__(decoder.name or role, role, plain.target)
        dtype = str(plain.target.dtype).removeprefix("torch.")
        self._dtype, self._can, self._open = dtype, set(decoder.capabilities), ExitStack()
        self._models = models
        self._generate = self._open.enter_context(decoder.running())

    def close(self) -> None:
        """Shut the decoder down."""
        self._open.close()

    def _decoded(self, asked: Sequence[Wanted]) -> Sequence[Sequence[int]]:
        if any(wanted.temperature for wanted in asked) and "temperature" not in self._can:
            raise UsageError(f"{self.url}: --temperature: the decoder does not declare the capability 'temperature'")
        request = Request(
            [list(self._ids(wanted.prompt)) for wanted in asked],
            max_new_tokens=max(wanted.max_tokens for wanted in asked),
            num_draft_tokens=NUM_DRAFT_TOKENS,
            eos_token_ids=self.ends,
            pad_token_id=0,
            padding_side="left",
            rows=tuple(self._options(asked)) if self._can else (),
            dtype=self._dtype,
        )
        found = [as_ids(list(getattr(row, "tokens", row))) for row in self._generate(*self._models, request)]
        if len(found) != len(asked) or None in found:
            raise ServerError(f"{self.url}: expected {len(asked)} rows of token ids, got {one_line(str(found), 200)}")
        return [self._cut(wanted, row or ()) for wanted, row in zip(asked, found, strict=True)]

    def _options(self, asked: Sequence[Wanted]) -> Iterator[RowOptions]:
        longest = max(wanted.max_tokens for wanted in asked)
        for wanted in asked:
            yield RowOptions(
                wanted.max_tokens if "row-limits" in self._can else longest,
                eos_token_ids=self.ends,
                temperature=wanted.temperature,
                seed=wanted.seed if "seeds" in self._can else None,
                stop_sequences=tuple((stop,) for stop in wanted.stops) if "stop-sequences" in self._can else (),
            )

    def _cut(self, asked: Wanted, tokens: Sequence[int]) -> Sequence[int]:
        """Cut the row at the ends that the decoder has no option for."""
        if "row-limits" not in self._can:
            tokens = tokens[: asked.max_tokens]
        stops = [at + 1 for at, token in enumerate(tokens) if token in asked.stops]
        return tokens[: stops[0]] if stops and "stop-sequences" not in self._can else tokens


def _drawn(scores: torch.Tensor, temperature: float, draw: torch.Generator) -> int:
    if not temperature:
        return int(scores.argmax())
    return int(torch.multinomial((scores / temperature).softmax(-1), 1, generator=draw))


def sides(decoder: Decoder, folder: Path, draft_folder: Path) -> list[Any]:
    """Return decoder, model and draft model; None for a draft that has another vocabulary or does not load alone.

    A decoder that is handed folders may have a draft that `transformers` does not load alone, such as a head.
    """
    if not draft_folder.is_dir():
        raise UsageError(f"--draft {draft_folder}: expected the folder of a draft model")
    plain, draft = Plain(folder, "plain"), None
    try:
        draft = Plain(draft_folder, "draft")
    except UsageError:
        if not decoder.checkpoints:
            raise
    models = (str(folder), str(draft_folder))
    if draft is not None and not decoder.checkpoints:
        models = plain.target, draft.target
    decoding = Decoding(decoder, "speculative", plain, models)
    return [decoding, plain, draft if draft is not None and _same_ids(draft, plain) else None]


def _same_ids(draft: Plain, plain: Plain) -> bool:
    """Return whether texts have the same ids; without a tokenizer, whether vocabularies have the same size."""
    texts = [(draft.tokenized(text), plain.tokenized(text)) for text in SAMPLE_TEXTS]
    if any(None in pair for pair in texts):
        sizes = {side.target.config.get_text_config().vocab_size for side in (draft, plain)}
        return len(sizes) == 1
    return all(one == other for one, other in texts)
