"""A decoder in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from eqcheck.contract import Decoder, Generate, Request, hook
from eqcheck.outcome import HANG, History, Outcome

TryCase = Callable[..., Outcome]  # (generate, case, timeout, *, opinion)


@contextmanager
def set_up(decoder: Decoder, warnings: list[str]) -> Iterator[Generate]:
    """The decoder set up; if that fails, a stand-in that fails every case with the same error."""
    with ExitStack() as stack:
        try:
            generate = stack.enter_context(decoder.running())
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


@dataclass
class InProcess:
    """A decoder set up in this process; ``task`` decodes and judges a case."""

    generate: Generate
    task: TryCase
    timeout: float
    given_up: set[str] = field(default_factory=set)
    log: list[Any] = field(default_factory=list)
    looked: bool = False

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

    def outcomes(self, cases: Iterable[Any]) -> Iterator[Outcome]:
        for case in cases:
            if case.family not in self.given_up:
                outcome = self.try_case(case)
                yield self.looked_at(outcome) if outcome.failed and not self.looked else outcome

    def looked_at(self, outcome: Outcome) -> Outcome:
        """The first failing case with a second opinion: it is shown before the audit is done."""
        self.looked = True
        again = self.try_case(outcome.case, opinion=True) if outcome.symptom != HANG else outcome
        return replace(outcome, opinion=again.explanation if again.outputs == outcome.outputs else None)

    def renew(self) -> bool:
        return False
