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

A failure's text is the oracle's explanation of the smallest case found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from eqcheck.attribution.reading import Reader
from eqcheck.case import Case
from eqcheck.contract import Decoder
from eqcheck.errors import Violation
from eqcheck.harness import Run, run, truth_of
from eqcheck.oracle import judge
from eqcheck.strategies import VOCAB_SIZE, cases
from eqcheck.text import render

Law = Callable[[Case, st.DataObject], Iterable[Case]]
Outputs = tuple[tuple[int, ...], ...]


@pytest.fixture
def hold(decoder: Decoder, request: pytest.FixtureRequest) -> Callable[[Law], None]:
    """Check a law: on every case it derives from a drawn one, the decoder emits exactly the truth."""

    def check(law: Law) -> None:
        __tracebackhide__ = True

        def body(case: Case, data: st.DataObject) -> None:
            __tracebackhide__ = True
            for variant in law(case, data):
                emitted(decoder, variant)

        explore(decoder, request.config.getoption("--eqcheck-cases"), body)

    return check


def explore(decoder: Decoder, count: int, body: Callable[[Case, st.DataObject], None]) -> None:
    """Run a property on ``count`` cases within the decoder's claims, the same ones every time."""
    __tracebackhide__ = True
    strategy = cases(families=decoder.families, padding_sides=decoder.padding_sides)
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


def emitted(decoder: Decoder, case: Case) -> Run:
    """Decode a case; fail with the explanation unless every row is exactly the truth."""
    __tracebackhide__ = True
    done = run(decoder.function, case, timeout=60.0)
    verdict = judge(done)
    if not verdict:
        raise Violation(f"{verdict.explain()}\n{done.failure_text}".rstrip())
    return done


def test_solo_equivalence(hold: Callable[[Law], None]) -> None:
    hold(lambda case, data: [case])


def test_batch_mates(hold: Callable[[Law], None]) -> None:
    def law(case: Case, data: st.DataObject) -> Iterable[Case]:
        keep = data.draw(st.sets(st.integers(0, len(case.prompts) - 1), min_size=1))
        return [case, _rows(case, sorted(keep))]

    hold(law)


def test_row_permutation(hold: Callable[[Law], None]) -> None:
    def law(case: Case, data: st.DataObject) -> Iterable[Case]:
        return [_rows(case, data.draw(st.permutations(range(len(case.prompts)))))]

    hold(law)


def test_padding(hold: Callable[[Law], None], decoder: Decoder) -> None:
    def law(case: Case, data: st.DataObject) -> Iterable[Case]:
        longer = tuple(data.draw(st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=7, max_size=12)))
        padded = replace(case, prompts=(*case.prompts, longer))
        return [replace(padded, padding_side=side) for side in decoder.padding_sides]

    hold(law)


def test_draft_independence(hold: Callable[[Law], None]) -> None:
    def law(case: Case, data: st.DataObject) -> Iterable[Case]:
        agreements = (0.0, data.draw(st.sampled_from((0.2, 0.5, 0.8)), label="agreement"), 1.0)
        return [case, *(replace(case, accepts=(), agreement=rate) for rate in agreements)]

    hold(law)


def test_k_independence(hold: Callable[[Law], None]) -> None:
    def law(case: Case, data: st.DataObject) -> Iterable[Case]:
        k = data.draw(st.integers(1, 8), label="num_draft_tokens")
        return [case, replace(case, num_draft_tokens=k, accepts=(), agreement=case.agreement or 0.7)]

    hold(law)


def test_eos_placement(hold: Callable[[Law], None]) -> None:
    def law(case: Case, data: st.DataObject) -> Iterable[Case]:
        uncut = truth_of(case).uncut
        row = data.draw(st.integers(0, len(uncut) - 1), label="row")
        return [replace(case, eos_token_ids=(token,)) for token in dict.fromkeys(uncut[row])]

    hold(law)


def test_exact_limit(hold: Callable[[Law], None]) -> None:
    def law(case: Case, data: st.DataObject) -> Iterable[Case]:
        limit = data.draw(st.integers(1, 12), label="max_new_tokens")
        return [replace(case, max_new_tokens=limit, eos_token_ids=())]

    hold(law)


def test_determinism(decoder: Decoder, request: pytest.FixtureRequest) -> None:
    def body(case: Case, data: st.DataObject) -> None:
        __tracebackhide__ = True
        first, second = (run(decoder.function, case, timeout=60.0) for _ in range(2))
        if (first.outputs, first.failure) != (second.outputs, second.failure):
            raise Violation(f"the same request gave {first.outputs} and then {second.outputs}")

    explore(decoder, request.config.getoption("--eqcheck-cases"), body)


def test_every_query_saw_its_row(decoder: Decoder, request: pytest.FixtureRequest) -> None:
    def body(case: Case, data: st.DataObject) -> None:
        __tracebackhide__ = True
        unseen = Reader(emitted(decoder, case)).unseen()
        if unseen is not None:
            raise Violation(render(unseen))

    explore(decoder, request.config.getoption("--eqcheck-cases"), body)


def _rows(case: Case, order: Iterable[int]) -> Case:
    """The case with these of its rows, in this order, each with its own draft script."""
    chosen = list(order)
    accepts = tuple(case.accepts[row] if row < len(case.accepts) else () for row in chosen)
    return replace(
        case, prompts=tuple(case.prompts[row] for row in chosen), accepts=accepts if case.agreement is None else ()
    )
