"""Run ranks as processes of their own on a Ray cluster of several nodes.

`python -m tests.support.ranks RANK WORLD_SIZE WORKERS FILE DATA` is a rank: it opens a loader,
writes what it has into FILE whenever that changes, and ends when its standard input ends.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
LAUNCH_KEYS = ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT", "LOCAL_WORLD_SIZE")


class Rank:
    """A rank that runs as a process; use it as a context manager."""

    def __init__(
        self, address: str, folder: Path, data: str, rank: int, world_size: int, workers: int
    ) -> None:
        self._file = folder / f"rank{rank}.json"
        self._file.unlink(missing_ok=True)
        environment = {key: value for key, value in os.environ.items() if key not in LAUNCH_KEYS}
        arguments = [str(rank), str(world_size), str(workers), str(self._file), data]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.ranks", *arguments],
            stdin=subprocess.PIPE,
            cwd=ROOT,
            env={**environment, "RAY_ADDRESS": address},
        )

    def __enter__(self) -> Rank:
        return self

    def __exit__(self, *exc: object) -> None:
        if self.process.stdin is not None:
            self.process.stdin.close()
        try:
            self.process.wait(30)
        finally:
            self.process.kill()

    @property
    def seen(self) -> dict[str, Any]:
        """What the rank wrote last: nodes of decoders and readers, and `max_bytes`."""
        assert self.process.poll() is None, f"the rank ended with status {self.process.returncode}"
        if not self._file.exists():
            return {"decoders": [], "readers": [], "max_bytes": 0}
        found: dict[str, Any] = json.loads(self._file.read_text())
        return found

    @property
    def decoders(self) -> int:
        """How many decoders the rank has."""
        return len(self.seen["decoders"])


@contextmanager
def cluster_of(cpus: list[int], store: int = 100 << 20) -> Iterator[Any]:
    """A Ray cluster of a head without CPUs and one node for each number of CPUs."""
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 0, "object_store_memory": store, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        for number in cpus:
            cluster.add_node(num_cpus=number, object_store_memory=store)
        yield cluster
    finally:
        cluster.shutdown()


def _run(rank: int, world_size: int, workers: int, file: Path, data: str) -> None:
    import rayingest as ri

    written = ""
    with (
        ri.Pool(workers=workers) as pool,
        ri.read_json(data).batch(12).loader(rank=rank, world_size=world_size, pool=pool) as loader,
    ):
        while not select.select([sys.stdin], [], [], 0.05)[0]:
            nodes = {
                role: sorted(handle.node for handle in pool.actors if handle.role == role[:-1])
                for role in ("decoders", "readers")
            }
            text = json.dumps({**nodes, "max_bytes": loader.stats()["max_bytes"]})
            if text != written:
                written = text
                aside = file.with_suffix(".new")
                aside.write_text(text)
                aside.rename(file)


def counts(nodes: list[str]) -> list[int]:
    """Return how often each node occurs, sorted."""
    return sorted(Counter(nodes).values())


if __name__ == "__main__":
    _run(*map(int, sys.argv[1:4]), Path(sys.argv[4]), sys.argv[5])
