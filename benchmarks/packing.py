"""Measure how full packed rows and token budgets are, and tokens per second to packed rows.

    python -m benchmarks.packing plan [--samples 1000000] [--window 8192]
    python -m benchmarks.packing speed [--megabytes 60] [--workers 2] [--rounds 7] [--batches 60]

`plan` reads nothing: it draws lengths (log-normal, median 150, sigma 1, at most the row or budget)
and plans with them, beside plain batches. `speed` writes documents of these lengths as JSON Lines;
rayingest and a DataLoader over an IterableDataset take turns at making int32[16, 2048] with
position ids, segment ids and cu_seqlens. A turn takes the batches that are ready, then times
`--batches`. The figures are the ratio within a round, and the CPU seconds of all processes.

`plan` with a million samples (CPU time):

                                        filled  epoch planned in  ms a step
                        batches of 256   18.1%                         0.23
               bucketed batches of 256   70.2%                         0.26
        batches of 8,192 padded tokens   99.1%            0.14 s       0.39
       batches of 32,768 padded tokens   96.0%            0.11 s       0.98
                    rows of 2,048, cut   99.9%            0.05 s       0.39
               rows of 2,048, best fit   99.9%            0.49 s       0.53
                    rows of 8,192, cut   99.8%            0.05 s       0.68
               rows of 8,192, best fit   99.8%            0.43 s       0.95
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

import rayingest as ri
from benchmarks.padding import uniform
from benchmarks.rows import positive
from benchmarks.turns import cpu_seconds
from rayingest.plan.order import packed
from rayingest.plan.order import window as window_order
from rayingest.plan.order.bins import Packer
from rayingest.plan.order.packing import Packing
from rayingest.plan.order.parameters import Order
from rayingest.plan.order.planner import RankSlice
from rayingest.plan.order.subset import Subset
from rayingest.plan.order.token_budget import Budget

ROWS, LENGTH, RANKS = 16, 2048, 8
DRAINED = 40
FILES = 8


def draw(count: int, longest: int) -> np.ndarray:
    """Lengths with a long tail."""
    return (
        np.random.default_rng(0).lognormal(np.log(150), 1, count).clip(1, longest).astype(np.uint16)
    )


def plan(samples: int, window: int) -> None:
    """Print which part of what a GPU gets is tokens, and what planning costs."""
    data = uniform(samples // 256)
    subset, lengths = Subset.whole(data), draw(data.num_samples, 8192)
    print(f"{'':>34} {'filled':>7} {'epoch planned in':>17} {'ms a step':>10}")
    for name, by in (("batches of 256", None), ("bucketed batches of 256", lengths)):
        order = Order.resolve(data, batch=256, seed=1, window=window, lanes=1)
        planner = window_order.plan(subset, order, lengths=by)
        taken = padded = 0
        begun = time.process_time()
        steps = [
            planner.step_samples(0, step).ordinal
            for step in range(min(400, planner.steps_per_epoch))
        ]
        took = time.process_time() - begun
        for ordinal in steps:
            of_ranks = lengths[ordinal].reshape(RANKS, -1).astype(np.int64)
            taken, padded = (
                taken + int(of_ranks.sum()),
                padded + int(of_ranks.max(1).sum()) * of_ranks.shape[1],
            )
        print(f"{name:>34} {taken / padded:>7.1%} {'':>17} {1000 * took / len(steps):>10.2f}")
    packers: list[tuple[str, Packer, int]] = [
        (f"batches of {budget:,} padded tokens", Budget(budget, RANKS), RANKS)
        for budget in (8192, 32_768)
    ]
    for length in (2048, 8192):
        packers += [(f"rows of {length:,}, cut", Packing(length, cut=True), ROWS)]
        packers += [(f"rows of {length:,}, best fit", Packing(length, cut=False), ROWS)]
    for name, packer, batch in packers:
        of = np.minimum(lengths, packer.limit)
        order = packed.resolve(
            subset, of, packer, batch=batch, partial="drop", seed=1, window=window
        )
        begun = time.process_time()
        planner = packed.plan(subset, order, packer, of, RankSlice(0, RANKS))
        counted = time.process_time() - begun
        begun = time.process_time()
        found = [planner.step_samples(0, step) for step in range(min(400, planner.steps_in(0)))]
        took = time.process_time() - begun
        bins = planner.batcher.steps(0).rows
        filled = of.sum(dtype=np.int64) / (bins * packer.limit)
        if isinstance(packer, Budget):
            own = [of[one.ordinal].astype(np.int64) for one in found]
            filled = sum(map(np.sum, own)) / sum(len(some) * some.max() for some in own)
        print(f"{name:>34} {filled:>7.1%} {counted:>15.2f} s {1000 * took / len(found):>10.2f}")


def write_documents(folder: Path, megabytes: int) -> int:
    """JSON Lines of {"tokens": [...]} in a few files; returns the number of tokens."""
    rng, total = np.random.default_rng(1), 0
    for number in range(FILES):
        lines, size = [], 0
        while size < megabytes * 1_000_000 // FILES:
            length = int(np.clip(rng.lognormal(np.log(150), 1), 1, 8192))
            lines.append(json.dumps({"tokens": rng.integers(0, 50_000, length).tolist()}))
            size, total = size + len(lines[-1]), total + length
        (folder / f"{number}.jsonl").write_text("\n".join(lines) + "\n")
    return total


class Packed(IterableDataset):  # type: ignore[type-arg]
    """The same rows the usual way: documents behind one another, cut, for ever; each worker has its
    files.
    """

    def __init__(self, files: list[Path]) -> None:
        self.files = files

    def documents(self) -> Iterator[np.ndarray]:
        """Each worker's, file after file."""
        info = get_worker_info()
        files = self.files if info is None else self.files[info.id :: info.num_workers]
        while True:
            for file in files:
                with file.open() as lines:
                    for line in lines:
                        yield np.array(json.loads(line)["tokens"], np.int32)

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        size, parts, held = ROWS * LENGTH, [], 0
        for document in self.documents():
            parts.append(document)
            held += len(document)
            while held >= size:
                tokens = np.concatenate(parts)
                begins = np.cumsum([0, *map(len, parts)])
                begins = np.unique(
                    np.concatenate([begins[begins < size], np.arange(0, size + 1, LENGTH)])
                )
                lengths = np.diff(begins)
                first = np.searchsorted(begins, begins[:-1] // LENGTH * LENGTH)
                yield {
                    "tokens": torch.from_numpy(tokens[:size].reshape(ROWS, LENGTH)),
                    "position_ids": _rows(np.arange(size) - np.repeat(begins[:-1], lengths)),
                    "segment_ids": _rows(np.repeat(np.arange(len(lengths)) - first + 1, lengths)),
                    "cu_seqlens": torch.from_numpy(begins.astype(np.int32)),
                }
                parts, held = [tokens[size:]], held - size


def _rows(values: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(values.astype(np.int32).reshape(ROWS, LENGTH))


def speed(megabytes: int, workers: int, rounds: int, batches: int) -> None:
    """Print tokens a second, and CPU seconds for a million tokens, of both, and the ratio."""
    with tempfile.TemporaryDirectory() as folder:
        total = write_documents(Path(folder), megabytes)
        documents = ri.read_json(folder, types={"tokens": "list<int32>"})
        data = documents.pack(LENGTH, field="tokens").shuffle(seed=1).batch(ROWS)
        begun = time.perf_counter()
        loader = data.loader(workers=workers, rank=0, world_size=1)
        print(
            f"{total:,} tokens; index and lengths, built or cached: "
            f"{time.perf_counter() - begun:.1f} s"
        )
        peer: Any = DataLoader(
            Packed(sorted(Path(folder).glob("*.jsonl"))),
            batch_size=None,
            num_workers=workers,
            prefetch_factor=4 if workers else None,
        )
        with loader:
            contestants = {"rayingest": endless(loader), "DataLoader": iter(peer)}
            shown: dict[str, list[tuple[float, float]]] = {name: [] for name in contestants}
            for _ in range(rounds):
                for name, stream in contestants.items():
                    shown[name].append(turn(stream, batches))
        for name, turns in shown.items():
            rate, cpu = (statistics.median(column) for column in zip(*turns, strict=True))
            print(f"{name:>12} {rate / 1e6:8.2f} M tokens/s {cpu:8.3f} CPU s per M tokens")
        for place, what in ((0, "as fast"), (1, "as much CPU")):
            ratios = [
                a[place] / b[place]
                for a, b in zip(shown["rayingest"], shown["DataLoader"], strict=True)
            ]
            print(
                f"rayingest to DataLoader: {statistics.median(ratios):.2f} times {what} "
                "(median of rounds)"
            )


def endless(loader: ri.Loader) -> Iterator[Any]:
    """Batches, epoch after epoch."""
    while True:
        yield from loader


def turn(stream: Iterator[Any], batches: int) -> tuple[float, float]:
    """Tokens a second, and CPU seconds of all processes per million tokens, of so many batches."""
    for _ in range(DRAINED):
        batch = next(stream)
    assert batch["tokens"].shape == (ROWS, LENGTH)
    assert batch["tokens"].dtype == torch.int32
    before, begun = cpu_seconds()[0], time.perf_counter()
    for _ in range(batches):
        next(stream)
    tokens = batches * ROWS * LENGTH
    return tokens / (time.perf_counter() - begun), (cpu_seconds()[0] - before) / (tokens / 1e6)


def main(argv: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    of_plan, of_speed = commands.add_parser("plan"), commands.add_parser("speed")
    of_plan.add_argument("--samples", type=positive, default=1_000_000)
    of_plan.add_argument("--window", type=positive, default=8192)
    of_speed.add_argument("--megabytes", type=positive, default=60)
    of_speed.add_argument("--workers", type=positive, default=2)
    of_speed.add_argument("--rounds", type=positive, default=7)
    of_speed.add_argument("--batches", type=positive, default=60)
    options = vars(parser.parse_args(argv))
    {"plan": plan, "speed": speed}[options.pop("command")](**options)


if __name__ == "__main__":
    main()
