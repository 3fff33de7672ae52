"""A decoder in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

from eqcheck.contract.decoder import Decoder, Generate, Request, hook
from eqcheck.contract.requirements import Guarded
from eqcheck.result.outcome import History, Outcome
from eqcheck.workers.runner import OneByOne

TryCase = Callable[..., Outcome]  # (generate, case, timeout, *, opinion)


@contextmanager
def set_up(decoder: Decoder, warnings: list[str]) -> Iterator[Generate]:
    """The decoder set up, and guarded; if that fails, a stand-in that fails every case with the same error."""
    with ExitStack() as stack:
        try:
            generate: Generate = Guarded(stack.enter_context(decoder.running()), decoder.requires)
        except Exception as error:
            failure = error

            def generate(target: Any, draft: Any, request: Request) -> Any:
                raise failure

        yield generate
        closing = stack.pop_all()
        try:
            closing.close()
        except Exception as error:
            warnings.append(f"the decoder's close() raised {type(error).__name__}: {error}")


class InProcess(OneByOne):
    """A decoder set up in this process; ``task`` decodes and judges a case, ``log`` are the cases that were decoded."""

    def __init__(self, generate: Generate, task: TryCase, timeout: float, log: list[Any] | None = None) -> None:
        super().__init__()
        self.generate, self.task, self.timeout = generate, task, timeout
        self.log = [] if log is None else log

    @property
    def note(self) -> str:
        return str(hook(self.generate, "note"))

    @property
    def version(self) -> str:
        return str(hook(self.generate, "version"))

    def try_case(self, case: Any, timeout: float | None = None, *, opinion: bool = False) -> Outcome:
        history = History(self.log, len(self.log))
        tried = self.task(self.generate, case, min(timeout or self.timeout, self.timeout), opinion=opinion)
        self.log += [*case.before, case.alone]
        return replace(tried, history=history)

    def renew(self) -> bool:
        return False
