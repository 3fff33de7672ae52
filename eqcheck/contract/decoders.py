"""Define what a decoder is: a function of target, draft and request, registered with `decoder`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import partial
from inspect import Parameter, Signature
from types import MappingProxyType
from typing import Any, Literal

from eqcheck.contract.errors import UsageError, did_you_mean, one_line
from eqcheck.contract.family import CLAIMED as CLAIMED
from eqcheck.contract.family import FAMILIES as FAMILIES
from eqcheck.contract.kinds import FINGERPRINTS
from eqcheck.contract.options import ORDER, check_claims
from eqcheck.contract.options import RowOptions as RowOptions
from eqcheck.contract.requirements import REQUIREMENTS as REQUIREMENTS
from eqcheck.contract.requirements import checked
from eqcheck.contract.trees import Nodes

PaddingSide = Literal["left", "right"]
PADDING_SIDES = ("left", "right")
# A new state is drawn in `eqcheck.transparent.drawing`; `eqcheck.transparent.attribution.declarations` checks that a
# decoder heeds it.
CACHE_STATES = {
    "empty": "caches start empty",
    "pads-huge": "cache entries of padding hold huge values",
    "pads-nan": "cache entries of padding hold NaN",
    "wrapped": "prompts are longer than the attention window (family window)",
    "chunked": "prompts are prefilled in chunks of at most `prefill_chunk` tokens",
    "prefix": "caches come with the prompts' common prefix already prefilled",
    "preallocated": "caches come preallocated, with garbage after their valid part",
    "late-rows": "rows join while others are being decoded",
    "tree": "draft tokens of a round form a tree",
}
POISONED = ("pads-huge", "pads-nan")  # only a `HashLM` can write these, no real model
TAKEN = ("empty", "pads-huge", "pads-nan", "wrapped")  # states that need no code in a decoder
# A new capability gates what `eqcheck.engines.drawing` draws; one of a row is a field of `RowOptions`, too.
CAPABILITIES = {
    "row-limits": "each row has its own max_new_tokens",
    "row-eos": "each row has its own EOS ids",
    "min-new-tokens": "min_new_tokens masks the EOS until a row has that many new tokens",
    "repetition-penalty": "repetition_penalty scales the logits of tokens in prompt and output",
    "presence-penalty": "presence_penalty is subtracted from the logits of tokens in the output",
    "frequency-penalty": "frequency_penalty is subtracted once per occurrence of a token in the output",
    "logit-bias": "logit_bias is added to the logits of given tokens",
    "bad-words": "bad_words, tokens or sequences of tokens, never occur in the output",
    "allowed-ids": "allowed_ids restricts the output to a list of tokens",
    "no-repeat-ngram-size": "no_repeat_ngram_size forbids an n-gram to occur twice in prompt and output",
    "grammar": "the output follows a grammar over token ids, and a row ends only where the grammar allows it",
    "many-rows": "batches of up to 128 rows",
    "arrivals": "requests arrive while others run",
    "token-budget": "a limit on the tokens computed per engine step",
    "prefix-caching": "cached prefixes are shared between requests, also with earlier ones",
    "kv-blocks": "a KV cache so small that rows are preempted",
    "ngram": "draft tokens are looked up in the row itself (prompt lookup); a round may have none",
    "dictated-drafts": "the request can name the draft tokens",
    "only-dictated-drafts": "the request always names the draft tokens",
    "silent-rounds": "a round may have no dictated drafts: those of a row end before a -1",
    "no-drafts": "the engine never drafts",
    "temperature": "each row has its own temperature; 0 is greedy",
    "top-k": "sampled rows have top_k",
    "top-p": "sampled rows have top_p",
    "min-p": "sampled rows have min_p",
    "seeds": "sampled rows can have a seed",
    "n": "a request can have several outputs: rows with the same prompt and options",
    "stop-sequences": "a row ends as soon as its output ends with one of its stop sequences",
    "finish-reason": "each row is returned with its finish reason",
    "cancel": "a row can be cancelled after a number of new tokens",
    "logprobs": "rows can be returned with the log-probability of each new token",
    "prompt-logprobs": "rows can be returned with the log-probability of each prompt token",
}
DRAFTING = ("model", "ngram", "dictated", "none")
SETTINGS = ("num_draft_tokens", "drafting", "token_budget", "kv_blocks", "prefix_caching", "switch")
"""Fields of a request that an engine may have to be restarted for."""


@dataclass
class Request:
    """Hold the input of one decode: prompts, limits, and how to draft.

    ``prompts`` are token ids, one list per row. Each row gets at most ``max_new_tokens`` new tokens and ends at its
    first token in ``eos_token_ids``. ``num_draft_tokens`` is K. ``pad_token_id`` can be any token, also an EOS or one
    that occurs in prompts, so never use it to tell padding from tokens.

    Fields for decoders that declare a cache state; eqcheck checks in the trace that they are obeyed:

    - ``prefill_chunk`` (``chunked``): feed at most this many prompt tokens of a row per target call.
    - ``prefix_length`` (``prefix``): ``target_cache`` and ``draft_cache`` hold one row with this many tokens, which all
      prompts share; do not feed them to the target again.
    - ``target_cache``, ``draft_cache`` (``preallocated``): they hold a row per prompt and no tokens.
      ``layers[i].keys`` is None until the first call; after it there are spare slots after the ``get_seq_length()``
      valid ones. Pass the cache to the target, or a copy.
    - ``arrivals`` (``late-rows``): feed row i only after this many target calls, or once no other row is running.
    - ``tree`` (``tree``): ``tree[i][n]`` are the nodes that row i verifies in its round n, each with its parent and its
      rank among the draft's choices there (`eqcheck.contract.trees`). Later rounds repeat the last tree. If there is
      none, or it is empty, build your own of at most ``num_draft_tokens`` nodes.

    Fields for engines that load a checkpoint (``checkpoints=True``; target and draft are then two folders): ``rows``,
    ``dtype``, ``drafting`` (one of `DRAFTING`; ``none``: no drafts), ``token_budget``, ``kv_blocks`` (of 32 tokens),
    ``prefix_caching`` and ``switch`` (one of `Hooks.switches`). None means the engine's default. If drafting is
    ``dictated``, row ``i`` with ``n`` new tokens gets the draft tokens ``drafts[i][n : n + K]``; where one of them is
    -1, only those before it, which may be none. Only a decoder with the capability ``silent-rounds`` gets such ones.

        >>> request = Request([[5, 7], [9]], max_new_tokens=6, num_draft_tokens=3, eos_token_ids=(0,), pad_token_id=0,
        ...                   padding_side="left")
        >>> [len(prompt) for prompt in request.prompts]
        [2, 1]
    """

    prompts: list[list[int]]
    max_new_tokens: int
    num_draft_tokens: int
    eos_token_ids: tuple[int, ...]
    pad_token_id: int
    padding_side: PaddingSide
    prefill_chunk: int | None = None
    prefix_length: int = 0
    target_cache: Any = None
    draft_cache: Any = None
    arrivals: tuple[int, ...] = ()
    rows: tuple[RowOptions, ...] = ()
    drafting: str = "model"
    token_budget: int | None = None
    kv_blocks: int | None = None
    prefix_caching: bool | None = None
    drafts: tuple[tuple[int, ...], ...] = ()
    tree: tuple[tuple[Nodes, ...], ...] = ()
    dtype: str = "float32"
    switch: str | None = None


DTYPES = ("float64", "float32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2")
"""Dtypes of decoders that are judged by their tokens."""

Generate = Callable[[Any, Any, Request], Any]
Inside = Callable[[], AbstractContextManager[Any]]


class Hooks:
    """List the optional members of a decoder class, with their defaults.

    - ``open()`` starts the engine, ``close()`` shuts it down, ``renew()`` restarts it.
    - ``version`` is the engine's version, set by ``open()``; ``note`` is printed in reports.
    - ``load(target, draft, request)`` loads what a request with these folders and settings needs. It runs before each
      request, with its own time limit. If it raises, this request and those like it are declined.
    - ``observed`` holds, after each request, what the engine counted: ``drafted``, ``accepted``, ``preemptions``,
      ``prefix_hits``, ``late_rows``; optionally ``accepted_of_rows``, and ``rounds``: for each row a list of
      (new tokens before the round, dictated tokens proposed, new tokens after it). An engine that is read from inside
      adds ``contexts``, the number of queries read, and ``wrong_context``, the fingerprint and description of the first
      query with a wrong position, mask or cache entry.
    - ``script`` are the functions that drive the engine in standalone scripts: ``prepare()``, ``start(target, draft,
      request)``, ``decode(engine, request)`` and their helpers. ``requirements`` are the packages to install.
    - ``switches`` are names of engine options that the target cannot judge. With one on, return `Completion.alone`, the
      engine's own output without speculation.

        >>> Hooks().version, Hooks().requirements
        ('', 'the engine')
    """

    version: str = ""
    note: str = ""
    observed: Mapping[str, Any] = MappingProxyType({})
    script: tuple[Callable[..., Any], ...] = ()
    requirements: str = "the engine"
    switches: tuple[str, ...] = ()

    def open(self) -> None: ...

    def close(self) -> None: ...

    def load(self, target: Any, draft: Any, request: Request) -> object: ...


def hook(engine: Any, name: str) -> Any:
    """Return a member of `Hooks` of a decoder, or its default.

    >>> hook(object(), "note")
    ''
    """
    return getattr(engine, name, getattr(Hooks, name))


@dataclass(frozen=True)
class Decoder:
    """Hold a registered decoder; call it with ``(target, draft, request)`` to decode one request.

    ``function`` is the decorated function, or a class whose instances are called and which may have the members of
    `Hooks`. The other fields up to ``option_order`` are the keywords of `decoder`, what the decoder declares:

    - ``padding_sides``, ``families`` and ``cache_states`` (of `CACHE_STATES`, see `Request`) it supports;
    - ``requires``: what it needs of every request (`REQUIREMENTS`, or ``id-N-not-in-prompt`` for a token N); other
      cases are not drawn. If only the decoder can tell, raise `eqcheck.Unsupported` with the reason;
    - ``known``: known violations by fingerprint, each with a link; ``origin``, ``version`` and ``note`` are printed;
    - ``engine``: what `python -m benchmarks` times: called with ``(target, draft, num_draft_tokens=, batch_size=)``, it
      returns an object with the ``stream``, ``busy`` and ``stats`` of `eqcheck.reference_impls.serving.Engine`;
    - ``checkpoints=True``: an engine that loads checkpoints; it gets folders and is judged by its tokens only.
      ``dtype`` is what it computes in, one of `DTYPES` (default float32; float64 for other decoders), ``kinds`` are the
      built checkpoints it can load (`eqcheck checkpoint list`), ``environment`` is the environment it runs in;
    - ``capabilities``: those of `CAPABILITIES` it supports. For a decoder that samples, ``seeds`` is its promise for
      seeded rows (`eqcheck.contract.options.SEEDS`), ``option_order`` the order in which it applies sampling options
      (default `eqcheck.contract.options.ORDER`), and ``lossless`` a reason if it changes the target's distribution on
      purpose.

    ``spec`` is the spec it was loaded by; ``inside()`` is the context its code runs in. Raises `UsageError` for a
    keyword with an impossible value.

        >>> from eqcheck import load
        >>> load("hf_pr").padding_sides, load("hf_pr").families
        (('left',), ('rotary', 'learned'))
    """

    name: str
    function: Any
    padding_sides: tuple[PaddingSide, ...] = ("left",)
    families: tuple[str, ...] = CLAIMED
    cache_states: tuple[str, ...] = TAKEN
    requires: tuple[str, ...] = ()
    known: Mapping[str, str] = field(default_factory=dict)
    origin: str = ""
    version: str = ""
    note: str = ""
    engine: Any = None
    checkpoints: bool = False
    capabilities: tuple[str, ...] = ()
    dtype: str = ""
    kinds: tuple[str, ...] = ("full",)
    environment: str = ""
    seeds: str = "none"
    lossless: bool | str = True
    option_order: tuple[str, ...] = ORDER
    spec: str = ""
    inside: Inside = field(default=nullcontext, repr=False, compare=False)

    def __post_init__(self) -> None:
        keep = partial(object.__setattr__, self)  # the class is frozen
        keep("requires", checked(self.requires))
        for claim, allowed in _CHOICES.items():
            given = getattr(self, claim)
            if isinstance(given, str) or not (given or claim == "capabilities"):
                raise UsageError(f"{claim}: expected a tuple with some of {allowed}, got {given!r}")
            for choice in given:
                if choice not in allowed:
                    hint = did_you_mean(choice, allowed)
                    raise UsageError(f"{claim}: expected some of {allowed}, got {choice!r}{hint}")
            keep(claim, tuple(given))
        keep("dtype", self.dtype or ("float32" if self.checkpoints else "float64"))
        if self.dtype not in DTYPES:
            raise UsageError(f"dtype: expected one of {DTYPES}, got {self.dtype!r}{did_you_mean(self.dtype, DTYPES)}")
        if isinstance(self.kinds, str) or not self.kinds or not all(isinstance(kind, str) for kind in self.kinds):
            raise UsageError(f"kinds: expected a tuple of names from `eqcheck checkpoint list`, got {self.kinds!r}")
        keep("kinds", tuple(self.kinds))
        check_claims(self.capabilities, self.seeds, self.lossless, self.option_order)
        keep("option_order", tuple(self.option_order))
        keep("known", dict(self.known or {}))
        for fingerprint in self.known:
            if fingerprint.partition(":")[0] not in FINGERPRINTS:
                hint = did_you_mean(fingerprint, FINGERPRINTS)
                raise UsageError(f"known: there is no violation {fingerprint!r}{hint}")

    def __call__(self, target: Any, draft: Any, request: Request) -> Any:
        with self.running() as generate:
            return generate(target, draft, request)

    @contextmanager
    def running(self) -> Iterator[Generate]:
        """Start the decoder, yield a function that decodes one request, and shut the decoder down."""
        if not isinstance(self.function, type):
            yield self._within(self.function)
            return
        with self.inside():
            instance = self.function()
            getattr(instance, "open", lambda: None)()
        try:
            yield self._within(instance)
        finally:
            with self.inside():
                getattr(instance, "close", lambda: None)()

    def _within(self, generate: Any) -> Any:
        return generate if self.inside is nullcontext else _Within(self.inside, generate)

    def named(self, spec: str) -> Decoder:
        """The same decoder, remembering the spec by which it was found."""
        return replace(self, spec=spec)


class _Within:
    """A decoder's function, called in its context; its other attributes are those of the function it wraps."""

    def __init__(self, inside: Inside, generate: Any) -> None:
        self._inside, self._generate = inside, generate

    def __call__(self, target: Any, draft: Any, request: Request) -> Any:
        with self._inside():
            return self._generate(target, draft, request)

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)["_generate"], name)


def decoder(*, name: str | None = None, **claims: Any) -> Callable[[Any], Decoder]:
    """Register a function (or a class with ``__call__``) as a decoder; keywords are the fields of `Decoder`.

        >>> @decoder(name="mine", padding_sides=("left", "right"))
        ... def generate(target, draft, request):
        ...     return [[] for prompt in request.prompts]
        >>> generate.name
        'mine'

    The function takes ``(target, draft, request)`` and returns the new token ids of each row, in request order,
    as ``list[list[int]]``: without the prompt, with the EOS that ended the row, nothing after it, no padding. Before a
    sampled case the global generators of Python, numpy and torch get a fresh seed; a decoder with its own generator
    must seed it from one of them. Raises `UsageError` for an unknown keyword or an impossible value.

        >>> decoder(familys=("rotary",))
        Traceback (most recent call last):
        eqcheck.contract.errors.UsageError: familys: no decoder claims that; did you mean 'families'?
    """
    for claim in claims:
        if claim not in _CLAIMS:
            raise UsageError(f"{claim}: no decoder claims that{did_you_mean(claim, _CLAIMS)}")
    Decoder("", None, **claims)  # a wrong claim is told where it is made

    def register(function: Any) -> Decoder:
        bases = function.__mro__ if isinstance(function, type) else ()
        if not (any("__call__" in vars(base) for base in bases) if bases else callable(function)):
            raise UsageError(f"expected a function or a class with __call__, got {function!r}")
        called = name or str(getattr(function, "__name__", type(function).__name__))
        if called != one_line(called, 100):
            raise UsageError(f"name: expected one line of at most 100 printable characters, got {called[:200]!a}")
        return Decoder(called, function, **claims)

    return register


_CHOICES = {
    "padding_sides": PADDING_SIDES,
    "families": FAMILIES,
    "cache_states": tuple(CACHE_STATES),
    "capabilities": tuple(CAPABILITIES),
}
_CLAIMS = tuple(claim.name for claim in fields(Decoder) if claim.name not in ("name", "function", "spec", "inside"))
# `help(decoder)` and editors show every claim with its default, which is written once, in `Decoder`.
decoder.__signature__ = Signature(  # type: ignore[attr-defined]
    [
        Parameter("name", Parameter.KEYWORD_ONLY, default=None),
        *(
            Parameter(claim.name, Parameter.KEYWORD_ONLY, default=None if claim.default is MISSING else claim.default)
            for claim in fields(Decoder)
            if claim.name in _CLAIMS
        ),
    ]
)
