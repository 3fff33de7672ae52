"""Run a gate: rows of both servers, chunk by chunk, until evidence, requests or time are enough."""

from __future__ import annotations

import math
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from eqcheck.contract.errors import UsageError
from eqcheck.gate.bets import Lengths, SampledRows, weaker
from eqcheck.gate.compared_rows import (
    LIKELIEST_SAMPLED,
    Completed,
    Prompt,
    Row,
    Scored,
    ServerError,
    Speed,
    Untold,
    Wanted,
)
from eqcheck.gate.servers import DRAFTS, Server, check_models, check_plain, fitted
from eqcheck.transparent.truth.rounding_evidence import BROKEN, CROSSES, Exceedances, needed, step, together

STOPPED_IN = 4  # every so many requests has a stop
PIECES_OF = 4  # greedy rows of the control one is scored in pieces, too
RARE = 1 / 40  # a lasting fault changes one token in so many, or more
SAMPLED_OF = 4  # requests one is greedy, if rows are sampled
OF_LENGTHS = 0.1  # of the stake
DOUBTS = 100.0  # so much evidence is no equivalence
LEAST_VISIBLE = 0.25  # of places: else the noise hides too much


@dataclass(frozen=True)
class Settings:
    """A gate asks for ``requests`` rows at most, of ``max_tokens``, so many at once in turn, for ``budget`` seconds."""

    requests: int = 256
    max_tokens: int = 64
    concurrency: tuple[int, ...] = (1, 4, 16)
    temperature: float = 0.0
    seed: int = 0
    budget: float | None = None


@dataclass
class Gate:
    """One gate. ``rows`` are those of the speculative server, ``control`` those of the plain one.

    Raises `ServerError` where a server cannot be judged: it is down, serves another model, tells no ids or no scores.
    """

    speculative: Server
    plain: Server
    prompts: Sequence[Prompt]
    settings: Settings
    draft: Server | None = None  # a server of the draft model; the plain server stands in for it else
    tell: Callable[[Gate], None] = lambda gate: None  # after each chunk
    rows: list[Row] = field(default_factory=list)
    control: list[Row] = field(default_factory=list)
    bets: dict[str, Exceedances] = field(default_factory=dict)
    speeds: dict[str, Speed] = field(default_factory=dict)
    noise: float = 0.0  # the greatest change of a score from decode to referee, in the control
    floor: float = 0.0  # the step in which the plain server rounds scores
    in_pieces: float | None = None  # the greatest change of a likely score from one call to calls of some tokens
    stops_heeded: bool | None = None
    began: float = 0.0
    interrupted: bool = False
    out_of_time: bool = False
    sampled: SampledRows = field(default_factory=SampledRows)
    lengths: Lengths = field(default_factory=Lengths)
    drafted: Counter[str] = field(default_factory=Counter)
    speculates: bool | None = None  # as far as its own counts tell
    too_long: int = 0  # prompts that the context cannot hold
    untold: int = 0  # requests whose ids or scores a server does not tell
    prompt_kinds: list[str] = field(default_factory=list)  # of the prompts that it can hold

    def run(self) -> None:
        """Decode and score chunks of requests."""
        if not self.prompts:
            raise UsageError("prompts: expected at least one")
        if self.settings.temperature:
            for server in filter(None, (self.plain, self.draft)):
                server.likeliest = LIKELIEST_SAMPLED
        others = [self.speculative, *([self.draft] if self.draft is not None else [])]
        limits = self.settings.max_tokens, max(self.settings.concurrency)
        fits, self.prompt_kinds = fitted(self.prompts, (self.plain, *others), *limits)
        self.too_long, self.prompts = len(self.prompts) - len(fits), fits
        answer = check_models(fits, self.plain, others, self.seen)
        self.by_draft((answer, self.draft is not None))  # a draft that cannot score is told at once
        bets = ("all", *(f"{number} at once" for number in self.settings.concurrency))
        self.bets = {name: Exceedances() for name in bets}  # all from the start: their weights may not depend on rows
        self.sampled.begin(self.settings.concurrency, self.draft is not None)
        before, self.began = self.speculative.metrics(), time.monotonic()
        until = self.began + (self.settings.budget or math.inf)
        chunk, asked = 0, 0
        try:
            while asked < self.most and not self.crossed and time.monotonic() < until:
                at_once = self.settings.concurrency[chunk % len(self.settings.concurrency)]
                size = min(max(8, 2 * at_once), self.most - asked)
                self._chunk(range(asked, asked + size), at_once)
                if not chunk:
                    check_plain(self.plain)
                chunk, asked = chunk + 1, asked + size
                self.tell(self)
            self.out_of_time = asked < self.most and not self.crossed
        except KeyboardInterrupt:
            self.interrupted = True
        after = self.speculative.metrics()
        self.drafted = after - before
        asked_now = "speculative" in self.speeds  # else all answers were stored, and nothing new was drafted
        if drafts := [name for name in DRAFTS if asked_now and name in after]:
            self.speculates = any(self.drafted[name] for name in drafts)

    @property
    def doubtful(self) -> bool:
        """Return whether the evidence is above the 99th percentile of a correct server.

        A gate whose time was over asked fewer rows than it was to ask: there any evidence is a doubt.
        """
        return self.log_evidence > (0.0 if self.out_of_time else math.log(DOUBTS))

    @property
    def most(self) -> int:
        """Return how many requests the gate makes at most: twice as many while the evidence is in doubt."""
        return self.settings.requests * (1 + self.doubtful)

    @property
    def greedy(self) -> list[Row]:
        """Return the greedy rows of the speculative server."""
        return [row for row in self.rows if not row.asked.temperature]

    @property
    def log_greedy(self) -> float:
        """Return the evidence against greedy rows, as a logarithm."""
        return together([bet.log_evidence for bet in self.bets.values()]) if self.bets else 0.0

    @property
    def log_evidence(self) -> float:
        """Return the evidence that decides: the mean over greedy rows, sampled ones, and the lengths of both."""
        main = [self.log_greedy, self.sampled.log_evidence] if self.settings.temperature else [self.log_greedy]
        return together([together(main), self.lengths.log_evidence], [1 - OF_LENGTHS, OF_LENGTHS])

    @property
    def crossed(self) -> bool:
        """Return whether the evidence decides, or two rows end as no correct server ends them."""
        certain = max(self.wrong_ends.values(), default=0)
        return self.log_evidence >= math.log(CROSSES) or certain > 1

    @property
    def threshold(self) -> float:
        """Return the gap beyond which a greedy token is wrong: twice the largest of the control."""
        return self.bets["all"].threshold if "all" in self.bets else 0.0

    @property
    def ends(self) -> tuple[int, ...]:
        """Return the ids after which the plain server ended a row by itself."""
        own = Counter(
            row.answer.tokens[-1]
            for row in self.control
            if row.answer.finish_reason == "stop" and row.answer.tokens and row.answer.tokens[-1] not in row.asked.stops
        )
        inside = {token for row in self.control for token in row.answer.tokens[:-1]}
        return tuple(token for token, count in own.items() if count > 1 and token not in inside)

    @property
    def wrong_ends(self) -> Counter[str]:
        """Count rows that end wrongly, by kind; a kind that the control has too is the server's way."""
        usual, ends = {row.wrong_end(()) for row in self.control}, self.ends
        kinds = Counter(row.wrong_end(ends) for row in self.rows)
        return Counter({kind: count for kind, count in kinds.items() if kind and kind not in usual})

    @property
    def visible(self) -> float:
        """Return the share of the control's places at which the second choice lies beyond the threshold."""
        seconds = [
            max(place.likeliest.values()) - sorted(place.likeliest.values())[-2]
            for row in self.control
            for place in row.places
            if len(place.likeliest) > 1
        ]
        return sum(gap > self.threshold for gap in seconds) / len(seconds) if seconds else 0.0

    @property
    def lacking(self) -> int:
        """Return how many more requests a fault in one token of 40, or the doubt, would need; 0 for enough."""
        if self.doubtful and not self.crossed:
            return math.ceil(len(self.rows) * (math.log(CROSSES) / self.log_evidence - 1))
        greedy = self.greedy
        tokens = sum(len(row.answer.tokens) for row in greedy) / max(1, len(greedy))
        share = 1 - (1 - RARE * max(self.visible, 0.05)) ** max(1.0, tokens)
        controls = len(self.control) / max(1, len(greedy))
        more = max(0, needed(share, controls or 2.0) - len(greedy))
        if not self.settings.temperature:
            return more
        return max(SAMPLED_OF * more, math.ceil(self.sampled.lacking * SAMPLED_OF / (SAMPLED_OF - 1)))

    @property
    def verdict(self) -> str:
        """``equivalent``, ``violation`` or ``inconclusive``."""
        if self.crossed:
            return "violation"
        few = self.lacking > 0 or self.visible < LEAST_VISIBLE or sum(self.wrong_ends.values()) > 0
        untold = self.doubtful or self.speculates is False
        return "inconclusive" if few or untold or self.interrupted else "equivalent"

    @property
    def cache_broken(self) -> bool:
        """Return whether scores of the plain server change more than rounding can when it scores in pieces."""
        return (self.in_pieces or 0.0) > BROKEN

    def _chunk(self, numbers: Sequence[int], at_once: int) -> None:
        """Run a chunk: the control twice, the second time in the other order, then the speculative server."""
        # The control runs before the speculative server, in one order and then in the other, so that what depends on
        # the place in a batch is part of the noise and not of the evidence.
        asked = [self._asked(number) for number in numbers]
        first = self._decoded("plain", self.plain, numbers, self._seeded(asked, "first"), at_once)
        asked = [self._with_stop(number, one, row) for number, one, row in zip(numbers, asked, first, strict=True)]
        second = self._decoded("plain", self.plain, numbers[::-1], self._seeded(asked, "second")[::-1], at_once)
        self._heeded(second)
        rows = self._decoded("speculative", self.speculative, numbers, self._seeded(asked, "speculative"), at_once)
        told = [three for three in zip(rows, first, second[::-1], strict=True) if all(row.told for row in three)]
        self.untold += len(rows) - len(told)
        if 2 * len(told) < len(rows):
            raise ServerError(
                f"{self.plain.url}: expected ids and scores of rows, got none of most (llama.cpp leaves them out "
                "where a row ends within a character); give other --prompts"
            )
        control = [row for _, *controls in told for row in controls if not row.asked.temperature]
        self.control += control
        self._measure(control)
        requests = [(row.gap, [its.gap for its in controls]) for row, *controls in told if not row.asked.temperature]
        for name in ("all", f"{at_once} at once"):
            bet = self.bets[name]
            bet.add_requests(requests)  # before this chunk's control is counted
            bet.floor = max(self.floor, self.noise)
            bet.compare_with(row.gap for row in control)
            bet.add(gap for gap, _ in requests)
        for row, *controls in told:
            self.lengths.add(row, controls)
            if row.asked.temperature:
                self.sampled.add(row, controls)
        self.rows += [row for row, *_ in told]

    def _seeded(self, asked: Sequence[Wanted], name: str) -> list[Wanted]:
        """Return the same requests, the sampled ones with seeds that no other rows have."""
        rng = random.Random(f"eqcheck gate {self.settings.seed} {name} {len(self.rows)}")
        return [replace(one, seed=rng.getrandbits(31)) if one.temperature else one for one in asked]

    def _decoded(
        self, name: str, server: Server, numbers: Sequence[int], asked: Sequence[Wanted], at_once: int
    ) -> list[Row]:
        """Decode the rows of a chunk, so many at once; the referee scores them afterwards, so that it is not timed."""
        began, calls = time.monotonic(), server.calls
        answers = server.each(server.complete, asked, at_once)
        seconds, stored = time.monotonic() - began, server.calls == calls
        seen = self.plain.each(self.seen, answers, max(4, at_once))
        judged = self.draft is not None and server is self.speculative  # the stand-in sees sampled rows alone
        pairs = [(answer, judged or wanted.temperature > 0) for wanted, answer in zip(asked, answers, strict=True)]
        by_draft = self.plain.each(self.by_draft, pairs, max(4, at_once))
        mixed = any(one.temperature for one in asked)
        rows = [
            Row(number, one, answer, places, at_once, place, mixed, its)
            for place, (number, one, answer, places, its) in enumerate(
                zip(numbers, asked, answers, seen, by_draft, strict=True)
            )
        ]
        if not stored:
            self.speeds[name] = self.speeds.get(name, Speed()).plus(rows, seconds)
        return rows

    def seen(self, answer: Completed) -> tuple[Scored, ...]:
        """Return how the referee scores the tokens of an answer; empty where it leaves something out."""
        with suppress(Untold):
            return tuple(self.plain.scored(answer.prompt, answer.tokens))
        return ()

    def by_draft(self, pair: tuple[Completed, bool]) -> tuple[Scored, ...]:
        """Return how the draft, or its stand-in, scores them, where that is wanted."""
        answer, asked = pair
        try:
            if self.draft is None or not asked:
                return weaker(self.plain, answer) if asked else ()
            return tuple(self.draft.scored(answer.prompt, answer.tokens))
        except Untold:
            return ()
        except ServerError as error:
            if self.draft is None:
                raise
            raise ServerError(f"--draft: {error}") from None

    def _asked(self, number: int) -> Wanted:
        """Make a request: a prompt in turn, a ragged limit; of four one is greedy if rows are sampled.

        Rows are half as long then: the evidence of a row is bounded, so short ones tell more of a token.
        """
        rng = random.Random(f"eqcheck gate {self.settings.seed} request {number}")
        limit = rng.randint(max(1, self.settings.max_tokens // 2), self.settings.max_tokens)
        prompt = self.prompts[number % len(self.prompts)]
        if not self.settings.temperature:
            return Wanted(prompt, limit)
        return Wanted(prompt, max(1, limit // 2), self.settings.temperature if number % SAMPLED_OF else 0.0)

    def _with_stop(self, number: int, asked: Wanted, plain: Row) -> Wanted:
        """Add a stop that the plain server returned, in every few requests, unless it ignores stops."""
        tokens = plain.answer.tokens
        if self.stops_heeded is False or number % STOPPED_IN or asked.temperature or len(tokens) < 4:
            return asked
        return replace(asked, stops=(tokens[len(tokens) // 2],))

    def _heeded(self, rows: Sequence[Row]) -> None:
        """See whether rows of the plain server end at their stops, told or not; a row without a stop says nothing."""
        for row in rows if self.stops_heeded is not False else ():
            tokens, stops = row.answer.tokens, row.asked.stops
            if any(token in stops for token in tokens[:-1]):
                self.stops_heeded = False
            elif stops and (tokens[-1:] == stops or row.answer.finish_reason == "stop"):
                self.stops_heeded = True

    def _measure(self, rows: Sequence[Row]) -> None:
        """Measure how rounding changes scores from decode to referee, and the step in which scores are rounded."""
        for row in rows:
            told = row.answer.scores or ()
            changes = [abs(one - place.score) for one, place in zip(told, row.places, strict=False)]
            self.noise = max([self.noise, row.gap, *changes])
        for row in rows[::PIECES_OF]:
            self._in_pieces(row)
        if not self.floor:
            highest = (sorted(place.likeliest.values())[-2:] for row in rows for place in row.places)
            self.floor = step(scores[1] - scores[0] for scores in highest if len(scores) > 1)

    def _in_pieces(self, row: Row) -> None:
        """Count the change of scores where a row is scored some tokens at a time, as one that verifies drafts is.

        A plain server whose cache is broken must not count as noise: it would hide the same fault in the other one.
        """
        if self.cache_broken:
            return
        parts = list[Scored]()
        with suppress(Untold):
            parts = self.plain.in_pieces(row.answer.prompt, row.answer.tokens)
        for whole, part in zip(row.places, parts, strict=False):
            two = sorted(whole.likeliest, key=lambda token: -whole.likeliest[token])[:2]
            changes = [abs(whole.likeliest[token] - part.likeliest[token]) for token in two if token in part.likeliest]
            self.in_pieces = max(self.in_pieces or 0.0, *changes, 0.0)
        if self.in_pieces is not None and not self.cache_broken:
            self.noise = max(self.noise, self.in_pieces)
