"""The laws of a decoder that samples: its target's law, rows apart from each other and from mates, seeds as promised.

They are judged together, from one audit of at most ten seconds; each says its own part of what was found. Where a law
is wrong, rows are decoded alone as well, up to three times as long. Laws are skipped for a decoder that does not
declare the capability ``temperature``.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from eqcheck.contract.decoders import Decoder
from eqcheck.contract.options import SEEDS
from eqcheck.contract.profiles import Bounds
from eqcheck.core.explanation.layout import columns
from eqcheck.core.explanation.text import render
from eqcheck.core.result.findings import Audit, Options
from eqcheck.pytest_plugin import INTERNAL_ERRORS, KNOWN, SEED, profile_of

SECONDS = 10.0
BETWEEN_ROWS = ("shared-noise", "reused-noise")
SEEDED = ("seed-ignored", "seed-fixed", "batch-dependent")


@pytest.fixture(scope="session")
def sampled(decoder: Decoder, pytestconfig: pytest.Config) -> Audit:
    if "temperature" not in decoder.capabilities:
        pytest.skip(f"{decoder.name} does not declare the capability 'temperature'")
    if decoder.lossless is not True:
        pytest.skip(f"{decoder.name} does not claim the target's law: {decoder.lossless}")
    profile = profile_of(pytestconfig)
    draw = profile.draw("sampling") if profile else None
    if draw:
        return _audited(decoder, Options(cases=draw.cases, seed=SEED, bounds=draw.bounds, profile=profile))
    return _audited(decoder, Options(cases=None, budget=SECONDS, seed=SEED))


def _audited(decoder: Decoder, options: Options) -> Audit:
    # Half a second of imports, which a decoder that does not sample has no use for.
    from eqcheck.audit.loop import Campaign
    from eqcheck.sampling.lane import SampledLane
    from eqcheck.sampling.transparent_target import TransparentTarget

    campaign = Campaign(SampledLane(decoder, options, TransparentTarget), lambda event: None)
    campaign.run()
    return campaign.result


@pytest.fixture(scope="session")
def failing(sampled: Audit) -> dict[str, str]:
    """Which law fails by a fault."""
    return {}


def of_law(kind: str) -> bool:
    return kind not in (*BETWEEN_ROWS, *SEEDED)


def test_sampled_law(
    decoder: Decoder, sampled: Audit, failing: dict[str, str], record_property: Callable[[str, str], None]
) -> None:
    """Sampled tokens follow the target's distribution."""
    for error in sampled.internal:
        record_property(INTERNAL_ERRORS, error.text)
    _tell(decoder, sampled, record_property, of_law, failing, "test_sampled_law")
    if sampled.internal:
        pytest.fail("\n\n".join(error.text for error in sampled.internal), pytrace=False)
    assert sampled.evidence is not None
    if not sampled.evidence.tokens:
        pytest.skip("no sampled token could be judged")


def test_rows_are_independent(decoder: Decoder, sampled: Audit, record_property: Callable[[str, str], None]) -> None:
    """Rows do not share random numbers."""
    _tell(decoder, sampled, record_property, lambda kind: kind in BETWEEN_ROWS)


def test_mates_leave_the_law(
    decoder: Decoder, sampled: Audit, failing: dict[str, str], record_property: Callable[[str, str], None]
) -> None:
    """Other rows of the batch do not change a row's distribution."""
    if not any(of_law(finding.explanation.kind) for finding in sampled.violations):
        return
    single = Options(cases=None, budget=3 * SECONDS, seed=SEED, bounds=Bounds(rows=1))  # fewer tokens a case
    alone = _audited(decoder, single)
    assert alone.evidence is not None
    assert sampled.evidence is not None
    if not alone.violations and alone.evidence.tokens >= sampled.evidence.tokens:  # fewer would say nothing
        # A row whose law depends on its mates breaks what its seed promises, too.
        failing.setdefault("sampling/batch-dependent:mates", "test_mates_leave_the_law")
        _tell(decoder, sampled, record_property, of_law, failing, "test_mates_leave_the_law")


def test_seeds(
    decoder: Decoder, sampled: Audit, failing: dict[str, str], record_property: Callable[[str, str], None]
) -> None:
    """A row with a seed repeats as far as the decoder promises."""
    if decoder.seeds == "none":
        pytest.skip(f"{decoder.name} promises nothing of seeds: {SEEDS['none']}")
    _tell(decoder, sampled, record_property, lambda kind: kind in SEEDED, failing, "test_seeds")


def _tell(
    decoder: Decoder,
    sampled: Audit,
    record_property: Callable[[str, str], None],
    mine: Callable[[str], bool],
    failing: dict[str, str] | None = None,
    law: str = "",
) -> None:
    found = [finding for finding in sampled.violations if mine(finding.explanation.kind)]
    unknown = [finding for finding in found if finding.fingerprint not in decoder.known]
    for finding in found:
        if finding.fingerprint in decoder.known:
            link = decoder.known[finding.fingerprint]
            record_property(KNOWN, f"{decoder.name}: {finding.fingerprint} shows ({link})")
    if unknown:
        first = {} if failing is None else failing
        if (other := first.setdefault(unknown[0].fingerprint, law)) != law:
            shown = f"{unknown[0].fingerprint} in {unknown[0].count} of {sampled.tally.run} cases"
            pytest.skip(f"{law}: same fault as {other}, which explains it ({shown})")
        pytest.fail(render(unknown[0].explanation, width=columns()), pytrace=False)
    if found:
        pytest.xfail(", ".join(f"{finding.fingerprint}, {decoder.known[finding.fingerprint]}" for finding in found))
