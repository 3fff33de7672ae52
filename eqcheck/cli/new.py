"""``eqcheck new``: write a first adapter, and a workflow for GitHub."""

from __future__ import annotations

import argparse
import keyword
import re
import shlex
import sys
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING

from eqcheck.cli.common import examples, say
from eqcheck.contract.errors import EQUIVALENT, UsageError, printable

if TYPE_CHECKING:
    from eqcheck.cli.common import Commands


# The files that ``eqcheck new`` writes: an adapter that is right as it stands, and a workflow for GitHub.

REPOSITORY = "https://github.com/OWNER/eqcheck"  # no package index has eqcheck yet

ADAPTER = Template('''\
"""How eqcheck calls $name, a batch speculative decoder.

    eqcheck audit $file                 a report on it, in reports/$name/
    eqcheck audit $file --profile ci    the same cases in every release, for CI

As it stands this file decodes with generate() of transformers, greedily and without a draft. That is right, so the
audit passes; and as nothing is drafted, the audit warns that it is vacuous. Replace the call with one of your engine.
"""

import torch

import eqcheck


@eqcheck.decoder(
    name="$name",
    # The sides on which your engine pads rows of unequal length: "left", "right" or both. Each one named is tested.
    padding_sides=("left",),
    # How the models that your engine serves see positions: "rotary" (Llama, Qwen), "learned" (GPT-2), "mask-order"
    # (OPT, Bloom), "slot-distance" (MPT), "window" (Mistral, Gemma), "recurrent" (Mamba), "hybrid-window" (Gemma 3,
    # gpt-oss), "convolution" (Mamba and gated delta nets, whose convolution has a state beside the recurrent one),
    # "masked-recurrent" (states that skip masked tokens, as gated delta nets in mlx-lm and vLLM).
    families=("rotary", "learned"),
    # What your engine needs of every request, such as "equal-lengths", "one-eos" or "batch-1".
    requires=(),
)
def generate(target, draft, request):
    """Return the new token ids of each row, in the order of request.prompts: list[list[int]].

    target and draft are causal LMs with the interface of transformers: call them as you would any, with your own
    input_ids, attention_mask, position_ids and past_key_values (cache, from transformers 5.24 on). request has

        prompts             list[list[int]]: the token ids of each row, without pads
        max_new_tokens      the most new tokens of a row
        num_draft_tokens    K: how many tokens the draft proposes in a round
        eos_token_ids       tuple[int, ...]: each of these ends a row; it may be empty
        pad_token_id        the id to pad with; the same id may also stand in a prompt, as an ordinary token
        padding_side        "left" or "right": one of those that you named above

    A request that your engine cannot serve is declined: raise eqcheck.Unsupported("why").
    """
    width = max(len(prompt) for prompt in request.prompts)
    pads = [width - len(prompt) for prompt in request.prompts]
    input_ids = [[request.pad_token_id] * count + prompt for count, prompt in zip(pads, request.prompts)]
    attention_mask = [[0] * count + [1] * (width - count) for count in pads]

    # Replace this call with your engine's.
    output = target.generate(
        torch.tensor(input_ids),
        attention_mask=torch.tensor(attention_mask),
        max_new_tokens=request.max_new_tokens,
        eos_token_id=list(request.eos_token_ids) or None,
        pad_token_id=request.pad_token_id,
        do_sample=False,
    )

    return [_until_eos(row[width:].tolist(), request.eos_token_ids) for row in output]


def _until_eos(row, eos_token_ids):
    """The row up to its first EOS, which belongs to it; what a batch fills it up with behind that does not."""
    for index, token in enumerate(row):
        if token in eos_token_ids:
            return row[: index + 1]
    return row
''')

WORKFLOW = Template("""\
# Does the decoder return exactly the tokens that its target model returns alone? A CPU is enough.
name: eqcheck
on:
  push:
    branches: [main]
  pull_request:
permissions:
  contents: read
jobs:
  equivalence:
    runs-on: ubuntu-latest
    timeout-minutes: 20
    steps:
      - uses: actions/checkout@11bd71901bbe5b1630ceea73d27597364c9af683 # v4.2.2
      - uses: actions/setup-python@a26af69be951a213d495a4c3e4e4022e16d87065 # v5.6.0
        with:
          python-version: "3.12"
      - run: python -m pip install uv
      # uv takes the CPU build of torch, which is enough; pip would bring CUDA packages. Pin eqcheck: append @COMMIT.
      - run: uv pip install --system --torch-backend cpu 'eqcheck[audit] @ git+$repository'
      # Add what your engine needs: uv pip install --system -r requirements.txt
      - run: eqcheck audit $file --profile ci --junit eqcheck.xml
      - uses: actions/upload-artifact@ea165f8d65b6e75b540449e92b4886f43607fa02 # v4.6.2
        if: always()
        with:
          name: eqcheck-report
          path: |
            reports/
            eqcheck.xml
""")


_WORKFLOW = Path(".github/workflows/eqcheck.yml")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,63}")
_PATH = re.compile(r"[\w/.-]+")  # goes into a command line of the workflow
_IN_THE_WAY = ("eqcheck", "torch", "transformers", "pytest", "numpy")


def add(commands: Commands) -> None:
    """Add the command to the parser."""
    new = commands.add_parser(
        "new",
        help="write a first adapter, and a CI workflow if wanted",
        description="Write an adapter that works, for you to change. On a terminal, without options, it asks for the "
        "name and the workflow. It overwrites nothing.",
        epilog=examples("eqcheck new engine.py", "eqcheck new engine.py --name mine --ci"),
    )
    new.add_argument("file", type=Path, metavar="FILE", help="the adapter to write, such as engine.py")
    new.add_argument("--name", metavar="NAME", help="the decoder's name in reports (default: FILE without .py)")
    new.add_argument("--ci", action="store_true", help=f"also write {_WORKFLOW}")
    new.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:

    file: Path = options.file
    _check(file)
    name, ci = options.name or file.stem, options.ci
    if sys.stdin.isatty() and sys.stderr.isatty() and not (options.name or ci):
        name, wanted = _asked("Name of the decoder", name), _asked("A workflow for GitHub, too? y/n", "n").lower()
        if wanted not in ("y", "yes", "n", "no"):
            raise UsageError(f"workflow for GitHub: expected y or n, got {wanted!r}; nothing was written")
        ci = wanted in ("y", "yes")
    if not _NAME.fullmatch(name):
        raise UsageError(f"--name: expected letters, digits, '-' and '_', got {name!r}")
    if ci and (file.is_absolute() or ".." in file.parts or not _PATH.fullmatch(file.as_posix())):
        raise UsageError(
            f"--ci: expected FILE below this folder, its path of letters, digits and . - _ /, got {str(file)!r}"
        )
    if ci and _WORKFLOW.exists():
        raise UsageError(f"{_WORKFLOW} exists and is not overwritten; leave out --ci, or remove the file")
    word = shlex.quote(file.as_posix())
    _write(file, ADAPTER.substitute(name=name, file=word))
    if ci:
        _WORKFLOW.parent.mkdir(parents=True, exist_ok=True)
        _write(_WORKFLOW, WORKFLOW.substitute(file=word, repository=REPOSITORY))
    lines = [f"wrote {file}: a decoder that is right; replace its call with one of your engine"]
    lines += [f"wrote {_WORKFLOW}: it installs eqcheck from {REPOSITORY}; add what your engine needs"] if ci else []
    say(printable("\n".join([*lines, f"next: eqcheck audit {word} --profile ci"])))
    return EQUIVALENT


def _check(file: Path) -> None:
    """Raise `UsageError` if the adapter cannot be written, or could not be used."""
    if file.suffix != ".py" or not str(file).isprintable() or any(mark in str(file) for mark in '"\\$'):
        raise UsageError(f"FILE: expected a Python file such as engine.py, got {str(file)!r}")
    if file.stem in (*_IN_THE_WAY, *sys.stdlib_module_names) or keyword.iskeyword(file.stem):
        raise UsageError(f"FILE: {file.name} would hide the module {file.stem!r}; choose another name")
    if not file.parent.is_dir():
        raise UsageError(f"FILE: there is no folder {str(file.parent)!r}")
    if file.exists() or file.is_symlink():
        raise UsageError(f"{file} exists and is not overwritten; name another file")


def _asked(question: str, usual: str) -> str:
    """Ask a question on the terminal; an empty answer means ``usual``."""
    print(f"{question} [{usual}]: ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip() or usual


def _write(path: Path, text: str) -> None:
    try:
        with path.open("x", encoding="utf-8") as file:  # also where somebody else writes it just now
            file.write(text)
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror or error}") from error
