"""The pages of reports in a real browser: nothing in them runs, nothing sticks out, keys and paper work."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from pages import HOSTILE, a_story, filled, many_causes, told

from eqcheck.core.result.findings import OtherCase
from eqcheck.report.compare import compare
from eqcheck.report.page import compared_to_html, to_html

Opened = Callable[..., Any]
WIDTHS = (400, 1600)
TOO_WIDE = "document.documentElement.scrollWidth > innerWidth"


def report(name: str = "showcase/bsp") -> str:
    return to_html(told(name, a_story()))


@pytest.mark.parametrize("name", ["showcase/bsp", "openvino_genai", "vllm"])
@pytest.mark.parametrize("width", WIDTHS)
def test_a_report_is_shown_without_complaint_and_fits(opened: Opened, name: str, width: int) -> None:
    page = opened(report(name), width)
    assert page.complaints == []
    assert not page.evaluate(TOO_WIDE)
    assert page.locator("h1").first.is_visible()
    assert page.locator(".verdict .violation").bounding_box()["y"] < 300, "the verdict is on the first screen"
    begins, listed = page.locator("article h2").first.bounding_box()["y"], page.locator(".causes").first
    if width > 1000:
        assert begins < 900
    else:  # the list of causes is as long as there are causes
        assert begins - listed.bounding_box()["height"] < 700
        assert listed.bounding_box()["height"] < 85 * listed.locator("li").count()
    assert not page.locator(".exercised").first.is_visible(), "what was exercised is folded"
    page.locator("summary", has_text="exercised").first.click()
    assert page.locator(".exercised").first.is_visible()


def test_other_failing_cases_are_walked_one_at_a_time(opened: Opened) -> None:
    shown = told("showcase/bsp", a_story())
    cause = shown.violations[0]
    others = tuple(OtherCase(cause.case, f"case {n} here", n, 3, 7, None) for n in range(3))
    page = opened(to_html(replace(shown, violations=(replace(cause, others=others),))), 1600)
    page.locator("[data-walk] > summary").click()
    for button, case in (("", 1), ("Next →", 2), ("Next →", 3), ("Next →", 1), ("← Previous", 3)):
        if button:
            page.locator("[data-walk] button", has_text=button).click()
        visible = [one for one in page.locator("[data-other]").all() if one.is_visible()]
        assert [one.get_attribute("aria-label") for one in visible] == [f"Other failing case {case}"]
    assert page.complaints == []


@pytest.mark.parametrize("width", WIDTHS)
def test_hostile_text_does_nothing(opened: Opened, width: int) -> None:
    page = opened(to_html(filled("showcase/bsp", HOSTILE)), width)
    assert page.complaints == []
    assert page.locator("img, iframe, object").count() == 0
    assert page.locator("script").count() == page.locator("style").count() == 1
    assert not page.evaluate(TOO_WIDE)
    assert "49" not in page.locator("h1").inner_text()


def test_very_long_texts_do_not_stick_out(opened: Opened) -> None:
    page = opened(to_html(filled("showcase/dsd", "A" * 10_000)), 400)
    assert not page.evaluate(TOO_WIDE)


def test_what_runs_or_sticks_out_would_be_seen(opened: Opened) -> None:
    image = HOSTILE.split("<", 2)[1]
    guarded = report().replace("<main>", f"<main><{image}", 1)
    assert any("Content Security Policy" in said for said in opened(guarded).complaints), "the policy stops it"
    open_to_all = re.sub(r"<meta http-equiv=[^>]*>", "", guarded)
    assert "1" in opened(open_to_all).complaints
    wide = "<div style='min-width: 999px'>A</div></main>"
    assert opened(open_to_all.replace("</main>", wide, 1), 400).evaluate(TOO_WIDE)


def test_twenty_causes_open_within_a_second(opened: Opened) -> None:
    """A second of the processor: others may want the machine, too."""
    page = opened("<!doctype html>")
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable")

    def spent() -> float:
        metrics = session.send("Performance.getMetrics")["metrics"]
        return next(float(one["value"]) for one in metrics if one["name"] == "ProcessTime")

    before = spent()
    page.set_content(to_html(many_causes(20)))
    assert page.locator("article").count() == 20
    assert 0.01 < spent() - before < 1


def test_without_scripts_everything_is_there(opened: Opened) -> None:
    page = opened(report(), java_script_enabled=False)
    for said in ("position/query-position", "131 of 150 cases fail", "eqcheck replay"):
        assert page.get_by_text(said).first.is_visible()
    assert page.locator("article .grid").first.is_visible()
    slot = page.locator("article .grid tbody tr").first
    assert slot.inner_text().split() == ["0", "position", "0", "100", "0", "0", "1"]
    case = page.locator("details", has=page.locator(".case")).first
    assert not case.locator(".case").is_visible()
    case.locator("summary").click()
    assert case.locator(".case").is_visible()
    assert page.locator("button").count() == 0


def test_keys_go_from_cause_to_cause_and_from_slot_to_slot(opened: Opened) -> None:
    page = opened(report())
    where = "document.activeElement.id"
    page.keyboard.press("ArrowRight")
    assert page.evaluate(where) == "r0-1"
    page.keyboard.press("ArrowRight")
    assert page.evaluate(where) == "r0-2"
    page.keyboard.press("ArrowLeft")
    assert page.evaluate(where) == "r0-1"
    picture = page.locator("article .picture").first
    picture.locator(".scroll").first.focus()
    page.keyboard.press("ArrowRight")
    said = picture.locator(".readout")
    assert said.inner_text() == (
        "Slot 0: position 0, token 100, position id 0, written by call 1, column 0; "
        "the query in column 0 (position 12) does not attend to it and must."
    )
    page.keyboard.press("ArrowRight")
    assert said.inner_text().endswith("the query in column 1 (draft at position 13) attends to it, as it should.")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    assert "does not attend to it and must" in said.inner_text(), "the first column is the end"
    assert page.evaluate("document.activeElement.className") == "scroll"


def test_the_pointer_tells_what_a_slot_holds(opened: Opened) -> None:
    page = opened(report())
    picture = page.locator("article .picture").first
    picture.locator("td.wrongly-seen").first.hover()
    assert picture.locator(".readout").inner_text().endswith("attends to it and must not.")
    picture.locator(".of-draft th").first.hover()
    assert picture.locator(".readout").inner_text().startswith("Slot 12: rejected draft at position 12, token 62")


def test_tab_reaches_causes_pictures_cases_and_buttons(opened: Opened) -> None:
    page = opened(report())
    reached = []
    for _ in range(14):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.tagName"))
    assert {"A", "DIV", "SUMMARY", "BUTTON"} <= set(reached)


def test_a_command_is_copied(opened: Opened) -> None:
    page = opened(report(), permissions=["clipboard-read", "clipboard-write"])
    page.locator("button.copy").first.click()
    page.get_by_text("Copied").wait_for()
    assert page.evaluate("navigator.clipboard.readText()").startswith("eqcheck replay ")


def test_on_paper_everything_is_open_and_light(opened: Opened) -> None:
    page = opened(report(), color_scheme="dark", java_script_enabled=False)
    assert not page.locator(".case").first.is_visible()
    page.emulate_media(media="print", color_scheme="dark")
    assert page.locator(".case").first.bounding_box()["height"] > 50
    assert page.locator("body").evaluate("one => getComputedStyle(one).backgroundColor") == "rgb(255, 255, 255)"


def test_dark_and_light_follow_the_reader(opened: Opened) -> None:
    colour = "one => getComputedStyle(one).backgroundColor"
    dark, light = (opened(report(), color_scheme=one).locator("body").evaluate(colour) for one in ("dark", "light"))
    assert (dark, light) == ("rgb(20, 23, 27)", "rgb(255, 255, 255)")


@pytest.mark.parametrize("width", WIDTHS)
def test_a_comparison_is_shown(opened: Opened, width: int) -> None:
    before, now = filled("vllm", HOSTILE, ("fingerprint",)), told("openvino_genai")
    page = opened(compared_to_html([compare(before, now)]), width)
    assert page.complaints == []
    assert not page.evaluate(TOO_WIDE)
    new = {one.fingerprint for one in now.violations} - {one.fingerprint for one in before.violations}
    assert page.locator(".tag.new").count() == len(new) > 1
    assert page.locator("img").count() == 0
