"""Cases as an engine meets them in service, drawn within what it can do.

An engine takes seconds to start under new settings, so cases come in blocks: settings are drawn for a block, rows for
each case. `eqcheck.lanes.about` names what a case exercises; where the engine counts, whether it happened.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count
from math import lcm
from typing import Any

from eqcheck.case.engine import PAD, VOCAB_SIZE, EngineCase, EngineRow
from eqcheck.checkpoints.judge import truth
from eqcheck.checkpoints.models import checkpoint
from eqcheck.checkpoints.truth import Truth, row_with
from eqcheck.contract.decoders import CAPABILITIES, RowOptions
from eqcheck.contract.options import SCORING, cancelled
from eqcheck.contract.requirements import prompts_meeting
from eqcheck.contract.sizes import SERVED, Bounds
from eqcheck.lanes.checkpoint import changing
from eqcheck.lanes.checkpoint.grammars import grammars_seen, with_grammars
from eqcheck.lanes.checkpoint.reaching import KV_BLOCK, Reach, going_on, reached, reaches, reaching
from eqcheck.lanes.checkpoint.stops import (
    ending_like,
    some,
    stops_seen,
    with_answers,
    with_cancelled,
    with_eos,
    with_logprobs,
    with_stops,
)

BLOCK = 20  # cases under one setting of the engine, which has to start for it
OPENING = 2  # cases of a block of the opening
_AT_ONCE = 2  # options whose turn it is in one case of the opening
REACHING = 1  # of them, the last one
RANDOM_EVERY = 4  # of the blocks, where log-probabilities are asked for
DICTATED_EVERY = 4  # of the blocks all but every fourth, by engines that take dictated drafts
MANY_SWITCHED = 8  # rows; each is decoded twice
SWITCHED, SWITCHED_EVERY = 2, 3  # cases with one switch, each time; every so many cases have one
SETTINGS = ("ngram", "token-budget", "kv-blocks", "prefix-caching")
"""Capabilities that are settings of an engine."""
_BOUNDARIES = (16, KV_BLOCK)  # tokens in a block of an engine's cache; the window of a built checkpoint has 32, too
_ROWS_WITH_EOS, _LOOK_AHEAD = 4, 16  # more cost time: what rows emit must be known

_LONGEST_SHARED = 3 * KV_BLOCK
_SHARED = 0.3  # of the cases share beginnings where prefix caching is the engine's own default
_GOING_ON = 0.3  # of the cases with cached prefixes have a row that goes on from another one
_EXACT = 0.25  # of the cases have a prompt that is as long as something in the engine


@dataclass(frozen=True)
class EngineCases:
    """Draw the cases of an engine: same seed, capabilities, preconditions and bounds, same cases.

    ``varied``: some blocks are on the random checkpoint, whose log-probabilities differ from token to token. With
    ``latest`` there is what frozen profiles lack: turns of conversations and stop sequences at the ends of blocks.
    ``block``: the cases of a block, `BLOCK` if it is None. Each of ``switches`` is on by turns, beside limits and EOS
    ids alone.

    >>> cases = EngineCases(seed=1, capabilities=("ngram",))
    >>> next(cases.cases()) == next(cases.cases())
    True
    """

    seed: int
    capabilities: tuple[str, ...]
    requires: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ("full",)
    bounds: Bounds = SERVED
    varied: bool = False
    block: int | None = None
    switches: tuple[str, ...] = ()
    latest: bool = False

    def cases(self) -> Iterator[EngineCase]:
        """Cases without end."""
        return map(self.case, count())

    def case(self, number: int) -> EngineCase:
        """One of the cases; those of a block share the engine's settings, but for the last, which reach far."""
        cases = BLOCK if self.block is None else self.block
        block, place = self._block(number, cases)
        turns = self._turns(number)
        settings = self._settings(random.Random(f"eqcheck {self.seed} block {block}"), block, turns)
        stem = random.Random(f"eqcheck {self.seed} beginning {block}")
        beginning = tuple(stem.randrange(VOCAB_SIZE) for _ in range(_LONGEST_SHARED))
        rng, far = random.Random(f"eqcheck {self.seed} case {number}"), self._reaches
        if place < cases - REACHING or not far:
            own = random.Random(f"eqcheck {self.seed} turn {number}")
            turn = own.choice((1, *_BOUNDARIES)) if self.latest and "row-limits" in self.capabilities else 1
            case = self._case(rng, settings, beginning, turn, turns)
            turn, among = divmod(number // SWITCHED, SWITCHED_EVERY)
            if self.switches and among == 1 and not turns:
                return _switched(case, self.switches[(turn + self.seed) % len(self.switches)])
            # A generator of its own: an engine without stops gets the cases that it got before there were any.
            own = random.Random(f"eqcheck {self.seed} grammars {number}")
            if (
                self._has(own, "grammar", 0.4, turns) and checkpoint(case.checkpoint).built
            ):  # texts of others may be joined
                case = with_grammars(own, case, truth(case.checkpoint))
            own = random.Random(f"eqcheck {self.seed} stops {number}")
            case = with_stops(own, case, self.latest) if self._has(own, "stop-sequences", 0.4, turns) else case
            case = with_cancelled(own, case) if self._has(own, "cancel", 0.3, turns) else case
            of_new, of_prompt = self._has(own, "logprobs", 0.5, turns), self._has(own, "prompt-logprobs", 0.3, turns)
            case = with_logprobs(case, of_new, of_prompt)
            own = random.Random(f"eqcheck {self.seed} answers {number}")
            return with_answers(own, case, self.requires, self.bounds.rows) if self._has(own, "n", 0.3, turns) else case
        kind = far[(block + block // lcm(len(far), len(self.kinds))) % len(far)]  # each meets each kind of checkpoint
        of_block = random.Random(f"eqcheck {self.seed} reach {block}")
        case = reaching(kind, of_block, rng, settings, self.bounds, self.capabilities)
        return self._dictated(rng, case, max(row.options.max_new_tokens for row in case.rows)).meeting(self.requires)

    @cached_property
    def _reaches(self) -> list[Reach]:
        return reaches(self.capabilities, self.requires, self.bounds)

    def _has(self, rng: random.Random, capability: str, share: float, turns: Collection[str] = ()) -> bool:
        """Return whether a case has what a capability allows: by chance, and always where it is its turn."""
        return (rng.random() < share or capability in turns) and capability in self.capabilities

    @cached_property
    def _opening(self) -> list[tuple[str, ...]]:
        """The capabilities whose turn it is in each case of the opening; it has `OPENING` cases of each block."""
        if not self.latest or self.block is not None:
            return []
        drafters = [name for name in ("ngram", "dictated-drafts") if name in self.capabilities]
        settings = [name for name in SETTINGS if name in self.capabilities and name not in drafters]
        options = [name for name in CAPABILITIES if name in self.capabilities and name not in (*drafters, *settings)]
        # The first block has the engine's defaults, so that what fails even there is seen first.
        blocks = max(len(self.kinds), len(drafters) + 1, len(settings) + bool(settings))
        blocks = max(blocks, -(-len(options) // (OPENING * _AT_ONCE)))
        turns = list[tuple[str, ...]]()
        for number in range(OPENING * blocks):
            block, first = number // OPENING - 1, number * _AT_ONCE
            own = options[first : first + _AT_ONCE]
            if block >= 0:
                own += [names[block % len(names)] for names in (drafters, settings) if names]
            turns.append(tuple(own))
        return turns

    def _turns(self, number: int) -> tuple[str, ...]:
        return self._opening[number] if number < len(self._opening) else ()

    def _block(self, number: int, cases: int) -> tuple[int, int]:
        """The block of a case, and its place there; the blocks of the opening are short."""
        opening = len(self._opening)
        if number < opening:
            return divmod(number, OPENING)
        block, place = divmod(number - opening, cases)
        return opening // OPENING + block, place

    def _settings(self, rng: random.Random, number: int, turns: Collection[str]) -> EngineCase:
        """A block's settings, on a case whose row is only a place holder; the first block has the engine's defaults."""
        # Not always the second of four: with as many kinds, one would never be asked.
        of_random = number % RANDOM_EVERY == 1 + number // RANDOM_EVERY % (RANDOM_EVERY - 1)
        opens = number < len(self._opening) // OPENING
        kind = "" if self.varied and of_random and not opens else self.kinds[number % len(self.kinds)]
        case = EngineCase(
            (EngineRow((0,), RowOptions(1)),),
            min(rng.randint(1, 8), self.bounds.draft_tokens),
            checkpoint=checkpoint(kind).name,
        )
        if "only-dictated-drafts" in self.capabilities:
            case = replace(case, drafting="dictated")
        if "no-drafts" in self.capabilities:
            case = replace(case, drafting="none")
        if number == 0:
            return case
        dictates = "dictated-drafts" in turns if opens else number % DICTATED_EVERY > 0
        if self._has(rng, "ngram", 0.0 if opens else 0.25, turns):
            case = replace(case, drafting="ngram")
        elif case.drafting == "model" and "dictated-drafts" in self.capabilities and dictates:
            case = replace(case, drafting="dictated")
        if self._has(rng, "token-budget", 0.4, turns):
            case = replace(case, token_budget=rng.choice((16, 24, 32, 64, 128)))
        if self._has(rng, "kv-blocks", 0.3, turns):
            case = replace(case, kv_blocks=rng.randint(9, 14))
        if "prefix-caching" in self.capabilities and (self._alternates(number) or "prefix-caching" in turns):
            case = replace(case, prefix_caching=True)
        return case

    def _alternates(self, number: int) -> bool:
        """Every other block, so that each kind of checkpoint has blocks of both sorts."""
        turns = number // len(self.kinds) if len(self.kinds) % 2 == 0 else 0
        return (number + turns) % 2 == 1

    def _case(
        self, rng: random.Random, settings: EngineCase, beginning: tuple[int, ...], turn: int, turns: Collection[str]
    ) -> EngineCase:
        size = rng.choice((1, 2, 2, 3, 3, 4, 4, 5, 6, 8, 12))
        if self._has(rng, "many-rows", 0.03, turns):
            size = rng.choice((32, 48, 64, 128))
        elif turns:  # options that differ from row to row need several
            size = max(size, 3)
        longest = rng.choice((6, 12, 24, 40))
        if settings.kv_blocks:
            size, longest = max(size, 4), rng.choice((24, 48, 80))
        # An engine that can cache prefixes may do so by default.
        caches = settings.prefix_caching or ("prefix-caching" in self.capabilities and rng.random() < _SHARED)
        drawn = self._prompts(rng, settings, min(size, self.bounds.rows), longest, beginning if caches else ())
        prompts = prompts_meeting(self.requires, [one[: self.bounds.prompt] for one in drawn], PAD, VOCAB_SIZE)
        size = len(prompts)
        limit = rng.randint(1, 24) if rng.random() < 0.3 else rng.randint(12, 32)
        limit = min(limit, self.bounds.new_tokens)
        common = _options(rng, limit, prompts, truth(settings.checkpoint))
        rows = [EngineRow(prompt, common) for prompt in prompts]
        if self._has(rng, "row-limits", 0.5, turns):
            rows = [row_with(row, max_new_tokens=rng.randint(1, limit)) for row in rows]
        for name, values in (
            ("repetition-penalty", (1.1, 1.3, 2.0, 0.8)),
            ("presence-penalty", (0.5, 1.0, 2.0, -1.0)),
        ):
            if self._has(rng, name, 0.15, turns):
                field = name.replace("-", "_")
                rows = [row_with(row, **{field: rng.choice(values)}) if rng.random() < 0.6 else row for row in rows]
        alone = truth(settings.checkpoint)
        rows = changing.drawn(rng, rows, self.capabilities, alone, _ROWS_WITH_EOS, turns)
        least = self._has(rng, "min-new-tokens", 0.25, turns)
        if self._has(rng, "row-eos", 0.4, turns) or least:
            chosen = rng.sample(range(size), min(size, _ROWS_WITH_EOS))
            emitted = alone.emitted([rows[number] for number in chosen], _LOOK_AHEAD)
            for number, tokens in zip(chosen, emitted, strict=True):
                rows[number] = with_eos(rng, rows[number], tokens, least)
        if self._has(rng, "arrivals", 0.5 if caches else 0.2, turns):  # or nothing is cached in this case
            rows = [row_with(row, arrival=rng.randint(0, 8)) for row in rows]
        if caches and size > 1 and rng.random() < _GOING_ON and not self.requires:
            longer = going_on(rng, rows, alone, "arrivals" in self.capabilities, turn)
            rows = longer if len(longer[-1].prompt) <= self.bounds.prompt else rows
        rows = [row if not row.options.changes_scores or alone.decides(row) else _plain(row) for row in rows]
        return self._dictated(rng, replace(settings, rows=tuple(rows)), limit).meeting(self.requires)

    def _dictated(self, rng: random.Random, case: EngineCase, limit: int) -> EngineCase:
        """The case with what its rows accept, where drafts are dictated."""
        if case.drafting != "dictated":
            return case
        rows = [replace(row, accepts=_accepts(rng, case.num_draft_tokens, limit)) for row in case.rows]
        return replace(case, rows=tuple(rows))

    def _prompts(
        self, rng: random.Random, settings: EngineCase, size: int, longest: int, beginning: tuple[int, ...]
    ) -> list[tuple[int, ...]]:
        """Prompts, some of them as long as something in the engine; cached beginnings are those of the whole block."""

        def tokens(least: int, most: int) -> tuple[int, ...]:
            return tuple(rng.randrange(VOCAB_SIZE) for _ in range(rng.randint(least, most)))

        prompts = [tokens(1, longest) for _ in range(size)]
        if rng.random() < _EXACT:
            exact = rng.choice((1, settings.num_draft_tokens + 1, *_BOUNDARIES))
            prompts[rng.randrange(size)] = tokens(exact, exact)
        if settings.token_budget and rng.random() < 0.3:
            prompts[rng.randrange(size)] = tokens(settings.token_budget + 1, 2 * settings.token_budget + 8)
        if settings.drafting == "ngram":  # what has been seen before, so that some of it is proposed and accepted
            chosen = rng.sample(range(size), min(size, _ROWS_WITH_EOS))
            asked = [EngineRow(prompts[row], RowOptions(1)) for row in chosen]
            emitted = truth(settings.checkpoint).emitted(asked, rng.randint(2, 10))
            for row, tokens_after in zip(chosen, emitted, strict=True):
                prompts[row] = (*prompts[row], *tokens_after, *prompts[row])
        if beginning:
            block = rng.choice(_BOUNDARIES)
            length = min(block * rng.randint(1, 3) + rng.choice((-1, 0, 0, 1)), _LONGEST_SHARED)
            # Another beginning, and blocks of the first behind it: what is cached of a block is of its beginning, too.
            shared, other = beginning[:length], beginning[::-1][:length]
            begins = (shared,) * 6 + (other, (*other[:block], *shared[block:]), (), ())
            prompts = [(*rng.choice(begins), *prompt) for prompt in prompts]
            prompts[-1] = prompts[0]
        return prompts


def _plain(row: EngineRow) -> EngineRow:
    """The row without options that change scores."""
    return row_with(row, **SCORING)


def _switched(case: EngineCase, switch: str) -> EngineCase:
    """The case with a switch on, at the engine's other defaults, its rows with limits and EOS ids alone."""
    drafting = "model" if case.drafting == "dictated" else case.drafting
    rows = tuple(
        replace(row, accepts=(), options=RowOptions(row.options.max_new_tokens, row.options.eos_token_ids))
        for row in case.rows[:MANY_SWITCHED]
    )
    return EngineCase(rows, case.num_draft_tokens, drafting, checkpoint=case.checkpoint, switch=switch)


def _accepts(rng: random.Random, k: int, limit: int) -> tuple[int, ...]:
    """Return how many draft tokens of each round a row accepts, up to about its limit."""
    kind = rng.choice(("any", "any", "all", "most", "ends"))
    counts = {"any": range(k + 1), "all": (k,), "most": (k, k, k - 1), "ends": (0, k)}[kind]
    rounds, tokens = list[int](), 1
    while tokens < limit:
        rounds.append(rng.choice(counts))
        tokens += rounds[-1] + 1
    return tuple(rounds)


def _options(rng: random.Random, limit: int, prompts: list[tuple[int, ...]], alone: Truth) -> RowOptions:
    """Options that all rows share: any decoder can do that much."""
    if rng.random() < 0.7:
        return RowOptions(limit)
    (emitted,) = alone.emitted([EngineRow(rng.choice(prompts), RowOptions(limit))], min(limit, _LOOK_AHEAD))
    return RowOptions(limit, some(rng, emitted))


_LONGER, _OTHER_K = 12, 4


def alike(case: EngineCase, number: int, requires: tuple[str, ...] = ()) -> EngineCase:
    """Other prompts and the same options; every second case has longer rows, which end elsewhere, and another K.

    Each id becomes another one, so that prompts which begin alike still do. Of equal prompts every fourth case makes
    different ones: else a token of another row's looks like a later one of the row's own.
    """
    rng = random.Random(f"eqcheck alike {number}")
    ids = rng.sample(range(VOCAB_SIZE), VOCAB_SIZE)
    rows = list[EngineRow]()
    for before, row in zip((None, *case.rows), case.rows, strict=False):
        if row == before and row.options.n > 1:  # another answer to the same request
            rows.append(rows[-1])
            continue
        size, options = len(row.prompt) + (rng.randint(0, _LONGER) if number % 2 else 0), row.options
        if options.min_new_tokens and number % 4 == 2:
            size = min(size, 2)  # behind a long prompt a minimum that counts it looks ignored
        prompt = tuple([*(ids[token] for token in row.prompt), *rng.choices(ids, k=_LONGER)][:size])
        if number % 4 == 2 and prompt in {one.prompt for one in rows}:
            prompt = (*prompt[:-1], ids[-1 - len(rows)])
        other = replace(row, prompt=prompt)
        if number % 2:
            other = row_with(other, max_new_tokens=options.max_new_tokens + _LONGER)
            if options.eos_token_ids:
                emitted = truth(case.checkpoint).row(row_with(other, eos_token_ids=(), min_new_tokens=0))
                other = with_eos(rng, other, emitted, least=options.min_new_tokens > 0)
        elif options.eos_token_ids or options.stop_sequences:
            other = ending_like(row, other, truth(case.checkpoint))
        rows.append(changing.again(rng, other, truth(case.checkpoint)))
    if len({row.options for row in case.rows}) == 1:  # they may have to share them
        rows = [replace(row, options=rows[0].options) for row in rows]
    other_k = _OTHER_K if number % 2 else case.num_draft_tokens
    return replace(case, rows=tuple(rows), num_draft_tokens=other_k).meeting(requires)


def exercised(case: EngineCase, outputs: tuple[tuple[int, ...], ...], observed: Mapping[str, Any]) -> set[str]:
    """The counters that a decoded case raises."""
    rows, options = case.rows, [row.options for row in case.rows]
    needed = sum(-(-(len(r.prompt) + r.options.max_new_tokens + case.num_draft_tokens) // KV_BLOCK) for r in rows)
    budget, preempted = case.token_budget or 10**9, observed.get("preemptions", 0) > 0
    # A row's first token takes a step without a draft, every other step yields what is accepted and one more.
    steps = sum(map(len, outputs)) - len(rows) - observed.get("accepted", 0)
    checks = {
        "several_rows": len(rows) > 1,
        "many_rows": len(rows) >= 32,
        "prompt_of_one": any(len(row.prompt) == 1 for row in rows),
        "prompt_of_round": any(len(row.prompt) == case.num_draft_tokens + 1 for row in rows),
        "prompt_of_blocks": any(len(row.prompt) % _BOUNDARIES[0] == 0 for row in rows),
        "ragged_prompts": len({len(row.prompt) for row in rows}) > 1,
        "ngram": case.drafting == "ngram",
        "dictated": case.drafting == "dictated",
        "contexts": observed.get("contexts", 0) > 0,
        "ngram_silent": case.drafting == "ngram" and observed.get("drafted", steps) < steps,
        "row_limits": len({o.max_new_tokens for o in options}) > 1,
        "row_eos": len({o.eos_token_ids for o in options}) > 1,
        "token_budget": case.token_budget is not None,
        "budget_below_round": budget < len(rows) * (case.num_draft_tokens + 1),
        "prompt_beyond_budget": any(len(row.prompt) > budget for row in rows),
        "prefix_caching": bool(case.prefix_caching),
        "kv_blocks": case.kv_blocks is not None and (case.kv_blocks < needed or preempted),
        "prefix_hits": observed.get("prefix_hits", 0) > 0,
        "preemptions": preempted,
        "answers": any(o.n > 1 for o in options),
        "late_rows": observed.get("late_rows", 0) > 0,
    }
    checks |= stops_seen(case, outputs) | cancelled(options, outputs) | grammars_seen(case, outputs)
    counters = {name for name, holds in (checks | reached(case, outputs)).items() if holds}
    return counters | answered(case, outputs, observed) | changing.triggered(case, outputs)


def answered(case: EngineCase, outputs: Sequence[tuple[int, ...]], observed: Mapping[str, Any]) -> set[str]:
    """The counters that an answer raises, of greedy rows and of sampled ones."""
    drafted, accepted = observed.get("drafted", 0), observed.get("accepted", 0)
    ended = any(
        output and output[-1] in row.options.eos_token_ids and len(output) < row.options.max_new_tokens
        for output, row in zip(outputs, case.rows, strict=True)
    )
    checks = {"ended_by_eos": ended, "drafted": drafted > 0, "accepted": accepted > 0, "rejected": drafted > accepted}
    return {name for name, holds in checks.items() if holds}
