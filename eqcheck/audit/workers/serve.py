"""A decoder served over JSON lines, in whatever Python runs this file; only the decoder's engine must be installed.

    python serve.py SPEC

One object per line. It says ``{"ready": VERSION, "loads": BOOL}`` once the decoder is set up. Then ``{"folders":
[TARGET, DRAFT], "request": {...}, "entropy": ...}``, where entropy seeds the global generators if it is a number, is
answered by ``{"outputs": [...], "observed": {...}}``, with ``"told": [...]`` where rows are completions, by
``{"unsupported": ...}`` or ``{"error": TYPE, "message": ...,
"traceback": ...}``, until standard input ends. A decoder that loads says ``{"loaded": true}`` first, as soon as it has.
One that ``renews`` answers ``{"renew": true}`` by ``{"renewed": true}`` once it has forgotten what it decoded.
The decoder's prints go to standard error.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import random
import signal
import sys
import traceback
from contextlib import nullcontext, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

_HERE = Path(__file__).resolve().parents[2]


def serve(spec: str) -> None:
    """Answer requests until standard input ends."""
    pipe = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    sys.stdout = sys.stderr

    def say(**message: Any) -> None:
        pipe.write(json.dumps(message, default=_plain) + "\n")
        pipe.flush()

    def failed(error: Exception) -> None:
        say(error=type(error).__name__, message=str(error), traceback=_traceback())

    _import_eqcheck()
    from eqcheck.contract import registry
    from eqcheck.contract.completion import apart
    from eqcheck.contract.decoders import Request, RowOptions, hook
    from eqcheck.contract.errors import Unsupported
    from eqcheck.contract.requirements import Guarded

    try:
        decoder = registry.load(spec)
        running = decoder.running()
        generate = Guarded(running.__enter__(), decoder.requires)
        load = getattr(generate, "load", None)
    except Exception as error:
        failed(error)
        return
    renew = getattr(generate, "renew", None)
    say(ready=str(hook(generate, "version") or decoder.version), loads=load is not None, renews=renew is not None)
    # Each message gets an answer, whatever raises: one that does not come is taken for a hang.
    for line in sys.stdin:
        message = json.loads(line)
        if renew is not None and message.get("renew"):
            try:
                renew()
            except Exception as error:
                failed(error)
            else:
                say(renewed=True)
            continue
        sent, folders = message["request"], message["folders"]
        if message.get("entropy") is not None:
            _seed(message["entropy"])
        sent["rows"] = tuple(RowOptions(**{key: _tuples(value) for key, value in row.items()}) for row in sent["rows"])
        request = Request(**{**sent, "eos_token_ids": tuple(sent["eos_token_ids"])})
        try:
            target, draft = folders if decoder.checkpoints else map(_model, folders)
            if load:
                with decoder.inside():
                    load(target, draft, request)
                say(loaded=True)
            with _no_grad(decoder.checkpoints):
                rows, told = apart(generate(target, draft, request))
                outputs = [[int(token) for token in row] for row in rows]
        except Unsupported as error:
            say(unsupported=next((line for line in str(error).splitlines() if line.strip()), "no reason given"))
        except Exception as error:
            failed(error)
        else:
            say(outputs=outputs, observed=dict(hook(generate, "observed")), **({"told": told} if any(told) else {}))
    with suppress(Exception):
        running.__exit__(None, None, None)


def _tuples(value: Any) -> Any:
    """A value of JSON as the fields of a request hold it: tuples in place of lists."""
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _plain(value: Any) -> Any:
    """A number or an array of numpy or torch as JSON has it; of anything else its text, which is judged."""
    return value.tolist() if hasattr(value, "tolist") else repr(value)


def _traceback() -> str:
    """The traceback of the exception under way, with paths from the environment's and eqcheck's own folder on."""
    return traceback.format_exc().replace(f"{sys.prefix}{os.sep}", "").replace(f"{_HERE.parent}{os.sep}", "")


def _import_eqcheck() -> None:
    """Make this very eqcheck importable, and nothing else that is installed beside it."""
    spec = importlib.util.spec_from_file_location(
        "eqcheck", _HERE / "__init__.py", submodule_search_locations=[str(_HERE)]
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["eqcheck"] = module
    spec.loader.exec_module(module)


@lru_cache(maxsize=8)
def _model(folder: str) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)
    return AutoModelForCausalLM.from_pretrained(folder).to(torch.float64).eval()


def _seed(entropy: int) -> None:
    """Seed Python's generator, and those of numpy and torch where they are imported."""
    random.seed(entropy)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(entropy % 2**32)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(entropy)


def _no_grad(checkpoints: bool) -> Any:
    if checkpoints:
        return nullcontext()
    import torch

    return torch.no_grad()


NO_BYTECODE = "PYTHONDONTWRITEBYTECODE"
"""Containers set it. Where torch is not compiled yet, each new process then takes a minute to compile it again."""


def begin_child() -> None:
    """Set up a process that multiprocessing started: it ends with its parent, and keeps what it compiles.

    multiprocessing hands on the parent's option -B, whatever the environment says.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: holds while the interpreter is kept busy
    sys.dont_write_bytecode = False
    os.environ.pop(NO_BYTECODE, None)


if __name__ == "__main__":
    if sys.path[:1] == [str(Path(__file__).resolve().parent)]:  # PYTHONSAFEPATH leaves it out
        sys.path.pop(0)  # this file's folder holds modules of eqcheck
    serve(*sys.argv[1:])
