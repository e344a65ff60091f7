"""Run a hundred thousand small steps and check that memory and open files stay flat.

    python jobs/soak.py --steps 100000

Prints one line of JSON: the growth of resident memory and of open files per 10,000 steps in the
second half, for the trainer and for its actors. Exits with status 1 if either grows by more than 1
MiB or one file.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import ray
from tqdm import tqdm

import rayingest as ri

SAMPLES = 40_000
BATCH = 4


def write_data(folder: Path) -> None:
    """Write small rows into a few Parquet files."""
    for shard in range(8):
        ids = np.arange(SAMPLES // 8) + shard * SAMPLES // 8
        table = pa.table(
            {
                "i": ids,
                "x": pa.FixedSizeListArray.from_arrays(np.repeat(ids, 8).astype(np.float32), 8),
            }
        )
        pq.write_table(table, folder / f"s-{shard}.parquet", row_group_size=500)


def look(processes: list[psutil.Process]) -> tuple[float, int]:
    """Return resident MiB and open files of these processes together."""
    return (
        sum(process.memory_info().rss for process in processes) / 2**20,
        sum(process.num_fds() for process in processes),
    )


def slopes(seen: list[tuple[int, float, int]]) -> tuple[float, float]:
    """Return the growth of memory and of files per 10,000 steps, by least squares."""
    steps, memory, files = (np.array(column, float) for column in zip(*seen, strict=True))
    return tuple(
        round(float(np.polyfit(steps / 10_000, column, 1)[0]), 3) for column in (memory, files)
    )  # type: ignore[return-value]


def main() -> int:
    """Run, measure, report; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=100_000)
    options = parser.parse_args()
    ray.init(
        "local",
        num_cpus=4,
        object_store_memory=200 << 20,
        include_dashboard=False,
        log_to_driver=False,
    )
    seen: dict[str, list[tuple[int, float, int]]] = {"trainer": [], "actors": []}
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        write_data(Path(folder))
        data = ri.read_parquet(folder).shuffle(window=4096).batch(BATCH)
        with (
            ri.Pool(workers=1) as pool,
            data.loader(pool=pool) as loader,
            tqdm(total=options.steps, disable=None) as bar,
        ):
            next(iter(loader))
            pids = [
                ray.get(handle.actor.__ray_call__.remote(lambda _: os.getpid()))
                for handle in pool.actors
            ]
            watched = {
                "trainer": [psutil.Process()],
                "actors": [psutil.Process(pid) for pid in pids],
            }
            step = 0
            while step < options.steps:
                for _batch in loader:
                    step += 1
                    bar.update()
                    if step % 1000 == 0:
                        for who, processes in watched.items():
                            seen[who].append((step, *look(processes)))
                    if step == options.steps:
                        break
    report = {"steps": step, "seconds": round(time.monotonic() - begun, 1)}
    for who, looks in seen.items():
        memory, files = slopes(looks[len(looks) // 2 :])
        report |= {
            f"{who}_mib_per_10k": memory,
            f"{who}_files_per_10k": files,
            f"{who}_mib": round(looks[-1][1], 1),
        }
    print(json.dumps(report))
    flat = all(
        report[f"{who}_mib_per_10k"] < 1 and report[f"{who}_files_per_10k"] < 1 for who in seen
    )
    return 0 if flat else 1


if __name__ == "__main__":
    sys.exit(main())
