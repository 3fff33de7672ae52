"""The report of a comparison as Markdown: all figures come from the stored data."""

from __future__ import annotations

import statistics
from collections import Counter
from typing import Any

from comparison.compare import COMPARED, DRAFT_SIDE, LOW_PRECISION, OTHER_SETUP
from comparison.methods import AS_USED
from comparison.prose import APART, HOW, INTRODUCTION, LEGEND, LIMITS, READING, SIMPLIFIED

Found = dict[str, Any]
LETTERS = "ABCDEFGH"


def report(found: Found) -> str:
    """All of ``README.md``."""
    compared = _of(found, COMPARED)
    parts = [
        INTRODUCTION.format(
            compared=len(compared),
            total=len(found["faults"]),
            draft_side=len(_of(found, DRAFT_SIDE)),
            other=len(_of(found, OTHER_SETUP)),
            good=len(found["known_good"]),
        ),
        _table(_summary(found, compared)),
        _reading(found, compared),
        "## By component\n",
        _table(_components(found, compared)),
        _apart(found),
        HOW,
        _table(_settings(found)),
        SIMPLIFIED,
        LIMITS,
        f"## The {len(compared)} faults\n\n{_legend(found)}",
        _table(_each(found, compared)),
        "Torch {torch}, transformers {transformers}, Python {python}.".format(**found["versions"])
        + f" Regenerating took {found['elapsed_s'] / 60:.0f} min in {found['jobs']} process(es).\n",
    ]
    return "\n".join(parts)


def _of(found: Found, group: str) -> list[Found]:
    return [fault for fault in found["faults"] if fault["group"] == group]


def _columns(found: Found) -> list[tuple[str, str]]:
    """Every method and setting, in order."""
    return [(method["name"], name) for method in found["methods"] for name in method["settings"]]


def _table(rows: list[list[str]]) -> str:
    head, *body = rows
    lines = [head, ["---"] * len(head), *body]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def _summary(found: Found, compared: list[Found]) -> list[list[str]]:
    faults, good = len(compared), len(found["known_good"])
    rows = [
        [
            "test",
            "set up",
            f"caught of {faults}",
            f"false alarms of {good}",
            f"false alarms in {LOW_PRECISION}",
            "passes a right decoder in",
            "median to a catch",
            f"all {faults} faults",
            "names a cause",
        ]
    ]
    ours = found["right_decoder"]["eqcheck"]
    for method, setting in _columns(found):
        outcomes = [fault["tests"][method][setting] for fault in compared]
        caught = [outcome["seconds"] for outcome in outcomes if outcome["failed"]]
        passing = found["right_decoder"]["tests"][method][setting]
        own = _setting(found, method, setting)["dtype"]
        rows.append(
            [
                method,
                setting,
                f"{len(caught)} ({_percent(len(caught), faults)})",
                str(_alarms(found, method, setting, own)),
                str(_alarms(found, method, setting, LOW_PRECISION)) if setting == AS_USED else "not run",
                f"{passing:.1f} s ({passing / ours:.2f} x)",
                f"{statistics.median(caught):.1f} s" if caught else "-",
                f"{sum(outcome['seconds'] for outcome in outcomes):.0f} s",
                "no",
            ]
        )
    caught_by_us = [fault["eqcheck"]["seconds"] for fault in compared if fault["eqcheck"]["caught"]]
    named = sum(fault["eqcheck"]["named"] for fault in compared)
    rows.append(
        [
            "**eqcheck**",
            "as it is",
            f"{len(caught_by_us)} ({_percent(len(caught_by_us), faults)})",
            str(sum(1 for good in found["known_good"] if good["eqcheck"]["violations"])),
            "not applicable",
            f"{ours:.1f} s (1 x)",
            f"{statistics.median(caught_by_us):.1f} s",
            f"{sum(fault['eqcheck']['seconds'] for fault in compared):.0f} s",
            f"{named} of {len(caught_by_us)}, as declared",
        ]
    )
    return rows


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f} %"


def _setting(found: Found, method: str, setting: str) -> Found:
    described: Found = next(one for one in found["methods"] if one["name"] == method)["settings"][setting]
    return described


def _alarms(found: Found, method: str, setting: str, dtype: str) -> int:
    return sum(good["tests"][method][setting][dtype]["failed"] for good in found["known_good"])


def _reading(found: Found, compared: list[Found]) -> str:
    best = list(found["methods"][0]["settings"])[-1]
    tests = [fault["tests"] for fault in compared]
    unseen = sum(not any(of[best]["failed"] for of in one.values()) for one in tests)
    unused = sum(not any(o["failed"] for of in one.values() for s, o in of.items() if s != best) for one in tests)
    held = [fault for fault in compared if fault["held_back"]]
    counts = [sum(f["tests"][method][setting]["failed"] for f in held) for method, setting in _columns(found)]
    by_us = sum(fault["eqcheck"]["caught"] for fault in held)
    ours = found["right_decoder"]
    return READING.format(
        compared=len(compared),
        unused=unused,
        unseen=unseen,
        held=len(held),
        low=min(counts),
        high=max(counts),
        by_us=by_us,
        build=ours["build"],
        cases=ours["eqcheck_cases"],
    )


def _components(found: Found, compared: list[Found]) -> list[list[str]]:
    sizes = Counter(fault["component"] for fault in compared)
    rows = [["test", "set up", *(f"{component} ({count})" for component, count in sizes.items())]]
    for method, setting in _columns(found):
        caught = Counter(fault["component"] for fault in compared if fault["tests"][method][setting]["failed"])
        rows.append([method, setting, *(str(caught[component]) for component in sizes)])
    ours = Counter(fault["component"] for fault in compared if fault["eqcheck"]["caught"])
    rows.append(["**eqcheck**", "as it is", *(str(ours[component]) for component in sizes)])
    return rows


def _apart(found: Found) -> str:
    draft_side, other = _of(found, DRAFT_SIDE), _of(found, OTHER_SETUP)
    return APART.format(
        draft_side=len(draft_side),
        warned=sum(fault["eqcheck"]["caught"] for fault in draft_side),
        other=len(other),
        caught=sum(fault["eqcheck"]["caught"] for fault in other),
    )


def _settings(found: Found) -> list[list[str]]:
    heads = "test, set up, models, weights, type, drafts, prompts, batch, new tokens, rows end at, passes when"
    rows = [heads.split(", ")]
    for method in found["methods"]:
        for name, setting in method["settings"].items():
            low, high = setting["lengths"]
            rows.append(
                [
                    f"[{method['name']}]({method['source']})",
                    name,
                    ", ".join(setting["architectures"]),
                    f"{setting['deviation']}",
                    setting["dtype"],
                    _drafts(setting),
                    f"{setting['prompts']} of {low} to {high} tokens" + ", half repeats" * setting["repeats"],
                    str(setting["batch"]),
                    str(setting["max_new_tokens"]),
                    ", ".join(setting["eos"]),
                    setting["rule"],
                ]
            )
    return rows


def _drafts(setting: Found) -> str:
    low, high = min(setting["draft_agreement"]), max(setting["draft_agreement"])
    agree = f"{low:.0%}" if low == high else f"{low:.0%} to {high:.0%}"
    return f"{', '.join(setting['drafters'])}; K = {setting['num_draft_tokens']}; agree at {agree}"


def _legend(found: Found) -> str:
    named = "; ".join(f"{letter} {method['name']}" for letter, method in zip(LETTERS, found["methods"], strict=False))
    return LEGEND.format(letters=named)


def _each(found: Found, compared: list[Found]) -> list[list[str]]:
    letters = LETTERS[: len(found["methods"])]
    rows = [["fault", "component/kind", *letters, "eqcheck"]]
    mark = {"": "-", "tokens": "x", "crash": "c"}
    for fault in compared:
        seen = [" ".join(mark[o["way"]] for o in fault["tests"][m["name"]].values()) for m in found["methods"]]
        ours = fault["eqcheck"]
        last = "-" if not ours["caught"] else "x" if ours["named"] else "?"
        rows.append([f"`{fault['id']}`", f"{fault['component']}/{fault['kind']}", *seen, last])
    return rows
