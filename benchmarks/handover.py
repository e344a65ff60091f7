"""Time the hand-over of decoded chunks to a batch in its slot, beside a memcpy of the same bytes.

    python -m benchmarks.handover --json row.jsonl

The feeder's own code assembles chunks of uint8 images and labels on a thread, while the main thread
is idle, or computes in Python. A memcpy of as many bytes takes turns with it. The target is 1.3
times the memcpy plus 1 ms a chunk, as medians.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks.rows import append_row, origin, positive, row_file
from benchmarks.turns import spread
from rayingest.trainer.prefetch import SlotPool
from rayingest.transforms.collate import assemble

BATCH, SHAPE = 64, (3, 224, 224)
PAUSE = 0.01
"""Between two hand-overs, as they come in training."""


def chunks_of(count: int) -> list[tuple[np.ndarray, dict[str, Any]]]:
    """Return a batch in `count` chunks, as decoders make them."""
    rng = np.random.default_rng(0)
    parts = np.array_split(np.arange(BATCH), count)
    return [
        (rows, {"image": rng.integers(0, 256, (len(rows), *SHAPE), np.uint8), "label": rows})
        for rows in parts
    ]


def _compute() -> int:
    """Compute in Python without waiting, so the GIL is released only on request."""
    total = 0
    for number in range(1000):
        total += number * number
    return total


def timed(calls: dict[str, Callable[[], Any]], repeats: int, busy: bool) -> dict[str, list[float]]:
    """Return seconds of each call, in turns on a thread, while this one is idle or computes."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    done = threading.Event()

    def hand_over() -> None:
        for _ in range(repeats):
            for name, call in calls.items():
                time.sleep(PAUSE)
                begun = time.perf_counter()
                made = call()
                seconds[name].append(time.perf_counter() - begun)
                del made
        done.set()

    thread = threading.Thread(target=hand_over)
    thread.start()
    while not done.is_set():
        _compute() if busy else time.sleep(PAUSE)
    thread.join()
    return seconds


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=positive, default=100)
    parser.add_argument("--json", type=row_file, help="file to which a line of JSON is appended")
    options = parser.parse_args(argv)
    described = origin()
    pool = SlotPool()
    nbytes = BATCH * int(np.prod(SHAPE))
    source, target = np.ones(nbytes, np.uint8), np.ones(nbytes, np.uint8)
    rows: list[dict[str, Any]] = []
    for busy in (False, True):
        for count in (1, 2, 4):
            parts = chunks_of(count)

            def put_together(parts: Any = parts) -> Any:
                return assemble(parts, BATCH, pool.lease(nbytes + 8 * BATCH).array)

            calls = {"memcpy": lambda: np.copyto(target, source), "hand-over": put_together}
            found = {
                name: spread(values) for name, values in timed(calls, options.repeats, busy).items()
            }
            memcpy, own = (1e3 * found[name]["median"] for name in calls)
            row = {
                "gil": "busy" if busy else "idle",
                "chunks": count,
                "memcpy_ms": memcpy,
                "hand_over_ms": own,
            }
            row["hand_over_q3_ms"] = 1e3 * found["hand-over"]["q3"]
            rows.append({**row, "within": own <= 1.3 * memcpy + count})
            print(json.dumps(rows[-1]), flush=True)
    append_row(options.json, {**described, "rows": rows})
    return 0 if all(row["within"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
