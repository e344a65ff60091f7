"""Plant a node that decodes ten times slower than the others, and check that it is found.

    python jobs/slow_node.py

The loader's diagnosis must name the node, and so must `rayingest top`. Removing the node, as the
advice says, must reduce the loop's waits below 5 % of its time. Prints one line of JSON. Exits with
status 1 if one of this does not hold.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from itertools import chain, repeat
from pathlib import Path
from typing import Any

os.environ["RAY_metrics_report_interval_ms"] = "1000"  # noqa: SIM112 - read where Ray is imported

import ray
from ray.cluster_utils import Cluster

import rayingest as ri
from rayingest.monitor.diagnose import WAIT_SHARE, Diagnosis, diagnose
from rayingest.plan.figures.metrics import take_snapshot
from rayingest.tools.top import Board, scrape, table

BATCH, SAMPLE_SECONDS, STEP_SECONDS = 20, 0.005, 0.06
FAST, TRIES = 3, 3
"""Decoders of the head, which would do by themselves; diagnoses until one is as expected."""


def work(slow: str, factor: float, sample: dict[str, Any]) -> dict[str, Any]:
    """Sleep 5 ms, or longer on one node; stands for a decode."""
    here = ray.get_runtime_context().get_node_id()
    time.sleep(SAMPLE_SECONDS * (factor if here == slow else 1.0))
    return {"i": sample["i"]}


def main() -> int:
    """Plant, diagnose, remove the node, diagnose again; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--factor", type=float, default=10.0, help="how much slower the node decodes"
    )
    parser.add_argument("--steps", type=int, default=100, help="steps of a diagnosis")
    parser.add_argument(
        "--others",
        type=int,
        default=2,
        help="nodes of one decoder beside the head and the slow one",
    )
    options = parser.parse_args()
    quiet = {"include_log_monitor": False, "object_store_memory": 100 << 20}
    unused = {"include_dashboard": False, "_system_config": {"prestart_worker_first_driver": False}}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": FAST, **quiet, **unused})
    others = [cluster.add_node(num_cpus=1, **quiet) for _ in range(options.others)]
    slow = cluster.add_node(num_cpus=1, **quiet)
    ray.init(address=cluster.address, log_to_driver=False)
    try:
        with tempfile.TemporaryDirectory() as folder:
            workers = FAST + len(others) + 1
            report = planted(cluster, slow, Path(folder), workers, options.factor, options.steps)
    finally:
        ray.shutdown()
        cluster.shutdown()
    print(json.dumps(report))
    return 0 if report["named"] and report["named_by_top"] and report["removed"] else 1


def planted(
    cluster: Cluster, slow: Any, folder: Path, workers: int, factor: float, steps: int
) -> dict[str, Any]:
    """Return the diagnoses before and after the removal of the slow node."""
    (folder / "a.jsonl").write_text("".join(f'{{"i": {i}}}\n' for i in range(4000)))
    data = ri.read_json(f"{folder}/a.jsonl", index=str(folder), block_bytes=512)
    data = data.map(partial(work, slow.node_id, factor)).shuffle(seed=1, window=200).batch(BATCH)
    with data.loader(workers=workers) as loader:
        batches: Iterator[Any] = chain.from_iterable(repeat(loader))
        while loader.figures()["decoders"] < workers:
            run(batches, 5)
        board = Board()
        board.update(scrape(ray.nodes()))
        before = looked_at(loader, batches, steps, "slow node")
        time.sleep(1)  # Ray's nodes export once a second
        seen = board.update(scrape(ray.nodes()))
        cluster.remove_node(slow)
        after = looked_at(loader, batches, steps, "consumer")
    name = slow.node_id[:8]
    return {
        "slow_node": name,
        "before": str(before),
        "named": before.bottleneck == "slow node" and f"node {name}" in before.advice,
        "named_by_top": any(name in line for line in table(seen)),
        "after": str(after),
        "removed": after.share < WAIT_SHARE,
    }


def looked_at(loader: ri.Loader, batches: Iterator[Any], steps: int, expected: str) -> Diagnosis:
    """Return the first of a few diagnoses that is as expected, or the last one."""
    for _ in range(TRIES):
        run(batches, 10)
        before, begun = loader.figures(), time.monotonic()
        run(batches, steps)
        found = diagnose(take_snapshot(before, loader.figures(), time.monotonic() - begun))
        if found.bottleneck == expected:
            break
    return found


def run(batches: Iterator[Any], steps: int) -> None:
    """Run a training loop for `steps` steps."""
    for _ in range(steps):
        next(batches)
        time.sleep(STEP_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
