"""However a trainer ends, its actors are gone ten seconds later."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
ENDS = ("an exception", "SIGINT", "SIGTERM", "SIGKILL")

TRAINERS = """
import os, signal, sys, time
from pathlib import Path
import ray, torch
import rayingest.build.loader, rayingest.execute.cluster.feeder
from tests.support.streams import images

# A shell lets processes in the background ignore SIGINT.
signal.signal(signal.SIGINT, signal.default_int_handler)
pattern, address, folder, *ends = sys.argv[1:]
# Each end has its own process; the imports, which take longest, are done once for all of them.
for end in ends:
    if not os.fork():
        break
else:
    for _ in ends:
        os.wait()
    sys.exit()
ray.init(address=address, log_to_driver=False)
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


def test_no_actor_outlives_its_trainer(
    cluster: Any, shards: str, tmp_path: Path, wait_until: Any
) -> None:
    """An exception in the loop, Ctrl-C, SIGTERM and SIGKILL, all at once on one cluster."""

    def actors(job: str) -> list[str]:
        named = cluster.util.list_named_actors(all_namespaces=True)
        return [actor["name"] for actor in named if actor["name"].startswith(f"rayingest:{job}:")]

    address = cluster.get_runtime_context().gcs_address
    command = [sys.executable, "-c", TRAINERS, shards, address, str(tmp_path), *ENDS]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        wait_until(lambda: all((tmp_path / end).exists() for end in ENDS), 120)
        jobs = []
        for end in ENDS:
            pid, job = (tmp_path / end).read_text().split()
            jobs.append(job)
            if end.startswith("SIG"):
                assert len(actors(job)) == 2, end
                os.kill(int(pid), getattr(signal, end))
        process.wait(60)  # a busy machine
        # Ten seconds on a machine that has nothing else to do.
        wait_until(lambda: not any(map(actors, jobs)), 20)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
