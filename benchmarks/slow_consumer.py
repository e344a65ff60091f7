"""Measure what rayingest and Ray Data keep in Ray's object store while the consumer is slow.

    python -m benchmarks.slow_consumer --json runs/bench/slow_consumer.jsonl

Both use the same pictures and transform, two workers, and a shuffle of a thousand samples of up to
eight shards; a store of 300 MB, batches of 9.6 MB, half a second for each. Each runs in a process
and a cluster of its own. The figures are Ray's (`jobs/store_watch.py`): the store's peak, the bytes
spilled because it was full, and the bytes that went to disk at once for lack of room. A run ends
after two minutes.

Exits with status 1 if rayingest exceeded its `max_bytes`, or any of its bytes went to disk.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import ray
from tqdm import tqdm

from benchmarks import image_loaders
from benchmarks.contestants import Contestant
from benchmarks.rows import ROOT, append_row, origin, positive, row_file
from jobs.store_watch import StoreWatch
from rayingest.execute.cluster.node_info import FREE_VARIABLE, QUICK_FREE_MILLISECONDS

OURS = "rayingest"
MAKERS = {
    OURS: partial(image_loaders.ours, window=1024, lanes=8),
    "Ray Data": image_loaders.RayDataEpochs,
}
MB = 1_000_000
BATCH_BYTES = image_loaders.BATCH * math.prod(image_loaders.SHAPE)


def run(name: str, args: argparse.Namespace) -> dict[str, Any]:
    """Run one of them in this process, on a cluster of its own: take a batch, sleep, repeat."""
    os.environ.setdefault(
        FREE_VARIABLE, str(QUICK_FREE_MILLISECONDS)
    )  # as in clusters that rayingest starts
    data = image_loaders.corpus(args.folder)
    ray.init(
        "local",
        num_cpus=4,
        object_store_memory=args.store_mb * MB,
        include_dashboard=False,
        log_to_driver=False,
    )
    taken: list[float] = []
    with StoreWatch() as watch:
        contestant = Contestant(name, MAKERS[name](data, args.workers))

        def consume() -> None:
            for _ in tqdm(range(args.batches), desc=name):
                contestant.take()
                taken.append(time.perf_counter())
                time.sleep(args.sleep)

        consumer = threading.Thread(target=consume, daemon=True)
        consumer.start()
        consumer.join(args.limit)
    figures = {
        "batches": len(taken),
        "seconds": taken[-1] - taken[0] if taken else 0.0,
        "peak_mb": watch.peak / MB,
        "spilled_mb": watch.spilled / MB,
        "fallback_mb": watch.fallback / MB,
    }
    if name == OURS:
        figures["max_mb"] = contestant.loader.stats()["max_bytes"] / MB
        figures["within"] = (
            watch.peak <= figures["max_mb"] * MB and not watch.spilled and not watch.fallback
        )
    return figures


def report(figures: dict[str, dict[str, Any]], args: argparse.Namespace) -> str:
    """Return the figures as text."""
    lines = [
        f"{args.sleep} s for each batch of {BATCH_BYTES / MB:.1f} MB, store of {args.store_mb} MB"
    ]
    lines.append(f"{'':12} batches  seconds  peak MB  spilled MB  fallback MB")
    for name, of in figures.items():
        held = f"{of['peak_mb']:8.0f} {of['spilled_mb']:11.0f} {of['fallback_mb']:12.0f}"
        most = f"   may hold {of['max_mb']:.0f} MB" if name == OURS else ""
        lines.append(f"{name:12} {of['batches']:7d} {of['seconds']:8.0f} {held}{most}")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line, which runs itself for each contestant."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--sleep", type=float, default=0.5, help="seconds of the consumer for each batch"
    )
    parser.add_argument("--batches", type=positive, default=80)
    parser.add_argument("--store-mb", type=positive, default=300, help="of Ray's object store")
    parser.add_argument(
        "--limit", type=float, default=120, help="seconds after which no more is waited for"
    )
    parser.add_argument("--workers", type=positive, default=2)
    parser.add_argument(
        "--folder", type=Path, default=ROOT / "runs" / "bench", help="folder of the data"
    )
    parser.add_argument("--json", type=row_file, help="append the results to this file as a line")
    parser.add_argument("--one", choices=MAKERS, help=argparse.SUPPRESS)
    arguments = list(sys.argv[1:] if argv is None else argv)
    args = parser.parse_args(arguments)
    if args.one:
        print(json.dumps(run(args.one, args)), flush=True)
        ray.shutdown()
        os._exit(0)  # one that is stuck could not be waited for
    described = origin()
    figures: dict[str, dict[str, Any]] = {}
    for name in MAKERS:
        command = [sys.executable, "-m", "benchmarks.slow_consumer", *arguments, "--one", name]
        done = subprocess.run(
            command, stdout=subprocess.PIPE, text=True, check=False
        )  # one that was stuck ends as it may
        if done.stdout:  # else it has failed and said why: the other's figures are kept
            figures[name] = json.loads(done.stdout.splitlines()[-1])
    print(report(figures, args))
    append_row(args.json, {**described, "case": "slow consumer", "loaders": figures})
    return 0 if len(figures) == len(MAKERS) and figures[OURS]["within"] else 1


if __name__ == "__main__":
    sys.exit(main())
