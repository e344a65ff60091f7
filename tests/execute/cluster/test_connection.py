"""Connect to a cluster, start one, and use a loader after `ray.shutdown` or in a forked process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import ray

from rayingest.errors import WorkerError
from rayingest.execute.cluster.connection import connect
from rayingest.execute.cluster.node_info import FREE_VARIABLE


@pytest.mark.parametrize(
    "error", [Exception("The node timed out."), RuntimeError("Failed to start GCS")]
)
def test_a_cluster_that_does_not_start_is_a_worker_error(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With Ray's reason and advice, whatever exception Ray raises."""

    def fail(address: str, **options: Any) -> None:
        raise error

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", fail)
    for variable in ("RAY_ADDRESS", "LOCAL_WORLD_SIZE", FREE_VARIABLE):
        monkeypatch.delenv(variable, raising=False)
    with pytest.raises(WorkerError) as raised:
        connect(1.0)
    assert str(error).rstrip(".") + ";" in str(raised.value)
    assert "RAY_raylet_start_wait_time_s=120" in str(raised.value)
    assert raised.value.__cause__ is error
    assert FREE_VARIABLE not in os.environ


ROOT = Path(__file__).parents[3]

FORKED_THEN_SHUT_DOWN = """
import os, sys, threading
import ray
import rayingest as ri
from tests.support.streams import images

pattern, address = sys.argv[1:]
ray.init(address=address, log_to_driver=False)
loader = images(pattern, 24).loader(workers=1, max_bytes=4 << 20)
batches = iter(loader)
next(batches)
for use in (lambda: next(batches), lambda: iter(loader), loader.stats, loader.close):
    if not os.fork():
        try:
            use()
            print("quiet", flush=True)
        except ri.IngestError as error:
            print(error, flush=True)
        finally:
            os._exit(0)
    os.wait()
next(batches)
ray.shutdown()
try:
    while True:
        for batch in loader:
            pass
except ri.WorkerError as error:
    print(error)
loader.close()
feeders = [thread for thread in threading.enumerate() if thread.name == "rayingest-feeder"]
print("connected anew" if ray.is_initialized() else "not connected", feeders)
"""


def test_forked_processes_and_a_session_shut_down(cluster: Any, shards: str) -> None:
    """Each use in a fork is an error at once, `close` is silent there, and the parent continues.

    After `ray.shutdown`, no thread connects to the cluster that Ray would find.
    """
    address = cluster.get_runtime_context().gcs_address
    done = subprocess.run(
        [sys.executable, "-c", FORKED_THEN_SHUT_DOWN, shards, address],
        cwd=ROOT,
        env={**os.environ, "RAY_ADDRESS": address},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    said = done.stdout.splitlines()
    assert len(said) == 6, done.stdout + done.stderr
    assert ["a forked process cannot use" in line for line in said[:3]] == [True] * 3
    assert said[3] == "quiet"
    assert "Ray was shut down while the loader was open" in said[4]
    assert said[5] == "not connected []"
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
