"""Throughput of rayingest beside other loaders on Parquet: packed tokens, and tables; two workers each.

    make bench-env
    .venv-peers/bin/python jobs/bench_peers.py tokens tabular --json runs/bench/peers.jsonl

The contestants take turns as in `bench_loader.py`; every figure is a ratio to the DataLoader of the same round.
"""

from __future__ import annotations

import argparse
import gc
import importlib.metadata
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import peer_tables as tables
import ray
from bench_contestants import Contestant
from bench_loader import ROOT, Turn, machine, spread, take_turn
from tqdm import tqdm

OURS, PEER = "rayingest", "DataLoader"
PEERS: dict[str, Callable[[tables.Table, int], Any]] = {
    PEER: tables.torch_loader,
    "DataLoader again": tables.torch_loader,
    "DataLoader, no workers": lambda table, workers: tables.torch_loader(table, 0),
    "StatefulDataLoader": tables.stateful_loader,
    "Hugging Face": tables.hugging_face_loader,
}
"""Those whose workers are forked, which has to be before Ray starts its threads."""
ON_RAY: dict[str, Callable[[tables.Table, int], Any]] = {OURS: tables.our_loader, "Ray Data": tables.RayDataEpochs}
CASES: dict[str, Callable[[Path], tables.Table]] = {"tokens": tables.token_rows, "tabular": tables.float_columns}
DISTRIBUTIONS = ("ray", "torch", "torchdata", "datasets", "pyarrow", "numpy")


def run(table: tables.Table, names: Sequence[str], args: argparse.Namespace) -> dict[str, list[Turn]]:
    """The turns of each contestant, round by round."""
    contestants: list[Contestant] = []
    turns: dict[str, list[Turn]] = {name: [] for name in names}
    try:
        for makers in (PEERS, ON_RAY):
            if makers is ON_RAY:
                ray.init(
                    "local", num_cpus=2 * args.workers + 2, object_store_memory=args.store, include_dashboard=False
                )
            for name in [name for name in names if name in makers]:
                contestants.append(Contestant(name, makers[name](table, args.workers)))
                contestants[-1].take()
        for number in tqdm(range(args.rounds), desc="rounds"):
            at = number % len(contestants)
            for contestant in contestants[at:] + contestants[:at]:
                turns[contestant.name].append(take_turn(contestant, table.batch, args.batches, args.drain))
    finally:
        for contestant in contestants:
            contestant.close()
        ray.shutdown()
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
    parser.add_argument("--only", nargs="*", choices=[*PEERS, *ON_RAY], default=[*PEERS, *ON_RAY])
    parser.add_argument("--rounds", type=int, default=7, help="turns of each contestant")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batches", type=int, default=256, help="timed in a turn")
    parser.add_argument("--drain", type=int, default=64, help="batches of a turn that are not timed")
    parser.add_argument("--store", type=int, default=2 << 30, help="bytes of Ray's object store")
    parser.add_argument("--folder", type=Path, default=ROOT / "runs" / "bench", help="where the data is kept")
    parser.add_argument("--json", type=Path, help="append the results to this file, one line a case")
    args = parser.parse_args(argv)
    for case in args.cases:
        described = machine()
        described["versions"] |= {name: importlib.metadata.version(name) for name in DISTRIBUTIONS}
        table = CASES[case](args.folder)
        figures = summarise(run(table, list(dict.fromkeys([PEER, *args.only])), args), table.row_bytes)
        print(report(case, figures))
        if args.json:
            args.json.parent.mkdir(parents=True, exist_ok=True)
            with args.json.open("a") as file:
                file.write(json.dumps({**described, "command": sys.argv, "case": case, "contestants": figures}) + "\n")


if __name__ == "__main__":
    main()
