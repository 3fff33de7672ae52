"""Engines that draft and verify in unusual ways, right and wrong, for tests of what the draft side loses."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers import DynamicCache

from eqcheck.catalogue.engines.batch import Holes, Realigned, RolledBack
from eqcheck.catalogue.engines.engine import RoundEngine, Rows, left_padded
from eqcheck.catalogue.engines.lines import Continuous
from eqcheck.catalogue.engines.rows import PerRow, Uncached
from eqcheck.contract.cache_names import cache_of
from eqcheck.contract.decoders import Request
from eqcheck.core.case.record import Case
from eqcheck.core.result.outcome import Loss
from eqcheck.transparent.attribution.lost_drafts import draft_losses
from eqcheck.transparent.decoding import run
from eqcheck.transparent.oracle import judge


def losses_and_rounds(engine: type[RoundEngine], case: Case) -> tuple[Counter[Loss], int]:
    """What an engine is told to have lost, and how many rounds its rows took: a row's part in a `commit` is one."""
    rounds = 0

    class Counting(engine):  # type: ignore[valid-type,misc]
        def commit(self, drafts: Rows, predicted: Rows) -> list[int]:
            nonlocal rounds
            rounds += len(self.active)
            counts: list[int] = super().commit(drafts, predicted)
            return counts

    def generate(target: Any, draft: Any, request: Request) -> Rows:
        rows: Rows = Counting(target, draft, request).decode()
        return rows

    done = run(generate, case)
    assert judge(done), judge(done).explain() + done.failure_text
    return draft_losses(done), rounds


def answers(model: Any, row: list[int]) -> list[int]:
    """What a model predicts after each token of a row, without a cache."""
    found: list[int] = model(input_ids=torch.tensor([row]), use_cache=False).logits[0].argmax(-1).tolist()
    return found


class LookedUp(Uncached):
    """Drafts what came before in the row, without the draft model."""

    def propose(self, budget: Sequence[int]) -> Rows:
        return [(self.rows[i] * count)[:count] for i, count in zip(self.active, budget, strict=True)]


class LookedUpNowAndThen(Realigned):
    """Asks the draft in every other round, and looks up in the others."""

    turns = 0

    def propose(self, budget: Sequence[int]) -> Rows:
        self.turns += 1
        return super().propose(budget) if self.turns % 2 else LookedUp.propose(self, budget)  # type: ignore[arg-type]


class LookedUpForSome(PerRow):
    """Looks up for rows of an even index, and asks the draft for the others."""

    def propose(self, budget: Sequence[int]) -> Rows:
        asked = super().propose([k * (i % 2) for i, k in zip(self.active, budget, strict=True)])
        looked_up = LookedUp.propose(self, budget)  # type: ignore[arg-type]
        return [mine if i % 2 else other for i, mine, other in zip(self.active, asked, looked_up, strict=True)]


class TwoStages(Uncached):
    """A guess is looked up and verified by the draft, and what the draft says is proposed."""

    def propose(self, budget: Sequence[int]) -> Rows:
        return [self.staged(self.rows[i], count) for i, count in zip(self.active, budget, strict=True)]

    def staged(self, row: list[int], count: int) -> list[int]:
        proposed: list[int] = []
        while len(proposed) < count:
            guess = (row[::-1] * 2)[:2]
            says = answers(self.draft, row + proposed + guess)[-3:]
            right = self.accepted(guess, says)
            proposed += [*guess[:right], says[right]]
        return proposed[:count]


class TwoStagesRolledBack(RolledBack):
    staged = TwoStages.staged

    def propose(self, budget: Sequence[int]) -> Rows:
        return TwoStages.propose(self, [min(budget)] * len(budget))  # type: ignore[arg-type]


class DraftsTwice(Uncached):
    """Is not content with what it drafted, and drafts again."""

    def propose(self, budget: Sequence[int]) -> Rows:
        super().propose(budget)
        return super().propose(budget)


class Recycles(Uncached):
    """What followed the rejected token is proposed once more behind the correction, and nobody is asked."""

    def begin(self) -> None:
        super().begin()
        self.rest: dict[int, list[int]] = {}

    def commit(self, drafts: Rows, predicted: Rows) -> list[int]:
        counts = super().commit(drafts, predicted)
        self.rest = {i: d[count + 1 :] for i, d, count in zip(self.active, drafts, counts, strict=True)}
        return counts

    def propose(self, budget: Sequence[int]) -> Rows:
        rest = [self.rest.get(i, []) for i in self.active]
        fresh = super().propose([0 if left else k for left, k in zip(rest, budget, strict=True)])
        return [(left or new)[:k] for left, new, k in zip(rest, fresh, budget, strict=True)]


class VerifiesInTwoCalls(PerRow):
    """Verifies the first half of a row's draft tokens, and where all are accepted the second."""

    def verify(self, drafts: Rows) -> Rows:
        predicted = []
        for i, proposed in zip(self.active, drafts, strict=True):
            half = len(proposed) // 2
            first, second = proposed[:half], proposed[half:]
            says = self.feed(i, self.rows[i][self.lengths[i] :] + first)[-half - 1 :].argmax(-1).tolist()
            if second and says == [*first, second[0]]:
                says += self.feed(i, second).argmax(-1).tolist()
            predicted.append(says)
        return predicted


class Twice:
    """A model that makes a call twice where ``again`` says so; the first one has a copy of the cache."""

    def __init__(self, model: Any, again: Callable[[Any], bool]) -> None:
        self.model, self.again = model, again

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def __call__(self, **given: Any) -> Any:
        if self.again(cache_of(given)):
            self.model(**copy.deepcopy(given))
        return self.model(**given)


def twice(engine: type[RoundEngine], again: Callable[[Any], bool] = lambda cache: True) -> type[RoundEngine]:
    """An engine that makes each call of the target twice, or those of which ``again`` says so by their cache."""

    class Doubled(engine):  # type: ignore[valid-type,misc]
        def __init__(self, target: Any, draft: Any, request: Request) -> None:
            super().__init__(Twice(target, again), draft, request)

    return Doubled


def prefills(cache: Any) -> bool:
    """Whether a call begins with an empty cache."""
    return cache is not None and not cache.get_seq_length()


def verifies(cache: Any) -> bool:
    """Whether a call goes on with what is in a cache."""
    return not prefills(cache)


class RoundsTwice(Uncached):
    """Drafts and verifies in vain before it does so in earnest."""

    def propose(self, budget: Sequence[int]) -> Rows:
        self.verify(super().propose(budget))
        return super().propose(budget)


class NewestFirst(PerRow):
    """Asks for the newest token alone before it asks for the draft tokens, too."""

    def verify(self, drafts: Rows) -> Rows:
        for i in self.active:
            kept = copy.deepcopy(self.caches[i]), self.lengths[i]
            self.feed(i, self.rows[i][self.lengths[i] :])
            self.caches[i], self.lengths[i] = kept
        return super().verify(drafts)


class TwoCandidates(Uncached):
    """Beside what the draft proposes, what it proposes behind its second choice is verified in a row of its own."""

    def verify(self, drafts: Rows) -> Rows:
        others = [self.behind_second(i, len(proposed)) for i, proposed in zip(self.active, drafts, strict=True)]
        both, rows = drafts + others, len(drafts)
        logits = self.feed(list(zip(self.active * 2, both, strict=True)))
        predicted = [row[-len(d) - 1 :].argmax(-1).tolist() for row, d in zip(logits, both, strict=True)]
        for slot in range(rows):
            other = rows + slot
            if self.accepted(both[other], predicted[other]) > self.accepted(both[slot], predicted[slot]):
                drafts[slot], predicted[slot] = both[other], predicted[other]
        return predicted[:rows]

    def behind_second(self, i: int, count: int) -> list[int]:
        proposed: list[int] = []
        if count:
            logits = self.draft(input_ids=torch.tensor([self.rows[i]]), use_cache=False).logits[0, -1]
            proposed = [int(logits.argsort()[-2])]
        while len(proposed) < count:
            proposed.append(answers(self.draft, self.rows[i] + proposed)[-1])
        return proposed


class PromptsFirst(PerRow):
    """The prompts' round has no draft tokens."""

    def budget(self, i: int) -> int:
        return super().budget(i) if len(self.rows[i]) > self.starts[i] else 0


class PromptsFedAlone(PerRow):
    """Prompts are fed in calls of their own, whose answers are not used."""

    def begin(self) -> None:
        super().begin()
        for i in range(len(self.rows)):
            self.feed(i, self.rows[i][self.lengths[i] :])
            self.roll_back(i, 1)


class DraftsFewer(Realigned):
    """Drafts K for each row, and verifies as many of each as the row with the least room has."""

    def propose(self, budget: Sequence[int]) -> Rows:
        return [proposed[: min(budget)] for proposed in super().propose(budget)]


class LastNotVerified(Realigned):
    """The last token that the draft predicts is not verified."""

    def propose(self, budget: Sequence[int]) -> Rows:
        return [proposed[:-1] for proposed in super().propose(budget)]


class CachedDraft(PerRow):
    """The draft has a cache per row and is fed its last token, too; with ``catches_up`` what is missing comes later."""

    catches_up = False

    def begin(self) -> None:
        super().begin()
        request = Request(**{**vars(self.request), "prefill_chunk": None, "prefix_length": 0})
        self.drafter = PerRow(self.draft, self.draft, request)  # only its caches are used
        self.drafter.begin()

    def propose(self, budget: Sequence[int]) -> Rows:
        drafter, drafts = self.drafter, []
        for i, count in zip(self.active, budget, strict=True):
            proposed: list[int] = []
            waiting = self.rows[i][drafter.lengths[i] :]
            while self.catches_up and count and len(waiting) > 1:
                drafter.feed(i, waiting[:1])
                waiting = waiting[1:]
            while len(proposed) < count:
                proposed.append(int(drafter.feed(i, waiting)[-1].argmax()))
                waiting = proposed[-1:]
            if proposed and not self.catches_up:
                drafter.feed(i, waiting)
            drafts.append(proposed)
        return drafts

    def after(self, going: Sequence[int], lengths: Sequence[int]) -> None:
        super().after(going, lengths)
        for i in self.active:
            self.drafter.roll_back(i, max(0, self.drafter.lengths[i] - len(self.rows[i]) + 1))


class CatchesUp(CachedDraft):
    catches_up = True


class CatchesUpRolledBack(CatchesUp):
    """Every row keeps as much as the one that accepts least."""

    def propose(self, budget: Sequence[int]) -> Rows:
        return super().propose([min(budget)] * len(budget))

    def commit(self, drafts: Rows, predicted: Rows) -> list[int]:
        least = min(self.accepted(d, p) for d, p in zip(drafts, predicted, strict=True))
        return super().commit([d[:least] for d in drafts], [p[: least + 1] for p in predicted])


class DraftsAhead(PerRow):
    """Drafts the next block before this one is verified, and uses it where all of this one is accepted."""

    def begin(self) -> None:
        super().begin()
        self.ahead: dict[int, list[int]] = {}

    def propose(self, budget: Sequence[int]) -> Rows:
        drafts = []
        for i, count in zip(self.active, budget, strict=True):
            proposed = self.ahead.pop(i, [])[:count]
            more = list(proposed)
            while len(more) < count + self.request.num_draft_tokens + 1:
                more.append(answers(self.draft, self.rows[i] + more)[-1])
            drafts.append(more[:count])
            self.ahead[i] = more[count:]
        return drafts

    def commit(self, drafts: Rows, predicted: Rows) -> list[int]:
        counts = super().commit(drafts, predicted)
        for i, proposed, count in zip(self.active, drafts, counts, strict=True):
            first, *more = self.ahead.pop(i)
            if count == len(proposed) and first == self.rows[i][-1]:
                self.ahead[i] = more
        return counts


class OneWidth(Uncached):
    """Rows are filled up with pads on the right, to one width in all rounds; rows that are done stay in the batch."""

    def verify(self, drafts: Rows) -> Rows:
        drafted = dict(zip(self.active, drafts, strict=True))
        texts = [row + drafted.get(i, []) for i, row in enumerate(self.rows)]
        width = max(self.limit(i) for i in range(len(texts)))
        fill = [[self.request.pad_token_id] * (width - len(text)) for text in texts]
        logits = self.target(
            input_ids=torch.tensor([text + pads for text, pads in zip(texts, fill, strict=True)]),
            attention_mask=torch.tensor([[1] * len(t) + [0] * len(pads) for t, pads in zip(texts, fill, strict=True)]),
            position_ids=torch.arange(width).expand(len(texts), -1),
            use_cache=False,
        ).logits
        ends = [len(text) for text in texts]
        return [logits[i, ends[i] - len(proposed) - 1 : ends[i]].argmax(-1).tolist() for i, proposed in drafted.items()]


class OneWidthDraftedTogether(OneWidth):
    """The draft, too, goes on with all rows, done or not, as long as any row has room."""

    def propose(self, budget: Sequence[int]) -> Rows:
        texts = [list(row) for row in self.rows]
        for _ in range(max(budget)):
            ids, real = left_padded(texts, self.request.pad_token_id)
            positions = (real.long().cumsum(1) - 1).clamp(min=0)
            logits = self.draft(
                input_ids=ids, attention_mask=real.long(), position_ids=positions, use_cache=False
            ).logits
            for text, token in zip(texts, logits[:, -1].argmax(-1).tolist(), strict=True):
                text.append(token)
        begin = [len(row) for row in self.rows]
        return [texts[i][begin[i] : begin[i] + count] for i, count in zip(self.active, budget, strict=True)]


class FeedsTwoAgain(PerRow):
    """Feeds its last two tokens in each round, where one would do."""

    def after(self, going: Sequence[int], lengths: Sequence[int]) -> None:
        super().after(going, lengths)
        for i in self.active:
            if self.lengths[i] > 1:
                self.roll_back(i, 1)


class RowAfterRow(PerRow):
    """Each row is decoded to its end before the next begins."""

    def admit(self) -> bool:
        if not self.active and self.waiting:
            self.active = [self.waiting.pop(0)]
        return bool(self.active)


class BeyondLimit(Continuous):
    """Verifies K draft tokens also where the limit is near, and cuts what is too much."""

    def budget(self, i: int) -> int:
        return self.request.num_draft_tokens

    def append(self, i: int, block: Sequence[int]) -> None:
        super().append(i, block[: max(0, self.limit(i) - len(self.rows[i]))])


def adapting(engine: type[RoundEngine], contrary: bool = False) -> type[RoundEngine]:
    """K goes up by one when all draft tokens are accepted and down by one when not; or the other way round."""

    class Adapting(engine):  # type: ignore[valid-type,misc]
        def budget(self, i: int) -> int:
            room: int = min(super().budget(i), self.__dict__.setdefault("k", {}).get(i, 2))
            return room

        def commit(self, drafts: Rows, predicted: Rows) -> list[int]:
            counts: list[int] = super().commit(drafts, predicted)
            for i, proposed, count in zip(self.active, drafts, counts, strict=True):
                more = (count == len(proposed)) != contrary
                self.k[i] = len(proposed) + 1 if more else max(1 - contrary, len(proposed) - 1)
            return counts

    Adapting.__name__ = f"{'Contrary' if contrary else 'Adapting'}{engine.__name__}"
    return Adapting


class DoneRowsStay(Uncached):
    """A static batch: a row that is done stays as it was before its last round, and is fed again until all are done."""

    def begin(self) -> None:
        super().begin()
        self.done: dict[int, list[int]] = {}

    def retire(self, counts: Sequence[int], going: Sequence[int]) -> None:
        for place, (i, before) in enumerate(zip(self.active, self.before, strict=True)):
            if place not in going:
                self.done[i] = self.rows[i]
                self.rows[i] = self.rows[i][:before]
        if len(self.done) == len(self.rows):
            self.rows = [self.done[i] for i in range(len(self.rows))]
            self.active = []


RIGHT: list[type[RoundEngine]] = [
    DoneRowsStay,
    LookedUp,
    LookedUpNowAndThen,
    LookedUpForSome,
    TwoStages,
    TwoStagesRolledBack,
    DraftsTwice,
    Recycles,
    VerifiesInTwoCalls,
    TwoCandidates,
    PromptsFirst,
    PromptsFedAlone,
    DraftsFewer,
    LastNotVerified,
    CachedDraft,
    CatchesUp,
    CatchesUpRolledBack,
    DraftsAhead,
    OneWidth,
    OneWidthDraftedTogether,
    FeedsTwoAgain,
    RowAfterRow,
    BeyondLimit,
    *[twice(engine) for engine in (Uncached, Realigned, PerRow, RolledBack)],
    *[twice(engine, again) for engine in (Realigned, PerRow) for again in (prefills, verifies)],
    RoundsTwice,
    NewestFirst,
    *[adapting(engine) for engine in (Continuous, Holes, PerRow, OneWidth)],
    *[adapting(engine, contrary=True) for engine in (Continuous, CatchesUp, FeedsTwoAgain, RolledBack)],
    adapting(OneWidthDraftedTogether, contrary=True),
]

Change = Callable[[RoundEngine, Rows], Rows]


def changed(engine: type[RoundEngine], change: Change) -> type[RoundEngine]:
    """An engine whose draft tokens are changed before they are verified."""

    class Changed(engine):  # type: ignore[valid-type,misc]
        def propose(self, budget: Sequence[int]) -> Rows:
            return change(self, super().propose(budget))

    return Changed


def other(engine: RoundEngine, token: int) -> int:
    """Some other token."""
    return int((token * 7 + 3) % engine.target.config.vocab_size)


def first_round_garbage(engine: RoundEngine, drafts: Rows) -> Rows:
    fresh = [len(engine.rows[i]) == engine.starts[i] for i in engine.active]
    return [[other(engine, t) for t in d] if new else d for d, new in zip(drafts, fresh, strict=True)]


def first_round_zeros(engine: RoundEngine, drafts: Rows) -> Rows:
    fresh = [len(engine.rows[i]) == engine.starts[i] for i in engine.active]
    return [[engine.request.pad_token_id] * len(d) if new else d for d, new in zip(drafts, fresh, strict=True)]


def first_token_garbage(engine: RoundEngine, drafts: Rows) -> Rows:
    return [[*(other(engine, t) for t in d[:1]), *d[1:]] for d in drafts]


def last_token_garbage(engine: RoundEngine, drafts: Rows) -> Rows:
    return [[*d[:-1], *(other(engine, t) for t in d[-1:])] for d in drafts]


def first_two_exchanged(engine: RoundEngine, drafts: Rows) -> Rows:
    return [[*d[1::-1], *d[2:]] for d in drafts]


def accepting_one_fewer(engine: type[RoundEngine]) -> type[RoundEngine]:
    """An engine that leaves the last accepted draft token to the next round."""

    class OneFewer(engine):  # type: ignore[valid-type,misc]
        def accepted(self, proposed: Sequence[int], wanted: Sequence[int]) -> int:
            count: int = super().accepted(proposed, wanted)
            return max(0, count - 1)

    return OneFewer


class NewestDraftedOnTwice(CachedDraft):
    """The draft is fed a row's newest token twice."""

    def propose(self, budget: Sequence[int]) -> Rows:
        for i, count in zip(self.active, budget, strict=True):
            if count:
                self.drafter.feed(i, self.rows[i][self.drafter.lengths[i] :])
                self.drafter.lengths[i] -= 1
        return super().propose(budget)

    def after(self, going: Sequence[int], lengths: Sequence[int]) -> None:
        super().after(going, lengths)
        for i in self.active:
            self.drafter.caches[i], self.drafter.lengths[i] = DynamicCache(), 0


class DraftSeesNoPrompt(Uncached):
    """The draft is given a row's new tokens alone."""

    def propose(self, budget: Sequence[int]) -> Rows:
        drafts = []
        for i, count in zip(self.active, budget, strict=True):
            proposed: list[int] = []
            while len(proposed) < count:
                new = self.rows[i][max(self.starts[i], 1) :] or self.rows[i][-1:]
                proposed.append(answers(self.draft, new + proposed)[-1])
            drafts.append(proposed)
        return drafts


class DraftReadOneEarly(Uncached):
    """The draft's answers are read from the column before the last."""

    def propose(self, budget: Sequence[int]) -> Rows:
        drafts = []
        for i, count in zip(self.active, budget, strict=True):
            proposed: list[int] = []
            while len(proposed) < count:
                proposed.append([0, *answers(self.draft, self.rows[i] + proposed)][-2])
            drafts.append(proposed)
        return drafts
