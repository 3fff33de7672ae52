"""A pair of OpenAI-compatible completions servers, one that speculates and one that does not.

Both serve folders of ``eqcheck checkpoint write full DIR --draft DRAFT --agreement 0.75 --dtype bfloat16``.
``EQCHECK_SPECULATIVE_URL`` and ``EQCHECK_PLAIN_URL`` say where they are (``http://127.0.0.1:8000/v1``),
``EQCHECK_API_KEY`` the key, if they want one. ``EQCHECK_CHECKPOINT`` names the checkpoint, ``full`` by default, and
``EQCHECK_DTYPE`` the dtype in which the servers compute, float32 by default. Sampled rows need the random checkpoint:
with ``EQCHECK_CHECKPOINT=random`` the servers serve the folders that ``python -m eqcheck.engines.checkpoints.folders``
names.

The rows of a case are sent at the same time. Prompts are token ids, and the servers have to return token ids. A
sampled row is taken to be divided by its temperature first, then cut by top_k, then by top_p. A server draws from
random numbers of its own: a case that is decoded again gives other tokens.
"""

import json
import os
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any

import eqcheck
from eqcheck.contract.decoders import DTYPES, Request, RowOptions
from eqcheck.contract.errors import UsageError, did_you_mean

_TIMEOUT_S = 300
_RANDOM = "random"
_SAMPLING = ("temperature", "top-k", "top-p", "seeds")


def _served() -> str:
    """The checkpoint that the servers serve, as the environment names it."""
    from eqcheck.engines.construction.layouts import LAYOUTS

    name, names = os.environ.get("EQCHECK_CHECKPOINT") or "full", (*LAYOUTS, _RANDOM)
    if name not in names:
        raise UsageError(
            f"EQCHECK_CHECKPOINT: expected one of {', '.join(names)}, got {name!r}{did_you_mean(name, names)}"
        )
    return name


def _dtype() -> str:
    """The dtype in which the servers compute, as the environment names it."""
    name = os.environ.get("EQCHECK_DTYPE") or "float32"
    if name not in DTYPES:
        raise UsageError(
            f"EQCHECK_DTYPE: expected one of {', '.join(DTYPES)}, got {name!r}{did_you_mean(name, DTYPES)}"
        )
    return name


@eqcheck.decoder(
    name="openai_http",
    checkpoints=True,
    dtype=_dtype(),
    kinds=("llama",) if _served() == _RANDOM else (_served(),),
    capabilities=(
        "row-limits",
        "row-eos",
        "finish-reason",
        "logprobs",
        *(() if _served() == _RANDOM else ("stop-sequences",)),
        "min-new-tokens",
        "repetition-penalty",
        "presence-penalty",
        "frequency-penalty",
        "logit-bias",
        "many-rows",
        *(_SAMPLING if _served() == _RANDOM else ()),
    ),
    origin="https://platform.openai.com/docs/api-reference/completions",
)
class OpenAIServers:
    def open(self) -> None:
        self.urls = {plain: os.environ.get(name, "").rstrip("/") for plain, name in _URLS.items()}
        if not self.urls[False]:
            raise ValueError(
                f"{_URLS[False]}: expected the URL of the speculative server, such as http://127.0.0.1:8000/v1"
            )
        self.version = _models(self.urls[False])
        if (served := _served()) != _RANDOM:
            _check(self.urls[True] or self.urls[False], served)

    def __call__(self, target: str, draft: str, request: Request) -> list[eqcheck.Completion]:
        plain = request.drafting == "none"
        url = self.urls[plain]
        if not url:
            raise eqcheck.Unsupported(f"there is no plain server: {_URLS[True]} is not set")
        if any(row.eos_token_ids for row in request.rows) and not _honours_stop(url):
            raise eqcheck.Unsupported(f"{url} does not honour stop_token_ids")
        if any(row.top_k for row in request.rows) and not _honours_top_k(url):
            raise eqcheck.Unsupported(f"{url} does not honour top_k")
        if any(row.stop_sequences for row in request.rows) and not _keeps_stop(url):
            raise eqcheck.Unsupported(
                f"{url} does not return the tokens of a stop (asked for include_stop_str_in_output)"
            )
        with ThreadPoolExecutor(len(request.prompts)) as pool:
            return list(pool.map(lambda pair: _completion(url, *pair), zip(request.prompts, request.rows, strict=True)))


_URLS = {False: "EQCHECK_SPECULATIVE_URL", True: "EQCHECK_PLAIN_URL"}


def _check(url: str, name: str) -> None:
    """Raise unless the server knows the first token after one of a few prompts: else it serves something else."""
    from eqcheck.checkpoints import built

    prompts = ([1, 2, 3], [40], [7, 200, 9, 30], [250, 3])
    answers = [_complete(url, prompt, RowOptions(1)) for prompt in prompts]
    if not any(answer == [built(name).next(prompt)] for prompt, answer in zip(prompts, answers, strict=True)):
        raise RuntimeError(
            f"{url}: expected a server of the checkpoint {name}, it knows the first token after none of "
            f"{len(prompts)} prompts; serve the folder that `eqcheck checkpoint write {name} FOLDER` writes, "
            "or name another with EQCHECK_CHECKPOINT"
        )


def _complete(url: str, prompt: list[int], row: RowOptions) -> list[int]:
    """The new tokens of one prompt."""
    return list(_completion(url, prompt, row).tokens)


def _completion(url: str, prompt: list[int], row: RowOptions) -> eqcheck.Completion:
    """The new tokens of one prompt, with their end and counts as the server tells them."""
    body: dict[str, Any] = {
        "model": _model(url),
        "prompt": prompt,
        "max_tokens": row.max_new_tokens,
        "temperature": row.temperature,
        "ignore_eos": True,
        "logprobs": 1,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
    }
    if row.eos_token_ids:
        body["stop_token_ids"] = list(row.eos_token_ids)
    for name, key, default in (
        ("min_new_tokens", "min_tokens", 0),
        ("repetition_penalty", "repetition_penalty", 1.0),
        ("presence_penalty", "presence_penalty", 0.0),
        ("frequency_penalty", "frequency_penalty", 0.0),
        ("top_p", "top_p", 1.0),
        ("top_k", "top_k", 0),
        ("seed", "seed", None),
    ):
        if getattr(row, name) != default:
            body[key] = getattr(row, name)
    if row.logit_bias:
        body["logit_bias"] = {str(token): bias for token, bias in row.logit_bias}
    texts = {"".join(f"[{token}]" for token in stop): stop for stop in row.stop_sequences}  # of a built checkpoint
    if texts:
        body |= {"stop": list(texts), "include_stop_str_in_output": True, "skip_special_tokens": False}
    answer = _call(f"{url}/completions", body)
    choice = answer["choices"][0]
    told = {
        "finish_reason": reason if (reason := choice.get("finish_reason")) in ("stop", "length") else None,
        "stop": texts.get(choice.get("stop_reason")),
        "usage": answer.get("usage"),
    }
    if row.logprobs:
        told["logprobs"] = (choice.get("logprobs") or {}).get("token_logprobs")
    if choice.get("token_ids") is not None:
        return eqcheck.Completion(list(choice["token_ids"]), **told)
    tokens = (choice.get("logprobs") or {}).get("tokens") or []
    if tokens and all(token.startswith("token_id:") for token in tokens):
        return eqcheck.Completion([int(token.partition(":")[2]) for token in tokens], **told)
    raise eqcheck.Unsupported(f"{url} returns text without token ids (asked for return_token_ids and for logprobs)")


@lru_cache
def _honours_stop(url: str) -> bool:
    """Return whether the server stops at a token id, which is not part of the OpenAI interface."""
    free = _complete(url, [1, 2, 3], RowOptions(4))
    stopped = _complete(url, [1, 2, 3], RowOptions(4, tuple(free[1:2])))
    return len(free) == 4 and stopped == free[: free.index(free[1]) + 1]


@lru_cache
def _keeps_stop(url: str) -> bool:
    """Return whether the server ends at a stop string and returns its tokens, which the OpenAI interface leaves out."""
    free = _complete(url, [1, 2, 3], RowOptions(4))
    stopped = _complete(url, [1, 2, 3], RowOptions(4, stop_sequences=(tuple(free[1:3]),)))
    return len(free) == 4 and stopped == free[:3]


@lru_cache
def _honours_top_k(url: str) -> bool:
    """Return whether the server cuts to the likeliest tokens, which is not part of the OpenAI interface."""
    greedy = _complete(url, [1, 2, 3], RowOptions(8))
    return _complete(url, [1, 2, 3], RowOptions(8, temperature=1.0, top_k=1)) == greedy


@lru_cache
def _model(url: str) -> str:
    return str(_call(f"{url}/models")["data"][0]["id"])


def _models(url: str) -> str:
    """Return the models that the server lists, and who owns them."""
    served = _call(f"{url}/models")
    if not (isinstance(served, dict) and served.get("data")):
        raise RuntimeError(f"{url}/models: expected a list of models in 'data', got {served!r:.200}")
    first = served["data"][0]
    return f"{first.get('owned_by', 'server')} {first['id']}"


def _call(url: str, payload: dict[str, Any] | None = None) -> Any:
    headers = {
        "Content-Type": "application/json",
        "Authorization": f"Bearer {os.environ.get('EQCHECK_API_KEY', 'none')}",
    }
    body = None if payload is None else json.dumps(payload).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=_TIMEOUT_S) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        if error.code == 400 and "logit_bias" in (payload or {}):  # such as vLLM's, where it speculates
            raise eqcheck.Unsupported(f"{url} refuses a logit bias") from error
        raise RuntimeError(f"{url}: {error.code} {error.read().decode(errors='replace')[:500]}") from error
    except (OSError, ValueError) as error:
        raise RuntimeError(f"{url}: expected an OpenAI-compatible server that answers in JSON, got {error}") from error
