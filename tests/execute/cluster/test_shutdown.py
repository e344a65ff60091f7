"""However a trainer ends, its actors are gone ten seconds later, and its status is its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import ray

import rayingest as ri
from tests.support.streams import images, run

ROOT = Path(__file__).parents[3]
STATUS = {
    "an exception": 1,
    "SIGINT": 1,  # Python's own is 130, and 1 wherever Ray is imported
    "SIGTERM": -signal.SIGTERM,
    "SIGTERM after its own ray.init": signal.SIGTERM,  # Ray's handler
    "SIGTERM with a handler that saves for 5 s": 7,
    "SIGKILL": -signal.SIGKILL,
}
"""How a trainer ends, and the exit status of its process."""

TRAINERS = """
import json, os, signal, sys, time
from pathlib import Path
import ray, torch
import rayingest.build.loader, rayingest.execute.cluster.feeder
from tests.support.streams import images

# A shell lets processes in the background ignore SIGINT.
signal.signal(signal.SIGINT, signal.default_int_handler)
pattern, address, folder, *ends = sys.argv[1:]
# Each end has its own process; the imports, which take longest, are done once for all of them.
processes = {}
for end in ends:
    process = os.fork()
    if not process:
        break
    processes[process] = end
else:
    for _ in ends:
        process, status = os.wait()
        processes[process] = (processes[process], os.waitstatus_to_exitcode(status))
    Path(folder, "statuses").write_text(json.dumps(dict(processes.values())))
    sys.exit()

def save(*signal):
    time.sleep(5)  # Ray's handler would abort the process after 3 s
    sys.exit(7)

if "handler" in end:
    signal.signal(signal.SIGTERM, save)
if "ray.init" in end:
    ray.init(address=address, log_to_driver=False)
os.environ["RAY_ADDRESS"] = address
loader = images(pattern, 24).loader(workers=1)
for batch in loader:
    note = Path(folder, end)
    note.with_suffix(".new").write_text(f"{os.getpid()} {ray.get_runtime_context().get_job_id()}")
    note.with_suffix(".new").rename(note)
    break
if end == "an exception":
    raise RuntimeError("the loop fails")
while True:
    for batch in loader:
        time.sleep(0.05)
"""


def test_no_actor_outlives_its_trainer_which_ends_with_its_own_status(
    cluster: Any, shards: str, tmp_path: Path, wait_until: Any
) -> None:
    """An exception in the loop, Ctrl-C, SIGTERM and SIGKILL, all at once on one cluster.

    SIGTERM does what it did before the loader connected the process to Ray.
    """

    def actors(job: str) -> list[str]:
        named = cluster.util.list_named_actors(all_namespaces=True)
        return [actor["name"] for actor in named if actor["name"].startswith(f"rayingest:{job}:")]

    address = cluster.get_runtime_context().gcs_address
    command = [sys.executable, "-c", TRAINERS, shards, address, str(tmp_path), *STATUS]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        wait_until(lambda: all((tmp_path / end).exists() for end in STATUS), 120)
        jobs = []
        for end in STATUS:
            pid, job = (tmp_path / end).read_text().split()
            jobs.append(job)
            if end.startswith("SIG"):
                assert len(actors(job)) == 2, end
                os.kill(int(pid), getattr(signal, end.split()[0]))
        process.wait(60)  # a busy machine
        # Ten seconds on a machine that has nothing else to do.
        wait_until(lambda: not any(map(actors, jobs)), 20)
        assert json.loads((tmp_path / "statuses").read_text()) == STATUS
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def process_of(actor: Any) -> int:
    return os.getpid()


def test_sigterm_alone_ends_no_actor(pool_of_3: ri.Pool, shards: str) -> None:
    """Ray sends it when the process ends that made the actors, and calls their end a failure."""
    handles = pool_of_3.actors
    assert len(handles) == 4
    processes = [ray.get(handle.actor.__ray_call__.remote(process_of)) for handle in handles]
    for process in processes:
        os.kill(process, signal.SIGTERM)
    data = images(shards, 24)
    assert run(data, pool=pool_of_3) == run(data)
    assert [
        ray.get(handle.actor.__ray_call__.remote(process_of)) for handle in pool_of_3.actors
    ] == processes
