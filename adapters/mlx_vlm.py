"""mlx-vlm, its batch generator on the CPU package of mlx: speculation with drafts that the request dictates.

The engine takes any object as a drafter, and verifies, commits and rolls back by itself. Its Llama is not among the
targets that it has drafters for: those hand hidden states to their drafter. Here they are zeros, which nobody reads.
A token budget is its chunk of a prompt.
"""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import eqcheck
from eqcheck.contract.decoders import Request


def prepare() -> None:
    """Settings that the engine reads when it is imported."""
    os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")


def start(target: str, draft: str, request: "Request") -> Any:
    """The model as the engine loads it, with hidden states for a drafter."""
    import mlx.core as mx
    from mlx_vlm.models.llama.language import LanguageModel
    from mlx_vlm.utils import load_model

    class Target(LanguageModel):  # type: ignore[misc]
        def __call__(self, *arguments: Any, capture_layer_ids: Any = None, **keywords: Any) -> Any:
            output = super().__call__(*arguments, **keywords)
            if capture_layer_ids is not None:
                output.hidden_states = [mx.zeros((*output.logits.shape[:2], 1))]
            return output

    model = load_model(Path(target)).language_model
    model.__class__ = Target
    return model


class Dictated:
    """A drafter for one request, whose ``outputs`` are what rows have so far; ``proposed`` is what they were given."""

    prefer_requested_block_size = True  # or the engine shortens its blocks where little is accepted

    def __init__(self, request: "Request", outputs: list[list[int]], numbers: dict[int, int]) -> None:
        self.request, self.outputs, self.numbers = request, outputs, numbers
        self.config = SimpleNamespace(target_layer_ids=[0], block_size=request.num_draft_tokens + 1)
        self.accept_lens: list[int] = []
        self.draft_lens: list[int] = []
        self.proposed: list[dict[int, list[int]]] = [{} for _ in outputs]
        self.generator: Any = None

    def reset(self, model: Any) -> Any:
        """Begin with the rows of a new batch; what is returned is the cache of a row that is alone."""
        rows = [self.numbers[uid] for uid in self.generator._generation_batch._all_uids]
        self.caches = iter(rows)
        return rows[0]

    def make_cache(self) -> Any:
        """The cache of a row: its number. It is asked for once per row, in order."""
        return next(self.caches)

    def draft_block(self, bonus: Any, hidden: Any, cache: Any, size: int, sampler: Any, dtype: Any) -> Any:
        """A row's draft tokens, one less than the block."""
        import mlx.core as mx

        count = len(self.outputs[cache])
        tokens = list(self.request.drafts[cache][count : count + size - 1])
        self.proposed[cache][count] = tokens
        return mx.array([tokens], dtype=dtype)

    def rounds(self) -> list[list[Any]]:
        """Return by row: new tokens before each round, tokens proposed, new tokens after it."""
        rounds = []
        for proposed, output in zip(self.proposed, self.outputs, strict=True):
            ends = [*list(proposed)[1:], len(output)]
            rounds.append(
                [[n, tokens, end] for (n, tokens), end in zip(proposed.items(), ends, strict=False) if end > n]
            )
        return rounds


def stopping(eos_token_ids: Any) -> Any:
    """A stand-in for the engine's processor, which is asked only when to stop."""

    class Stop:
        def add_eos_token_ids(self, more: Any) -> None: ...

        def __call__(self, token: int) -> bool:
            return token in eos_token_ids

    return SimpleNamespace(stopping_criteria=Stop())


def decode(model: Any, request: "Request", observed: dict[str, Any] | None = None) -> list[list[int]]:
    """The new tokens of each row; a row that arrives late is handed over after so many steps."""
    import mlx.core as mx
    from mlx_vlm.apc import APCManager
    from mlx_vlm.generate.ar import BatchGenerator

    outputs: list[list[int]] = [[] for _ in request.prompts]
    observed = {} if observed is None else observed
    numbers: dict[int, int] = {}  # of rows, by the engine's
    drafter = Dictated(request, outputs, numbers) if request.drafting == "dictated" else None
    settings: dict[str, Any] = {}
    if drafter:
        block = request.num_draft_tokens + 1
        settings = {"draft_model": drafter, "draft_kind": "dflash", "draft_block_size": block}
    if request.token_budget:
        settings["prefill_step_size"] = request.token_budget
    if request.prefix_caching:  # rows that speculate are not joined by others: only later batches find something
        settings |= {"apc_manager": APCManager(256), "prefill_batch_size": 2}
    generator = BatchGenerator(model, stopping(request.rows[0].eos_token_ids), **settings)
    if drafter:
        drafter.generator = generator
    waiting = sorted(range(len(request.prompts)), key=lambda row: request.rows[row].arrival)
    step = 0
    while waiting or generator.has_work:
        while waiting and (request.rows[waiting[0]].arrival <= step or not generator.has_work):
            row = waiting.pop(0)
            observed["late_rows"] = observed.get("late_rows", 0) + (step > 0)
            prompt = request.prompts[row]
            embedded = [{"inputs_embeds": model.model.embed_tokens(mx.array([prompt]))}]
            (uid,) = generator.insert([prompt], [request.rows[row].max_new_tokens], embedded)
            numbers[uid] = row
        for response in generator.next()[1]:
            if response.token is not None:
                outputs[numbers[response.uid]].append(int(response.token))
        step += 1
    generator.close()
    observed["steps"] = step
    if request.prefix_caching:
        observed["prefix_hits"] = settings["apc_manager"].stats.hits
    if drafter:
        observed["rounds"] = drafter.rounds()
        observed["drafted"] = sum(drafter.draft_lens)
        observed["accepted"] = int(sum(drafter.accept_lens))
    return outputs


@eqcheck.decoder(
    name="mlx_vlm",
    checkpoints=True,
    environment="mlx_vlm",
    dtype="float32",
    capabilities=("only-dictated-drafts", "row-limits", "many-rows", "arrivals", "token-budget", "prefix-caching"),
    origin="https://github.com/Blaizzy/mlx-vlm",
)
class MLXVLM:
    script = (prepare, start, Dictated, stopping, decode)
    requirements = "'mlx[cpu]' mlx-vlm"

    def open(self) -> None:
        prepare()
        import mlx_vlm.version

        self.version = mlx_vlm.version.__version__
        self.models: dict[str, Any] = {}

    def close(self) -> None: ...

    def load(self, target: str, draft: str, request: Request) -> Any:
        """The model."""
        if request.drafting == "model":
            raise eqcheck.Unsupported("a draft model: the engine drafts by heads on hidden states")
        if target not in self.models:
            self.models[target] = start(target, draft, request)
        return self.models[target]

    def __call__(self, target: str, draft: str, request: Request) -> list[list[int]]:
        model = self.load(target, draft, request)
        self.observed: dict[str, Any] = {}
        return decode(model, request, self.observed)
