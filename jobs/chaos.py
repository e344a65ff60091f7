"""Compare a stream under faults with an undisturbed one: actors die, nodes vanish, reads fail or
hang.

    python jobs/chaos.py --epochs 20 --kills 30 --node-losses 10

Two ranks read on a cluster of four nodes. The ids and bytes must equal those of a run without Ray,
and every fault must appear in the loaders' stats. Prints one line of JSON with the faults and the
stats. Exits with status 1 if anything differs.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import random
import sys
import tarfile
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

import chaos_storage
import ray
from chaos_account import faults_in, faults_unaccounted, long_reads, storage_faults
from ray.cluster_utils import Cluster
from tqdm import tqdm

import rayingest as ri

RANKS, NODES, GLOBAL_BATCH = 2, 4, 16
UNUSED = {
    "include_dashboard": False,
    "include_log_monitor": False,
    "_system_config": {"prestart_worker_first_driver": False},
}
"""Of the head: what would show what nobody looks at, and workers that know nothing of `chaos://`.
"""
Stream = list[list[tuple[int, str]]]


def write_data(folder: Path, samples: int) -> None:
    """Write shards of 50 samples, each a number and a few hundred random bytes."""
    rng = np.random.default_rng(0)
    for shard in range(0, samples, 50):
        with tarfile.open(folder / f"s-{shard:06d}.tar", "w") as tar:
            for i in range(shard, min(shard + 50, samples)):
                for extension, data in (
                    ("json", json.dumps({"i": i}).encode()),
                    ("bin", rng.bytes(int(rng.integers(100, 900)))),
                ):
                    info = tarfile.TarInfo(f"k{i:07d}.{extension}")
                    info.size = len(data)
                    tar.addfile(info, io.BytesIO(data))


def work(seconds: float, sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """Sleep; a transform that takes time."""
    time.sleep(seconds)
    head = np.frombuffer(bytes(sample["bin"][:64]).ljust(64, b"\0"), np.uint8).reshape(8, 8)
    return {"i": sample["json"]["i"], "head": head, "noise": rng.random(4)}


def dataset(url: str, seconds: float, storage_options: dict[str, Any]) -> Any:
    """Describe the data; both runs differ only in where it is and how slow the transform is."""
    data = ri.read_webdataset(url, block_bytes=8192, storage_options=storage_options)
    return (
        data.map(partial(work, seconds))
        .shuffle(seed=5, window=160)
        .batch(GLOBAL_BATCH, partial="pad")
    )


def rows(batch: dict[str, Any]) -> list[tuple[int, str]]:
    """Return (ordinal, digest of the fields) of each row."""
    names = sorted(set(batch) - {"__index__"})
    return [
        (
            int(ordinal),
            hashlib.sha256(
                b"".join(np.asarray(batch[name][row]).tobytes() for name in names)
            ).hexdigest(),
        )
        for row, ordinal in enumerate(batch["__index__"])
    ]


class Mischief:
    """Kills actors and removes nodes at steps that are chosen beforehand from the seed."""

    def __init__(
        self,
        cluster: Cluster,
        node_args: dict[str, Any],
        steps: int,
        kills: int,
        losses: int,
        seed: int,
    ) -> None:
        rng = self._rng = random.Random(seed)
        self._cluster, self._node_args = cluster, node_args
        self._nodes = [cluster.add_node(**node_args) for _ in range(NODES)]
        planned = ["kill"] * kills + ["lose"] * losses
        at = rng.sample(range(2, steps - 1), min(len(planned), steps - 3))
        self._plan = dict(zip(at, planned, strict=False))
        self.done = {"kill": 0, "lose": 0}
        self.died: set[str] = set()

    def step(self, number: int, pools: list[Any]) -> None:
        """Do what is planned for this step."""
        what = self._plan.get(number)
        if what == "kill":
            while not (handles := [handle for pool in pools for handle in pool.actors]):
                time.sleep(0.05)  # all went with their nodes
            chosen = self._rng.choice(handles)
            ray.kill(chosen.actor)
            self.died.add(chosen.name)
        elif what == "lose":
            node = self._nodes.pop(self._rng.randrange(len(self._nodes)))
            self.died.update(
                handle.name
                for pool in pools
                for handle in pool.actors
                if handle.node == node.node_id
            )
            self._cluster.remove_node(node, allow_graceful=False)
            self._nodes.append(self._cluster.add_node(**self._node_args))
        else:
            return
        self.done[what] += 1


def disturbed(
    options: argparse.Namespace, folder: Path, notes: Path
) -> tuple[Stream, dict[str, Any]]:
    """Run the stream over Ray with all faults; return it with the counts of faults and stats."""
    chaos_storage.register()
    paths = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    env = {"env_vars": {"PYTHONPATH": paths}, "worker_process_setup_hook": "chaos_storage.register"}
    head = {"num_cpus": 0, "object_store_memory": 200 << 20, **UNUSED}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    ray.init(address=cluster.address, log_to_driver=False, runtime_env=env)
    try:
        return _disturbed(options, cluster, folder, notes)
    finally:
        ray.shutdown()
        for node in (*cluster.worker_nodes, cluster.head_node):
            cluster.remove_node(node, allow_graceful=False)  # each would be given a second
        cluster.shutdown()


def _disturbed(
    options: argparse.Namespace, cluster: Cluster, folder: Path, notes: Path
) -> tuple[Stream, dict[str, Any]]:
    steps = options.epochs * -(-options.samples // GLOBAL_BATCH)
    node_args = {"num_cpus": 2, "object_store_memory": 100 << 20, "include_log_monitor": False}
    mischief = Mischief(cluster, node_args, steps, options.kills, options.node_losses, options.seed)
    storage = {
        "fail": 0.05,
        "hang": 0.02,
        "hang_seconds": options.hang_seconds,
        "notes": str(notes),
    }
    data = dataset(f"chaos://{folder}/*.tar", options.work_ms / 1000, storage)
    pools = [ri.Pool(workers=2) for _ in range(RANKS)]
    given = {"world_size": RANKS, "epochs": options.epochs, "max_bytes": options.max_bytes}
    loaders = [data.loader(rank=r, pool=pools[r], **given) for r in range(RANKS)]
    seen: Stream = []
    longest = last = 0.0
    with tqdm(total=steps, unit="step", disable=None) as bar:
        for _ in range(options.epochs):
            for parts in zip(*loaders, strict=True):
                now = time.monotonic()
                longest, last = max(longest, now - last if last else 0.0), now
                seen.append([row for part in parts for row in rows(part)])
                mischief.step(len(seen), pools)
                bar.update()
    idle_dead, alive = who_answers(pools)
    until = (
        time.monotonic() + options.hang_seconds + 5
    )  # for answers that nobody waits for any more, and their counts
    while any(loader.stats()["reads_running"] for loader in loaders) and time.monotonic() < until:
        time.sleep(0.1)
    stats = [loader.stats() for loader in loaders]
    for closing in (*loaders, *pools):
        closing.close()
    names = (
        "storage_retries",
        "hedges",
        "retries",
        "workers_lost",
        "blocks_lost",
        "blocks_reread",
        "blocks_read",
    )
    totals = {name: sum(stat[name] for stat in stats) for name in names}
    faults = faults_in(notes.read_text() if notes.exists() else "")
    return seen, {
        "steps": steps,
        "killed": mischief.done["kill"],
        "nodes_lost": mischief.done["lose"],
        "died": len(mischief.died),
        "idle_dead": len(idle_dead),
        **storage_faults(faults, alive, options.hang_seconds),
        "long_reads": sum(
            long_reads(stat["read_durations"], options.hang_seconds) for stat in stats
        ),
        "longest_step_s": round(longest, 2),
        **totals,
    }


def who_answers(pools: list[ri.Pool]) -> tuple[set[str], set[int]]:
    """Ask every actor that the pools hold. Returns the names of those that do not answer, and the
    process ids of those that do.
    """
    dead, alive = set(), set()
    for handle in [handle for pool in pools for handle in pool.actors]:
        try:
            alive.add(ray.get(handle.actor.__ray_call__.remote(lambda _: os.getpid()), timeout=30))
        except ray.exceptions.RayError:
            dead.add(handle.name)
    return dead, alive


def main() -> int:
    """Run both, compare, report; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--samples", type=int, default=600)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--node-losses", type=int, default=6)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--work-ms", type=float, default=10.0)
    parser.add_argument("--hang-seconds", type=float, default=20.0)
    parser.add_argument(
        "--max-bytes",
        type=int,
        default=300_000,
        help="the size of a window, so that there is always work to lose",
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="chaos-") as name:
        folder = Path(name)
        write_data(folder, options.samples)
        with dataset(f"{folder}/*.tar", 0.0, {}).loader(rank=0, world_size=1, workers=0) as loader:
            expected = [rows(batch) for _ in range(options.epochs) for batch in loader]
        begun = time.monotonic()
        seen, report = disturbed(options, folder, folder / "faults")
    report |= {"seconds": round(time.monotonic() - begun, 1), "identical": seen == expected}
    report["unaccounted"] = faults_unaccounted(report)
    print(json.dumps(report))
    return 0 if report["identical"] and not report["unaccounted"] else 1


if __name__ == "__main__":
    sys.exit(main())
