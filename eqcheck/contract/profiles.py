"""Profiles: audits whose cases are fixed under a dated name, so that a new eqcheck draws no other ones for it.

A profile is never changed once it is released; ``test_profiles.py`` holds digests of the cases. A new draw is a
new profile, and ``ci`` and ``nightly`` name the newest of theirs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from eqcheck.contract.errors import UsageError, did_you_mean

# Bound the size of drawn cases.


@dataclass(frozen=True)
class Bounds:
    """Bound the size of cases: rows, tokens of a prompt, ``max_new_tokens``, and K; all inclusive."""

    rows: int = 12
    prompt: int = 136
    new_tokens: int = 20
    draft_tokens: int = 8


WIDE = Bounds()
# Cases for engines that load a checkpoint: it has 2,048 positions, of which one is for a new token.
SERVED = Bounds(rows=128, prompt=2047, new_tokens=48, draft_tokens=32)
BLOCKS = (8, 16, 32, 64)  # how many tokens usual blocks of a KV cache hold
SIZES = (4, *BLOCKS, 128)  # of blocks, pages, chunks, windows and buckets of a batch's lengths


# Upper bounds of a case, and of a file that holds one; a file may come from anyone.
#
# The bounds are far beyond what is drawn. Within them a right decoder, the target (a table of 4,096 logits for each
# token of the vocabulary) and the trace (all entries at each call) take seconds, and at most 2 GB.

MOST_VOCABULARY = 1024
MOST_ROWS = 256
MOST_TOKENS_OF_ROW = 1024  # new ones included
MOST_TOKENS = 8192  # of all rows together
MOST_DRAFT_TOKENS = 64
MOST_WORK = 2**22  # the tokens of all rows, times the calls of target and draft if nothing is accepted
MOST_BEFORE = 256  # earlier requests of a case
MOST_WORK_BEFORE = 4 * MOST_WORK  # of them together
MOST_SPARE_SLOTS = 2**14  # of preallocated caches, in all rows

ENGINE_ROWS = 512  # of a case for an engine that loads a checkpoint
ENGINE_TOKENS = 2**16
ENGINE_PENALTY = 100

CASE_TIMEOUT, CASE_MEMORY = 60.0, 2**31  # seconds and bytes that a case usually may take
LOADING = 300.0  # seconds that an engine may take to load a checkpoint under new settings
TIMEOUTS = (1.0, 86400.0)  # in less, a right decoder on a slow machine would pass for one that hangs
MEMORY = (2**26, 2**50)

FILE_BYTES = 2 * 2**20  # ten times what the largest case takes
FILE_LEVELS = 8  # of lists and objects; a case has five
REPORT_BYTES, REPORT_LEVELS = 64 * FILE_BYTES, 16  # a report holds many cases
FILE_DIGITS = 20  # of an integer
FILE_LINE = 4096  # characters


_DATED = re.compile(r"[a-z]+-(\d{4}\.\d{2})")


@dataclass(frozen=True)
class Draw:
    """The cases of one lane: how many, how large, and how many of an engine's cases come under one setting."""

    lane: str
    cases: int
    bounds: Bounds
    block: int | None = None


@dataclass(frozen=True)
class Profile:
    """A fixed draw: its lanes, or for pytest its laws with so many cases each; ``budget`` in seconds may end it sooner.

    The audit has so many ``jobs`` if nothing else is given.
    """

    name: str
    lanes: tuple[Draw, ...]
    laws: tuple[str, ...]
    cases_of_law: int
    budget: float | None = None
    seed: int = 0
    jobs: int = 2

    def draw(self, lane: str) -> Draw | None:
        """The draw of a lane; None where the profile leaves it out."""
        return next((one for one in self.lanes if one.lane == lane), None)

    @property
    def line(self) -> str:
        """The profile in one line, before it is known whether the decoder samples."""
        return self.line_of(samples=False)

    def line_of(self, samples: bool) -> str:
        """The profile in one line, for a decoder that samples or one that does not.

        >>> profile("ci", "0.3.0").line_of(samples=True)
        'profile ci-2026.12: 200 greedy cases and 24 sampled, the same in every release'
        """
        greedy, sampled = self.draw("transparent"), self.draw("sampling") if samples else None
        cases = f"{greedy.cases:,} greedy cases" if greedy else ""
        more = f"{' and ' if greedy else ''}{sampled.cases:,} sampled" if sampled else ""
        within = f", in at most {self.budget / 60:g} minutes" if self.budget else ""
        return f"profile {self.name}: {cases}{more}, the same in every release{within}"


_LAWS = (
    "test_solo_equivalence",
    "test_batch_mates",
    "test_row_permutation",
    "test_padding",
    "test_draft_independence",
    "test_k_independence",
    "test_eos_placement",
    "test_exact_limit",
    "test_determinism",
    "test_every_query_saw_its_row",
)
_SAMPLED = ("test_sampled_law", "test_rows_are_independent", "test_mates_leave_the_law", "test_seeds")
_WIDE = Bounds(rows=12, prompt=136, new_tokens=20, draft_tokens=8)
PROFILES = (
    Profile(
        "ci-2026.12",
        lanes=(
            Draw("transparent", 200, _WIDE),
            Draw("sampling", 24, _WIDE),
            # One setting, and no case that reaches far, for which engines start anew: a block ends with one of those.
            Draw("engine", 200, Bounds(rows=12, prompt=64, new_tokens=24, draft_tokens=8), block=202),
        ),
        laws=(*_LAWS, *_SAMPLED),
        cases_of_law=20,
    ),
    Profile(
        "nightly-2026.12",
        lanes=(
            Draw("transparent", 3000, _WIDE),
            Draw("sampling", 300, _WIDE),
            Draw("engine", 3000, Bounds(rows=128, prompt=1600, new_tokens=48, draft_tokens=32)),
            Draw("engine-sampling", 600, Bounds(rows=128, prompt=1600, new_tokens=48, draft_tokens=32)),
        ),
        laws=(*_LAWS, *_SAMPLED),
        cases_of_law=200,
        budget=1200.0,
    ),
)


def profile(name: str, version: str) -> Profile:
    """The profile of a name, or the newest one of its kind.

    >>> profile("ci", "0.3.0").name
    'ci-2026.12'

    Raises `UsageError` for a name that there is not, and for one of a later date than this ``version`` of eqcheck has.
    """
    alike = sorted((p for p in PROFILES if name in (p.name, _kind(p.name))), key=lambda p: p.name)
    if alike:
        return alike[-1]
    known = [each.name for each in PROFILES]
    newest = {_kind(dated): dated for dated in sorted(known)}
    dated = _DATED.fullmatch(name)
    if dated and name > newest.get(_kind(name), name):
        raise UsageError(
            f"profile {name!r} is newer than eqcheck {version}, whose newest is {newest[_kind(name)]}; install a newer "
            "eqcheck, or name that one"
        )
    raise UsageError(
        f"unknown profile {name!r}{did_you_mean(name, [*newest, *known]) or '.'} Known: {', '.join([*newest, *known])}"
    )


def _kind(name: str) -> str:
    return name.partition("-")[0]
