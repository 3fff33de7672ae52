"""Explanations as text: *Let* names the things, *Then* gives the reasons in order, *However* the contradiction."""

from __future__ import annotations

from tabulate import tabulate

from eqcheck.verdict import Deviation, Explanation, Slot

_MEANING = {
    "query-position": "a query carries a position other than its logical one",
    "key-position": "a visible key carries a position other than its logical one",
    "pad-visible": "a pad is seen",
    "token-hidden": "a token of the row is in the cache but hidden",
    "future-visible": "a query sees a later token",
    "window": "the attention window is wrong",
    "stale-entry": "a rejected draft token is still seen",
    "missing-entry": "a token of the row is not in the cache",
    "duplicate-entry": "a token of the row is seen twice",
    "wrong-row": "another row's entry is seen",
    "misaligned": "cache entries have moved against the mask",
    "torn-entry": "K and V, two heads or two layers disagree about what a slot holds",
    "poisoned-entry": "an entry was written under an earlier fault",
    "over-accept": "a draft token is emitted that the target rejected",
    "wrong-correction": "the emitted token is not the target's prediction",
    "lost-token": "a token was dropped",
    "repeated-token": "a token was emitted twice",
    "past-eos": "tokens follow the EOS",
    "premature-stop": "the row ends too early",
    "over-length": "the row exceeds its limit",
    "pad-in-output": "a pad was emitted",
    "row-swap": "the row holds another row's output",
    "unverified": "a draft token is emitted that the target never verified",
    "prompt-in-output": "the prompt is returned with the row",
    "ignored-option": "an option of the row is not applied as asked",
    "leaks-from-earlier-request": "the answer depends on what was decoded before",
    "desync": "the draft has lost its place in the row",
    "lost-bonus": "the target is asked again for a token that it has answered for",
    "exception": "the decoder raised",
    "hang": "the decoder does not end",
    "invalid-output": "what the decoder returned, or left of its request, breaks the contract",
    "unattributed": "no cause was shown",
}


def meaning(kind: str) -> str:
    """What a kind means, in one line."""
    return _MEANING[kind]


def render(explanation: Explanation) -> str:
    """The text of an explanation.

    >>> print(render(Explanation("crash", "exception", detail="KeyError: 'x'")))
    crash/exception:KeyError - the decoder raised
      KeyError: 'x'
    """
    head = f"{explanation.fingerprint} - {meaning(explanation.kind)}"
    if explanation.row is None:
        return f"{head}\n  {explanation.detail}"
    lines = [head, *_let(explanation)]
    if explanation.component == "unattributed" and explanation.query and explanation.repair:
        lines += [f"  Two opinions: {explanation.detail}.", "  What reading saw, and repair does not bear out:"]
    lines += [*_then(explanation), *_however(explanation)]
    if explanation.repair and explanation.component != "unattributed":
        lines.append(f"  Repair agrees: {explanation.repair}.")
    if explanation.slots:
        lines += ["", *_picture(explanation.slots)]
    if explanation.consequences:
        lines += ["", "  What follows from it (not counted):", *_consequences(explanation.consequences)]
    return "\n".join(lines)


def _let(e: Explanation) -> list[str]:
    return [
        f"  Let   row {e.row} be expected to emit {_tokens(e.expected_row, e.token_index)},",
        f"        and observed to emit         {_tokens(e.observed_row, e.token_index)}.",
    ]


def _then(e: Explanation) -> list[str]:
    where = f" (round {e.round} of the row)" if e.round else ""
    if e.query is None:
        reason = "every query up to there saw exactly its row"
        if e.component == "unattributed":
            reason = e.detail
        elif e.round is None:
            reason = "judged by the tokens alone"
        elif e.round == 0:
            reason = "the target was never asked about the row"
        return [f"  Then  token {e.token_index} is the first that differs{where}; {reason}."]
    q = e.query
    return [
        f"  Then  in call {q.call}{where} batch row {q.call_row}, column {q.column} feeds token {q.token},",
        f"        which is logical position {q.logical_position} of the row; it should see "
        f"positions 0..{q.logical_position}, each once.",
    ]


def _however(e: Explanation) -> list[str]:
    if e.query is None:
        shown = f"expected {_token(e.expected)}, got {_token(e.observed)}"
        detail = f" ({e.detail})" if e.detail and e.component != "unattributed" else ""
        return [f"  However, {shown}: {meaning(e.kind)}{detail}."]
    lines = [f"  However, {say(d)}" for d in e.deviations[:3]]
    if len(e.deviations) > 3:
        lines.append(f"           and {len(e.deviations) - 3} more of the same kind")
    lines[-1] += f"; token {e.token_index} becomes {_token(e.observed)} where {_token(e.expected)} is right."
    return lines


def say(d: Deviation) -> str:
    """One deviation as a clause.

    >>> say(Deviation("position", "query-position", 3, 0, 1, expected=5, observed=7))
    'the query carries position 7 where 5 is right'
    """
    slot = f"slot {d.slot}"
    if d.kind == "query-position":
        return f"the query carries position {d.observed} where {d.expected} is right"
    if d.kind == "key-position":
        return f"{slot} (token {d.token_position}) carries position {d.observed} where {d.expected} is right"
    if d.kind == "window":
        return f"{slot} (token {d.token_position}) is on the wrong side of the attention window"
    if d.kind == "missing-entry":
        return f"token {d.token_position} is not in the row's cache ({d.origin})"
    if d.kind == "token-hidden":
        return f"{slot} holds token {d.token_position} and is hidden"
    if d.kind == "poisoned-entry":
        return f"{slot} (token {d.token_position}) was written under an earlier fault"
    if d.kind == "misaligned":
        return f"the row's entries lie {d.origin}"
    if d.kind == "torn-entry":
        return d.origin if d.slot is None else f"{slot} is seen, and {d.origin}"
    if d.kind == "unattributed":
        return f"{slot} is seen and holds an entry of unknown standing (token {d.token})"
    if d.origin == "blank":
        return f"{slot} was never written and is seen"
    holds = d.origin or "an unknown entry"
    return f"{slot} holds {holds} and is seen: {meaning(d.kind)}"


def _consequences(deviations: tuple[Deviation, ...]) -> list[str]:
    groups: dict[tuple[int, str], int] = {}
    for deviation in deviations:
        key = (deviation.call, deviation.fingerprint)
        groups[key] = groups.get(key, 0) + 1
    lines = [f"    call {call}: {fingerprint} x{count}" for (call, fingerprint), count in groups.items()]
    return lines[:6] + ([f"    and {len(lines) - 6} more"] if len(lines) > 6 else [])


def _picture(slots: tuple[Slot, ...]) -> list[str]:
    rows: list[list[object]] = []
    for number, slot in enumerate(slots):
        if 0 < number < len(slots) - 1 and all(_idle(s) for s in slots[number - 1 : number + 2]):
            rows += [["..."]] if rows[-1] != ["..."] else []
            continue
        seen, right = _seen(slot.visible), _seen(slot.expected_visible)
        position = "-" if slot.expected_position is None else str(slot.expected_position)
        wrong = slot.torn or seen != right or (slot.visible and position != str(slot.position))
        index = "none" if slot.index is None else slot.index
        held = "-" if slot.position is None else slot.position
        rows.append([index, slot.holds, slot.token, held, position, seen, right, "<--" if wrong else ""])
    headers = ["slot", "holds", "token", "position", "should be", "seen", "should be", ""]
    table = tabulate(rows, headers=headers, tablefmt="plain", disable_numparse=True)
    return ["  " + line.rstrip() for line in table.splitlines()]


def _idle(slot: Slot) -> bool:
    """Whether a slot was never written, is hidden, and rightly so."""
    return slot.holds == "blank" and not slot.visible and not slot.expected_visible


def _seen(visible: bool) -> str:
    return "yes" if visible else "no"


def _tokens(row: tuple[int, ...], mark: int | None) -> str:
    shown = [f"[{token}]" if at == mark else str(token) for at, token in enumerate(row)]
    if mark is not None and mark >= len(row):
        shown.append("[end]")
    return " ".join(shown)


def _token(token: int | None) -> str:
    return "the end of the row" if token is None else f"token {token}"
