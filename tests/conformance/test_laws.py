"""The laws of a batch speculative decoder, over the families and padding sides it claims.

A failure's text is the oracle's explanation of the smallest case found. One fault fails one law: others that show no
other fault are skipped, and name that law. A law whose only failures are known is expected to fail: its other cases
still guard it. Cases that the decoder declines, or that do not meet what it requires, are passed over, and said so; a
law is skipped where none is left that tests it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest

from eqcheck.contract.decoders import Decoder
from eqcheck.contract.family import FAMILY
from eqcheck.core.case.record import Case
from eqcheck.core.explanation.records import many
from eqcheck.pytest_plugin import INTERNAL_ERRORS, KNOWN, PASSED_OVER, outdated, profile_of
from eqcheck.transparent.decoding import truth_of
from eqcheck.transparent.drawing import VOCAB_SIZE, Choices

from .examination import Derive, Examination, Found, Law, Needs

Test = Callable[[Decoder, Examination, pytest.FixtureRequest], None]
# What a case must have to test a law.
ANYTHING: Needs = {"anything": lambda case: True}
SEVERAL_ROWS: Needs = {"several rows": lambda case: len(case.prompts) > 1}
PADDING: Needs = {"padding": lambda case: len(set(map(len, case.prompts))) > 1}
AN_EOS: Needs = {"an EOS id": lambda case: bool(case.eos_token_ids)}
LAWS: dict[str, Law] = {}
_OF_ROWS: dict[str, Any] = {"stop_sequences": (), "cancel_after": 0}
"""Fields that hold one value for each row, if any, with the value of a row without."""


@pytest.fixture(scope="session")
def examination(decoder: Decoder, pytestconfig: pytest.Config) -> Examination:
    profile = profile_of(pytestconfig)
    laws = {name: LAWS[name] for name in profile.laws if name in LAWS} if profile else LAWS
    return Examination(decoder, laws, pytestconfig.getoption("--eqcheck-cases"), profile)


def law(needs: Needs = ANYTHING, look: str = "tokens") -> Callable[[Derive], Test]:
    """Make a law, and its test, of a function that derives a case from a drawn one."""

    def made(derive: Derive) -> Test:
        name = derive.__name__
        LAWS[name] = Law(name, derive, needs, look)

        def test(decoder: Decoder, examination: Examination, request: pytest.FixtureRequest) -> None:
            _tell(decoder, LAWS[name], examination, request.node)

        test.__name__, test.__doc__ = name, derive.__doc__
        return test

    return made


def _tell(decoder: Decoder, law: Law, examination: Examination, node: pytest.Item) -> None:
    """Fail, skip or xfail as a law was found; with no frame of this suite, of which nobody would learn anything."""
    found = examination.of(law.name)
    skip = "" if found.tested else f"skipped: no case with {', '.join(law.needs)} was decoded"
    if told := "; ".join(filter(None, (skip, _passed_over(decoder, found)))):
        node.user_properties.append((PASSED_OVER, told))
    known = examination.known(found)
    for fingerprint in known:
        node.user_properties.append((KNOWN, f"{decoder.name}: {fingerprint} shows ({decoder.known[fingerprint]})"))
    broken = examination.broken(found)
    for text in broken:
        node.user_properties.append((INTERNAL_ERRORS, text))
    if found.failure or broken:
        pytest.fail("\n\n".join(filter(None, (found.failure, *broken))), pytrace=False)
    if skip:
        pytest.skip(told)
    if found.elsewhere:
        same = (
            f"same fault as {first}, which explains it ({fault} in {found.seen[fault]} of {found.decoded} cases)"
            for fault, first in found.elsewhere.items()
        )
        pytest.skip(f"{law.name}: {'; '.join(same)}")
    if known:
        pytest.xfail(
            ", ".join(f"{one} in {n} of {found.decoded} cases, {decoder.known[one]}" for one, n in known.items())
        )


def _passed_over(decoder: Decoder, found: Found) -> str:
    if not found.passed_over:
        return "" if found.tested else f"it requires {', '.join(decoder.requires) or 'nothing'}"
    reasons = ", ".join(f"{reason} ({count})" for reason, count in found.passed_over.most_common(3))
    count = found.passed_over.total()
    return f"{count} of {found.decoded + count} cases passed over: {reasons}"


@law()
def test_solo_equivalence(case: Case, choose: Choices, decoder: Decoder) -> Case:
    """Every row has the tokens that the target returns for it alone."""
    return case


@law(SEVERAL_ROWS)
def test_batch_mates(case: Case, choose: Choices, decoder: Decoder) -> Case:
    """A row does not depend on the other rows of its batch."""
    order = _order(case, choose)
    return _rows(case, sorted(order[: choose.integer(min(2, len(order)), len(order))]))


@law(SEVERAL_ROWS)
def test_row_permutation(case: Case, choose: Choices, decoder: Decoder) -> Case:
    """Reordered rows give reordered outputs."""
    return _rows(case, _order(case, choose))


@law(PADDING)
def test_padding(case: Case, choose: Choices, decoder: Decoder) -> Case:
    """Neither the padding side nor the amount of padding matters."""
    longer = tuple(choose.some(lambda choose: choose.integer(0, VOCAB_SIZE - 1), 7, 12))
    of_rows: dict[str, Any] = {
        name: (*getattr(case, name), none) for name, none in _OF_ROWS.items() if getattr(case, name)
    }
    side = choose.pick(decoder.padding_sides)
    return replace(case, prompts=(*case.prompts, longer), padding_side=side, **of_rows)


@law()
def test_draft_independence(case: Case, choose: Choices, decoder: Decoder) -> Case:
    """Any draft gives the same output."""
    return replace(case, accepts=(), agreement=choose.pick((0.0, 0.2, 0.5, 0.8, 1.0)))


@law()
def test_k_independence(case: Case, choose: Choices, decoder: Decoder) -> Case:
    """Any number of draft tokens gives the same output."""
    return replace(case, num_draft_tokens=choose.integer(1, 8), accepts=(), agreement=case.agreement or 0.7)


@law(AN_EOS)
def test_eos_placement(case: Case, choose: Choices, decoder: Decoder) -> Case:
    """A row ends at its first EOS, wherever in a block."""
    row = choose.pick(truth_of(case).uncut)
    return replace(case, eos_token_ids=(choose.pick(tuple(dict.fromkeys(row))),))


@law()
def test_exact_limit(case: Case, choose: Choices, decoder: Decoder) -> Case:
    """A row ends exactly at `max_new_tokens`."""
    return replace(case, max_new_tokens=choose.integer(1, 12), eos_token_ids=())


@law(look="twice")
def test_determinism(case: Case, choose: Choices, decoder: Decoder) -> Case:
    """The same request gives the same output."""
    return case


@law()
def test_new_weights(case: Case, choose: Choices, decoder: Decoder) -> Case:
    """A request that was asked before is answered by the weights that target and draft have now."""
    seed, draft_seed = choose.pick(((1, None), (1, 0), (0, 1)))
    if FAMILY[case.family].target:  # a real draft follows from its target
        seed, draft_seed = 1, None
    return replace(case, seed=seed, draft_seed=draft_seed, before=(case,))


@law(look="query")
def test_every_query_saw_its_row(case: Case, choose: Choices, decoder: Decoder) -> Case:
    """Each target query attended to its own row, all of it, at the right positions."""
    return case


def test_known_faults_still_show(
    decoder: Decoder,
    known_fault: str,
    examination: Examination,
    record_property: Callable[[str, str], None],
    pytestconfig: pytest.Config,
) -> None:
    """What is known of the decoder is still seen in a case of some law; what a file lists is not past its day."""
    shows = examination.shows(known_fault)
    gone = "" if shows else None if examination.too_few() else many(examination.decoded, "case")
    if why := outdated(pytestconfig, decoder.name, known_fault, gone):
        pytest.fail(why, pytrace=False)
    if shows:
        return
    if not examination.decoded:
        pytest.skip("no case was decoded")
    if why := examination.too_few():
        record_property(KNOWN, f"WARNING {decoder.name}: {known_fault} does not show; {why}")
        return
    pytest.fail(
        f"{known_fault} is declared as known, and none of {examination.decoded} cases shows it: remove it from known= "
        f"of {decoder.name} ({decoder.known[known_fault]})",
        pytrace=False,
    )


def _order(case: Case, choose: Choices) -> list[int]:
    """The case's rows in any order."""
    left = list(range(len(case.prompts)))
    return [left.pop(choose.integer(0, len(left) - 1)) for _ in case.prompts]


def _rows(case: Case, order: Iterable[int]) -> Case:
    """The case with these of its rows, in this order, each with its own draft script."""
    chosen = list(order)
    accepts = tuple(case.accepts[row] if row < len(case.accepts) else () for row in chosen)
    own: dict[str, Any] = {
        name: tuple(held[row] for row in chosen) for name in _OF_ROWS if (held := getattr(case, name))
    }
    prompts = tuple(case.prompts[row] for row in chosen)
    return replace(case, prompts=prompts, accepts=accepts if case.agreement is None else (), **own)
