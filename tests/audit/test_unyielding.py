"""Decoders that no alarm can interrupt: they are ended from outside, wherever they run, and the command ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from eqcheck.audit.workers.fork import ForkWorker, decoding
from eqcheck.audit.workers.worker import Limits
from eqcheck.contract import registry
from eqcheck.contract.decoders import RowOptions
from eqcheck.core.case.engine import EngineCase, EngineRow
from eqcheck.core.case.record import Case
from eqcheck.core.result.outcome import HANG
from eqcheck.core.store.casefile import StoredViolation
from eqcheck.engines.lane import worker
from eqcheck.transparent.coverage import try_case

ENDS_S = 400.0  # a guard against a command that does not end; on an idle machine it takes 30 s
HEAD = "import itertools, signal, threading, time\nimport torch\nimport eqcheck\n"
FOREVER = "while True:\n        try: {}\n        except BaseException: pass"
WAYS = {
    "blocks the alarm": "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})\n    time.sleep(1e6)",
    "ignores the alarm": "signal.signal(signal.SIGALRM, signal.SIG_IGN)\n    time.sleep(1e6)",
    "swallows all": FOREVER.format("time.sleep(1e6)"),
    "in C": "sum(itertools.count())",
    "in torch": FOREVER.format("torch.ones(200, 200) @ torch.ones(200, 200)"),
    "waits for a thread": (
        "lock = threading.Lock()\n    lock.acquire()\n    threading.Thread(target=lock.acquire).start()\n    "
        + FOREVER.format("lock.acquire()")
    ),
}
CASE = Case(prompts=((1, 2), (3,)))


def decoder_file(folder: Path, body: str) -> str:
    path = folder / "unyielding.py"
    path.write_text(f"{HEAD}@eqcheck.decoder(name='unyielding')\ndef generate(target, draft, request):\n    {body}\n")
    return str(path)


@pytest.mark.parametrize(
    ("isolate", "way"), [*((False, way) for way in WAYS), (True, "blocks the alarm"), (True, "in C")]
)
@pytest.mark.rest
def test_a_decoder_that_no_alarm_ends_is_ended(tmp_path: Path, way: str, isolate: bool) -> None:
    decoder = registry.load(decoder_file(tmp_path, WAYS[way]))
    with decoding(decoder, Limits(1.0), try_case, [], isolate=isolate) as running:
        outcomes = list(running.outcomes([CASE, CASE]))
    assert [outcome.fingerprint for outcome in outcomes] == [HANG, HANG]


@pytest.mark.rest
def test_so_is_one_that_another_python_runs(tmp_path: Path) -> None:
    case = EngineCase((EngineRow((1, 2), RowOptions(4)),))
    with worker(registry.load(decoder_file(tmp_path, WAYS["in C"])), sys.executable, 1.0) as spawned:
        assert spawned.try_case(case).fingerprint == HANG


def test_a_right_decoder_with_a_thread_that_lives_on_is_right_and_ends(tmp_path: Path) -> None:
    body = (
        "threading.Thread(target=threading.Event().wait).start()\n"
        "    from eqcheck.reference_impls.eqspec import generate as right\n    return right(target, draft, request)"
    )
    with decoding(registry.load(decoder_file(tmp_path, body)), Limits(), try_case, []) as running:
        assert [outcome.status for outcome in running.outcomes([CASE, CASE])] == ["equivalent"] * 2


def test_a_decoder_that_starts_processes_runs_as_it_does_elsewhere(tmp_path: Path) -> None:
    body = (
        "import multiprocessing\n    process = multiprocessing.Process(target=time.sleep, args=(0,))\n"
        "    process.start()\n    process.join()\n"
        "    from eqcheck.reference_impls.eqspec import generate as right\n    return right(target, draft, request)"
    )
    with decoding(registry.load(decoder_file(tmp_path, body)), Limits(), try_case, []) as running:
        outcome = running.try_case(CASE)
    assert outcome.status == "equivalent", outcome.traceback


def test_a_decoder_that_waits_for_a_thread_of_its_module_gets_it(tmp_path: Path) -> None:
    """A forked process would lack the thread, and the decoder would not end."""
    path = tmp_path / "served.py"
    path.write_text(
        f"{HEAD}import queue\n"
        "asked, answers = queue.Queue(), queue.Queue()\n"
        "def serve():\n    from eqcheck.reference_impls.eqspec import generate as right\n"
        "    while True: answers.put(right(*asked.get()))\n"
        "threading.Thread(target=serve, daemon=True).start()\n"
        "@eqcheck.decoder(name='served')\ndef generate(target, draft, request):\n"
        "    asked.put((target, draft, request))\n    return answers.get()\n"
    )
    with decoding(registry.load(str(path)), Limits(20.0), try_case, []) as running:
        assert isinstance(running.workers[0], ForkWorker)
        outcome = running.try_case(CASE)
    assert outcome.status == "equivalent", outcome.traceback


@pytest.mark.rest
def test_an_audit_and_a_replay_of_it_end_with_a_report(tmp_path: Path) -> None:
    spec = decoder_file(tmp_path, WAYS["in C"])
    audit = ["audit", spec, "--cases", "2", "--case-timeout", "1", "--no-corpus", "--out", "out"]
    assert eqcheck(tmp_path, *audit) == 1
    report = json.loads((tmp_path / "out" / "unyielding" / "report.json").read_text())
    assert [one["fingerprint"] for one in report["violations"]] == [HANG]
    stored = StoredViolation(CASE, "unyielding", HANG, case_timeout=1.0)
    (tmp_path / "case.json").write_text(stored.to_json())
    assert eqcheck(tmp_path, "replay", "case.json", "--adapter", spec, "-v") == 1


@pytest.mark.rest
def test_a_thread_that_a_module_leaves_behind_does_not_keep_the_command(tmp_path: Path) -> None:
    spec = decoder_file(tmp_path, "raise eqcheck.Unsupported('all')")
    text = Path(spec).read_text()
    Path(spec).write_text(f"{text}threading.Thread(target=threading.Event().wait).start()\n")
    assert eqcheck(tmp_path, "audit", spec, "--cases", "1", "--no-corpus") == 5


def eqcheck(folder: Path, *words: str) -> int:
    return subprocess.run([sys.executable, "-m", "eqcheck.cli", *words], cwd=folder, timeout=ENDS_S).returncode


BUSY = (
    "import subprocess\n    subprocess.Popen(['sleep', '100000'])\n    open('begun', 'w').close()\n"
    "    sum(itertools.count())"  # no other thread of its process runs any more
)
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="processes are looked up in /proc")


WAYS_TO_RUN = {"here": [], "isolated": ["--isolate"], "another Python": ["--python", sys.executable]}


@LINUX
@pytest.mark.parametrize("options", WAYS_TO_RUN.values(), ids=WAYS_TO_RUN)
@pytest.mark.rest
def test_nothing_lives_on_when_the_audit_is_killed(tmp_path: Path, options: list[str]) -> None:
    spec = decoder_file(tmp_path, BUSY)
    killed(tmp_path, ["-m", "eqcheck.cli", "audit", spec, "--cases", "2", "--no-corpus", *options])


@LINUX
@pytest.mark.rest
def test_nor_does_a_server_that_is_still_importing(tmp_path: Path) -> None:
    (tmp_path / "forever.py").write_text("import time\nopen('begun', 'w').close()\nwhile True: time.sleep(1)\n")
    start = "from eqcheck.audit.workers.fork import context\ncontext('forever').Process(target=print).start()\n"
    killed(tmp_path, ["-c", f"{start}import time\ntime.sleep(100000)"])


def killed(folder: Path, command: list[str]) -> None:
    """Kill a command once it has begun, and wait until nothing is left of it."""
    mark = f"EQCHECK_TEST={folder}"
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    env = {**os.environ, "EQCHECK_TEST": str(folder), "PYTHONPATH": path}
    with subprocess.Popen([sys.executable, *command], cwd=folder, env=env) as audit:
        waited_for(lambda: (folder / "begun").exists())
        assert len(marked(mark)) > 1
        audit.kill()
    waited_for(lambda: not marked(mark), 60.0)


def marked(mark: str) -> list[int]:
    """The processes that were started with this in their environment and have not ended."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            ended = (process / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
            if not ended and mark.encode() in (process / "environ").read_bytes().split(b"\0"):
                found.append(int(process.name))
        except OSError:
            continue
    return found


def waited_for(happens: Callable[[], bool], seconds: float = ENDS_S) -> None:
    end = time.monotonic() + seconds
    while not happens():
        assert time.monotonic() < end
        time.sleep(0.02)
