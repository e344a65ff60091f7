"""Measure how long the throughput takes to recover after a decoder or a node is lost.

    python jobs/recovery.py --repeats 3

A decode sleeps for a fixed time, so the machine's cores hardly matter. The steady rate is the rate
before the fault. Throughput is back at the end of the first `--stretch` seconds after the fault
whose rate is at least 0.9 of it. The remaining nodes have CPUs for all decoders. Blocks are large
enough to be in the nodes' object stores, as in real jobs, so a lost node takes copies with it.
Prints a line of JSON for each fault. Exits with status 1 if the median is above 5 s for a killed
decoder, or 10 s for a lost node.
"""

from __future__ import annotations

import argparse
import bisect
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import ray
from ray.cluster_utils import Cluster

import rayingest as ri

BATCH, SAMPLE_SECONDS, ROWS, ROW_BYTES = 8, 0.02, 50_000, 2000
LIMITS = {"decoder killed": 5.0, "node lost": 10.0}
BACK = 0.9


def sleep(sample: dict[str, Any]) -> dict[str, Any]:
    """Sleep; a transform that only takes time."""
    time.sleep(SAMPLE_SECONDS)
    return sample


@contextmanager
def cluster_of(nodes: int, cpus: int) -> Iterator[tuple[Cluster, list[Any]]]:
    """Run a head without CPUs and `nodes` nodes with `cpus` each."""
    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 0, "object_store_memory": 200 << 20}
    )
    try:
        made = [
            cluster.add_node(num_cpus=cpus, object_store_memory=100 << 20) for _ in range(nodes)
        ]
        paths = {"env_vars": {"PYTHONPATH": str(Path(__file__).parents[1])}}
        ray.init(address=cluster.address, log_to_driver=False, runtime_env=paths)
        yield cluster, made
    finally:
        ray.shutdown()
        cluster.shutdown()


def kill_a_decoder(pool: ri.Pool, cluster: Cluster, nodes: list[Any]) -> None:
    """Kill one decoder of the pool."""
    ray.kill(next(handle.actor for handle in pool.actors if handle.role == "decoder"))


def lose_a_node(pool: ri.Pool, cluster: Cluster, nodes: list[Any]) -> None:
    """Remove a node that has decoders, without warning."""
    busy = {handle.node for handle in pool.actors if handle.role == "decoder"}
    node = next(node for node in nodes if node.node_id in busy)
    cluster.remove_node(node, allow_graceful=False)


def seconds_until_back(
    taken: list[float], fault: float, steady: float, stretch: float
) -> float | None:
    """Return the seconds from the fault to the end of the first stretch with 0.9 of the steady
    rate.
    """
    for i in range(bisect.bisect(taken, fault), len(taken)):
        first = bisect.bisect(taken, taken[i] - stretch)
        if taken[i] - stretch >= fault and (i + 1 - first) * BATCH / stretch >= BACK * steady:
            return taken[i] - fault
    return None


def measure(
    data: Any,
    what: str,
    harm: Callable[..., None],
    cluster: Cluster,
    nodes: list[Any],
    workers: int,
    stretch: float,
) -> dict[str, Any]:
    """Measure one fault in a run of its own."""
    with ri.Pool(workers=workers) as pool, data.loader(pool=pool, max_bytes=40 << 20) as loader:
        batches = iter(loader)
        next(batches)
        while pool.count("decoder") < workers:
            next(batches)
        taken: list[float] = []

        def run(seconds: float) -> None:
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                next(batches)
                taken.append(time.monotonic())

        run(3 * stretch)  # what lay ready, and the first decodes
        begun = time.monotonic()
        taken.clear()
        run(3 * stretch)
        steady = len(taken) * BATCH / (time.monotonic() - begun)
        fault = time.monotonic()
        harm(pool, cluster, nodes)
        run(LIMITS[what] + 3 * stretch)
        back = seconds_until_back(taken, fault, steady, stretch)
        longest = max(np.diff([fault, *taken[bisect.bisect(taken, fault) :]]))
        return {
            "fault": what,
            "steady": round(steady, 1),
            "ideal": round(workers / SAMPLE_SECONDS, 1),
            "back_after": None if back is None else round(back, 2),
            "longest_step": round(float(longest), 2),
            "lost": loader.stats()["workers_lost"],
        }


def main() -> int:
    """Kill one of four decoders on two nodes; lose one of three nodes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--stretch", type=float, default=2.0, help="seconds over which the rate is taken"
    )
    options = parser.parse_args()
    if options.repeats < 1:
        parser.error(f"--repeats: must be 1 or more, is {options.repeats}")
    within = True
    with tempfile.TemporaryDirectory(prefix="recovery-") as folder:
        table = pa.table(
            {"i": np.arange(ROWS), "bytes": [np.random.default_rng(0).bytes(ROW_BYTES)] * ROWS}
        )
        pq.write_table(table, f"{folder}/a.parquet", row_group_size=200)
        data = (
            ri.read_parquet(f"{folder}/*.parquet")
            .map(sleep)
            .shuffle(seed=1, window=4000)
            .batch(BATCH)
        )
        cases = [("decoder killed", kill_a_decoder, 2, 4), ("node lost", lose_a_node, 3, 4)]
        for what, harm, count, workers in cases:
            once = partial(measure, data, what, harm)
            reports = []
            for _ in range(options.repeats):
                with cluster_of(count, 3) as (cluster, nodes):
                    reports.append(once(cluster, nodes, workers, options.stretch))
                print(json.dumps(reports[-1]), flush=True)
            times = [report["back_after"] or float("inf") for report in reports]
            print(
                f"{what}: throughput is back after {statistics.median(times):.1f} s "
                f"(limit {LIMITS[what]:.0f} s)"
            )
            within &= statistics.median(times) < LIMITS[what]
    return 0 if within else 1


if __name__ == "__main__":
    sys.exit(main())
