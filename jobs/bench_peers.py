"""Throughput of rayingest beside other loaders: images in tars, packed tokens and tables in Parquet; two workers each.

    make bench-env
    .venv-peers/bin/python jobs/bench_peers.py images tokens tabular --json runs/bench/peers.jsonl

The contestants take turns as in `bench_loader.py`; every figure is a ratio to the DataLoader of the same round.
"""

from __future__ import annotations

import argparse
import gc
import importlib.metadata
import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import peer_images as images
import peer_tables as tables
import ray
from bench_contestants import Contestant
from bench_loader import ROOT, Turn, machine, spread, take_turn
from tqdm import tqdm

PEER = "DataLoader"
DISTRIBUTIONS = ("ray", "torch", "torchdata", "datasets", "webdataset", "grain", "spdl", "pyarrow", "numpy", "pillow")
Makers = Mapping[str, Callable[[Any, int], Any]]


@dataclass(frozen=True)
class Case:
    """What is read, and who reads it. `forked`: those whose workers are forked, which has to be before Ray starts its
    threads. `batches` are timed in a turn, `drain` more come first; both may be given.
    """

    make: Callable[[Path], Any]
    batch: int
    row_bytes: int
    forked: Makers
    on_ray: Makers
    batches: int = 256
    drain: int = 64


TABLES = {"forked": tables.FORKED, "on_ray": tables.ON_RAY}
CASES = {
    "images": Case(images.corpus, images.BATCH, math.prod(images.SHAPE), images.FORKED, images.ON_RAY, 16, 24),
    "tokens": Case(tables.token_rows, 16, 4 * tables.TOKENS, **TABLES),
    "tabular": Case(tables.float_columns, 1024, 4 * tables.COLUMNS + 8, **TABLES),
}
NAMES = list(dict.fromkeys(name for case in CASES.values() for makers in (case.forked, case.on_ray) for name in makers))


def run(case: Case, names: Sequence[str], args: argparse.Namespace) -> dict[str, list[Turn]]:
    """The turns of each contestant, round by round."""
    data = case.make(args.folder)
    batches, drain = args.batches or case.batches, args.drain or case.drain
    contestants: list[Contestant] = []
    turns: dict[str, list[Turn]] = {name: [] for name in names}
    try:
        for makers in (case.forked, case.on_ray):
            if makers is case.on_ray:
                ray.init(
                    "local", num_cpus=2 * args.workers + 2, object_store_memory=args.store, include_dashboard=False
                )
            for name in [name for name in names if name in makers]:
                contestants.append(Contestant(name, makers[name](data, args.workers)))
                contestants[-1].take()
        for number in tqdm(range(args.rounds), desc="rounds"):
            at = number % len(contestants)
            for contestant in contestants[at:] + contestants[:at]:
                turns[contestant.name].append(take_turn(contestant, case.batch, batches, drain))
    finally:
        for contestant in contestants:
            contestant.close()
        gc.collect()
    return turns


def summarise(turns: dict[str, list[Turn]], row_bytes: int) -> dict[str, Any]:
    """For each contestant its rate and CPU to the DataLoader's of the same round, MB a second, CPU us a sample."""
    base = turns[PEER]
    return {
        name: {
            "ratio": spread([turn.rate / one.rate for turn, one in zip(some, base, strict=True)]),
            "cpu_ratio": spread([one.cpu_ms / max(turn.cpu_ms, 1e-6) for turn, one in zip(some, base, strict=True)]),
            "mb_per_second": spread([turn.rate * row_bytes / 1e6 for turn in some]),
            "cpu_us": spread([1e3 * turn.cpu_ms for turn in some]),
        }
        for name, some in turns.items()
    }


def report(case: str, figures: dict[str, Any]) -> str:
    """The figures for people."""
    lines = [f"{case:24} rate to DataLoader      CPU, DataLoader to it   MB/s  CPU us a sample"]
    for name, of in figures.items():
        ratios = [f"{r['median']:.2f} ({r['q1']:.2f} to {r['q3']:.2f})" for r in (of["ratio"], of["cpu_ratio"])]
        rest = f"{of['mb_per_second']['median']:6.0f} {of['cpu_us']['median']:8.1f}"
        lines.append(f"{name:24} {ratios[0]:23} {ratios[1]:20} {rest}")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", choices=[*CASES], default=[*CASES])
    parser.add_argument("--only", nargs="*", choices=NAMES, default=NAMES)
    parser.add_argument("--rounds", type=int, default=7, help="turns of each contestant")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batches", type=int, help="timed in a turn")
    parser.add_argument("--drain", type=int, help="batches of a turn that are not timed")
    parser.add_argument("--store", type=int, default=2 << 30, help="bytes of Ray's object store")
    parser.add_argument("--folder", type=Path, default=ROOT / "runs" / "bench", help="where the data is kept")
    parser.add_argument("--json", type=Path, help="append the results to this file, one line a case")
    args = parser.parse_args(argv)
    for name in args.cases:
        case, described = CASES[name], machine()
        described["versions"] |= {of: importlib.metadata.version(of) for of in DISTRIBUTIONS}
        names = [PEER, *(one for one in args.only if one != PEER and one in {*case.forked, *case.on_ray})]
        figures = summarise(run(case, names, args), case.row_bytes)
        print(report(name, figures))
        if args.json:
            args.json.parent.mkdir(parents=True, exist_ok=True)
            with args.json.open("a") as file:
                file.write(json.dumps({**described, "command": sys.argv, "case": name, "contestants": figures}) + "\n")
        ray.shutdown()  # last: what Ray Data leaves running may end the process when Ray is gone


if __name__ == "__main__":
    main()
