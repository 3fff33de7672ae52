"""The laws of a batch speculative decoder, over the families and padding sides it claims.

    test_solo_equivalence          every row is what the target emits alone
    test_batch_mates               a row does not depend on the rows beside it
    test_row_permutation           permuting rows permutes outputs
    test_padding                   the padding side, and how much a row is padded, do not matter
    test_draft_independence        any draft, same output
    test_k_independence            any number of draft tokens, same output
    test_eos_placement             a row ends at its first EOS, wherever that falls in a block
    test_exact_limit               a row ends exactly at its limit
    test_determinism               the same request gives the same output
    test_every_query_saw_its_row   behind every token stands a target query that saw exactly its row

A failure's text is the oracle's explanation of the smallest case found. Cases that the decoder declines, or that do
not meet what it requires, are passed over, and said so; a law is skipped where none is left that tests it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from eqcheck.attribution.reading import Reader
from eqcheck.case import Case
from eqcheck.contract import TAKEN, Decoder
from eqcheck.errors import Violation
from eqcheck.harness import Run, run, truth_of
from eqcheck.oracle import judge
from eqcheck.pytest_plugin import PASSED_OVER
from eqcheck.report.text import render
from eqcheck.requirements import refused
from eqcheck.strategies import VOCAB_SIZE, cases

Law = Callable[[Case, st.DataObject], Iterable[Case]]
Outputs = tuple[tuple[int, ...], ...]
# What a case must have to test a law.
ANYTHING: dict[str, Callable[[Case], bool]] = {"anything": lambda case: True}
SEVERAL_ROWS: dict[str, Callable[[Case], bool]] = {"several rows": lambda case: len(case.prompts) > 1}
PADDING: dict[str, Callable[[Case], bool]] = {"padding": lambda case: len(set(map(len, case.prompts))) > 1}
AN_EOS: dict[str, Callable[[Case], bool]] = {"an EOS id": lambda case: bool(case.eos_token_ids)}


@dataclass
class Tried:
    """What a law was tried on: how many cases tested it, and those that were passed over, by reason."""

    decoder: Decoder
    needs: dict[str, Callable[[Case], bool]]
    tested: int = 0
    decoded: int = 0
    passed_over: Counter[str] = field(default_factory=Counter)

    def emitted(self, case: Case) -> Run | None:
        """Decode a case; fail with the explanation unless every row is exactly the truth. None if passed over."""
        __tracebackhide__ = True
        done = self.run(case)
        verdict = judge(done) if done else None
        if done and not verdict:
            assert verdict is not None
            raise Violation(f"{verdict.explain()}\n{done.failure_text}".rstrip())
        return done

    def run(self, case: Case) -> Run | None:
        """Decode a case; None if it is passed over."""
        declined = refused(case, self.decoder.requires)
        done = None if declined else run(self.decoder.function, case, timeout=60.0)
        if done is None or done.declined:
            self.passed_over[declined or (done.declined if done else "")] += 1
            return None
        self.decoded += 1
        self.tested += all(holds(case) for holds in self.needs.values())
        return done

    def tell(self, request: pytest.FixtureRequest) -> None:
        """Say what was passed over, and skip the law where for that reason nothing tested it."""
        if not (self.passed_over or self.decoder.requires):
            return
        said = [] if self.tested else [f"skipped: no case with {', '.join(self.needs)} was decoded"]
        if self.passed_over:
            reasons = ", ".join(f"{reason} ({count})" for reason, count in self.passed_over.most_common(3))
            total = self.decoded + self.passed_over.total()
            said.append(f"{self.passed_over.total()} of {total} cases passed over: {reasons}")
        else:
            said.append(f"it requires {', '.join(self.decoder.requires)}")
        if self.passed_over or not self.tested:
            request.node.user_properties.append((PASSED_OVER, "; ".join(said)))
        if not self.tested:
            pytest.skip("; ".join(said))


@pytest.fixture
def explored(decoder: Decoder, request: pytest.FixtureRequest) -> Callable[..., None]:
    """Run a property, ``body(tried, case, data)``, on the cases of a law."""

    def check(body: Callable[[Tried, Case, st.DataObject], None], needs: Any = ANYTHING) -> None:
        __tracebackhide__ = True
        tried = Tried(decoder, needs)

        def with_tried(case: Case, data: st.DataObject) -> None:
            __tracebackhide__ = True
            body(tried, case, data)

        explore(decoder, request.config.getoption("--eqcheck-cases"), with_tried)
        tried.tell(request)

    return check


@pytest.fixture
def hold(explored: Callable[..., None]) -> Callable[..., None]:
    """Check a law: on every case it derives from a drawn one, the decoder emits exactly the truth."""

    def check(law: Law, needs: Any = ANYTHING) -> None:
        __tracebackhide__ = True

        def body(tried: Tried, case: Case, data: st.DataObject) -> None:
            __tracebackhide__ = True
            for variant in law(case, data):
                tried.emitted(variant)

        explored(body, needs)

    return check


def explore(decoder: Decoder, count: int, body: Callable[[Case, st.DataObject], None]) -> None:
    """Run a property on ``count`` cases within the decoder's claims, the same ones every time."""
    __tracebackhide__ = True
    strategy = cases(
        families=decoder.families,
        padding_sides=decoder.padding_sides,
        cache_states=tuple(state for state in decoder.cache_states if state in TAKEN),
        requires=decoder.requires,
    )
    wrapped = given(strategy, st.data())(body)
    settings(
        max_examples=count,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        print_blob=False,
        phases=[Phase.generate, Phase.shrink],
    )(wrapped)()


def test_solo_equivalence(hold: Callable[..., None]) -> None:
    hold(lambda case, data: [case])


def test_batch_mates(hold: Callable[..., None]) -> None:
    def law(case: Case, data: st.DataObject) -> Iterable[Case]:
        keep = data.draw(st.sets(st.integers(0, len(case.prompts) - 1), min_size=1))
        return [case, _rows(case, sorted(keep))]

    hold(law, SEVERAL_ROWS)


def test_row_permutation(hold: Callable[..., None]) -> None:
    def law(case: Case, data: st.DataObject) -> Iterable[Case]:
        return [_rows(case, data.draw(st.permutations(range(len(case.prompts)))))]

    hold(law, SEVERAL_ROWS)


def test_padding(hold: Callable[..., None], decoder: Decoder) -> None:
    def law(case: Case, data: st.DataObject) -> Iterable[Case]:
        longer = tuple(data.draw(st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=7, max_size=12)))
        padded = replace(case, prompts=(*case.prompts, longer))
        return [replace(padded, padding_side=side) for side in decoder.padding_sides]

    hold(law, PADDING)


def test_draft_independence(hold: Callable[..., None]) -> None:
    def law(case: Case, data: st.DataObject) -> Iterable[Case]:
        agreements = (0.0, data.draw(st.sampled_from((0.2, 0.5, 0.8)), label="agreement"), 1.0)
        return [case, *(replace(case, accepts=(), agreement=rate) for rate in agreements)]

    hold(law)


def test_k_independence(hold: Callable[..., None]) -> None:
    def law(case: Case, data: st.DataObject) -> Iterable[Case]:
        k = data.draw(st.integers(1, 8), label="num_draft_tokens")
        return [case, replace(case, num_draft_tokens=k, accepts=(), agreement=case.agreement or 0.7)]

    hold(law)


def test_eos_placement(hold: Callable[..., None]) -> None:
    def law(case: Case, data: st.DataObject) -> Iterable[Case]:
        uncut = truth_of(case).uncut
        row = data.draw(st.integers(0, len(uncut) - 1), label="row")
        return [replace(case, eos_token_ids=(token,)) for token in dict.fromkeys(uncut[row])]

    hold(law, AN_EOS)


def test_exact_limit(hold: Callable[..., None]) -> None:
    def law(case: Case, data: st.DataObject) -> Iterable[Case]:
        limit = data.draw(st.integers(1, 12), label="max_new_tokens")
        return [replace(case, max_new_tokens=limit, eos_token_ids=())]

    hold(law)


def test_determinism(explored: Callable[..., None]) -> None:
    def body(tried: Tried, case: Case, data: st.DataObject) -> None:
        __tracebackhide__ = True
        first, second = (tried.run(case) for _ in range(2))
        if first is None and second is None:
            return
        answers = [(done.outputs, done.failure) if done else "that it declines" for done in (first, second)]
        if answers[0] != answers[1]:
            raise Violation(f"the same request gave {answers[0]} and then {answers[1]}")

    explored(body)


def test_every_query_saw_its_row(explored: Callable[..., None]) -> None:
    def body(tried: Tried, case: Case, data: st.DataObject) -> None:
        __tracebackhide__ = True
        done = tried.emitted(case)
        unseen = Reader(done).unseen() if done else None
        if unseen is not None:
            raise Violation(render(unseen))

    explored(body)


def _rows(case: Case, order: Iterable[int]) -> Case:
    """The case with these of its rows, in this order, each with its own draft script."""
    chosen = list(order)
    accepts = tuple(case.accepts[row] if row < len(case.accepts) else () for row in chosen)
    return replace(
        case, prompts=tuple(case.prompts[row] for row in chosen), accepts=accepts if case.agreement is None else ()
    )
