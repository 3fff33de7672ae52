"""Attribution from outside explains what a small incremental decoder does wrong, and nothing else."""

from __future__ import annotations

import random
import re
from collections import Counter
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import DynamicCache

from eqcheck.checkpoints import built
from eqcheck.contract.decoders import RowOptions
from eqcheck.contract.kinds import KINDS
from eqcheck.core.case.engine import PAD, VOCAB_SIZE, EngineCase, EngineRow
from eqcheck.engines.abduction import EDITS, Abduced, Evidence, abduce, everywhere, row_by_row
from eqcheck.engines.abduction.context_edits import CONTEXTS
from eqcheck.engines.abduction.evidence import NOISE, Hypothesis
from eqcheck.engines.abduction.output_edits import RULES
from eqcheck.engines.abduction.placements import systematic
from eqcheck.engines.abduction.queries import _Evaluation, _exact, plain_row
from eqcheck.engines.checkpoints.continuations import ModelTruth
from eqcheck.engines.checkpoints.folders import checkpoint

PROMPTS = ((17, 201, 5, 88, 140), (9, 64), (77, 3, 250))
K = 3


def case_of(*, prompts: tuple[tuple[int, ...], ...] = PROMPTS, **options: Any) -> EngineCase:
    chosen = RowOptions(**{"max_new_tokens": 18, **options})
    return EngineCase(tuple(EngineRow(prompt, chosen) for prompt in prompts), num_draft_tokens=K)


@pytest.fixture(scope="module")
def models() -> tuple[Any, Any]:
    torch.set_num_threads(1)
    return checkpoint().models()


@dataclass
class Line:
    """A row being decoded: its cache, and of each slot the index of its token and whether it is seen."""

    row: int
    text: list[int]
    pads: int = 0
    cache: Any = field(default_factory=DynamicCache)
    at: list[int] = field(default_factory=list)
    seen: list[bool] = field(default_factory=list)
    cached: int = 0
    rejected: int = 0  # draft tokens, in all rounds so far


class Decoder:
    """Speculative decoding with a cache per row; rejected entries stay where they are and are hidden. It is right."""

    pads = False
    spare = 1  # places for a bonus token that drafts leave free at the limit

    def __init__(self, target: Any, draft: Any, case: EngineCase) -> None:
        self.target, self.draft, self.case = target, draft, case
        self.number = 0

    def position(self, line: Line, at: int) -> int:
        return at

    def sees(self, line: Line, query: int, key: int) -> bool:
        return line.seen[key] and key <= query

    def keeps(self, line: Line, rejected: int) -> bool:
        return False

    def block(self, drafts: list[int], expected: list[int], count: int) -> list[int]:
        return [*drafts[:count], expected[count]]

    def again(self, line: Line) -> int:
        return 0

    def between(self, lines: list[Line]) -> None:
        pass

    @torch.no_grad()
    def decode(self) -> list[list[int]]:
        most = max(len(row.prompt) for row in self.case.rows)
        lines = [Line(n, list(row.prompt)) for n, row in enumerate(self.case.rows)]
        for line in lines:
            line.pads = (most - len(line.text)) if self.pads else 0
        going = list(lines)
        while going:
            for line in going:
                self.round(line)
            self.between(lines)
            self.number += 1
            going = [line for line in going if not self.done(line)]
        return [line.text[len(row.prompt) :] for line, row in zip(lines, self.case.rows, strict=True)]

    def end(self, line: Line) -> int:
        return len(self.case.rows[line.row].prompt) + self.case.rows[line.row].options.max_new_tokens

    def done(self, line: Line) -> bool:
        return len(line.text) >= self.end(line)

    def round(self, line: Line) -> None:
        drafts: list[int] = []
        while len(drafts) < min(K, self.end(line) - len(line.text) - self.spare):
            ids = torch.tensor([line.text + drafts])
            drafts.append(int(self.draft(input_ids=ids, use_cache=False).logits[0, -1].argmax()))
        start = line.cached - self.again(line)
        tokens, at = [*line.text[start:], *drafts], list(range(start, len(line.text) + len(drafts)))
        if line.pads and not line.at:
            tokens, at = [PAD] * line.pads + tokens, [-1] * line.pads + at
        expected = self.feed(line, tokens, at)[-len(drafts) - 1 :]
        count = next((n for n, (a, b) in enumerate(zip(drafts, expected, strict=False)) if a != b), len(drafts))
        block = self.block(drafts, expected, count)
        kept = next(
            (n for n, (a, b) in enumerate(zip(drafts, block, strict=False)) if a != b), min(map(len, (drafts, block)))
        )
        for slot in range(len(line.at) - len(drafts) + kept, len(line.at)):
            line.seen[slot] = self.keeps(line, slot - len(line.at) + len(drafts) - kept)
        line.rejected += len(drafts) - kept
        line.cached = min(len(line.text) + kept, len(line.text) + len(block) - 1)
        line.text += block
        del line.text[self.end(line) :]

    def feed(self, line: Line, tokens: list[int], at: list[int]) -> list[int]:
        begin = len(line.at)
        line.at += at
        line.seen += [True] * len(at)
        mask = torch.full((len(at), len(line.at)), -1e30, dtype=torch.float64)
        for query in range(begin, len(line.at)):
            for key in range(len(line.at)):
                if self.sees(line, query, key):
                    mask[query - begin, key] = 0.0
        logits = self.target(
            input_ids=torch.tensor([tokens]),
            attention_mask=mask[None, None],
            position_ids=torch.tensor([[max(0, self.position(line, place)) for place in at]]),
            past_key_values=line.cache,
            use_cache=True,
        ).logits
        choices: list[int] = logits[0].argmax(-1).tolist()
        return choices


class ShiftedFromOnset(Decoder):
    def position(self, line: Line, at: int) -> int:
        return at + 2 * (self.number >= 3 and line.row == 0)


class Capped(Decoder):
    def position(self, line: Line, at: int) -> int:
        return min(at, 13)


class ShiftedOnce(Decoder):
    def position(self, line: Line, at: int) -> int:
        return at + 3 * (self.number == 1 and line.row != 1)


class Drifting(Decoder):
    def position(self, line: Line, at: int) -> int:
        return at + line.rejected


class ChunkRestarted(Decoder):
    def position(self, line: Line, at: int) -> int:
        return at - 2 * (line.row == 0 and self.number == 0 and 2 <= at < 5)


class RejectedSeen(Decoder):
    def keeps(self, line: Line, rejected: int) -> bool:
        return True


class OneRejectedSeen(Decoder):
    def keeps(self, line: Line, rejected: int) -> bool:
        return rejected == 0


class RejectedSeenFromOneRound(Decoder):
    def keeps(self, line: Line, rejected: int) -> bool:
        return self.number == 1 and line.row == 2


class TokenLost(Decoder):
    def sees(self, line: Line, query: int, key: int) -> bool:
        lost = line.row == 0 and self.number > 1 and line.at[key] == 3
        return super().sees(line, query, key) and not lost


class NewestTwice(Decoder):
    def again(self, line: Line) -> int:
        return int(line.cached > 0)


class FutureSeen(Decoder):
    def sees(self, line: Line, query: int, key: int) -> bool:
        return line.seen[key] and key <= query + 1


class ItselfHidden(Decoder):
    def sees(self, line: Line, query: int, key: int) -> bool:
        return super().sees(line, query, key) and (key != query or line.at[query] == line.cached)


class RewoundFurther(Decoder):
    """A round of several drafts that is rejected whole is taken back too far; positions count what is left."""

    further, least = 1, 2

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.off = Counter[int]()

    def position(self, line: Line, at: int) -> int:
        return at + self.off[line.row]

    def round(self, line: Line) -> None:
        text, slots, cached, rejected = len(line.text), len(line.at), line.cached, line.rejected
        super().round(line)
        drafted = len(line.at) - slots - (text - cached)
        self.taken_back(line, drafted, line.rejected - rejected)

    def taken_back(self, line: Line, drafted: int, rejected: int) -> None:
        if drafted == rejected >= self.least:
            for slot in [slot for slot, seen in enumerate(line.seen) if seen][-self.further :]:
                line.seen[slot] = False
                self.off[line.row] -= 1


class RejectedCounted(RewoundFurther):
    """Where several drafts are rejected, the first stays, and the next token comes behind it."""

    def taken_back(self, line: Line, drafted: int, rejected: int) -> None:
        if rejected >= self.least:
            for slot in range(len(line.at) - rejected, len(line.at) - rejected + self.further):
                line.seen[slot] = True
                self.off[line.row] += 1


class PadsSeen(Decoder):
    pads = True


class SecondChunkAlone(Decoder):
    def sees(self, line: Line, query: int, key: int) -> bool:
        return super().sees(line, query, key) and not (line.row == 0 and line.at[key] < 2 <= line.at[query] < 5)


class ChunkLost(Decoder):
    def sees(self, line: Line, query: int, key: int) -> bool:
        return super().sees(line, query, key) and not (line.row == 0 and line.at[key] < 2 <= line.at[query])


class RowsExchanged(Decoder):
    def between(self, lines: list[Line]) -> None:
        if self.number == 1:
            a, b = lines[0], lines[1]
            a.cache, a.at, a.seen, b.cache, b.at, b.seen = b.cache, b.at, b.seen, a.cache, a.at, a.seen


class OverAccepting(Decoder):
    def block(self, drafts: list[int], expected: list[int], count: int) -> list[int]:
        return drafts[: count + 1] if count < len(drafts) else [*drafts, expected[-1]]


class UnverifiedOnce(Decoder):
    def block(self, drafts: list[int], expected: list[int], count: int) -> list[int]:
        if self.number in (1, 2) and count < len(drafts) == K:
            return [*drafts[:2], *expected[:2]]
        return super().block(drafts, expected, count)


class EndUnverified(Decoder):
    unverified = 1

    def block(self, drafts: list[int], expected: list[int], count: int) -> list[int]:
        whole = count + self.unverified >= len(drafts)
        return [*drafts, expected[-1]] if whole else super().block(drafts, expected, count)


class LastColumn(Decoder):
    def block(self, drafts: list[int], expected: list[int], count: int) -> list[int]:
        return [*drafts[:count], expected[-1]]


class Dropping(Decoder):
    def block(self, drafts: list[int], expected: list[int], count: int) -> list[int]:
        return [*drafts[: max(0, count - 1)], expected[count]]


class Twice(Decoder):
    def block(self, drafts: list[int], expected: list[int], count: int) -> list[int]:
        return [*drafts[:count], expected[count], expected[count]]


PLANTED: list[tuple[type[Decoder], str]] = [
    (ShiftedFromOnset, "position/query-position"),
    (Capped, "position/query-position"),
    (ShiftedOnce, "position/query-position"),
    (Drifting, "position/query-position"),
    (ChunkRestarted, "position/query-position"),
    (RejectedSeen, "cache/stale-entry"),
    (OneRejectedSeen, "cache/stale-entry"),
    (RejectedSeenFromOneRound, "cache/stale-entry"),
    (TokenLost, "cache/missing-entry"),
    (ChunkLost, "cache/missing-entry"),
    (RewoundFurther, "cache/missing-entry"),
    (RejectedCounted, "cache/stale-entry"),
    (NewestTwice, "cache/duplicate-entry"),
    (RowsExchanged, "cache/wrong-row"),
    (PadsSeen, "mask/pad-visible"),
    (FutureSeen, "mask/future-visible"),
    (ItselfHidden, "mask/token-hidden"),
    (SecondChunkAlone, "mask/token-hidden"),
    (OverAccepting, "bookkeeping/over-accept"),
    (EndUnverified, "bookkeeping/over-accept"),
    (UnverifiedOnce, "bookkeeping/unverified"),
    (LastColumn, "bookkeeping/wrong-correction"),
    (Dropping, "bookkeeping/lost-token"),
    (Twice, "bookkeeping/repeated-token"),
]


def named(found: Abduced | None) -> str:
    return f"{found.component}/{found.kind}" if found else ""


@pytest.mark.parametrize(("decoder", "fingerprint"), PLANTED, ids=lambda given: getattr(given, "__name__", ""))
@pytest.mark.tiers(quick=1, rest=6)
def test_a_planted_edit_is_named(models: tuple[Any, Any], decoder: type[Decoder], fingerprint: str) -> None:
    case = case_of()
    outputs = decoder(*models, case).decode()
    truth = ModelTruth(models[0])
    right = [truth.row(row) for row in case.rows]
    assert outputs != right, "the edit has to change a token"
    found = abduce(Evidence(*models, case, outputs))
    assert found is not None
    assert named(found) == fingerprint
    assert outputs[found.row][: found.token_index] == right[found.row][: found.token_index]
    assert 0 < found.search.explained <= found.search.surprising
    assert found.search.chance <= 0.01


@pytest.mark.parametrize(
    ("decoder", "amounts", "edit"),
    [
        (RewoundFurther, {}, "rewound-too-far:where-all-of-2-or-more-draft-tokens-are-rejected"),
        (RewoundFurther, {"further": 2, "least": 1}, "rewound-too-far:where-none-is-accepted"),
        (RewoundFurther, {"spare": 0}, "rewound-too-far:where-none-is-accepted"),
        (RejectedCounted, {}, "first-rejected-counted:where-2-or-more-draft-tokens-are-rejected"),
        (
            RejectedCounted,
            {"further": 2, "least": 3},
            "first-rejected-counted:where-3-or-more-draft-tokens-are-rejected",
        ),
        (EndUnverified, {}, "end-unverified:1-draft-token"),
        (EndUnverified, {"unverified": 2}, "end-unverified:2-draft-tokens"),
        (EndUnverified, {"spare": 0}, "end-unverified:1-draft-token"),
    ],
)
@pytest.mark.tiers(quick=2, rest=6)
def test_what_happens_after_some_rounds_only_is_named_with_these(
    models: tuple[Any, Any], decoder: type[Decoder], amounts: dict[str, int], edit: str
) -> None:
    case = case_of(max_new_tokens=30)
    found = abduce(Evidence(*models, case, type("Planted", (decoder,), amounts)(*models, case).decode()))
    assert found is not None
    assert not found.open
    assert found.search.edit == edit


@pytest.mark.parametrize("decoder", [OverAccepting, LastColumn, Dropping])
@pytest.mark.tiers(quick=1, rest=2)
def test_a_wrong_commit_is_named_in_a_single_row(models: tuple[Any, Any], decoder: type[Decoder]) -> None:
    case = case_of(prompts=PROMPTS[:1])
    found = abduce(Evidence(*models, case, decoder(*models, case).decode()))
    assert named(found) == dict(PLANTED)[decoder]


@pytest.mark.parametrize("seed", range(2))
def test_right_outputs_have_no_explanation(models: tuple[Any, Any], seed: int) -> None:
    draw = random.Random(seed)
    prompts = tuple(tuple(draw.randrange(VOCAB_SIZE) for _ in range(draw.randint(1, 8))) for _ in range(2))
    case = case_of(prompts=prompts)
    outputs = Decoder(*models, case).decode()
    assert outputs == [ModelTruth(models[0]).row(row) for row in case.rows]
    assert abduce(Evidence(*models, case, outputs)) is None


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("count", [1, 4])
@pytest.mark.tiers(quick=3, rest=4)
def test_random_tokens_have_no_explanation(models: tuple[Any, Any], seed: int, count: int) -> None:
    draw = random.Random(seed)
    case = case_of(prompts=PROMPTS[:2], max_new_tokens=12)
    truth = ModelTruth(models[0])
    begin = truth.row(case.rows[0])[: 1 + seed] + [draw.randrange(VOCAB_SIZE) for _ in range(count)]
    outputs = [truth.row(case.rows[0], begin), truth.row(case.rows[1])]
    assert abduce(Evidence(*models, case, outputs)) is None


@pytest.mark.rest
def test_an_edit_that_would_make_a_right_row_wrong_is_no_explanation(models: tuple[Any, Any]) -> None:
    case = case_of()
    right = [ModelTruth(models[0]).row(row) for row in case.rows]
    outputs = PadsSeen(*models, case).decode()
    assert outputs[1] != right[1]
    assert outputs[2] != right[2]
    found = abduce(Evidence(*models, case, [right[0], outputs[1], right[2]]))
    assert found is None or found.search.edit != "pads-seen"


@pytest.mark.rest
def test_only_the_rows_asked_for_are_explained(models: tuple[Any, Any]) -> None:
    case = case_of()
    outputs = PadsSeen(*models, case).decode()
    assert abduce(Evidence(*models, case, outputs, [0])) is None
    found = abduce(Evidence(*models, case, outputs, [1]))
    assert named(found) == "mask/pad-visible"
    assert found is not None
    assert found.row == 1


def test_without_a_draft_positions_are_still_explained(models: tuple[Any, Any]) -> None:
    class Plain(ShiftedFromOnset):
        def end(self, line: Line) -> int:
            return min(super().end(line), len(line.text) + 1) if self.number < 20 else super().end(line)

        def done(self, line: Line) -> bool:
            return len(line.text) >= Decoder.end(self, line)

    target, draft = models
    case = case_of(prompts=PROMPTS[:2])
    assert named(abduce(Evidence(target, None, case, Plain(target, draft, case).decode()))) == "position/query-position"


def test_the_chance_is_that_of_noise_which_emits_the_same(models: tuple[Any, Any]) -> None:
    truth = ModelTruth(models[0])
    row = case_of(prompts=PROMPTS[:1], max_new_tokens=3).rows[0]
    right = truth.row(row)
    case = EngineCase((row,), num_draft_tokens=K)
    probe = Evidence(*models, case, [right]).plain[0]
    token = int(probe[2].topk(4).indices[3])
    evidence = Evidence(*models, case, [[*right[:2], token]])
    torch.manual_seed(1)
    noise = -torch.empty(40_000, VOCAB_SIZE, dtype=torch.float64).exponential_().log()
    drawn = [((probe[2] / (sigma * probe.std()) + noise).argmax(-1) == token).double().mean() for sigma in NOISE[8:]]
    assert evidence.chance(0, 3, once=False) == pytest.approx(float(max(drawn)), rel=0.1)
    assert evidence.chance(0, 3, once=True) == pytest.approx(1 / 4)
    assert evidence.chance(0, 2, once=True) == 1.0


def test_every_edit_is_one_that_is_tried_and_says_which_kind_it_would_be() -> None:
    scopes: dict[str, list[Any]] = {"state": [], "window": [], "": []}
    target: Any = SimpleNamespace(recurrent=True, windows={0: 32}, rings=(32,), scopes=scopes, draft=None)
    target.case = SimpleNamespace(prefix_caching=True, num_draft_tokens=2)
    target.schedules = {place.partition("/")[2]: list[Any]() for edit in CONTEXTS for place in edit.places}
    target.with_stale_states = {}
    everywhere = {hypothesis.edit.id for hypothesis in systematic(target)}
    tried = everywhere | {rule.edit.id for rule in RULES}
    evidence_of_one_row = {"shifted-positions", "another-seen", "another-instead", "rows-exchanged", "ended-row-seen"}
    evidence_of_one_row |= {"token-lost", "chunk-lost", "chunk-blind", "chunk-restarted", "window-lost", "state-cut"}
    evidence_of_one_row |= {"positions-behind-hit", "hit-of-another", "capped-positions"}
    evidence_of_one_row |= {"state-without-end", "state-left", "state-taken", "state-pads", "state-of-another-place"}
    rest = {name for name in EDITS if name not in tried | evidence_of_one_row}
    assert {EDITS[name].component for name in rest} == {"bookkeeping", "options"}
    for name, edit in EDITS.items():
        assert name == edit.id
        assert KINDS[edit.kind].component == edit.component
        assert re.fullmatch(r"[a-z]+(-[a-z]+)*", name)
    assert tried <= set(EDITS)
    assert {edit.id for edit in CONTEXTS} == everywhere | evidence_of_one_row


def test_an_id_has_the_parameters_that_the_words_tell() -> None:
    one = Hypothesis(edit=EDITS["shifted-positions"], parameters=(("shift", "+1"),), when="from round 3 on")
    assert (one.id, one.words) == ("shifted-positions:+1:from-round-3-on", "position ids are +1 off from round 3 on")
    assert Hypothesis(edit=EDITS["pads-seen"]).id == "pads-seen"


@pytest.mark.parametrize("kind", ["full", "hybrid", "delta"])
def test_rows_that_see_their_own_text_are_answered_by_the_function(kind: str) -> None:
    """What is exact agrees with what is evaluated, to what the steps of the construction leave."""
    random.seed(5)
    text = [random.randrange(VOCAB_SIZE) for _ in range(60)]
    program = plain_row(0, text, 1)
    trunk = list(range(50))
    for column in range(4):  # a branch of draft tokens behind 50 of them
        trunk.append(program.write(random.randrange(VOCAB_SIZE), 50 + column, trunk[-1]))
        program.sees[-1] = list(trunk)
        program.queries[1, column] = trunk[-1]
    function = built(kind).function
    exact, evaluated = (
        _exact(function, [plain_row(0, text[:9], 1), program])[1],
        _Evaluation(function, program).answers(),
    )
    assert exact.keys() == evaluated.keys()
    for key, scores in exact.items():
        torch.testing.assert_close(scores, evaluated[key], rtol=0.0, atol=0.05)
    assert program.right
    for wrong in (
        replace(program, positions=[*program.positions[:-1], 52]),
        replace(program, columns=program.columns[:-1]),  # as in what is left where no answer depends on it
        replace(program, sees=[*program.sees[:-1], trunk[1:]]),
        replace(program, sees=[*program.sees[:3], range(3), *program.sees[4:]]),
        replace(program, follows=[*program.follows[:-1], trunk[-3]]),
        replace(program, columns=[*program.columns[:-1], (0, 0)]),
        replace(program, blind={3: (0, 1)}),
    ):
        assert not wrong.right


@pytest.mark.parametrize("name", ["full", "delta", "mamba"])
def test_a_function_that_is_asked_nothing_answers_nothing(name: str) -> None:
    assert _exact(built(name).function, []) == []


def test_no_search_in_long_rows_takes_hours() -> None:
    """A row of a thousand tokens has a million places where a window may have lost something."""
    built = checkpoint("mistral").built
    assert built is not None
    case = EngineCase((EngineRow(tuple(n % 250 for n in range(1000)), RowOptions(1)),), 2, checkpoint="mistral")
    long = Evidence(built[0].function, built[1].function, case, [[7]])
    assert long.first == (0, 0)
    assert everywhere(long)[1] == len(everywhere(long)[0]), "no context was tried"
    assert row_by_row(long) == ([], 0)
    short = Evidence(built[0].function, built[1].function, EngineCase((EngineRow((1, 2), RowOptions(1)),), 2), [[7]])
    assert row_by_row(short)[1] > 20
