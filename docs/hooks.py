"""Pages of the site that are made from the repository: findings, the changelog, engines, issues, kinds."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import scoreboard
from mkdocs.structure.files import File, Files

from eqcheck import __version__
from eqcheck.contract import registry
from eqcheck.contract.decoders import CAPABILITIES, RowOptions
from eqcheck.contract.kinds import FINGERPRINTS, KINDS
from eqcheck.core.explanation.handbook import about

ROOT = Path(__file__).resolve().parent.parent


def on_config(config: Any) -> Any:
    """Say at the foot of each page which version it is of."""
    config.copyright = f"eqcheck {__version__}"
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add reports/README.md as `findings.md`, the changelog, and the pages of issues and kinds."""
    text = (ROOT / "reports" / "README.md").read_text(encoding="utf-8")
    files.append(File.generated(config, "findings.md", content=findings(text)))
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    files.append(File.generated(config, "changes.md", content=changes))
    for page in sorted((ROOT / "reports" / "issues").glob("*.md")):
        files.append(File.generated(config, f"issues/{page.name}", content=page.read_text(encoding="utf-8")))
    reports, causes = scoreboard.committed(), scoreboard.findings()
    for engine in scoreboard.engines():
        content = scoreboard.engine_page(engine, reports, causes)
        files.append(File.generated(config, engine.file, content=content))
    for kind in FINGERPRINTS:
        files.append(File.generated(config, f"kinds/{anchor(kind)}.md", content=_kind(kind)))
    return files


def findings(text: str) -> str:
    """The reports' own page, in which a link to a page of the docs or of a cause leads to that of the site.

    >>> findings("# Reports\\n\\n[All](../docs/scoreboard.md), [LFM2](issues/vllm-lfm2.md)")
    "# What the engines' audits found\\n\\n[All](scoreboard.md), [LFM2](issues/vllm-lfm2.md)"
    """
    text = text.replace("# Reports\n", "# What the engines' audits found\n", 1)
    return text.replace("](../docs/", "](")


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Put tables in place of lines with a mark, and the site's files in place of a clone's."""
    made = {"kinds": kinds, "options": options, "engines": engines, "scoreboard": engine_pages}
    markdown = re.sub(rf"<!-- ({'|'.join(made)}) -->.*", lambda mark: made[mark[1]](), markdown)
    markdown = markdown.replace("](../reports/README.md)", "](findings.md)")
    markdown = re.sub(r"\](\(|: )\.\./reports/issues/", r"]\1issues/", markdown)
    return re.sub(r"\[([^\]]*)\]\(\.\./reports/\w+/report\.md\)", r"\1", markdown)


def engine_pages() -> str:
    """A link to the page of each engine.

    >>> "[vLLM](engine-vllm.md)" in engine_pages()
    True
    """
    return ", ".join(f"[{engine.name}]({engine.file})" for engine in scoreboard.engines()) + "\n"


_FIELDS = {
    "row-limits": "max_new_tokens",
    "row-eos": "eos_token_ids",
    "arrivals": "arrival",
    "seeds": "seed",
    "cancel": "cancel_after",
}


def _asked() -> dict[str, str]:
    """The capabilities that options of rows need, each with its field."""
    names = {field.name for field in fields(RowOptions)}
    asked = {name: _FIELDS.get(name, name.replace("-", "_")) for name in CAPABILITIES}
    return {capability: name for capability, name in asked.items() if name in names}


def options() -> str:
    """Each option of a row, its capability, and what a decoder declares by that.

    >>> "| `bad_words` | `bad-words` | bad_words, tokens or sequences of tokens, never occur" in options()
    True
    """
    rows = [f"| `{name}` | `{capability}` | {CAPABILITIES[capability]} |" for capability, name in _asked().items()]
    return "\n".join(["| option | capability | what it says of a decoder |", "|---|---|---|", *rows])


def engines() -> str:
    """Which shipped decoder declares which option of rows.

    >>> "| `vllm` |" in engines()
    True
    """
    claims = {name: registry.load(name).capabilities for name in registry.shipped()}
    names = [name for name, claimed in claims.items() if {*claimed} & {*_asked()}]
    rows = [
        f"| `{name}` | {' | '.join('yes' if capability in claims[name] else '' for capability in _asked())} |"
        for name in names
    ]
    head = f"| decoder | {' | '.join(f'`{name}`' for name in _asked().values())} |"
    return "\n".join([head, "|---" * (len(_asked()) + 1) + "|", *rows])


def kinds() -> str:
    """Every kind, by component, with its page; a row keeps the anchor that links from elsewhere have.

    >>> "[`mask/window`](kinds/mask-window.md){ #mask-window } | wrong attention window" in kinds()
    True
    """
    rows = [
        f"| [`{kind}`](kinds/{anchor(kind)}.md){{ #{anchor(kind)} }} | {KINDS[kind.partition('/')[2]].meaning} |"
        for kind in FINGERPRINTS
    ]
    return "\n".join(["| kind | what was seen |", "|---|---|", *rows])


def anchor(kind: str) -> str:
    """The name of a kind's page, and its anchor in the table."""
    return kind.replace("/", "-")


def _kind(kind: str) -> str:
    said = about(kind)
    meaning = KINDS[kind.partition("/")[2]].meaning
    causes = [f"- {cause.what} {' '.join(map(_link, cause.urls))}".rstrip() for cause in said.causes]
    sample = [f"```text\n{said.sample}\n```"] if said.sample else []
    parts = [f"# {kind}", f"{meaning[0].upper()}{meaning[1:]}.", f"**What happens.** {said.what}", *sample]
    parts += ["**Usual causes.**\n\n" + "\n".join(causes), f"**How to tell.** {said.signs}"]
    parts += [f"**How to fix it.** {said.fix}"]
    return "\n\n".join([*parts, f"`eqcheck explain {kind}` prints this page. [All kinds](../kinds.md)", ""])


def _link(url: str) -> str:
    """A link whose text is short: an issue by its number, a file by its name.

    >>> _link("https://github.com/ml-explore/mlx-lm/issues/1109")
    '[ml-explore/mlx-lm#1109](https://github.com/ml-explore/mlx-lm/issues/1109)'
    """
    issue = re.fullmatch(r"https://github\.com/([^/]+/[^/]+)/(?:issues|pull)/(\d+)", url)
    return f"[{'#'.join(issue.groups()) if issue else url.rpartition('/')[2]}]({url})"
