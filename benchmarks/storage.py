"""Measure steady throughput with a delay on every request, as a share of the local rate.

    python -m benchmarks.storage --delay-ms 0 20 100
    make bench-env
    .venv-peers/bin/python -m benchmarks.storage --peers --rounds 2 --json runs/bench/storage.jsonl

Each loader (`storage_loaders.py`) reads the same shards from local files and from a web server that
waits before each answer (`jobs/slow_files.py`), with the same work and workers. It is compared with
itself. Turns are taken one at a time, while all others are idle: a loader visits all places in
order, in every other round backwards, and starts anew each time.

On a machine with other work, sleeps are longer in one turn than in another, so rates mislead.
Therefore each sample returns how long its work took, and the table also has the share of time that
workers worked: only late reads, and the cost of reading, reduce it.

The sizes are usual ones: shards of 31 MB with 512 samples of 60 kB, JPEGs of 500x400; 2 ms of work
each, as Pillow takes to decode and crop one. The work is a sleep: with real decoding on few cores,
the cost of reading and the machine's other work would look like waits for storage. The cost of
reading in a loader that reads in its workers shows at 0 ms, since local files cost less.

Steady means that blocks arrive as fast as they are used. So the data is many times what a loader
fetches ahead (all shards are one file under many names), and the first `--skip` batches are not
timed. A loader that reads shard after shard waits once a shard: whole shards of every worker are
timed. A turn ends after `--most` seconds in any case. Ray Data hands over a shard at a time: its
turns are whole passes over `PASS` shards, from the iterator to the last batch (`WHOLE`).

For rayingest the table also has the bytes read, the mean number of reads in progress, and how long
the loop waited for one.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import ray
from tqdm import tqdm

import rayingest as ri
from benchmarks.rows import ROOT, append_row, origin, positive, row_file
from benchmarks.storage_loaders import PEERS, PRELOAD, Far, Work, our_loader, worked
from benchmarks.turns import spread, wait_until_idle
from jobs.slow_files import served, write_shards

OURS, LOCAL = "rayingest", "local"
DISTRIBUTIONS = ("webdataset", "datasets", "fsspec", "aiohttp")
"""What reads, beside what `origin` tells."""
BUSIEST = 1.1
"""Workers that were at what is timed for a larger share of that time were so before it."""
WHOLE = {"Ray Data"}
"""Those whose turns are whole passes."""
TOLD = ("bytes_read", "read_seconds", "stall_read_seconds")
"""What rayingest says of itself."""


@dataclass(frozen=True)
class Stretch:
    """Batches taken, the seconds they took, and the seconds that workers worked on them."""

    batches: int
    seconds: float
    worked: float


@dataclass(frozen=True)
class Turn:
    """Samples per second, the share of time that workers worked, and the stats per second."""

    rate: float
    busy: float
    stats: dict[str, float]


Turns = dict[str, dict[str, list[Turn]]]
"""Of each contestant at each place, round by round."""


def take(
    batches: Iterator[Any],
    count: int,
    at_once: int,
    most: float,
    clock: Callable[[], float] = time.perf_counter,
) -> Stretch:
    """Take batches, `at_once` after each other, and stop early after `most` seconds."""
    begun, taken, seconds, work = clock(), 0, 0.0, 0.0
    while taken < count and seconds < most:
        work += sum(worked(next(batches)) for _ in range(at_once))
        taken, seconds = taken + at_once, clock() - begun
    return Stretch(taken, seconds, work)


def take_turn(make: Callable[[], Any], args: argparse.Namespace) -> Turn:
    """Measure a new loader in its steady state."""
    wait_until_idle()
    loader = make()
    stats = getattr(loader, "stats", dict)
    batches = (batch for _ in itertools.count() for batch in loader)
    try:
        take(batches, args.skip, args.workers, args.most)
        before = stats()
        timed = take(batches, args.batches, args.workers, args.most)
        after = stats()
    finally:
        batches.close()
        if isinstance(loader, ri.Loader):
            loader.close()
    per_second = {key: (after[key] - before[key]) / timed.seconds for key in TOLD if key in after}
    return Turn(
        timed.batches * args.batch / timed.seconds,
        timed.worked / timed.seconds / args.workers,
        per_second,
    )


def take_pass(make: Callable[[], Any], args: argparse.Namespace) -> Turn:
    """Measure a new loader over a whole pass, with its start and end."""
    wait_until_idle()
    loader = make()
    begun = time.perf_counter()
    work = [worked(batch) for batch in loader]
    seconds = time.perf_counter() - begun
    return Turn(len(work) * args.batch / seconds, sum(work) / seconds / args.workers, {})


def run(places: Mapping[str, Far], indexes: Path, args: argparse.Namespace) -> Turns:
    """Run and print all turns."""
    names = [OURS, *(() if args.peers is None else args.peers or PEERS)]
    turns: Turns = {name: {place: [] for place in places} for name in names}
    with ri.Pool(workers=args.workers) as pool:

        def make(name: str, place: str) -> Any:
            if name == OURS:
                return our_loader(places[place], pool, indexes / f"{place}.arrow", args.window)
            return PEERS[name](places[place])

        def turn_of(name: str, place: str) -> Turn:
            return (take_pass if name in WHOLE else take_turn)(partial(make, name, place), args)

        for name in names:
            if name == OURS or name in WHOLE:
                turn_of(name, LOCAL)  # not counted: Ray's processes are new
        for number, name, place in tqdm(in_turn(args.rounds, names, [*places]), desc="turns"):
            turn = turn_of(name, place)
            turns[name][place].append(turn)
            more = turn.stats and (
                f", {turn.stats['bytes_read'] / 1e6:.0f} MB/s, "
                f"{turn.stats['read_seconds']:.1f} reads in progress, "
                f"waits for reads {turn.stats['stall_read_seconds']:.1%}"
            )
            tqdm.write(
                f"round {number}, {name}, {place}: {turn.rate:.0f}/s, "
                f"workers busy {turn.busy:.1%}{more or ''}"
            )
    return turns


def in_turn(rounds: int, names: Sequence[str], places: Sequence[str]) -> list[tuple[int, str, str]]:
    """Yield round, contestant and place of every turn: all places of one, there and back again."""
    ways = (places, places[::-1])
    return [
        (number, name, place)
        for number in range(rounds)
        for name in names
        for place in ways[number % 2]
    ]


def summarise(turns: Turns) -> dict[str, dict[str, Any]]:
    """Return for each contestant and place the rate, its share of the local rate of the same round,
    how busy the workers were, and the share of that locally.
    """
    return {
        name: {
            place: {
                "samples_per_second": spread([turn.rate for turn in some]),
                "kept": spread(
                    [turn.rate / near.rate for turn, near in zip(some, of[LOCAL], strict=True)]
                ),
                "busy": spread([turn.busy for turn in some]),
                "kept_busy": spread(
                    [turn.busy / near.busy for turn, near in zip(some, of[LOCAL], strict=True)]
                ),
            }
            for place, some in of.items()
        }
        for name, of in turns.items()
    }


def report(figures: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the figures as text."""
    lines = [f"{'':30} samples/s  of the local rate       workers busy  of the local share"]
    for name, of in figures.items():
        for place, figure in of.items():
            kept, as_busy = (
                f"{part['median']:.3f} ({part['min']:.3f} to {part['max']:.3f})"
                for part in (figure["kept"], figure["kept_busy"])
            )
            rate, busy = figure["samples_per_second"]["median"], figure["busy"]["median"]
            short = "  TOO SHORT: was made in advance" * (busy > BUSIEST)
            lines.append(
                f"{name:20} {place:9} {rate:9.0f}  {kept:23} {busy:12.1%}  {as_busy}{short}"
            )
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--delay-ms", type=int, nargs="+", default=[0, 20, 100])
    parser.add_argument(
        "--peers", nargs="*", choices=[*PEERS], help="other loaders too, by name or all of them"
    )
    parser.add_argument("--work-ms", type=float, default=2.0, help="of a sample")
    parser.add_argument("--workers", type=positive, default=2)
    parser.add_argument("--shards", type=positive, default=40)
    parser.add_argument("--samples", type=positive, default=512, help="of a shard")
    parser.add_argument("--bytes", type=positive, default=60_000, help="of a sample")
    parser.add_argument("--batch", type=positive, default=32)
    parser.add_argument(
        "--window", type=positive, default=1024, help="samples that rayingest mixes"
    )
    parser.add_argument("--skip", type=int, default=96, help="batches of a turn that are not timed")
    parser.add_argument("--batches", type=positive, default=96, help="timed in a turn")
    parser.add_argument("--most", type=float, default=6.0, help="seconds of either part of a turn")
    parser.add_argument("--rounds", type=positive, default=3)
    parser.add_argument("--json", type=row_file, help="file to which a line of JSON is appended")
    args = parser.parse_args(argv)
    described = origin(*(DISTRIBUTIONS if args.peers is not None else ()))
    if args.peers is not None:
        multiprocessing.set_forkserver_preload(PRELOAD)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, "shards")
        folder.mkdir()
        shards = write_shards(folder, args.shards, args.samples, args.bytes)
        with served(folder) as address:
            at = {LOCAL: str(folder), **{f"{ms} ms": f"{address}/{ms}" for ms in args.delay_ms}}
            work, example = Work(args.work_ms / 1e3), folder / shards[0]
            places = {
                place: Far(
                    tuple(f"{where}/{shard}" for shard in shards),
                    example,
                    work,
                    args.batch,
                    args.workers,
                )
                for place, where in at.items()
            }
            env = {"env_vars": {"PYTHONPATH": str(ROOT)}}
            cpus = 2 * args.workers + 1  # our decoders wait while Ray Data's turn is
            ray.init(
                "local",
                num_cpus=cpus,
                include_dashboard=False,
                log_to_driver=False,
                runtime_env=env,
            )
            figures = summarise(run(places, Path(name), args))
    sizes = (
        f"{args.shards} shards of {args.samples * args.bytes / 1e6:.0f} MB, "
        f"{args.samples} samples each"
    )
    print(
        f"{sizes}; {args.work_ms:g} ms of work a sample, {args.workers} workers, "
        f"load {described['load_before']:.1f}"
    )
    print(report(figures))
    append_row(args.json, {**described, "data": sizes, "contestants": figures})
    ray.shutdown()


if __name__ == "__main__":
    main()
