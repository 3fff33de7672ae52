"""A row of a server: as it is asked for, as it is answered, and as the referee sees it."""

from __future__ import annotations

import json
import math
import random
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from eqcheck.contract.endings import EARLY, row_end
from eqcheck.contract.errors import UsageError, one_line

# Read the answers of servers: whatever is not as it should be is one line, `ServerError`.

PROTOCOL = "docs/gate.md lists what a server must answer"


class ServerError(UsageError):
    """A server is down, refuses, or answers in a way that cannot be judged; the message says what to do."""


class Untold(ServerError):
    """A server leaves out the ids or scores of a row, for example because it ends within a character."""


_COUNT = re.compile(
    r"^\w+:spec_(?:decode_)?(num_\w+|verify_calls)_total(?:\{(.*)\})? (\d+(?:\.\d+)?(?:e\+?\d+)?)$", re.M
)
_POSITION = re.compile(r'\bposition="(\d{1,3})"')


@dataclass(frozen=True)
class Scored:
    """A token as the referee sees it: its log-probability, the likeliest token, and the log-probabilities it tells."""

    token: int
    score: float
    best: int
    likeliest: Mapping[int, float]

    @property
    def gap(self) -> float:
        """Return by how many nats the referee prefers its own token."""
        return max(0.0, self.likeliest[self.best] - self.score)


def listed(answer: Any, name: str, place: str) -> list[Any]:
    listed = answer.get(name) if isinstance(answer, dict) else None
    if not isinstance(listed, list):
        got = one_line(str(answer), 200)
        raise ServerError(f"{place}: expected an object with a list {name!r}, got {got}; {PROTOCOL}")
    return listed


def as_ids(value: Any) -> tuple[int, ...] | None:
    """Return token ids, or None for anything else."""
    whole = isinstance(value, list) and all(isinstance(one, int) and 0 <= one < 2**31 for one in value)
    return tuple(value) if whole else None


def as_number(value: Any) -> float | None:
    """Return a log-probability, or None for anything else; minus infinity becomes a very small one."""
    return max(float(value), -1e4) if isinstance(value, (int, float)) and -math.inf <= value <= 1e-3 else None


def as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def id_of(key: Any) -> int | None:
    """Return the id in ``token_id:7`` or ``7``, as servers write it."""
    digits = str(key).removeprefix("token_id:")
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 10 else None


def tokens_of(choice: Mapping[str, Any]) -> tuple[tuple[int, ...] | None, tuple[float, ...] | None]:
    """Return the new tokens' ids and log-probabilities, each None where the server leaves it out."""
    # Servers tell ids in three ways, from the plainest to the one that has to be parsed. Scores count only if there is
    # one for each id: a list of another length would give tokens the scores of others.
    told = choice.get("logprobs")
    told = told if isinstance(told, dict) else {}
    tokens, content = as_ids(choice.get("token_ids")), as_list(told.get("content"))
    if tokens is None and content:
        tokens = as_ids([each.get("id") if isinstance(each, dict) else None for each in content])
    if tokens is None:
        named = [id_of(name) for name in as_list(told.get("tokens")) if str(name).startswith("token_id:")]
        tokens = tuple(one for one in named if one is not None) if named and None not in named else None
    scores = [as_number(value) for value in as_list(told.get("token_logprobs"))]
    if tokens is None or len(scores) != len(tokens):
        return tokens, None
    return tokens, tuple(score for score in scores if score is not None) if None not in scores else None


def place_of(token: int, score: float | None, likeliest: Mapping[Any, Any], place: str) -> Scored:
    """Return a token as the referee scores it. Its own score may be among those of the likeliest."""
    scores: dict[int, float] = {}
    for key, value in likeliest.items():
        number, each = id_of(key), as_number(value.get("logprob") if isinstance(value, dict) else value)
        if number is not None and each is not None:
            scores[number] = each
    score = scores.get(token) if score is None else score
    if score is None or not scores:
        raise Untold(f"{place}: expected the log-probability of token {token}, got {one_line(str(likeliest), 200)}")
    scores.setdefault(token, score)
    return Scored(token, score, max(scores, key=lambda one: (scores[one], one == token)), scores)


def first_law(told: Mapping[str, Any]) -> dict[int, float]:
    """Return the likeliest ids of the first token, in the form of OpenAI's completions or of llama.cpp."""
    content = (as_list(told.get("content")) or [None])[0]
    first = (as_list(told.get("top_logprobs")) or [None])[0]
    pairs = list(first.items()) if isinstance(first, dict) else []
    if isinstance(content, dict):
        records = [each for each in (content, *as_list(content.get("top_logprobs"))) if isinstance(each, dict)]
        pairs = [(each.get("id"), each.get("logprob")) for each in records]
    known = [(id_of(name), as_number(value)) for name, value in pairs]
    return {name: value for name, value in known if name is not None and value is not None}


def choice_of_native(answer: Any, place: str) -> dict[str, Any]:
    """Return an answer of SGLang's ``/generate`` as a choice of OpenAI's, with the scores of the prompt's tokens.

    A log-probability stands there as ``[value, id, text]``, and a place without one as null.

    >>> told = {"output_ids": [7], "meta_info": {"finish_reason": {"type": "length"},
    ...     "output_token_logprobs": [[-0.5, 7, None]], "output_top_logprobs": [[[-0.5, 7, None], [-1.0, 8, None]]]}}
    >>> choice = choice_of_native(told, "here")
    >>> choice["token_ids"], choice["finish_reason"], choice["logprobs"]["top_logprobs"]
    ([7], 'length', [{7: -0.5, 8: -1.0}])
    """
    if not isinstance(answer, dict) or as_ids(answer.get("output_ids")) is None:
        got = one_line(str(answer), 200)
        raise ServerError(f"{place}: expected an object with ids in 'output_ids', got {got}; {PROTOCOL}")
    told = answer.get("meta_info")
    told = told if isinstance(told, dict) else {}
    reason = told.get("finish_reason")
    scores, likeliest = (
        {side: as_list(told.get(f"{side}_{name}_logprobs")) for side in ("input", "output")}
        for name in ("token", "top")
    )
    return {
        "token_ids": answer["output_ids"],
        "finish_reason": reason.get("type") if isinstance(reason, dict) else reason,
        "logprobs": {
            "token_logprobs": [_score(one) for one in scores["output"]],
            "top_logprobs": [_scores(each) for each in likeliest["output"]],
        },
        "prompt_scores": [_score(one) for one in scores["input"]],
        "prompt_likeliest": [_scores(each) for each in likeliest["input"]],
    }


def _score(told: Any) -> float | None:
    return as_number(told[0]) if isinstance(told, list) and told else None


def _scores(told: Any) -> dict[Any, float]:
    pairs = [(each[1], _score(each)) for each in as_list(told) if isinstance(each, list) and len(each) > 1]
    return {name: value for name, value in pairs if value is not None and id_of(name) is not None}


def counts_of(metrics: str) -> Counter[str]:
    """Read the counts of drafts from Prometheus metrics of vLLM or SGLang; those of a draft position end in its number.

    >>> text = 'vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="1"} 12.0'
    >>> counts_of(text)
    Counter({'num_accepted_tokens_per_pos 1': 12})
    """
    counts: Counter[str] = Counter()
    for name, labels, value in _COUNT.findall(metrics):
        position = _POSITION.search(labels)
        counts[f"{name} {position[1]}" if position else name] += int(float(value))
    return counts


def acceptance(counts: Counter[str]) -> float | None:
    """Return the share of draft tokens that are accepted; None where none is counted."""
    drafts = counts["num_draft_tokens"]
    return round(counts["num_accepted_tokens"] / drafts, 3) if drafts else None


def acceptance_of_positions(counts: Counter[str]) -> list[float]:
    """Return the share of drafts that are accepted up to each position, where the server counts it."""
    accepted, drafts = [counts[f"num_accepted_tokens_per_pos {place}"] for place in range(64)], counts["num_drafts"]
    return [round(count / drafts, 3) for count in accepted if count] if drafts else []


def counts_beside(choice: Mapping[str, Any]) -> Counter[str]:
    """Return the counts of drafts that llama.cpp adds to an answer."""
    told = choice.get("timings")
    drafted, accepted = (
        (as_count(told.get(name)) for name in ("draft_n", "draft_n_accepted")) if isinstance(told, dict) else (0, 0)
    )
    return Counter(num_draft_tokens=drafted, num_accepted_tokens=min(drafted, accepted))


def as_count(value: Any) -> int:
    return value if type(value) is int and 0 <= value < 2**31 else 0


# Read prompts from a file, or draw some in which a wrong position or a wrong cache entry shows at once.

Prompt = str | tuple[int, ...]


class DrawnText(str):
    """A text that was drawn, and the name of its kind."""

    kind: str = ""


LARGEST_FILE = 256 * 2**20

_WORDS = [
    "amber",
    "basil",
    "cedar",
    "delta",
    "ember",
    "fable",
    "grove",
    "hazel",
    "ivory",
    "jade",
    "kelp",
    "lilac",
    "maple",
    "north",
    "olive",
    "pearl",
    "quartz",
    "river",
]


def read(path: Path) -> list[Prompt]:
    """Read the prompts of a file: JSON lines with ``"prompt"``, a string or a list of ids; else one prompt per line.

    Raises `UsageError` with the line that is none.
    """
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise UsageError(f"{path}: expected at most {LARGEST_FILE // 2**20} MiB of prompts")
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: {getattr(error, 'strerror', None) or 'expected text in UTF-8'}") from None
    as_json = path.suffix in (".jsonl", ".ndjson", ".json")
    prompts = [_prompt(line, f"{path}:{number}", as_json) for number, line in enumerate(lines, 1) if line.strip()]
    if not prompts:
        raise UsageError(f"{path}: expected at least one prompt, got none")
    return prompts


def _prompt(line: str, place: str, as_json: bool) -> Prompt:
    if not as_json and not line.lstrip().startswith('{"prompt"'):
        return line
    try:
        value: Any = json.loads(line)["prompt"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise UsageError(f'{place}: expected a line of JSON with "prompt", got {line[:60]!r}') from None
    if isinstance(value, str) and value:
        return value
    if isinstance(value, list) and value and all(type(one) is int and 0 <= one < 2**31 for one in value):
        return tuple(value)
    raise UsageError(f"{place}: prompt: expected a text or a list of token ids, got {value!r:.60}")


def drawn(count: int, seed: int) -> list[Prompt]:
    """Draw texts: lists that are copied, counting, look-ups of earlier pairs, code, shared beginnings, one word.

    A model attends to exact places in these, so a place that is off by one changes its choice.

    >>> drawn(7, 0) == drawn(7, 0), len(drawn(7, 0)), len(set(drawn(14, 0)))
    (True, 7, 14)
    """
    rng = random.Random(f"eqcheck gate {seed}")
    kinds = (_copied, _counting, _looked_up, _code, _shared, _short, _copied)
    texts = list[Prompt]()
    for number in range(count):
        make = kinds[number % len(kinds)]
        text = DrawnText(make(rng))
        text.kind = make.__name__.strip("_").replace("_", " ")
        texts.append(text)
    return texts


def _words(rng: random.Random, least: int, most: int) -> list[str]:
    return [rng.choice(_WORDS) for _ in range(rng.randint(least, most))]


def _copied(rng: random.Random) -> str:
    words = _words(rng, 4, 24)
    return f"{' '.join(words)}\n{' '.join(words[: rng.randint(1, len(words) - 1)])}"


def _counting(rng: random.Random) -> str:
    first, by = rng.randint(1, 90), rng.randint(1, 9)
    return ", ".join(str(first + by * n) for n in range(rng.randint(3, 20))) + ","


def _looked_up(rng: random.Random) -> str:
    keys = rng.sample(_WORDS, rng.randint(3, 12))
    lines = [f"{key} = {rng.randint(10, 99)}" for key in keys]
    return "\n".join([*lines, f"{rng.choice(keys)} ="])


def _code(rng: random.Random) -> str:
    names = rng.sample(_WORDS, 3)
    lines = [f"    def {name}(self, {other}):\n        return self.{other}\n" for name, other in pairwise(names)]
    return (
        f"class {rng.choice(_WORDS).title()}{rng.randint(1, 999)}:\n"
        + "\n".join(lines)
        + f"\n    def {names[-1]}(self, "
    )


def _shared(rng: random.Random) -> str:
    """Draw a beginning that many prompts share, so that prefix caches are hit in and between blocks."""
    text = "The following list holds the names of all rooms, each with the number of its door.\n" * 4
    return text[: rng.randint(20, len(text))] + f"{rng.choice(_WORDS)} {rng.randint(1, 99)}, "


def _short(rng: random.Random) -> str:
    return rng.choice(_WORDS) + (f" {rng.randint(1, 99)}" if rng.random() < 0.5 else "")


LIKELIEST, LIKELIEST_SAMPLED = 5, 20  # tokens whose scores a referee tells beside the row's own
LEAST_SECOND = 5  # wrong tokens: of fewer nothing is said
PIECE = 5  # tokens of a call that verifies four drafts
WITHOUT_CUTS = {"top_k": -1, "top_p": 1.0, "min_p": 0.0}
ENDS = ("over-length", "past-eos", "premature-stop")
"""The kinds of ends that no right server gives."""


@dataclass(frozen=True)
class Wanted:
    """A row: its prompt, and what it asks for. ``stops`` are ids behind which it has to end."""

    prompt: tuple[int, ...] | str
    max_tokens: int
    temperature: float = 0.0
    seed: int | None = None
    stops: tuple[int, ...] = ()

    def body(self, model: str) -> dict[str, Any]:
        """Return the request in the form of OpenAI's completions, with the options of vLLM that return ids."""
        prompt = self.prompt if isinstance(self.prompt, str) else list(self.prompt)
        body: dict[str, Any] = {"model": model, "prompt": prompt, "max_tokens": self.max_tokens}
        body |= {"temperature": self.temperature, "logprobs": LIKELIEST, "return_token_ids": True}
        body |= {"return_tokens_as_token_ids": True}
        if self.temperature:  # the law that is told has no cuts, and llama.cpp's default has three
            body |= WITHOUT_CUTS
        body |= {"seed": self.seed} if self.seed is not None else {}
        return body | ({"stop_token_ids": list(self.stops)} if self.stops else {})

    def native(self) -> dict[str, Any]:
        """Return the request in the form of SGLang's own ``/generate``; its prompt is ids."""
        options: dict[str, Any] = {"max_new_tokens": self.max_tokens, "temperature": self.temperature}
        options |= WITHOUT_CUTS if self.temperature else {}
        options |= {"sampling_seed": self.seed} if self.seed is not None else {}
        options |= {"stop_token_ids": list(self.stops)} if self.stops else {}
        body = {"input_ids": list(self.prompt), "sampling_params": options}
        return body | {"return_logprob": True, "top_logprobs_num": LIKELIEST}


@dataclass(frozen=True)
class Completed:
    """The new tokens of a row, why they end, and the prompt's ids. ``scores``: log-probabilities, if they are told.

    ``untold``: the server gave a text without ids, and no tokens are here.
    """

    tokens: tuple[int, ...]
    finish_reason: str | None
    prompt: tuple[int, ...]
    scores: tuple[float, ...] | None = None
    untold: bool = False


@dataclass(frozen=True)
class Row:
    """A row of a server, and how the referee sees its tokens. ``beside``: sampled rows stand beside it.

    ``by_draft``: how the draft sees its tokens, or what stands in for the draft of a sampled row; empty if not asked.
    """

    request: int
    asked: Wanted
    answer: Completed
    places: tuple[Scored, ...]
    concurrency: int
    place: int
    beside: bool = False
    by_draft: tuple[Scored, ...] = ()

    @property
    def gap(self) -> float:
        """Return the largest gap of its tokens."""
        return max((place.gap for place in self.places), default=0.0)

    @property
    def told(self) -> bool:
        """Return whether the servers gave its token ids and all scores."""
        seen = len(self.answer.tokens), len(self.places), len(self.by_draft)
        return not self.answer.untold and len({*seen[: 3 if self.asked.temperature else 2]}) == 1

    @property
    def furthest(self) -> int:
        """Return the index of the token with the largest gap."""
        return max(range(len(self.places)), key=lambda at: self.places[at].gap, default=0)

    def beyond(self, threshold: float) -> int | None:
        """Return the index of the first token whose gap exceeds the threshold."""
        return next((at for at, place in enumerate(self.places) if place.gap > threshold), None)

    def wrong_end(self, ends: Sequence[int]) -> str:
        """Return the kind of a wrong end, empty for a right one. ``ends`` are ids that end a row."""
        limit = self.asked.max_tokens
        end = row_end(self.answer.tokens, limit, {*self.asked.stops, *ends})
        if end.surplus:
            return end.kind
        # Only where the server names the limit: else an id that is not known to end rows may have ended this one.
        return EARLY if self.answer.finish_reason == "length" and end.length < limit else ""


class SecondChoices(NamedTuple):
    """Counts of the wrong tokens of greedy rows, and of those that are the referee's second choice.

    ``farthest`` is the largest gap of a wrong token. ``log10_chance`` is the chance, as a logarithm, that all of them
    are second choices if wrong tokens fall at random among the referee's second to fifth. ``log10_limit`` is the
    chance that no gap exceeds ``farthest`` if the second choice is returned at places drawn at random: acceptance with
    a threshold has such a limit, other faults have none.
    """

    wrong: int
    second: int
    farthest: float
    log10_chance: float
    log10_limit: float

    @property
    def all_second(self) -> bool:
        """Return whether all wrong tokens are second choices, and are enough to say so."""
        return self.second == self.wrong >= LEAST_SECOND


def second_choices(rows: Sequence[Row], threshold: float) -> SecondChoices:
    """Count the wrong tokens that are the referee's second choice, or as good as that within its noise.

    >>> from eqcheck.gate.compared_rows import Scored
    >>> def row(token): return Row(0, Wanted((1,), 1), Completed((token,), None, (1,)), (place(token),), 1, 0)
    >>> def place(token): return Scored(token, scores[token], 1, scores)
    >>> scores = {1: -0.5, 2: -1.0, 3: -4.0, 4: -5.0, 5: -6.0}
    >>> second_choices([row(1)] * 9 + [row(2)] * 5, 0.1)[:3], second_choices([row(3)], 0.1)[:2]
    ((5, 5, 0.5), (1, 0))
    """
    wrong = second = 0
    farthest = log10_chance = 0.0
    seconds = []
    for place in (place for row in rows for place in row.places):
        others = sorted((score for token, score in place.likeliest.items() if token != place.best), reverse=True)[:4]
        if not others:
            continue
        as_good = sum(score >= others[0] - threshold for score in others)
        if (gap := place.likeliest[place.best] - others[0]) > threshold:
            seconds.append(gap)
        if place.gap > threshold:
            wrong, farthest = wrong + 1, max(farthest, place.gap)
            second += place.score >= others[0] - threshold
            log10_chance += math.log10(as_good / len(others))
    share = sum(gap <= farthest for gap in seconds) / len(seconds) if seconds else 1.0
    limit = min(0.0, math.log10(wrong) + wrong * math.log10(share)) if wrong and share else 0.0
    return SecondChoices(wrong, second, farthest, log10_chance, limit)


class Speed(NamedTuple):
    """Tokens, and the seconds in which they were decoded."""

    tokens: int = 0
    seconds: float = 0.0

    def plus(self, rows: Sequence[Row], seconds: float) -> Speed:
        """Return the speed with these rows added."""
        return Speed(self.tokens + sum(len(row.answer.tokens) for row in rows), self.seconds + seconds)

    @property
    def rate(self) -> float:
        """Return tokens per second."""
        return self.tokens / self.seconds if self.seconds else 0.0
