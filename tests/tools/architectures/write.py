"""The table of architectures as Markdown, made from what was found."""

from __future__ import annotations

from collections.abc import Sequence

from architectures.hold import DTYPES, Held

_HEAD = """# The oracle on each architecture of transformers

`make architectures` writes this table. Each model is tiny and random.
Three rows are generated alone, with a cache and without. *holds*: `check`, `watch` and `truth` accept these rows, and
refuse the same rows with one other token.
"""
_NOTES = {
    "cache-answers-otherwise": "with its cache the model answers otherwise; both are accepted",
    "generate-answers-otherwise": "`generate` answers otherwise than the model's calls; both are accepted",
    "rope-by-length": "its rope depends on the length: with its cache the model answers otherwise; both are accepted",
    "after-longer-rows": "its rope keeps the frequencies of the longest row; both are accepted",
}


def table(found: Sequence[Held]) -> str:
    """All of ``benchmarks/architectures.md``; what was not run in a dtype has an empty cell."""
    by_model: dict[str, dict[str, Held]] = {}
    for one in found:
        by_model.setdefault(one.model, {})[one.dtype] = one
    built = {name: its for name, its in by_model.items() if not all(one.failed for one in its.values())}
    lines = [_HEAD, f"{len(built)} models are held, {len(by_model) - len(built)} cannot be built small.\n"]
    lines += [f"| model | {' | '.join(DTYPES)} | remark |", f"|---{'|---' * len(DTYPES)}|---|"]
    for name, its in built.items():
        cells = [_cell(its[dtype]) if dtype in its else "" for dtype in DTYPES]
        lines.append(f"| {name} | {' | '.join(cells)} | {_remark(list(its.values()))} |")
    lines += ["\n## Not built\n", "| model | why |", "|---|---|"]
    for name, its in by_model.items():
        if name not in built:
            lines.append(f"| {name} | {_safe(next(iter(its.values())).failed)} |")
    return "\n".join(lines) + "\n"


def _cell(one: Held) -> str:
    if one.failed:
        return "does not run"
    return "refused" if one.refused else _safe("; ".join(one.wrong)) or "holds"


def _remark(its: Sequence[Held]) -> str:
    said = [_NOTES[one.note] for one in its if one.note] + [one.refused or one.unread for one in its]
    return _safe("; ".join(dict.fromkeys(filter(None, said))))


def _safe(text: str) -> str:
    return text.replace("|", "/").replace("\n", " ")
