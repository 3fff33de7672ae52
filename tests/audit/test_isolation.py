"""Isolation: what a decoder does to its own process is reported as that, and no process outlives its audit."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from eqcheck import cli
from eqcheck.audit.loop import audit
from eqcheck.audit.workers.fork import ForkWorker
from eqcheck.audit.workers.worker import Limits
from eqcheck.contract import registry
from eqcheck.contract.decoders import decoder
from eqcheck.contract.errors import UsageError
from eqcheck.core.case.record import Case
from eqcheck.core.result.findings import Options
from eqcheck.transparent.coverage import try_case

DECODERS = '''
import ctypes, os, signal, sys, time
import eqcheck, torch

def right(target, request):
    limits = {"max_new_tokens": request.max_new_tokens, "eos_token_ids": request.eos_token_ids}
    return [eqcheck.Oracle(target).truth(prompt, **limits) for prompt in request.prompts]

def broken(name):
    """A decoder that does what the function does when there is more than one row."""
    def register(act):
        @eqcheck.decoder(name=name, padding_sides=("left", "right"))
        def generate(target, draft, request):
            if len(request.prompts) > 1:
                act()
            return right(target, request)
        return generate
    return register

@broken("exits")
def exits():
    os._exit(7)

@broken("exits_well")
def exits_well():
    os._exit(0)

@broken("segfaults")
def segfaults():
    ctypes.string_at(0)

@broken("sleeps")
def sleeps():
    time.sleep(1000)

@broken("deaf")
def deaf():
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    while True:
        time.sleep(1000)

@broken("has_children")
def has_children():
    child = os.fork()
    if child:
        open("child", "w").write(str(child))
    time.sleep(1000)

@broken("lists")
def lists():
    grown = [0]
    while True:
        grown.extend(grown)

@broken("tensors")
def tensors():
    kept = []
    while True:
        kept.append(torch.ones(1 << 24))

@broken("one_tensor")
def one_tensor():
    torch.zeros(1 << 40)

@broken("runtime_error")
def runtime_error():
    raise RuntimeError("shapes cannot be multiplied")

@eqcheck.decoder(name="noisy")
class Noisy:
    def open(self):
        self.note = "decoded on the spare device"

    def __call__(self, target, draft, request):
        return right(target, request)

    def close(self):
        raise KeyError("no such engine")

@eqcheck.decoder(name="never_opens")
class NeverOpens:
    def open(self):
        os._exit(3)

    def __call__(self, target, draft, request):
        return right(target, request)
'''
ONE, TWO = Case(prompts=((1, 2),)), Case(prompts=((1, 2), (3,)))
MEMORY = 300 * 2**20

linux = pytest.mark.skipif(sys.platform != "linux", reason="needs process groups, /proc and RLIMIT_DATA")
pytestmark = linux


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.py").write_text(DECODERS)
    return tmp_path


def worker(work: Path, name: str, timeout: float = 1.0) -> ForkWorker:
    return ForkWorker(f"{work / 'bad.py'}:{name}", Limits(timeout, MEMORY), try_case)


WHAT = {
    "exits": ("crash/exception:ProcessExit-7", "exit code 7"),
    "exits_well": ("crash/exception:ProcessExit-0", "exit code 0"),
    "segfaults": ("crash/exception:ProcessExit-SIGSEGV", "ended by SIGSEGV"),
    "sleeps": ("crash/hang", "no answer within 1 s"),
    "deaf": ("crash/hang", "no answer within 1 s"),
    "lists": ("crash/exception:MemoryLimit", "more memory than a case may take"),
    "tensors": ("crash/exception:MemoryLimit", "more memory than a case may take"),
    "one_tensor": ("crash/exception:MemoryLimit", "more memory than a case may take"),
    "runtime_error": ("crash/exception:RuntimeError", "shapes cannot be multiplied"),
}


@pytest.mark.parametrize("name", WHAT)
@pytest.mark.tiers(quick=4, rest=4)
def test_what_is_reported_and_that_the_next_case_is_run(work: Path, name: str) -> None:
    fingerprint, detail = WHAT[name]
    hangs = fingerprint == "crash/hang"
    with worker(work, name, timeout=600.0) as isolated:
        for _ in range(2):
            assert isolated.try_case(ONE).status == "equivalent"
            failed = isolated.try_case(TWO, 1.0 if hangs else None)
            assert (failed.status, failed.fingerprint) == ("violation", fingerprint)
            assert failed.explanation is not None
            assert detail in failed.explanation.detail


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except OSError:
        return False


def children_of(pid: int) -> Iterator[int]:
    """Every process below one, however deep."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == pid:
            yield int(stat.parent.name)
            yield from children_of(int(stat.parent.name))


def gone(pids: list[int], seconds: float = 60.0) -> bool:
    end = time.monotonic() + seconds
    while any(map(alive, pids)) and time.monotonic() < end:
        time.sleep(0.05)
    return not any(map(alive, pids))


@pytest.mark.long
def test_a_worker_is_killed_with_its_children(work: Path) -> None:
    with worker(work, "has_children", timeout=10.0) as isolated:
        assert isolated.try_case(TWO).fingerprint == "crash/hang"
    assert gone([int((work / "child").read_text())])


def test_a_fresh_worker_is_cheap(work: Path) -> None:
    """It is forked from a process that has imported torch, and is not this one."""
    parents = set()
    with worker(work, "exits") as isolated:
        for _ in range(2):
            isolated.try_case(ONE)
            assert isolated._process is not None
            stat = Path(f"/proc/{isolated._process.pid}/stat").read_text()
            parents.add(int(stat.rpartition(")")[2].split()[1]))
            isolated.try_case(TWO)
    (server,) = parents - {os.getpid()}
    assert len(parents) == 1
    assert "libtorch" in Path(f"/proc/{server}/maps").read_text()


def test_open_and_close_of_an_isolated_decoder(work: Path) -> None:
    options = Options(cases=5, isolate=True)
    result = audit(registry.load("bad.py:Noisy"), options)
    assert result.verdict == "equivalent"
    assert "decoded on the spare device" in result.warnings
    assert any("close() raised KeyError" in warning for warning in result.warnings)
    result = audit(registry.load("bad.py:NeverOpens"), options)
    assert [violation.fingerprint for violation in result.violations] == ["crash/exception:ProcessExit-3"]


def test_only_a_decoder_with_a_spec_can_be_isolated() -> None:
    nameless = decoder(name="mine")(lambda target, draft, request: [])
    with pytest.raises(UsageError, match="only one that a spec names can be isolated"):
        audit(nameless, Options(cases=5, isolate=True))


@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.long
def test_isolation_does_not_change_a_report(jobs: int) -> None:
    plain = audit(registry.load("bsp"), Options(cases=30))
    isolated = audit(registry.load("bsp"), Options(cases=30, isolate=True, jobs=jobs))
    assert isolated.outcomes == plain.outcomes
    assert isolated.violations == plain.violations


@pytest.mark.long
def test_jobs_and_isolation_together_survive_crashes(work: Path) -> None:
    result = audit(registry.load("bad.py:exits"), Options(cases=30, isolate=True, jobs=2))
    assert [violation.fingerprint for violation in result.violations] == ["crash/exception:ProcessExit-7"]
    assert len(result.outcomes) == 30
    assert {outcome.fingerprint for outcome in result.outcomes} == {None, "crash/exception:ProcessExit-7"}
    assert [len(prompt) for prompt in result.violations[0].case.prompts] == [1, 1]


@pytest.mark.parametrize(("ending", "jobs"), [(signal.SIGINT, "2"), (signal.SIGKILL, "1")])
@pytest.mark.long
def test_no_process_outlives_its_audit(work: Path, ending: signal.Signals, jobs: str) -> None:
    words = ("audit", "--adapter", "bad.py:deaf", "--isolate", "--jobs", jobs, "--case-timeout", "600s")
    command = [sys.executable, "-m", "eqcheck.cli", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        try:
            end = time.monotonic() + 600
            while len(list(children_of(running.pid))) < 2 + int(jobs) and time.monotonic() < end:
                time.sleep(0.5)
            time.sleep(1.0)
            below = list(children_of(running.pid))
            assert len(below) >= 2
            running.send_signal(ending)
            time.sleep(0.5)
            running.send_signal(ending)  # the first Ctrl-C waits for the case
            for _ in range(10):
                try:
                    running.communicate(timeout=60)
                    break
                except subprocess.TimeoutExpired:  # the two came as one
                    running.send_signal(ending)
        finally:
            running.kill()
    assert gone(below)


@pytest.mark.rest
def test_replay_of_an_isolated_case_is_isolated(work: Path) -> None:
    words = ("audit", "--adapter", "bad.py:exits", "--isolate", "--cases", "12")
    assert cli.main(words) == 1
    case = work / "reports" / "exits" / "cases" / "crash-exception-ProcessExit-7.json"
    assert '"case_memory": 2147483648' in case.read_text()
    assert cli.main(("replay", str(case), "--adapter", "bad.py:exits")) == 1
    bare = work / "case.json"
    bare.write_text(json.dumps(TWO.to_dict()))
    assert cli.main(("replay", str(bare), "--adapter", "bad.py:segfaults", "--isolate")) == 1


@pytest.mark.long
def test_three_decoders_that_crash_hang_and_eat_memory_are_all_reported(work: Path) -> None:
    words = ["--isolate", "--case-timeout", "1s", "--cases", "8"]
    for name in ("exits", "deaf", "one_tensor"):
        words += ["--adapter", f"bad.py:{name}"]
    command = [sys.executable, "-m", "eqcheck.cli", "audit", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 1, done.stderr
    for name in ("exits", "deaf", "one_tensor"):
        data = json.loads((work / "reports" / name / "report.json").read_text())
        (violation,) = data["violations"]
        assert violation["fingerprint"] == WHAT[name][0]
        assert [len(prompt) for prompt in violation["case"]["prompts"]] == [1, 1] or name == "deaf"
        assert (data["verdict"], data["isolated"]) == ("violation", True)
        assert violation["fingerprint"] in done.stdout
