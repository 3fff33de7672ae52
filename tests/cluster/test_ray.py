"""A campaign on a Ray cluster of three nodes on this machine; nodes and coordinator are killed: ``make cluster-test``.

What is merged is held against the same shards run here, without Ray.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from as_data import to_dict

from eqcheck.audit import cluster, shards
from eqcheck.audit.cluster import Cluster, ClusterCampaign, check_answers
from eqcheck.audit.events import CaseDone, Event
from eqcheck.audit.shards import merged, read
from eqcheck.contract import registry
from eqcheck.contract.decoders import Decoder
from eqcheck.contract.errors import UsageError
from eqcheck.core.result.findings import Audit, Options

os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0", "RAY_TQDM_PATCH_PRINT": "0"}
ray = pytest.importorskip("ray", reason="ray is not installed: pip install 'eqcheck[ray]'")
STORE = 80 * 2**20
RIGHT = """
import time
import eqcheck
from eqcheck.catalogue import known_good

GOOD = known_good()

@eqcheck.decoder(name="mine", families=("rotary",))
def generate(target, draft, request):
    time.sleep(0.2)
    return GOOD["one_row"](target, draft, request)"""
WRONG = (
    RIGHT.replace("return GOOD", "return short(GOOD") + ")\n\ndef short(rows):\n    return [row[:-1] for row in rows]\n"
)
PER_SHARD, SHARDS = 10, 6
OPTIONS = Options(cases=PER_SHARD * SHARDS, seed=2)


@pytest.fixture(scope="module")
def nodes() -> Iterator[Any]:
    """Three nodes: the head has no cores, and two more have one each."""
    from ray.cluster_utils import Cluster as Nodes

    head = {"num_cpus": 0, "object_store_memory": STORE, "include_dashboard": False}
    made = Nodes(initialize_head=True, head_node_args=head)
    for _ in range(2):
        made.add_node(num_cpus=1, object_store_memory=STORE)
    yield made
    made.shutdown()


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "SHARD_CASES", PER_SHARD)


def adapter(folder: Path, text: str = RIGHT) -> Decoder:
    path = folder / "mine.py"
    path.write_text(text)
    return registry.load(str(path))


def plain(result: Audit, folder: Path) -> dict[str, Any]:
    """The report without what depends on the machine's speed."""
    return {**to_dict(result, folder), "elapsed_s": None, "cases_per_second": None}


def here(decoder: Decoder, options: Options = OPTIONS) -> Audit:
    """The same shards, run here."""
    count = (options.cases or 0) // PER_SHARD
    return merged(decoder, options, (shards.run(decoder, options, number, PER_SHARD) for number in range(count)))


def test_a_node_that_dies_loses_nothing_but_its_unfinished_shards(
    nodes: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder = adapter(tmp_path)
    doomed = nodes.list_all_nodes()[-1]
    begun: list[int] = []
    stored_then: list[list[str]] = []

    def begin(self: ClusterCampaign, one: dict[str, Any], original: Any = ClusterCampaign._begin) -> None:
        begun.append(one["number"])
        original(self, one)

    def listen(event: Event) -> None:
        if isinstance(event, CaseDone) and len(stored_then) == 0:
            stored_then.append([path.name for path in (tmp_path / "shards").iterdir()])
            threading.Timer(1.0, nodes.remove_node, (doomed,), {"allow_graceful": False}).start()  # it is busy then

    monkeypatch.setattr(ClusterCampaign, "_begin", begin)
    with Cluster(nodes.address) as connected:
        result = connected.audit(decoder, OPTIONS, tmp_path / "shards", listen)
    nodes.add_node(num_cpus=1, object_store_memory=STORE)
    assert stored_then
    assert len(begun) > SHARDS == len(set(begun))  # what was lost began again, and nothing else
    assert len(begun) <= SHARDS + 2
    assert not result.interrupted
    assert plain(result, tmp_path) == plain(here(decoder), tmp_path)


def test_a_coordinator_that_dies_goes_on_from_what_is_stored(nodes: Any, tmp_path: Path) -> None:
    decoder = adapter(tmp_path)
    program = tmp_path / "coordinator.py"
    program.write_text(
        "import sys\n"
        "from pathlib import Path\n"
        "from eqcheck.contract import registry\n"
        "from eqcheck.audit import cluster\n"
        "from eqcheck.core.result.findings import Options\n"
        f"cluster.SHARD_CASES = {PER_SHARD}\n"
        "with cluster.Cluster(sys.argv[1]) as one:\n"
        f"    one.audit(registry.load(sys.argv[2]), Options(cases={OPTIONS.cases}, seed=2), Path(sys.argv[3]))\n"
    )
    folder = tmp_path / "shards"
    command = [sys.executable, str(program), nodes.address, decoder.spec, str(folder)]
    first = subprocess.Popen(command)
    end = time.monotonic() + 300
    while len(list(folder.glob("0*.json"))) < 2 and time.monotonic() < end and first.poll() is None:
        time.sleep(0.05)
    first.send_signal(signal.SIGKILL)
    first.wait()
    kept = {path: path.read_bytes() for path in folder.glob("0*.json")}
    assert 2 <= len(kept) < SHARDS
    with Cluster(nodes.address) as connected:
        result = connected.audit(decoder, OPTIONS, folder)
    assert all(path.read_bytes() == content for path, content in kept.items())
    assert plain(result, tmp_path) == plain(here(decoder), tmp_path)
    times = [shard.until_s for shard in read(folder)]
    assert max(times) > max(json.loads(content)["until_s"] for content in kept.values())  # the budget goes on, too


def test_a_wrong_decoder_is_told_as_here_and_its_case_reaches_the_corpus(nodes: Any, tmp_path: Path) -> None:
    decoder = adapter(tmp_path, WRONG)
    options = replace(OPTIONS, cases=2 * PER_SHARD, corpus=tmp_path / "corpus")
    with Cluster(nodes.address) as connected:
        result = connected.audit(decoder, options, tmp_path / "shards")
    assert plain(result, tmp_path) == plain(here(decoder, options), tmp_path)
    assert [violation.fingerprint for violation in result.violations] == ["bookkeeping/premature-stop"]
    assert [path.name for path in (tmp_path / "corpus").rglob("*.json")] == ["bookkeeping-premature-stop.json"]


def test_workers_with_another_eqcheck_or_adapter_are_one_message(
    nodes: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder, options = adapter(tmp_path), replace(OPTIONS, cases=PER_SHARD)
    with Cluster(nodes.address) as connected:
        with monkeypatch.context() as patched:
            patched.setattr(shards, "code_of_eqcheck", lambda: "0.0.1 (abc)")
            with pytest.raises(UsageError, match=r"machine .*: expected eqcheck 0\.0\.1 \(abc\) as here, got "):
                connected.audit(decoder, options, tmp_path / "shards")
        with monkeypatch.context() as patched:
            patched.setattr(shards, "code_of", lambda spec: "0123")
            with pytest.raises(UsageError, match=r"adapter .*mine\.py: expected the same file as here"):
                connected.audit(decoder, options, tmp_path / "shards")
        assert not (tmp_path / "shards").exists()
        connected.audit(decoder, options, tmp_path / "shards")
        before = (tmp_path / "shards" / "0000000.json").read_bytes()
        with pytest.raises(
            UsageError, match="holds shards of another campaign, seed: expected 3, got 2; give another --out"
        ):
            connected.audit(decoder, replace(options, seed=3), tmp_path / "shards")
        assert (tmp_path / "shards" / "0000000.json").read_bytes() == before


def test_an_address_that_does_not_answer_is_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "ANSWERS_S", 5.0)
    start = time.monotonic()
    with pytest.raises(UsageError, match=r"--ray 127\.0\.0\.1:9: expected a Ray cluster that answers") as error:
        check_answers("127.0.0.1:9")
    assert time.monotonic() - start < 300, "a guard against a hang"
    assert len(str(error.value).splitlines()) == 1
