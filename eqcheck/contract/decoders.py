"""A decoder: a function of target, draft and request, registered with `decoder`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import partial
from inspect import Parameter, Signature
from types import MappingProxyType
from typing import Any, Literal

from eqcheck.contract.errors import UsageError, did_you_mean
from eqcheck.contract.escaping import one_line
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
CACHE_STATES = {
    "empty": "caches are empty at the start",
    "pads-huge": "what the models write for pads is huge",
    "pads-nan": "what the models write for pads is NaN",
    "wrapped": "prompts are longer than the attention window (family window)",
    "chunked": "prompts are to be prefilled in chunks of `prefill_chunk` tokens",
    "prefix": "a prefilled cache of the prompts' common beginning is handed over",
    "preallocated": "caches with garbage behind their valid part are handed over",
    "late-rows": "rows join while others are being decoded",
    "tree": "the draft tokens of a round are a tree",
}
POISONED = ("pads-huge", "pads-nan")  # what a `HashLM` can be told to write, and no real model
TAKEN = ("empty", "pads-huge", "pads-nan", "wrapped")  # states that ask nothing of a decoder
CAPABILITIES = {
    "row-limits": "rows have limits of their own",
    "row-eos": "rows have EOS ids of their own",
    "min-new-tokens": "a row may not end before so many new tokens",
    "repetition-penalty": "logits of tokens in prompt and output are divided (or, below zero, multiplied) by a number",
    "presence-penalty": "a number is taken from the logits of tokens in the output",
    "frequency-penalty": "a number is taken from the logits of tokens in the output, as often as they are there",
    "logit-bias": "numbers are added to the logits of tokens",
    "bad-words": "new tokens may not contain certain tokens, or certain sequences of them",
    "allowed-ids": "new tokens are all from a list",
    "no-repeat-ngram-size": "no so many tokens in a row may occur twice in prompt and output",
    "grammar": "new tokens follow a grammar over token ids, and a row ends where that lets it end",
    "many-rows": "up to 128 rows",
    "arrivals": "rows are handed over while others run",
    "token-budget": "a step of the engine computes at most so many tokens",
    "prefix-caching": "caches of common beginnings are shared, also with earlier requests",
    "kv-blocks": "the KV cache holds so few blocks that rows have to be preempted",
    "ngram": "draft tokens are looked up in the row itself, and there may be none",
    "dictated-drafts": "draft tokens are those that the request names",
    "only-dictated-drafts": "draft tokens are always those that the request names",
    "no-drafts": "the engine never drafts",
    "temperature": "rows are sampled, each at a temperature of its own; at 0 a row is greedy",
    "top-k": "a sampled row is cut to its so many likeliest tokens",
    "top-p": "a sampled row is cut to the likeliest tokens that reach a share together",
    "min-p": "a sampled row is cut to tokens not below a share of the likeliest one",
    "seeds": "a sampled row may have a seed",
    "n": "a request may have several answers: rows side by side with the same prompt and options",
    "stop-sequences": "a row ends where its new tokens end with one of its stop sequences",
    "finish-reason": "rows are returned with why they ended",
    "cancel": "a row may be cancelled when it has so many new tokens",
    "logprobs": "a row that asks for it is returned with the log-probability of each new token",
    "prompt-logprobs": "a row that asks for it is returned with the log-probability of each token of its prompt",
}
DRAFTING = ("model", "ngram", "dictated", "none")
SETTINGS = ("num_draft_tokens", "drafting", "token_budget", "kv_blocks", "prefix_caching", "switch")
"""The fields of a request that an engine may have to be started with."""


@dataclass
class Request:
    """The order for one decode: prompts, limits, and how to draft.

    ``prompts`` are token ids, one list per row; every row gets at most ``max_new_tokens`` new tokens and ends at
    its first token in ``eos_token_ids``; ``num_draft_tokens`` is K. ``pad_token_id`` may be any token, also one
    that occurs in prompts or is an EOS: nothing about a row may be read off it.

    The other fields are set only for decoders that declare the cache state, and are to be heeded: the trace is held
    against them. ``prefill_chunk`` (``chunked``): feed at most so many prompt tokens of a row in one target call.
    ``prefix_length`` (``prefix``): ``target_cache`` and ``draft_cache`` hold one row with the first so many tokens,
    which all prompts share; do not feed the target these again. Under ``preallocated`` the two hold a row per prompt
    and no token yet; their ``layers[i].keys`` are None until the first call, and then have spare slots behind the
    ``get_seq_length()`` valid ones; let the target write into its own, or into a copy. ``arrivals`` (``late-rows``):
    row i may be fed only after that many target calls, or when no other row is left to be decoded. ``tree`` (``tree``):
    ``tree[i][n]`` are the nodes that row i verifies in its round n, each its parent and its rank among the draft's
    choices there (`eqcheck.contract.trees`); behind the last round named its tree stays; where none is, or it is empty,
    the decoder makes one of at most ``num_draft_tokens`` nodes.

    Engines that load a checkpoint (``checkpoints=True``) get two folders as target and draft and read ``rows``,
    ``dtype``, ``drafting`` (one of `DRAFTING`; ``none``: no drafts), ``token_budget``, ``kv_blocks`` (of 32 tokens),
    ``prefix_caching`` and ``switch``, one of `Hooks.switches`; the last four mean the engine's own default where they
    are None. Where drafting is ``dictated``, row ``i`` with ``n`` new tokens gets the drafts ``drafts[i][n : n + K]``.

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
"""What a decoder judged by its tokens may compute in."""

Generate = Callable[[Any, Any, Request], Any]
Inside = Callable[[], AbstractContextManager[Any]]


class Hooks:
    """Optional members of a decoder class beside ``__call__``, with their defaults.

    ``open()`` sets it up, ``close()`` shuts it down, ``renew()`` makes it new. Then ``version`` is what the engine
    calls itself, and ``note`` is printed in reports. ``load(target, draft, request)`` makes ready what a request with
    these folders and settings needs, if it is not: it comes before each request, has a limit of its own, and takes no
    time of a case. Whatever it raises declines the request, and those like it. After each request, ``observed`` holds
    what the engine counted (``drafted``, ``accepted``, ``preemptions``, ``prefix_hits``, ``late_rows``), and if it
    tells them ``accepted_of_rows`` and ``rounds``: by row, each as new tokens before it, the dictated tokens proposed,
    new tokens after it. An engine that is read from inside tells in ``contexts`` how many queries were read, and in
    ``wrong_context`` the first one that saw something wrong: a fingerprint, and what it was. For scripts that show
    it with the engine alone, the class has in ``script`` the functions that drive it (``prepare()``, ``start(target,
    draft, request)``, ``decode(engine, request)`` and what they need) and in ``requirements`` the packages to install.
    ``switches`` are names of what no target can be asked about; with one on, `Completion.alone` is to be told.

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
    """A member of `Hooks` of a decoder, or its default.

    >>> hook(object(), "note")
    ''
    """
    return getattr(engine, name, getattr(Hooks, name))


@dataclass(frozen=True)
class Decoder:
    """A registered decoder; calling it decodes one request.

    ``function`` is the decorated function, or a class whose instances are called and which may be an `Hooks`. The
    other fields up to ``option_order`` are the claims that `decoder` takes:

    - ``padding_sides``, ``families`` and ``cache_states`` (of `CACHE_STATES`, see `Request`) that it takes;
    - ``requires``: its needs of every request (`REQUIREMENTS`, or ``id-N-not-in-prompt`` for an id N); other cases are
      not drawn. A need that only the decoder can tell it declines by raising `eqcheck.Unsupported` with the reason;
    - ``known``: known violations by fingerprint, each with a link; ``origin``, ``version`` and ``note`` are printed;
    - ``engine``: the engine that `eqcheck bench` times, at any batch size and with prompts that arrive one by one:
      called with ``(target, draft, num_draft_tokens=, batch_size=)``, it returns an object with the ``stream``,
      ``busy`` and ``stats`` of `eqcheck.reference_impls.serving.Engine`;
    - ``checkpoints=True``: an engine that loads checkpoints; it is handed folders, and judged by its tokens alone.
      ``dtype`` is that in which it computes, one of `DTYPES` (by default float32 then, and float64 otherwise),
      ``kinds`` are the built checkpoints that it loads (`eqcheck checkpoint list`), ``environment`` the environment of
      its own in which it runs;
    - ``capabilities``: those of `CAPABILITIES` that it has. Of a decoder that samples, ``seeds`` is its promise for a
      row with a seed (`eqcheck.contract.options.SEEDS`), ``option_order`` the order of its options (`ORDER` there),
      and ``lossless`` the reason why it does not draw from the target's law, where it means not to.

    ``spec`` names it again; ``inside()`` is its code's context. Raises `UsageError` for a claim that cannot be meant.

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
        """Set the decoder up, yield what decodes one request, and shut it down."""
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
    """Register a function (or a class with ``__call__``) as a decoder; the claims are the fields of `Decoder`.

        >>> @decoder(name="mine", padding_sides=("left", "right"))
        ... def generate(target, draft, request):
        ...     return [[] for prompt in request.prompts]
        >>> generate.name
        'mine'

    The function takes ``(target, draft, request)`` and returns the new token ids of each row, in request order,
    as ``list[list[int]]``: without the prompt, with the EOS that ended the row, nothing after it, no pads. Before a
    sampled case, Python's, numpy's and torch's global generators are given a fresh seed in its process; a decoder with
    a generator of its own has to seed it from there. Raises `UsageError` for a claim that does not exist, or one that
    cannot be meant.

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
