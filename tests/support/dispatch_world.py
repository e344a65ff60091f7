"""A world for dispatch to act on: workers, a store and a consumer, in which things end, fail and
vanish in any order.

Every invariant that dispatch states is checked again after every event. What tasks brought is kept
in the books that the Ray path keeps it in.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np

from rayingest.errors import DataError
from rayingest.execute.cluster.object_refs import NewBlock, Results
from rayingest.plan.dispatch import events as ev
from rayingest.plan.dispatch.block_cache import BlockState
from rayingest.plan.dispatch.dispatch import Dispatch
from rayingest.plan.dispatch.limits import Limits


def windowed_steps(
    rng: random.Random,
    sizes: np.ndarray,
    steps: int,
    rows: int,
    blocks_per_window: int,
    steps_per_window: int,
) -> list[ev.StepWork]:
    """Steps whose rows come from the blocks of their window, as the planner gives them."""
    work = []
    first = 0
    while len(work) < steps:
        blocks = [(first + i) % len(sizes) for i in range(blocks_per_window)]
        first += blocks_per_window
        until = min(steps, len(work) + steps_per_window)
        while len(work) < until:
            chosen = np.array([rng.choice(blocks) for _ in range(rows)])
            work.append(ev.StepWork(chosen, np.full(rows, until)))
    return work


@dataclass
class World:
    """`row_bytes` is what a decoded row of a step takes in truth, `block_errors` the blocks that
    can never be read.

    `bad` tells of a part that is about to be decoded which of its places hold bad samples, in
    ascending order.
    """

    dispatch: Dispatch
    sizes: np.ndarray
    row_bytes: Callable[[int], int]
    rng: random.Random
    block_errors: frozenset[int] = frozenset()
    bad: Callable[[ev.Part], Sequence[int]] = lambda part: ()
    short: bool = False  # whether a read may bring but the first of its blocks
    store: set[int] = field(default_factory=set)
    reading: dict[int, ev.Read] = field(default_factory=dict)
    decoding: dict[int, ev.Decode] = field(default_factory=dict)
    spoiled: dict[int, list[Sequence[int]]] = field(default_factory=dict)
    results: Results = field(default_factory=Results)
    objects: dict[int, int] = field(
        default_factory=dict
    )  # what each task's outputs take, as long as one is there
    given_up: list[int] = field(default_factory=list)
    vanished: set[int] = field(default_factory=set)
    hung: set[int] = field(default_factory=set)
    delivered: list[tuple[int, list[int]]] = field(default_factory=list)
    errors: dict[int, BaseException] = field(default_factory=dict)
    failed: ev.Fail | None = None
    peak: int = 0
    most: int = 0  # bytes that were really in the store
    workers: int = 0
    losses: int = 0
    disturbed: bool = False
    untaken: int = 0

    def tell(self, *events: ev.Event) -> None:
        """Events for dispatch; carries out what it orders."""
        commands = self.dispatch.handle(*events)
        discards = [command for command in commands if isinstance(command, ev.Discard)]
        for discard in discards:
            there = self.results.blocks.get(discard.task) or self.outputs[discard.task]
            assert set(discard.items) <= set(there), "discards what is not there"
        came = {number for number, _ in self.results.settle(discards)}
        self.store |= came
        self.vanished -= came
        for command in commands:
            self._obey(command)
        self.check()

    @property
    def outputs(self) -> dict[int, dict[int, ev.Part]]:
        """What decodes made that is there, by task and part."""
        return self.results.outputs

    @property
    def there(self) -> int:
        """Bytes in the store."""
        blocks = sum(map(int, self.sizes[sorted(self.store)]))
        return blocks + sum(self.objects[task] for task in self.outputs) + sum(self.given_up)

    def _obey(self, command: ev.Command) -> None:
        match command:
            case ev.Read(task, _, blocks):
                assert blocks
                assert not set(blocks) & self.store, "read though it is there"
                self.reading[task] = command
            case ev.Decode(task, _, parts, blocks):
                assert set(blocks) <= self.store, "decode of blocks that are not there"
                assert all(len(part.rows) for part in parts)
                self.decoding[task] = command
                self.spoiled[task] = [self.bad(part) for part in parts]
            case ev.Drop(blocks):
                assert set(blocks) <= self.store, "gave up what was not there"
                in_use = {number for decode in self.decoding.values() for number in decode.blocks}
                assert not set(blocks) & (in_use - self.vanished), "gave up what a decode holds"
                self.store -= set(blocks)
            case ev.Deliver(step, outputs, error):
                rows = []
                for output in outputs:
                    part = self.results.take(output)
                    assert part.step == step
                    assert part.rows.tolist() == output.rows.tolist()
                    rows += output.rows.tolist()
                if error is not None:
                    self.errors[step] = error
                self.delivered.append((step, sorted(rows)))
                self.untaken += 1
            case ev.ReportFreed(nbytes):
                self.given_up.append(nbytes)
            case ev.Fail():
                self.failed = command

    def join(self, role: str, slots: int = 2) -> None:
        """One more worker."""
        self.workers += 1
        self.tell(ev.WorkerJoined(f"{role}{self.workers}", role, slots))

    def lose_worker(
        self, name: str | None = None, failure: ev.WorkerFailure = ev.WorkerFailure.OUT_OF_MEMORY
    ) -> None:
        """A worker dies, another of its role comes."""
        name = name or self.rng.choice(sorted(self.dispatch.state.workers.workers))
        role = self.dispatch.state.workers.workers[name].role
        for tasks in (self.reading, self.decoding):
            for task in [task for task, command in tasks.items() if command.worker == name]:
                del tasks[task]
        self.losses += 1
        self.disturbed = True
        self.tell(ev.WorkerLost(name, failure))
        self.join(role)

    def lose_blocks(self) -> None:
        """Some blocks in the store are gone; decodes that hold them fail at some time, or never
        answer.
        """
        lost = {number for number in self.store if self.rng.random() < 0.3}
        self.store -= lost
        self.vanished |= lost
        self.disturbed = True
        self.hung |= {task for task, decode in self.decoding.items() if set(decode.blocks) & lost}
        self.tell(ev.BlocksLost(tuple(sorted(lost))))

    def be_late(self) -> None:
        """Some task is told to be overdue."""
        tasks = [*self.reading, *self.decoding]
        if tasks:
            self.disturbed = True
            self.tell(ev.Overdue(self.rng.choice(tasks)))

    def end_read(self, task: int, fails: bool = False) -> None:
        """A read under way ends."""
        command = self.reading.pop(task)
        broken = set(command.blocks) & self.block_errors
        if broken or fails:
            self.tell(
                ev.ReadFailed(task, DataError(f"broken {sorted(broken)}"), final=bool(broken))
            )
            return
        most = self.rng.randint(0, len(command.blocks)) if self.short else len(command.blocks)
        sizes = self.sizes[list(command.blocks[:most])].tolist()
        fit = bisect_right([*accumulate(sizes)], command.budget)
        self.results.blocks[task] = {
            number: NewBlock(number, "") for number in command.blocks[:fit]
        }
        self.most = max(self.most, self.there + sum(sizes[:fit]))
        self.tell(ev.ReadDone(task, tuple(sizes[:fit]), tuple(sizes[fit:])))

    def end_decode(self, task: int, fails: bool = False) -> None:
        """A decode under way ends."""
        command = self.decoding.pop(task)
        if fails or task in self.hung:
            self.tell(ev.DecodeFailed(task, OSError("failed")))
            return
        parts, made, room = [], self.outputs.setdefault(task, {}), command.budget
        for index, (part, bad) in enumerate(
            zip(command.parts, self.spoiled.pop(task), strict=True)
        ):
            good = np.delete(part.rows, list(bad))
            if room < 0:
                parts.append(ev.PartDone(0, left_out=True))
                continue
            room -= len(good) * self.row_bytes(part.step)
            if room < 0:
                parts.append(ev.PartDone(len(good) * self.row_bytes(part.step), left_out=True))
                continue
            made[index] = ev.Part(part.step, good)
            errors = tuple(
                (place, DataError(f"bad sample at {part.step}, {part.rows[place]}"))
                for place in bad
            )
            parts.append(ev.PartDone(len(good) * self.row_bytes(part.step), bad=errors))
        self.objects[task] = sum(part.nbytes for part in parts if not part.left_out)
        self.most = max(self.most, self.there)
        if not made:
            del self.outputs[task]
        self.tell(
            ev.DecodeDone(
                task, tuple(parts), seconds=1e-3 * sum(len(part.rows) for part in command.parts)
            )
        )

    def take(self) -> None:
        """The consumer takes a batch."""
        self.untaken -= 1
        self.tell(ev.BatchTaken())

    def start(
        self, steps: Iterator[ev.StepWork], replacement: ev.FindReplacement | None = None
    ) -> None:
        """A new start: what was delivered and not taken is thrown away."""
        self.outputs.clear()
        self.delivered.clear()
        self.errors.clear()
        self.untaken = 0
        self.tell(ev.Start(steps, replacement))

    def moves(self) -> list[tuple[str, int]]:
        """What can happen next by itself."""
        possible = [("read", task) for task in self.reading] + [
            ("decode", task) for task in self.decoding
        ]
        return (
            possible
            + ([("take", 0)] if self.untaken else [])
            + ([("free", 0)] if self.given_up else [])
        )

    def move(self, kind: str, task: int, fails: bool = False) -> None:
        """Let one of `moves` happen."""
        match kind:
            case "read":
                self.end_read(task, fails)
            case "decode":
                self.end_decode(task, fails)
            case "take":
                self.take()
            case "free":
                self.tell(ev.Freed(self.given_up.pop(0)))

    def run(self, fail_rate: float = 0.0, loss_rate: float = 0.0, limit: int = 20_000) -> None:
        """Let things happen in any order until nothing can."""
        for _ in range(limit):
            moves = self.moves()
            if not moves or self.failed:
                return
            if self.rng.random() < loss_rate:
                self.rng.choice([self.lose_worker, self.lose_blocks, self.be_late, self.be_late])()
                continue
            kind, task = self.rng.choice(moves)
            self.move(
                kind, task, fails=kind not in {"take", "free"} and self.rng.random() < fail_rate
            )
        raise AssertionError("it goes on for ever")

    def check(self) -> None:
        """Assert the invariants of dispatch, and that its books agree with this world."""
        dispatch, state, ledger = self.dispatch, self.dispatch.state, self.dispatch.state.ledger
        dispatch.validate()
        if state.failed:
            return
        assert set(state.workers.tasks) == set(self.reading) | set(self.decoding)
        blocks = state.cache.blocks.values()
        resident = {block.number for block in blocks if block.state is BlockState.RESIDENT}
        assert resident == self.store
        assert ledger.resident == sum(map(int, self.sizes[sorted(self.store)]))
        assert all(self.outputs.values())
        assert ledger.outputs == sum(self.objects[task] for task in self.outputs)
        assert ledger.released == sum(self.given_up)
        self.peak = max(self.peak, ledger.total)
        if not self.disturbed:  # else two copies of a block whose size is unknown may both arrive
            most = dispatch.limits.max_bytes
            assert ledger.total <= most, f"{ledger.total} bytes of {most}"


def world(
    seed: int,
    sizes: np.ndarray,
    row_bytes: int = 10,
    expected_row_bytes: float | None = None,
    expected_sizes: np.ndarray | None = None,
    **limits: int,
) -> World:
    """A world with one reader and two decoders, whose sizes are known in advance by default."""
    rng = random.Random(seed)
    expected = row_bytes if expected_row_bytes is None else expected_row_bytes
    dispatch = Dispatch(
        sizes if expected_sizes is None else expected_sizes, Limits(**limits), expected
    )
    made = World(dispatch, sizes, lambda step: row_bytes, rng)
    for role in ("reader", "decoder", "decoder"):
        made.join(role)
    return made
