"""Measure whether throughput grows with nodes and with ranks, on one machine.

    python -m benchmarks.nodes --json row.jsonl

A decode sleeps for a fixed time, so the machine's cores hardly matter; blocks, chunks and batches
are real. Nodes: one rank, two decoders on each of 1, 2 and 4 nodes. Ranks: 1 and 16 threads, each
with a loader of one decoder. A figure is the rate relative to the sleeping decoders' ideal rate,
and relative to the smallest case scaled up.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import rayingest as ri
from benchmarks.rows import append_row, origin, row_file
from jobs.recovery import BATCH, cluster_of, sleep

SAMPLE_SECONDS, ROWS, DECODERS = 0.02, 200_000, 2
"""As `recovery.sleep` has it; decoders a node."""


def rate(take: Callable[[], Any], seconds: float) -> float:
    """Return samples per second in the steady state; the first batches do not count."""
    for _ in range(16):
        take()
    count, begun = 0, time.monotonic()
    while time.monotonic() - begun < seconds:
        take()
        count += 1
    return count * BATCH / (time.monotonic() - begun)


def over_nodes(data: ri.Dataset, nodes: int, seconds: float) -> tuple[int, float]:
    """Measure one rank on a cluster; return decoders and rate."""
    workers = DECODERS * nodes
    with (
        cluster_of(nodes, DECODERS),
        ri.Pool(workers=workers) as pool,
        data.loader(pool=pool) as loader,
    ):
        batches = iter(loader)
        while pool.count("decoder") < workers:
            next(batches)
        return workers, rate(lambda: next(batches), seconds)


def over_ranks(data: ri.Dataset, ranks: int, seconds: float) -> tuple[int, float]:
    """Measure ranks in this process, each with a decoder of its own; return decoders and the sum of
    rates.
    """
    rates: list[float] = []
    ready = threading.Barrier(ranks)

    def train(rank: int) -> None:
        with data.loader(
            rank=rank, world_size=ranks, workers=1, max_bytes=32 << 20, start_timeout=300
        ) as loader:
            batches = iter(loader)
            next(batches)
            ready.wait(300)
            rates.append(rate(lambda: next(batches), seconds))

    with cluster_of(1, ranks):
        threads = [threading.Thread(target=train, args=(rank,)) for rank in range(ranks)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return ranks, sum(rates)


def main() -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=15, help="of each case that are timed")
    parser.add_argument("--json", type=row_file, help="file to which a line of JSON is appended")
    options = parser.parse_args()
    described = origin()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="nodes-") as folder:
        pq.write_table(
            pa.table({"i": range(ROWS)}), Path(folder) / "part.parquet", row_group_size=500
        )

        def data(global_batch: int) -> ri.Dataset:
            source = ri.read_parquet(f"{folder}/part.parquet", index=f"{folder}/index")
            return (
                source.map(sleep)
                .shuffle(seed=0, window=8192, lanes=global_batch // BATCH)
                .batch(global_batch)
            )

        for what, cases, measure in (
            ("nodes", (1, 2, 4), over_nodes),
            ("ranks", (1, 16), over_ranks),
        ):
            base: float | None = None
            for number in cases:
                decoders, found = measure(
                    data(BATCH * (number if what == "ranks" else 1)), number, options.seconds
                )
                base = found if base is None else base
                row = {
                    "what": what,
                    "number": number,
                    "decoders": decoders,
                    "rate": round(found, 1),
                }
                row |= {
                    "to_sleep": round(found * SAMPLE_SECONDS / decoders, 3),
                    "to_linear": found / base / number,
                }
                rows.append(row)
                print(json.dumps(row), flush=True)
    append_row(options.json, {**described, "rows": rows})
    return 0 if all(row["to_linear"] >= 0.9 for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
