"""Run the real planner and dispatch of one rank among thousands, in simulated time.

    python -m benchmarks.simulate --json runs/simulation.jsonl

Workers, storage and loop are simulated. Ranks do not communicate, so the rank in the middle
represents all; blocks that other ranks read too are counted. A read takes a latency and its bytes
over a bandwidth, a decode a fixed time per row. A share of both takes ten times as long
(stragglers), with hedging or without. The loop takes a batch every step if there is one. For each
world size: CPU time of planner and dispatch per step, reads of each block by all ranks, the peak of
the ledger, and the share of time that the loop waited after its first steps.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import math
import random
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from tqdm import tqdm

from benchmarks.plan_scale import made_up
from benchmarks.rows import append_row, positive, row_file
from rayingest.execute.cluster.reader import THREADS
from rayingest.execute.sliced_stream import SlicedStream
from rayingest.plan.dispatch import events as ev
from rayingest.plan.dispatch.dispatch import Dispatch
from rayingest.plan.dispatch.limits import Limits
from rayingest.plan.dispatch.stragglers import Stragglers
from rayingest.plan.order import window
from rayingest.plan.order.parameters import Order
from rayingest.plan.order.planner import Planner, RankSlice
from rayingest.plan.order.subset import Subset

FREE_SECONDS, LOOK_SECONDS = 2.0, 0.5
SLOWER = 10
"""So many times as long a straggler takes."""
WARM_UP = 0.2
"""Of the steps, left out of the waits."""


@dataclass(frozen=True)
class World:
    """The simulated world: seconds, bytes, shares."""

    rows: int = 32
    sample_bytes: int = 60_000
    row_bytes: int = 150_528
    decoders: int = 2
    step_seconds: float = 0.1
    row_seconds: float = 0.004
    read_latency: float = 0.05
    read_bandwidth: float = 100e6
    stragglers: float = 0.0
    hedging: bool = True
    max_bytes: int = 2 << 30


@dataclass
class Figures:
    """The results; CPU times in ms per step."""

    world_size: int
    batch: int
    lanes: int
    sample_bytes: int
    steps: int
    stragglers: float
    hedging: bool
    planner_ms: float = 0.0
    dispatch_ms: float = 0.0
    reads_per_block: float = 0.0
    blocks_reread: int = 0
    peak_mib: float = 0.0
    waiting: float = 0.0
    hedges: int = 0


@dataclass(order=True)
class _Happening:
    """A future event; `number` orders events of the same time."""

    at: float
    number: int
    events: tuple[ev.Event, ...] = field(compare=False)
    deed: str = field(compare=False, default="")


class Simulation:
    """One rank from step 0 of an epoch."""

    def __init__(
        self, world: World, planner: Planner, seed: int, slices: SlicedStream | None = None
    ) -> None:
        self.world, self.planner, self.slices, self.now = world, planner, slices, 0.0
        ahead = max(16, 4096 // world.rows, planner.order.window_steps // 2)
        limits = Limits(
            max_bytes=world.max_bytes, read_ahead=ahead if slices is None else slices.run_steps
        )
        self._sizes = planner.manifest.nbytes if slices is None else slices.sizes(0, 0)
        self.dispatch = Dispatch(self._sizes, limits, world.row_bytes)
        self.planning = self.dispatching = 0.0
        self.delivered: list[float] = []
        self.peak = 0
        self._rng = random.Random(seed)
        self._numbers, self._coming = itertools.count(), list[_Happening]()
        self._late = {ev.Read: Stragglers(), ev.Decode: Stragglers()}

    def run(self, steps: int) -> list[float]:
        """Return the seconds that the loop waited for each step."""
        self._tell(ev.WorkerJoined("reader", "reader", THREADS))
        for number in range(self.world.decoders):
            self._tell(ev.WorkerJoined(f"decoder{number}", "decoder", 2))
        self._tell(ev.Start(self._steps()))
        self._later(LOOK_SECONDS, deed="look")
        waits: list[float] = []
        asked = 0.0
        while len(waits) < steps:
            if len(self.delivered) > len(waits) and asked <= self.now:
                waits.append(max(0.0, self.delivered[len(waits)] - asked))
                self._tell(ev.BatchTaken())
                asked = self.now + self.world.step_seconds
                self._later(self.world.step_seconds)
                continue
            happening = heapq.heappop(self._coming)
            self.now = happening.at
            self._happen(happening)
        return waits

    def _steps(self) -> Any:
        steps = range(self.planner.steps_per_epoch)
        planned = (
            (self.planner.step_samples(0, step) for step in steps)
            if self.slices is None
            else self.slices.steps(0, 0, 1)
        )
        begun = time.process_time()
        for samples in planned:
            self.planning += time.process_time() - begun
            yield ev.StepWork(samples.block, samples.expires)
            begun = time.process_time()

    def _later(self, seconds: float, *events: ev.Event, deed: str = "") -> None:
        heapq.heappush(
            self._coming, _Happening(self.now + seconds, next(self._numbers), events, deed)
        )

    def _happen(self, happening: _Happening) -> None:
        if happening.deed == "look":
            self._later(LOOK_SECONDS, deed="look")
            if self.world.hedging:
                self._tell(
                    *(
                        ev.Overdue(task)
                        for late in self._late.values()
                        for task in late.overdue(self.now)
                    )
                )
            return
        for event in happening.events:
            if isinstance(event, ev.ReadDone):
                self._late[ev.Read].end(event.task, self.now)
            elif isinstance(event, ev.DecodeDone):
                self._late[ev.Decode].end(event.task, self.now)
        self._tell(*happening.events)

    def _tell(self, *events: ev.Event) -> None:
        if not events:
            return
        planned, begun = self.planning, time.process_time()
        commands = self.dispatch.handle(*events)
        self.dispatching += time.process_time() - begun - (self.planning - planned)
        self.peak = max(self.peak, self.dispatch.charged_bytes)
        for command in commands:
            self._obey(command)

    def _obey(self, command: ev.Command) -> None:
        world = self.world
        slow = SLOWER if self._rng.random() < world.stragglers else 1
        match command:
            case ev.Read(task, _, blocks):
                self._late[ev.Read].begin(task, self.now)
                sizes = tuple(int(self._sizes[block]) for block in blocks)
                seconds = world.read_latency + self._read_bytes(blocks) / world.read_bandwidth
                self._later(slow * seconds, ev.ReadDone(task, sizes))
            case ev.Decode(task, _, parts, _):
                self._late[ev.Decode].begin(task, self.now)
                seconds = slow * world.row_seconds * sum(len(part.rows) for part in parts)
                done = tuple(ev.PartDone(len(part.rows) * world.row_bytes) for part in parts)
                self._later(seconds, ev.DecodeDone(task, done, seconds))
            case ev.ReportFreed(nbytes):
                self._later(FREE_SECONDS, ev.Freed(nbytes))
            case ev.Deliver():
                self.delivered.append(self.now)
            case ev.Fail(reason, _, _):
                raise RuntimeError(reason)

    def _read_bytes(self, blocks: Sequence[int]) -> int:
        """Return the bytes that a read takes from storage: those of whole blocks."""
        nbytes = self.planner.manifest.nbytes
        return sum(int(nbytes[block % len(nbytes)]) for block in blocks)


def simulate(data: Any, world: World, world_size: int, steps: int) -> Figures:
    """Return one rank's figures."""
    order = Order.resolve(data, batch=world.rows * world_size, seed=1)
    ranks = RankSlice(world_size // 2, world_size)
    planner = window.plan(Subset.whole(data), order, ranks)
    planner.step_samples(0, 0)
    simulation = Simulation(world, planner, seed=world_size)
    waits = simulation.run(steps)[int(WARM_UP * steps) :]
    covered = (
        simulation.dispatch.state.queue.horizon * world.rows
    )  # samples of the steps whose blocks were asked for
    blocks_covered = covered / (data.num_samples / data.num_blocks)
    return Figures(
        world_size,
        order.batch,
        order.lanes,
        world.sample_bytes,
        steps,
        world.stragglers,
        world.hedging,
        planner_ms=1e3 * simulation.planning / simulation.dispatch.state.queue.horizon,
        dispatch_ms=1e3 * simulation.dispatching / steps,
        reads_per_block=simulation.dispatch.stats()["blocks_read"] / max(1.0, blocks_covered),
        blocks_reread=simulation.dispatch.stats()["blocks_reread"],
        peak_mib=simulation.peak / 2**20,
        waiting=sum(waits) / (sum(waits) + len(waits) * world.step_seconds),
        hedges=simulation.dispatch.stats()["hedges"],
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Simulate world sizes without stragglers, then with stragglers, hedged and not."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--samples", type=positive, default=10**9)
    parser.add_argument(
        "--sample-bytes", type=int, default=World.sample_bytes, help="of a sample as it is read"
    )
    parser.add_argument("--row-bytes", type=int, default=World.row_bytes, help="of a decoded one")
    parser.add_argument("--world-sizes", type=int, nargs="+", default=[1, 8, 64, 512, 4096])
    parser.add_argument("--steps", type=positive, default=1000)
    parser.add_argument(
        "--json", type=row_file, help="append the figures to this file, one line each"
    )
    args = parser.parse_args(argv)
    blocks = 1 << math.ceil(
        math.log2(max(2, min(1 << 20, args.samples * args.sample_bytes // (2 << 20))))
    )
    data = made_up(blocks, args.samples // blocks, max(1, blocks // 128), args.sample_bytes)
    world = World(sample_bytes=args.sample_bytes, row_bytes=args.row_bytes)
    calm = [(size, world) for size in args.world_sizes]
    rough = [
        (args.world_sizes[-1], replace(world, stragglers=0.02, hedging=hedging))
        for hedging in (False, True)
    ]
    print(
        "ranks   batch  lanes stragglers hedged  plan, dispatch a step reads/block  again  "
        "peak MiB waiting  hedges"
    )
    for world_size, world in tqdm([*calm, *rough], leave=False):
        got = simulate(data, world, world_size, args.steps)
        print(
            f"{got.world_size:5d} {got.batch:7d} {got.lanes:6d} {got.stragglers:10.2f} "
            f"{got.hedging!s:>6} "
            f"{got.planner_ms:8.2f} {got.dispatch_ms:8.2f} ms {got.reads_per_block:12.2f} "
            f"{got.blocks_reread:6d} "
            f"{got.peak_mib:9.0f} {got.waiting:8.3f} {got.hedges:7d}",
            flush=True,
        )
        append_row(args.json, asdict(got))


if __name__ == "__main__":
    main()
