"""Pages: one file each, that fetches nothing, in which no text of a decoder becomes markup."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace

import pytest
from jinja2 import Environment
from pages import HOSTILE, ROOT, a_story, elements, filled, many_causes, told

import eqcheck
from eqcheck.audit.coverage_words import TRANSPARENT
from eqcheck.core.explanation.records import Explanation, Opinion
from eqcheck.core.result.findings import LawEvidence, OtherCase
from eqcheck.core.result.outcome import DrawnDecode, DrawnQuery, DrawnRound, DrawnSlot
from eqcheck.report import page as pages_module
from eqcheck.report.content import readable, tokens
from eqcheck.report.page import page, to_html, trace_page
from eqcheck.report.picture import SlotColumn, cell, columns, committed, drafts, timeline
from eqcheck.report.terminal import summary


def test_a_cell_says_what_is_seen_and_what_should_be() -> None:
    query = DrawnQuery(0, "", 1, 1, 1, "1010", "1001", 1, 1)
    assert [cell(query, n) for n in range(4)] == ["seen", "unseen", "wrongly-seen", "wrongly-hidden"]
    unjudged = DrawnQuery(0, "", 1, 1, None, "10", "", 1, None)
    assert [cell(unjudged, n) for n in range(3)] == ["seen-unjudged", "unseen-unjudged", "unseen-unjudged"]


def test_neighbours_that_are_alike_are_gathered_and_wrong_ones_never() -> None:
    story = a_story()
    assert story.call is not None
    found = columns(story.call.rows[0])
    assert [(one.label, one.alike) for one in found[:5]] == [("0", 0), ("1", 0), ("2..10", 9), ("11", 0), ("12", 0)]
    assert [one.kind for one in found[-3:]] == ["draft", "token", "blank"]
    assert found[-2].wrong
    assert not any("wrongly" in state for one in found if one.alike for state in one.cells)


@pytest.mark.parametrize(
    ("held", "kind"), [("other-token", "other"), ("pad", "pad"), ("draft model", "other"), ("?", "unknown")]
)
def test_what_a_slot_holds_has_a_class_of_a_fixed_list(held: str, kind: str) -> None:
    assert SlotColumn("0", DrawnSlot("words", 1, 1, True, "", held), (), False).kind == kind


def test_rounds_say_which_drafts_were_accepted_and_where_tokens_lie_in_the_output() -> None:
    first, second = a_story().rounds
    assert drafts(first) == [(104, "accepted"), (62, "rejected")]
    assert drafts(replace(first, agreed=2)) == [(104, "accepted"), (62, "cut")]
    assert drafts(replace(first, agreed=0)) == [(104, "over-accepted"), (62, "rejected")]
    assert committed([first, second])[1] == (second, [(2, 73), (3, 7)])


def test_a_page_fetches_nothing_and_runs_only_its_own_script() -> None:
    text = page("a title", "page.jinja")
    assert not re.search(r"""(src|href)=|url\(|@import|https?:""", text)
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', text)
    assert "default-src &#39;none&#39;" in policy
    assert "unsafe" not in policy
    assert not re.search(r"\sstyle=|\son\w+=", text)


REPORTS = ("showcase/bsp", "showcase/dsd", "openvino_genai", "vllm")
KINDS = ("kind", "component")  # where these are known, pages go other ways


@pytest.mark.parametrize("kept", [(), KINDS], ids=["unknown kinds", "known kinds"])
@pytest.mark.parametrize("name", REPORTS)
@pytest.mark.tiers(quick=6, rest=2)
def test_no_text_of_a_report_becomes_markup(name: str, kept: tuple[str, ...]) -> None:
    hostile, harmless = (to_html(filled(name, text, kept)) for text in (HOSTILE, " harmless"))
    assert elements(hostile) == elements(harmless)
    assert "<img" not in hostile
    assert hostile.count("&lt;img src=x onerror=alert(1)&gt;") > 40
    assert not re.search("[\x00-\x09\x0b-\x1f\u202a-\u202e\ud800-\udfff]", hostile)
    assert "{{ 7*7 }}" in hostile


def test_a_page_without_escaping_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    made = pages_module._environment()
    loose = Environment(autoescape=False, loader=made.loader, trim_blocks=True, lstrip_blocks=True)
    loose.filters |= made.filters
    monkeypatch.setattr(pages_module, "_environment", lambda: loose)
    hostile, harmless = (to_html(filled("showcase/bsp", text)) for text in (HOSTILE, " harmless"))
    assert elements(hostile) != elements(harmless)


def test_texts_of_10000_characters_make_no_large_page() -> None:
    text = to_html(filled("showcase/dsd", "<" + "A" * 10_000))
    assert len(text) < 1_500_000


def test_twenty_causes_with_stories_are_less_than_3_mb() -> None:
    text = to_html(many_causes(20, rows=8, slots=160))
    assert text.count("<article") == 20
    assert len(text.encode()) < 3_000_000


def test_a_page_is_made_of_the_json_alone_and_imports_no_model() -> None:
    code = (
        "import sys; from eqcheck.report import load; from eqcheck.report.page import to_html, trace_page\n"
        f"assert to_html(load({str(ROOT / 'reports' / 'vllm')!r})).startswith('<!doctype html>')\n"
        "sys.exit(len({'torch', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_what_another_version_may_not_have_counted_is_not_said_to_be_never_exercised() -> None:
    own = {"eqcheck": eqcheck.__version__}
    report = replace(told("showcase/bsp"), coverage={"several_rows": 3}, versions=own)
    assert 'class="n">never<' in to_html(report)
    assert "never, or not counted by" not in to_html(report)
    older = to_html(replace(report, versions={"eqcheck": "0.1.0"}))
    assert 'class="n">never<' not in older
    assert ": never, or not counted by eqcheck 0.1.0, which wrote this report." in older


def test_the_page_tells_what_the_report_says() -> None:
    text = to_html(told("showcase/bsp", a_story()))
    report = told("showcase/bsp")
    for said in (
        "130 of 150 cases fail. Found: 2 causes.",
        "position/query-position",
        "Wrong position id",
        "eqcheck replay",
        "6 of 6 copies of the case with other tokens fail in the same way.",
        "With the correct position ids in every target call, the output is correct.",
        "rows of one target call accepted different counts",
        "transformers",
    ):
        assert said in text, said
    assert text.count("first-wrong") > text.count(".first-wrong")
    assert text.count("wrongly-seen") > 3
    assert text.count('class="step first"') == len(report.violations)


def test_what_was_never_exercised_and_what_is_vacuous_is_said_loudly() -> None:
    report = told("showcase/bsp")
    loud = replace(report, warnings=("VACUOUS: no case was seen to exercise: ragged_round", "another"), coverage={})
    text = to_html(loud)
    assert "<b>VACUOUS</b> no case was seen" in " ".join(text.split())
    assert text.count('class="never"') > 20
    full = replace(report, coverage={**dict.fromkeys(TRANSPARENT.counters, 1), **report.coverage})
    assert 'class="never"' not in to_html(full)
    assert "<b>VACUOUS</b>" not in to_html(full)


def test_a_violation_without_a_cause_is_counted_and_not_listed_as_a_cause() -> None:
    report = told("openvino_genai")
    vague = [one for one in report.violations if not one.caused]
    causes, count = len(report.violations) - len(vague), sum(one.count for one in vague)
    report = replace(report, inconclusive=(replace(vague[0], count=13),))
    text, printed = to_html(report), summary([report], ["out"]).partition("openvino_genai: violation")[2]
    listed = text[text.index('<ol class="causes">') : text.index("</nav>")]
    assert f"Found: {causes} causes and {count} cases without a cause that could be shown." in text
    assert "unattributed" not in listed
    assert f"{count} cases without a cause:" in listed
    assert "13 cases without a cause, inconclusive:" in listed
    assert f"; {count} without a cause; INCONCLUSIVE 13 without a cause" in printed
    assert "unattributed" not in printed
    assert any(one.component == "unattributed" and one.reproduce for one in report.violations), "it stays a violation"
    anchors = set(re.findall(r'href="#(r0-\d+)"', listed))
    assert anchors <= set(re.findall(r'id="(r0-\d+)"', text)), "and can be looked at"
    assert len(anchors) == len(report.violations) + len(report.inconclusive)


def test_the_evidence_is_drawn_against_its_thresholds() -> None:
    report = told("vllm")
    assert report.sampling is not None
    old = replace(report, sampling=replace(report.sampling, course=()))
    assert "<polyline" not in to_html(old), "an older report has no course"
    course = ((0, 0.0), (10, -0.4), (20, 8.5))
    evidence = LawEvidence(20, 3e8, 3e8, 1e6, "violation", (), {"std": 20}, course)
    text = to_html(replace(report, sampling=evidence))
    assert "Evidence over 20 tokens: at most 10⁸, in the end 10⁸." in text
    assert "10⁶ violation" in text
    assert "10³ in doubt" in text
    wild = replace(evidence, evidence=float("inf"), threshold=0.0, course=((5, 1e300), (-3, -1e300), (5, 0.0)))
    assert "<polyline" in to_html(replace(report, sampling=wild))


def test_of_a_long_row_the_ends_and_what_is_around_the_first_wrong_token_is_shown() -> None:
    right, wrong = tuple(range(200)), (*range(100), 7, *range(101, 200))
    e = Explanation("cache", "stale-entry", 0, 100, 1, 100, 7, expected_row=right, observed_row=wrong)
    found = tokens(e)
    assert [one.index for one in found if one.state == "first"] == [100]
    assert sum(one.gap or 1 for one in found) == 200
    assert len(found) < 60


def test_where_a_row_ends_the_end_is_shown() -> None:
    short = Explanation("bookkeeping", "premature-stop", 0, 2, 1, 9, None, expected_row=(1, 2, 9), observed_row=(1, 2))
    assert [(one.first, one.second, one.state) for one in tokens(short)][-1] == ("9", "end", "first")
    long = Explanation("bookkeeping", "past-eos", 0, 1, 1, None, 4, expected_row=(1,), observed_row=(1, 4, 5))
    assert [(one.first, one.second, one.state) for one in tokens(long)][1:] == [
        ("end", "4", "first"),
        ("", "5", "other"),
    ]


def test_a_case_is_readable_row_by_row() -> None:
    case = {"rows": [{"prompt": [1, 2], "temperature": 1.0}], "prompts": [[3], [4, 5]], "seed": 7, "before": []}
    assert readable(case) == [
        ("rows", ["prompt 1 2; temperature 1.0"]),
        ("prompts", ["3", "4 5"]),
        ("seed", ["7"]),
        ("before", ["none"]),
    ]


@pytest.mark.parametrize("address", ["javascript:alert(1)", 'https://x.org/"onclick=', "data:text/html,x", "//x.org"])
def test_only_addresses_of_the_web_become_links(address: str) -> None:
    report = told("showcase/bsp")
    text = to_html(replace(report, decoder=replace(report.decoder, origin=address)))
    assert not re.search(f'href="{re.escape(address[:10])}', text)
    assert 'href="https://github.com' in to_html(report)


def test_several_reports_are_one_page_with_anchors_of_their_own() -> None:
    text = to_html(told("showcase/bsp"), told("showcase/dsd"))
    ids = re.findall(r'\sid="([^"]*)"', text)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'href="#([^"]*)"', text)) <= set(ids)


def other(n: int, text: str = "") -> OtherCase:
    case = {"prompts": [[n, 2]], "family": f"x{text}"}
    return OtherCase(case, f"mask/window - case {n}{text}", n, 3, 7, None)


def test_the_rounds_of_all_rows_are_a_table_over_calls() -> None:
    """Row 0 accepts one of two drafts and then one of one; row 1 accepts none and has left when call 3 is made."""
    text = " ".join(to_html(told("showcase/bsp", a_story())).split())
    (found, *_) = re.findall(r'<table class="timeline">.*?</table>', text)
    assert (
        "<caption>Draft tokens that each row accepted, of those drafted, in each call of the target.</caption>" in found
    )
    cells = [re.sub(r"<[^>]*>", " ", row).split() for row in re.findall(r"<tr.*?</tr>", found)]
    assert cells == [
        ["call", "2", "call", "3"],
        ["row", "0", "1", "of", "2", "1", "of", "1"],
        ["row", "1", "0", "of", "2", "left"],
    ]
    assert found.count('<i class="accepted">') == 2
    assert found.count('<i class="rejected">') == 3
    alone = replace(a_story(), batch=a_story().batch[:1])
    assert '<table class="timeline">' not in to_html(told("showcase/bsp", alone))


def test_the_page_of_a_replay_has_them_too() -> None:
    batch = a_story().batch
    for story in (None, a_story()):
        text = trace_page("mine", "case", "FAILS", DrawnDecode((), 0, batch, ((1,), (2,)), ((1,), (2,)), story))
        assert text.count('<table class="timeline">') == 1
    assert '<table class="timeline">' not in trace_page("m", "c", "", DrawnDecode((), 0, batch[:1], ((1,),), ((1,),)))


def test_a_row_that_comes_late_waits_and_many_calls_are_cut() -> None:
    rounds = [DrawnRound(n, n, (5,), 1, "bonus", 6, (5, 6)) for n in range(1, 61)]
    found = timeline([rounds, rounds[2:4]])
    assert found is not None
    assert found.rows[1][:5] == ("waits", "waits", rounds[2], rounds[3], "left")
    assert (len(found.calls), found.left_out) == (40, 20)


def test_other_failing_cases_of_a_cause_can_be_walked() -> None:
    report = told("showcase/bsp")
    violations = tuple(replace(one, others=(other(1), other(2))) for one in report.violations)
    text = to_html(replace(report, violations=violations))
    assert text.count("data-other aria-label=") == 2 * len(violations)
    assert "2 other failing cases of this cause" in text
    assert "Case 2 of 2: request 2, new token 3: expected 7, got end" in text
    assert "mask/window - case 2" in text
    hostile = [
        to_html(replace(report, violations=(replace(report.violations[0], others=(other(1, more),)),)))
        for more in (HOSTILE, "harmless")
    ]
    assert elements(hostile[0]) == elements(hostile[1])
    many = tuple(replace(one, others=tuple(other(n, "A" * 3000) for n in range(4))) for one in violations)
    assert len(to_html(replace(report, violations=many)).encode()) < 300_000


def test_the_top_has_the_date_and_the_command_and_what_was_exercised_is_folded() -> None:
    report = replace(told("showcase/bsp"), written="2026-11-23 10:00 UTC", command="eqcheck audit bsp --cases 300")
    text = to_html(report)
    top = text[text.index('<p class="brand">') : text.index("<h1>")]
    assert "<time>2026-11-23 10:00 UTC</time>" in top
    assert "<code>eqcheck audit bsp --cases 300</code>" in top
    assert '<details class="fold"><summary>What 150 cases exercised, rarest first (' in text
    assert "<time>" not in to_html(replace(report, written=""))


def test_statements_and_repairs_that_another_version_has_are_shown_as_it_wrote_them() -> None:
    report = told("showcase/bsp")
    first = report.violations[0]
    newer = replace(
        first.evidence,
        detail="this is said; that is said",
        facts={"statement": "of-a-newer-version", "also": "of-a-newer-version-too"},
        repair=Opinion((("rotation",),), ()),
    )
    text = to_html(replace(report, violations=(replace(first, evidence=newer),)))
    assert "This is said; that is said." in text
    assert "With the correct rotation in every target call, the output is correct." in text
