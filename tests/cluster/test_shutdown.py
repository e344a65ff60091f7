"""However a trainer ends, none of its actors is left ten seconds later."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]

TRAINER = """
import signal, sys, time
import ray
from tests.streams import images

signal.signal(signal.SIGINT, signal.default_int_handler)  # it is ignored in what a shell runs in the background
ray.init(address=sys.argv[2], log_to_driver=False)
loader = images(sys.argv[1], 24).loader(workers=1)
for batch in loader:
    print("job", ray.get_runtime_context().get_job_id(), flush=True)
    break
if sys.argv[3] == "raise":
    raise RuntimeError("the loop fails")
while True:
    for batch in loader:
        time.sleep(0.05)
"""


@pytest.fixture
def train(cluster: Any, shards: str) -> Iterator[Any]:
    """Starts a training process on the tests' cluster, and gives it and its job once it has a batch."""
    processes = []

    def start(how: str) -> tuple[subprocess.Popen[str], str]:
        address = cluster.get_runtime_context().gcs_address
        process = subprocess.Popen(
            [sys.executable, "-c", TRAINER, shards, address, how],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        processes.append(process)
        assert process.stdout is not None
        return process, process.stdout.readline().split()[1]

    yield start
    for process in processes:
        process.kill()
        process.wait()


@pytest.mark.parametrize("how", ["raise", signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_actor_outlives_its_trainer(cluster: Any, train: Any, wait_until: Any, how: Any) -> None:
    """An exception in the loop, Ctrl-C, SIGTERM, and a kill without a word."""

    def actors() -> list[str]:
        named = cluster.util.list_named_actors(all_namespaces=True)
        return [actor["name"] for actor in named if actor["name"].startswith(f"rayingest:{job}:")]

    process, job = train(str(how))
    if how == "raise":
        process.wait(20)
    else:
        assert len(actors()) == 2
        process.send_signal(how)
        process.wait(20)
    wait_until(lambda: not actors(), 10)
