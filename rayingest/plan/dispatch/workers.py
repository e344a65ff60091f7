"""Hold the readers and decoders with their slots, and the tasks they run."""

from __future__ import annotations

from dataclasses import dataclass

from rayingest.plan.dispatch.chunks import Chunk


@dataclass(eq=False)
class Worker:
    """One reader or decoder, which runs up to `slots` tasks at a time."""

    name: str
    role: str
    slots: int
    # Slots that its tasks take: the sum of their `slots`, never above its own.
    busy: int = 0
    # Bytes that its tasks are charged with together.
    charge: int = 0


@dataclass(eq=False)
class Task:
    """A read of blocks or a decode of chunks that runs: either `blocks` or `chunks` is empty."""

    number: int
    worker: Worker
    blocks: tuple[int, ...]
    chunks: tuple[Chunk, ...]
    # What the ledger is charged with for each of its blocks or chunks while it runs.
    charges: tuple[int, ...]
    # Slots of its worker that it takes: all of them where it decodes a suspect.
    slots: int
    # Whether another task does the same, in case this one never answers.
    hedged: bool = False
    # Whether it began before the last `Start`: its failure says nothing of a try since then.
    stale: bool = False


class Workers:
    """Hold all workers by name and all running tasks by number."""

    def __init__(self) -> None:
        self.workers: dict[str, Worker] = {}
        # Running tasks, in the order in which they began; their workers are all in `workers`.
        self.tasks: dict[int, Task] = {}
        # The sum of slots by role, of the workers present.
        self._slots: dict[str, int] = {}
        self._next_number = 0
        # The name of the reader that began the last read; it may be gone.
        self._last_reader = ""

    def join(self, name: str, role: str, slots: int) -> None:
        """Add a worker."""
        self.workers[name] = Worker(name, role, slots)
        self._count_slots()

    def lose(self, name: str) -> list[Task]:
        """Remove a worker and its tasks; returns these, in the order in which they began."""
        if self.workers.pop(name, None) is None:
            return []
        lost = [task for task in self.tasks.values() if task.worker.name == name]
        for task in lost:
            del self.tasks[task.number]
        self._count_slots()
        return lost

    def free(self, role: str, avoid: Worker | None = None) -> Worker | None:
        """Return the least busy worker of this role with a free slot.

        `avoid` is returned only where no other has one.
        """
        able = [
            worker
            for worker in self.workers.values()
            if worker.role == role and worker.busy < worker.slots
        ]
        return min(able, key=lambda w: (w is avoid, w.busy / w.slots), default=None)

    def same_reader(self) -> Worker | None:
        """Return the reader that began the last read if it has a free slot, else any."""
        last = self.workers.get(self._last_reader)
        return last if last is not None and last.busy < last.slots else self.free("reader")

    def slots(self, role: str) -> int:
        """Return how many tasks all workers of this role can run at a time."""
        return self._slots.get(role, 0)

    def _count_slots(self) -> None:
        self._slots.clear()
        for worker in self.workers.values():
            self._slots[worker.role] = self.slots(worker.role) + worker.slots

    def begin(
        self,
        worker: Worker,
        charges: tuple[int, ...],
        *,
        blocks: tuple[int, ...] = (),
        chunks: tuple[Chunk, ...] = (),
        slots: int = 1,
    ) -> Task:
        """Begin a task on a worker, with a charge for each block or chunk."""
        task = Task(self._next_number, worker, blocks, chunks, charges, slots)
        self.tasks[task.number] = task
        self._next_number += 1
        self._last_reader = worker.name if blocks else self._last_reader
        worker.busy += slots
        worker.charge += sum(charges)
        return task

    def end(self, number: int) -> Task | None:
        """End a task; returns it, None where it is not running: its worker was lost before."""
        task = self.tasks.pop(number, None)
        if task is not None:
            task.worker.busy -= task.slots
            task.worker.charge -= sum(task.charges)
        return task

    def reading(self) -> list[int]:
        """Return the blocks of all running reads; a block is named once for each read of it."""
        return [number for task in self.tasks.values() for number in task.blocks]

    def validate(self) -> None:
        """Assert what holds of workers and tasks by themselves."""
        busy = dict.fromkeys(self.workers, 0)
        charge = dict.fromkeys(self.workers, 0)
        for number, task in self.tasks.items():
            assert number == task.number < self._next_number
            assert bool(task.blocks) != bool(task.chunks)
            assert len(task.charges) == len(task.blocks) + len(task.chunks)
            assert self.workers[task.worker.name] is task.worker
            busy[task.worker.name] += task.slots
            charge[task.worker.name] += sum(task.charges)
        for name, worker in self.workers.items():
            assert worker.name == name
            assert worker.busy == busy[name] <= worker.slots
            assert worker.charge == charge[name]
        for role in ("reader", "decoder"):
            slots = [worker.slots for worker in self.workers.values() if worker.role == role]
            assert self.slots(role) == sum(slots)
