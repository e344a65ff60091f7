"""Measure Ray's object store while data of many times the budget streams past a slow consumer.

    python jobs/memory.py --max-mb 40 --times 20

Reads the store's use, its spilled and its fallback bytes from Ray every few milliseconds. Prints a
line of JSON for each case. Exits with status 1 if the store held more than the budget, or spilled
anything.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import ray
from store_watch import StoreWatch

import rayingest as ri
from rayingest.execute.cluster.node_info import FREE_VARIABLE, QUICK_FREE_MILLISECONDS

SAMPLE_BYTES = 50_000
SHARD_SAMPLES = 200
BLOCK_BYTES, LANES = 1 << 19, 8


def write_data(folder: Path, samples: int) -> None:
    """Write shards of samples of 50 kB."""
    noise = np.random.default_rng(0).bytes(SAMPLE_BYTES)
    for shard in range(0, samples, SHARD_SAMPLES):
        with tarfile.open(folder / f"s-{shard:06d}.tar", "w") as tar:
            for i in range(shard, min(shard + SHARD_SAMPLES, samples)):
                info = tarfile.TarInfo(f"k{i:07d}.bin")
                info.size = len(noise)
                tar.addfile(info, io.BytesIO(noise))


def pixels(sample: dict[str, Any]) -> dict[str, Any]:
    """Return an array about as large as the bytes read."""
    return {"image": np.frombuffer(sample["bin"], np.uint8)[: 128 * 128 * 3].reshape(128, 128, 3)}


def run(
    url: str, loaders: int, max_bytes: int, window: int, steps: int, sleep: float
) -> dict[str, Any]:
    """Run loaders side by side on one pool; the loop sleeps after each batch."""
    data = (
        ri.read_webdataset(url, block_bytes=BLOCK_BYTES)
        .map(pixels)
        .shuffle(window=window, lanes=LANES)
        .batch(64)
    )
    with ri.Pool(workers=2) as pool:
        made = [
            data.loader(rank=0, world_size=1, pool=pool, max_bytes=max_bytes)
            for _ in range(loaders)
        ]
        with StoreWatch() as watch:
            for _ in range(-(-steps // len(made[0]))):
                for _batches in zip(*made, strict=True):
                    time.sleep(sleep)
        stats = [loader.stats() for loader in made]
        for loader in made:
            loader.close()
    return {
        "loaders": loaders,
        "max_mb": max_bytes >> 20,
        "window": window,
        "steps": sum(stat["batches"] for stat in stats),
        "peak_mb": round(watch.peak / 2**20, 1),
        "ledger_peak_mb": round(sum(stat["peak_bytes"] for stat in stats) / 2**20, 1),
        "spilled": watch.spilled,
        "fallback": watch.fallback,
        "blocks_dropped": sum(stat["blocks_dropped"] for stat in stats),
        "blocks_reread": sum(stat["blocks_reread"] for stat in stats),
        "within": watch.peak <= loaders * max_bytes and not watch.spilled and not watch.fallback,
    }


def main() -> int:
    """Measure one loader whose window fits, one whose window does not, and four."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--max-mb", type=int, default=40)
    parser.add_argument("--times", type=int, default=20, help="size of the data in budgets")
    parser.add_argument(
        "--sleep",
        type=float,
        default=0.02,
        help="seconds that the consumer sleeps after each batch",
    )
    options = parser.parse_args()
    max_bytes = options.max_mb << 20
    samples = options.times * max_bytes // SAMPLE_BYTES
    os.environ.setdefault(
        FREE_VARIABLE, str(QUICK_FREE_MILLISECONDS)
    )  # as in clusters that rayingest starts
    ray.init(
        "local",
        num_cpus=4,
        object_store_memory=6 * max_bytes,
        include_dashboard=False,
        log_to_driver=False,
    )
    fits = max_bytes // 3 // SAMPLE_BYTES
    reports = []
    with tempfile.TemporaryDirectory(prefix="memory-") as folder:
        write_data(Path(folder), samples)
        for loaders, window in ((1, fits), (1, 4 * fits), (4, fits)):
            report = run(
                f"{folder}/*.tar",
                loaders,
                max_bytes,
                window,
                samples // 64 // loaders,
                options.sleep,
            )
            reports.append(report)
            print(json.dumps(report), flush=True)
    return 0 if all(report["within"] for report in reports) else 1


if __name__ == "__main__":
    sys.exit(main())
