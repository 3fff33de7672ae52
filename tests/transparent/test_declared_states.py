"""What a decoder declares is held against its calls; a right one is never accused, whatever its build."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import DynamicCache

from eqcheck.audit.loop import audit
from eqcheck.catalogue import BUILDS, PLANTED
from eqcheck.contract import registry
from eqcheck.contract.decoders import TAKEN, Decoder, Request, decoder
from eqcheck.core.case.record import Case
from eqcheck.core.result.findings import Options
from eqcheck.transparent.attribution.declarations import ignored
from eqcheck.transparent.decoding import run
from eqcheck.transparent.oracle import judge
from eqcheck.transparent.search import Source

Rows = list[list[int]]
STATES = ("chunked", "late-rows", "prefix", "preallocated")
GOOD = {name: build.decoder(name) for name, build in BUILDS.items() if set(build.cache_states) - set(TAKEN)}
SHIPPED = {name: registry.load(name) for name in ("eqspec", "exspec", "ragged")}


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@lru_cache(maxsize=8)
def drawn(states: tuple[str, ...], families: tuple[str, ...], seed: int = 21) -> list[Case]:
    source = Source(seed, families, ("left", "right"), states)
    return [*source.chunk(0), *source.chunk(1)]


def told(generate: Any, case: Case) -> str:
    """What is said of a decoder; empty if it is equivalent."""
    verdict = judge(run(generate, case))
    return "" if verdict else verdict.explain()


@pytest.mark.parametrize("good", {**GOOD, **SHIPPED}.values(), ids=lambda good: good.name)
@pytest.mark.tiers(quick=1, rest=5)
def test_right_builds_are_not_accused(good: Decoder) -> None:
    states = tuple(state for state in good.cache_states if state in STATES)
    cases = [case for case in drawn(states, good.families) if case.padding_side in good.padding_sides]
    assert len(cases) > 30
    for case in cases[::2]:
        assert told(good, case) == ""


DECLARED = [fault for fault in PLANTED if fault.switch.startswith("S") and not fault.held_back]


@pytest.mark.parametrize("fault", DECLARED, ids=lambda fault: fault.id)
@pytest.mark.tiers(quick=1, rest=2)
def test_what_is_ignored_is_named_with_what_was_seen(fault: Any) -> None:
    cases = [case for case in drawn(fault.cache_states, fault.families, 5) if case.padding_side == "left"]
    said = [text for text in (told(fault.decoder(), case) for case in cases) if text]
    assert len(said) > 1
    for text in said:
        assert text.startswith(f"options/ignored-option:{fault.cache_states[0]}: a requested option is not applied\n")
        assert "call " in text


# Case by hand: what is said, word for word.
PROMPTS = ((3, 1, 4, 1, 5), (9, 2))


def alone(target: Any, rows: Rows, request: Request, feed: Callable[..., Any]) -> Rows:
    """Decode row by row without drafts; ``feed(row, tokens)`` gives the logits after them."""
    outputs: Rows = []
    for row, prompt in enumerate(rows):
        new: list[int] = []
        logits = feed(row, prompt)
        while True:
            new.append(int(logits[0, -1].argmax()))
            if len(new) == request.max_new_tokens or new[-1] in request.eos_token_ids:
                break
            logits = feed(row, new[-1:])
        outputs.append(new)
    return outputs


def heedless(target: Any, draft: Any, request: Request) -> Rows:
    """Right, with a cache per row, and of nothing that was declared."""
    caches = [DynamicCache() for _ in request.prompts]

    def feed(row: int, tokens: list[int]) -> Any:
        return target(input_ids=torch.tensor([tokens]), past_key_values=caches[row], use_cache=True).logits

    return alone(target, request.prompts, request, feed)


SAID = {
    "chunked": (
        Case(prompts=PROMPTS, cache_state="chunked", prefill_chunk=2),
        "chunked: call 1 feeds 5 tokens of row 0's prompt in batch row 0 (positions 0..4), but `prefill_chunk` "
        "allows 2",
    ),
    "late-rows": (
        Case(prompts=PROMPTS, cache_state="late-rows", arrivals=(5, 0)),
        "late-rows: call 1 feeds row 0 (position 0) in batch row 0 after 0 target calls, but `arrivals` makes it wait "
        "for 5; not done before it: row 1",
    ),
    "prefix": (
        Case(prompts=((7, 8, 3), (7, 8, 9)), cache_state="prefix", prefix_length=2),
        "prefix: call 3 feeds positions 0..1 of row 0 in batch row 0, but the given cache already holds the "
        "first 2 tokens (`prefix_length`)",
    ),
    "preallocated": (
        Case(prompts=PROMPTS, cache_state="preallocated"),
        "preallocated: nothing was ever written into the given target cache in 8 target calls; "
        "call 1 saw 5 slots, but the cache has 15",
    ),
}


@pytest.mark.parametrize("state", STATES)
def test_what_is_said(state: str) -> None:
    case, text = SAID[state]
    verdict = judge(run(heedless, case))
    assert verdict.status == "violation"
    assert verdict.exact_match == 1.0
    assert verdict.explanation is not None
    assert verdict.explanation.fingerprint == f"options/ignored-option:{state}"
    assert verdict.explanation.detail == text


@pytest.mark.long
def test_an_audit_reports_it_and_replays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    states = ("empty", *STATES)
    result = audit(decoder(name="heedless", families=("rotary",), cache_states=states)(heedless), Options(cases=150))
    assert {violation.fingerprint for violation in result.violations} == {
        f"options/ignored-option:{state}" for state in STATES
    }
    for violation in result.violations:
        assert violation.explanation.repair is None
        assert len(violation.case.prompts) <= 2
        assert told(heedless, violation.case).startswith(violation.fingerprint)
    known = {f"options/ignored-option:{state}": "https://example.org" for state in STATES}
    made = decoder(name="heedless", families=("rotary",), cache_states=states, known=known)(heedless)
    assert audit(made, Options(cases=150)).unknown == []


def test_a_wrong_output_keeps_its_own_cause() -> None:
    def short(target: Any, draft: Any, request: Request) -> Rows:
        return [row[:-1] for row in heedless(target, draft, request)]

    for case, _ in SAID.values():
        verdict = judge(run(short, case))
        assert verdict.explanation is not None
        assert verdict.explanation.fingerprint == "bookkeeping/premature-stop"


# Right decoders of odd habits.


def chunks_of(size: int | None, tokens: list[int]) -> Iterator[list[int]]:
    size = size or len(tokens)
    return (tokens[at : at + size] for at in range(0, len(tokens), size))


def with_chunks(target: Any, draft: Any, request: Request) -> Rows:
    caches = [DynamicCache() for _ in request.prompts]

    def feed(row: int, tokens: list[int]) -> Any:
        for piece in chunks_of(request.prefill_chunk, tokens):
            logits = target(input_ids=torch.tensor([piece]), past_key_values=caches[row], use_cache=True).logits
        return logits

    return alone(target, request.prompts, request, feed)


def packed_chunks(target: Any, draft: Any, request: Request) -> Rows:
    """All rows in one row of the call, at different places of their prompts, kept apart by a 4-D mask."""
    rows, chunk = [list(prompt) for prompt in request.prompts], request.prefill_chunk or 1
    ends = [len(prompt) + request.max_new_tokens for prompt in request.prompts]
    cache, held, fed = DynamicCache(), list[tuple[int, int]](), [0] * len(rows)
    waits = list(range(len(rows)))  # row n begins n calls later
    done: set[int] = set()
    while len(done) < len(rows):
        now = [(i, at) for i in range(len(rows)) if i not in done and not waits[i]
               for at in range(fed[i], min(len(rows[i]), fed[i] + chunk))]  # fmt: skip
        waits = [max(0, wait - 1) for wait in waits]
        if not now:
            continue
        held += now
        mask = torch.tensor([[[[row == i and p <= at for row, p in held] for i, at in now]]])
        ids = torch.tensor([[rows[i][at] for i, at in now]])
        places = torch.tensor([[at for _, at in now]])
        output = target(input_ids=ids, attention_mask=mask, position_ids=places, past_key_values=cache, use_cache=True)
        for (i, at), token in zip(now, output.logits[0].argmax(-1).tolist(), strict=True):
            fed[i] = at + 1
            if at + 1 == len(rows[i]):
                rows[i].append(token)
                if len(rows[i]) == ends[i] or token in request.eos_token_ids:
                    done.add(i)
    return [row[len(prompt) :] for row, prompt in zip(rows, request.prompts, strict=True)]


def visible_pads(target: Any, draft: Any, request: Request) -> Rows:
    """A call over all rows, left padded, in which pads see one another, and rows that are done go on being fed."""
    rows = [list(prompt) for prompt in request.prompts]
    for _ in range(request.max_new_tokens):
        width = max(map(len, rows))
        gaps = [width - len(row) for row in rows]
        ids = torch.tensor([[request.pad_token_id] * gap + row for gap, row in zip(gaps, rows, strict=True)])
        order = torch.arange(width)
        mask = torch.stack([(order <= order[:, None]) & ((order < gap) == (order[:, None] < gap)) for gap in gaps])
        places = torch.tensor([[*range(gap), *range(width - gap)] for gap in gaps])
        logits = target(input_ids=ids, attention_mask=mask[:, None], position_ids=places, use_cache=False).logits
        for row, token in zip(rows, logits[:, -1].argmax(-1).tolist(), strict=True):
            row.append(token)
    new = [row[len(prompt) :] for row, prompt in zip(rows, request.prompts, strict=True)]
    ends = [next((n + 1 for n, token in enumerate(row) if token in request.eos_token_ids), len(row)) for row in new]
    return [row[:end] for row, end in zip(new, ends, strict=True)]


def eager_when_idle(target: Any, draft: Any, request: Request) -> Rows:
    """Rows one after another as they arrive; where none is left to decode, all that wait join at once."""
    caches = [DynamicCache() for _ in request.prompts]
    outputs: Rows = [[] for _ in request.prompts]
    waiting, active, calls = set(range(len(caches))), set[int](), 0
    while waiting or active:
        arrived = {i for i in waiting if request.arrivals[i] <= calls}
        joining = arrived or (set() if active else set(waiting))
        active, waiting = active | joining, waiting - joining
        for i in sorted(active):
            tokens = outputs[i][-1:] or request.prompts[i]
            logits = target(input_ids=torch.tensor([tokens]), past_key_values=caches[i], use_cache=True).logits
            calls += 1
            outputs[i].append(int(logits[0, -1].argmax()))
            if len(outputs[i]) == request.max_new_tokens or outputs[i][-1] in request.eos_token_ids:
                active = active - {i}
    return outputs


def from_the_prefix(target: Any, draft: Any, request: Request) -> Rows:
    caches = [replace_cache(request.target_cache) for _ in request.prompts]

    def feed(row: int, tokens: list[int]) -> Any:
        return target(input_ids=torch.tensor([tokens]), past_key_values=caches[row], use_cache=True).logits

    return alone(target, [prompt[request.prefix_length :] for prompt in request.prompts], request, feed)


def replace_cache(cache: Any) -> Any:
    """A copy by hand, layer by layer."""
    copied = DynamicCache()
    for number, layer in enumerate(cache.layers):
        copied.update(layer.keys.clone(), layer.values.clone(), number)
    return copied


SHARED = ((5, 6, 7, 8), (5, 6, 7, 8), (5, 6), (5,), (6, 5, 6, 7))
PADS = ((7, 7, 7), (7,), (3, 7), (7, 3, 3, 3, 3))


def asked(prompts: tuple[tuple[int, ...], ...], **more: Any) -> Iterator[Case]:
    for pad in {prompts[0][0], 0}:
        for limit in (1, 2, 5):
            yield Case(prompts=prompts, pad_token_id=pad, max_new_tokens=limit, num_draft_tokens=3, **more)


@pytest.mark.parametrize("prompts", [SHARED, PADS])
@pytest.mark.parametrize("chunk", [1, 2, 3])
@pytest.mark.tiers(quick=0, rest=2)
def test_equal_prompts_and_pads_like_prompts_in_chunks(prompts: tuple[tuple[int, ...], ...], chunk: int) -> None:
    for case in asked(prompts, cache_state="chunked", prefill_chunk=chunk):
        for good in (with_chunks, packed_chunks):
            assert told(good, case) == ""
        for name, build in GOOD.items():
            if "chunked" in build.cache_states and case.family in build.families:
                assert (name, told(build, case)) == (name, "")


@pytest.mark.parametrize("prompts", [SHARED, PADS])
@pytest.mark.parametrize("gap", [1, 7])
@pytest.mark.tiers(quick=0, rest=2)
def test_equal_prompts_and_pads_like_prompts_that_come_late(prompts: tuple[tuple[int, ...], ...], gap: int) -> None:
    for order in (range(len(prompts)), reversed(range(len(prompts)))):
        arrivals = tuple(1 + gap * place for place in order)
        for case in asked(prompts, cache_state="late-rows", arrivals=arrivals):
            assert told(eager_when_idle, case) == ""
            for good in (*GOOD.values(), *SHIPPED.values()):
                if "late-rows" in good.cache_states:
                    assert (good.name, told(good, case)) == (good.name, "")


def test_pads_that_look_like_a_row_that_has_not_come() -> None:
    """Pads see one another, so they look like the prompt (7, 7, 7); that row comes when the others are done."""
    case = Case(prompts=((7, 7, 7), (1, 2, 3, 4, 5)), pad_token_id=7, cache_state="late-rows", arrivals=(60, 0))

    def late(target: Any, draft: Any, request: Request) -> Rows:
        second = replace(request, prompts=[[9], request.prompts[1]])
        outputs = visible_pads(target, draft, second)
        outputs[0] = visible_pads(target, draft, replace(request, prompts=request.prompts[:1]))[0]
        return outputs

    assert told(late, case) == ""


@pytest.mark.parametrize("prompts", [((5, 6, 7), (5, 6, 7)), ((5, 6, 5, 6, 1), (5, 6, 5)), ((5, 5, 5), (5, 5, 5, 5))])
@pytest.mark.rest
def test_prefixes_that_come_again(prompts: tuple[tuple[int, ...], ...]) -> None:
    for length in (1, 2):
        for case in asked(prompts, cache_state="prefix", prefix_length=length):
            assert told(from_the_prefix, case) == ""
            for good in GOOD.values():
                if "prefix" in good.cache_states:
                    assert (good.name, told(good, case)) == (good.name, "")


@pytest.mark.long
def test_a_draft_fed_like_another_prompt_is_none() -> None:
    """Row 1's prompt is row 0's with a token more, which the draft proposes for row 0 before row 1 has come."""
    for token in range(0, 128, 3):
        case = Case(
            prompts=((5, 9), (5, 9, token, 4)),
            num_draft_tokens=3,
            max_new_tokens=6,
            accepts=((0, 0, 0), ()),
            cache_state="late-rows",
            arrivals=(0, 4),
        )
        for good in (*GOOD.values(), *SHIPPED.values()):
            if "late-rows" in good.cache_states:
                assert (good.name, told(good, case)) == (good.name, "")


def test_states_that_ask_nothing() -> None:
    for state in TAKEN:
        assert ignored(run(heedless, Case(prompts=PROMPTS, cache_state=state))) is None


def test_a_copy_of_what_is_handed_over_counts() -> None:
    case, _ = SAID["preallocated"]

    def copies(target: Any, draft: Any, request: Request) -> Rows:
        import copy

        mine = copy.deepcopy(request.target_cache)
        target(input_ids=torch.tensor([[1], [2]]), past_key_values=mine, use_cache=True)
        return heedless(target, draft, request)

    assert told(copies, case) == ""
