"""Ranks of a launch share one local cluster, which ends after the last of them.

They run in a new user's environment, where Ray asks every process for a token.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest

from tests.support.plain import PlainEnvironment
from tests.support.streams import images, run

ROOT = Path(__file__).parents[3]

pytestmark = pytest.mark.timeout(400)  # on a busy machine

RANK = """
import json, os, sys, time
from pathlib import Path
import ray
from rayingest.execute.cluster import local_cluster
from tests.support.streams import images, rows

pattern, state, folder, *stay = sys.argv[1:]

def write(name, value):
    new = Path(folder, f"{name}.new")
    new.write_text(json.dumps(value))
    new.rename(Path(folder, name))

with images(pattern, 24).loader(workers=1, epochs=2) as loader:
    loader.load_state_dict(json.loads(state))
    seen = [rows(batch) for batch in loader]
    result = {
        "process": os.getpid(),
        "starter": bool(local_cluster._supervisors),
        "address": ray.get_runtime_context().gcs_address,
        "world_size": loader.world_size,
        "rows": seen,
    }
    write(f"rank{loader.rank}", result)
    if result["starter"]:
        time.sleep(600 if stay else 0)  # until it is killed
        sys.exit()
    other = Path(folder, f"rank{1 - loader.rank}")
    while not other.exists():
        time.sleep(0.05)
    try:
        while True:
            os.kill(json.loads(other.read_text())["process"], 0)
            time.sleep(0.05)
    except ProcessLookupError:
        pass
    write("checkpoint", [rows(batch) for batch in loader])
"""
"""A rank that resumes from a state, and ends after an epoch if it has started the cluster. The
other one waits for its end, reads the next epoch, and writes a checkpoint.
"""


class Launch(NamedTuple):
    """Two ranks that resume at step 6 of the data: the arguments of each, and the results."""

    folder: Path
    arguments: list[str]
    data: Any

    def results(self) -> list[dict[str, Any]]:
        """Return what the ranks have written, the one that started the cluster first."""
        ranks = [json.loads((self.folder / f"rank{rank}").read_text()) for rank in range(2)]
        return sorted(ranks, key=lambda result: not result["starter"])

    def check(self) -> None:
        """One cluster for both ranks, each with its rows from the state on, to the last one."""
        ranks = [json.loads((self.folder / f"rank{rank}").read_text()) for rank in range(2)]
        assert sorted(result["starter"] for result in ranks) == [False, True]
        assert ranks[0]["address"] == ranks[1]["address"]
        assert {result["world_size"] for result in ranks} == {2}
        expected = run(self.data, epochs=2)[0]
        both = [
            [tuple(row) for row in a + b]
            for a, b in zip(ranks[0]["rows"], ranks[1]["rows"], strict=True)
        ]
        steps = len(expected) // 2
        assert both == expected[6:steps]
        survivor = 1 if ranks[0]["starter"] else 0
        second = json.loads((self.folder / "checkpoint").read_text())
        half = len(expected[0]) // 2
        assert [[tuple(row) for row in rows] for rows in second] == [
            rows[half * survivor :][:half] for rows in expected[steps:]
        ]


@pytest.fixture
def launch(shards: str, tmp_path: Path) -> Launch:
    """The script of `RANK` in a folder of its own, and its arguments."""
    data = images(shards, 24)
    _, state = run(data, steps=6)
    script = tmp_path / "rank.py"
    script.write_text(RANK)
    (tmp_path / "tests").symlink_to(ROOT / "tests")  # Ray's workers import from the script's folder
    arguments = [str(script), shards, json.dumps(state)]
    return Launch(tmp_path, [*arguments, str(tmp_path)], data)


def supervisors() -> list[psutil.Process]:
    """Return the processes that own the cluster of a launch of this machine."""
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if any(part.endswith("cluster/supervisor.py") for part in process.info["cmdline"] or ())
    ]


def responds(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except OSError:
        return False
    return True


def test_torchrun_succeeds_though_the_rank_that_started_the_cluster_ends_first(
    plain: PlainEnvironment, launch: Launch, wait_until: Callable[..., None]
) -> None:
    """As a new user starts it, from another folder. The cluster ends after the last rank.

    Each rank finds its rank, and only the state is carried over.
    """
    done = subprocess.run(
        ["torchrun", "--standalone", "--nproc-per-node=2", *launch.arguments],
        check=False,
        cwd=plain.bin,
        env=plain.variables,
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    launch.check()
    wait_until(lambda: not responds(launch.results()[0]["address"]), 120)


def test_a_cluster_survives_the_kill_of_the_rank_that_started_it(
    plain: PlainEnvironment, launch: Launch, wait_until: Callable[..., None]
) -> None:
    """The other rank reads on; after it, no process and no file of the launch is left."""
    with tempfile.TemporaryDirectory(prefix="ri-") as short:  # sockets' names have a limit
        variables = {
            **plain.variables,
            "TMPDIR": short,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "29400",
            "WORLD_SIZE": "2",
            "LOCAL_WORLD_SIZE": "2",
        }
        processes = [
            subprocess.Popen(
                [plain.python, *launch.arguments, "stay"],
                cwd=launch.folder,
                env={**variables, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            )
            for rank in range(2)
        ]
        try:
            wait_until(
                lambda: all((launch.folder / f"rank{rank}").exists() for rank in (0, 1)), 120
            )
            starter, other = launch.results()
            owners = [process for process in supervisors() if short in " ".join(process.cmdline())]
            assert len(owners) == 1
            os.kill(starter["process"], signal.SIGKILL)
            # The killed process first: the other one waits until its number is free.
            processes.sort(key=lambda process: process.pid != starter["process"])
            status = {process.pid: process.wait(120) for process in processes}
            assert status == {starter["process"]: -signal.SIGKILL, other["process"]: 0}
            launch.check()
            wait_until(lambda: not owners[0].is_running(), 120)
            assert not responds(starter["address"])
            (notes,) = Path(short).glob("rayingest-*")
            assert [path.suffix for path in notes.iterdir()] == [".lock"]
        finally:
            for process in processes:
                process.kill()
                process.wait()
