"""CUDA for code that names it, on a machine without."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest.mock import patch


@contextmanager
def no_cuda() -> Iterator[None]:
    """Replace CUDA by the CPU inside the block: ``.cuda()``, ``device="cuda"``, streams and events do nothing.

        >>> import torch
        >>> with no_cuda():
        ...     ones = torch.ones(2, device="cuda").cuda().to("cuda:1")
        ...     torch.cuda.synchronize()
        >>> ones.device.type
        'cpu'

    A tensor or module that is moved stays what it is: all devices are one. Events tell the time between their
    ``record()``. ``torch.cuda.is_available()`` says what it said before, graphs are not imitated, and threads that the
    code starts are not covered.
    """
    import torch

    calls: dict[str, Any] = {name: _named(name, lambda: None) for name in _NOTHING}
    calls |= {name: _named(name, nullcontext) for name in ("device", "stream")}
    calls |= {name: _named(name, _Stream) for name in ("current_stream", "default_stream")}
    calls |= {"Stream": _Stream, "Event": _Event, "current_device": _named("current_device", lambda: 0)}
    marks: dict[str, Any] = {name: _named(name, lambda: None) for name in ("range_push", "range_pop", "mark")}
    with (
        patch.multiple(torch.cuda, create=True, **calls),
        patch.multiple(torch.cuda.nvtx, **marks),
        patch.object(torch.Tensor, "record_stream", _named("record_stream", lambda: None)),
        patch.object(torch, "Generator", _generator(torch.Generator)),
        _devices(),
    ):
        yield


# The other calls of `torch.cuda` do no harm where there is no CUDA, or ask what is not known.
_NOTHING = ["init", "ipc_collect", "reset_max_memory_allocated", "reset_peak_memory_stats", "set_device", "set_stream"]
_NOTHING += ["synchronize"]


def _named(name: str, result: Callable[[], Any]) -> Callable[..., Any]:
    """Return a function of its own for one name: `torch._dynamo` has a rule for each, and refuses one that has two."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return result()

    call.__name__ = call.__qualname__ = name
    return call


def _nothing(*args: Any, **kwargs: Any) -> None:
    """Do nothing."""


class _Event:
    """An event; what it waits for is done already."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.seconds = 0.0

    def record(self, stream: Any = None) -> None:
        self.seconds = time.perf_counter()

    def elapsed_time(self, end_event: Any) -> float:
        return 1000.0 * float(end_event.seconds - self.seconds)

    def query(self) -> bool:
        return True

    synchronize = wait = _nothing


class _Stream(nullcontext[None]):
    """A stream; everything runs in order anyway."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()

    def record_event(self, event: Any = None) -> Any:
        event = event or _Event()
        event.record()
        return event

    def query(self) -> bool:
        return True

    synchronize = wait_event = wait_stream = _nothing


def _on_cpu(device: Any) -> Any:
    """The device, or the CPU where it is a CUDA device: by name, as an object, or by its number."""
    import torch

    number = isinstance(device, int) and not isinstance(device, bool)
    named = isinstance(device, str | torch.device) and str(device).partition(":")[0] == "cuda"
    return torch.device("cpu") if number or named else device


def _generator(plain: Any) -> Any:
    class Generator(plain):  # type: ignore[misc]
        def __new__(cls, device: Any = "cpu") -> Any:
            return super().__new__(cls, _on_cpu(device))

    return Generator


def _devices() -> Any:
    """A mode under which every call of torch takes CUDA devices for the CPU."""
    import torch
    from torch.overrides import TorchFunctionMode

    stay = (torch.Tensor.cuda, torch.Tensor.pin_memory)

    class OnCpu(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = dict(kwargs or {})
            if func in stay:
                return args[0]
            if "device" in kwargs:
                kwargs["device"] = _on_cpu(kwargs["device"])
            if kwargs.get("pin_memory"):
                kwargs["pin_memory"] = False
            if func is torch.Tensor.to:
                args = (args[0], *map(_on_cpu, args[1:]))
            return func(*args, **kwargs)

    return OnCpu()
