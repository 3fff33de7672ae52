"""Hold the oracle against each architecture that can be built small, and write the table: ``make architectures``."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

import torch

from architectures.build import models
from architectures.hold import DTYPES, Held, held
from architectures.write import table


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m architectures", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/architectures.md"))
    parser.add_argument("--only", nargs="*", metavar="NAME", help="these models alone, and no table")
    parser.add_argument("--dtypes", nargs="*", default=DTYPES, choices=DTYPES)
    parser.add_argument("--store", type=Path, metavar="FILE", help="keep what was found as JSON lines, and go on there")
    given = parser.parse_args()
    torch.set_num_threads(1)
    _quiet()
    found = _stored(given.store)
    known = {(one.model, one.dtype) for one in found}
    for model in models():
        for dtype in given.dtypes:
            if (given.only and model.name not in given.only) or (model.name, dtype) in known:
                continue
            found.append(one := held(model, dtype))
            what = one.failed or one.refused or "; ".join(one.wrong) or "holds"
            print(f"{one.model}, {one.dtype}: {what}", *filter(None, [one.note, one.unread]), sep="\t", flush=True)
            if given.store:
                with given.store.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(asdict(one)) + "\n")
    if not given.only:
        given.out.write_text(table(found), encoding="utf-8")
    sys.exit(any(one.wrong for one in found))


def _stored(file: Path | None) -> list[Held]:
    if file is None or not file.exists():
        return []
    return [Held(**json.loads(line)) for line in file.read_text(encoding="utf-8").splitlines()]


def _quiet() -> None:
    import transformers

    transformers.logging.set_verbosity_error()


if __name__ == "__main__":
    main()
