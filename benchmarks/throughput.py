"""Compare the throughput of rayingest with other loaders: images in tars, tokens and tables in
Parquet.

    make bench-env
    .venv-peers/bin/python -m benchmarks.throughput images tokens tabular --json rows.jsonl

Each loader has two workers. In a round each contestant takes a turn while the others are idle;
every figure is a ratio to the DataLoader of the same round. A turn starts when all are idle. Most
loaders are then in the middle of an epoch with a few batches ready: the turn takes some batches
untimed, more than were made in advance, and times the next (`turns.py`). This would be meaningless
for a loader that prepares all it can while idle (`WHOLE`): its turn is a whole epoch, from the
iterator to the last batch. The start of an epoch is part of that, so its epochs have every shard
several times.
"""

from __future__ import annotations

import argparse
import gc
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ray
from tqdm import tqdm

from benchmarks import image_loaders as images
from benchmarks import table_loaders as tables
from benchmarks.child import LITDATA, MOSAIC, Child, versions
from benchmarks.contestants import Contestant
from benchmarks.rows import ROOT, append_row, origin, positive, row_file
from benchmarks.turns import Turn, cpu_seconds, spread, take_turn, wait_until_idle

PEER = "DataLoader"
WHOLE = {"Ray Data", "Grain, defaults"}
"""Those whose turns are whole epochs."""
DISTRIBUTIONS = ("torchdata", "datasets", "webdataset", "grain", "spdl", "pyarrow")
ELSEWHERE = ("mosaicml-streaming", "litdata")
"""Distributions of the other environment (`child.py`)."""
Makers = Mapping[str, Callable[[Any, int], Any]]


@dataclass(frozen=True)
class Case:
    """What is read, and by whom.

    `forked`: loaders whose workers fork, so they start before Ray's threads. A turn times `batches`
    after `drain` batches; both may be overridden (`too_short`).
    """

    make: Callable[[Path], Any]
    batch: int
    row_bytes: int
    forked: Makers
    on_ray: Makers
    batches: int = 256
    drain: int = 64

    @property
    def names(self) -> list[str]:
        """Return the names of the loaders."""
        return [*self.forked, *self.on_ray]


SLOW = "Hugging Face, defaults"
"""Takes most of a millisecond for a row of a table, so a turn of hundreds of batches of them would
take minutes.
"""
CASES = {
    "images": Case(
        images.corpus, images.BATCH, math.prod(images.SHAPE), images.FORKED, images.ON_RAY, 64, 48
    ),
    "tokens": Case(
        tables.token_rows,
        16,
        4 * tables.TOKENS,
        tables.FORKED | tables.FORKED_OF_TOKENS,
        tables.ON_RAY,
    ),
    "tabular": Case(
        tables.float_columns,
        1024,
        4 * tables.COLUMNS + 8,
        {name: maker for name, maker in tables.FORKED.items() if name != SLOW},
        tables.ON_RAY,
    ),
}
NAMES = list(dict.fromkeys(name for case in CASES.values() for name in case.names))


def run(case: Case, names: Sequence[str], args: argparse.Namespace) -> dict[str, list[Turn]]:
    """Run the turns of each contestant, round by round."""
    data = case.make(args.folder)
    contestants: list[Contestant | Child] = []
    turns: dict[str, list[Turn]] = {name: [] for name in names}
    try:
        for makers in (case.forked, case.on_ray):
            if makers is case.on_ray:
                ray.init(
                    "local",
                    num_cpus=2 * args.workers + 2,
                    object_store_memory=args.store,
                    include_dashboard=False,
                )
            for name in [name for name in names if name in makers]:
                made = makers[name](data, args.workers)
                contestants.append(made if isinstance(made, Child) else Contestant(name, made))
                if name not in WHOLE:
                    contestants[-1].take()
        for number in tqdm(range(args.rounds), desc="rounds"):
            at = number % len(contestants)
            for contestant in contestants[at:] + contestants[:at]:
                if contestant.name in WHOLE:
                    turn = take_epoch(contestant, case.batch)
                else:
                    turn = take_turn(contestant, case.batch, case.batches, case.drain)
                turns[contestant.name].append(turn)
    finally:
        for contestant in contestants:
            contestant.close()
        gc.collect()
    return turns


def take_epoch(contestant: Contestant, batch: int) -> Turn:
    """Run a turn of a whole epoch."""
    wait_until_idle()
    cpu, mine = cpu_seconds()
    begun = time.perf_counter()
    batches, first = contestant.epoch()
    seconds = time.perf_counter() - begun
    cpu_after, mine_after = cpu_seconds()
    samples = batches * batch
    return Turn(
        samples / seconds,
        1e3 * (cpu_after - cpu) / samples,
        1e3 * (mine_after - mine) / samples,
        first,
    )


def summarise(turns: dict[str, list[Turn]], row_bytes: int) -> dict[str, Any]:
    """Return the figures of each contestant: rate and CPU relative to the DataLoader's of the same
    round, MB per second, CPU us per sample, seconds to a turn's first batch, and the kind of its
    turns.
    """
    base = turns[PEER]
    return {
        name: {
            "ratio": spread([turn.rate / one.rate for turn, one in zip(some, base, strict=True)]),
            "cpu_ratio": spread(
                [one.cpu_ms / max(turn.cpu_ms, 1e-6) for turn, one in zip(some, base, strict=True)]
            ),
            "mb_per_second": spread([turn.rate * row_bytes / 1e6 for turn in some]),
            "cpu_us": spread([1e3 * turn.cpu_ms for turn in some]),
            "first_batch": spread([turn.hand_over for turn in some]),
            "turns": "whole epochs" if name in WHOLE else "stretches",
        }
        for name, some in turns.items()
    }


def too_short(case: Case, usual: Case) -> str:
    """Return a warning if turns are shorter than usual, else ""."""
    if case.batches >= usual.batches and case.drain >= usual.drain:
        return ""
    return (
        f"TOO SHORT: {case.batches} batches timed after {case.drain}, usually {usual.batches} "
        f"after {usual.drain}: "
        "what is timed may have been made in advance, and is no throughput then"
    )


def report(case: str, figures: dict[str, Any], warning: str = "") -> str:
    """Return the figures as text, between two lines of a warning if there is one."""
    lines = [f"{case:24} rate to DataLoader      CPU, DataLoader to it   MB/s  CPU us a sample"]
    for name, of in figures.items():
        ratios = [
            f"{r['median']:.2f} ({r['q1']:.2f} to {r['q3']:.2f})"
            for r in (of["ratio"], of["cpu_ratio"])
        ]
        rest = f"{of['mb_per_second']['median']:6.0f} {of['cpu_us']['median']:8.1f}"
        begun = f"   whole epochs, first batch after {of['first_batch']['median']:.1f} s" * (
            name in WHOLE
        )
        lines.append(f"{name:24} {ratios[0]:23} {ratios[1]:20} {rest}{begun}")
    return "\n".join([warning, *lines, warning] if warning else lines)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", choices=[*CASES], default=[*CASES])
    parser.add_argument(
        "--only", nargs="+", choices=NAMES, help="these, and the DataLoader; all by default"
    )
    parser.add_argument("--rounds", type=positive, default=5, help="turns of each contestant")
    parser.add_argument("--workers", type=positive, default=2)
    parser.add_argument("--batches", type=positive, help="timed in a turn")
    parser.add_argument("--drain", type=positive, help="batches of a turn that are not timed")
    parser.add_argument(
        "--store", type=positive, default=6 << 30, help="bytes of Ray's store, for several loaders"
    )
    parser.add_argument(
        "--folder", type=Path, default=ROOT / "runs" / "bench", help="folder of the data"
    )
    parser.add_argument(
        "--json", type=row_file, help="append the results to this file, one line a case"
    )
    args = parser.parse_args(argv)
    for name in args.cases:
        if missing := [one for one in args.only or () if one not in CASES[name].names]:
            parser.error(
                f"{name} has no loader {' / '.join(missing)}, only {' / '.join(CASES[name].names)}"
            )
    for name in args.cases:
        usual, described = CASES[name], origin(*DISTRIBUTIONS)
        case = replace(
            usual, batches=args.batches or usual.batches, drain=args.drain or usual.drain
        )
        names = list(dict.fromkeys([PEER, *(args.only or case.names)]))
        if {LITDATA, MOSAIC} & {*names}:
            described["versions"] |= versions(ELSEWHERE)
        figures, warning = summarise(run(case, names, args), case.row_bytes), too_short(case, usual)
        print(report(name, figures, warning))
        append_row(
            args.json, {**described, "case": name, "short": bool(warning), "contestants": figures}
        )
        ray.shutdown()  # last: what Ray Data leaves running may end the process when Ray is gone


if __name__ == "__main__":
    main()
