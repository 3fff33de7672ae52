"""The evidence of a decode's outputs: where the model alone disagrees, what was drafted, its rounds."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import exp, prod
from typing import Any

import torch

from eqcheck.contract.decoders import RowOptions
from eqcheck.contract.options import SCORING
from eqcheck.core.case.engine import PAD, EngineCase, EngineRow
from eqcheck.engines.abduction.queries import (
    Answers,
    Branch,
    Part,
    Round,
    Turn,
    answers,
    blind_to_pads,
    in_pairs,
    looked_up,
    plain_row,
    stale,
    stale_states,
    with_prompts,
)
from eqcheck.engines.checkpoints import dictation
from eqcheck.engines.checkpoints.continuations import AskedRow, at_place, with_options
from eqcheck.engines.checkpoints.dictation import agreeing
from eqcheck.engines.checkpoints.row_judge import BUILT_NOISE
from eqcheck.engines.construction.function import ATTENTION, INPUTS, MEMORY, Function

_PADDED = -1  # no token
LEAST_CHANCE = 1e-300  # of what is not forbidden
_HOPELESS = -1e6  # a logarithm that only a forbidden token makes so small
FORBIDDEN = -1e9  # the score of a token that options forbid: no noise makes it likely
# Sigmas to try, four to a decade, in standard deviations of the scores: from one that changes no token to one that
# makes all tokens about equally likely.
NOISE = torch.logspace(-3, 1, 17, dtype=torch.float64)
Branches = list[Branch]  # of each row


def pick(scores: torch.Tensor, row: EngineRow, before: Sequence[int]) -> int:
    """The token chosen from the scores ``[vocabulary]`` after so many new tokens, with the row's options."""
    return int(at_place(scores, row, before).argmax())


def scoring(options: RowOptions) -> tuple[object, ...]:
    """A row's options on scores; the EOS ids are of them where there is a minimum."""
    eos = options.eos_token_ids if options.min_new_tokens else ()
    return eos, *(getattr(options, name) for name in SCORING)


class Evidence:
    """The outputs of a case, beside what the model alone says after each of their beginnings; made once for a case.

    ``returned`` is what the engine returned, ``outputs`` the same as far as a row may go, ``texts`` are prompts and
    outputs, ``plain[row]`` the scores ``[new tokens + 1, vocabulary]`` without options, ``expected[row]`` the tokens to
    be emitted there. ``surprising`` are the (row, index) of the tokens that are something else, in the rows ``judged``;
    ``wrong_rows`` have any, ``first_wrong`` is the first such index by row. Scores of a built checkpoint have so much
    ``noise`` at most; it counts where options bring scores close to each other.
    """

    def __init__(
        self,
        target: Any,
        draft: Any,
        case: EngineCase,
        outputs: Sequence[Sequence[int]],
        judged: Sequence[int] | None = None,
        noise: float = BUILT_NOISE,
    ) -> None:
        self.target, self.draft, self.case = target, draft, case
        self.judged = tuple(range(len(outputs)) if judged is None else judged)
        self.returned = [[int(token) for token in output] for output in outputs]
        self.outputs = [output[: self.end(row)] for row, output in enumerate(self.returned)]
        self.prompts = [list(row.prompt) for row in case.rows]
        self.texts = [prompt + output for prompt, output in zip(self.prompts, self.outputs, strict=True)]
        # One forward over all rows, here: whatever is tried later is held against these scores.
        programs = [plain_row(row, text, len(self.prompts[row])) for row, text in enumerate(self.texts)]
        self.plain = [torch.stack(list(scores.values())) for scores in answers(target, programs)]
        self.expected: list[list[int]] = []
        self.surprising: set[tuple[int, int]] = set()
        self._chosen: dict[tuple[object, ...], int] = {}
        self._noise = noise if self._mixed and isinstance(target, Function) else 0.0
        for number, (plain, output) in enumerate(zip(self.plain, self.outputs, strict=True)):
            scores = with_options(plain, case.rows[number], output)
            self.expected.append([self.preferred(number, n, score) for n, score in enumerate(scores)])
            wrong = [n for n, token in enumerate(output) if token != self.expected[number][n]]
            self.surprising |= {(number, n) for n in wrong if number in self.judged}
        self.first_wrong = dict(sorted(self.surprising, reverse=True))
        self.wrong_rows = [*{row for row, _ in self.surprising}]

    def chosen(self, row: int, index: int, asked: EngineRow | AskedRow, before: Sequence[int]) -> int:
        """The token that these options choose in a place, where these tokens count; see `preferred`.

        Kept, because most hypotheses about options agree in most places.
        """
        key = row, index, asked.prompt, scoring(asked.options), tuple(before)
        if key not in self._chosen:
            self._chosen[key] = self.preferred(row, index, at_place(self.plain[row][index], asked, before))
        return self._chosen[key]

    def preferred(self, row: int, index: int, scores: torch.Tensor) -> int:
        """The best token by scores with options, or the one that is there, if it is as good up to noise.

        Those of a built checkpoint decide by a wide margin, but for what options add.
        """
        best, seen = int(scores.argmax()), self.outputs[row][index : index + 1]
        return seen[0] if seen and scores[best] - scores[seen[0]] <= self._noise else best

    @property
    def _mixed(self) -> bool:
        return any(row.options.changes_scores for row in self.case.rows)

    @cached_property
    def _likely(self) -> dict[bool, list[torch.Tensor]]:
        """Return by row the log-probabilities of its tokens ``[noises, new tokens]``, with its own options.

        Under True, of each token with those options of the case, or none, that make it likeliest.
        """
        own = [self._logarithms(number, row.options) for number, row in enumerate(self.case.rows)]
        if not self._mixed:
            return {False: own, True: own}
        asked = {scoring(row.options): row.options for row in self.case.rows}
        others = [*asked.values(), replace(self.case.rows[0].options, **SCORING)]
        free = [torch.stack([self._logarithms(number, one) for one in others]).amax(0) for number in range(len(own))]
        return {False: own, True: free}

    def _logarithms(self, number: int, asked: RowOptions) -> torch.Tensor:
        plain, output = self.plain[number], self.outputs[number]
        scores = with_options(plain, replace(self.case.rows[number], options=asked), output)[: len(output)]
        noisy = scores.masked_fill(scores.isinf(), FORBIDDEN) / (plain.std() * NOISE[:, None, None])
        emitted = torch.tensor(output, dtype=torch.long).expand(len(NOISE), -1)
        return noisy.log_softmax(-1).gather(-1, emitted[..., None])[..., 0]

    def chance(self, row: int, end: int, once: bool, beside_options: bool = True) -> float:
        """Return how likely an edit that has nothing to do with the fault emits a row's tokens up to ``end``.

        An edit ``beside_options`` has to explain more than options that are misused do: what any of the case's options
        emit in a place, or none, is likely there. Else a draft without options, whose tokens are emitted, would
        explain why an engine forgets them.

        Counted are the tokens from the first surprising one on; any edit that is too weak to matter emits those before.

        An edit that is not the fault changes the scores ``s`` in a way that knows nothing of the tokens emitted. So it
        is taken for noise: token ``v`` has the score ``s[v] / sigma + g[v]``, where the ``g`` are independent and
        ``P(g < x) = exp(-exp(-x))`` (Gumbel). The token with the highest score is then drawn from the softmax, because
        with ``a = s / sigma`` and ``Z = sum(exp(a))`` ::

            P(v is highest) = integral of exp(a[v] - x) * exp(-Z * exp(-x)) dx = exp(a[v]) / Z

        The probabilities of the tokens, each after those before it, are multiplied. Little noise emits the right tokens
        and much noise any, so ``sigma`` is the one of `NOISE` that is likeliest to emit just these.

        An edit that happens ``once`` may disturb the surprising tokens alone, each as much as suits it. The token in
        place ``r`` of the scores has at most the probability ``1 / r``, whatever ``sigma`` is: ``r - 1`` others have at
        least as much. The greater of the two figures counts. Callers multiply by the number of edits tried, which
        bounds the probability that any of them does it.
        """
        first = self.first_wrong.get(row, end)
        if first >= end:
            return 1.0
        likely = self._likely[beside_options][row].cumsum(-1)
        best = float((likely[:, end - 1] - (likely[:, first - 1] if first else 0.0)).max())
        everywhere = 0.0 if best < _HOPELESS else max(exp(best), LEAST_CHANCE)
        if not once:
            return everywhere
        return max(everywhere, prod(1 / self._rank(row, n) for r, n in self.surprising if r == row and n < end))

    def _rank(self, row: int, index: int) -> int:
        """The place of a token in the scores, with the options of its row or none."""
        scores, token, before = self.plain[row][index], self.outputs[row][index], self.outputs[row][:index]
        asked = at_place(scores, self.case.rows[row], before)
        return 1 + min(int((one > one[token]).sum()) for one in (asked, scores))

    @property
    def recurrent(self) -> bool:
        """Return whether the target has a recurrent state, as far as it is known."""
        return isinstance(self.target, Function) and self.target.recurrent

    @cached_property
    def windows(self) -> dict[int, int]:
        """Return the window of each attention layer, or 0; empty for a target without windows."""
        parts = self.target.parts if isinstance(self.target, Function) else {}
        windows = {layer: window for (kind, layer), window in parts.items() if kind == ATTENTION}
        return windows if any(windows.values()) else {}

    @cached_property
    def scopes(self) -> dict[str, list[tuple[str, tuple[Part, ...]]]]:
        """The parts of the target that may be wrong alone, with the words for them: of its ``state`` or ``window``."""
        parts = self.target.parts if isinstance(self.target, Function) else {}
        stateful = [part for part in parts if part[0] != ATTENTION]
        windowed = tuple(part for part, window in parts.items() if window)
        layers = sorted({layer for _, layer in stateful})
        scopes = [(f"in layer {n} only", tuple(part for part in stateful if part[1] == n)) for n in layers]
        if any(kind == MEMORY for kind, _ in stateful):
            for kind, words in ((INPUTS, "in convolutions only"), (MEMORY, "in what is remembered only")):
                scopes.append((words, tuple(p for p in stateful if p[0] == kind)))
        # Where every layer has a window, "layers with a window only" would say the same as no scope.
        mixed = [("in layers with a window only", windowed)] * (len(windowed) < len(self.windows))
        return {"state": scopes, "window": mixed}

    @property
    def least_chance(self) -> float:
        """Return the chance of an edit that happens once and explains everything."""
        return prod(self.chance(row, len(self.outputs[row]), True) for row in self.judged)

    def end(self, row: int, options: RowOptions | None = None) -> int:
        """Return how many new tokens the row should have, its tokens being what they are;
        with other options than its own.
        """
        options, tokens = options or self.case.rows[row].options, self.returned[row]
        ends = (n for n in range(1, len(tokens) + 1) if options.ended(tokens[:n]))
        end = next((n for n in ends if n > options.min_new_tokens), options.max_new_tokens)
        if options.cancel_after is not None:
            end = min(end, max(options.cancel_after, len(tokens)))
        return min(end, options.max_new_tokens)

    @property
    def first(self) -> tuple[int, int] | None:
        """The first surprising token: the row that goes wrong earliest, and where."""
        return min(self.surprising, key=lambda at: (at[1], at[0]), default=None)

    @cached_property
    def drafts(self) -> Branches:
        """Map row and number of committed tokens to the K tokens drafted next, or fewer if looked up."""
        k = self.case.num_draft_tokens
        if self.case.drafting == "ngram":
            return self._each(lambda row, at: looked_up(self.texts[row][:at], k))
        if self.case.drafting == "dictated":
            starts = list(map(len, self.prompts))
            dictated = dictation.drafts(self.case)
            # The first new token is the prompt's own.
            return self._each(
                lambda row, at: dictation.proposal(dictated[row], at - starts[row], k * (at > starts[row]))
            )
        return self._drafted(with_options=False)

    def _each(self, branch: Callable[[int, int], list[int]]) -> Branches:
        places = enumerate(zip(map(len, self.prompts), map(len, self.texts), strict=True))
        return [{at: branch(row, at) for at in range(start, end + 1)} for row, (start, end) in places]

    def _drafted(self, with_options: bool) -> Branches:
        """The proposals of the draft, if there is one; ``with_options`` of the rows applied, or greedily."""
        branches = self._each(lambda row, at: [])
        if self.draft is None:
            return branches
        for _ in range(self.case.num_draft_tokens):
            # A forward for each draft token, after all numbers of committed tokens at once.
            for row, answered in enumerate(self._answered(self.draft, branches)):
                for (at, column), scores in answered.items():
                    branch = branches[row][at]
                    if column == len(branch):
                        branch.append(
                            self._drafted_next(row, at, branch, scores) if with_options else int(scores.argmax())
                        )
        return branches

    def _drafted_next(self, row: int, at: int, branch: list[int], scores: torch.Tensor) -> int:
        """The draft token after a branch, with the row's options, for which the tokens of the branch count."""
        return pick(scores, self.case.rows[row], [*self.texts[row][len(self.prompts[row]) : at], *branch])

    @cached_property
    def verified(self) -> Branches:
        """Map row and number of committed tokens to the target's choices after them and after each draft token."""
        verified = self._each(lambda row, at: [])
        for row, answered in enumerate(self._answered(self.target, self.drafts)):
            for at, column in sorted(answered):
                before = self.texts[row][len(self.prompts[row]) : at] + self.drafts[row][at][:column]
                verified[row][at].append(pick(answered[at, column], self.case.rows[row], before))
        return verified

    def _answered(self, model: Any, branches: Branches) -> list[Answers]:
        """A model's answers after each number of committed tokens and each token of the branch that follows there."""
        programs = []
        for row, branched in enumerate(branches):
            program = plain_row(row, self.texts[row], len(self.prompts[row]))
            program.queries = {}
            for at, branch in branched.items():
                program.queries[at, 0] = at - 1
                trunk = list(range(at))
                for column, token in enumerate(branch):
                    trunk.append(program.write(token, at + column, program.entry(trunk[-1])))
                    program.sees[-1] = list(trunk)
                    program.queries[at, column + 1] = len(program.tokens) - 1
            programs.append(program)
        return answers(model, programs)

    def budget(self, row: int, at: int) -> int:
        """K, or less where the row's limit is near: its last place belongs to the correction or bonus token."""
        limit = len(self.prompts[row]) + self.case.rows[row].options.max_new_tokens
        return max(0, min(self.case.num_draft_tokens, limit - at - 1))

    @cached_property
    def schedules(self) -> dict[str, list[Round]]:
        """List the schedules of a right draft; with rejected tokens kept from 32 on (``stale:32``);
        fed with prompts (``at once``); with as many drafts as there may be tokens (``to the limit``); with rejected
        tokens kept in states (``stale states``), and the last accepted draft fed again after a round (``and again``).
        """
        fulls = (1, *self.rings) if isinstance(self.draft, Function) else ()
        stale_ones = {f"stale:{full}": self._rounds(self._stale_drafts(full - 1), beyond=1) for full in fulls}
        at_once = {"at once": self._rounds(with_prompts(self.case, self.prompts, self.drafts))}
        to_limit = {"to the limit": self._rounds(self.drafts, beyond=1)}
        return self.right_schedules | stale_ones | at_once | to_limit | self.with_stale_states

    @cached_property
    def right_schedules(self) -> dict[str, list[Round]]:
        """The rounds, where every row commits what it accepts (``own``), or all what the batch's least accepts.

        In ``prefilled`` rows commit their own, too, and the first token comes from the prefill, without drafts. Outputs
        do not tell which of these an engine does, and an edit of the cache shows only at the edges of rounds. ``in
        turn`` a row begins when the one before has ended; in ``pairs`` two rows go on at a time.
        """
        own = self._rounds(self.drafts)
        turns = [[turn for turns in own for turn in turns if turn.row == row] for row in range(len(self.texts))]
        return {
            "own": own,
            "least": self._rounds(self.drafts, least=True),
            "prefilled": self._rounds(self.drafts, prefilled=True),
            "pairs": list(in_pairs(turns)),
            "in-turn": [(turn,) for row in turns for turn in row],
        }

    @property
    def rings(self) -> tuple[int, ...]:
        """The numbers of tokens with which a ring of slots may no longer be rolled back: it is full, or comes round."""
        width = max(self.windows.values(), default=0)
        return (width, width + 1) if width else ()

    def _stale_drafts(self, since: int) -> Branches:
        k, rows = self.case.num_draft_tokens, zip(self.prompts, self.texts, self.case.rows, strict=True)
        return [
            stale(self.draft, text, len(prompt), k, row.options.max_new_tokens, since) for prompt, text, row in rows
        ]

    @cached_property
    def with_stale_states(self) -> dict[str, list[Round]]:
        """The schedules of a draft in whose states rejected tokens stay; none for one without states."""
        if not isinstance(self.draft, Function) or not self.draft.recurrent:
            return {}
        drafted: dict[str, Branches] = {"stale states": [], "stale states and again": []}
        for row, (prompt, text) in enumerate(zip(self.prompts, self.texts, strict=True)):
            for again, branches in enumerate(drafted.values()):
                most = partial(self.budget, row)
                branches.append(stale_states(self.draft, text, len(prompt), most, bool(again)))
        return {name: self._rounds(branches) for name, branches in drafted.items()}

    @cached_property
    def schedules_with_options(self) -> dict[str, list[Round]]:
        """The same rounds; those of K drafts at the limit; those of drafts made with options, or padded to K.

        Some engines hide from their draft what equals the pad id: transformers does, where nothing else is hidden.

        Which draft tokens there were decides where a round ends, and a stale option is wrong from there on.
        """
        k = self.case.num_draft_tokens
        if self.case.drafting == "dictated":
            return self.right_schedules
        if self.case.drafting == "ngram":
            drafts = self._each(lambda row, at: [*self.drafts[row][at], *[_PADDED] * k][:k])
        else:
            drafts = self._drafted(with_options=True)
        more = {"uncut": self._rounds(self.drafts, beyond=k), "asked": self._rounds(drafts)}
        more |= {"uncut and prefilled": self._rounds(self.drafts, prefilled=True, beyond=k)}
        more |= {"asked, blind to pads": self._rounds(self._blind_to_pads(drafts))}
        return self.right_schedules | more | {"asked and prefilled": self._rounds(drafts, prefilled=True)}

    def _blind_to_pads(self, drafts: Branches) -> Branches:
        """The drafts that are made with options, and in rows with a pad id those of a draft that does not see it."""
        return [
            blind_to_pads(self.draft, text, len(prompt), partial(self.budget, row), partial(self._drafted_next, row))
            if self.case.drafting == "model" and self.draft is not None and PAD in text
            else drafts[row]
            for row, (prompt, text) in enumerate(zip(self.prompts, self.texts, strict=True))
        ]

    def _rounds(
        self, drafted: Branches, *, least: bool = False, prefilled: bool = False, beyond: int = 0
    ) -> list[Round]:
        rounds: list[Round] = []
        at = {row: len(prompt) for row, prompt in enumerate(self.prompts) if self.outputs[row]}
        while at:
            # Beyond its limit a row has no tokens, so drafts there are rejected, and later rounds may see them.
            most = 0 if prefilled and not rounds else self.case.num_draft_tokens
            drafts = {row: drafted[row][n][: min(most, self.budget(row, n) + beyond)] for row, n in at.items()}
            accepted = {row: agreeing(drafts[row], self.texts[row][n:]) for row, n in at.items()}
            if least:
                drafts, accepted = self._as_least(at, drafts)
            ends = {row: min(n + accepted[row] + 1, len(self.texts[row])) for row, n in at.items()}
            rounds.append(tuple(Turn(row, n, tuple(drafts[row]), accepted[row], ends[row]) for row, n in at.items()))
            at = {row: end for row, end in ends.items() if end < len(self.texts[row])}
        return rounds

    def _as_least(
        self, at: Mapping[int, int], drafts: dict[int, list[int]]
    ) -> tuple[dict[int, list[int]], dict[int, int]]:
        """The drafts cut to the fewest of a row, and what is accepted of them, which is what the least row accepts.

        A row that ends in the round holds no other back: what stands behind its end is not known.
        """
        fewest = min(map(len, drafts.values()))
        drafts = {row: proposed[:fewest] for row, proposed in drafts.items()}
        accepted = {row: agreeing(drafts[row], self.texts[row][n:]) for row, n in at.items()}
        ended = {row for row, n in at.items() if n + accepted[row] >= len(self.texts[row])}
        least = min(len(drafts[row]) if row in ended else accepted[row] for row in at)
        return drafts, {row: min(least, count) for row, count in accepted.items()}


# Hypotheses about what an engine does wrong; how much of a case one explains, and by how small a chance.

Tokens = Mapping[tuple[int, int], int]  # by row and index of the new token


@dataclass(frozen=True)
class Edit:
    """One thing that an engine may do wrong: which kind of fault it would be, its name, and the words for it.

    The catalogue of faults names edits by their ids. The words are a clause that completes "the reference emits the
    wrong tokens if ...".
    """

    fingerprint: str
    id: str
    words: str

    @property
    def component(self) -> str:
        return self.fingerprint.partition("/")[0]

    @property
    def kind(self) -> str:
        return self.fingerprint.partition("/")[2]

    @property
    def rivals(self) -> tuple[str, ...]:
        """Fingerprints that the same tokens always fit: a token that is never seen again is lost or hidden for good."""
        absent = self.kind == "missing-entry" and self.id != "not-prefilled-zeroed"
        return ("mask/token-hidden",) if absent else ()


@dataclass(frozen=True, kw_only=True)
class Hypothesis:
    """An edit, and what is said of it in particular.

    ``parameters`` are what its words name, ``when`` the rounds that it happens in. One that happens ``once``,
    not in every round of every row, explains less by what it gets right: see `Evidence.chance`. The places of a
    ``loose`` one are chosen to fit, so that it stands beside no other. Two hypotheses with one id say the same,
    whatever style of engine they assume.
    """

    edit: Edit
    parameters: tuple[tuple[str, str], ...] = ()
    when: str = ""
    once: bool = False
    loose: bool = False

    @property
    def id(self) -> str:
        """The edit's id and its parameters, ``shifted-positions:+1:from-round-3-on``."""
        values = [value for _, value in self.parameters] + [self.when] * bool(self.when)
        return ":".join([self.edit.id, *(re.sub(r"[\s_]+", "-", value) for value in values)])

    @property
    def words(self) -> str:
        words = self.edit.words.format(**dict(self.parameters))
        return f"{words} {self.when}" if self.when else words


@dataclass(frozen=True)
class Explained:
    """The surprising tokens that a hypothesis predicts before it first predicts a token that is not there.

    ``complete``: there is no such token in any row. ``chance`` is that of all tokens up to there.
    """

    hypothesis: Hypothesis
    explained: frozenset[tuple[int, int]]
    complete: bool
    chance: float

    def times(self, choices: int) -> Explained:
        """The same, where it is one of so many that might have been tried."""
        return replace(self, chance=self.chance * choices)

    def beside(self, other: Explained) -> Explained:
        """Both findings together, which are of different tokens."""
        chance = _both(self.chance, other.chance)
        return replace(self, explained=self.explained | other.explained, chance=chance)


def explained(
    evidence: Evidence, hypothesis: Hypothesis, predicted: Tokens, rows: Sequence[int] | None = None
) -> Explained:
    """Return how much of all judged rows is explained, or of some."""
    tokens: set[tuple[int, int]] = set()
    complete, chance = True, 1.0
    for row in evidence.judged if rows is None else rows:
        output = evidence.outputs[row]
        same = agreeing([predicted.get((row, index), -1) for index in range(len(output))], output)
        if same < evidence.first_wrong.get(row, len(output)):
            return Explained(hypothesis, frozenset(), False, 1.0)  # it would have made a token wrong that is right
        tokens |= {(row, n) for n in range(same) if (row, n) in evidence.surprising}
        complete = complete and same == len(output)
        beside = hypothesis.edit.component != "options"
        chance = _both(chance, evidence.chance(row, same, hypothesis.once, beside))
    return Explained(hypothesis, frozenset(tokens), complete, chance)


def predictions(evidence: Evidence, answered: Iterable[Answers]) -> dict[tuple[int, int], int]:
    """The tokens that are chosen from a model's answers, with the options of their rows."""
    return {
        (row, index): evidence.preferred(
            row, index, at_place(scores, evidence.case.rows[row], evidence.outputs[row][:index])
        )
        for answers in answered
        for (row, index), scores in answers.items()
    }


def _both(one: float, other: float) -> float:
    """The chance of both; 0 only if one is: that of a forbidden token."""
    return max(one * other, LEAST_CHANCE) if one and other else 0.0
