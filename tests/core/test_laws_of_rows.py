"""Each law of the conformance suite makes a case that is valid, whatever the drawn one has for its rows."""

from random import Random

import pytest
from conformance.test_laws import LAWS

from eqcheck.catalogue import known_good
from eqcheck.core.case.record import Case
from eqcheck.transparent.drawing import Chance

CASE = Case(
    ((5, 6), (7,), (8, 9, 10)),
    max_new_tokens=4,
    num_draft_tokens=2,
    accepts=((1,), (), (0, 2)),
    eos_token_ids=(3,),
    stop_sequences=(((11, 12),), (), ((13,), (14, 15))),
    cancel_after=(0, 2, 3),
)


@pytest.mark.parametrize("law", LAWS)
def test_rows_keep_their_stops_and_cancellations(law: str) -> None:
    own = dict(zip(CASE.prompts, CASE.options, strict=True))
    case = LAWS[law].derive(CASE, Chance(Random(1)), known_good()["one_row"])
    for prompt, options in zip(case.prompts, case.options, strict=True):
        kept = own.get(prompt)
        assert (options.stop_sequences, options.cancel_after) == (
            (kept.stop_sequences, kept.cancel_after) if kept else ((), None)
        )
