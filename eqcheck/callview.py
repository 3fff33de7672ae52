"""Every call of one decode as text, for ``eqcheck replay -v``: what it fed, saw and answered, what rows have then."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import groupby
from textwrap import fill

from tabulate import tabulate

from eqcheck.attribution.context import holds
from eqcheck.attribution.labels import Labels, labels_of
from eqcheck.attribution.record import Label, Write, self_hidden
from eqcheck.harness import Run
from eqcheck.hashing import CALL, COLUMN, MODEL, POSITION, ROW, TOKEN, Ints
from eqcheck.text import ids
from eqcheck.trace import DRAFT, TARGET, Call
from eqcheck.verdict import many

_ROWS, _COLUMNS, _SLOTS = 8, 12, 12  # of a call, of a row and of its cache; more are shortened
_MODELS = {TARGET: "target", DRAFT: "draft"}
_ABOUT = """Every call of the decoder. Slots are shown as the queries of the call see them, its own tokens among them.
`position 3` in a slot is the token of the row there; the column `position` is what the query carries. Of a draft's
query that saw no row exactly (-) only id and position are known. A new token is counted from the call that answers
for it; the first wrong one is in brackets."""


def view(run: Run) -> str:
    """The calls of a decode, in order, and what was returned."""
    labels = labels_of(run, run.trace)
    drafts = _draft_labels(run)
    had: dict[int, int] = defaultdict(int)
    blocks = []
    for call in run.trace.calls:
        block = [_head(run, call), *_rows(call, labels, drafts)]
        if call.role == TARGET:
            block += _commits(run, labels, call, had)
        blocks.append("\n".join(block))
    return "\n\n".join([_ABOUT, *blocks, "\n".join(_returned(run))])


def _head(run: Run, call: Call) -> str:
    (rows, columns), slots = call.tokens.shape, call.visible.shape[2]
    shape = f"{many(rows, 'row')} of {many(columns, 'column')}, {many(slots, 'slot')}"
    given = ", made before the decoder began" if call.number <= run.trace.given else ""
    return f"call {call.number}, {_MODELS[call.role]}: {shape}{given}"


def _rows(call: Call, labels: Labels, drafts: dict[Write, Label]) -> Iterator[str]:
    of = labels.of if call.role == TARGET else drafts
    for row in range(min(len(call.tokens), _ROWS)):
        columns = [of.get((call.number, row, column)) for column in range(call.tokens.shape[1])]
        slots = [of.get(_write(fields)) for fields in call.kv[0][0, row, 0] if fields[MODEL] == call.role]
        fed, held = ([one.request for one in some if one and one.request >= 0] for some in (columns, slots))
        request = max(fed or held, key=(fed or held).count, default=-1)
        round_ = labels.round_of(request, call.number) if call.role == TARGET and fed else 0
        name = f"row {request}{f', round {round_}' if round_ else ''}" if fed else "no row is recognised"
        yield f"  batch row {row} ({f'its slots hold row {request}' if held and not fed else name})"
        yield from _shortened(_queries(call, row, columns, request))
        yield fill(f"    slots  {_held(call, row, of, request)}", 118, subsequent_indent=" " * 11)
    if len(call.tokens) > _ROWS:
        yield f"  and {len(call.tokens) - _ROWS} more batch rows"


def _queries(call: Call, row: int, columns: Sequence[Label | None], request: int) -> list[str]:
    """A line for each column: what it stands for, what it sees and answers."""
    table = [
        [
            column,
            holds(label, request) if label else "-",
            call.tokens[row, column],
            call.places[row, column],
            _ranges([slot for slot, seen in enumerate(call.visible[row, column]) if seen]),
            call.predictions[row, column],
        ]
        for column, label in enumerate(columns)
    ]
    headers = ["column", "stands for", "id", "position", "sees slots", "answers id"]
    text = tabulate(table, headers=headers, tablefmt="plain", disable_numparse=True)
    return [f"    {line.rstrip()}" for line in text.splitlines()]


def _shortened(lines: list[str]) -> list[str]:
    """A table with its head, and only the first and last lines of a long one."""
    left_out = len(lines) - 1 - _COLUMNS
    if left_out <= 0:
        return lines
    half = _COLUMNS // 2
    return [*lines[: half + 1], f"    ... {left_out} more columns", *lines[-half:]]


def _held(call: Call, row: int, of: dict[Write, Label], request: int) -> str:
    """What the slots hold, alike ones and those in order together."""
    if call.kv[0].shape != call.kv[1].shape:
        return "the layers hold different numbers of slots"
    entries = [_entry(fields, call, of, request) for fields in call.kv[0][0, row, 0]]
    numbered = list(enumerate(entries))
    parts = []
    for _, group in groupby(numbered, key=lambda one: _alike(*one)):
        some = list(group)
        (first, (what, at)), (last, (_, end)) = some[0], some[-1]
        slots = f"{first}" if first == last else f"{first}..{last}"
        text = f"{what}{at}" if first == last or at is None else f"{what.replace('position', 'positions')}{at}..{end}"
        parts.append(f"{slots}: {what if at is None else text}")
    if len(parts) > _SLOTS:
        half = _SLOTS // 2
        parts = [*parts[:half], "...", *parts[-half:]]
    return " | ".join(parts)


def _alike(slot: int, entry: tuple[str, int | None]) -> tuple[str, int | None]:
    """What neighbouring slots have in common that are shown as one."""
    what, at = entry
    return what, None if at is None else at - slot


def _entry(fields: Ints, call: Call, of: dict[Write, Label], request: int) -> tuple[str, int | None]:
    """What a slot holds in words, and the logical position that ends them."""
    if fields[MODEL] not in _MODELS:
        return ("never written" if fields[MODEL] == 0 else "what no model wrote"), None
    if fields[MODEL] != call.role:
        return f"an entry of the {_MODELS[int(fields[MODEL])]}", None
    label = of.get(_write(fields))
    if label is None:
        return f"id {fields[TOKEN]} carrying position {fields[POSITION]}", None
    text = holds(label, request)
    number = str(label.position)
    return (text.removesuffix(number), label.position) if text.endswith(f"position {number}") else (text, None)


def _write(fields: Ints) -> Write:
    return int(fields[CALL]), int(fields[ROW]), int(fields[COLUMN])


def _draft_labels(run: Run) -> dict[Write, Label]:
    """The draft's queries that saw exactly a row up to some position, and pads that the mask hides."""
    places: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for request, digests in enumerate(run.truth.digests):
        for position, digest in enumerate(digests[-1].tolist()):
            places[digest].append((request, position))
    found = {}
    for call in run.trace.of(DRAFT):
        for row, digests in enumerate(call.digests.tolist()):
            pads = self_hidden(call, row)
            for column, digest in enumerate(digests):
                if pads[column] and call.tokens[row, column] == run.case.pad_token_id:
                    found[call.number, row, column] = Label(-1, -1, "pad")
                for request, position in sorted(places.get(digest, []), key=lambda place: place[0] != row)[:1]:
                    found[call.number, row, column] = Label(request, position, "token", exact=True)
    return found


def _commits(run: Run, labels: Labels, call: Call, had: dict[int, int]) -> Iterator[str]:
    """The new tokens that rows have after a call and had not before."""
    for row, output in enumerate(run.outputs or ()):
        count, prompt = had[row], len(run.case.prompts[row])
        while count < len(output) and any(
            write[0] <= call.number for write, _ in labels.queries(row, prompt + count - 1)
        ):
            count += 1
        if count > had[row]:
            had[row] = count
            shown = ids(output[:count], _wrong(run, row, count))
            yield f"  after it row {row} has {many(count, 'new token')}: ids {shown}"


def _wrong(run: Run, row: int, count: int) -> int | None:
    """The index of the first wrong new token among so many."""
    assert run.outputs is not None
    pairs = zip(run.outputs[row][:count], run.truth.rows[row], strict=False)
    return next((index for index, (a, b) in enumerate(pairs) if a != b), None)


def _returned(run: Run) -> Iterator[str]:
    if run.outputs is None:
        yield "The decoder returned no rows."
    for row, output in enumerate(run.outputs or ()):
        shown = ids(output, _wrong(run, row, len(output)))
        yield f"returned for row {row}: {many(len(output), 'new token')}, ids {shown}"


def _ranges(slots: Sequence[int]) -> str:
    """Numbers in a line, those in order together.

    >>> _ranges([0, 1, 2, 5])
    '0..2 5'
    """
    runs = [list(group) for _, group in groupby(enumerate(slots), key=lambda one: one[1] - one[0])]
    return " ".join(f"{g[0][1]}" if len(g) == 1 else f"{g[0][1]}..{g[-1][1]}" for g in runs) or "none"
