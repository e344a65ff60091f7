"""Steady throughput from storage with a delay on every request, beside that from a local disk; of
other loaders too.

    python -m benchmarks.storage --delay-ms 0 20 100
    make bench-env
    .venv-peers/bin/python -m benchmarks.storage --peers --rounds 2 --json runs/bench/storage.jsonl

The same shards, work and number of workers, from local files and from a web server of its own
process that waits before each answer (`jobs/slow_files.py`). Each loader (`storage_loaders.py`) is
compared with itself: what counts is the share of its own local rate that it keeps. Turns are taken
one at a time: those of a loader at all places come after each other, in every other round the other
way around, and each begins anew, when all others are idle.

A rate is of little use on a machine with other work, which makes sleeps longer in one turn than in
another. So every sample tells how long its work took, and beside the rate stands the share of their
time that the workers were at it, which only late reads, and what reading costs them, make smaller.

What share is kept depends on how much there is to wait for, so these are of a usual size: shards of
31 MB, 512 samples of 60 kB, which are JPEGs of 500x400; 2 ms of work for each, which is what Pillow
takes to decode and crop one. The work is a sleep. With real decoding on few cores a loader is
slowed down by what its reading costs, and by what else the machine does, and both look like waits
for storage; here only late reads leave decoders idle. What reading costs a loader that does it in
its workers, between samples, shows at 0 ms, since it does less of it from local files.

Steady means: blocks arrive as fast as they are used. So the data are many times what a loader
fetches in advance (all shards are one file under many names, which costs neither disk nor memory),
and the first `--skip` batches, more than those in advance, are not timed. A loader that reads one
shard after another waits once a shard or more: what is timed is whole shards of every worker. A
turn that is at neither end of this after `--most` seconds ends there. Ray Data hands over a shard
at a time, so that a stretch of it says little: its turns are whole passes over `PASS` shards, from
asking for an iterator to the last batch (`WHOLE`).

Of rayingest there is more to see: what was read, the reads under way on average, and how long the
loop waited for any.
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
    """Batches that were taken, the seconds in which, and the seconds that workers were at them."""

    batches: int
    seconds: float
    worked: float


@dataclass(frozen=True)
class Turn:
    """Samples a second, the share of their time that workers worked, and what the loader tells, for
    a second.
    """

    rate: float
    busy: float
    told: dict[str, float]


Turns = dict[str, dict[str, list[Turn]]]
"""Of each contestant at each place, round by round."""


def take(
    batches: Iterator[Any],
    count: int,
    at_once: int,
    most: float,
    clock: Callable[[], float] = time.perf_counter,
) -> Stretch:
    """Take so many batches, `at_once` of them after each other, or fewer when so many seconds have
    gone by.
    """
    begun, taken, seconds, work = clock(), 0, 0.0, 0.0
    while taken < count and seconds < most:
        work += sum(worked(next(batches)) for _ in range(at_once))
        taken, seconds = taken + at_once, clock() - begun
    return Stretch(taken, seconds, work)


def take_turn(make: Callable[[], Any], args: argparse.Namespace) -> Turn:
    """What a new loader does once it is steady."""
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
    told = {key: (after[key] - before[key]) / timed.seconds for key in TOLD if key in after}
    return Turn(
        timed.batches * args.batch / timed.seconds,
        timed.worked / timed.seconds / args.workers,
        told,
    )


def take_pass(make: Callable[[], Any], args: argparse.Namespace) -> Turn:
    """What a new loader does in a whole pass, its start and its end included."""
    wait_until_idle()
    loader = make()
    begun = time.perf_counter()
    work = [worked(batch) for batch in loader]
    seconds = time.perf_counter() - begun
    return Turn(len(work) * args.batch / seconds, sum(work) / seconds / args.workers, {})


def run(places: Mapping[str, Far], indexes: Path, args: argparse.Namespace) -> Turns:
    """All turns; prints each."""
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
            more = turn.told and (
                f", {turn.told['bytes_read'] / 1e6:.0f} MB/s, {turn.told['read_seconds']:.1f} reads under way, "
                f"waits for reads {turn.told['stall_read_seconds']:.1%}"
            )
            tqdm.write(
                f"round {number}, {name}, {place}: {turn.rate:.0f}/s, workers busy {turn.busy:.1%}{more or ''}"
            )
    return turns


def in_turn(rounds: int, names: Sequence[str], places: Sequence[str]) -> list[tuple[int, str, str]]:
    """Round, contestant and place of every turn: all places of one after each other, there and back
    again.
    """
    ways = (places, places[::-1])
    return [
        (number, name, place)
        for number in range(rounds)
        for name in names
        for place in ways[number % 2]
    ]


def summarise(turns: Turns) -> dict[str, dict[str, Any]]:
    """For each contestant and place the rate, the share that it is of its local rate of the same
    round, how busy its workers were, and the share that that is of how busy they were locally.
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
    """The figures for people."""
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
    """Measure and print rows."""
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
    parser.add_argument(
        "--json", type=row_file, help="append the results to this file, one line a run"
    )
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
    sizes = f"{args.shards} shards of {args.samples * args.bytes / 1e6:.0f} MB, {args.samples} samples each"
    print(
        f"{sizes}; {args.work_ms:g} ms of work a sample, {args.workers} workers, load {described['load_before']:.1f}"
    )
    print(report(figures))
    append_row(args.json, {**described, "data": sizes, "contestants": figures})
    ray.shutdown()


if __name__ == "__main__":
    main()
