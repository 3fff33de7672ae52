"""The page of a trace in a real browser: one call at a time, by mouse and keys, and all of them without scripts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

import pytest
import torch

import eqcheck
from eqcheck.core.case.record import Case
from eqcheck.core.result.outcome import DrawnDecode
from eqcheck.report.page import trace_page
from eqcheck.transparent.attribution.story import decode_of
from eqcheck.transparent.decoding import run
from eqcheck.transparent.oracle import judge

CASE = Case(
    prompts=((5, 7, 9), (11,)), max_new_tokens=5, num_draft_tokens=2, accepts=((2, 0), (0, 1)), eos_token_ids=(1,)
)
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\x1b[31m&amp;'\""
Opened = Callable[..., Any]
SHOWN = "[...document.querySelectorAll('[data-step]')].filter((s) => s.offsetParent).map((s) => s.id)"


@lru_cache(maxsize=2)
def decoded(case: Case = CASE) -> tuple[DrawnDecode, str]:
    torch.set_num_threads(1)
    done = run(eqcheck.load("bsp"), case)
    verdict = judge(done)
    return decode_of(done, verdict.explanation), f"FAILS: bsp\n{verdict.explain()}\n"


def trace() -> str:
    decode, said = decoded()
    return trace_page("bsp", "c0ffee", said, decode)


def test_one_call_is_shown_at_a_time_and_keys_go_on(opened: Opened) -> None:
    page = opened(trace())
    assert page.evaluate(SHOWN) == ["call-4"]  # where it goes wrong
    for key, now in (("j", 5), ("ArrowRight", 6), ("k", 5), ("ArrowLeft", 4), ("k", 3), ("k", 2), ("k", 1), ("k", 1)):
        page.keyboard.press(key)
        assert page.evaluate(SHOWN) == [f"call-{now}"], key
        assert page.locator(".calls [aria-current]").inner_text().startswith(str(now))
    page.locator(".calls a", has_text="7").click()
    assert page.evaluate(SHOWN) == ["call-7"]
    assert page.evaluate("location.hash") == "#call-7"
    page.keyboard.press("j")  # it is the last
    assert page.evaluate(SHOWN) == ["call-7"]
    page.evaluate("location.hash = '#call-3'")
    page.wait_for_function("document.querySelector('#call-3').offsetParent")
    page.locator("#call-3 .picture .scroll").first.focus()
    page.keyboard.press("ArrowRight")  # moves in the picture
    assert page.evaluate(SHOWN) == ["call-3"]
    page.keyboard.press("j")
    assert page.evaluate(SHOWN) == ["call-4"]
    assert page.complaints == []


def test_the_query_at_fault_is_marked_with_what_is_right(opened: Opened) -> None:
    page = opened(trace())
    assert page.locator("#call-4 th.marked").count() == 1
    picture = page.locator("#call-4 .picture", has=page.locator("th.marked"))
    column = 1 + picture.locator("thead tr").first.locator("th[data-query]").evaluate_all(
        "all => all.findIndex((one) => one.classList.contains('marked'))"
    )
    fed = picture.locator(f"tr.fed > :nth-child({4 + column})").all_inner_texts()
    assert ["".join(text.split()) for text in fed][2::2] == ["3,mustbe1", "62,mustbe74"]
    assert page.locator(".calls .failing").inner_text().startswith("4")
    assert "new token 1 is wrong" in page.locator("header").inner_text()
    assert page.locator("header details[open] .token.first-wrong").first.inner_text() == "62"
    assert page.complaints == []


def test_without_scripts_all_calls_are_one_below_the_other(opened: Opened) -> None:
    page = opened(trace(), java_script_enabled=False)
    tops = [page.locator(f"#call-{number}").bounding_box()["y"] for number in range(1, 8)]
    assert tops == sorted(tops)
    assert all(page.locator(f"#call-{number} table.grid").first.is_visible() for number in range(1, 8))
    assert not page.locator(".keys").is_visible()


@pytest.mark.parametrize("width", [400, 1600])
def test_it_does_not_scroll_sideways_nor_cover_itself(opened: Opened, width: int) -> None:
    wide = Case(prompts=(tuple(range(1, 61)), tuple(range(2, 40))), max_new_tokens=4, num_draft_tokens=7)
    decode, said = decoded(wide)
    for text in (trace(), trace_page("bsp", "wide", said, decode)):
        page = opened(text, width)
        assert page.evaluate("document.documentElement.scrollWidth") == width
        page.keyboard.press("k")
        assert page.evaluate("document.documentElement.scrollWidth") == width
        assert page.complaints == []


def test_hostile_text_is_shown_and_does_nothing(opened: Opened) -> None:
    decode, _ = decoded()
    calls = []
    for call in decode.calls:
        rows = [
            replace(
                row,
                slots=tuple(replace(slot, holds=HOSTILE, origin=HOSTILE) for slot in row.slots),
                queries=tuple(replace(query, stands_for=HOSTILE) for query in row.queries),
            )
            for row in call.rows
        ]
        calls.append(replace(call, model=HOSTILE, rows=tuple(rows)))
    rounds = tuple(tuple(replace(one, last=HOSTILE) for one in some) for some in decode.rounds)
    hostile = replace(decode, calls=tuple(calls), rounds=rounds, note=HOSTILE)
    page = opened(trace_page(HOSTILE, HOSTILE, f"{HOSTILE}\n{HOSTILE}", hostile))
    assert page.locator("img").count() == 0
    assert page.locator("script").count() == 1
    assert "<script>alert(1)" in page.locator("h1").inner_text()
    assert "\x1b" not in page.content()
    page.keyboard.press("j")
    assert page.complaints == []
